"""`headrace inspect`, `verify` and `publish`: what is in a directory, and whether it is well."""

from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.terminal import local_path, say

if TYPE_CHECKING:
    from headrace.datasets import DocumentStorage, StreamStorage, StreamWithMetaStorage

__all__ = ["inspect", "publish", "verify"]

Directory = Annotated[str, typer.Argument(metavar="DIR", help="The dataset's directory.")]


def inspect(
    directory: Directory,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, for programs.")] = False,
) -> None:
    """Say what a dataset is: kind, schema, shards, counts, size, digests, and how it begins.

    Long documents are shortened. Pickled ones are shown as bytes: looking at a dataset never runs code from it.
    """
    from headrace.inspection import description, readable

    described = description(_storage(directory))
    if as_json:
        import msgspec

        typer.echo(msgspec.json.format(msgspec.json.encode(described), indent=2).decode())
    else:
        for line in readable(described):
            typer.echo(line)


def verify(directory: Directory) -> None:
    """Read every file again and compare it with its recorded digest.

    Each damaged file is named, with the elements, or documents, of its shard. Exit code 1 if there is any.
    """
    from headrace.inspection import size_text

    storage = _storage(directory)
    manifest = storage.open().manifest
    damages = storage.verify()
    for damage in damages:
        start, stop = damage.elements
        place = f"{storage.counted} {start:,} to {stop:,}"
        typer.echo(f"{damage.file}: {damage.problem} (shard {damage.shard}, {place}, exclusive)")
    if damages:
        say(f"{len(damages)} of {sum(len(shard.files) for shard in manifest.shards)} files are damaged")
        raise typer.Exit(1)
    unchecked = storage.describe()["unchecked"]
    note = f"; there is no record to check {', '.join(unchecked)}" if unchecked else ""
    typer.echo(f"{directory}: {manifest.num_shards} shards, {size_text(manifest.total_bytes)}, no damage found{note}")


def publish(directory: Directory) -> None:
    """Commit a directory whose shards are all written as one immutable dataset.

    Writers commit shards one by one; this checks that all are there and writes headrace.json. Twice is harmless.
    """
    from headrace.inspection import size_text

    storage = _storage(directory)
    manifest = storage.publish()
    typer.echo(
        f"{directory}: published {manifest.num_shards} shards, {manifest.total_length:,} {storage.counted}, "
        f"{size_text(manifest.total_bytes)}, fingerprint {manifest.fingerprint}"
    )


def _storage(directory: str) -> "StreamStorage | DocumentStorage | StreamWithMetaStorage":
    from headrace.datasets import open_storage

    return open_storage(local_path(directory))
