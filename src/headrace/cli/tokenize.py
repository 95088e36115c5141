"""`headrace tokenize`: text to token shards."""

import os
from enum import StrEnum
from typing import Annotated

import typer

from headrace.cli.terminal import place, say

__all__ = ["EXAMPLE", "tokenize"]

EXAMPLE = "Example: `headrace tokenize corpus/ more.jsonl.zst --tokenizer tokenizer.json --out tokens --workers 8`"


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


def tokenize(  # noqa: PLR0913 -- each is an option of the command
    inputs: Annotated[
        list[str], typer.Argument(metavar="INPUTS", help="Files (.txt, .jsonl; also .gz, .zst) and directories.")
    ],
    tokenizer: Annotated[
        str,
        typer.Option(metavar="SPEC", help="A Hugging Face tokenizer.json, or a tiktoken encoding such as gpt2."),
    ],
    out: Annotated[
        str, typer.Option(metavar="DIR", help="Where the shards go: a directory, or a URL such as s3://bucket/tokens.")
    ],
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
        storage = make_records.storage(place(out))
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
        say(f"interrupted: {out} is unfinished; run the same command again to go on where it stopped")
        raise typer.Exit(130) from None
    if not quiet:
        totals = report.totals
        ids = np.dtype(make_records.dtype)
        typer.echo(
            f"{out}: {token_counts(storage, ids.itemsize)} ({ids.name}, {size_text(totals['total_bytes'])}) in "
            f"{totals['num_shards']} shards; {report.done} written in {report.seconds:.1f} s, {report.skipped} were "
            "there already"
        )
