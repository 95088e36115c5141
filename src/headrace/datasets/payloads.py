"""Payloads of unequal length, any number a shard: an index of where each ends, and their bytes.

    read   (shard, number) --index--> begin, end --join--> one buffer --cut--> a memoryview a payload

The index is rows of two neighbouring offsets, gathered as token windows are; the bytes of a batch are joined by one
call. Offsets come from disk: each pair is checked against the file it points into before it is used.
"""

import struct
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.datasets.attempts import AttemptFile
from headrace.datasets.opening import Opened
from headrace.datasets.row_gather import RowGather
from headrace.datasets.shard_files import ShardFiles, ShardViews
from headrace.datasets.sources import Source
from headrace.errors import CorruptShardError
from headrace.formats.documents import Payload
from headrace.manifest import FileRecord, ShardRecord
from headrace.store import Store

__all__ = ["DATA", "INDEX", "PayloadOutput", "Payloads", "index_problem", "payload_count"]

DATA = "out_of_band.bin"
INDEX = "out_of_band.index"
_PENDING = 1 << 9
_LONGEST_RUN = 64  # payloads
_HELD_BYTES = 64 << 20  # of the indexes of all shards together
_PAIR = struct.Struct("<qq")

Int64s = NDArray[np.int64]


class PayloadOutput:
    """The two files of one shard's payloads while they are written."""

    def __init__(self, data: AttemptFile, index: AttemptFile) -> None:
        self.count = 0
        self._data = data
        self._index = index
        self._pending = array("q", [0])  # offsets not yet in the index; the first one is always 0
        self._end = 0

    def append(self, payload: Payload) -> None:
        """Append one payload."""
        self._data.append(memoryview(payload))
        self._end += len(payload)
        self._pending.append(self._end)
        self.count += 1
        if len(self._pending) >= _PENDING:
            self.finish()

    def extend(self, payloads: Sequence[Payload]) -> None:
        """Append these payloads."""
        if len(payloads) < 2:
            for payload in payloads:
                self.append(payload)
            return
        self.finish()
        ends = np.fromiter(map(len, payloads), np.int64, len(payloads)).cumsum() + self._end
        self._data.append(memoryview(b"".join(payloads)))
        self._index.append(ends.astype("<i8").view(np.uint8).data)
        self._end = int(ends[-1])
        self.count += len(payloads)

    def finish(self) -> None:
        """Hand over every offset."""
        pending, self._pending = self._pending, array("q")
        if pending:
            self._index.append(np.array(pending, "<i8").view(np.uint8).data)


