"""A dataset of samples, opened: its indexes in columns, its shards mapped or decompressed at first use.

    number --bisect--> shard --first use--> (data, offsets, decode), kept --> decode(data, offset[i], offset[i+1])

Everything about a file is checked when it is opened, so that reading a sample is arithmetic and one call.
"""

import os
import threading
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.datasets.samples.index import FileEntry, MdsEntry, ShardEntry, file_entries, is_digested, stored_files
from headrace.datasets.samples.sample_formats import SampleFormats
from headrace.datasets.samples.shard_index import ShardIndex
from headrace.datasets.verification import Damage
from headrace.errors import (
    CorruptShardError,
    DatasetChangedError,
    HeadraceError,
    NotFoundError,
    OptionError,
    StoreError,
)
from headrace.formats.compression import codec
from headrace.formats.digests import HASH_NAMES, Digests, digests
from headrace.formats.sample_shards import Decode, Offsets, config_problem
from headrace.store import FileInfo, Store

__all__ = ["Folder", "OpenSamples"]

_CHUNK_BYTES = 8 << 20


@dataclass(frozen=True)
class Folder:
    """One directory with an index."""

    store: Store
    index: ShardIndex
    evidence: FileInfo  # of index.json, as it was read


class _Shard(NamedTuple):
    """A shard in use."""

    data: memoryview
    offsets: memoryview  # of u32; indexing it is cheaper than indexing an array
    decode: Decode
    memory_bytes: int  # what it takes that is not mapped


