"""What the values of a column are, by the names that MDS has for them, and how a value is brought into such a type.

    int float64 str bytes       Python's own
    ndarray:int32               arrays of numbers, from lists too
    json                        anything that JSON can say: true, null, nested lists and objects, and mixtures

Values are brought in by value, as everywhere in Headrace: what would come out different raises FieldError.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np

from headrace.errors import FieldError
from headrace.formats.stream import StreamArrayFormat

__all__ = [
    "FOREIGN",
    "NULL",
    "SAMPLED_ROWS",
    "Coerce",
    "Columns",
    "array_dtype",
    "coercer",
    "columns_of_rows",
    "is_json",
    "joined",
    "plain",
]

Columns = dict[str, str]  # name -> encoding
Coerce = Callable[[Any], Any]

NULL = "null"  # of a column in which nothing was found but nulls
FOREIGN = "Arrow's "  # before the name of a type that has no form here
SAMPLED_ROWS = 100
_NO_JSON = {"bytes", "pil", "png", "jpeg", "jpeg_array", "jpegarray", "str_decimal", "pkl"}
_SCALARS = {type(None), bool, int, float, str}
_LISTS = {list, tuple}
_NUMBERS = {int, float}
_INT64 = range(-(1 << 63), 1 << 63)


def is_json(encoding: str) -> bool:
    """Whether JSON has a form for the values."""
    return encoding not in _NO_JSON and not encoding.startswith(("list[", FOREIGN))


def array_dtype(encoding: str) -> np.dtype[Any] | None:
    """The element type of `ndarray:dtype` and `ndarray:dtype:shape`, None for other encodings and for no such type."""
    kind, _, rest = encoding.partition(":")
    name = rest.partition(":")[0]
    try:
        return np.dtype(name) if kind == "ndarray" and name else None
    except (TypeError, ValueError, SyntaxError):  # of NumPy, whose names are a language
        return None


def joined(first: str, second: str) -> str | None:
    """The encoding for values of both; None if there is none."""
    if first == second:
        return first
    if {first, second} == {"int", "float64"}:
        return "float64"
    dtypes = array_dtype(first), array_dtype(second)
    if dtypes[0] is not None and dtypes[1] is not None:
        return f"ndarray:{np.promote_types(dtypes[0], dtypes[1]).name}"
    return "json" if is_json(first) and is_json(second) else None


def columns_of_rows(rows: Iterable[Mapping[str, Any]]) -> Columns:
    """The columns of these rows of JSON values; one that is missing in some of them is `json`, which takes null."""
    found: Columns = {}
    for number, row in enumerate(rows):
        for name, value in row.items():
            encoding = _encoding_of(value)
            if name in found:
                found[name] = joined(found[name], encoding) or "json"
            else:
                found[name] = encoding if number == 0 else "json"
        for name in found.keys() - row.keys():
            found[name] = "json"
    return found


def _encoding_of(value: Any) -> str:
    match value:
        case None:
            return NULL
        case bool():
            return "json"
        case int():
            return "int" if value in _INT64 else "json"
        case float():
            return "float64"
        case str():
            return "str"
        case list() if value:
            types = set(map(type, value))
            if types == {int} and min(value) in _INT64 and max(value) in _INT64:
                return "ndarray:int64"
            return "ndarray:float64" if types <= {int, float} and float in types else "json"
    return "json"


def coercer(name: str, encoding: str) -> Coerce:
    """A function that gives a value in the type that the encoding stores; it raises FieldError for the column `name`.

    Encodings not listed above get the value as it is: their own encode() judges it.
    """
    match encoding:
        case "int":
            return partial(_int, name)
        case "float64":
            return partial(_float, name)
        case "str":
            return partial(_str, name)
        case "bytes":
            return partial(_bytes, name)
        case "json":
            return partial(_json, name)
    dtype = array_dtype(encoding)
    return _same if dtype is None else partial(_array, name, StreamArrayFormat(dtype))


def plain(value: Any) -> Any:
    """The value with lists for arrays and numbers for NumPy's; TypeError for what JSON cannot say."""
    if type(value) in _SCALARS:
        return value
    if type(value) is list:
        return value if set(map(type, value)) <= _SCALARS else [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        return value.tolist()
    raise TypeError(f"{_shown(value)} is nothing that JSON can hold")


def _same(value: Any) -> Any:
    return value


def _int(name: str, value: Any) -> int:
    if type(value) is int or isinstance(value, np.integer):
        return int(value)  # beyond 64 bits it is the encoding that refuses
    raise _refused(name, value, "int")


def _float(name: str, value: Any) -> float:
    if type(value) is float:
        return value
    if isinstance(value, int | np.integer | np.floating) and not isinstance(value, bool):
        try:
            as_float = float(value)
        except OverflowError:
            as_float = float("inf")
        if as_float == value or as_float != as_float:
            return as_float
        raise FieldError(name, f"{value} is no float64 by value; --columns {name}=json stores it as it is")
    raise _refused(name, value, "float64")


def _str(name: str, value: Any) -> str:
    if type(value) is str:
        return value
    if isinstance(value, Decimal):
        return str(value)
    raise _refused(name, value, "str")


def _bytes(name: str, value: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise _refused(name, value, "bytes")


def _json(name: str, value: Any) -> Any:
    try:
        return plain(value)
    except (TypeError, RecursionError) as error:
        raise FieldError(name, f"{error}; leave the column out by naming those to keep with --columns") from None


def _array(name: str, storage_format: StreamArrayFormat, value: Any) -> Any:
    if not isinstance(value, np.ndarray | list | tuple):
        raise _refused(name, value, f"array of {storage_format.stream_dtype.name}")
    try:
        if not isinstance(value, np.ndarray):
            _refuse_changing(value)
        return storage_format.pack(value)
    except FieldError as error:
        raise FieldError(name, f"{error.problem}; --columns {name}=json takes any JSON") from None


def _refuse_changing(values: Sequence[Any]) -> None:
    """FieldError for what NumPy makes another value of when it makes one type of a list, and of the lists in it."""
    types = set(map(type, values))
    while types & _LISTS:
        values = [item for inner in values for item in (inner if type(inner) in _LISTS else (inner,))]
        types = set(map(type, values))
    if bool in types:
        raise FieldError("elements", "has a boolean among its elements, which is no number")
    if types <= _NUMBERS and int in types and (float in types or _become_floats(values)):
        for value in values:
            if type(value) is int and not _is_float(value):
                raise FieldError("elements", f"has {_shown(value)} among floats, and it is no float64 by value")


def _become_floats(values: Sequence[int]) -> bool:
    """Whether these integers, without a float among them, are floats to NumPy: some of int64 and some beyond it."""
    return max(values) not in _INT64 and np.asarray(values).dtype.kind == "f"


def _is_float(value: int) -> bool:
    try:
        return float(value) == value
    except OverflowError:
        return False


def _refused(name: str, value: Any, expected: str) -> FieldError:
    otherwise = f"; --columns {name}=json takes any JSON" if type(value) in {*_SCALARS, list, dict} else ""
    return FieldError(name, f"{_shown(value)} is no {expected}{otherwise}")


def _shown(value: Any) -> str:
    text = repr(value)
    return "null" if value is None else f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"
