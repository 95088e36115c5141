# ruff: noqa: D102 - Store documents the methods
"""A dictionary as a store: the reference that every other store is compared with."""

import hashlib
import threading
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.errors import AlreadyExistsError, NotFoundError, StoreError
from headrace.store.store import (
    Buffer,
    ByteWriter,
    Capabilities,
    FileInfo,
    Store,
    Stored,
    byte_view,
    checked_folder,
    checked_path,
    checked_ranges,
)

__all__ = ["MemoryStore"]


@dataclass
class _Object:
    data: bytes
    version: int
    modified_s: float


class MemoryStore(Store):
    """Objects in this process's memory, with views, folders and renames; nothing survives the process.

    flat=True is what an object store is: neither views nor renames, a folder is there while something is in it, and
    stored() tells the md5.
    A pickled MemoryStore carries its content, and the copy goes its own way.
    """

    def __init__(self, *, flat: bool = False) -> None:
        self.location = "memory://"
        self.capabilities = Capabilities(view=not flat, rename=not flat, durable=False, remote=flat)
        self._lock = threading.RLock()
        self._objects: dict[str, _Object] = {}
        self._folders: set[str] = {""}
        self._versions = 0

    def __repr__(self) -> str:
        return f"MemoryStore({len(self._objects)} objects)"

    def __getstate__(self) -> dict[str, object]:
        with self._lock:
            copied = {"_objects": dict(self._objects), "_folders": set(self._folders)}
            return {name: value for name, value in self.__dict__.items() if name != "_lock"} | copied

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._lock = threading.RLock()

    def head(self, path: str) -> FileInfo:
        with self._lock:
            return _info(path, self._object(path))

    def stored(self, path: str) -> Stored:
        with self._lock:
            item = self._object(path)
            found, data = _info(path, item), item.data
        flat = not self.capabilities.rename  # object stores tell a digest, and directories none
        return Stored(found, hashlib.md5(data, usedforsecurity=False).hexdigest() if flat else "")

    def get(self, path: str) -> bytes:
        with self._lock:
            return self._object(path).data

    def get_ranges(self, path: str, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> list[memoryview]:
        view = memoryview(self.get(path))
        ranges = checked_ranges(self._named(path), starts, lengths, len(view))
        return [view[start : start + length] for start, length in ranges]

    def view(self, path: str) -> memoryview:
        if not self.capabilities.view:
            return super().view(path)  # refuses
        return memoryview(self.get(path))

    def put(self, path: str, data: Buffer) -> None:
        with self._lock:
            self._make_parents(checked_path(path))
            self._place(path, bytes(byte_view(data)))

    def put_if_absent(self, path: str, data: Buffer) -> None:
        with self._lock:
            if checked_path(path) in self._objects or path in self._folders:
                raise AlreadyExistsError(f"{self._named(path)} exists already")
            self.put(path, data)

    def delete(self, path: str) -> None:
        with self._lock:
            self._objects.pop(checked_path(path), None)

    def folders(self, folder: str = "") -> list[str]:
        prefix = _prefix(checked_folder(folder))
        with self._lock:
            if not self.capabilities.rename:
                behind = [path[len(prefix) :] for path in self._objects if path.startswith(prefix)]
                return sorted({rest.partition("/")[0] for rest in behind if "/" in rest})
            below = [name[len(prefix) :] for name in self._folders if name and name.startswith(prefix)]
        return sorted(name for name in below if "/" not in name)

    def list(self, folder: str = "", *, recursive: bool = True) -> list[FileInfo]:
        prefix = _prefix(checked_folder(folder))
        with self._lock:
            found = [_info(path, item) for path, item in self._objects.items() if path.startswith(prefix)]
        return sorted(entry for entry in found if recursive or "/" not in entry.path[len(prefix) :])

    def open_writer(self, path: str, *, append: bool = False) -> ByteWriter:
        if not self.capabilities.rename:
            return super().open_writer(path, append=append)  # refuses
        with self._lock:
            self._needs_parent(checked_path(path))
            if append:
                if path not in self._objects:
                    raise NotFoundError(f"{self._named(path)}: no such object")
                return MemoryWriter(self._named(path), self._objects[path])
            return MemoryWriter(self._named(path), self._place(path, b""))

    def rename(self, source: str, target: str) -> None:
        if not self.capabilities.rename:
            super().rename(source, target)  # refuses
        with self._lock:
            self._needs_parent(checked_path(target))
            if checked_path(source) in self._objects:
                if target in self._folders:
                    raise StoreError(f"{self._named(source)}: cannot rename to {self._named(target)}: that is a folder")
                self._objects[target] = self._objects.pop(source)
            elif source in self._folders:
                self._rename_folder(source, target)
            else:
                raise NotFoundError(f"{self._named(source)}: cannot rename to {self._named(target)}: no such object")

    def make_folder(self, folder: str) -> None:
        if not self.capabilities.rename:
            super().make_folder(folder)  # refuses
        with self._lock:
            self._make_parents(checked_folder(folder) + "/")

    def remove_folder(self, folder: str) -> None:
        if not self.capabilities.rename:
            super().remove_folder(folder)  # refuses
        prefix = checked_path(folder) + "/"
        with self._lock:
            self._objects = {path: item for path, item in self._objects.items() if not path.startswith(prefix)}
            self._folders = {name for name in self._folders if not f"{name}/".startswith(prefix)}

    def _named(self, path: str) -> str:
        return self.location + path

    def _object(self, path: str) -> _Object:
        try:
            return self._objects[checked_path(path)]
        except KeyError:
            raise NotFoundError(f"{self._named(path)}: no such object") from None

    def _place(self, path: str, data: bytes) -> _Object:
        if path in self._folders:
            raise StoreError(f"{self._named(path)}: cannot write: it is a folder")
        self._versions += 1
        placed = self._objects[path] = _Object(data, self._versions, time.time())
        return placed

    def _make_parents(self, path: str) -> None:
        if not self.capabilities.rename:
            return
        parts = path.split("/")[:-1]
        parents = ["/".join(parts[: depth + 1]) for depth in range(len(parts))]
        for parent in parents:
            if parent in self._objects:
                raise StoreError(f"{self._named(path)}: {self._named(parent)} is an object, not a folder")
        self._folders.update(parents)

    def _needs_parent(self, path: str) -> None:
        parent = path.rpartition("/")[0]
        if parent not in self._folders:
            raise NotFoundError(f"{self._named(path)}: there is no folder {self._named(parent)}")

    def _rename_folder(self, source: str, target: str) -> None:
        old, new = source + "/", target + "/"
        if target == source:
            return
        if target in self._objects or new.startswith(old):
            raise StoreError(f"{self._named(source)}: cannot rename a folder to {self._named(target)}")
        if any(path.startswith(new) for path in (*self._objects, *self._folders)):
            raise StoreError(f"{self._named(source)}: cannot rename: the folder {self._named(target)} is not empty")
        self._objects = {_moved(path, old, new): item for path, item in self._objects.items()}
        self._folders = {_moved(f"{name}/", old, new)[:-1] for name in self._folders}


class MemoryWriter:
    """An object being written: readers see what was there at the last sync() or close()."""

    def __init__(self, name: str, target: _Object) -> None:
        self._name = name
        self._target = target
        self._parts: list[bytes] = [target.data]
        self._closed = False

    def write(self, data: Buffer) -> None:
        """Append all of data."""
        self._check_open()
        self._parts.append(bytes(byte_view(data)))

    def sync(self) -> None:
        """Show everything written to readers."""
        self._check_open()
        self._target.data = b"".join(self._parts)
        self._parts = [self._target.data]

    def close(self) -> None:
        """Show everything written and end. Twice is harmless."""
        if not self._closed:
            self.sync()
            self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(f"{self._name}: this writer is closed")


def _info(path: str, item: _Object) -> FileInfo:
    return FileInfo(path, len(item.data), f"{item.version}-{len(item.data)}", item.modified_s)


def _prefix(folder: str) -> str:
    return f"{folder}/" if folder else ""


def _moved(path: str, old: str, new: str) -> str:
    return new + path[len(old) :] if path.startswith(old) else path
