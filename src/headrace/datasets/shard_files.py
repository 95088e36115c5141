"""The bytes of a dataset's shard files, opened lazily and checked: as memory, or by ranges.

Which files are mapped is the source's to say (sources.py). Of the others only what is asked for is read, in one request
a shard; those that were to be held, because nearly all of them is needed again and again, are read whole once.
"""

import errno
import os
import threading
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.datasets.round_trips import FILES_AT_ONCE
from headrace.datasets.sources import Source
from headrace.errors import CorruptShardError, DamagedObjectError, NotFoundError, ObjectChangedError, TruncatedReadError
from headrace.store import FileInfo

__all__ = ["TOO_MANY_MAPS", "FileSets", "ShardFiles", "ShardViews"]

TOO_MANY_MAPS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # ENOMEM: more maps than a process may have

Int64s = NDArray[np.int64]
Request = tuple[int, Int64s, Int64s]  # shard, starts, lengths


class ShardFiles:
    """One file of each shard, by number. Handles belong to a process; after a fork they are made anew.

    names and sizes have one entry a shard. share is how many such sets of files one dataset maps. held_bytes is how
    much memory files that cannot be mapped may take together to be read whole and kept: none of them, where they are
    more. Safe to use from several threads.
    """

    def __init__(
        self, source: Source, names: Sequence[str], sizes_bytes: Int64s, share: int = 1, held_bytes: int = 0
    ) -> None:
        self.source = source
        self._share = share
        self.names = names
        self.sizes_bytes = sizes_bytes
        self.mapped = source.maps(sizes_bytes)  # (num_shards,) whether views() has the file, else ranges() reads it
        may_hold = source.is_remote and int(sizes_bytes[~self.mapped].sum()) <= held_bytes
        self.held = ~self.mapped & may_hold  # (num_shards,) which of these are read whole and kept
        self.mapped |= self.held
        self._versions: dict[int, str] = {}

    @property
    def max_views(self) -> int:
        """How many of these files may be mapped at a time."""
        return max(1, self.source.store.max_views // self._share)

    @property
    def views_at_once(self) -> int:
        """How many of them to ask for at a time. What a cache cannot keep is in memory, which shows only afterwards."""
        return min(self.max_views, FILES_AT_ONCE) if self.source.keeps_copies else self.max_views

    def read_by_position(self) -> None:
        """Map none of these files."""
        self.mapped = self.held = np.zeros(len(self.names), np.bool_)

    def views(self, shards: Sequence[int]) -> list[memoryview]:
        """The bytes of these shards, which are mapped or held; sizes and versions are checked."""
        mapped = [shard for shard in shards if not self.held[shard]]
        if len(mapped) < len(shards):
            self._pins([shard for shard in shards if self.held[shard]])  # all together
        views = self.source.at_once(self._view, shards, FILES_AT_ONCE)
        if mapped and not self.source.keeps_copies:
            self._check(mapped)
        for shard, view in zip(shards, views, strict=True):
            if len(view) != self.sizes_bytes[shard]:
                raise self._wrong_size(shard, len(view))
        return views

    def ranges(self, shard: int, starts: Int64s, num_bytes: Int64s) -> list[memoryview]:
        """The bytes at these places of the shard's file, in request order; neighbours are read as one."""
        return self.ranges_of([(shard, starts, num_bytes)])[0]

    def ranges_of(self, requests: Sequence[Request]) -> list[list[memoryview]]:
        """ranges() for each of these shards; one request a shard, at the same time where each is a round trip."""
        shards = [shard for shard, _, _ in requests]
        pins = self._pins(shards)
        return self.source.at_once(self._ranges, list(zip(requests, pins, strict=True)))

    def _view(self, shard: int) -> memoryview:
        name = self.names[shard]
        if self.held[shard]:
            return self.ranges(shard, np.array([0]), self.sizes_bytes[shard : shard + 1])[0]
        try:
            return self.source.store.view(name)
        except NotFoundError:
            self.source.check([shard])
            raise self._missing(shard) from None
        except ObjectChangedError:
            raise self.source.changed(name) from None
        except TruncatedReadError as error:
            self.source.check([shard])
            raise self._wrong_size(shard, error.size) from error
        except DamagedObjectError as error:
            self.source.check([shard])  # it may be another dataset's by now
            problem = f"{name} is not what was recorded: {error.problem}"
            raise CorruptShardError(self.source.location, shard, problem) from error

    def _ranges(self, pinned: tuple[Request, FileInfo]) -> list[memoryview]:
        (shard, starts, num_bytes), pin = pinned
        try:
            return self.source.read(pin, starts, num_bytes)
        except NotFoundError:
            self.source.check([shard])
            raise self._missing(shard) from None
        except TruncatedReadError as error:
            self.source.check([shard])
            raise self._wrong_size(shard, error.size) from error

    def _pins(self, shards: Sequence[int]) -> list[FileInfo]:
        names = [self.names[shard] for shard in shards]
        found = []
        for shard, pin in zip(shards, self.source.pins(names, shards), strict=True):
            found.append(self._checked(shard, pin))
        return found

    def _check(self, shards: Sequence[int]) -> None:
        """To be called after mapping: while the evidence stands no file has been replaced, so what was read is good."""
        self.source.check(shards)
        names = [self.names[shard] for shard in shards]
        for shard, info in zip(shards, self.source.look_up(names), strict=True):
            self._checked(shard, info)

    def _checked(self, shard: int, info: FileInfo | None) -> FileInfo:
        if info is None:
            raise self._missing(shard)
        if self._versions.setdefault(shard, info.version) != info.version:
            raise self.source.changed(self.names[shard])
        if info.size_bytes != self.sizes_bytes[shard]:
            raise self._wrong_size(shard, info.size_bytes)
        return info

    def _missing(self, shard: int) -> CorruptShardError:
        return CorruptShardError(self.source.location, shard, f"{self.names[shard]} is missing")

    def _wrong_size(self, shard: int, found: int) -> CorruptShardError:
        problem = f"{self.names[shard]} has {found} bytes, but {self.sizes_bytes[shard]} were recorded"
        return CorruptShardError(self.source.location, shard, problem)


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

    def held(self, shards: Collection[int]) -> dict[int, memoryview] | None:
        """What hold() gives, if it need not map any of them; else None."""
        views = self._views
        return views if self._process == os.getpid() and all(shard in views for shard in shards) else None

    def hold(self, shards: Collection[int]) -> dict[int, memoryview]:
        """A dict that has all these shards (no more than files.max_views); they stay mapped while it lives.

        It grows with later calls, until another one takes its place: let go of it then, so that files can be closed.
        """
        if (held := self.held(shards)) is not None:
            return held
        if self._process != os.getpid():
            self._reset()  # the parent's lock may have been held as it forked
        with self._lock:
            if not self.has_room(shards):
                # Start over rather than choose: what is in use keeps the old ones alive, and the rest is unmapped.
                self._views = {}
            try:
                self._map(shards)
            except OSError as error:
                if error.errno not in TOO_MANY_MAPS or not self._views:
                    raise
                self._views = {}
                self._map(shards)
            return self._views

    def _map(self, shards: Collection[int]) -> None:
        missing = [shard for shard in dict.fromkeys(shards) if shard not in self._views]
        self._views.update(zip(missing, self.files.views(missing), strict=True))


class FileSets:
    """The files of an opened dataset: one or more of each shard."""

    def __init__(self, source: Source, *sets: ShardFiles) -> None:
        self._source = source
        self._sets = sets

    @property
    def keeps_copies(self) -> bool:
        """Whether prefetch() does anything: the store is a cache."""
        return self._source.keeps_copies

    def prefetch(self, shards: Sequence[int], budget_bytes: int) -> None:
        """Have the files of these shards fetched in this order, as far ahead of their use as budget_bytes allow."""
        names = [files.names[shard] for shard in shards for files in self._sets]
        self._source.prefetch([name for name in names if name], budget_bytes)

    def close(self) -> None:
        """Release what the store holds."""
        self._source.close()
