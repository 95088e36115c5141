"""A dataset of samples, opened: its indexes in columns, its shards mapped, decompressed or looked up at first use.

    number --bisect--> shard --first use--> (data, offsets, decode), kept --> decode(data, offset[i], offset[i+1])

Everything about a file is checked when it is opened, so that reading a sample is arithmetic and one call. loading.py
opens one.
"""

import os
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NoReturn

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.datasets.round_trips import FILES_AT_ONCE, at_once
from headrace.datasets.samples.damages import shard_problems, stored_name
from headrace.datasets.samples.index import ShardEntry, file_entries, is_digested
from headrace.datasets.samples.loading import Folder, LoadedShard, RangedFile, ShardFolder
from headrace.datasets.samples.sample_formats import SampleFormats
from headrace.datasets.sources import Access
from headrace.datasets.verification import Damage
from headrace.errors import CorruptShardError, HeadraceError

__all__ = ["Folder", "OpenSamples"]

Int64s = NDArray[np.int64]

_SHARDS_AT_ONCE = 256  # of which sample_bytes() holds the offsets
_OPENED_AT_ONCE = 4 * FILES_AT_ONCE


class OpenSamples:
    """The samples of all shards of all folders, one after another. Safe to use from several threads, and after forks.

    decompressed_bytes bounds what is held of shards that cannot be mapped (compressed ones; one is always held).
    """

    def __init__(
        self,
        folders: list[Folder],
        formats: SampleFormats,
        *,
        verify: bool,
        decompressed_bytes: int,
        access: Access = "auto",
    ) -> None:
        self.folders = folders
        self._folders = [ShardFolder(folder, formats, access, verify=verify) for folder in folders]
        self._opens_together = any(folder.may_range or folder.source.keeps_copies for folder in self._folders)
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
        self._sample_bytes: NDArray[np.int64] | None = None
        self._reset()
        for folder in folders:  # what the caller asked for must be there, in each of them
            if len(folder.index):
                self._formats.of(folder.index.entry(0), folder.index.where)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._turns: dict[int, threading.Lock] = {}
        self._shards: dict[int, LoadedShard] = {}
        self._mapped: set[int] = set()  # those of them that are not read by ranges
        self._memory_bytes = 0
        self._process = os.getpid()  # last: another thread that finds it set takes the lock, which must be the new one

    @property
    def files(self) -> "OpenSamples":
        """Itself, which has the files of all folders."""
        return self

    @property
    def _most_shards(self) -> int:
        """How many may be open at a time; fewer, once a cache has no room for what is mapped."""
        most = min(folder.source.store.max_views for folder in self._folders)
        return max(1, most // 2)  # data and offsets of a shard

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
        data, offsets, decode, _, _ = self._shards.get(shard) or self._opened(shard)
        at = number - self._start_list[shard]
        try:
            return decode(data, offsets[at], offsets[at + 1])
        except ValueError as error:
            self._refuse_sample(shard, at, error)

    def samples(self, numbers: NDArray[np.int64]) -> list[dict[str, object]]:
        """These samples, all inside, in the order asked for."""
        shards = self._ends.searchsorted(numbers, "right")
        if self._opens_together and not self._are_mapped(shards):
            return self._samples_together(shards, numbers - self._starts[shards])
        places = zip(shards.tolist(), (numbers - self._starts[shards]).tolist(), strict=True)
        found: list[dict[str, object]] = []
        add, opened = found.append, self._shards.get
        shard = at = 0
        try:
            for shard, at in places:
                data, offsets, decode, _, _ = opened(shard) or self._opened(shard)
                add(decode(data, offsets[at], offsets[at + 1]))
        except ValueError as error:
            if isinstance(error, HeadraceError):  # of opening the shard
                raise
            self._refuse_sample(shard, at, error)
        return found

    def _are_mapped(self, shards: Int64s) -> bool:
        """Whether all these shards are open, and none is read by ranges: then nothing is a round trip."""
        return self._mapped.issuperset(shards.tolist())

    def _samples_together(self, shards: Int64s, numbers: Int64s) -> list[dict[str, object]]:
        """The samples with these numbers in these shards; what are round trips is asked for at the same time."""
        held = self._opened_together(shards)
        ranged = [(shard, file) for shard, loaded in held.items() if (file := loaded.file) is not None]
        places = [np.flatnonzero(shards == shard) for shard, _ in ranged]
        requests = []
        for (shard, file), of_shard in zip(ranged, places, strict=True):
            offsets, ats = np.asarray(held[shard].offsets), numbers[of_shard]
            requests.append((file, offsets[ats].astype(np.int64), offsets[ats + 1].astype(np.int64)))
        pieces: dict[int, tuple[memoryview, int, int]] = {}
        for of_shard, found in zip(places, at_once(_read_ranges, requests), strict=True):
            pieces.update(zip(of_shard.tolist(), found, strict=True))
        samples: list[dict[str, object]] = [{}] * len(shards)
        for place in np.argsort(shards, kind="stable").tolist():  # by shards: some may have to make room for others
            shard, at = int(shards[place]), int(numbers[place])
            loaded = held.get(shard) or self._shards.get(shard) or self._opened(shard)
            try:
                if loaded.file is not None and place in pieces:
                    samples[place] = loaded.file.decode(*pieces[place])
                else:
                    samples[place] = loaded.decode(loaded.data, loaded.offsets[at], loaded.offsets[at + 1])
            except ValueError as error:
                if isinstance(error, HeadraceError):
                    raise
                self._refuse_sample(shard, at, error)
        return samples

    def _opened_together(self, shards: Int64s) -> dict[int, LoadedShard]:
        """These shards, opened at the same time; those that take much memory, or find no room, are left out."""
        owners = list(dict.fromkeys(shards.tolist()))
        held = {shard: loaded for shard in owners if (loaded := self._shards.get(shard)) is not None}
        found: list[int] = []
        for folder, first, numbers in self._by_folder([shard for shard in owners if shard not in held]):
            found += [first + number for number in folder.look_up(numbers)]
        for begin in range(0, len(found), _OPENED_AT_ONCE):
            if self._most_shards < len(held) + _OPENED_AT_ONCE:
                break
            part = found[begin : begin + _OPENED_AT_ONCE]
            held.update(zip(part, at_once(self._opened, part, FILES_AT_ONCE), strict=True))
        return held

    def _by_folder(self, shards: Sequence[int]) -> Iterator[tuple[ShardFolder, int, list[int]]]:
        """(folder, its first shard, numbers within it) of each folder that has some of these shards."""
        numbers: dict[int, list[int]] = {}
        for shard in shards:
            folder = bisect_right(self._first_shards, shard) - 1
            numbers.setdefault(folder, []).append(shard - self._first_shards[folder])
        return ((self._folders[folder], self._first_shards[folder], found) for folder, found in numbers.items())

    def prefetch(self, shards: Sequence[int], budget_bytes: int) -> None:
        """Have these shards fetched in this order, where copies are kept, and no others any more."""
        found = {id(folder): numbers for folder, _, numbers in self._by_folder(shards)}
        for folder in self._folders:
            folder.prefetch(found.get(id(folder), []), budget_bytes)

    @property
    def keeps_copies(self) -> bool:
        """Whether prefetch() does anything."""
        return any(folder.source.keeps_copies for folder in self._folders)

    def close(self) -> None:
        """Release what the stores hold."""
        for folder in self._folders:
            folder.source.close()

    def outside(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of them are no sample's number; negative ones are none."""
        return numbers.view(np.uint64) >= self.total_length

    def sample_bytes(self) -> NDArray[np.int64]:
        """The stored bytes of each sample, shape (total_length,), read-only; reads the offsets of every shard, once."""
        if self._sample_bytes is None:
            # Shard by shard: what an index claims is no reason to take memory before the files were seen.
            found = [np.zeros(0, np.uint32)]
            filled = np.flatnonzero(self.lengths)
            for begin in range(0, len(filled), _SHARDS_AT_ONCE):
                part = filled[begin : begin + _SHARDS_AT_ONCE]
                held = self._opened_together(part) if self._opens_together else {}
                for shard in part.tolist():
                    loaded = held.get(shard) or self._shards.get(shard) or self._opened(shard)
                    offsets = np.asarray(loaded.offsets)
                    found.append(offsets[1:] - offsets[:-1])
            self._sample_bytes = np.concatenate(found, dtype=np.int64)
            self._sample_bytes.flags.writeable = False
        return self._sample_bytes

    def damages(self) -> Iterator[Damage]:
        """Every file that is not what the index says, and every shard whose files do not fit one another."""
        count = FILES_AT_ONCE if any(folder.source.is_remote for folder in self._folders) else 1
        for first in range(0, len(self.lengths), count):
            for found in at_once(self._damages, range(first, min(first + count, len(self.lengths))), count):
                yield from found

    def _damages(self, shard: int) -> list[Damage]:
        folder, entry = self.entry(shard)
        span = (self._start_list[shard], self._end_list[shard])
        found = [Damage(shard, name, problem, span) for name, problem in shard_problems(folder.store, entry)]
        if not found and entry.samples:  # of a shard without samples nothing is read, and it may be of 0 bytes
            try:
                self._read(shard, decoded=not is_digested(entry))
            except CorruptShardError as error:
                names = [file.basename for file in file_entries(entry)]
                name = next((name for name in names if error.problem.startswith(f"{name}: ")), names[0])
                problem = error.problem.removeprefix(f"{name}: ")
                found = [Damage(shard, stored_name(folder.store, entry, name), problem, span)]
        return found

    def _read(self, shard: int, *, decoded: bool) -> None:
        """Open the shard and, where it has no digests, decode every sample: that is all that can be checked."""
        data, offsets, decode, _, _ = self._load(shard, compared=True, whole=decoded)
        at = 0
        try:
            for at in range(len(offsets) - 1 if decoded else 0):
                decode(data, offsets[at], offsets[at + 1])
        except ValueError as error:
            self._refuse_sample(shard, at, error)

    def _opened(self, shard: int) -> LoadedShard:
        """The shard, opened and kept as long as there is room."""
        if self._process != os.getpid():
            self._reset()  # the parent's lock may have been held as it forked
        if not self._opens_together:
            with self._lock:  # one by one, so that of those that are decompressed there is one at a time
                return self._shards.get(shard) or self._keep(shard, self._load(shard))
        with self._lock:
            turn = self._turns.setdefault(shard, threading.Lock())
        with turn:
            if (kept := self._shards.get(shard)) is not None:
                return kept
            opened = self._load(shard)
            with self._lock:
                return self._keep(shard, opened)

    def _keep(self, shard: int, opened: LoadedShard) -> LoadedShard:
        # The oldest goes first. What somebody reads just now stays alive until he lets go.
        while self._shards and (
            len(self._shards) >= self._most_shards
            or (opened.memory_bytes and self._memory_bytes + opened.memory_bytes > self._most_bytes)
        ):
            oldest = next(iter(self._shards))
            self._mapped.discard(oldest)
            self._memory_bytes -= self._shards.pop(oldest).memory_bytes
        self._shards[shard] = opened
        if opened.file is None:
            self._mapped.add(shard)
        self._memory_bytes += opened.memory_bytes
        return opened

    def _load(self, shard: int, *, compared: bool = False, whole: bool = False) -> LoadedShard:
        number = bisect_right(self._first_shards, shard) - 1
        within = shard - self._first_shards[number]
        return self._folders[number].load(
            within, lambda problem: self._damaged(shard, problem), compared=compared or self._verify, whole=whole
        )

    def _refuse_sample(self, shard: int, at: int, error: ValueError) -> NoReturn:
        name = self.entry(shard)[1].raw_data.basename
        number = self._start_list[shard] + at
        raise self._damaged(shard, f"{name}: sample {at} (sample {number} of the dataset): {error}") from error

    def _damaged(self, shard: int, problem: str) -> CorruptShardError:
        where = self.entry(shard)[0].store.location
        return CorruptShardError(where, shard, problem, (self._start_list[shard], self._end_list[shard]))


def _read_ranges(request: tuple[RangedFile, Int64s, Int64s]) -> list[tuple[memoryview, int, int]]:
    file, begins, ends = request
    return file.read(begins, ends)
