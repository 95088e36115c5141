"""Rows of equal length, gathered many at a time from the shards of a dataset.

Random windows are the hot path, and a Python step a window would cost more than the copy. So the shards are mapped,
and a batch is one NumPy indexing over the process's own memory:

    item number          17        4        90                     (a batch of windows)
    segment               0        0         3    searchsorted     which mapped shard holds all of it?
    * step[segment]                                                bytes from window to window
    + origin[segment]  address  address  address                   where that window lies in memory
    memory[addresses]   row      row       row                     one gather, a memcpy a row

`origin` is negative for what has no single address: shards not mapped yet, windows that run from one shard into the
next, numbers outside the dataset (whose step is 0, so that no product wraps into an address). NumPy refuses a negative
address, and the batch takes the slow path, which maps, joins or refuses. Windows side by side in a single shard are
rows of a table, and need no addresses.
So every address that is read was computed from a live map and an item whose bytes lie inside it.

Files that are not mapped are read by ranges instead, one request a shard.
"""

import os
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.datasets.shard_files import TOO_MANY_MAPS, ShardViews

__all__ = ["RowGather"]

_NOWHERE = np.iinfo(np.int64).min  # so low that no offset within a dataset, however large it claims to be, leads back
_LONGEST_ROW = 1 << 14  # bytes; NumPy bounds an array's items times their size, and beyond it the copy is what costs
_LARGEST_ROW = (1 << 31) - 1  # bytes; what NumPy takes as one element
_PAGE = 4096  # the gathered array begins at this address, since NumPy takes address 0 for "no memory"

Bytes = NDArray[np.uint8]
Int64s = NDArray[np.int64]


class _Pieces:
    """Parts of rows that are to be read by ranges."""

    def __init__(self) -> None:
        self._found: list[tuple[int, int, int, int]] = []

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, shard: int, begin_byte: int, num_bytes: int, target: int) -> None:
        self._found.append((shard, begin_byte, num_bytes, target))

    def joined(self, shards: Int64s, begins: Int64s, num_bytes: int, targets: Int64s) -> Int64s:
        """These and so many more, of shape (4, num_pieces), in order of shards."""
        given = np.stack([shards, begins, np.full(len(shards), num_bytes), targets])
        pieces = np.concatenate([given, np.array(self._found, np.int64).reshape(-1, 4).T], axis=1)
        return pieces[:, np.argsort(pieces[0], kind="stable")]


class _Maps:
    """Views that keep the memory alive, and the origins made from them. Grows; never shrinks."""

    def __init__(self, num_segments: int, views: dict[int, memoryview]) -> None:
        self.origins = np.full(num_segments, _NOWHERE, np.int64)
        self.views = views


