"""Numbers: of one size, little endian, or of any size as text.

    int                     int64, of Python ints and back to them
    uint8 .. int64          NumPy scalars; numbers of any type that have exactly this value
    float16 .. float64      NumPy scalars; numbers of any type, rounded to the nearest
    str_int  str_float  str_decimal     as Python prints them

A number that an encoding cannot hold is refused; only floats are rounded.
"""

import math
import operator
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, DecimalException, InvalidOperation
from numbers import Number
from struct import Struct
from struct import error as StructError
from typing import Any

import numpy as np

from headrace.formats.mds.values import Coding, kept, kind_of, shown, wrong_size

__all__ = ["FLOATS", "INTEGERS", "decimal_text", "float_text", "floating", "integers", "python_int", "whole_text"]

INTEGERS = {"uint8": "B", "uint16": "H", "uint32": "I", "uint64": "Q", "int8": "b", "int16": "h", "int32": "i"}
INTEGERS["int64"] = "q"
FLOATS = {"float16": "e", "float32": "f", "float64": "d"}
# A context of our own: the caller's may print "1e+50", or turn what is no number into NaN instead of an error.
_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN, capitals=1, clamp=0, traps=[InvalidOperation])


def python_int() -> Coding:
    """`int`: Python ints (and bools, as 0 and 1) within int64."""
    packer = Struct("<q")
    pack, unpack = packer.pack, packer.unpack

    def encode(value: Any) -> bytes:
        if isinstance(value, int):
            try:
                return pack(value)
            except StructError:
                raise _outside(value, "int64") from None
        if isinstance(value, np.integer):
            raise TypeError(f"expected an int, found {kind_of(value)}; pass int(value), or declare {value.dtype.name}")
        return kept(value, decode, "an int")

    def decode(data: memoryview) -> int:
        try:
            number: int = unpack(data)[0]
        except StructError:
            raise wrong_size("int", 8, len(data)) from None
        return number

    return Coding(8, encode, decode)


def integers(name: str) -> Coding:
    """One of INTEGERS: numbers of any type whose value is one of it; what would be cut off or wrap is refused."""
    packer = Struct("<" + INTEGERS[name])
    pack, unpack, size = packer.pack, packer.unpack, packer.size
    scalar = np.dtype(name).type

    def encode(value: Any) -> bytes:
        kind = type(value)
        if kind is int or kind is scalar:
            try:
                return pack(value)
            except StructError:
                raise _outside(value, name) from None
        if isinstance(value, bytes):
            return kept(value, decode, name)
        return encode(_whole(_number(value, name), name))

    def decode(data: memoryview) -> Any:
        try:
            return scalar(unpack(data)[0])
        except StructError:
            raise wrong_size(name, size, len(data)) from None

    return Coding(size, encode, decode)


def floating(name: str) -> Coding:
    """One of FLOATS: numbers of any type, rounded to it; OverflowError where that would make infinity of a number."""
    packer = Struct("<" + FLOATS[name])
    pack, unpack, size = packer.pack, packer.unpack, packer.size
    dtype = np.dtype(name).newbyteorder("<")
    scalar, frombuffer = dtype.type, np.frombuffer

    def encode(value: Any) -> bytes:
        kind = type(value)
        if kind is float or kind is scalar:
            if value == value:
                try:
                    return pack(value)
                except OverflowError:
                    raise _outside(value, name) from None
            # NumPy's way to shorten the payload of a NaN, which is not struct's.
            return np.asarray(value).astype(dtype).tobytes()
        if isinstance(value, bytes):
            return kept(value, decode, name)
        return encode(float(_number(value, name)))

    def decode(data: memoryview) -> Any:
        if len(data) != size:
            raise wrong_size(name, size, len(data))
        return frombuffer(data, dtype)[0]

    def decode_double(data: memoryview) -> Any:
        try:
            return scalar(unpack(data)[0])  # faster, and exact: a Python float has all the bits of a double only
        except StructError:
            raise wrong_size(name, size, len(data)) from None

    return Coding(size, encode, decode_double if name == "float64" else decode)


def whole_text() -> Coding:
    """`str_int`: ints of any size (a bool is stored as 0 or 1)."""

    def encode(value: Any) -> bytes:
        # int's own text: str(True) is "True", which is no integer to whoever reads it.
        return int.__repr__(value).encode() if isinstance(value, int) else kept(value, decode, "an int")

    def decode(data: memoryview) -> int:
        return int(data.tobytes().decode())

    return Coding(None, encode, decode)


def float_text() -> Coding:
    """`str_float`: floats, exactly; NaN is the plain one, whatever its payload was."""

    def encode(value: Any) -> bytes:
        return float.__repr__(value).encode() if isinstance(value, float) else kept(value, decode, "a float")

    def decode(data: memoryview) -> float:
        return float(data.tobytes().decode())

    return Coding(None, encode, decode)


def decimal_text() -> Coding:
    """`str_decimal`: decimal.Decimal, with its exponent, NaN and infinities."""
    text = _EXACT.to_sci_string

    def encode(value: Any) -> bytes:
        return text(value).encode() if isinstance(value, Decimal) else kept(value, decode, "a decimal.Decimal")

    def decode(data: memoryview) -> Decimal:
        found = data.tobytes().decode()
        try:
            return Decimal(found, _EXACT)
        except DecimalException:
            raise ValueError(f"{found[:80]!r} is no decimal number") from None

    return Coding(None, encode, decode)


def _number(value: Any, name: str) -> Any:
    """The number in a scalar of any library or a text, as one of Python's; TypeError for what is no single number."""
    if isinstance(value, str):
        # Streaming takes text for numbers. Through int, since a float has no 2**53 + 1.
        return float(value) if name in FLOATS else int(value)
    if isinstance(value, int | float):
        return value if isinstance(value, int) else float(value)
    array = np.asarray(value)
    if array.shape == ():
        match array.dtype.kind:
            case "b" | "i" | "u":
                return operator.index(array.item())
            case "f":
                return float(array[()]) if name in FLOATS else _unrounded(array)
            case "O" if isinstance(value, Number) and not isinstance(value, complex):
                return value  # Decimal, Fraction and the like
    raise TypeError(f"expected a number for {name}, found {kind_of(value)}")


def _unrounded(array: Any) -> Any:
    """A floating-point scalar as a Python number: long doubles can hold integers that floats cannot."""
    number = array[()]
    return int(number) if np.isfinite(number) and number == np.floor(number) else float(number)


def _whole(number: Any, name: str) -> int:
    if isinstance(number, int):
        return int(number)
    if not math.isfinite(number) or int(number) != number:
        raise ValueError(f"{number!r} is no whole number, and {name} would not keep it; round it, or declare float64")
    return int(number)


def _outside(value: Any, name: str) -> OverflowError:
    limits = np.iinfo(name) if name in INTEGERS else np.finfo(name)
    return OverflowError(f"{shown(value)} does not fit {name}, which reaches from {limits.min} to {limits.max}")
