"""SampleDataset: the samples of MDS, JSON, CSV, TSV and XSV shards, map-style."""

import operator
import re
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from headrace.datasets.handles import ShardDataset
from headrace.datasets.item_numbers import item_numbers
from headrace.datasets.neighbours import parts_in, samples_in, shards_in
from headrace.datasets.round_trips import FILES_AT_ONCE, at_once
from headrace.datasets.samples.index import INDEX, is_digested
from headrace.datasets.samples.opened import Folder, OpenSamples
from headrace.datasets.samples.options import Place, opened_place
from headrace.datasets.samples.parts import below
from headrace.datasets.samples.sample_formats import SampleFormats, columns_of
from headrace.datasets.samples.shard_index import ShardIndex
from headrace.datasets.sources import Access, checked_access, read_whole
from headrace.datasets.verification import Damage
from headrace.errors import DatasetChangedError, NoDatasetError, OptionError, UnfinishedDatasetError
from headrace.formats.mds.encodings import Encoding
from headrace.store import FolderStore, LocalStore, Store

__all__ = ["LocalDataset", "SampleDataset", "opened_folder"]

_NO_DIGEST = re.compile(rb'"hashes"\s*:\s*\{\s*\}')
_READS = 100  # of an index that appears and goes away again


class SampleDataset(ShardDataset[OpenSamples]):
    """Samples as dicts, by number. Opens at first use; pickles as its configuration; safe with threads and forks.

    directory is a path, a URL or a Store with an index.json, or a sequence of these, one after the other; split names a
    folder in each. Raw shards are mapped; compressed ones are decompressed into memory, of which at most
    decompressed_bytes (or one shard) are held, the oldest let go first.

    access="files" reads whole shards: local ones, or the copies of a CachedStore, which decompresses them once for all
    who read them. "ranges" reads of raw shards their offsets and the samples asked for, one request a shard and batch.
    "auto" maps what is local, takes ranges of a remote store, and of one with a cache files, but ranges of raw ones
    beyond 256 MiB. What is compressed, or to be verified, is never read by ranges.

    columns decodes only some. encodings are Encodings of your own, found by their names. allow_unsafe_types=True
    permits `pkl`, which can run any code. verify=True compares each file with its digests when it is opened; without it
    sizes and offsets are checked.

    What comes out owns its memory. NoDatasetError, UnfinishedDatasetError, ManifestError at opening; CorruptShardError,
    with shard and sample, where a file is not what the index says; DatasetChangedError where the index was replaced.
    """

    same_columns: ClassVar[bool] = True  # else whoever makes batches must know what to do with samples that differ

    def __init__(
        self,
        directory: Place | Sequence[Place],
        split: str | None = None,
        allow_unsafe_types: bool = False,
        *,
        columns: Sequence[str] | None = None,
        encodings: Sequence[Encoding] = (),
        verify: bool = False,
        decompressed_bytes: int = 1 << 28,
        access: str = "auto",
    ) -> None:
        places = [directory] if isinstance(directory, Place) else directory
        if not isinstance(places, Sequence) or not places:
            raise OptionError("directory", directory, "a directory, a Store, or a list of at least one of these")
        if decompressed_bytes < 0:
            raise OptionError("decompressed_bytes", decompressed_bytes, "a number of bytes of at least 0")
        self._columns = None if columns is None else tuple(columns)
        if isinstance(columns, str) or self._columns == ():
            raise OptionError("columns", columns, "a list of column names, or None for all")
        formats = SampleFormats(
            self._columns,
            tuple(encodings),
            allow_unsafe_types=allow_unsafe_types,
            same_columns=self.same_columns,
        )
        stores = [_split_store(place, split) for place in places]
        reading = _Reading(verify, decompressed_bytes, checked_access(access))
        super().__init__(_SampleFolders(stores, formats, reading))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self._folders.locations))})"

    def sync_reader(self) -> Self:
        """The same dataset with handles of its own; use it as a context manager."""
        copied = type(self).__new__(type(self))
        copied.__dict__.update(self.__getstate__())
        return copied

    def close(self) -> None:
        """Release the maps. Twice is harmless; opened again, it sees what is there by then."""
        self._let_go()
        for store in self._folders.stores:
            store.close()

    def __len__(self) -> int:
        return self._required.total_length

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, index: Any) -> Any:
        """Sample `index`, negative from the end; a slice, list or array of numbers gives a list of samples.

        IndexError outside.
        """
        opened = self._opened or self._required
        if type(index) is int and index >= 0:
            return opened.sample(index)
        if isinstance(index, slice):
            return opened.samples(np.arange(*index.indices(opened.total_length), dtype=np.int64))
        if isinstance(index, list | np.ndarray) and np.ndim(index) == 1:
            return self.__getitems__(index)
        number = operator.index(index)
        return opened.sample(number + opened.total_length if -opened.total_length <= number < 0 else number)

    def __getitems__(self, items: Sequence[int] | NDArray[np.int64]) -> list[dict[str, Any]]:
        """The samples of a batch, in request order; repeats are allowed, negative numbers count from the end."""
        opened = self._opened or self._required
        numbers = item_numbers(items, "sample")
        outside = opened.outside(numbers)
        if np.count_nonzero(outside):  # faster than any()
            total = opened.total_length
            numbers = np.where(numbers < 0, np.maximum(numbers, -total - 1) + total, numbers)
            outside = opened.outside(numbers)
            if outside.any():
                raise IndexError(f"sample {items[int(outside.argmax())]} is outside a dataset of {total} samples")
        return opened.samples(numbers)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The stored bytes of each sample, shape (len,), read-only. Reads the offsets of all shards, once.

        Those of compressed MDS shards are inside, so that these have to be decompressed.
        """
        return self._required.sample_bytes()

    @property
    def length_unit(self) -> str:
        """What lengths count: "bytes" as they are stored."""
        return "bytes"

    @property
    def columns(self) -> dict[str, str]:
        """Name and encoding of each column of the first shard, whether it is decoded or not; {} without any shard."""
        opened = self._required
        return columns_of(opened.entry(0)[1]) if len(opened.lengths) else {}

    @property
    def shards_per_folder(self) -> NDArray[np.int64]:
        """How many shards each folder has, shape (num_folders,); together len(shard_items)."""
        return np.array([len(folder.index) for folder in self._required.folders], np.int64)

    @property
    def samples_per_folder(self) -> NDArray[np.int64]:
        """How many samples each folder has, shape (num_folders,); together len(self)."""
        return np.array([folder.index.num_samples for folder in self._required.folders], np.int64)

    @property
    def digest_names(self) -> list[frozenset[str] | None]:
        """Of each folder the names of the digests that all its files have; None of one without any file."""
        return [folder.index.digest_names for folder in self._required.folders]

    @property
    def settings(self) -> dict[str, int | str]:
        """What decides sample i: the data, and which columns are read."""
        data: dict[str, int | str] = {"data": self.fingerprint}
        return data if self._columns is None else data | {"columns": ",".join(sorted(set(self._columns)))}

    def describe(self) -> dict[str, Any]:
        """What the directory holds and how far it can be trusted."""
        return {**self._folders.described(self._required), "num_samples": len(self)}

    def verify(self) -> list[Damage]:
        """Every file that disagrees with the index, with the samples of its shard; [] when all is well.

        Reads everything, and compares sizes, offsets and digests; where there are none, it decodes every sample.
        """
        return list(self._required.damages())

    @property
    def _folders(self) -> "_SampleFolders":
        assert isinstance(self.storage, _SampleFolders)
        return self.storage


class LocalDataset(SampleDataset):
    """SampleDataset under Streaming's name, with its first parameter and its attributes."""

    def __init__(
        self, local: Place | Sequence[Place], split: str | None = None, allow_unsafe_types: bool = False, **options: Any
    ) -> None:
        super().__init__(local, split, allow_unsafe_types, **options)

    def get_item(self, sample_id: int) -> dict[str, Any]:
        """self[sample_id]."""
        sample: dict[str, Any] = self[sample_id]
        return sample

    @property
    def num_samples(self) -> int:
        """len(self)."""
        return len(self)

    @property
    def size(self) -> int:
        """len(self)."""
        return len(self)


