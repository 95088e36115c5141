"""Arrays: what the encoding's name says of them is not stored; the rest stands before the values.

    ndarray                     u8 type | u8 axes << 2 or w | axes x dimension of 2**w bytes | values
    ndarray:DTYPE               u8 axes << 2 or w | axes x dimension of 2**w bytes | values
    ndarray:DTYPE:d0,d1,...     values

Everything is little endian, values are in C order, and w is the smallest that holds the largest dimension. Arrays
have at least one axis and one element: Streaming stores no others.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from struct import Struct
from struct import error as StructError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.formats.mds.values import Coding, kept, wrong_size

__all__ = ["CODES", "MAX_AXES", "any_array", "array_of_shape", "array_of_type"]

CODES = {"uint8": 8, "int8": 9, "uint16": 16, "int16": 17, "float16": 18, "uint32": 32, "int32": 33, "float32": 34}
CODES |= {"uint64": 64, "int64": 65, "float64": 66}
MAX_AXES = 63  # six bits count them
_DTYPES = {code: np.dtype(name).newbyteorder("<") for name, code in CODES.items()}
_CODE_BYTES = {dtype: bytes((code,)) for code, dtype in _DTYPES.items()}  # big-endian types equal none of these
# By a shape's first byte, which these skip: its dimensions.
_DIMENSIONS = tuple(Struct(f"<x{head >> 2}{'BHIQ'[head & 3]}") for head in range(256))


def any_array() -> Coding:
    """`ndarray`: any of CODES in any shape."""
    array_type, code_byte = np.ndarray, _CODE_BYTES.get
    join: Callable[[Any], bytes] = b"".join

    def encode(value: Any) -> bytes:
        if type(value) is array_type and value.flags.c_contiguous:
            code = code_byte(value.dtype)
            if code is not None:
                return join((code, _shape_bytes(value.shape), value))
        if not isinstance(value, array_type):
            return kept(value, decode, "a numpy.ndarray")
        array = _plain(value)
        return join((_CODE_BYTES[array.dtype], _shape_bytes(array.shape), array.tobytes()))

    def decode(data: memoryview) -> NDArray[Any]:
        dtype = _DTYPES.get(data[0]) if data else None
        if dtype is None:
            raise ValueError(f"{data[0]} is the code of no element type" if data else "an array has at least 4 bytes")
        return _shaped(data, 1, dtype)

    return Coding(None, encode, decode)


def array_of_type(dtype_name: str) -> Coding:
    """`ndarray:DTYPE`: elements of this type in any shape."""
    dtype = _DTYPES[CODES[dtype_name]]
    array_type = np.ndarray
    join: Callable[[Any], bytes] = b"".join

    def encode(value: Any) -> bytes:
        if type(value) is array_type and value.dtype == dtype and value.flags.c_contiguous:
            return join((_shape_bytes(value.shape), value))
        if not isinstance(value, array_type):
            return kept(value, decode, f"a numpy.ndarray of {dtype_name}")
        array = _of_type(value, dtype)
        return join((_shape_bytes(array.shape), array.tobytes()))

    def decode(data: memoryview) -> NDArray[Any]:
        return _shaped(data, 0, dtype)

    return Coding(None, encode, decode)


def array_of_shape(dtype_name: str, shape: tuple[int, ...]) -> Coding:
    """`ndarray:DTYPE:d0,d1,...`: elements of this type in this shape; nothing but the values is stored."""
    dtype = _DTYPES[CODES[dtype_name]]
    size = math.prod(shape) * dtype.itemsize
    array_type, copied = np.ndarray, bytearray

    def encode(value: Any) -> bytes:
        if type(value) is array_type and value.dtype == dtype and value.shape == shape:
            encoded: bytes = value.tobytes()
            return encoded
        if not isinstance(value, array_type):
            return kept(value, decode, f"a numpy.ndarray of {dtype_name} with shape {shape}")
        array = _of_type(value, dtype)
        if array.shape != shape:
            raise ValueError(f"expected an array with shape {shape}, found {array.shape}")
        return array.tobytes()

    def decode(data: memoryview) -> NDArray[Any]:
        if len(data) != size:
            raise wrong_size(f"ndarray:{dtype_name} with shape {shape}", size, len(data))
        return array_type(shape, dtype, copied(data))

    return Coding(size, encode, decode)


def _plain(value: NDArray[Any]) -> NDArray[Any]:
    """The same values, little endian, in a plain array; ValueError for elements that have no code or are masked."""
    if isinstance(value, np.ma.MaskedArray):
        if np.ma.is_masked(value):
            raise ValueError("it is a masked array, and the mask would not be stored; pass value.filled(...)")
        value = value.data
    array = np.asarray(value)
    little = array.dtype.newbyteorder("<")
    if little not in _CODE_BYTES:
        raise ValueError(f"elements of {array.dtype} cannot be stored; cast them to one of {', '.join(CODES)}")
    return array.astype(little, copy=False)


def _of_type(value: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    array = _plain(value)
    if array.dtype != dtype:
        raise ValueError(f"expected elements of {dtype.name}, found {array.dtype.name}; cast them with .astype()")
    return array


@lru_cache(4096)
def _shape_bytes(shape: tuple[int, ...]) -> bytes:
    """A shape as it is stored; ValueError for those that cannot be."""
    if not shape:
        raise ValueError("it is an array without axes, which is not stored; declare the column as a scalar type")
    if 0 in shape:
        raise ValueError(f"it has shape {shape}, no element at all; arrays with at least one are stored")
    if len(shape) > MAX_AXES:
        raise ValueError(f"it has {len(shape)} axes; at most {MAX_AXES} are stored")
    width = sum(max(shape) >= bound for bound in (1 << 8, 1 << 16, 1 << 32))
    head = len(shape) << 2 | width
    return bytes((head,)) + _DIMENSIONS[head].pack(*shape)[1:]


def _shaped(data: memoryview, at: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The array whose shape begins at this byte, in memory of its own: never more than data has bytes."""
    try:
        dimensions = _DIMENSIONS[data[at]]
        shape = dimensions.unpack_from(data, at)
    except (IndexError, StructError):
        raise ValueError(f"it ends inside its shape, after {len(data)} bytes") from None
    values = data[at + dimensions.size :]
    expected = math.prod(shape) * dtype.itemsize  # of Python's ints, which do not overflow
    if len(values) != expected or not expected or not shape:
        raise _wrong_shape(shape, dtype, expected, len(values))
    return np.ndarray(shape, dtype, bytearray(values))


def _wrong_shape(shape: tuple[int, ...], dtype: np.dtype[Any], expected: int, found: int) -> ValueError:
    if not shape or not expected:
        return ValueError(f"it says shape {shape}; arrays with at least one axis and one element are stored")
    return ValueError(f"{dtype.name} with shape {shape} has {expected} bytes, found {found}")
