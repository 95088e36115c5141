"""Samples of any format, taken apart: compared by value, and written into; and a store whose maps go bad."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from headrace.store import MemoryStore

__all__ = ["SpoiledStore", "same_value", "spoil"]


def same_value(sample: Any, expected: Any) -> bool:
    """Whether both hold the same values, in the same places.

    Arrays and tensors, and lists where the other one is an array, are compared by shape and value, not
    by element type: a record of int64 comes back as uint16. Buffers are compared as bytes, mappings by their keys,
    sequences item by item. NaN equals NaN. True, 1 and 1.0 differ from one another, and so do a list and a tuple.
    """
    if hasattr(sample, "__array__") or hasattr(expected, "__array__"):
        return _same_array(sample, expected)
    match sample, expected:
        case (bytes() | bytearray() | memoryview(), bytes() | bytearray() | memoryview()):
            return bytes(sample) == bytes(expected)
        case (Mapping(), Mapping()):
            return sample.keys() == expected.keys() and all(same_value(sample[key], expected[key]) for key in sample)
        case (list() | tuple(), list() | tuple()):
            return (
                isinstance(sample, list) == isinstance(expected, list)
                and len(sample) == len(expected)
                and all(map(same_value, sample, expected))
            )
    both_nan = sample != sample and expected != expected
    return type(sample) is type(expected) and bool(both_nan or sample == expected)


def _same_array(sample: Any, expected: Any) -> bool:
    try:
        one, other = np.asarray(sample), np.asarray(expected)
    except ValueError:  # a list that is not rectangular
        return False
    if one.dtype.names or other.dtype.names:
        names = one.dtype.names or ()
        return names == other.dtype.names and all(_same_array(one[name], other[name]) for name in names)
    floats = one.dtype.kind in "fc" and other.dtype.kind in "fc"
    return one.shape == other.shape and (one.size == 0 or np.array_equal(one, other, equal_nan=floats))


def spoil(sample: Any) -> None:
    """Overwrite all memory that the sample lets one write to, and empty its lists and dicts."""
    match sample:
        case np.ndarray():
            if sample.flags.writeable and sample.size and not sample.dtype.hasobject:
                inverted = bytearray(~np.frombuffer(sample.tobytes(), np.uint8))
                sample[...] = np.frombuffer(inverted, sample.dtype).reshape(sample.shape)
        case memoryview() | bytearray():
            view = memoryview(sample)
            if view.nbytes and not view.readonly:
                view.cast("B")[:] = bytes(byte ^ 0xFF for byte in bytes(view))
        case dict() | list():
            parts = list(sample.values() if isinstance(sample, dict) else sample)
            sample.clear()
            for part in parts:
                spoil(part)
        case tuple():
            for part in sample:
                spoil(part)
        case _ if is_dataclass(sample) and not isinstance(sample, type):
            spoil(tuple(getattr(sample, field.name) for field in fields(sample)))
        case _ if hasattr(sample, "__array__") and not isinstance(sample, np.generic):
            spoil(np.asarray(sample))  # a tensor's memory


class SpoiledStore(MemoryStore):
    """The objects of another store, mapped for as long as spoil_views() was not called: then every view holds garbage.

    So it shows what still refers to a mapped file; in a real map it would read well until the day the file is cut.
    """

    def __init__(self, objects: Mapping[str, bytes]) -> None:
        super().__init__()
        self._given: list[bytearray] = []
        for path, data in objects.items():
            self.put(path, data)

    def view(self, path: str) -> memoryview:
        """The object's bytes, in memory of their own."""
        data = bytearray(super().view(path))
        self._given.append(data)
        return memoryview(data).toreadonly()

    def spoil_views(self) -> None:
        """Overwrite everything that view() gave."""
        for data in self._given:
            data[:] = bytes(byte ^ 0xFF for byte in data)
