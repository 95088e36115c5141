"""Documents into rows of at most `capacity` tokens, planned from their lengths alone.

    lengths      9  20  4  0  3           capacity 8, long="split"
    pieces       8 1  8 8 4  4  3         whole rows of what is too long, and rests; nothing of an empty document
    rows         | 8 | 8 | 8 | 4 4 | 1 3 |        best_fit, before the rows are permuted

best_fit is best-fit decreasing (Johnson, "Near-optimal bin packing algorithms", 1973): the longest piece first, each
into the fullest row that has room for it. Pieces of one length and rows of one room are handled together, so that a
step costs the same for one document and for thousands:

    c pieces of length l; the smallest room r >= l that b rows have; each of those rows takes k = r // l pieces
    c // k rows, if there are as many, are full of them and have the room r - k * l; one more takes the rest

first_fit is first-fit in the documents' order (first_fit.py). concat puts them end to end and cuts.
"""

from collections import deque
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from headrace.errors import OptionError, OrderError
from headrace.planning.first_fit import first_fit
from headrace.planning.permutation import Permutation

__all__ = ["LONG_POLICIES", "STRATEGIES", "PackedRows", "pack"]

Strategy = Literal["best_fit", "first_fit", "concat"]
Long = Literal["split", "drop", "error"]
Int64s = NDArray[np.int64]

STRATEGIES: tuple[Strategy, ...] = ("best_fit", "first_fit", "concat")
LONG_POLICIES: tuple[Long, ...] = ("split", "drop", "error")


@dataclass(frozen=True, slots=True, eq=False)
class PackedRows:
    """Which parts of which documents stand in which row. Row i has the pieces offsets[i] to offsets[i + 1]."""

    lengths: Int64s  # (num_documents,) as they were given
    documents: Int64s  # (num_pieces,) indices into the lengths
    starts: Int64s  # (num_pieces,) first token of the document
    stops: Int64s  # (num_pieces,) the one behind the last
    offsets: Int64s  # (num_rows + 1,) offsets[0] == 0
    tokens: int  # in all rows
    dropped_documents: int  # longer than a row, with long="drop"
    dropped_tokens: int
    split_documents: int  # in more than one piece
    empty_documents: int  # of 0 tokens, which are in no row

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        return len(self.offsets) - 1


