# ruff: noqa: D102 - Store documents the methods
"""A node's cache: the files of remote datasets, fetched once into a local directory and mapped from there."""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headrace.errors import NotFoundError, OptionError, StoreError
from headrace.store import files
from headrace.store.local import LocalStore
from headrace.store.store import PIECE_BYTES, Buffer, DatasetFile, FileInfo, Store, checked_path

__all__ = ["CachedStore"]


class _Remote(Store):
    """Everything passes through to another store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.location = store.location
        self.capabilities = store.capabilities

    def head(self, path: str) -> FileInfo:
        return self.store.head(path)

    def get(self, path: str) -> bytes:
        return self.store.get(path)

    def get_ranges(self, path: str, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> list[memoryview]:
        return self.store.get_ranges(path, starts, lengths)

    def get_ranges_of(self, found: FileInfo, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> list[memoryview]:
        return self.store.get_ranges_of(found, starts, lengths)

    def pieces(self, path: str, piece_bytes: int = PIECE_BYTES) -> Iterator[memoryview]:
        return self.store.pieces(path, piece_bytes)

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

    def remove_orphans(self, folder: str = "", *, of: str = "") -> None:
        self.store.remove_orphans(folder, of=of)

    def close(self) -> None:
        self.store.close()


class CachedStore(_Remote):
    """A remote store whose dataset files are fetched once into a local directory, checked, and mapped from there."""

    def __init__(
        self, store: Store, directory: str | Path, limit_bytes: int | str | None = None, verify: bool = True
    ) -> None:
        super().__init__(store)
        try:
            self.directory = files.absolute_root(directory)
        except ValueError as error:
            raise OptionError("directory", str(directory), f"a local directory ({error})") from None
        self.limit_bytes = limit_bytes
        self.verify = verify

    def __repr__(self) -> str:
        limit = "" if self.limit_bytes is None else f", limit_bytes={self.limit_bytes!r}"
        return f"CachedStore({self.store!r}, {str(self.directory)!r}{limit}{'' if self.verify else ', verify=False'})"

    def of_dataset(self, fingerprint: str, file: Callable[[str], DatasetFile]) -> Store:
        return CachedDataset(self, fingerprint, file)


class CachedDataset(_Remote):
    """One dataset's files through a cache."""

    def __init__(self, cached: CachedStore, fingerprint: str, file: Callable[[str], DatasetFile]) -> None:
        super().__init__(cached.store)
        self.capabilities = cached.capabilities._replace(view=True)
        folder = hashlib.blake2b(fingerprint.encode(), digest_size=16).hexdigest()
        self._local = LocalStore(cached.directory / "headrace-cache" / folder, fsync=False)
        self._verify = cached.verify
        self._file = file

    def view(self, path: str) -> memoryview:
        try:
            expected = self._file(checked_path(path))
        except KeyError:
            return memoryview(self.store.get(path))
        name = hashlib.blake2b(path.encode(), digest_size=16).hexdigest()
        try:
            return self._local.view(name)
        except NotFoundError:
            self._local.put(name, self._fetched(path, expected))
            return self._local.view(name)

    def get(self, path: str) -> bytes:
        return bytes(self.view(path))

    @property
    def max_views(self) -> int:
        """As many as files of a directory."""
        return self._local.max_views

    def prefetch(self, paths: Sequence[str], budget_bytes: int) -> None:
        """Nothing yet."""

    def _fetched(self, path: str, expected: DatasetFile) -> Buffer:
        if expected.stored is not None:
            try:
                return expected.stored.decode(memoryview(self._fetched(expected.stored.name, expected.stored.file)))
            except NotFoundError:
                pass
        data = b"".join(self.store.pieces(path))
        if len(data) != expected.size_bytes:
            raise StoreError(f"{self.location}/{path} has {len(data)} bytes, but {expected.size_bytes} were recorded")
        if self._verify and expected.new_digest is not None and expected.digest:
            digest = expected.new_digest()
            digest.update(data)
            if digest.hexdigest() != expected.digest:
                raise StoreError(f"{self.location}/{path} has digest {digest.hexdigest()}, not {expected.digest}")
        return data

    def is_cached(self, path: str) -> bool:
        """Whether the file is in the cache, so that reading it costs no request."""
        return os.path.exists(self._local.root / hashlib.blake2b(path.encode(), digest_size=16).hexdigest())
