"""The bytes of a dataset's shard files: opened lazily, checked, and gathered many rows at a time.

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

Stores that cannot map (object stores) are read by ranges instead, one request a shard.
"""

import errno
import os
import threading
from bisect import bisect_right
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import CorruptShardError, DatasetChangedError, NotFoundError, TruncatedReadError
from headrace.store import FileInfo, Store

__all__ = ["RowGather", "ShardFiles", "ShardViews"]

_NOWHERE = np.iinfo(np.int64).min  # so low that no offset within a dataset, however large it claims to be, leads back
_LONGEST_ROW = 1 << 14  # bytes; NumPy bounds an array's items times their size, and beyond it the copy is what costs
_TOO_MANY = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # ENOMEM: more maps than a process may have
_LARGEST_ROW = (1 << 31) - 1  # bytes; what NumPy takes as one element
_PAGE = 4096  # the gathered array begins at this address, since NumPy takes address 0 for "no memory"

Bytes = NDArray[np.uint8]


class ShardFiles:
    """One file of each shard, by number. Handles belong to a process; after a fork they are made anew.

    names and sizes have one entry a shard. evidence is what the dataset rests on (its manifest, or one file a shard):
    when another version of it is found as a shard is opened, the data was replaced, and that is said. share is how many
    such sets of files one dataset maps. Safe to use from several threads.
    """

    def __init__(
        self,
        store: Store,
        names: Sequence[str],
        sizes_bytes: NDArray[np.int64],
        evidence: Sequence[FileInfo],
        share: int = 1,
    ) -> None:
        self.store = store
        self._share = share
        self.names = names
        self.sizes_bytes = sizes_bytes
        self._evidence = evidence
        self._versions: dict[int, str] = {}

    @property
    def max_views(self) -> int:
        """How many of these files may be mapped at a time."""
        return max(1, self.store.max_views // self._share)

    def view(self, shard: int) -> memoryview:
        """The shard's bytes, mapped where the store can and else read whole; its size and version are checked."""
        try:
            view = self.store.view(self.names[shard])
        except NotFoundError:
            self._check(shard)
            raise self._missing(shard) from None
        self._check(shard)
        if len(view) != self.sizes_bytes[shard]:
            raise self._wrong_size(shard, len(view))
        return view

    def ranges(self, shard: int, starts: NDArray[np.int64], num_bytes: NDArray[np.int64]) -> list[memoryview]:
        """The bytes at these places of the shard's file, in request order; neighbours are read as one."""
        begins, counts, owners = _joined(starts, num_bytes)
        try:
            joined = self.store.get_ranges(self.names[shard], begins, counts)
        except NotFoundError:
            self._check(shard)
            raise self._missing(shard) from None
        except TruncatedReadError as error:
            self._check(shard)
            raise self._wrong_size(shard, error.size) from error
        self._check(shard)
        insides = starts - begins[owners]
        places = zip(owners.tolist(), insides.tolist(), (insides + num_bytes).tolist(), strict=True)
        return [joined[owner][begin:end] for owner, begin, end in places]

    def _check(self, shard: int) -> None:
        """To be called after reading: while the evidence stands no file has been replaced, so what was read is good."""
        basis = self._evidence[shard if len(self._evidence) > 1 else 0] if self._evidence else None
        if basis is not None and self._version(basis.path) != basis.version:
            raise DatasetChangedError(self.store.location, f"{basis.path} is not the file it was")
        try:
            info = self.store.head(self.names[shard])
        except NotFoundError:
            raise self._missing(shard) from None
        if self._versions.setdefault(shard, info.version) != info.version:
            raise DatasetChangedError(self.store.location, f"{self.names[shard]} is not the file it was")
        if info.size_bytes != self.sizes_bytes[shard]:
            raise self._wrong_size(shard, info.size_bytes)

    def _version(self, path: str) -> str | None:
        try:
            return self.store.head(path).version
        except NotFoundError:
            return None

    def _missing(self, shard: int) -> CorruptShardError:
        return CorruptShardError(self.store.location, shard, f"{self.names[shard]} is missing")

    def _wrong_size(self, shard: int, found: int) -> CorruptShardError:
        problem = f"{self.names[shard]} has {found} bytes, but {self.sizes_bytes[shard]} were recorded"
        return CorruptShardError(self.store.location, shard, problem)


class ShardViews:
    """The shards' files as memory, mapped at first use and no more of them than may be. Safe with threads and forks."""

    def __init__(self, files: ShardFiles) -> None:
        self.files = files
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._views: dict[int, memoryview] = {}

    def has_room(self, shards: Collection[int]) -> bool:
        """Whether hold() can map these without starting over."""
        views = self._views
        missing = sum(shard not in views for shard in shards)
        return missing == 0 or len(views) + missing <= self.files.max_views

    def view(self, shard: int) -> memoryview:
        """The shard's file."""
        view = self._views.get(shard)
        return self.hold([shard])[shard] if view is None else view

    def hold(self, shards: Collection[int]) -> dict[int, memoryview]:
        """A dict that has all these shards (no more than files.max_views); they stay mapped while it lives.

        It grows with later calls, until another one takes its place: let go of it then, so that files can be closed.
        """
        views = self._views
        if self._process == os.getpid() and all(shard in views for shard in shards):
            return views
        if self._process != os.getpid():
            self._reset()  # the parent's lock may have been held as it forked
        with self._lock:
            if not self.has_room(shards):
                # Start over rather than choose: what is in use keeps the old ones alive, and the rest is unmapped.
                self._views = {}
            try:
                self._map(shards)
            except OSError as error:
                if error.errno not in _TOO_MANY or not self._views:
                    raise
                self._views = {}
                self._map(shards)
            return self._views

    def _map(self, shards: Collection[int]) -> None:
        for shard in shards:
            if shard not in self._views:
                self._views[shard] = self.files.view(shard)


class _Maps:
    """Views that keep the memory alive, and the origins made from them. Grows; never shrinks."""

    def __init__(self, num_segments: int, views: dict[int, memoryview]) -> None:
        self.origins = np.full(num_segments, _NOWHERE, np.int64)
        self.views = views


class RowGather:
    """Rows of equal length at equal steps over the concatenated shards: row i begins at element i * stride.

    lengths has the elements of each shard; views may be shared with other gathers. A row may run over the end of a
    shard into the next. can_map=False reads by position even where files could be mapped.
    """

    def __init__(
        self,
        views: ShardViews,
        lengths: NDArray[np.int64],
        itemsize: int,
        *,
        stride: int,
        row_elements: int,
        can_map: bool = True,
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
        self._can_map = can_map and views.files.store.capabilities.view
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
        while done < num_elements:
            count = min(num_elements - done, self._end_list[shard] - start)
            if count:
                begin_byte, begin, end = (
                    (k * self._itemsize) for k in (start - int(self._starts[shard]), done, done + count)
                )
                out[begin:end] = self._bytes(shard, begin_byte, end - begin)
            lengths.append(count)
            shards.append(shard)
            done += count
            shard = (shard + 1) % len(self._end_list)
            start = int(self._starts[shard])
        return out, np.array(lengths, np.int64), np.array(shards, np.int64)

    def _bytes(self, shard: int, begin_byte: int, num_bytes: int) -> Bytes:
        """These bytes of the shard, where they lie."""
        if self._can_map:
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
        for place in np.flatnonzero(~inside).tolist():
            out[place] = self.elements(int(items[place]) * self.stride, self.row_elements)[0]
        places = np.flatnonzero(inside)
        shards = segments[places] // 2
        if self._can_map:
            limit = self._files.max_views
            for begin in range(0, len(places), limit):  # so that no batch, however spread, maps more than the limit
                part = places[begin : begin + limit]
                maps = self._mapped(sorted(set(shards[begin : begin + limit].tolist())))
                if self._row_bytes > _LONGEST_ROW:
                    for place, shard in zip(part.tolist(), (segments[part] // 2).tolist(), strict=True):
                        at = (int(items[place]) * self.stride - int(self._starts[shard])) * self._itemsize
                        out[place] = _array(maps.views[shard])[at : at + self._row_bytes]
                else:
                    addresses = maps.origins[segments[part]] + items[part] * self._step_bytes
                    out[part] = self._memory[addresses].view(np.uint8).reshape(len(part), -1)
                del maps  # the next part may have to make room
        else:
            for shard in sorted(set(shards.tolist())):
                part = places[shards == shard]
                begins = (items[part] * self.stride - self._starts[shard]) * self._itemsize
                views = self._files.ranges(shard, begins, np.full(len(part), self._row_bytes, np.int64))
                for place, view in zip(part.tolist(), views, strict=True):
                    out[place] = np.frombuffer(view, np.uint8)
        return out.view(self._row).reshape(-1)

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
                if error.errno not in _TOO_MANY or not self._maps.views:
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


def _joined(
    starts: NDArray[np.int64], num_bytes: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Ranges that touch or overlap made one: their starts, their sizes, and for each given range which one holds it."""
    order = np.argsort(starts, kind="stable")
    begins, ends = starts[order], np.maximum.accumulate((starts + num_bytes)[order])
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = begins[1:] > ends[:-1]
    firsts = np.flatnonzero(is_first)
    lasts = np.append(firsts[1:], len(order))[: len(firsts)] - 1
    owners = np.empty(len(order), np.int64)
    owners[order] = np.cumsum(is_first) - 1
    return begins[firsts], ends[lasts] - begins[firsts], owners


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
