"""`headrace inspect`, `verify` and `publish`: what is in a directory, and whether it is well."""

from typing import Annotated

import typer

from headrace.cli.terminal import local_path, say

__all__ = ["inspect", "publish", "verify"]

Directory = Annotated[str, typer.Argument(metavar="DIR", help="The dataset's directory.")]


def inspect(
    directory: Directory,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, for programs.")] = False,
) -> None:
    """Say what a dataset is: kind, schema, shards, counts, size, digests, and how it begins.

    Long values are shortened. Pickled ones are shown as bytes: looking at a dataset never runs code from it.
    """
    from headrace.inspection import description, found_in, readable

    described = description(found_in(local_path(directory)))
    if as_json:
        import msgspec

        typer.echo(msgspec.json.format(msgspec.json.encode(described), indent=2).decode())
    else:
        for line in readable(described):
            typer.echo(line)


def verify(directory: Directory) -> None:
    """Read every file again and compare it with its recorded digest.

    Each damaged file is named, with the elements, documents or samples of its shard. Exit code 1 if there is any.
    """
    from headrace.inspection import found_in, printable, size_text, verdict

    found = verdict(found_in(local_path(directory)))
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
    from headrace.inspection import found_in, published, size_text

    totals = published(found_in(local_path(directory)))
    typer.echo(
        f"{directory}: published {totals.num_shards} shards, {totals.length:,} {totals.counted}, "
        f"{size_text(totals.num_bytes)}, fingerprint {totals.fingerprint}"
    )
