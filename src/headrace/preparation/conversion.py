"""convert(): rows of any input to a dataset of another kind, in parallel and resumable, as `prepare` is.

    inputs -> splits -> rows -> columns in their types -> mds         a sample a row
                                                       -> documents   a document a row: a field of it, or all as JSON
                                                       -> stream      the elements of a field, row after row
                                                       -> jsonl       a line a row

What decides the output is settled before the first task runs. A row that does not fit is refused by file and line.
"""

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from headrace.datasets import DocumentStorage, StreamStorage
from headrace.datasets.samples.options import size_limit_bytes
from headrace.datasets.samples.storage import SampleStorage
from headrace.errors import InputError, OptionError
from headrace.formats.compression import codec
from headrace.formats.digests import checked_hashes
from headrace.formats.documents import DocumentBytesFormat, DocumentFormat, DocumentNumpyFormat
from headrace.formats.mds.encodings import encoding
from headrace.formats.stream import StreamNumpyFormat
from headrace.preparation.job import Report, prepare
from headrace.preparation.json_lines import JsonLinesFile
from headrace.preparation.row_records import Form, PackedJsonFormat, RowRecords
from headrace.preparation.rows.columns import array_dtype, is_json
from headrace.preparation.rows.inputs import row_sources
from headrace.preparation.rows.schema import Input, check_json, encodings, inspected
from headrace.preparation.rows.splits import split_sources
from headrace.preparation.sources import StrPath
from headrace.preparation.tasks import Target
from headrace.store import LocalStore
from headrace.store.open import has_scheme

__all__ = ["Kind", "Reading", "Wanted", "convert"]

Kind = Literal["mds", "stream", "documents", "jsonl"]

_WINDOW_ELEMENTS = 1 << 16  # of a stream that becomes a stream again, where the length of rows shows nowhere
_LINE_ENDINGS = (".jsonl", ".ndjson")


@dataclass(frozen=True)
class Reading:
    """How inputs are read: see row_sources()."""

    delimiter: str | None = None
    quotes: bool = True
    sequence_length: int | None = None


@dataclass(frozen=True)
class Wanted:
    """What to make of the rows.

    columns names those to keep, each with an encoding of MDS or with None, which is inferred; None keeps all. field is
    the column that documents or a stream are made of, dtype the type of its elements. writer has options of MDSWriter,
    such as compression, hashes and size_limit.
    """

    to: Kind
    columns: Mapping[str, str | None] | None = None
    field: str | None = None
    dtype: str | None = None
    writer: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class _Made(NamedTuple):
    """What is made of rows, and where it goes."""

    records: RowRecords
    target: Target


