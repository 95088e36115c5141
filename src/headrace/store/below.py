# ruff: noqa: D102 - Store documents the methods
"""A folder of another store, as a store of its own: a split or a part of a dataset is read as any dataset is."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headrace.store.local import LocalStore
from headrace.store.store import (
    PIECE_BYTES,
    Buffer,
    ByteWriter,
    DatasetFile,
    FileInfo,
    Store,
    Stored,
    checked_folder,
    checked_path,
)

__all__ = ["FolderStore", "directory_of"]


def directory_of(store: Store) -> Path | None:
    """The directory that the store, or the folder of one, is; None where it is none."""
    folders: list[str] = []
    while isinstance(store, FolderStore):
        folders.insert(0, store.folder)
        store = store.store
    return store.root.joinpath(*folders) if isinstance(store, LocalStore) else None


class FolderStore(Store):
    """The objects of `store` below `folder`, under their paths from there; nothing outside the folder can be reached.

    Capabilities, views and guarantees are those of `store`, and closing it closes `store`. The folder need not exist
    yet, and `""` is all of `store`. PathOutsideRootError for a folder that is no proper relative path.
    """

    def __init__(self, store: Store, folder: str) -> None:
        self.store = store
        self.folder = checked_folder(folder)
        self._prefix = f"{folder}/" if folder else ""
        above = store.location if store.location.endswith("/") or not folder else f"{store.location}/"
        self.location = above + folder
        self.capabilities = store.capabilities

    def __repr__(self) -> str:
        return f"FolderStore({self.store!r}, {self.folder!r})"

    def head(self, path: str) -> FileInfo:
        return self._from_here(self.store.head(self._full(path)))

    def stored(self, path: str) -> Stored:
        stored = self.store.stored(self._full(path))
        return stored._replace(found=self._from_here(stored.found))

    def get(self, path: str) -> bytes:
        return self.store.get(self._full(path))

    def get_ranges(self, path: str, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> list[memoryview]:
        return self.store.get_ranges(self._full(path), starts, lengths)

    def get_ranges_of(self, found: FileInfo, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> list[memoryview]:
        return self.store.get_ranges_of(found._replace(path=self._full(found.path)), starts, lengths)

    def pieces(self, path: str, piece_bytes: int = PIECE_BYTES) -> Iterator[memoryview]:
        return self.store.pieces(self._full(path), piece_bytes)

    def upload(self, path: str, file: str | Path, *, check: Callable[[], None] | None = None) -> None:
        self.store.upload(self._full(path), file, check=check)

    def of_dataset(self, fingerprint: str, file: Callable[[str], DatasetFile]) -> Store:
        def below(path: str) -> DatasetFile:
            if not path.startswith(self._prefix):
                raise KeyError(path)
            found = file(path[len(self._prefix) :])
            stored = found.stored
            return found._replace(stored=stored and stored._replace(name=self._prefix + stored.name))

        bound = self.store.of_dataset(fingerprint, below)
        return self if bound is self.store else FolderStore(bound, self.folder)

    def prefetch(self, paths: Sequence[str], budget_bytes: int) -> None:
        self.store.prefetch([self._full(path) for path in paths], budget_bytes)

    def view(self, path: str) -> memoryview:
        if not self.capabilities.view:
            return super().view(path)  # refuses
        return self.store.view(self._full(path))

    @property
    def max_views(self) -> int:
        """As many as `store` allows."""
        return self.store.max_views

    def put(self, path: str, data: Buffer) -> None:
        self.store.put(self._full(path), data)

    def put_if_absent(self, path: str, data: Buffer) -> None:
        self.store.put_if_absent(self._full(path), data)

    def delete(self, path: str) -> None:
        self.store.delete(self._full(path))

    def folders(self, folder: str = "") -> list[str]:
        return self.store.folders(self._full_folder(folder))

    def list(self, folder: str = "", *, recursive: bool = True) -> list[FileInfo]:
        found = self.store.list(self._full_folder(folder), recursive=recursive)
        return [self._from_here(entry) for entry in found]

    def open_writer(self, path: str, *, append: bool = False) -> ByteWriter:
        if not self.capabilities.rename:
            return super().open_writer(path, append=append)  # refuses
        return self.store.open_writer(self._full(path), append=append)

    def rename(self, source: str, target: str) -> None:
        if not self.capabilities.rename:
            super().rename(source, target)  # refuses
        self.store.rename(self._full(source), self._full(target))

    def make_folder(self, folder: str) -> None:
        if not self.capabilities.rename:
            super().make_folder(folder)  # refuses
        self.store.make_folder(self._full_folder(folder))

    def remove_folder(self, folder: str) -> None:
        if not self.capabilities.rename:
            super().remove_folder(folder)  # refuses
        self.store.remove_folder(self._full(folder))

    def remove_orphans(self, folder: str = "", *, of: str = "") -> None:
        self.store.remove_orphans(self._full_folder(folder), of=of)

    def close(self) -> None:
        self.store.close()

    def _full(self, path: str) -> str:
        # Checked before the prefix: the path that the caller gave is the one to name.
        return self._prefix + checked_path(path)

    def _full_folder(self, folder: str) -> str:
        return self._prefix + checked_folder(folder) if folder else self.folder

    def _from_here(self, entry: FileInfo) -> FileInfo:
        return entry._replace(path=entry.path[len(self._prefix) :])
