"""The command `headrace`: tokenize, inspect, verify, publish.

Every failure ends with an exit code that is not 0: 1 with one line that says what to do, 2 for a wrong command line,
130 after Ctrl-C. Results go to standard output, progress and errors to standard error.
"""

import os
import re
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.errors import HeadraceError, InputError

if TYPE_CHECKING:
    from headrace.datasets import StreamStorage

__all__ = ["app", "main"]

_SHARDS_SHOWN = 10

app = typer.Typer(
    name="headrace",
    help="Headrace takes raw data to training batches. Here: text to token shards, and a look at what is there.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


class DtypeName(StrEnum):
    """Element types of a token stream."""

    auto = "auto"
    uint16 = "uint16"
    uint32 = "uint32"
    int32 = "int32"


class DocumentName(StrEnum):
    """What is a document in a .txt file."""

    file = "file"
    line = "line"
    paragraph = "paragraph"


Directory = Annotated[str, typer.Argument(metavar="DIR", help="The dataset's directory.")]


@app.command(
    epilog="Example: `headrace tokenize corpus/ more.jsonl.zst --tokenizer tokenizer.json --out tokens --workers 8`"
)
def tokenize(  # noqa: PLR0913 -- each is an option of the command
    inputs: Annotated[
        list[str], typer.Argument(metavar="INPUTS", help="Files (.txt, .jsonl; also .gz, .zst) and directories.")
    ],
    tokenizer: Annotated[
        str,
        typer.Option(metavar="SPEC", help="A Hugging Face tokenizer.json, or a tiktoken encoding such as gpt2."),
    ],
    out: Annotated[str, typer.Option(metavar="DIR", help="Where the shards go.")],
    shards: Annotated[
        int | None,
        typer.Option(min=1, help="Number of shards; by default it follows from the size of the inputs alone."),
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; by default one a CPU.")] = None,
    dtype: Annotated[
        DtypeName, typer.Option(help="Type of the ids; auto is uint16 up to 65,536 entries, else uint32.")
    ] = DtypeName.auto,
    eos: Annotated[
        str | None,
        typer.Option(metavar="ID|TOKEN", help="What follows each document; by default the tokenizer's own token."),
    ] = None,
    field: Annotated[str, typer.Option(help="The member of each JSONL object that holds the text.")] = "text",
    document: Annotated[DocumentName, typer.Option(help="What is a document in .txt files.")] = DocumentName.file,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace another dataset in DIR.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar and no report.")] = False,
) -> None:
    """Turn text into a published token stream, in parallel.

    Documents are tokenized in the order of the inputs, each followed by the end-of-document token. The shards are the
    same whatever the number of workers. Run the same command again after an interruption: what is finished is skipped.
    """
    import numpy as np

    from headrace.datasets import StreamStorage
    from headrace.formats.stream import StreamNumpyFormat
    from headrace.preparation import prepare, split_text_files, token_records

    # Each worker is one process of many; a pool of threads in each would only get in the way.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        make_records = token_records(tokenizer, dtype=dtype.value, eos=eos, field=field)
        storage = StreamStorage(_local(out), StreamNumpyFormat(np.dtype([("tokens", make_records.dtype)])))
        splits = split_text_files(inputs, shards, document=document.value)
        report = prepare(
            splits,
            make_records,
            storage,
            workers=workers,
            progress=not quiet,
            overwrite=overwrite,
            metadata=make_records.metadata,
        )
    except KeyboardInterrupt:
        _say(f"interrupted: {out} is unfinished; run the same command again to go on where it stopped")
        raise typer.Exit(130) from None
    if not quiet:
        totals = report.totals
        typer.echo(
            f"{out}: {totals['total_length']:,} tokens ({np.dtype(make_records.dtype).name}, "
            f"{_size(totals['total_bytes'])}) in {totals['num_shards']} shards; {report.done} written in "
            f"{report.seconds:.1f} s, {report.skipped} were there already"
        )


@app.command(epilog="Example: `headrace inspect tokens --json | jq .total_length`")
def inspect(
    directory: Directory,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, for programs.")] = False,
) -> None:
    """Say what a dataset is: kind, schema, shards, counts, size, digests, and how it begins."""
    described = _described(_storage(directory))
    if as_json:
        import msgspec

        typer.echo(msgspec.json.format(msgspec.json.encode(described), indent=2).decode())
    else:
        _print_description(described)


@app.command(epilog="Example: `headrace verify tokens && echo all is well`")
def verify(directory: Directory) -> None:
    """Read every file again and compare it with its recorded digest.

    Each damaged file is named, with the elements of its shard. Exit code 1 if there is any.
    """
    storage = _storage(directory)
    manifest = storage.open().manifest
    damages = storage.verify()
    for damage in damages:
        start, stop = damage.elements
        typer.echo(f"{damage.file}: {damage.problem} (shard {damage.shard}, elements {start:,} to {stop:,}, exclusive)")
    if damages:
        _say(f"{len(damages)} of {sum(len(shard.files) for shard in manifest.shards)} files are damaged")
        raise typer.Exit(1)
    unchecked = storage.describe()["unchecked"]
    note = f"; there is no record to check {', '.join(unchecked)}" if unchecked else ""
    typer.echo(f"{directory}: {manifest.num_shards} shards, {_size(manifest.total_bytes)}, no damage found{note}")


@app.command(epilog="Example: `headrace publish tokens`")
def publish(directory: Directory) -> None:
    """Commit a directory whose shards are all written as one immutable dataset.

    Writers commit shards one by one; this checks that all are there and writes headrace.json. Twice is harmless.
    """
    manifest = _storage(directory).publish()
    typer.echo(
        f"{directory}: published {manifest.num_shards} shards, {manifest.total_length:,} elements, "
        f"{_size(manifest.total_bytes)}, fingerprint {manifest.fingerprint}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and leave the process with its exit code."""
    try:
        app(args=None if arguments is None else list(arguments))
    except HeadraceError as error:
        _say(f"error: {error}")
    except BrokenPipeError:
        # The reader of a pipe such as `| head` has enough. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:  # a full disk, a missing permission
        _say(f"error: {error}")
    sys.exit(1)


def _say(line: str) -> None:
    typer.echo(line, err=True)


def _local(directory: str) -> Path:
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", directory):
        raise InputError(directory, "is a URL; give a local directory, and copy the shards from or to there")
    return Path(directory).expanduser()


def _storage(directory: str) -> "StreamStorage":
    from headrace.datasets import StreamStorage

    return StreamStorage(_local(directory))


def _described(storage: "StreamStorage") -> dict[str, Any]:
    manifest = storage.open().manifest
    described = storage.describe()
    described["shards"] = [
        {
            "shard": number,
            "length": shard.length if shard.length >= 0 else None,
            "files": [{"name": f.name, "bytes": f.bytes, "xxh3_128": f.xxh3_128 or None} for f in shard.files],
        }
        for number, shard in enumerate(manifest.shards)
    ]
    described["first"] = _first_elements(storage) if described["total_length"] else None
    return described


def _first_elements(storage: "StreamStorage", count: int = 16) -> Any:
    import numpy as np

    with storage.sync_reader() as reader:
        sample = reader.read(0, min(count, reader.total_length))
    if isinstance(sample, dict):
        return {name: np.asarray(values).tolist() for name, values in sample.items()}
    return np.asarray(sample).tolist()


def _print_description(described: dict[str, Any]) -> None:
    length = described["total_length"]
    facts = {
        "location": described["location"],
        "kind": described["kind"],
        "element type": described["dtype"],
        "elements": None if length is None else f"{length:,}",
        "shards": described["num_shards"],
        "size": _size(described["total_bytes"]),
        "published": "yes" if described["published"] else "no",
        "fingerprint": described["fingerprint"],
        "metadata": described["metadata"] or None,
        "not checked": ", ".join(described["unchecked"]) or None,
        "begins": described["first"],
    }
    for name, value in facts.items():
        if value is not None:
            typer.echo(f"{name:<14}{value}")
    typer.echo(f"\n{'shard':>7} {'elements':>15} {'bytes':>15}  {'XXH3-128':<32}  file")
    for shard in described["shards"][:_SHARDS_SHOWN]:
        for file in shard["files"]:
            elements = "?" if shard["length"] is None else f"{shard['length']:,}"
            digest = file["xxh3_128"] or "?"
            typer.echo(f"{shard['shard']:>7} {elements:>15} {file['bytes']:>15,}  {digest:<32}  {file['name']}")
    if len(described["shards"]) > _SHARDS_SHOWN:
        typer.echo(f"and {len(described['shards']) - _SHARDS_SHOWN} more shards; --json shows them all")


def _size(num_bytes: int) -> str:
    size = float(num_bytes)
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
