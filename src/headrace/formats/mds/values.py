"""What every encoding is made of, and the rules that all of them keep about values given as bytes."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Coding", "kept", "kind_of", "shown", "wrong_size"]


class Coding(NamedTuple):
    """The two functions behind an encoding, and the bytes that every value takes (None where they vary)."""

    size: int | None
    encode: Callable[[Any], bytes]
    decode: Callable[[memoryview], Any]


def kept(value: Any, decode: Callable[[memoryview], Any], expected: str) -> bytes:
    """The value itself, where it is bytes: those are taken to be encoded already, whatever the encoding.

    ValueError for bytes that do not decode, since nobody could read them back; TypeError, with what was expected, for
    a value of any other type.
    """
    if not isinstance(value, bytes):
        raise TypeError(f"expected {expected}, found {kind_of(value)}")
    try:
        decode(memoryview(value))
    except ValueError as error:
        raise ValueError(
            f"expected {expected}; bytes are stored as they are, as values already encoded, and these are none: {error}"
        ) from error
    return bytes(value)


def kind_of(value: Any) -> str:
    """The value's type in words: "numpy.int64", "None", "numpy.ndarray of int32 with shape (2, 3)"."""
    if value is None:
        return "None"
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"{name} of {value.dtype} with shape {value.shape}" if isinstance(value, np.ndarray) else name


def shown(number: Any) -> str:
    """The number for a message; Python refuses to print integers of thousands of digits, and nobody would read them."""
    if isinstance(number, int) and number.bit_length() > 256:
        return f"an integer of {number.bit_length()} bits"
    return repr(number)


def wrong_size(name: str, expected: int, found: int) -> ValueError:
    """The error for a value of the wrong number of bytes."""
    return ValueError(f"a value of {name} has {expected} bytes, found {found}")
