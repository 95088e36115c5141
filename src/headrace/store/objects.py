# ruff: noqa: D102 - Store documents the methods
"""Object stores through obstore: S3, Azure Blob Storage, and reading over HTTP.

Every method sends each request once: what fails in a way that may pass raises TemporaryStoreError, and a RetryingStore
around it decides.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import NotFoundError, ObjectChangedError
from headrace.store.object_errors import obstore_errors, store_error
from headrace.store.object_places import ObjectPlace, object_place
from headrace.store.obstore_client import obstore_client
from headrace.store.store import (
    PIECE_BYTES,
    Buffer,
    Capabilities,
    FileInfo,
    Store,
    byte_view,
    checked_folder,
    checked_path,
    checked_ranges,
)

__all__ = ["ObjectStore"]


class ObjectStore(Store):
    """The objects below a URL: s3://, az:// (abfs://), or http(s):// to read.

    Options are those of ObjectOptions. Pickles as its configuration, explicit credentials included.
    """

    def __init__(self, url: str, **options: Any) -> None:
        self.place: ObjectPlace = object_place(url, options)
        self.location = self.place.location
        web = self.place.kind == "http"
        self.capabilities = Capabilities(
            view=False,
            rename=False,
            durable=not web,
            write=not web,
            conditional=not web,
            listing=not web,
            exact_versions=self.place.kind not in ("s3", "http"),
            remote=True,
        )
        self._clients: dict[int, Any] = {}

    def __repr__(self) -> str:
        return f"ObjectStore({self.location!r})"

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_clients"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._clients = {}

    def head(self, path: str) -> FileInfo:
        with self._request(path) as (obstore, client, key):
            return self._info(obstore.head(client, key))

    def get(self, path: str) -> bytes:
        with self._request(path) as (obstore, client, key):
            return bytes(obstore.get(client, key).bytes())

    def get_ranges(self, path: str, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> list[memoryview]:
        return self.get_ranges_of(self.head(path), starts, lengths)

    def get_ranges_of(self, found: FileInfo, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> list[memoryview]:
        path = found.path
        ranges = checked_ranges(self._named(path), starts, lengths, found.size_bytes)
        with self._request(path) as (obstore, client, key):
            views = [
                memoryview(obstore.get_range(client, key, start=start, length=length)) if length else memoryview(b"")
                for start, length in ranges
            ]
        if self.head(path).version != found.version:
            raise ObjectChangedError(self._named(path))
        return views

    def stream(
        self, path: str, piece_bytes: int, start: int = 0, found: FileInfo | None = None
    ) -> tuple[FileInfo, Iterator[memoryview]]:
        """What the object is, and its bytes from start on in pieces; of found's version where that is given."""
        now = found or self.head(path)
        return now, (
            self.get_ranges_of(now, np.array([at]), np.array([min(piece_bytes, now.size_bytes - at)]))[0]
            for at in range(start, now.size_bytes, piece_bytes)
        )

    def pieces(self, path: str, piece_bytes: int = PIECE_BYTES) -> Iterator[memoryview]:
        yield from self.stream(path, piece_bytes)[1]

    def put(self, path: str, data: Buffer) -> None:
        with self._request(path) as (obstore, client, key):
            obstore.put(client, key, byte_view(data), use_multipart=False)

    def put_if_absent(self, path: str, data: Buffer) -> None:
        with self._request(path) as (obstore, client, key):
            obstore.put(client, key, byte_view(data), mode="create", use_multipart=False)

    def upload(self, path: str, file: str | Path, *, check: Callable[[], None] | None = None) -> None:
        checked_path(path)
        with open(os.fspath(file), "rb") as opened:
            data = opened.read()
        if check is not None:
            check()
        self.put(path, data)

    def delete(self, path: str) -> None:
        try:
            with self._request(path) as (obstore, client, key):
                obstore.delete(client, key)
        except NotFoundError:
            pass

    def folders(self, folder: str = "") -> list[str]:
        prefix = self.place.key(checked_folder(folder))
        with self._request(folder) as (obstore, client, _):
            found = obstore.list_with_delimiter(client, prefix or None)["common_prefixes"]
        return sorted({name.rstrip("/").rpartition("/")[2] for name in found})

    def list(self, folder: str = "", *, recursive: bool = True) -> list[FileInfo]:
        prefix = self.place.key(checked_folder(folder))
        with self._request(folder) as (obstore, client, _):
            if recursive:
                found = obstore.list(client, prefix or None, chunk_size=1000).collect()
            else:
                found = obstore.list_with_delimiter(client, prefix or None)["objects"]
        return sorted(self._info(meta) for meta in found)

    def close(self) -> None:
        self._clients.clear()

    def _named(self, path: str) -> str:
        return f"{self.location}/{path}"

    def _info(self, meta: Any) -> FileInfo:
        path = meta["path"][len(self.place.prefix) :].lstrip("/") if self.place.prefix else meta["path"]
        return FileInfo(path, meta["size"], meta["e_tag"] or "", meta["last_modified"].timestamp())

    @contextmanager
    def _request(self, path: str) -> Iterator[tuple[Any, Any, str]]:
        """obstore, this process's client, and the object's key; obstore's errors leave it as the store's."""
        key = self.place.key(path and checked_path(path))
        obstore = obstore_client()
        client = self._clients.get(os.getpid())
        if client is None:
            client = self._clients[os.getpid()] = self.place.client(obstore)
        try:
            yield obstore, client, key
        except obstore_errors(obstore) as error:
            renewable = self.place.options.credential_provider is not None
            raise store_error(error, self._named(path), renewable=renewable) from None
