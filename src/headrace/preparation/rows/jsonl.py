"""Rows of JSON lines: each line an object. Also compressed; plain files are cut at line borders."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import msgspec

from headrace.preparation.blocks import blocks_of, line_error, line_of, lines_of, text_of
from headrace.preparation.rows.columns import SAMPLED_ROWS, Columns, columns_of_rows
from headrace.preparation.rows.splits import Observer, Row
from headrace.preparation.rows.text_file import TextFile
from headrace.preparation.sources import Piece, next_record

__all__ = ["JsonlSource"]


@dataclass(frozen=True)
class JsonlSource(TextFile):
    """A file of JSON lines. Blank lines are no rows; of a member that is there twice the last one counts."""

    has_schema = False

    def cuts(self, places: Sequence[int]) -> list[int]:
        """The next line at or behind each place; of a compressed file the nearer end."""
        if not self.can_be_cut:
            return [0 if 2 * place < self.length else self.length for place in places]
        return [next_record(self.file, place) for place in places]

    def columns(self) -> Columns:
        """By its first 100 rows."""
        return columns_of_rows(row for _, row in islice(self.rows(0, self.length, None, None), SAMPLED_ROWS))

    def rows(
        self, start: int, stop: int, names: Sequence[str] | None, observer: Observer | None
    ) -> Iterator[tuple[int, Row]]:
        """(offset in the decompressed file, object) of each line; InputError for a line that is no JSON object."""
        piece = replace(self.file, start=start, stop=stop)
        decode = msgspec.json.Decoder().decode
        for offset, line in lines_of(piece, blocks_of(piece, observer)):
            try:
                row = decode(line)
            except (msgspec.DecodeError, RecursionError):
                if not line.strip():
                    continue
                row = _leniently(piece, offset, line)
            if type(row) is not dict:
                raise line_error(piece, offset, f"is no JSON object but {type(row).__name__}")
            yield offset, row

    def where(self, place: int) -> str:
        """The file and the line's number."""
        return line_of(self.file, place)


def _leniently(piece: Piece, offset: int, line: bytes) -> Any:
    """What msgspec is stricter with than the world's writers: NaN and Infinity. InputError for everything else."""
    text = text_of(piece, offset, line)
    try:
        row = json.loads(text, parse_float=_finite)
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise line_error(piece, offset, "holds half a surrogate pair, which is no character") from None
    except ValueError as error:
        raise line_error(piece, offset, f"is not JSON ({error})") from None
    except RecursionError:
        raise line_error(piece, offset, "is JSON nested too deeply") from None
    return row


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is beyond what a float64 holds")
    return value