def convert(
    paths: StrPath | Iterable[StrPath],
    destination: StrPath,
    wanted: Wanted,
    reading: Reading = Reading(),
    *,
    num_splits: int | None = None,
    workers: int | None = None,
    progress: bool = True,
    overwrite: bool = False,
) -> Report:
    """Converts the inputs to one dataset at destination, or one .jsonl file, and reports how much was to do.

    destination is a directory or a URL; of a .jsonl file, a path.
    paths are as for row_sources(), num_splits as for split_sources(), the rest as for prepare(): the output is the same
    whatever the number of workers, and after an interruption the same call goes on. Encodings that are not named follow
    from the schema of the inputs, and of JSONL from the first 100 rows of each file: whole numbers are `int`, others
    `float64`, text is `str`, lists of numbers are arrays; booleans, nulls, what is nested and what is mixed is `json`.

    Raises InputError for inputs that cannot be read or do not fit, OptionError for options that mean nothing, both
    before anything is written; PreparationError, naming file and line, for a row that does not fit.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    target = os.fspath(destination) if has_scheme(os.fspath(destination)) else LocalStore(os.fspath(destination)).root
    _check(wanted, target)
    _refuse_overlap(given, target)
    sequence_length = reading.sequence_length or (_WINDOW_ELEMENTS if wanted.to == "stream" else None)
    sources = row_sources(given, delimiter=reading.delimiter, quotes=reading.quotes, sequence_length=sequence_length)
    inputs = inspected(sources, wanted.columns)
    made = _made(inputs, wanted, target)
    splits = split_sources([given.source for given in inputs], num_splits)
    return prepare(splits, made.records, made.target, workers=workers, progress=progress, overwrite=overwrite)


def _made(inputs: Sequence[Input], wanted: Wanted, target: Path | str) -> _Made:
    match wanted.to:
        case "mds":
            return _samples(inputs, wanted, target)
        case "stream":
            return _stream(inputs, wanted, target)
        case "documents":
            return _documents(inputs, wanted, target)
    check_json(inputs, wanted.columns)
    return _Made(RowRecords("line", _kept(wanted)), JsonLinesFile(Path(target)))


def _samples(inputs: Sequence[Input], wanted: Wanted, target: Path | str) -> _Made:
    columns = {
        name: "json" if array_dtype(found) == np.bool_ else found
        for name, found in encodings(inputs, wanted.columns).items()
    }
    if not columns:
        raise InputError(inputs[0].source.name, "has no row with a column; samples have at least one")
    if "pkl" in columns.values():
        raise OptionError("columns", "pkl", "an encoding that is no pickle, such as json or bytes")
    for found in columns.values():
        encoding(found)  # OptionError for one that does not exist
    _check_writer(wanted.writer)
    records = RowRecords("columns", tuple(columns.items()), closed=wanted.columns is None)
    return _Made(records, SampleStorage(target, columns, **wanted.writer))


def _stream(inputs: Sequence[Input], wanted: Wanted, target: Path | str) -> _Made:
    names = [wanted.field] if wanted.field else list(encodings(inputs, wanted.columns))
    dtypes = {name: _element_type(name, inputs, wanted) for name in names}
    records = RowRecords("columns", tuple((name, f"ndarray:{dtype.name}") for name, dtype in dtypes.items()))
    return _Made(records, StreamStorage(target, StreamNumpyFormat(list(dtypes.items()))))


def _documents(inputs: Sequence[Input], wanted: Wanted, target: Path | str) -> _Made:
    name = wanted.field or _only_value(inputs, wanted)
    if name is None:
        if wanted.dtype is not None:
            raise OptionError("dtype", wanted.dtype, "nothing, unless --field names a column of arrays")
        check_json(inputs, wanted.columns)
        return _Made(RowRecords("json", _kept(wanted)), DocumentStorage(target, PackedJsonFormat()))
    found = encodings(inputs, {name: (wanted.columns or {}).get(name)})[name]
    form: Form
    storage_format: DocumentFormat
    if found.startswith("ndarray") or wanted.dtype is not None:
        dtype = _element_type(name, inputs, wanted)
        form, storage_format, found = "array", DocumentNumpyFormat(dtype), f"ndarray:{dtype.name}"
    elif found == "str" or (not is_json(found) and found != "str_decimal"):
        form, storage_format = "bytes", DocumentBytesFormat()
    else:
        form, storage_format = "json", PackedJsonFormat()
    records = RowRecords(form, ((name, found),), single=True)
    return _Made(records, DocumentStorage(target, storage_format))


def _only_value(inputs: Sequence[Input], wanted: Wanted) -> str | None:
    """The one column that there is, where it holds arrays or bytes: rows of it are no objects but a value each."""
    names = list(wanted.columns or {name: None for given in inputs for name in given.columns})
    if len(names) != 1:
        return None
    found = {given.columns.get(names[0], "json") for given in inputs}
    has_values = all(one.startswith("ndarray") or not is_json(one) for one in found)
    return names[0] if has_values and all(given.source.has_schema for given in inputs) else None


def _element_type(name: str, inputs: Sequence[Input], wanted: Wanted) -> np.dtype[Any]:
    """The type of the numbers in a column's arrays: as asked for, or as the inputs record it."""
    named = (wanted.columns or {}).get(name)
    found = encodings(inputs, {name: named})[name]
    where = inputs[0].source.name
    is_known = named is not None or all(given.source.has_schema for given in inputs)
    # Where there is no schema, some of the first rows may have been empty, or mixed: the rows themselves will tell.
    if not found.startswith("ndarray") and (is_known or found != "json"):
        problem = f"column {name!r} is {found} and no list of numbers"
        raise InputError(where, f"{problem}; say with --field which column is wanted")
    if wanted.dtype is not None:
        return _number_type(wanted.dtype)
    recorded = array_dtype(found)
    if recorded is None or not is_known:
        problem = f"does not record the type of the numbers in column {name!r}"
        raise InputError(where, f"{problem}; say it with --dtype, for example uint16")
    return recorded


def _number_type(name: str) -> np.dtype[Any]:
    try:
        dtype = np.dtype(name)
    except (TypeError, ValueError, SyntaxError):
        dtype = np.dtype(object)
    if dtype.kind not in "iuf":
        raise OptionError("dtype", name, "a type of numbers such as uint16, int32 or float32")
    return dtype


def _kept(wanted: Wanted) -> tuple[tuple[str, str | None], ...] | None:
    return None if wanted.columns is None else tuple(wanted.columns.items())


def _check(wanted: Wanted, target: Path | str) -> None:
    """OptionError for what does not go together."""
    if wanted.to not in get_args(Kind):
        raise OptionError("to", wanted.to, f"one of {', '.join(get_args(Kind))}")
    if wanted.columns is not None and not wanted.columns:
        raise OptionError("columns", {}, "at least one column to keep, or None for all")
    if wanted.to in ("mds", "jsonl"):
        for name, value in (("field", wanted.field), ("dtype", wanted.dtype)):
            if value is not None:
                raise OptionError(
                    name, value, f"nothing for {wanted.to}; it says what documents or streams are made of"
                )
    if wanted.writer and wanted.to != "mds":
        raise OptionError(*next(iter(wanted.writer.items())), f"nothing for {wanted.to}; it is an option of mds")
    if wanted.to != "jsonl":
        return
    if isinstance(target, str):
        raise OptionError("destination", target, "a file on this machine: jsonl is one file that is appended to")
    if target.suffix not in _LINE_ENDINGS or target.is_dir():
        raise OptionError("destination", str(target), "a file that ends with .jsonl or .ndjson: jsonl is one file")


def _check_writer(options: Mapping[str, Any]) -> None:
    """OptionError for what each task's writer would refuse."""
    codec(options.get("compression"))
    checked_hashes(options.get("hashes"))
    size_limit_bytes(options.get("size_limit"))


def _refuse_overlap(given: Sequence[StrPath], target: Path | str) -> None:
    """InputError where the output would lie in an input, or an input in the output."""
    if isinstance(target, str):
        return  # inputs are local
    real_target = target.resolve()
    for path in given:
        real = Path(path).expanduser().resolve()
        if real == real_target or real_target in real.parents or real in real_target.parents:
            raise InputError(str(target), f"and the input {path} lie in one another; write to another place")