class Payloads:
    """The payloads of all shards of an opened directory. Safe to use from several threads."""

    def __init__(self, source: Source, opened: Opened, share: int) -> None:
        """share is how many sets of files the dataset maps, these two included."""
        shards = opened.manifest.shards
        self._where = source.location
        indexes = [_file(shard, INDEX) for shard in shards]
        data = [_file(shard, DATA) for shard in shards]
        self._sizes = _sizes(data)
        index_sizes = _sizes(indexes)
        # By ranges a payload would be two round trips, one after the other: small indexes are held.
        self._index_files = ShardFiles(source, [_name(file) for file in indexes], index_sizes, share, _HELD_BYTES)
        self._data_files = ShardFiles(source, [_name(file) for file in data], self._sizes, share)
        offsets = index_sizes // 8
        for shard, (index, payloads) in enumerate(zip(indexes, data, strict=True)):
            if (index is None) != (payloads is None):
                raise CorruptShardError(self._where, shard, f"only one of its files {DATA} and {INDEX} is recorded")
            if index is not None and (index.bytes % 8 or index.bytes < 8):
                problem = f"{index.name} has {index.bytes} bytes, which are no whole number of int64 offsets"
                raise CorruptShardError(self._where, shard, problem)
        self.counts: Int64s = np.maximum(offsets - 1, 0)  # (num_shards,) payloads of each
        self._index_starts = np.cumsum(offsets) - offsets
        self._indexes = ShardViews(self._index_files)
        self._views = ShardViews(self._data_files)
        if len(shards) > self._data_files.max_views:
            # Threads would take turns at unmapping each other's files, and each keep its own until it is done.
            self._index_files.read_by_position()
            self._data_files.read_by_position()
        self._is_mapped: list[bool] = (self._index_files.mapped & self._data_files.mapped).tolist()
        self._all_mapped = all(self._is_mapped)
        self._pairs = RowGather(self._indexes, offsets, 8, stride=1, row_elements=2)
        self._counts = self.counts.astype(np.uint64)
        self._is_checked = index_sizes == 0  # whether the index was seen to begin and end where the file does
        self._all_checked = False
        if not opened.by_headrace:
            self._check_ends(np.arange(len(shards)))  # no record says that index and data belong together

    def read(self, shards: Int64s, numbers: Int64s) -> list[memoryview]:
        """The payloads with these numbers in these shards, in order; all are parts of one writable buffer.

        CorruptShardError for a payload that the shard does not have, or that lies outside its file.
        """
        count = len(numbers)
        if 0 < count <= _LONGEST_RUN and self._all_mapped and shards[0] == shards[-1]:
            first, shard = int(numbers[0]), int(shards[0])
            if (
                first >= 0
                and numbers.tolist() == list(range(first, first + count))
                and shards.tolist() == [shard] * count
            ):
                return self._run(shard, first, count)
        begins, ends = self._bounds(shards, numbers)
        data = memoryview(bytearray().join(self._pieces(shards, begins, ends)))
        stops = (ends - begins).cumsum().tolist()
        return [data[begin:end] for begin, end in pairwise([0, *stops])]

    def in_place(self, shards: Int64s, numbers: Int64s) -> list[memoryview]:
        """The same payloads where they lie: read-only memory, of the mapped files where the store can map."""
        return self._pieces(shards, *self._bounds(shards, numbers))

    def parts_in_place(self, shards: Int64s, numbers: Int64s, starts: Int64s, stops: Int64s) -> list[memoryview]:
        """The bytes starts to stops of the same payloads, cut where they end, as Python's slices are."""
        begins, ends = self._bounds(shards, numbers)
        return self._pieces(shards, np.minimum(begins + starts, ends), np.minimum(begins + stops, ends))

    def one_in_place(self, shard: int, number: int) -> memoryview:
        """One of them; without NumPy, whose calls cost more than a single payload."""
        if not self._is_mapped[shard]:
            return self.in_place(np.array([shard]), np.array([number]))[0]
        self._check_one(shard, number)
        begin, end = _PAIR.unpack_from(self._indexes.view(shard), 8 * number)
        if not 0 <= begin <= end <= self._sizes[shard]:
            raise self._backwards(shard, number)
        return self._views.view(shard)[begin:end]

    def _run(self, shard: int, first: int, count: int) -> list[memoryview]:
        """count payloads that lie side by side, as those of a single window do; without NumPy, too."""
        self._check_one(shard, first + count - 1)
        offsets = struct.unpack_from(f"<{count + 1}q", self._indexes.view(shard), 8 * first)
        places = list(pairwise(offsets))
        size = int(self._sizes[shard])
        for number, (begin, end) in enumerate(places, first):
            if not 0 <= begin <= end <= size:
                raise self._backwards(shard, number)
        start = offsets[0]
        data = memoryview(bytearray(self._views.view(shard)[start : offsets[-1]]))
        return [data[begin - start : end - start] for begin, end in places]

    def _check_one(self, shard: int, number: int) -> None:
        if not 0 <= number < self.counts[shard]:
            raise self._absent(shard, number)
        if not self._is_checked[shard]:
            self._check_ends(np.array([shard]))

    def lengths(self, item_bytes: int) -> Int64s:
        """The length of every payload in items of item_bytes bytes, shape (num_payloads,).

        CorruptShardError where offsets go down or a payload is no whole number of items.
        """
        self._check_ends(np.arange(len(self.counts)))
        out = np.empty(int(self.counts.sum()), np.int64)
        begin = 0
        for shard, count in enumerate(self.counts.tolist()):
            if count == 0:
                continue
            lengths = out[begin : begin + count]
            if self._index_files.mapped[shard]:  # no copy of an index that may have gigabytes
                offsets = np.frombuffer(self._indexes.view(shard), "<i8")
            else:
                offsets = self._offsets(shard, 0, count + 1)
            if len(downs := np.flatnonzero(offsets[1:] < offsets[:-1])):
                raise self._backwards(shard, int(downs[0]))
            np.subtract(offsets[1:], offsets[:-1], out=lengths)
            if item_bytes > 1:
                if (lengths % item_bytes).any():
                    self._refuse_partial(shard, int((lengths % item_bytes != 0).argmax()), item_bytes)
                lengths //= item_bytes
            begin += count
        return out

    def lengths_at(self, shards: Int64s, numbers: Int64s, item_bytes: int) -> Int64s:
        """The lengths of these payloads in items of item_bytes bytes, of shape (len(numbers),): reads their offsets.

        CorruptShardError as read() and lengths() say.
        """
        begins, ends = self._bounds(shards, numbers)
        lengths = (ends - begins).view(np.int64)
        if item_bytes > 1:
            if (lengths % item_bytes).any():
                bad = int((lengths % item_bytes != 0).argmax())
                self._refuse_partial(int(shards[bad]), int(numbers[bad]), item_bytes)
            lengths //= item_bytes
        return lengths

    @property
    def files(self) -> tuple[ShardFiles, ShardFiles]:
        """The indexes, and the payloads themselves."""
        return self._index_files, self._data_files

    @property
    def total_bytes(self) -> int:
        """The bytes of all payloads, by the sizes of their files."""
        return int(self._sizes.sum())

    def _bounds(self, shards: Int64s, numbers: Int64s) -> tuple[Int64s, Int64s]:
        """Where each payload begins and ends in its shard's file, every pair checked against it."""
        outside = numbers.view(np.uint64) >= self._counts[shards]  # negative ones are large then
        if np.count_nonzero(outside):  # faster than any()
            raise self._absent(int(shards[outside.argmax()]), int(numbers[outside.argmax()]))
        if not self._all_checked and not self._is_checked[shards].all():
            self._check_ends(np.array(sorted(set(shards.tolist())), np.int64))
        bounds = self._pairs.rows(self._index_starts[shards] + numbers).view("<u8").reshape(-1, 2)
        begins, ends = bounds[:, 0], bounds[:, 1]
        bad = ends < begins
        bad |= ends > self._sizes[shards].view(np.uint64)  # so negative ones are too large
        if np.count_nonzero(bad):
            raise self._backwards(int(shards[bad.argmax()]), int(numbers[bad.argmax()]))
        return begins.view(np.int64), ends.view(np.int64)

    def _pieces(self, shards: Int64s, begins: Int64s, ends: Int64s) -> list[memoryview]:
        owners = shards.tolist()
        views = self._at_hand(dict.fromkeys(owners))
        if views is None:
            return self._fetched(shards, begins, ends)
        return [views[k][b:e] for k, b, e in zip(owners, begins.tolist(), ends.tolist(), strict=True)]

    def _at_hand(self, shards: Collection[int]) -> Mapping[int, memoryview] | None:
        """The data of these shards, where that takes neither a request nor a file for which a cache has no room."""
        if not self._all_mapped:
            return None
        return self._views.held(shards) if self._data_files.source.keeps_copies else self._views.hold(shards)

    def _fetched(self, shards: Int64s, begins: Int64s, ends: Int64s) -> list[memoryview]:
        pieces = [memoryview(b"")] * len(shards)
        places = {shard: np.flatnonzero(shards == shard) for shard in sorted(set(shards.tolist()))}
        by_ranges = [shard for shard in places if not self._data_files.mapped[shard]]
        requests = [(k, begins[places[k]], ends[places[k]] - begins[places[k]]) for k in by_ranges]
        for shard, found in zip(by_ranges, self._data_files.ranges_of(requests), strict=True):
            for place, piece in zip(places[shard].tolist(), found, strict=True):
                pieces[place] = piece
        mapped = [shard for shard in places if self._data_files.mapped[shard]]
        while mapped:
            count = self._data_files.views_at_once
            is_all = count >= len(places)
            views = self._views.hold(mapped[:count])
            for shard in mapped[:count]:
                for place in places[shard].tolist():
                    piece = views[shard][begins[place] : ends[place]]
                    pieces[place] = piece if is_all else memoryview(bytes(piece))  # the next ones may need its room
            del views
            mapped = mapped[count:]
        return pieces

    def _check_ends(self, shards: Int64s) -> None:
        shards = shards[~self._is_checked[shards]]
        places = [np.array([0, 8 * int(count)]) for count in self.counts[shards]]
        requests = list(zip(shards.tolist(), places, [np.array([8, 8])] * len(places), strict=True))
        for shard, found in zip(shards.tolist(), self._index_ranges(requests), strict=True):
            first, last = (int(np.frombuffer(raw, "<i8")[0]) for raw in found)
            if first != 0 or last != self._sizes[shard]:
                name, size = self._data_files.names[shard], self._sizes[shard]
                problem = f"its index covers bytes {first} to {last} of {name}, which has {size}"
                raise CorruptShardError(self._where, shard, problem)
            self._is_checked[shard] = True
        self._all_checked = bool(self._is_checked.all())

    def _index_ranges(self, requests: list[tuple[int, Int64s, Int64s]]) -> list[list[memoryview]]:
        """These ranges of the indexes; of a remote store those that will be read whole anyway are."""
        if not (self._index_files.source.is_remote and self._index_files.mapped.all()):
            return self._index_files.ranges_of(requests)
        self._indexes.hold([shard for shard, _, _ in requests])
        return [
            [self._indexes.view(shard)[start : start + count] for start, count in zip(starts, counts, strict=True)]
            for shard, starts, counts in requests
        ]

    def _offsets(self, shard: int, first: int, count: int) -> NDArray[Any]:
        """count offsets of the shard's index, from number first on."""
        raw = self._index_ranges([(shard, np.array([8 * first]), np.array([8 * count]))])[0][0]
        return np.frombuffer(raw, "<i8")

    def _absent(self, shard: int, number: int) -> CorruptShardError:
        problem = f"payload {number} was asked for, but there are {self.counts[shard]}"
        return CorruptShardError(self._where, shard, problem)

    def _backwards(self, shard: int, number: int) -> CorruptShardError:
        begin, end = self._offsets(shard, number, 2).tolist()
        problem = (
            f"{self._index_files.names[shard]} says that payload {number} is bytes {begin} to {end} of "
            f"{self._data_files.names[shard]}, which has {self._sizes[shard]}"
        )
        return CorruptShardError(self._where, shard, problem)

    def _refuse_partial(self, shard: int, number: int, item_bytes: int) -> None:
        problem = f"payload {number} is no whole number of elements of {item_bytes} bytes"
        raise CorruptShardError(self._where, shard, problem)