class OpenSamples:
    """The samples of all shards of all folders, one after another. Safe to use from several threads, and after forks.

    decompressed_bytes bounds what is held of shards that cannot be mapped (compressed ones; one is always held).
    """

    def __init__(self, folders: list[Folder], formats: SampleFormats, *, verify: bool, decompressed_bytes: int) -> None:
        self.folders = folders
        self._formats = formats
        self._verify = verify
        self._most_bytes = decompressed_bytes
        self.lengths = np.concatenate([folder.index.samples for folder in folders])
        self._ends = np.cumsum(self.lengths)
        self._starts = self._ends - self.lengths
        self._end_list: list[int] = self._ends.tolist()  # bisect is faster than NumPy for a single number
        self._start_list: list[int] = self._starts.tolist()
        self._first_shards = np.cumsum([0, *(len(folder.index) for folder in folders)]).tolist()
        self.total_length = self._end_list[-1] if self._end_list else 0
        found = [folder.index.digest for folder in folders]
        self.fingerprint = found[0] if len(found) == 1 else xxhash.xxh3_128_hexdigest("\n".join(found).encode())
        self._most_views = min(folder.store.max_views for folder in folders) // 2  # data and offsets of a shard
        self._sample_bytes: NDArray[np.int64] | None = None
        self._reset()
        for folder in folders:  # what the caller asked for must be there, in each of them
            if len(folder.index):
                self._formats.of(folder.index.entry(0), folder.index.where)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._shards: dict[int, _Shard] = {}
        self._memory_bytes = 0
        self._process = os.getpid()  # last: another thread that finds it set takes the lock, which must be the new one

    def entry(self, shard: int) -> tuple[Folder, ShardEntry]:
        """Where a shard is, and what its index says of it."""
        number = bisect_right(self._first_shards, shard) - 1
        folder = self.folders[number]
        return folder, folder.index.entry(shard - self._first_shards[number])

    def sample(self, number: int) -> dict[str, object]:
        """One sample; IndexError outside 0..total_length-1."""
        if not 0 <= number < self.total_length:
            raise IndexError(f"sample {number} is outside a dataset of {self.total_length} samples")
        shard = bisect_right(self._end_list, number)
        data, offsets, decode, _ = self._shards.get(shard) or self._opened(shard)
        at = number - self._start_list[shard]
        try:
            return decode(data, offsets[at], offsets[at + 1])
        except ValueError as error:
            self._refuse_sample(shard, at, error)

    def samples(self, numbers: NDArray[np.int64]) -> list[dict[str, object]]:
        """These samples, all inside, in the order asked for."""
        shards = self._ends.searchsorted(numbers, "right")
        places = zip(shards.tolist(), (numbers - self._starts[shards]).tolist(), strict=True)
        found: list[dict[str, object]] = []
        add, opened = found.append, self._shards.get
        shard = at = 0
        try:
            for shard, at in places:
                data, offsets, decode, _ = opened(shard) or self._opened(shard)
                add(decode(data, offsets[at], offsets[at + 1]))
        except ValueError as error:
            if isinstance(error, HeadraceError):  # of opening the shard
                raise
            self._refuse_sample(shard, at, error)
        return found

    def outside(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of them are no sample's number; negative ones are none."""
        return numbers.view(np.uint64) >= self.total_length

    def sample_bytes(self) -> NDArray[np.int64]:
        """The stored bytes of each sample, shape (total_length,), read-only; reads the offsets of every shard, once."""
        if self._sample_bytes is None:
            # Shard by shard: what an index claims is no reason to take memory before the files were seen.
            found = [np.zeros(0, np.uint32)]
            for shard in np.flatnonzero(self.lengths).tolist():
                offsets = np.asarray((self._shards.get(shard) or self._opened(shard)).offsets)
                found.append(offsets[1:] - offsets[:-1])
            self._sample_bytes = np.concatenate(found, dtype=np.int64)
            self._sample_bytes.flags.writeable = False
        return self._sample_bytes

    def damages(self) -> Iterator[Damage]:
        """Every file that is not what the index says, and every shard whose files do not fit one another."""
        for shard in range(len(self.lengths)):
            folder, entry = self.entry(shard)
            span = (self._start_list[shard], self._end_list[shard])
            found = [
                Damage(shard, name, problem, span)
                for raw, compressed in stored_files(entry)
                for name, problem in _file_problems(folder.store, raw, compressed)
            ]
            if not found and entry.samples:  # of a shard without samples nothing is read, and it may be of 0 bytes
                try:
                    self._read(shard, decoded=not is_digested(entry))
                except CorruptShardError as error:
                    names = [file.basename for file in file_entries(entry)]
                    name = next((name for name in names if error.problem.startswith(f"{name}: ")), names[0])
                    problem = error.problem.removeprefix(f"{name}: ")
                    found = [Damage(shard, _stored_name(folder.store, entry, name), problem, span)]
            yield from found

    def _read(self, shard: int, *, decoded: bool) -> None:
        """Open the shard and, where it has no digests, decode every sample: that is all that can be checked."""
        data, offsets, decode, _ = self._load(shard, compared=True)
        at = 0
        try:
            for at in range(len(offsets) - 1 if decoded else 0):
                decode(data, offsets[at], offsets[at + 1])
        except ValueError as error:
            self._refuse_sample(shard, at, error)

    def _opened(self, shard: int) -> _Shard:
        """The shard, opened and kept as long as there is room."""
        if self._process != os.getpid():
            self._reset()  # the parent's lock may have been held as it forked
        with self._lock:
            if (kept := self._shards.get(shard)) is not None:
                return kept
            opened = self._load(shard)
            # The oldest goes first. What somebody reads just now stays alive until he lets go.
            while self._shards and (
                len(self._shards) >= self._most_views
                or (opened.memory_bytes and self._memory_bytes + opened.memory_bytes > self._most_bytes)
            ):
                self._memory_bytes -= self._shards.pop(next(iter(self._shards))).memory_bytes
            self._shards[shard] = opened
            self._memory_bytes += opened.memory_bytes
            return opened

    def _load(self, shard: int, *, compared: bool = False) -> _Shard:
        """The shard, checked; compared with the index also in what it repeats of it, as with verify=True."""
        folder, entry = self.entry(shard)
        try:
            loaded = self._checked(shard, folder, entry, compared=compared or self._verify)
        except CorruptShardError:
            self._refuse_stale(folder)  # then it is no damage that the files are others
            raise
        self._refuse_stale(folder)
        return loaded

    def _checked(self, shard: int, folder: Folder, entry: ShardEntry, *, compared: bool) -> _Shard:
        reading = self._formats.of(entry, folder.index.where)
        data, taken_bytes = self._file(shard, folder, entry.compression, entry.raw_data, entry.zip_data)
        meta = None
        if not isinstance(entry, MdsEntry):
            meta, meta_bytes = self._file(shard, folder, entry.compression, entry.raw_meta, entry.zip_meta)
            taken_bytes += meta_bytes
        name = entry.raw_data.basename if isinstance(entry, MdsEntry) else entry.raw_meta.basename
        try:
            offsets: Offsets = reading.shards.offsets(data, meta, entry.samples)
        except ValueError as error:
            raise self._damaged(shard, f"{name}: {error}") from None
        if compared:
            begin = 4 * (entry.samples + 2)
            config = data[begin : int(offsets[0])] if meta is None else meta[begin:]
            if problem := config_problem(reading.shards, config):
                raise self._damaged(shard, f"{name}: {problem}")
        return _Shard(data, offsets.data.cast("B").cast("I"), reading.decode, taken_bytes)

    def _file(
        self, shard: int, folder: Folder, compression: str | None, raw: FileEntry, compressed: FileEntry | None
    ) -> tuple[memoryview, int]:
        """The bytes of a file before compression, and how many of them are in memory of our own."""
        stored = raw if compressed is None or _is_there(folder.store, raw) else compressed
        try:
            mapped = folder.store.capabilities.view
            data = folder.store.view(stored.basename) if mapped else memoryview(folder.store.get(stored.basename))
        except NotFoundError:
            names = stored.basename if compressed is None else f"{raw.basename} and {compressed.basename}"
            raise self._damaged(shard, f"{names} {'is' if compressed is None else 'are'} missing") from None
        if len(data) != stored.bytes:
            problem = f"{stored.basename} has {len(data)} bytes, but the index says {stored.bytes}"
            raise self._damaged(shard, problem)
        if self._verify:
            self._check_digests(shard, stored, data)
        if stored is raw:
            return data, 0 if mapped else len(data)
        found = codec(compression)
        assert found is not None  # the index was checked: a compressed file has a compression
        try:
            return memoryview(found.decompress(data, raw.bytes)), raw.bytes
        except ValueError as error:
            raise self._damaged(shard, f"{stored.basename}: {error}") from None

    def _check_digests(self, shard: int, stored: FileEntry, data: memoryview) -> None:
        names = [name for name in stored.hashes if name in HASH_NAMES]
        if not names:
            where = self.entry(shard)[0].index.where
            problem = f"digests, but {where} has none of {stored.basename}; leave verify out: sizes are checked anyway"
            raise OptionError("verify", True, problem)
        for name, found in digests(names, data).items():
            if found != stored.hashes[name]:
                raise self._damaged(shard, f"{stored.basename}: {_other_digest(stored, name, found)}")

    def _refuse_stale(self, folder: Folder) -> None:
        try:
            if folder.store.head(folder.evidence.path).version == folder.evidence.version:
                return
        except NotFoundError:
            pass
        raise DatasetChangedError(folder.store.location, "its index is not the one that was opened")

    def _refuse_sample(self, shard: int, at: int, error: ValueError) -> NoReturn:
        name = self.entry(shard)[1].raw_data.basename
        number = self._start_list[shard] + at
        raise self._damaged(shard, f"{name}: sample {at} (sample {number} of the dataset): {error}") from error

    def _damaged(self, shard: int, problem: str) -> CorruptShardError:
        where = self.entry(shard)[0].store.location
        return CorruptShardError(where, shard, problem, (self._start_list[shard], self._end_list[shard]))


def _is_there(store: Store, file: FileEntry) -> bool:
    try:
        return store.head(file.basename).size_bytes == file.bytes
    except NotFoundError:
        return False


def _stored_name(store: Store, entry: ShardEntry, name: str) -> str:
    """The file that is there: of one that was decompressed it is the compressed one."""
    for raw, compressed in stored_files(entry):
        if raw.basename == name and compressed is not None and not _is_there(store, raw):
            return compressed.basename
    return name


def _file_problems(store: Store, raw: FileEntry, compressed: FileEntry | None) -> Iterator[tuple[str, str]]:
    """(file, problem) for each of the two forms that is damaged; one of them must be there."""
    absent = []
    for file in (raw, compressed):
        if file is None:
            continue
        try:
            problem = _file_problem(store, file)
        except NotFoundError:
            absent.append(file)
            continue
        except StoreError as error:
            problem = f"cannot be read: {error}"
        if problem is not None:
            yield file.basename, problem
    if len(absent) == (1 if compressed is None else 2):
        yield absent[-1].basename, "is missing"


def _file_problem(store: Store, file: FileEntry) -> str | None:
    found_bytes = store.head(file.basename).size_bytes
    if found_bytes != file.bytes:
        return f"has {found_bytes} bytes, expected {file.bytes}"
    names = [name for name in file.hashes if name in HASH_NAMES]
    computed = Digests(names)
    for begin in range(0, file.bytes if names else 0, _CHUNK_BYTES):
        count = min(_CHUNK_BYTES, file.bytes - begin)
        computed.update(store.get_ranges(file.basename, np.array([begin]), np.array([count]))[0])
    for name, found in computed.hex().items():
        if found != file.hashes[name]:
            return _other_digest(file, name, found)
    return None


def _other_digest(file: FileEntry, name: str, found: str) -> str:
    return f"has {name} {found}, expected {file.hashes[name]}: its content was changed"
