"""What every kind of storage has: a store, a format, and the dataset's commit state."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import xxhash

from headrace.datasets.asynchronous import AsyncReader
from headrace.datasets.handles import ShardReader
from headrace.datasets.ledger import Ledger
from headrace.datasets.opening import Opened, open_directory
from headrace.datasets.publication import Publication
from headrace.datasets.read_interfaces import ReadInterface
from headrace.datasets.sources import Access, Source, checked_access
from headrace.datasets.verification import Damage, damaged_files
from headrace.datasets.writer import Writer
from headrace.manifest import JsonType, Manifest, ShardRecord
from headrace.store import Store
from headrace.store.open import open_store

__all__ = ["Storage"]

F = TypeVar("F")
W = TypeVar("W", bound=Writer[Any, Any])
R = TypeVar("R", bound=ShardReader[Any])


class Storage(ABC, Generic[F, W, R]):
    """A directory and a format. Subclasses add the writer, the reader and the dataset of their kind.

    Constructing it reads and writes nothing. storage_dir is a path, a URL or a Store; read_interface may be another
    Store to read through, or one of MmapIO, PosixPreadIO and SeekIO.

    access="files" reads whole shards, mapped: local ones, or the copies of a CachedStore. "ranges" reads only what is
    asked for, one request a shard and batch. "auto" maps what is local, takes ranges of a remote store, and of one with
    a cache files, but ranges of those beyond 256 MiB.
    """

    kind: ClassVar[str]
    suffixes: ClassVar[frozenset[str]]  # the files of a shard
    optional: ClassVar[frozenset[str]] = frozenset()  # those of them that an empty shard may lack
    counted: ClassVar[str] = "elements"  # what lengths count
    example: ClassVar[str]  # a format, for messages
    takes_metadata: ClassVar[bool] = True  # the manifest has a place for it

    def __init__(
        self,
        storage_dir: str | Path | Store,
        storage_format: F | None = None,
        read_interface: Store | ReadInterface | None = None,
        access: Access = "auto",
    ) -> None:
        if not (read_interface is None or isinstance(read_interface, Store | ReadInterface)):
            raise TypeError(
                f"read_interface must be a Store, or one of MmapIO, PosixPreadIO and SeekIO, not "
                f"{type(read_interface).__name__}; leave it out: local files are memory-mapped"
            )
        if storage_format is not None and not self.takes(storage_format):
            raise TypeError(
                f"{type(self).__name__} needs a format such as {self.example}, not a {type(storage_format).__name__}"
            )
        self.storage_dir = storage_dir
        self.storage_format = storage_format
        self.access = checked_access(access)
        self.store = storage_dir if isinstance(storage_dir, Store) else open_store(storage_dir)
        if isinstance(read_interface, ReadInterface):
            read_interface = read_interface.store(self.store)
        self.reading_store = read_interface or self.store

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.store.location!r}, {self.storage_format!r})"

    @abstractmethod
    def sync_reader(self) -> R:
        """A reader of this directory; use it as a context manager."""

    def async_reader(self) -> AsyncReader[R]:
        """The same reader with awaitable methods."""
        return AsyncReader(self.sync_reader())

    def sync_writer(self, *, overwrite: bool = False, force: bool = False, tasks: Mapping[int, str] | None = None) -> W:
        """A writer; use it as a context manager.

        overwrite=True withdraws a published dataset; force=True takes a shard from a writer that is stuck for good.
        tasks names the preparation task of each shard, recorded in its receipt.
        """
        storage_format = self._format_to_write()
        return self._writer_type()(
            self.store,
            storage_format,
            self.schema(storage_format),
            self.publication(),
            overwrite=overwrite,
            force=force,
            tasks=tasks,
        )

    @staticmethod
    @abstractmethod
    def takes(storage_format: object) -> bool:
        """Whether it has the members that a format of this kind needs."""

    @abstractmethod
    def schema(self, storage_format: F) -> JsonType:
        """What the manifest says of data in this format."""

    @abstractmethod
    def _writer_type(self) -> type[W]:
        """The writer of this kind."""

    def settings_digest(self) -> str:
        """What of this storage decides the bytes it writes: kind and format."""
        storage_format = self._format_to_write()
        return f"{self.kind} {self.schema(storage_format)} {_identity(storage_format)}"

    def _format_to_write(self) -> F:
        if self.storage_format is None:
            raise ValueError(f"writing needs a storage_format, for example {self.example}")
        return self.storage_format

    def publication(self) -> Publication:
        """What publishes, withdraws and recovers this directory."""
        return Publication(self.store, self.kind, self.suffixes, self.optional)

    def publish(self, metadata: Mapping[str, Any] | None = None) -> Manifest:
        """The manifest, written to headrace.json once every shard is committed; from then on nothing changes.

        metadata is JSON of your own. Publishing twice changes nothing. UnfinishedDatasetError says what is missing.
        """
        return self.publication().publish(metadata)

    def recover(self) -> None:
        """Remove what dead writers left behind: attempts, leases and files in flight. Committed shards stay."""
        self.publication().recover()

    def record_plan(self, tasks: Sequence[str], *, overwrite: bool = False) -> None:
        """Record the task of each shard 0..n-1: until all are committed, the directory does not open."""
        self.publication().record_plan(tasks, overwrite=overwrite)

    def planned_tasks(self) -> list[str] | None:
        """The recorded task of each shard, or None."""
        plan = Ledger(self.store, self.kind).plan()
        return None if plan is None else list(plan.tasks)

    def finished_tasks(self) -> dict[int, str]:
        """shard -> task, for the shards of this generation that tasks have committed."""
        finished = Ledger(self.store, self.kind).finished()
        return {shard: receipt.task for shard, receipt in finished.items() if receipt.task is not None}

    def finished_length(self) -> int:
        """What is in the shards that finished_tasks() names."""
        return sum(receipt.length for receipt in Ledger(self.store, self.kind).finished().values())

    def is_published(self) -> bool:
        """Whether headrace.json is there."""
        return Ledger(self.store, self.kind).is_published()

    def open(self) -> Opened:
        """The directory as it is: manifest, and how far it can be trusted."""
        return open_directory(self.reading_store, self.kind, self.suffixes, self.optional)

    def source(self, opened: Opened) -> Source:
        """Where the files of what was opened are read."""
        return opened.source(self.reading_store, self.access)

    def describe(self) -> dict[str, Any]:
        """Kind, element type, counts and size, whether it is published, and what cannot be checked."""
        opened = self.open()
        manifest = opened.manifest
        unchecked = []
        if not opened.by_headrace:
            unchecked = ["element type", "digests", "whether all shards are there"]
        elif not opened.published and self.planned_tasks() is None:
            unchecked = ["whether all shards of the job are there: it is not published"]
        return {
            "kind": manifest.kind,
            "location": self.reading_store.location,
            "dtype": manifest.dtype,
            "num_shards": manifest.num_shards,
            "total_length": manifest.total_length if opened.by_headrace else None,
            "total_bytes": manifest.total_bytes,
            "published": opened.published,
            "fingerprint": self.fingerprint_of(opened),
            "metadata": manifest.metadata,
            "unchecked": unchecked,
        }

    def verify(self) -> list[Damage]:
        """Every file that disagrees with its record, with the elements it holds; [] when all is well.

        Reads everything and compares sizes and digests, and whether the files of a shard fit one another. For files
        without records that is all.
        """
        opened = open_directory(self.reading_store, self.kind, self.suffixes, self.optional, check_sizes=False)
        return damaged_files(self.reading_store, opened, self.shard_problems, self.shard_length)

    @abstractmethod
    def shard_length(self, opened: Opened, shard: ShardRecord) -> int:
        """What the shard holds, by its record or by the sizes of its files; 0 where neither tells."""

    @abstractmethod
    def shard_problems(self, opened: Opened, shard: ShardRecord) -> Iterator[tuple[str, str]]:
        """(file, what is wrong) where a shard's files do not fit one another or its length, whatever their digests."""

    def fingerprint_of(self, opened: Opened) -> str:
        """The manifest's fingerprint; a digest of names and sizes for files that have no record."""
        if opened.by_headrace:
            return opened.manifest.fingerprint
        sizes = [(file.name, file.bytes) for shard in opened.manifest.shards for file in shard.files]
        return "sizes:" + xxhash.xxh3_128_hexdigest(repr(sizes).encode())


def _identity(value: object, depth: int = 3) -> str:
    """value as text that is the same in every process and differs with its class and public settings."""
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    if value is None or isinstance(value, bool | int | float | str | bytes | np.dtype):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_identity(item, depth) for item in value)}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {_identity(item, depth)}' for key, item in value.items())}}}"
    public = {name: item for name, item in getattr(value, "__dict__", {}).items() if not name.startswith("_")}
    return f"{_identity(type(value))}({_identity(public, depth - 1) if depth else ''})"