def payload_count(shard: ShardRecord) -> int:
    """How many payloads the shard has, by the size of its index."""
    index = _file(shard, INDEX)
    return 0 if index is None else max(0, index.bytes // 8 - 1)


def index_problem(store: Store, shard: ShardRecord) -> Iterator[tuple[str, str]]:
    """(file, what is wrong with it) for payload files that do not fit one another; reads the whole index."""
    index, data = _file(shard, INDEX), _file(shard, DATA)
    if index is None or data is None:
        return
    if index.bytes % 8 or index.bytes < 8:
        yield index.name, f"has {index.bytes} bytes, but it holds int64 offsets"
        return
    offsets = np.frombuffer(store.get_ranges(index.name, np.array([0]), np.array([index.bytes]))[0], "<i8")
    downs = np.flatnonzero(offsets[1:] < offsets[:-1])
    if len(downs):
        yield index.name, f"has offsets that go down, first behind payload {downs[0]}"
    elif offsets[0] != 0 or offsets[-1] != data.bytes:
        yield index.name, f"covers bytes {offsets[0]} to {offsets[-1]} of {data.name}, which has {data.bytes}"


def _file(shard: ShardRecord, suffix: str) -> FileRecord | None:
    return next((file for file in shard.files if file.name.endswith(f".{suffix}")), None)


def _name(file: FileRecord | None) -> str:
    return "" if file is None else file.name


def _sizes(files: Sequence[FileRecord | None]) -> Int64s:
    return np.array([0 if file is None else file.bytes for file in files], np.int64)
