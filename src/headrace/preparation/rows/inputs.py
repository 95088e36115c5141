"""What kind of input a path is: by a file's ending, by what lies in a directory."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from headrace.errors import InputError
from headrace.preparation.rows.delimited import CsvSource, checked_delimiter
from headrace.preparation.rows.jsonl import JsonlSource
from headrace.preparation.rows.splits import RowSource, RowSplit, split_sources
from headrace.preparation.sources import StrPath, compression_of, files_below, stated

__all__ = ["row_sources", "split_rows"]

_KINDS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_KNOWN = ".jsonl, .ndjson, .csv and .tsv, each also with .gz or .zst, and .parquet"


def row_sources(
    paths: StrPath | Iterable[StrPath],
    *,
    delimiter: str | None = None,
    quotes: bool = True,
    sequence_length: int | None = None,
) -> list[RowSource]:
    """The inputs behind the paths, in the order given.

    A path is a file (.jsonl, .ndjson, .csv, .tsv, each also .gz or .zst; .parquet), a directory that Hugging Face's
    save_to_disk() wrote, a dataset directory of any kind that Headrace reads, or a directory of such files, which stand
    sorted by name in each folder. delimiter and quotes are for .csv and .tsv; a stream is cut into rows of
    sequence_length elements, the last one shorter. Raises InputError for a path that is missing, of unknown kind or
    given twice, and for data that cannot be read.
    """
    if delimiter is not None:
        checked_delimiter(delimiter)
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not given:
        raise InputError("inputs", "no path was given")
    found: list[RowSource] = []
    for path in given:
        found += _sources_at(path, delimiter, quotes, sequence_length)
    seen: set[str] = set()
    for source in found:
        if source.name in seen:
            raise InputError(source.name, "is given twice, which would repeat its rows; name each input once")
        seen.add(source.name)
    return found


def split_rows(
    paths: StrPath | Iterable[StrPath],
    num_splits: int | None = None,
    *,
    delimiter: str | None = None,
    quotes: bool = True,
    sequence_length: int | None = None,
) -> list[RowSplit]:
    """num_splits splits that, one after the other, are the rows of the inputs: split_sources(row_sources(...))."""
    sources = row_sources(paths, delimiter=delimiter, quotes=quotes, sequence_length=sequence_length)
    return split_sources(sources, num_splits)


def _sources_at(
    given: StrPath, delimiter: str | None, quotes: bool, sequence_length: int | None
) -> Iterator[RowSource]:
    path = Path(os.path.abspath(Path(given).expanduser()))  # not resolve(): links keep their names
    if not path.exists():
        raise InputError(str(given), "no such file or directory")
    if not path.is_dir():
        yield _file_source(str(path), delimiter, quotes)
        return
    # Imported late: they bring NumPy's and Headrace's readers, or the packages of others.
    from headrace.preparation.rows.hugging_face import hugging_face_source, is_hugging_face
    from headrace.preparation.rows.stored import is_dataset, stored_source

    if is_hugging_face(path):
        yield hugging_face_source(path)
    elif is_dataset(path):
        yield stored_source(path, sequence_length)
    elif files := list(files_below(path, _kind)):
        for file in files:
            _refuse_partition(path, Path(file))
            yield _file_source(file, delimiter, quotes)
    else:
        raise InputError(str(given), f"holds no dataset and no file of a known kind ({_KNOWN})")


def _refuse_partition(folder: Path, file: Path) -> None:
    """InputError for a file in a folder such as `year=2020`, by which other programs mean one more column."""
    if _kind(file.name) == "parquet":
        for part in file.relative_to(folder).parts[:-1]:
            if "=" in part:
                raise InputError(
                    str(file),
                    f"lies in the folder {part!r}, which stands for a column that is not in the file; name the files "
                    "themselves to convert them without it",
                )


def _kind(name: str) -> str | None:
    stem, suffix = os.path.splitext(name.lower())
    if compression_of(name) is None:
        return _KINDS.get(suffix)
    kind = _KINDS.get(os.path.splitext(stem)[1])
    return None if kind == "parquet" else kind


def _file_source(path: str, delimiter: str | None, quotes: bool) -> RowSource:
    match _kind(os.path.basename(path)):
        case "jsonl":
            return JsonlSource(stated(path))
        case "csv":
            return CsvSource(stated(path), delimiter or ",", quotes)
        case "tsv":
            return CsvSource(stated(path), delimiter or "\t", quotes)
        case "parquet":
            from headrace.preparation.rows.tables import parquet_source

            return parquet_source(path)
    raise InputError(path, f"the name's ending is not one of those known: {_KNOWN}")
