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
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.errors import HeadraceError, InputError

if TYPE_CHECKING:
    from headrace.datasets import DocumentStorage, StreamStorage, StreamWithMetaStorage

__all__ = ["app", "main"]

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
    documents: Annotated[
        bool,
        typer.Option("--documents", help="Keep documents apart: a dataset of documents, each an array of ids."),
    ] = False,
    spans: Annotated[
        bool,
        typer.Option(
            "--spans",
            help="A stream that knows its documents: each is a span with its number, so that attention can be "
            "masked between them.",
        ),
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace another dataset in DIR.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar and no report.")] = False,
) -> None:
    """Turn text into a published token stream, in parallel.

    Documents are tokenized in the order of the inputs, each followed by the end-of-document token. The shards are the
    same whatever the number of workers. Run the same command again after an interruption: what is finished is skipped.

    The same ids come as one stream to be cut into windows, as --documents to be read one by one, or as --spans, a
    stream whose windows tell where documents begin.
    """
    if documents and spans:
        raise typer.BadParameter("give one of --documents and --spans, or neither for a plain stream")
    import numpy as np

    from headrace.inspection import size_text, token_counts
    from headrace.preparation import prepare, split_text_files, token_records

    # Each worker is one process of many; a pool of threads in each would only get in the way.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        make_records = token_records(
            tokenizer,
            dtype=dtype.value,
            eos=eos,
            field=field,
            layout="documents" if documents else "spans" if spans else "stream",
        )
        storage = make_records.storage(_local(out))
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
        ids = np.dtype(make_records.dtype)
        typer.echo(
            f"{out}: {token_counts(storage, ids.itemsize)} ({ids.name}, {size_text(totals['total_bytes'])}) in "
            f"{totals['num_shards']} shards; {report.done} written in {report.seconds:.1f} s, {report.skipped} were "
            "there already"
        )


@app.command(epilog="Example: `headrace inspect tokens --json | jq .total_length`")
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


@app.command(epilog="Example: `headrace verify tokens && echo all is well`")
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
        _say(f"{len(damages)} of {sum(len(shard.files) for shard in manifest.shards)} files are damaged")
        raise typer.Exit(1)
    unchecked = storage.describe()["unchecked"]
    note = f"; there is no record to check {', '.join(unchecked)}" if unchecked else ""
    typer.echo(f"{directory}: {manifest.num_shards} shards, {size_text(manifest.total_bytes)}, no damage found{note}")


@app.command(epilog="Example: `headrace publish tokens`")
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


def _storage(directory: str) -> "StreamStorage | DocumentStorage | StreamWithMetaStorage":
    from headrace.datasets import open_storage

    return open_storage(_local(directory))
