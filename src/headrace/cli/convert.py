"""`headrace convert`: rows of any kind to a dataset of any kind."""

import os
from enum import StrEnum
from typing import Annotated, Any

import typer

from headrace.cli.terminal import local_path, place, say

__all__ = ["EXAMPLE", "convert"]

EXAMPLE = (
    "Example: `headrace convert corpus/*.parquet mds --to mds --columns id,text=str --compression zstd --workers 8`"
)


class KindName(StrEnum):
    """What the output can be."""

    mds = "mds"
    stream = "stream"
    documents = "documents"
    jsonl = "jsonl"


Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="SRC",
        help="Files (.jsonl, .ndjson, .csv, .tsv, each also .gz or .zst; .parquet), directories of such files, "
        "directories that Hugging Face's save_to_disk() wrote, and datasets that Headrace reads, of any kind.",
    ),
]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME[=ENCODING],...",
        help="The columns to keep, each with its encoding (int, float64, str, bytes, json, ndarray:int32, jpeg, ...), "
        "which is inferred where it is left out. May be given several times.",
    ),
]


def convert(  # noqa: PLR0913 -- each is an option of the command
    sources: Sources,
    destination: Annotated[
        str,
        typer.Argument(metavar="DST", help="A directory or a URL for the dataset; for jsonl a file that ends so."),
    ],
    to: Annotated[KindName, typer.Option(help="What to make.")],
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; by default one a CPU.")] = None,
    shards: Annotated[
        int | None,
        typer.Option(min=1, help="Number of tasks; by default it follows from the size of the inputs alone."),
    ] = None,
    columns: Columns = None,
    field: Annotated[
        str | None, typer.Option(metavar="NAME", help="The column that documents, or a stream, are made of.")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="Type of the elements of documents or a stream, such as uint16, where none is recorded."),
    ] = None,
    sequence_length: Annotated[
        int | None, typer.Option(min=1, help="Elements of a row, where an input is a stream; the last row is shorter.")
    ] = None,
    delimiter: Annotated[
        str | None, typer.Option(help="Between fields; by default a comma, and a tab in .tsv files.")
    ] = None,
    quotes: Annotated[bool, typer.Option(help="Whether quotes in CSV and TSV enclose fields, or are text.")] = True,
    compression: Annotated[
        str | None, typer.Option(metavar="NAME[:LEVEL]", help="Of MDS shards: br, bz2, gz, snappy or zstd.")
    ] = None,
    hashes: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Digests in the index of MDS shards; by default xxh3_64.")
    ] = None,
    size_limit: Annotated[
        str | None, typer.Option(metavar="BYTES", help="Of an MDS shard, such as 64mb, which is the default.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace another dataset in DST.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar and no report.")] = False,
) -> None:
    """Convert rows to a dataset, or to JSON lines, in parallel.

    Rows are lines of JSONL, records of CSV, rows of tables, samples, documents, windows of a stream, or spans. They
    keep their order, and the output is the same whatever the number of workers. Run the same command again after an
    interruption: what is finished is skipped. A row that does not fit is refused with its file and line.

    **mds** has a sample a row, with columns that follow from the schema of the input, or from the first 100 rows of
    each JSONL or CSV file: whole numbers are int, others float64, text is str, lists of numbers are arrays; booleans,
    nulls, and what is nested or mixed is json. **documents** has a document a row: the value of --field (arrays, text
    as bytes), or the row as JSON. **stream** has the elements of --field, end to end. **jsonl** is one file with a line
    a row. Pickled columns and documents are never read.
    """
    writer: dict[str, Any] = {"compression": compression, "hashes": _hashes(hashes), "size_limit": size_limit}
    writer = {name: value for name, value in writer.items() if value is not None}
    from headrace.inspection import size_text
    from headrace.preparation.conversion import Reading, Wanted
    from headrace.preparation.conversion import convert as run

    # Bars of the package that reads Hugging Face's directories, one from each worker.
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    try:
        report = run(
            [local_path(source) for source in sources],
            local_path(destination) if to is KindName.jsonl else place(destination),
            Wanted(to.value, _named(columns), field, dtype, writer),
            Reading(delimiter, quotes, sequence_length),
            num_splits=shards,
            workers=workers,
            progress=not quiet,
            overwrite=overwrite,
        )
    except ImportError as error:
        say(f"error: {error}")
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        say(f"interrupted: {destination} is unfinished; run the same command again to go on where it stopped")
        raise typer.Exit(130) from None
    if not quiet:
        totals = report.totals
        typer.echo(
            f"{destination}: {totals['total_length']:,} {_COUNTED[to]}, {size_text(totals['total_bytes'])}; "
            f"{report.done} tasks done in {report.seconds:.1f} s, {report.skipped} were done already"
        )


_COUNTED = {
    KindName.mds: "samples",
    KindName.stream: "elements",
    KindName.documents: "documents",
    KindName.jsonl: "lines",
}


def _hashes(given: str | None) -> list[str] | None:
    return None if given is None else [name for name in given.split(",") if name]


def _named(given: list[str] | None) -> dict[str, str | None] | None:
    """Columns as they are named: `id,text=str` is {"id": None, "text": "str"}."""
    if not given:
        return None
    named: dict[str, str | None] = {}
    last = ""
    for piece in (piece.strip() for text in given for piece in text.split(",")):
        name, has_encoding, encoding = piece.partition("=")
        if piece.isdecimal() and (named.get(last) or "").startswith("ndarray:"):
            named[last] = f"{named[last]},{piece}"  # one more dimension of ndarray:uint16:2,3
            continue
        if name in named:
            raise typer.BadParameter(f"column {name!r} is named twice", param_hint="--columns")
        if not name or (has_encoding and not encoding):
            raise typer.BadParameter(f"{piece!r} is no NAME or NAME=ENCODING", param_hint="--columns")
        named[name], last = encoding or None, name
    return named
