"""`headrace cp`: a dataset at another place."""

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.terminal import place, say

if TYPE_CHECKING:
    from headrace.datasets.copying import Tell

__all__ = ["EXAMPLE", "copy"]

EXAMPLE = "Example: `headrace cp tokens s3://bucket/tokens --workers 16`"


def copy(
    source: Annotated[
        str, typer.Argument(metavar="SRC", help="The dataset's directory, or a URL such as s3://bucket/tokens.")
    ],
    destination: Annotated[str, typer.Argument(metavar="DST", help="An empty place: a directory or a URL.")],
    workers: Annotated[int, typer.Option(min=1, help="Files that are copied at a time.")] = 8,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar and no report.")] = False,
) -> None:
    """Copy a dataset of any kind from any place to any other, checked and as a whole.

    Every file is compared with its recorded digest on the way. The manifest or index comes last, so that half a copy
    never opens. Run the same command again after an interruption: files that are whole stay. Another dataset at DST is
    never overwritten, and an unfinished one at SRC is refused. A dataset that was not published yet is in its copy.
    Files beside the dataset are not copied. Credentials for URLs come from the environment.
    """
    from headrace.datasets.copying import copy_dataset
    from headrace.inspection import size_text

    try:
        with _bar(show=not quiet) as tell:
            report = copy_dataset(place(source), place(destination), workers=workers, tell=tell)
    except ImportError as error:
        say(f"error: {error}")
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        say(f"interrupted: {destination} is unfinished; run the same command again to go on where it stopped")
        raise typer.Exit(130) from None
    if not quiet:
        fingerprint = "" if report.fingerprint is None else f", fingerprint {report.fingerprint}"
        typer.echo(
            f"{destination}: {report.copied_files} files, {size_text(report.copied_bytes)}, copied in "
            f"{report.seconds:.1f} s, {report.skipped_files} were there already{fingerprint}"
        )


@contextlib.contextmanager
def _bar(*, show: bool) -> "Iterator[Tell | None]":
    """What draws the bytes, if they are wanted and standard error is a terminal."""
    if not show or sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=5) as progress:
        row = progress.add_task("", total=None)
        yield lambda now, total: progress.update(row, advance=now, total=total)
