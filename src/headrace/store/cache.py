# ruff: noqa: D102 - Store documents the methods
"""A node's cache: the files of remote datasets, fetched once into a local directory and mapped from there.

    remote = open_store("s3://bucket/tokens")
    storage = StreamStorage(CachedStore(remote, "/local/cache", limit_bytes="500GB"))

`docs/design/cache.md` says what is promised and why it holds. The parts: `cache_files.py` what lies in the directory,
`file_locks.py` who holds what, `copies.py` a look at a copy, `downloads.py` and `arrivals.py` how one gets there,
`eviction.py` how one goes, `prefetching.py` how they come ahead of their use.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headrace.errors import OptionError
from headrace.store import files
from headrace.store.cache_files import CacheFolder
from headrace.store.copies import Copies, Wanted, in_cache
from headrace.store.downloads import Downloads, NoRoomError
from headrace.store.eviction import limit_in_bytes
from headrace.store.maps import most_maps
from headrace.store.prefetching import Prefetcher
from headrace.store.store import (
    PIECE_BYTES,
    Buffer,
    ByteWriter,
    DatasetFile,
    FileInfo,
    Store,
    Stored,
    checked_path,
    checked_ranges,
)

__all__ = ["CachedDataset", "CachedStore"]

_FEWEST_VIEWS = 2  # a shard's data and its index


class _Through(Store):
    """Another store: whatever is asked of this one."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.location = store.location
        self.capabilities = store.capabilities

    def head(self, path: str) -> FileInfo:
        return self.store.head(path)

    def stored(self, path: str) -> Stored:
        return self.store.stored(path)

    def get(self, path: str) -> bytes:
        return self.store.get(path)

    def get_ranges(self, path: str, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> list[memoryview]:
        return self.store.get_ranges(path, starts, lengths)

    def get_ranges_of(self, found: FileInfo, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> list[memoryview]:
        return self.store.get_ranges_of(found, starts, lengths)

    def pieces(self, path: str, piece_bytes: int = PIECE_BYTES) -> Iterator[memoryview]:
        return self.store.pieces(path, piece_bytes)

    def view(self, path: str) -> memoryview:
        return self.store.view(path)

    @property
    def max_views(self) -> int:
        return self.store.max_views

    def put(self, path: str, data: Buffer) -> None:
        self.store.put(path, data)

    def put_if_absent(self, path: str, data: Buffer) -> None:
        self.store.put_if_absent(path, data)

    def upload(self, path: str, file: str | Path, *, check: Callable[[], None] | None = None) -> None:
        self.store.upload(path, file, check=check)

    def delete(self, path: str) -> None:
        self.store.delete(path)

    def folders(self, folder: str = "") -> list[str]:
        return self.store.folders(folder)

    def list(self, folder: str = "", *, recursive: bool = True) -> list[FileInfo]:
        return self.store.list(folder, recursive=recursive)

    def open_writer(self, path: str, *, append: bool = False) -> ByteWriter:
        return self.store.open_writer(path, append=append)

    def rename(self, source: str, target: str) -> None:
        self.store.rename(source, target)

    def make_folder(self, folder: str) -> None:
        self.store.make_folder(folder)

    def remove_folder(self, folder: str) -> None:
        self.store.remove_folder(folder)

    def remove_orphans(self, folder: str = "", *, of: str = "") -> None:
        self.store.remove_orphans(folder, of=of)

    def close(self) -> None:
        self.store.close()


class CachedStore(_Through):
    """A remote store whose datasets are read through a local directory, which a node's processes share.

    A dataset's file is fetched when it is first needed, by one process; it appears in the directory whole, and is
    mapped from there ever after. Everything else passes through to `store`: writing, listing, and what a dataset is
    opened by. Datasets of any number of stores may share a directory; what others keep in it is never touched.

    limit_bytes is a number, or text such as "500GB" (by 1,024); None is no limit. What was used longest ago goes first,
    and what a reader has mapped stays. Where a file cannot be kept it is fetched all the same, read and forgotten, so
    any limit works, 0 included. verify compares digests where the dataset has them; sizes always are. takeover_s is how
    long another process' download may stand still before this one fetches the file itself.

    Pickles as its configuration. OptionError for a directory that is a URL, and for a limit that is no size.
    """

    def __init__(
        self,
        store: Store,
        directory: str | Path,
        limit_bytes: int | str | None = None,
        verify: bool = True,
        *,
        takeover_s: float = 60.0,
    ) -> None:
        super().__init__(store)
        try:
            self.directory = files.absolute_root(directory)
        except ValueError as error:
            raise OptionError("directory", str(directory), f"a local directory ({error})") from None
        if not takeover_s > 0:
            raise OptionError("takeover_s", takeover_s, "a number of seconds above 0")
        self.limit_bytes = limit_in_bytes(limit_bytes)
        self.verify = verify
        self.takeover_s = takeover_s
        self._make_parts()

    def _make_parts(self) -> None:
        self._copies = Copies(CacheFolder(self.directory), verify=self.verify)
        self._downloads = Downloads(self._copies, self.limit_bytes, self.takeover_s)
        self._prefetchers: weakref.WeakSet[Prefetcher] = weakref.WeakSet()

    def __repr__(self) -> str:
        limit = "" if self.limit_bytes is None else f", limit_bytes={self.limit_bytes}"
        return f"CachedStore({self.store!r}, {str(self.directory)!r}{limit}{'' if self.verify else ', verify=False'})"

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._make_parts()

    def of_dataset(self, fingerprint: str, file: Callable[[str], DatasetFile]) -> Store:
        with contextlib.suppress(OSError):  # a directory that cannot be written may have all that is needed
            self._copies.folder.remove_dead()
        dataset = CachedDataset(self.store, fingerprint, file, self._downloads)
        self._prefetchers.add(dataset.prefetcher)
        return dataset

    def close(self) -> None:
        for prefetcher in list(self._prefetchers):
            prefetcher.stop()
        self._copies.folder.locks.close()
        self.store.close()


class CachedDataset(_Through):
    """One dataset's files: mapped from the cache, fetched into it when they are not there. Made by of_dataset().

    Other files of the store, and questions about any, pass through. get_ranges() of a file that is not in the cache
    asks the store for the ranges alone, and keeps nothing.
    """

    def __init__(
        self, store: Store, fingerprint: str, file: Callable[[str], DatasetFile], downloads: Downloads
    ) -> None:
        super().__init__(store)
        self.capabilities = store.capabilities._replace(view=True, verified=downloads.copies.verify)
        self.fingerprint = fingerprint
        self._file = file
        self._copies, self._downloads = downloads.copies, downloads
        self._known: dict[str, Wanted] = {}
        self._most_views = most_maps()
        # Threads that wait must not keep this object: when it goes, they end.
        ahead = _Ahead(weakref.ref(self))
        self.prefetcher = Prefetcher(ahead.at_hand, ahead.fetched)
        weakref.finalize(self, self.prefetcher.stop)

    def __repr__(self) -> str:
        return f"CachedDataset({self.store!r}, {self.fingerprint!r}, {str(self._copies.folder.directory)!r})"

    def is_cached(self, path: str) -> bool:
        """Whether the cache has the file, so that reading it asks nothing of the store."""
        wanted = self._wanted(path)
        return wanted is not None and self._copies.is_whole(wanted)

    def view(self, path: str) -> memoryview:
        wanted = self._wanted(path)
        if wanted is None:
            return memoryview(self.store.get(path))
        with in_cache(wanted.entry, "map"):
            view = self._copies.mapped(wanted)
        if view is None:
            view = self.prefetcher.arrived(path)
        if view is None:
            view = self._fetched(wanted)
        self.prefetcher.used(path)
        return view

    def get(self, path: str) -> bytes:
        return self.store.get(path) if self._wanted(path) is None else bytes(self.view(path))

    def pieces(self, path: str, piece_bytes: int = PIECE_BYTES) -> Iterator[memoryview]:
        if self._wanted(path) is None:
            yield from self.store.pieces(path, piece_bytes)
        else:
            view = self.view(path)
            yield from (view[begin : begin + piece_bytes] for begin in range(0, len(view), piece_bytes))

    def get_ranges(self, path: str, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> list[memoryview]:
        view = self._at_hand(path)
        return self.store.get_ranges(path, starts, lengths) if view is None else self._cut(path, view, starts, lengths)

    def get_ranges_of(self, found: FileInfo, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> list[memoryview]:
        view = self._at_hand(found.path)
        if view is None:
            return self.store.get_ranges_of(found, starts, lengths)
        return self._cut(found.path, view, starts, lengths)

    def prefetch(self, paths: Sequence[str], budget_bytes: int) -> None:
        found = [self._wanted(path) for path in paths]
        self.prefetcher.expect({w.path: w.expected.size_bytes for w in found if w is not None}, budget_bytes)

    @property
    def max_views(self) -> int:
        """As many as a process may have, and fewer once their pins leave no room in the cache. Ask again each time."""
        return self._most_views

    def close(self) -> None:
        self.prefetcher.stop()
        self._copies.folder.locks.close()
        self.store.close()

    def _wanted(self, path: str) -> Wanted | None:
        """What is known of the dataset's file; None where it is none of the dataset's."""
        found = self._known.get(path)
        if found is None:
            try:
                expected = _checkable(self._file(checked_path(path)))
            except KeyError:
                return None
            if expected.stored is not None:
                stored = expected.stored._replace(file=_checkable(expected.stored.file))
                expected = expected._replace(stored=stored)
            folder = self._copies.folder
            entry = folder.entry(self.fingerprint, path)
            stamp_s = folder.stamp_s(entry, expected)
            found = self._known[path] = Wanted(self.store, path, expected, entry, self.fingerprint, stamp_s)
        return found

    def _fetched(self, wanted: Wanted) -> memoryview:
        view, is_kept = self._downloads.fetched(wanted)
        # A reader keeps maps that it may need again. Their pins are what leaves no room, so it has to keep fewer.
        if is_kept:
            self._most_views = min(self._most_views + 1, most_maps())
        else:
            self._most_views = max(_FEWEST_VIEWS, min(self._most_views, self._copies.folder.locks.num_held) // 2)
        return view

    def _at_hand(self, path: str) -> memoryview | None:
        """The file's bytes, unless the store is to be asked for the ranges."""
        wanted = self._wanted(path)
        if wanted is None:
            return None
        with in_cache(wanted.entry, "map"):
            view = self._copies.mapped(wanted)
        return self.view(path) if view is None and wanted.expected.stored is not None else view

    def _cut(
        self, path: str, view: memoryview, starts: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> list[memoryview]:
        ranges = checked_ranges(self._known[path].where(), starts, lengths, len(view))
        return [view[start : start + length] for start, length in ranges]


class _Ahead:
    """How a prefetcher gets files, as long as the dataset is in use."""

    def __init__(self, dataset: "weakref.ref[CachedDataset]") -> None:
        self._dataset = dataset

    def at_hand(self, path: str) -> memoryview | None:
        dataset = self._dataset()
        return None if dataset is None else dataset._copies.mapped(dataset._known[path])

    def fetched(self, path: str) -> memoryview:
        dataset = self._dataset()
        if dataset is None:
            raise NoRoomError
        return dataset._downloads.fetched(dataset._known[path], may_pass=False)[0]


def _checkable(expected: DatasetFile) -> DatasetFile:
    """The same without a digest that nobody can compute."""
    return expected if expected.digest and expected.new_digest else expected._replace(digest="", new_digest=None)
