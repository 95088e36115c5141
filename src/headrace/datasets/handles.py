"""What readers and datasets of every kind have in common: a directory that is opened, used and closed."""

import multiprocessing.context
from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.datasets.asynchronous import AsyncReader
from headrace.errors import ClosedError, DatasetChangedError
from headrace.store import Store

__all__ = ["PREFETCH_BYTES", "OpenFiles", "OpenShards", "ReadableStorage", "ShardDataset", "ShardReader"]

PREFETCH_BYTES = 1 << 30


class OpenFiles(Protocol):
    """The files of a directory that was opened."""

    @property
    def keeps_copies(self) -> bool:
        """Whether prefetch() does anything."""
        ...

    def prefetch(self, shards: Sequence[int], budget_bytes: int) -> None:
        """Have the files of these shards fetched in this order, as far ahead of their use as budget_bytes allow."""
        ...

    def close(self) -> None:
        """Release what the store holds."""
        ...


class OpenShards(Protocol):
    """A directory that was opened for reading."""

    lengths: NDArray[np.int64]  # (num_shards,) elements, or documents, of each
    total_length: int
    fingerprint: str

    @property
    def files(self) -> OpenFiles:
        """Its files."""
        ...


O = TypeVar("O", bound=OpenShards)  # noqa: E741 - O for opened
O_co = TypeVar("O_co", bound=OpenShards, covariant=True)


class ReadableStorage(Protocol[O_co]):
    """What is asked of a storage."""

    @property
    def reading_store(self) -> Store:
        """Where the bytes are read from."""
        ...

    def open_shards(self) -> O_co:
        """The directory opened for reading."""
        ...

    def describe(self) -> dict[str, Any]:
        """What the directory holds and how far it can be trusted."""
        ...


class _Handle(Generic[O]):
    def __init__(self, storage: ReadableStorage[O]) -> None:
        self.storage = storage
        self._opened: O | None = None

    def close(self) -> None:
        """Release the maps. Twice is harmless; opened again, it sees what is there by then."""
        self._let_go()
        self.storage.reading_store.close()

    def _let_go(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.files.close()

    def open(self) -> None:
        """Read the manifest (or receipts, or sizes). NoDatasetError, UnfinishedDatasetError and others say why not."""
        self._opened = self.storage.open_shards()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ShardReader(_Handle[O]):
    """The contents of all shards, one after another. Opens at open() or in a `with` block.

    Lengths are fixed when it opens. Safe to use from several threads.
    """

    @property
    def num_shards(self) -> int:
        """How many shards there are, empty ones included."""
        return len(self._required.lengths)

    @property
    def total_length(self) -> int:
        """What all shards hold: elements, or documents."""
        return self._required.total_length

    def length(self, shard: int) -> int:
        """What one shard holds; IndexError for a number outside 0..num_shards-1."""
        lengths = self._required.lengths
        if not 0 <= shard < len(lengths):
            raise IndexError(f"shard {shard} is outside a dataset of {len(lengths)} shards")
        return int(lengths[shard])

    @property
    def _required(self) -> O:
        if self._opened is None:
            raise ClosedError(f"this {type(self).__name__} is not open; use it in a `with` block or call open()")
        return self._opened


class ShardDataset(_Handle[O], ABC):
    """Map-style access to the contents of all shards. Opens at first use; pickles as its configuration.

    A process that is spawned with it, as a loader's workers are, reads the data that was open here, or is refused with
    DatasetChangedError: what numbers mean was found out here.
    """

    _expected: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "_opened": None}
        if self._opened is not None and multiprocessing.context.get_spawning_popen() is not None:
            state["_expected"] = self._opened.fingerprint
        return state

    def open(self) -> None:
        """Open the directory now rather than at first use."""
        _ = self._required

    @abstractmethod
    def sync_reader(self) -> Self:
        """The same dataset with handles of its own; use it as a context manager."""

    def async_reader(self) -> AsyncReader[Self]:
        """The same with awaitable items."""
        return AsyncReader(self.sync_reader())

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    def shard_lengths(self) -> NDArray[np.int64]:
        """What each shard holds, shape (num_shards,), read-only: elements, or documents."""
        lengths = self._required.lengths.view()
        lengths.flags.writeable = False
        return lengths

    @property
    def shard_items(self) -> NDArray[np.int64]:
        """How many items each shard has, shape (num_shards,); together len(self)."""
        return self.shard_lengths

    @property
    def keeps_copies(self) -> bool:
        """Whether prefetch() does anything: the dataset is read through a cache."""
        return self._required.files.keeps_copies

    def prefetch(self, items: Sequence[int] | NDArray[np.int64], budget_bytes: int = PREFETCH_BYTES) -> None:
        """Expect these items to be read, in this order: a CachedStore fetches their files ahead, while others are read.

        At most budget_bytes of what was fetched wait for their use. A hint, which the next one replaces, and no items
        end: it changes nothing of what is read, and over other stores it does nothing.
        """
        if not len(items):
            if self._opened is not None:
                self._opened.files.prefetch([], 0)
            return
        opened = self._required
        if opened.files.keeps_copies and len(self):
            shards = self._shards_of(np.asarray(items, np.int64) % len(self))
            _, firsts = np.unique(shards, return_index=True)
            opened.files.prefetch(shards[np.sort(firsts)].tolist(), budget_bytes)

    def _shards_of(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        """The shards that these items are in, in their order; all inside."""
        return self._required.lengths.cumsum().searchsorted(items, "right")

    @property
    def fingerprint(self) -> str:
        """The manifest's fingerprint; for files that Headrace did not write, a digest of their sizes."""
        return self._required.fingerprint

    @property
    def settings(self) -> dict[str, int | str]:
        """What decides sample i: the data, and how it is cut."""
        return {"data": self.fingerprint}

    def describe(self) -> dict[str, Any]:
        """What the directory holds and how far it can be trusted."""
        return {**self.storage.describe(), "num_samples": len(self)}

    @property
    def _required(self) -> O:
        if self._opened is None:
            opened = self.storage.open_shards()
            if self._expected not in (None, opened.fingerprint):
                where = self.storage.reading_store.location
                raise DatasetChangedError(where, "the process that started this one has read other data")
            self._opened = opened
        return self._opened