class RowGather:
    """Rows of equal length at equal steps over the concatenated shards: row i begins at element i * stride.

    lengths has the elements of each shard; views may be shared with other gathers. A row may run over the end of a
    shard into the next.
    """

    def __init__(
        self,
        views: ShardViews,
        lengths: NDArray[np.int64],
        itemsize: int,
        *,
        stride: int,
        row_elements: int,
    ) -> None:
        self._views = views
        self._files = views.files
        self._itemsize = itemsize
        self.stride = stride
        self.row_elements = row_elements
        self._ends = np.cumsum(lengths, dtype=np.int64)
        self._starts = self._ends - lengths
        self._end_list: list[int] = self._ends.tolist()  # bisect is faster than NumPy for a single place
        total = int(self._ends[-1]) if len(lengths) else 0
        self.num_rows = 0 if total < row_elements else (total - row_elements) // stride + 1
        # Rows that lie in one shard: first[k] <= row < last[k] for shard k. Segment 2k+1 of the edges below.
        first = -(-self._starts // stride)
        last = np.maximum(first, (self._ends - row_elements) // stride + 1)
        self._edges = np.stack([first, last], axis=1).reshape(-1).astype(np.uint64)  # so negative items lie at the end
        self._row_bytes = row_elements * itemsize
        if self._row_bytes > _LARGEST_ROW or stride * itemsize >= 1 << 62:
            raise ValueError(
                f"windows of {row_elements} elements of {itemsize} bytes, one every {stride} elements, are too large; "
                f"a window has at most {_LARGEST_ROW} bytes"
            )
        self._row = np.dtype((np.void, self._row_bytes))
        self._memory = _process_memory(min(self._row_bytes, _LONGEST_ROW))
        self._is_table = len(lengths) == 1 and stride == row_elements  # rows lie side by side in one file
        self._is_mapped: list[bool] = views.files.mapped.tolist()
        self._step_bytes = stride * itemsize
        self._steps = np.zeros(len(self._edges) + 1, np.int64)
        self._steps[1::2] = self._step_bytes
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._let_go()

    def _let_go(self) -> None:
        self._maps = _Maps(len(self._edges) + 1, {})
        self._table: NDArray[np.void] | None = None

    def rows(self, items: NDArray[np.int64]) -> NDArray[np.void]:
        """The rows, each one element of row_bytes, in fresh memory of shape (num_items,).

        Items may repeat; negative ones count from the end; IndexError outside.
        """
        table, maps = self._table, self._maps  # held while their memory is in use: another thread may replace them
        try:
            if table is not None:
                return table.take(items)
            segments = self._edges.searchsorted(items.view(np.uint64), "right")
            addresses = self._steps[segments]
            addresses *= items
            addresses += maps.origins[segments]
            return self._memory[addresses]
        except IndexError:  # a negative address is an index that no array has
            del table, maps  # they may have to make room
            return self._slow_rows(items)

    def start(self, item: int) -> int:
        """The element where the row begins; negative items count from the end, IndexError outside."""
        if not -self.num_rows <= item < self.num_rows:
            raise IndexError(f"window {item} is outside a dataset of {self.num_rows} windows")
        return (item % self.num_rows) * self.stride

    def elements(self, start: int, num_elements: int) -> tuple[Bytes, NDArray[np.int64], NDArray[np.int64]]:
        """num_elements from start on, running over shard ends and from the last shard into the first.

        Returns their bytes, and the number of elements and the shard of each piece; start must lie in the dataset.
        """
        shard = bisect_right(self._end_list, start)
        if num_elements <= self._end_list[shard] - start and num_elements:  # most are a single piece
            begin_byte = (start - int(self._starts[shard])) * self._itemsize
            out = self._bytes(shard, begin_byte, num_elements * self._itemsize).copy()
            return out, np.array([num_elements]), np.array([shard])
        out = np.empty(num_elements * self._itemsize, np.uint8)
        lengths, shards, done = [], [], 0
        for shard, begin_byte, count in self._runs(start, num_elements):
            end = done + count * self._itemsize
            if count:
                out[done:end] = self._bytes(shard, begin_byte, end - done)
            lengths.append(count)
            shards.append(shard)
            done = end
        return out, np.array(lengths, np.int64), np.array(shards, np.int64)

    def _runs(self, start: int, num_elements: int) -> Iterator[tuple[int, int, int]]:
        """(shard, first byte, elements) of each piece of these elements, empty shards included."""
        shard, done = bisect_right(self._end_list, start), 0
        while done < num_elements:
            count = min(num_elements - done, self._end_list[shard] - start)
            yield shard, (start - int(self._starts[shard])) * self._itemsize, count
            done += count
            shard = (shard + 1) % len(self._end_list)
            start = int(self._starts[shard])

    def _bytes(self, shard: int, begin_byte: int, num_bytes: int) -> Bytes:
        """These bytes of the shard, where they lie."""
        if self._is_mapped[shard]:
            return np.frombuffer(self._views.view(shard), np.uint8, num_bytes, begin_byte)
        found = self._files.ranges(shard, np.array([begin_byte]), np.array([num_bytes]))[0]
        return np.frombuffer(found, np.uint8)

    def _slow_rows(self, items: NDArray[np.int64]) -> NDArray[np.void]:
        outside = (items < -self.num_rows) | (items >= self.num_rows)
        if outside.any():
            item = int(items[outside.argmax()])
            raise IndexError(f"window {item} is outside a dataset of {self.num_rows} windows")
        items = np.where(items < 0, items + self.num_rows, items)
        out = np.empty((len(items), self._row_bytes), np.uint8)
        segments = self._edges.searchsorted(items.view(np.uint64), "right")
        inside = segments % 2 == 1
        places = np.flatnonzero(inside)
        shards = segments[places] // 2
        is_mapped = self._files.mapped[shards]
        if is_mapped.any():
            self._copy_mapped(items, places[is_mapped], shards[is_mapped], out)
        by_ranges = _Pieces()
        for place in np.flatnonzero(~inside).tolist():
            done = 0
            for shard, begin_byte, count in self._runs(int(items[place]) * self.stride, self.row_elements):
                end = done + count * self._itemsize
                if count and self._is_mapped[shard]:
                    out[place, done:end] = self._bytes(shard, begin_byte, end - done)
                elif count:
                    by_ranges.add(shard, begin_byte, end - done, place * self._row_bytes + done)
                done = end
        places, shards = places[~is_mapped], shards[~is_mapped]
        begins = (items[places] * self.stride - self._starts[shards]) * self._itemsize
        if len(places) or by_ranges:
            self._copy_ranges(by_ranges.joined(shards, begins, self._row_bytes, places * self._row_bytes), out)
        return out.view(self._row).reshape(-1)

    def _copy_mapped(self, items: Int64s, places: Int64s, shards: Int64s, out: Bytes) -> None:
        """The rows at these places, each of which lies in one of these shards."""
        order = np.argsort(shards, kind="stable")
        places, shards = places[order], shards[order]
        owners, firsts = np.unique(shards, return_index=True)
        bounds, done = [*firsts.tolist(), len(shards)], 0
        while done < len(owners):  # so that no batch, however spread, maps more than may be at a time
            end = min(done + self._files.views_at_once, len(owners))
            rows = slice(bounds[done], bounds[end])
            maps = self._mapped(owners[done:end].tolist())
            if self._row_bytes > _LONGEST_ROW:
                for place, shard in zip(places[rows].tolist(), shards[rows].tolist(), strict=True):
                    at = (int(items[place]) * self.stride - int(self._starts[shard])) * self._itemsize
                    out[place] = _array(maps.views[shard])[at : at + self._row_bytes]
            else:
                addresses = maps.origins[2 * shards[rows] + 1] + items[places[rows]] * self._step_bytes
                out[places[rows]] = self._memory[addresses].view(np.uint8).reshape(len(addresses), -1)
            del maps  # the next part may have to make room
            done = end

    def _copy_ranges(self, pieces: Int64s, out: Bytes) -> None:
        """pieces has shape (4, num_pieces): shard, first byte, bytes, and where they belong in out, counted through."""
        shards, begins, counts, targets = pieces
        owners, firsts = np.unique(shards, return_index=True)
        groups = np.split(np.arange(len(shards)), firsts[1:])
        requests = [(int(shard), begins[group], counts[group]) for shard, group in zip(owners, groups, strict=True)]
        flat = out.reshape(-1)
        for group, found in zip(groups, self._files.ranges_of(requests), strict=True):
            for at, view in zip(targets[group].tolist(), found, strict=True):
                flat[at : at + len(view)] = np.frombuffer(view, np.uint8)

    def _mapped(self, shards: Sequence[int]) -> _Maps:
        """Maps that hold all these shards (no more than max_views of them)."""
        if self._process != os.getpid():
            self._reset()  # the parent's lock may have been held as it forked
        with self._lock:
            if not self._views.has_room(shards):
                self._let_go()
            try:
                views = self._views.hold(shards)
            except OSError as error:
                if error.errno not in TOO_MANY_MAPS or not self._maps.views:
                    raise
                self._let_go()
                views = self._views.hold(shards)
            maps = self._maps if self._maps.views is views else _Maps(len(self._edges) + 1, views)
            for shard in shards:
                if len(views[shard]) and self._row_bytes <= _LONGEST_ROW:
                    address = int(_array(views[shard]).__array_interface__["data"][0])
                    # Where item 0 would begin if the whole dataset lay before this shard.
                    maps.origins[2 * shard + 1] = address - _PAGE - int(self._starts[shard]) * self._itemsize
            self._maps = maps
            if self._is_table and 0 in views:
                self._table = _array(views[0])[: self.num_rows * self._row_bytes].view(self._row)
            return maps


def _array(view: memoryview) -> Bytes:
    return np.frombuffer(view, np.uint8)


def _process_memory(row_bytes: int) -> NDArray[Any]:
    """The address space as an array of overlapping rows: element i is the row_bytes bytes at address _PAGE + i."""

    class Memory:
        __array_interface__ = {  # noqa: RUF012 - NumPy's protocol
            "data": (_PAGE, True),
            "shape": (1 << 48,),
            "strides": (1,),
            "typestr": f"|V{row_bytes}",
            "version": 3,
        }

    return np.asarray(Memory())
