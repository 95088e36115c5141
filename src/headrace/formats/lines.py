"""Shards of JSON lines: one object a sample, and a .meta file with the offsets.

data   {"id": 1, "text": "a"}\\n{"id": 2, "text": "b"}\\n
meta   u32 n | u32 offset[n+1] | JSON config
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import FieldError, OptionError
from headrace.formats.columns import checked_names, refuse_extra, refuse_other_types, selected_names
from headrace.formats.sample_shards import (
    NO_OPTIONS,
    Decode,
    Offsets,
    ShardOptions,
    config_text,
    offset_table,
    offsets_in,
)

__all__ = ["LineShards", "checked_newline", "checked_types", "checked_values"]

TYPES: dict[str, type] = {"str": str, "int": int, "float": float}


class LineShards:
    """JSON shards with these columns, each `str`, `int` or `float`."""

    format = "json"
    has_meta = True
    bytes_ahead = 0
    bytes_a_sample = 0
    bytes_unseen = 0

    def __init__(
        self,
        columns: Mapping[str, str],
        newline: str = "\n",
        options: ShardOptions = NO_OPTIONS,
        *,
        ignore_extra: bool = False,
    ) -> None:
        self._types = checked_types(columns)
        self._columns = dict(columns)
        self._newline = checked_newline(newline)
        self._end = newline.encode()
        self._ignore_extra = ignore_extra
        self._config = config_text(self, options)

    def schema(self) -> dict[str, Any]:
        """The columns and the newline."""
        return {"columns": self._columns, "newline": self._newline}

    def encode(self, sample: Mapping[str, Any], number: int) -> bytes:
        """The sample's line; FieldError with its number and column where it does not fit."""
        values = checked_values(sample, self._types, number)
        try:
            line = json.dumps(values, sort_keys=True) + self._newline
        except ValueError as error:  # an integer of more digits than Python converts
            name = max((name for name in values if self._types[name] is int), key=lambda name: abs(values[name]))
            raise FieldError(name, str(error), f"sample {number}") from None
        if len(sample) != len(self._types) and not self._ignore_extra:
            refuse_extra(sample, tuple(self._types), number)
        return line.encode()

    def head(self, sizes: NDArray[np.int64]) -> bytes:
        """Nothing: the data begins with the first sample."""
        return b""

    def meta(self, sizes: NDArray[np.int64]) -> bytes:
        """The file of offsets."""
        return offset_table(0, sizes) + self._config

    def offsets(
        self, data: memoryview, meta: memoryview | None, num_samples: int, data_bytes: int | None = None
    ) -> Offsets:
        """The offsets in the meta file, checked."""
        assert meta is not None
        offsets = offsets_in(meta, num_samples, len(data) if data_bytes is None else data_bytes)
        if offsets[0] != 0:
            raise ValueError(f"its first sample begins at byte {offsets[0]}, not at 0")
        return offsets

    def decoder(self, columns: Sequence[str] | None = None) -> Decode:
        """What makes samples of lines: all columns, or these."""
        types, end = tuple(self._types.items()), self._end
        selected = None if columns is None else tuple(selected_names(columns, tuple(self._types)))

        def decode(data: memoryview, begin: int, stop: int) -> dict[str, Any]:
            line = data[begin:stop].tobytes()
            if not line.endswith(end) or len(line) < len(end):
                raise ValueError("its line does not end where the sample ends")
            try:
                found = json.loads(line[: len(line) - len(end)])
            except RecursionError:
                raise ValueError("its JSON is nested too deeply") from None
            if type(found) is not dict:
                raise ValueError(f"its line is {type(found).__name__}, not an object")
            for name, kind in types:
                value = found.get(name)
                if not isinstance(value, kind) and not (kind is float and type(value) is int):
                    shown = "missing" if name not in found else f"{type(value).__name__}, not {kind.__name__}"
                    raise ValueError(f"column {name!r} is {shown}")
            return found if selected is None else {name: found[name] for name in selected}

        return decode


def checked_types(columns: Mapping[str, str]) -> dict[str, type]:
    """The Python type of each column; OptionError for an encoding that lines of text do not have."""
    checked_names("columns", columns)
    for name, given in columns.items():
        if not isinstance(given, str) or given not in TYPES:
            raise OptionError("columns", {name: given}, "str, int or float (MDS shards have more)")
    return {name: TYPES[given] for name, given in columns.items()}


def checked_newline(newline: str) -> str:
    """newline itself; OptionError for what cannot end a line."""
    if not isinstance(newline, str) or not newline:
        raise OptionError("newline", newline, r"a string such as '\n' or '\r\n'")
    return newline


def checked_values(sample: Mapping[str, Any], types: Mapping[str, type], number: int) -> dict[str, Any]:
    """The declared columns of the sample; FieldError for one that is missing or of another type."""
    values = {}
    name: str = ""
    kind: type = object
    try:
        for name, kind in types.items():
            value = values[name] = sample[name]
            if not isinstance(value, kind):
                raise TypeError
    except (KeyError, TypeError):
        raise _refusal(sample, name, kind, number) from None
    return values


def _refusal(sample: Mapping[str, Any], name: str, kind: type, number: int) -> FieldError:
    refuse_other_types(sample, number)
    is_missing = name not in sample
    problem = "is missing" if is_missing else f"needs a Python {kind.__name__}, not {type(sample[name]).__name__}"
    return FieldError(name, problem, f"sample {number}")
