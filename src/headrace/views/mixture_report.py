"""What a mixture has drawn by a position, for people and programs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import overload

__all__ = ["MixtureReport", "SourceReport"]

_COLUMNS = ("source", "target", "drawn", "epochs", "tokens", "share of tokens")


@dataclass(frozen=True)
class SourceReport:
    """One source: the draws that its exact share of the positions would be, those it had, and what that comes to.

    epochs is draws over the source's length. tokens are draws times the mean length: exact for whole epochs, expected
    otherwise; None where a source with a weight does not know its lengths in tokens. token_share is the part of all
    tokens.
    """

    name: str
    target: float
    drawn: int
    length: int | None  # samples; None for a source without weight, which is never opened
    epochs: float
    tokens: float | None
    token_share: float | None


class MixtureReport(Sequence[SourceReport]):
    """A SourceReport for each source, in order; str() is a table."""

    def __init__(self, position: int, epoch_size: int, rows: Sequence[SourceReport]) -> None:
        self.position = position
        self.epoch_size = epoch_size
        self._rows = tuple(rows)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> SourceReport: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[SourceReport]: ...

    def __getitem__(self, index: int | slice) -> SourceReport | Sequence[SourceReport]:
        return self._rows[index]

    def __iter__(self) -> Iterator[SourceReport]:
        return iter(self._rows)

    def __str__(self) -> str:
        table = [_COLUMNS, *(_cells(row) for row in self._rows)]
        widths = [max(len(cells[column]) for cells in table) for column in range(len(_COLUMNS))]
        lines = [
            "  ".join([cells[0].ljust(widths[0]), *map(str.rjust, cells[1:], widths[1:])]).rstrip() for cells in table
        ]
        return "\n".join([f"{self.position:,} positions, {self.epoch_size:,} an epoch", *lines])


def report_of(
    position: int,
    epoch_size: int,
    counts: Sequence[tuple[str, Fraction, int, int | None]],
    means: Sequence[Fraction | None],
) -> MixtureReport:
    """The report of (name, target, drawn, length) of each source, and the mean lengths where they are known."""
    tokens = [None if mean is None else drawn * mean for (_, _, drawn, _), mean in zip(counts, means, strict=True)]
    known = [number for number in tokens if number is not None]
    total = sum(known) if len(known) == len(tokens) else None
    rows = [
        SourceReport(
            name,
            float(target),
            drawn,
            length,
            drawn / length if length else 0.0,
            None if number is None else float(number),
            None if number is None or not total else float(number / total),
        )
        for (name, target, drawn, length), number in zip(counts, tokens, strict=True)
    ]
    return MixtureReport(position, epoch_size, rows)


def _cells(row: SourceReport) -> tuple[str, ...]:
    tokens = "" if row.tokens is None else f"{row.tokens:,.0f}"
    share = "" if row.token_share is None else f"{row.token_share:.2%}"
    return row.name, f"{row.target:,.1f}", f"{row.drawn:,}", f"{row.epochs:,.3f}", tokens, share
