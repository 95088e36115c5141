"""One shard of samples, made ready to be read: checked, so that reading a sample is arithmetic and one call.

a local file        mapped; a compressed one is decompressed into memory
through a cache     mapped; a compressed one is decompressed once, by the cache, for all who read it
a remote store      a raw one by ranges: its offsets now, later the samples; a compressed one whole into memory
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.datasets.samples.damages import is_there, other_digest
from headrace.datasets.samples.index import FileEntry, MdsEntry, ShardEntry, stored_files
from headrace.datasets.samples.sample_formats import SampleFormats, ShardReading
from headrace.datasets.samples.shard_index import ShardIndex
from headrace.datasets.sources import Access, Source
from headrace.errors import (
    CorruptShardError,
    DamagedObjectError,
    NotFoundError,
    ObjectChangedError,
    OptionError,
    TruncatedReadError,
    UnsupportedOperationError,
)
from headrace.formats.compression import Codec, codec
from headrace.formats.digests import HASH_NAMES, digests, new_digest
from headrace.formats.sample_shards import Decode, Offsets, config_problem
from headrace.store import DatasetFile, FileInfo, Store, StoredForm

__all__ = ["Folder", "LoadedShard", "RangedFile", "ShardFolder"]

Int64s = NDArray[np.int64]
Damaged = Callable[[str], CorruptShardError]  # the error that says what is wrong with a shard

_FAST_FIRST = ("xxh3_128", "xxh128", "xxh3_64", "xxh64", "xxh32", "sha1", "blake2b", "sha256", "md5")


@dataclass(frozen=True)
class Folder:
    """One directory with an index."""

    store: Store
    index: ShardIndex
    evidence: FileInfo  # of index.json, as it was read
    has_digests: bool  # of all files; without them the index of other data may be the same

    @property
    def content(self) -> str:
        """Another text where anything else is in the files."""
        if self.has_digests:
            return self.index.digest
        # Indexes of two places may be the same bytes, of the same second, and with versions that are digests of them.
        written = f" {self.evidence.version} {self.evidence.modified_s} {self.store.location}"
        return f"{self.index.digest}{written}"


class RangedFile:
    """A data file of which samples are read by ranges."""

    def __init__(self, source: Source, pin: FileInfo, decode: Decode, ahead_bytes: int) -> None:
        self.decode = decode
        self._source = source
        self._pin = pin
        self._ahead = ahead_bytes  # of a sample, that decoding looks at

    def read(self, begins: Int64s, ends: Int64s) -> list[tuple[memoryview, int, int]]:
        """What decode() takes, for samples from begins to ends (exclusive): one request."""
        aheads = np.minimum(begins, self._ahead)
        found = _read(self._source, self._pin, begins - aheads, ends - begins + aheads)
        return [(data, ahead, len(data)) for data, ahead in zip(found, aheads.tolist(), strict=True)]

    def sample(self, data: memoryview, begin: int, end: int) -> dict[str, object]:
        """One sample; takes the place of decode, which has all data at hand."""
        ((found, begin, end),) = self.read(np.array([begin]), np.array([end]))
        return self.decode(found, begin, end)


class LoadedShard(NamedTuple):
    """A shard in use."""

    data: memoryview
    offsets: memoryview  # of u32; indexing it is cheaper than indexing an array
    decode: Decode
    memory_bytes: int  # what it takes that is not mapped
    file: RangedFile | None  # where data is none of the file's


class ShardFolder:
    """The shards of one folder. Safe to use from several threads."""

    def __init__(self, folder: Folder, formats: SampleFormats, access: Access, *, verify: bool) -> None:
        self.folder = folder
        self._formats = formats
        self._files: dict[str, tuple[int, DatasetFile]] = {}  # of shards that were asked for; others take no memory
        self._names: dict[int, tuple[str, ...]] = {}  # of those that were expected: they are so again and again
        self.source = Source(
            folder.store,
            folder.content,
            self._files.__getitem__,
            ((folder.evidence,),),
            access,
            by_time=not folder.has_digests and folder.store.capabilities.remote,
            keeps_by_time=True,
        )
        self._verify = verify
        self._is_plain = self.source.is_remote and not self.source.keeps_copies
        self._asked_for_ranges = access == "ranges"

    @property
    def may_range(self) -> bool:
        """Whether samples may be read by ranges: never with verify, which compares whole files."""
        return not self._verify and (self.source.is_remote or self._asked_for_ranges)

    def look_up(self, numbers: list[int]) -> list[int]:
        """Look these shards up all together; returns those that may be opened at the same time, as they take little
        memory."""
        entries = [self._known(number) for number in numbers]
        if self._is_plain:
            forms = [found for entry in entries for found in stored_files(entry)]
            pins = self.source.pins([(compressed or raw).basename for raw, compressed in forms], (0,))
            absent = [raw.basename for (raw, _), pin in zip(forms, pins, strict=True) if pin is None]
            self.source.pins(absent, (0,))  # of what was compressed the other form may be there
        little = [self.source.keeps_copies or self._is_ranged(entry) for entry in entries]
        return [number for number, is_little in zip(numbers, little, strict=True) if is_little]

    def prefetch(self, numbers: list[int], budget_bytes: int) -> None:
        """Have the files of these shards fetched in this order, where copies are kept."""
        if self.source.keeps_copies:
            known = self._names
            names = [name for number in numbers for name in known.get(number) or self._names_of(number)]
            self.source.prefetch(names, budget_bytes)

    def load(self, number: int, damaged: Damaged, *, compared: bool, whole: bool = False) -> LoadedShard:
        """The shard with this number in the folder's index; compared with the index also in what it repeats of it.

        whole=True reads no ranges. CorruptShardError where it is not what the index says; DatasetChangedError where
        that is so because the index was replaced.
        """
        try:
            loaded = self._loaded(self._known(number), damaged, compared=compared, whole=whole)
        except CorruptShardError:
            self.source.check((0,))  # then it is no damage that the files are others
            raise
        if not self.source.is_remote:
            self.source.check((0,))
        return loaded

    def _names_of(self, number: int) -> tuple[str, ...]:
        names = self._names[number] = tuple(raw.basename for raw, _ in stored_files(self._known(number)))
        return names

    def _known(self, number: int) -> ShardEntry:
        entry = self.folder.index.entry(number)
        if self.source.keeps_copies:
            for raw, compressed in stored_files(entry):
                self._files.setdefault(raw.basename, (0, _described(raw, compressed, entry.compression)))
                if compressed is not None:
                    self._files.setdefault(compressed.basename, (0, _described(compressed)))
        return entry

    def _loaded(self, entry: ShardEntry, damaged: Damaged, *, compared: bool, whole: bool) -> LoadedShard:
        reading = self._formats.of(entry, self.folder.index.where)
        if not whole and self._is_ranged(entry):
            return self._ranged(entry, reading, damaged, compared=compared)
        data, data_bytes = self._file(entry.compression, entry.raw_data, entry.zip_data, damaged)
        meta, meta_bytes = self._meta(entry, damaged)
        offsets = _offsets(entry, reading, data, meta, damaged)
        if compared:
            config = data[4 * (entry.samples + 2) : int(offsets[0])] if meta is None else _behind_table(entry, meta)
            _check_config(entry, reading, config, damaged)
        return LoadedShard(data, offsets.data.cast("B").cast("I"), reading.decode, data_bytes + meta_bytes, None)

    def _meta(self, entry: ShardEntry, damaged: Damaged) -> tuple[memoryview | None, int]:
        """The file of offsets, where there is one, and how much of it is in memory of our own."""
        if isinstance(entry, MdsEntry):
            return None, 0
        return self._file(entry.compression, entry.raw_meta, entry.zip_meta, damaged)

    def _ranged(self, entry: ShardEntry, reading: ShardReading, damaged: Damaged, *, compared: bool) -> LoadedShard:
        """A raw data file of which only the beginning is read now: what lies before the first sample."""
        pin = self._pinned(entry.raw_data, damaged)
        meta, meta_bytes = self._meta(entry, damaged)
        table_bytes = 4 * (entry.samples + 2)
        head_bytes = table_bytes if meta is None else int.from_bytes(meta[4:8], "little")
        head = self._bytes(pin, 0, min(head_bytes, pin.size_bytes))
        offsets = _offsets(entry, reading, head, meta, damaged)
        if compared:
            first = int(offsets[0])
            config = self._bytes(pin, table_bytes, first) if meta is None else _behind_table(entry, meta)
            _check_config(entry, reading, config, damaged)
        ahead_bytes = 0 if isinstance(entry, MdsEntry) else len(entry.newline.encode())
        file = RangedFile(self.source, pin, reading.decode, ahead_bytes)
        held = memoryview(offsets.tobytes()).cast("I")
        return LoadedShard(memoryview(b""), held, file.sample, meta_bytes + held.nbytes, file)

    def _is_ranged(self, entry: ShardEntry) -> bool:
        raw, compressed = entry.raw_data, entry.zip_data
        if not self.may_range or (compressed is not None and self.source.keeps_copies):
            return False  # what a cache decompresses is a file
        mapped = bool(self.source.maps(np.array([raw.bytes]))[0])
        return (self._asked_for_ranges or not mapped) and self._stored(raw, compressed) is raw

    def _stored(self, raw: FileEntry, compressed: FileEntry | None) -> FileEntry:
        """The form that is read: of a compressed file the other one may be absent."""
        if compressed is None or self.source.keeps_copies:
            return raw
        if self._is_plain:  # the smaller one
            return compressed if self.source.pins([compressed.basename], (0,))[0] is not None else raw
        return raw if is_there(self.folder.store, raw) else compressed

    def _file(
        self, compression: str | None, raw: FileEntry, compressed: FileEntry | None, damaged: Damaged
    ) -> tuple[memoryview, int]:
        """The bytes of a file before compression, and how many of them are in memory of our own."""
        stored, store = self._stored(raw, compressed), self.source.store
        mapped = store.capabilities.view
        try:
            if mapped:
                data = store.view(stored.basename)
            elif self._is_plain:
                data = _whole(self.source, self._pinned(stored, damaged))
            else:
                data = memoryview(store.get(stored.basename))
        except NotFoundError:
            names = stored.basename if compressed is None else f"{raw.basename} and {compressed.basename}"
            raise damaged(f"{names} {'is' if compressed is None else 'are'} missing") from None
        except ObjectChangedError:
            raise self.source.changed(stored.basename) from None
        except TruncatedReadError as error:
            raise damaged(f"{stored.basename} has {error.size} bytes, but the index says {stored.bytes}") from error
        except DamagedObjectError as error:
            at_fault = compressed if compressed is not None and error.path.endswith(compressed.basename) else stored
            raise damaged(f"{at_fault.basename}: {error.problem}") from error
        if len(data) != stored.bytes:
            raise damaged(f"{stored.basename} has {len(data)} bytes, but the index says {stored.bytes}")
        if self._verify:
            self._check_digests(stored, compressed, data, damaged)
        if stored is raw:
            return data, 0 if mapped else len(data)
        found = codec(compression)
        assert found is not None  # the index was checked: a compressed file has a compression
        try:
            return memoryview(found.decompress(data, raw.bytes)), raw.bytes
        except ValueError as error:
            raise damaged(f"{stored.basename}: {error}") from None

    def _pinned(self, file: FileEntry, damaged: Damaged) -> FileInfo:
        pin = self.source.pins([file.basename], (0,))[0]
        if pin is None:
            raise damaged(f"{file.basename} is missing")
        if pin.size_bytes != file.bytes:
            raise damaged(f"{file.basename} has {pin.size_bytes} bytes, but the index says {file.bytes}")
        return pin

    def _bytes(self, pin: FileInfo, begin: int, end: int) -> memoryview:
        return _read(self.source, pin, np.array([begin]), np.array([end - begin]))[0]

    def _check_digests(
        self, stored: FileEntry, compressed: FileEntry | None, data: memoryview, damaged: Damaged
    ) -> None:
        names = [name for name in stored.hashes if name in HASH_NAMES]
        if not names:
            if self.source.keeps_copies and compressed is not None and _digest(compressed):
                if not self.source.store.capabilities.verified:
                    raise OptionError("verify", True, "a CachedStore that compares digests, too: one with verify=True")
                return  # the cache has compared it, before it decompressed the file
            where = self.folder.index.where
            problem = f"digests, but {where} has none of {stored.basename}; leave verify out: sizes are checked anyway"
            raise OptionError("verify", True, problem)
        for name, found in digests(names, data).items():
            if found != stored.hashes[name]:
                raise damaged(f"{stored.basename}: {other_digest(stored, name, found)}")


def _read(source: Source, pin: FileInfo, starts: Int64s, lengths: Int64s) -> list[memoryview]:
    try:
        return source.read(pin, starts, lengths)
    except (NotFoundError, TruncatedReadError):  # it was there when it was looked up, and long enough
        raise source.changed(pin.path) from None


def _whole(source: Source, pin: FileInfo) -> memoryview:
    try:
        return _read(source, pin, np.array([0]), np.array([pin.size_bytes]))[0]
    except UnsupportedOperationError:  # of a web server that knows no ranges
        whole = memoryview(source.store.get(pin.path))
        (found,) = source.look_up([pin.path])
        if found is None or found.version != pin.version:  # looked at after reading, so that what was read is good
            raise source.changed(pin.path) from None
        return whole


def _offsets(
    entry: ShardEntry, reading: ShardReading, data: memoryview, meta: memoryview | None, damaged: Damaged
) -> Offsets:
    try:
        return reading.shards.offsets(data, meta, entry.samples, entry.raw_data.bytes)
    except ValueError as error:
        raise damaged(f"{_table_name(entry)}: {error}") from None


def _check_config(entry: ShardEntry, reading: ShardReading, config: memoryview, damaged: Damaged) -> None:
    if problem := config_problem(reading.shards, config):
        raise damaged(f"{_table_name(entry)}: {problem}")


def _behind_table(entry: ShardEntry, meta: memoryview) -> memoryview:
    return meta[4 * (entry.samples + 2) :]


def _table_name(entry: ShardEntry) -> str:
    """The file with the offsets."""
    return entry.raw_data.basename if isinstance(entry, MdsEntry) else entry.raw_meta.basename


def _described(file: FileEntry, compressed: FileEntry | None = None, compression: str | None = None) -> DatasetFile:
    name = _digest(file)
    known = DatasetFile(file.bytes, file.hashes[name], partial(new_digest, name)) if name else DatasetFile(file.bytes)
    if compressed is None or (found := codec(compression)) is None:
        return known
    return known._replace(
        stored=StoredForm(compressed.basename, _described(compressed), partial(_decompressed, found, file.bytes))
    )


def _decompressed(codec: Codec, size_bytes: int, data: memoryview) -> bytes:
    return codec.decompress(data, size_bytes)


def _digest(file: FileEntry) -> str:
    """The name of the digest to compare: of those that are known the one that is taken fastest; "" for none."""
    return next((name for name in (*_FAST_FIRST, *HASH_NAMES) if name in file.hashes), "")
