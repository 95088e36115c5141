"""`headrace cache`: what a cache directory holds, and how to make it smaller."""

import time
from typing import Annotated

import typer

from headrace.cli.terminal import local_path, say
from headrace.errors import InputError, OptionError

__all__ = ["EXAMPLE", "cache"]

EXAMPLE = "Example: `headrace cache /local/cache --limit 200GB`"


def cache(
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="The directory of a CachedStore, or the local of a StreamingDataset.")
    ],
    limit: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Remove what was used longest ago until this much is left.")
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Remove everything that no reader uses.")] = False,
) -> None:
    """Show what a cache keeps of each dataset, and trim it.

    Files that a reader has mapped stay, and so does everything that the cache did not download. Safe while the cache is
    in use: what is needed again is fetched again.
    """
    from headrace.inspection import printable, size_text
    from headrace.store.cache_files import CacheFolder
    from headrace.store.eviction import cached_data, limit_in_bytes, trim

    if limit is not None and clear:
        raise typer.BadParameter("give one of --limit and --clear", param_hint="--clear")
    try:
        limit_bytes = 0 if clear else limit_in_bytes(limit)
    except OptionError as error:
        raise typer.BadParameter(f"{error.value!r}; expected {error.expected}", param_hint="--limit") from None
    path = local_path(directory)
    folder = CacheFolder(path.absolute())
    if not folder.is_there():
        raise InputError(
            str(path), "holds no cache; give the directory of a CachedStore, or the local of a StreamingDataset"
        )
    if limit_bytes is not None:
        folder.remove_dead()
        removed = trim(folder, limit_bytes)
        say(f"removed {size_text(removed)}")
    found = cached_data(folder)
    rows = [("dataset", "files", "in use", "size", "last used")]
    for data in found:
        name = f"{data.location or '?'} ({(data.fingerprint or data.dataset)[:12]})"
        ago = _ago(time.time() - data.used_s)
        rows.append((printable(name), f"{data.num_files:,}", f"{data.num_pinned:,}", size_text(data.num_bytes), ago))
    totals = sum(data.num_files for data in found), sum(data.num_pinned for data in found)
    total_bytes = sum(data.num_bytes for data in found)
    rows.append(("total", f"{totals[0]:,}", f"{totals[1]:,}", size_text(total_bytes), ""))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        typer.echo("  ".join(cells).rstrip())
    if limit_bytes is not None and total_bytes > limit_bytes:
        say(f"{size_text(total_bytes)} are more than {size_text(limit_bytes)}: readers use them; run this again later")


def _ago(seconds: float) -> str:
    for size, unit in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}{'s' * (count != 1)} ago"
    return "just now"
