"""The encodings of MDS columns: how a value becomes bytes, and bytes a value again.

    bytes                                   as they are
    str                                     UTF-8
    int  uint8..int64  float16..float64     little endian, one size
    str_int  str_float  str_decimal         text
    ndarray  ndarray:DTYPE  ndarray:DTYPE:d0,d1,...
    pil  jpeg  png  jpeg_array  list[pil]  list[jpeg]  list[png]
    json                                    what json.dumps() gives
    pkl                                     pickle; reading it can run code

What comes back is what was given, as a value of its own that shares no memory with the file. What would come back
different is refused, but for what each encoding is there to drop: precision (floats), JPEG's losses, metadata of
images, and in JSON the difference of tuples and lists, or of the keys 1 and "1".
"""

import json
import pickle  # noqa: TID251 - marked as unsafe: datasets read it with the caller's word only
from collections.abc import Callable
from io import BytesIO
from typing import Any, Protocol, runtime_checkable

import msgspec
import numpy as np

from headrace.errors import OptionError
from headrace.formats.mds.arrays import CODES, MAX_AXES, any_array, array_of_shape, array_of_type
from headrace.formats.mds.images import image_file, image_list, jpeg_array, pixels
from headrace.formats.mds.numbers import (
    FLOATS,
    INTEGERS,
    decimal_text,
    float_text,
    floating,
    integers,
    python_int,
    whole_text,
)
from headrace.formats.mds.values import Coding, kept

__all__ = ["ENCODINGS", "Encoding", "encoding"]

_NUMBERS = (*INTEGERS, *FLOATS, "str_int", "str_float", "str_decimal")
_IMAGES = ("pil", "jpeg", "png", "jpeg_array", "jpegarray", "list[pil]", "list[jpeg]", "list[png]")
#: Every name, but for the element types and shapes that may follow `ndarray:`.
ENCODINGS = ("bytes", "str", "int", *_NUMBERS, "ndarray", *_IMAGES, "json", "pkl")
_TEXT = {str}
_NESTS = (dict, list, tuple)
PICKLE_PROTOCOL = 4  # the default of every Python that Streaming runs on


@runtime_checkable
class Encoding(Protocol):
    """How the values of one column are stored; any object with these four members will do.

    One whose decode() can run code that the data brings says so with `unsafe = True`.
    """

    @property
    def name(self) -> str:
        """As the index stores it."""
        ...

    @property
    def size(self) -> int | None:
        """The bytes of every value; None where they vary."""
        ...

    def encode(self, value: Any, /) -> bytes:
        """The value's bytes; TypeError, ValueError or OverflowError, with what was expected, for what does not fit."""
        ...

    def decode(self, data: memoryview, /) -> Any:
        """The value, in memory of its own; ValueError for bytes that are none. data may lie in a mapped file."""
        ...


def encoding(name: str) -> Encoding:
    """The encoding of this name; OptionError for a name that has none.

    Values given as `bytes` are taken to be encoded already, and are stored as they are if they decode (all but pkl,
    which pickles them). Of a type that Streaming does not take, or without a place in the encoding, they are refused.
    """
    return _Named(name, _coding(name))


class _Named:
    """An encoding that has a name, and pickles as that: its functions are closures, made for speed."""

    __slots__ = ("decode", "encode", "name", "size", "unsafe")

    def __init__(self, name: str, coding: Coding) -> None:
        self.name = name
        self.size = coding.size
        self.encode: Callable[[Any], bytes] = coding.encode
        self.decode: Callable[[memoryview], Any] = coding.decode
        self.unsafe = name == "pkl"

    def __repr__(self) -> str:
        return f"encoding({self.name!r})"

    def __eq__(self, other: object) -> bool:
        return self.name == other.name if isinstance(other, _Named) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.name)

    def __reduce__(self) -> tuple[Callable[[str], Encoding], tuple[str]]:
        return encoding, (self.name,)


def _coding(name: str) -> Coding:
    match name:
        case "bytes":
            return Coding(None, _bytes_only, memoryview.tobytes)
        case "str":
            return _text()
        case "int":
            return python_int()
        case "str_int":
            return whole_text()
        case "str_float":
            return float_text()
        case "str_decimal":
            return decimal_text()
        case "pil":
            return pixels()
        case "jpeg" | "png":
            return image_file(name)
        case "jpeg_array" | "jpegarray":
            return jpeg_array()
        case "list[pil]" | "list[jpeg]" | "list[png]":
            return image_list(_coding(name[5:-1]), name)
        case "json":
            return _json()
        case "pkl":
            return Coding(None, _pickled, _unpickled)
        case "ndarray" | "ndarray:":
            return any_array()
    if isinstance(name, str) and name in INTEGERS:
        return integers(name)
    if isinstance(name, str) and name in FLOATS:
        return floating(name)
    if isinstance(name, str) and name.startswith("ndarray:"):
        return _declared_array(name)
    raise OptionError("encoding", name, f"one of {', '.join(ENCODINGS)}, ndarray:DTYPE, ndarray:DTYPE:d0,d1,...")