class _Reading(NamedTuple):
    """How OpenSamples reads."""

    verify: bool
    decompressed_bytes: int
    access: Access


class _SampleFolders:
    """The directories of a dataset, and how to read them: its configuration."""

    def __init__(self, stores: list[Store], formats: SampleFormats, reading: "_Reading") -> None:
        self.stores = stores
        self._formats = formats
        self._reading = reading

    @property
    def locations(self) -> list[str]:
        return [store.location for store in self.stores]

    @property
    def reading_store(self) -> Store:
        return self.stores[0]

    def open_shards(self) -> OpenSamples:
        if any(store.capabilities.remote for store in self.stores):
            folders = at_once(opened_folder, self.stores, FILES_AT_ONCE)
        else:
            folders = [opened_folder(store) for store in self.stores]
        return OpenSamples(folders, self._formats, **self._reading._asdict())

    def describe(self) -> dict[str, Any]:
        return self.described(self.open_shards())

    def described(self, opened: OpenSamples) -> dict[str, Any]:
        entry = opened.entry(0)[1] if len(opened.lengths) else None
        return {
            "kind": "samples",
            "location": self.locations[0] if len(self.stores) == 1 else self.locations,
            "format": entry.format if entry else None,
            "columns": columns_of(entry) if entry else {},
            "compression": entry.compression if entry else None,
            "hashes": list(entry.hashes) if entry else [],
            "num_shards": len(opened.lengths),
            "total_length": opened.total_length,
            "total_bytes": sum(folder.index.stored_bytes for folder in opened.folders),
            "published": True,
            "fingerprint": opened.fingerprint,
            "metadata": {},
            "unchecked": _unchecked(opened),
        }


