"""Shards of lines with separators (CSV, TSV, or any other): a line a sample, no quoting, and a .meta file of offsets.

data   id,text\\n1,a\\n2,b\\n        the header line, then the samples
meta   u32 n | u32 offset[n+1] | JSON config
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import FieldError, OptionError
from headrace.formats.columns import refuse_extra, selected_names
from headrace.formats.lines import checked_newline, checked_types, checked_values
from headrace.formats.sample_shards import (
    NO_OPTIONS,
    Decode,
    Offsets,
    ShardOptions,
    config_text,
    offset_table,
    offsets_in,
)

__all__ = ["SEPARATORS", "XsvShards"]

SEPARATORS = {"csv": ",", "tsv": "\t"}
# What reads back, also of subclasses such as enumerations, which str() may call by a name.
_TEXTS: dict[type, Callable[[Any], str]] = {str: str.__str__, int: int.__repr__, float: float.__repr__}


class XsvShards:
    """Shards of separated values with these columns, each `str`, `int` or `float`.

    format_name is `csv`, `tsv`, or `xsv`, which alone takes a separator.
    """

    has_meta = True
    bytes_ahead = 0
    bytes_a_sample = 0

    def __init__(
        self,
        format_name: str,
        columns: Mapping[str, str],
        separator: str | None = None,
        newline: str = "\n",
        options: ShardOptions = NO_OPTIONS,
        *,
        ignore_extra: bool = False,
    ) -> None:
        self.format = format_name
        types = checked_types(columns)
        self.names = tuple(sorted(types))
        self._types = {name: types[name] for name in self.names}
        self._encodings = tuple(columns[name] for name in self.names)
        self._newline = checked_newline(newline)
        self._separator = SEPARATORS.get(format_name, separator or "")
        if not self._separator or self._separator in newline or newline in self._separator:
            raise OptionError("separator", separator, f"a string that has nothing in common with newline={newline!r}")
        self._header = self._line(
            self.names, lambda name, problem: OptionError("columns", name, f"no name that {problem}")
        )
        self.bytes_unseen = len(self._header)
        self._ignore_extra = ignore_extra
        self._config = config_text(self, options)

    def schema(self) -> dict[str, Any]:
        """The columns, the newline, and the separator where the format leaves it open."""
        schema = {"column_names": self.names, "column_encodings": self._encodings, "newline": self._newline}
        return schema if self.format in SEPARATORS else {**schema, "separator": self._separator}

    def encode(self, sample: Mapping[str, Any], number: int) -> bytes:
        """The sample's line; FieldError with its number and column where it does not fit."""
        values = checked_values(sample, self._types, number)
        for name, value in values.items():
            if type(value) is bool:  # an int by type, but "True" is none
                raise FieldError(name, "needs a Python int, not bool", f"sample {number}")
        if len(sample) != len(self.names) and not self._ignore_extra:
            refuse_extra(sample, self.names, number)

        texts = {name: self._text(name, value, number) for name, value in values.items()}

        def refused(text: str, problem: str) -> FieldError:
            column = next((name for name, other in texts.items() if other == text), self.names[0])
            return FieldError(column, problem, f"sample {number}")

        return self._line(list(texts.values()), refused)

    def head(self, sizes: NDArray[np.int64]) -> bytes:
        """The header line."""
        return self._header

    def meta(self, sizes: NDArray[np.int64]) -> bytes:
        """The file of offsets."""
        return offset_table(len(self._header), sizes) + self._config

    def offsets(
        self, data: memoryview, meta: memoryview | None, num_samples: int, data_bytes: int | None = None
    ) -> Offsets:
        """The offsets in the meta file, checked."""
        assert meta is not None
        offsets = offsets_in(meta, num_samples, len(data) if data_bytes is None else data_bytes)
        if data[: int(offsets[0])] != self._header:
            header = self._header.decode()
            raise ValueError(
                f"its first sample begins at byte {offsets[0]}, which is not where the header {header!r} ends"
            )
        return offsets

    def decoder(self, columns: Sequence[str] | None = None) -> Decode:
        """What makes samples of lines: all columns, or these."""
        selected = set(selected_names(columns, self.names))
        plan = tuple((name, kind, name in selected) for name, kind in self._types.items())
        separator, newline, num_columns = self._separator, self._newline, len(self.names)
        num_chars, num_bytes = len(newline), len(newline.encode())

        def decode(data: memoryview, begin: int, stop: int) -> dict[str, Any]:
            # With the end of the line before it, which may be the header: a part of a line would look like a line, too.
            line = str(data[begin - num_bytes : stop], "utf-8")
            if not line.startswith(newline) or not line.endswith(newline) or len(line) < 2 * num_chars:
                raise ValueError("it is no whole line")
            line = line[num_chars:-num_chars]
            values = line.split(separator)
            if len(values) != num_columns or newline in line:
                raise ValueError(f"its line has {len(values)} values for {num_columns} columns, or is two lines")
            sample = {}
            for (name, kind, is_selected), value in zip(plan, values, strict=True):
                if is_selected:
                    try:
                        sample[name] = kind(value)
                    except ValueError as error:
                        raise ValueError(f"column {name!r}: {error}") from None
            return sample

        return decode

    def _text(self, name: str, value: Any, number: int) -> str:
        try:
            return _TEXTS[self._types[name]](value)
        except ValueError as error:  # an integer of more digits than Python converts
            raise FieldError(name, str(error), f"sample {number}") from None

    def _line(self, values: Sequence[str], refused: Any) -> bytes:
        """The values as a line that reads back as they are; raises refused(value, problem) where there is none."""
        line = self._separator.join(values)
        # Not only a value that holds the separator: "a;" in front of ";;" would move it.
        if line.split(self._separator) != list(values) or self._newline in line:
            where = next((v for v in values if self._separator in v or self._newline in v), values[0])
            problem = f"holds, or ends like, the separator {self._separator!r} or the newline {self._newline!r}; "
            raise refused(where, problem + "lines have no quoting, so write JSON or MDS shards")
        try:
            return (line + self._newline).encode()
        except UnicodeEncodeError as error:
            where = next(value for value in values if not _is_text(value))
            raise refused(where, f"is no text that UTF-8 can hold ({error.reason})") from None


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