def _declared_array(name: str) -> Coding:
    _, dtype, *shapes = name.split(":")
    try:
        shape = tuple(int(dimension) for dimension in shapes[0].split(",")) if shapes else (1,)
    except ValueError:
        shape = ()
    if dtype not in CODES or len(shapes) > 1 or not shape or min(shape) < 1 or len(shape) > MAX_AXES:
        expected = "ndarray:DTYPE or ndarray:DTYPE:d0,d1,... with dimensions of at least 1, where DTYPE is one of "
        raise OptionError("encoding", name, expected + ", ".join(CODES))
    return array_of_shape(dtype, shape) if shapes else array_of_type(dtype)


def _bytes_only(value: Any) -> bytes:
    if type(value) is bytes:
        return value
    hint = "bytes(value), which is what bytes" if isinstance(value, bytearray | memoryview) else "bytes"
    return kept(value, memoryview.tobytes, hint)


def _text() -> Coding:
    def encode(value: Any) -> bytes:
        if isinstance(value, str):
            try:
                return value.encode()
            except UnicodeEncodeError as error:
                raise ValueError(
                    f"character {error.start} is {value[error.start]!a}, half of a pair, which UTF-8 does not have"
                ) from None
        return kept(value, decode, "a str")

    def decode(data: memoryview) -> str:
        return str(data, "utf-8")  # without a copy between

    return Coding(None, encode, decode)


def _json() -> Coding:
    dumps, loads, fast_loads = json.JSONEncoder().encode, json.loads, msgspec.json.Decoder().decode

    def encode(value: Any) -> bytes:
        if isinstance(value, bytes):
            return kept(value, decode, "a JSON value")
        try:
            if isinstance(value, np.ndarray):
                value = value.tolist()
            encoded = dumps(value).encode()
            # Faster than a look at every key; tuples, NaN and keys that are no text do not come back equal.
            if comes_back(encoded, value) is not True and (clash := _lost_key(value)):
                raise ValueError(f"a dict has the keys {clash}, of which JSON keeps one; make them different as text")
        except RecursionError:
            raise ValueError("it is nested too deeply for JSON") from None
        return encoded

    def comes_back(encoded: bytes, value: Any) -> Any:
        try:
            return fast_loads(encoded) == value
        except msgspec.MsgspecError:
            return False

    def decode(data: memoryview) -> Any:
        try:
            return fast_loads(data)
        except (msgspec.MsgspecError, RecursionError):
            pass  # it may be what this decoder alone does not know: NaN, Infinity, half a surrogate pair
        try:
            return loads(data.tobytes().decode())
        except RecursionError:
            raise ValueError("it is JSON nested too deeply") from None

    return Coding(None, encode, decode)


def _lost_key(value: Any) -> str | None:
    """The keys of a dict in it that are one as text, such as 1 and "1"; None where there are none."""
    left = [value]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            if set(map(type, value)) - _TEXT and (clash := _clash(value)):
                return clash
            value = value.values()
        elif not isinstance(value, _NESTS):
            continue
        left += [inner for inner in value if isinstance(inner, _NESTS)]
    return None


def _clash(value: dict[Any, Any]) -> str:
    texts = [next(iter(json.loads(json.dumps({key: 0})))) for key in value]
    return ", ".join(repr(key) for key, text in zip(value, texts, strict=True) if texts.count(text) > 1)


def _pickled(value: Any) -> bytes:
    try:
        return pickle.dumps(value, PICKLE_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError, RecursionError) as error:
        raise TypeError(f"expected what can be pickled ({error})") from error


def _unpickled(data: memoryview) -> Any:
    file = BytesIO(data)
    try:
        value = pickle.Unpickler(file).load()  # noqa: S301 - reached with the caller's word only
    except Exception as error:  # whatever the pickle's own code raises
        raise ValueError(f"it is no pickle that can be read ({type(error).__name__}: {error})") from error
    if rest := len(file.read()):
        raise ValueError(f"its pickle ends {rest} bytes before the value does")
    return value