def _unchecked(opened: OpenSamples) -> list[str]:
    num_undigested = sum(folder.index.num_undigested for folder in opened.folders)
    if not num_undigested:
        return []
    num_shards = len(opened.lengths)
    return ["digests" if num_undigested == num_shards else f"digests of {num_undigested} of {num_shards} shards"]


def _split_store(place: Place, split: str | None) -> Store:
    store = opened_place(place, "directory")
    if not split:
        return store
    if type(store) is LocalStore and not isinstance(place, Store):
        FolderStore(store, split)  # refuses what leaves the directory
        return LocalStore(store.root / split)
    return FolderStore(store, split)


def opened_folder(store: Store) -> Folder:
    """The index there, read; NoDatasetError, UnfinishedDatasetError or ManifestError say why there is none."""
    where = below(store.location, INDEX)
    for _ in range(_READS):
        if (found := read_whole(store, INDEX)) is not None:
            raw, info = found
            index = ShardIndex(raw, where)
            return Folder(store, index, info, has_digests=_has_digests(index, raw))
        _refuse_without_index(store)
    raise DatasetChangedError(store.location, "its index is replaced again and again")


def _has_digests(index: ShardIndex, raw: bytes) -> bool:
    """Whether every file has a digest, as far as a glance tells: False where some may have none."""
    return len(index) > 0 and _NO_DIGEST.search(raw) is None and is_digested(index.entry(0))


def _refuse_without_index(store: Store) -> None:
    """Says why there is nothing to open; returns where the index appeared just now."""
    if not store.capabilities.listing:
        raise NoDatasetError(store.location, f"there is no {INDEX}, so no samples are there")
    found = samples_in(store)
    if found == INDEX:
        return
    if found is not None:
        raise UnfinishedDatasetError(
            store.location,
            f"it has no {INDEX} yet",
            "wait for its writer, or run the job again (a writer goes on with resume=True, prepare() by itself)",
        )
    if (other := shards_in(store)) is not None:
        problem = f"holds a dataset of another kind ({other} is there), not of samples; open it with open_storage()"
        raise NoDatasetError(store.location, problem)
    if (parts := parts_in(store)) is not None:
        raise NoDatasetError(store.location, f"has no {INDEX}, but {parts}")
    is_there = not isinstance(store, LocalStore) or store.root.is_dir()
    raise NoDatasetError(
        store.location, f"{'has no ' + INDEX if is_there else 'is no directory'}, so no samples are there"
    )
