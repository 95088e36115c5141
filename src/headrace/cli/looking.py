"""`headrace inspect`, `verify` and `publish`: what is in a directory, and whether it is well."""

from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.terminal import place, say

if TYPE_CHECKING:
    from headrace.inspection import Found

__all__ = ["inspect", "publish", "verify"]

Directory = Annotated[
    str, typer.Argument(metavar="DIR", help="The dataset's directory, or a URL such as s3://bucket/tokens.")
]
Cache = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="A local directory to keep what is read whole of a dataset at a URL."),
]


def inspect(
    directory: Directory,
    cache: Cache = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, for programs.")] = False,
) -> None:
    """Say what a dataset is: kind, schema, shards, counts, size, digests, and how it begins.

    Long values are shortened. Pickled ones are shown as bytes: looking at a dataset never runs code from it.
    """
    from headrace.inspection import description, readable

    described = description(_found(directory, cache))
    if as_json:
        import msgspec

        typer.echo(msgspec.json.format(msgspec.json.encode(described), indent=2).decode())
    else:
        for line in readable(described):
            typer.echo(line)


def verify(directory: Directory, cache: Cache = None) -> None:
    """Read every file again and compare it with its recorded digest.

    Each damaged file is named, with the elements, documents or samples of its shard. Exit code 1 if there is any.
    """
    from headrace.inspection import printable, size_text, verdict

    found = verdict(_found(directory, cache))
    for damage in found.damages:
        start, stop = damage.elements
        place = f"{found.counted} {start:,} to {stop:,}"
        line = f"{damage.file}: {damage.problem} (shard {damage.shard}, {place}, exclusive)"
        typer.echo(printable(line))  # names of files come from the index
    if found.damages:
        say(f"{len(found.damages)} of {found.num_files} files are damaged")
        raise typer.Exit(1)
    note = f"; there is no record to check {', '.join(found.unchecked)}" if found.unchecked else ""
    typer.echo(f"{directory}: {found.num_shards} shards, {size_text(found.num_bytes)}, no damage found{note}")


def publish(directory: Directory) -> None:
    """Commit a directory whose shards are all written as one immutable dataset.

    Writers commit shards one by one; this checks that all are there and writes headrace.json. Twice is harmless.
    Samples are published by the writer that finishes them: of those it tells what is there.
    """
    from headrace.inspection import published, size_text

    totals = published(_found(directory))
    typer.echo(
        f"{directory}: published {totals.num_shards} shards, {totals.length:,} {totals.counted}, "
        f"{size_text(totals.num_bytes)}, fingerprint {totals.fingerprint}"
    )


def _found(directory: str, cache: str | None = None) -> "Found":
    """The dataset there; an error of one line where the package for its URL is missing."""
    from headrace.inspection import found_in

    try:
        return found_in(place(directory), cache)
    except ImportError as error:
        say(f"error: {error}")
        raise typer.Exit(1) from None