def pack(lengths: Int64s, capacity: int, *, strategy: Strategy, long: Long, seed: int) -> PackedRows:
    """Rows of at most `capacity` tokens that together have every token once, but those of dropped documents.

    lengths has shape (num_documents,), in tokens. Documents stand in a row in their own order. `long` says what becomes
    of a document of more than `capacity` tokens: "split" makes rows of its own of it, and a rest that is packed as a
    document is; "drop" leaves it out; "error" is an OrderError that names it. The rows are in an order that seed
    decides; those of concat are in the documents' order, and cut documents where rows end.

    No documents, or only empty or dropped ones, give no rows. OptionError for a strategy or policy that there is not,
    or a capacity below 1; OrderError for a negative length.
    """
    lengths = _checked(lengths, capacity, strategy, long)
    too_long = lengths > capacity
    documents = np.flatnonzero(lengths if long == "split" else (lengths > 0) & ~too_long)
    kept = lengths[documents]
    if strategy == "concat":
        numbers, starts, stops, rows = _concatenated(kept, capacity)
        num_rows = -(-int(kept.sum()) // capacity)
    else:
        numbers, starts, stops = _pieces(kept, capacity)
        fit = _best_fit if strategy == "best_fit" else first_fit
        rows, num_rows = fit(stops - starts, capacity)
        places = np.empty(num_rows, np.int64)
        places[Permutation(num_rows, seed)(np.arange(num_rows))] = np.arange(num_rows)
        rows = places[rows]
        order = _stable_order(rows, num_rows)  # pieces of one row stay in the documents' order
        numbers, starts, stops = numbers[order], starts[order], stops[order]
    dropped = lengths[too_long] if long == "drop" else kept[:0]
    return PackedRows(
        lengths=lengths,
        documents=documents[numbers],
        starts=starts,
        stops=stops,
        offsets=np.concatenate([np.zeros(1, np.int64), np.bincount(rows, minlength=num_rows).cumsum()]),
        tokens=int(kept.sum()),
        dropped_documents=len(dropped),
        dropped_tokens=int(dropped.sum()),
        split_documents=int(np.count_nonzero(np.bincount(numbers) > 1)),
        empty_documents=int(np.count_nonzero(lengths == 0)),
    )


def _checked(lengths: Int64s, capacity: int, strategy: str, long: str) -> Int64s:
    """The lengths as int64, or an error as pack() says."""
    if strategy not in STRATEGIES:
        raise OptionError("strategy", strategy, ", ".join(map(repr, STRATEGIES)))
    if long not in LONG_POLICIES:
        raise OptionError("long", long, ", ".join(map(repr, LONG_POLICIES)))
    if capacity < 1:
        raise OptionError("capacity", capacity, "at least 1 token")
    lengths = np.asarray(lengths, np.int64)
    if len(lengths) and int(lengths.min()) < 0:
        raise OrderError(f"document {int(lengths.argmin())} has a length of {int(lengths.min())} tokens")
    if long == "error" and len(lengths) and int(lengths.max()) > capacity:
        first = int((lengths > capacity).argmax())
        raise OrderError(
            f'document {first} has {int(lengths[first])} tokens, more than a row of {capacity}; long="split" cuts such '
            'documents and long="drop" leaves them out'
        )
    return lengths


def _pieces(lengths: Int64s, capacity: int) -> tuple[Int64s, Int64s, Int64s]:
    """(document, start, stop) of each piece of at most capacity tokens: rows of a long document, then its rest."""
    counts = -(-lengths // capacity)
    numbers = np.repeat(np.arange(len(lengths)), counts)
    starts = (np.arange(len(numbers)) - np.repeat(counts.cumsum() - counts, counts)) * capacity
    return numbers, starts, np.minimum(starts + capacity, lengths[numbers])


def _concatenated(lengths: Int64s, capacity: int) -> tuple[Int64s, Int64s, Int64s, Int64s]:
    """(document, start, stop, row) of each piece, when documents lie end to end and are cut at every row's end."""
    ends = lengths.cumsum()
    begins = ends - lengths
    first_rows = begins // capacity
    counts = (ends - 1) // capacity - first_rows + 1
    numbers = np.repeat(np.arange(len(lengths)), counts)
    rows = np.arange(len(numbers)) - np.repeat(counts.cumsum() - counts - first_rows, counts)
    begins = begins[numbers]
    starts = np.maximum(rows * capacity - begins, 0)
    stops = np.minimum((rows + 1) * capacity - begins, lengths[numbers])
    return numbers, starts, stops, rows


def _stable_order(keys: Int64s, limit: int) -> Int64s:
    """The stable order of keys in range(limit)."""
    if limit <= 1 << 16:
        keys = keys.astype(np.uint16)  # which NumPy sorts by radix, ten times as fast
    return np.argsort(keys, kind="stable").astype(np.int64, copy=False)


def _best_fit(sizes: Int64s, capacity: int) -> tuple[Int64s, int]:
    """The row of each piece, and the number of rows, by best-fit decreasing.

    Pieces of one size go in their own order. Of rows with equal room the one goes first that has had it for longest.
    """
    order = _stable_order(capacity - sizes, capacity)
    ordered = sizes[order]
    begins = np.flatnonzero(np.concatenate([np.ones(min(1, len(sizes)), bool), ordered[1:] != ordered[:-1]]))
    counts = np.diff(begins, append=len(sizes))
    steps = _Steps()
    rooms = _Rooms(capacity)
    num_rows = 0
    for size, count in zip(ordered[begins].tolist(), counts.tolist(), strict=True):
        while count:
            room = rooms.smallest(size)
            if room < 0:
                room, opened = capacity, -(-count // (capacity // size))
                rooms.add(room, num_rows, opened)
                num_rows += opened
            first, available = rooms.first(room)
            a_row = room // size
            full = min(available, count // a_row)
            if full:
                steps.add(first, a_row, full * a_row)
                rooms.add(room - a_row * size, first, full)
                count -= full * a_row
            if count and full < available:  # less than a row is left of them
                steps.add(first + full, a_row, count)
                rooms.add(room - count * size, first + full, 1)
                full += 1
                count = 0
            rooms.take(room, full)
    rows = np.empty(len(sizes), np.int64)
    rows[order] = steps.rows()
    return rows, num_rows


class _Steps:
    """Runs of pieces that went into neighbouring rows, so many a row."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._a_row: list[int] = []
        self._counts: list[int] = []

    def add(self, first_row: int, a_row: int, count: int) -> None:
        """The next count pieces: a_row of them in first_row, a_row in the one behind it, and so on."""
        self._firsts.append(first_row)
        self._a_row.append(a_row)
        self._counts.append(count)

    def rows(self) -> Int64s:
        """The row of each piece."""
        counts = np.array(self._counts, np.int64)
        rows: Int64s = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
        rows //= np.repeat(np.array(self._a_row, np.int64), counts)
        rows += np.repeat(np.array(self._firsts, np.int64), counts)
        return rows


class _Rooms:
    """Open rows by the room that they have left: a queue of runs of neighbouring rows a room.

    Rooms that any row has are bits in words of WORD bits, and words that have any are bits of one more.
    """

    WORD = 512

    def __init__(self, capacity: int) -> None:
        self._queues: dict[int, deque[tuple[int, int]]] = {}
        self._words = [0] * (capacity // self.WORD + 1)
        self._summary = 0

    def smallest(self, size: int) -> int:
        """The smallest room of at least size that a row has, or -1."""
        number, bit = divmod(size, self.WORD)
        word = self._words[number] >> bit
        if word:
            return size + (word & -word).bit_length() - 1
        later = self._summary >> (number + 1)
        if not later:
            return -1
        number += (later & -later).bit_length()
        word = self._words[number]
        return number * self.WORD + (word & -word).bit_length() - 1

    def first(self, room: int) -> tuple[int, int]:
        """The rows that have had this room for longest: number of the first, and how many follow one another."""
        return self._queues[room][0]

    def add(self, room: int, first: int, count: int) -> None:
        """These rows have this room now."""
        if room == 0:
            return
        queue = self._queues.get(room)
        if queue is None:
            self._queues[room] = queue = deque()
        if not queue:
            number, bit = divmod(room, self.WORD)
            self._words[number] |= 1 << bit
            self._summary |= 1 << number
        queue.append((first, count))

    def take(self, room: int, count: int) -> None:
        """The first count rows of first(room) have it no longer."""
        queue = self._queues[room]
        first, available = queue.popleft()
        if count < available:
            queue.appendleft((first + count, available - count))
        elif not queue:
            number, bit = divmod(room, self.WORD)
            self._words[number] ^= 1 << bit
            if not self._words[number]:
                self._summary ^= 1 << number
