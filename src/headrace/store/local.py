# ruff: noqa: D102 - Store documents the methods
"""A directory as a store.

What `put` acknowledged survives a power cut: the bytes go to a hidden file beside the target, are synced, renamed over
the target, and then the directory is synced, since a rename lives in the directory.
"""

import contextlib
import os
import stat
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headrace.errors import AlreadyExistsError, NotFoundError
from headrace.store import files
from headrace.store.descriptors import Descriptors, descriptors_together, open_to_read
from headrace.store.files import named
from headrace.store.maps import map_file, most_maps
from headrace.store.store import (
    Buffer,
    ByteWriter,
    Capabilities,
    FileInfo,
    Store,
    byte_view,
    checked_folder,
    checked_path,
    checked_ranges,
)

__all__ = ["LocalStore"]


class LocalStore(Store):
    """The files below one directory, read by map or by position, and written whole and durably.

    root may hold `~`, be relative (to the current directory at construction) or a `file://` URL; other URLs are refused
    with ValueError. Nothing is read or created before the first use. fsync=False trades durability for speed: after a
    crash of the process all is as promised, after a power cut it may not be. mapped=False offers no view(), so that
    readers read by position. max_open_files bounds the descriptors that get_ranges keeps, and the views that readers
    should keep; by default all stores of a process share a quarter of its soft limit, and none has above 1,024. Files
    whose name is `.*.tmp` are in flight and not listed; a name with a backslash cannot be addressed and is
    not listed either.
    """

    def __init__(
        self, root: str | Path, *, fsync: bool = True, mapped: bool = True, max_open_files: int | None = None
    ) -> None:
        if max_open_files is not None and max_open_files < 1:
            raise ValueError(f"max_open_files={max_open_files} must be at least 1")
        self.root = files.absolute_root(root)
        self.location = str(self.root)
        self.capabilities = Capabilities(view=mapped, rename=True, durable=fsync)
        self._fsync = fsync
        self._max_open_files = max_open_files
        self._descriptors: dict[int, Descriptors] = {}  # process id -> its own

    def __repr__(self) -> str:
        limit = "" if self._max_open_files is None else f", max_open_files={self._max_open_files}"
        options = ("" if self._fsync else ", fsync=False") + ("" if self.capabilities.view else ", mapped=False")
        return f"LocalStore({self.location!r}{options}{limit})"

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_descriptors": {}}

    def head(self, path: str) -> FileInfo:
        full = self._full(path)
        with named(full, "look up"):
            status = os.stat(full)
            if not stat.S_ISREG(status.st_mode):
                raise NotFoundError(f"{full} is a folder or a device, not an object")
        return files.info(path, status)

    def get(self, path: str) -> bytes:
        full = self._full(path)
        with named(full, "read"):
            descriptor = open_to_read(full)
            try:
                data = files.read_at(descriptor, 0, os.fstat(descriptor).st_size, full)
                return data.obj if isinstance(data.obj, bytes) else data.tobytes()
            finally:
                os.close(descriptor)

    def get_ranges(self, path: str, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> list[memoryview]:
        full = self._full(path)
        with named(full, "read"), self._own_descriptors().opened(full) as descriptor:
            ranges = checked_ranges(full, starts, lengths, os.fstat(descriptor).st_size)
            return [files.read_at(descriptor, start, length, full) for start, length in ranges]

    def get_ranges_of(self, found: FileInfo, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> list[memoryview]:
        full = self._full(found.path)
        with named(full, "read"), self._own_descriptors().opened(full) as descriptor:
            is_known = files.info(found.path, os.fstat(descriptor)).version == found.version
        if not is_known:  # it was opened before somebody else replaced the file
            self._forget(full)
        return super().get_ranges_of(found, starts, lengths)

    def view(self, path: str) -> memoryview:
        if not self.capabilities.view:
            return super().view(path)  # refuses
        full = self._full(path)
        with named(full, "map"):
            descriptor = open_to_read(full)
            try:
                size = os.fstat(descriptor).st_size
                return map_file(descriptor, size) if size else memoryview(b"")
            finally:
                os.close(descriptor)

    @property
    def max_views(self) -> int:
        """As many as max_open_files where that was given, else a third of the maps that a process may have."""
        return most_maps() if self._max_open_files is None else self._max_open_files

    def put(self, path: str, data: Buffer) -> None:
        full = self._full(path)
        with named(full, "write"):
            temporary = self._write_beside(full, data)
            with files.removed_on_failure(temporary):
                os.replace(temporary, full)
            self._forget(full)
            self._sync_parents(full)

    def put_if_absent(self, path: str, data: Buffer) -> None:
        full = self._full(path)
        with named(full, "create"):
            if os.path.lexists(full):  # spares the loser the writing; the link below is what decides
                raise AlreadyExistsError(f"{full} exists already")
            temporary = self._write_beside(full, data)
            try:
                self._link(temporary, full, data)
            except FileExistsError:
                raise AlreadyExistsError(f"{full} exists already") from None
            finally:
                files.unlink_if_there(temporary)
            self._forget(full)
            self._sync_parents(full)

    def delete(self, path: str) -> None:
        full = self._full(path)
        with named(full, "delete"):
            if files.unlink_if_there(full):
                self._forget(full)
                self._sync_parents(full)

    def folders(self, folder: str = "") -> list[str]:
        full = self._full_folder(folder)
        with named(full, "list"):
            return files.folder_names(full)

    def list(self, folder: str = "", *, recursive: bool = True) -> list[FileInfo]:
        full = self._full_folder(folder)
        with named(full, "list"):
            found = files.walk(full, f"{folder}/" if folder else "", recursive=recursive)
        return sorted(found)

    def open_writer(self, path: str, *, append: bool = False) -> ByteWriter:
        full = self._full(path)
        with named(full, "write"):
            if append:
                return LocalWriter(full, os.open(full, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC), fsync=self._fsync)
            # Unlinked, not truncated: whoever still maps the old file must not lose its pages.
            while True:
                try:
                    descriptor = os.open(full, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
                    break
                except FileExistsError:
                    os.unlink(full)
            self._forget(full)
        return LocalWriter(full, descriptor, fsync=self._fsync)

    def rename(self, source: str, target: str) -> None:
        old, new = self._full(source), self._full(target)
        with named(old, f"rename to {new}"):
            os.rename(old, new)
            self._forget(old)
            self._forget(new)
            self._sync_parents(old, new)

    def make_folder(self, folder: str) -> None:
        full = self._full_folder(folder)
        with named(full, "create the folder"):
            files.make_folders(full, fsync=self._fsync)

    def remove_folder(self, folder: str) -> None:
        full = self._full(folder)
        with named(full, "remove"):
            if files.remove_tree(full):
                self._forget(full)
                self._sync_parents(full)

    def remove_orphans(self, folder: str = "", *, of: str = "") -> None:
        full = self._full_folder(folder)
        with named(full, "clean"):
            files.remove_orphans(full, of)

    def close(self) -> None:
        process = os.getpid()
        self._abandon_inherited(process)
        if (descriptors := self._descriptors.pop(process, None)) is not None:
            descriptors.close()

    def _full(self, path: str) -> str:
        return os.path.join(self.location, checked_path(path))

    def _full_folder(self, folder: str) -> str:
        return os.path.join(self.location, checked_folder(folder)) if folder else self.location

    def _file_limit(self) -> int:
        if self._max_open_files is not None:
            return self._max_open_files
        return max(4, min(1024, descriptors_together()))

    def _own_descriptors(self) -> Descriptors:
        process = os.getpid()
        descriptors = self._descriptors.get(process)
        if descriptors is None:
            together = descriptors_together() if self._max_open_files is None else None
            descriptors = self._descriptors.setdefault(process, Descriptors(self._file_limit(), together))  # atomic
            self._abandon_inherited(process)
        return descriptors

    def _abandon_inherited(self, process: int) -> None:
        for parent in [known for known in list(self._descriptors) if known != process]:
            if (inherited := self._descriptors.pop(parent, None)) is not None:  # pop: one thread gets it
                inherited.abandon()

    def _forget(self, full: str) -> None:
        if (descriptors := self._descriptors.get(os.getpid())) is not None:
            descriptors.forget(full)

    def _sync_parents(self, *full_paths: str) -> None:
        if self._fsync:
            for parent in dict.fromkeys(os.path.dirname(full) for full in full_paths):
                files.sync_folder(parent)

    def _write_beside(self, full: str, data: Buffer) -> str:
        temporary = files.temporary_name(full)
        try:
            descriptor = files.create(temporary)
        except FileNotFoundError:
            files.make_folders(os.path.dirname(full), fsync=self._fsync)
            descriptor = files.create(temporary)
        with files.removed_on_failure(temporary):
            try:
                files.write_all(descriptor, byte_view(data))
                if self._fsync:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
        return temporary

    def _link(self, temporary: str, full: str, data: Buffer) -> None:
        try:
            os.link(temporary, full)
        except OSError as error:
            if error.errno not in files.NO_HARD_LINKS:
                raise
            # Still one winner, but a crash in mid write can leave a part: no better way on such a file system.
            descriptor = files.create(full)
            with (
                files.removed_on_failure(full),
                contextlib.closing(LocalWriter(full, descriptor, fsync=self._fsync)) as new,
            ):
                new.write(data)
                new.sync()


class LocalWriter:
    """A file being written: no buffer of its own, and every write is complete when it returns."""

    def __init__(self, full_path: str, descriptor: int, *, fsync: bool) -> None:
        self._full_path = full_path
        self._descriptor: int | None = descriptor
        self._fsync = fsync

    def write(self, data: Buffer) -> None:
        """Append all of data; StoreError when the disk takes only a part."""
        descriptor = self._opened()
        with named(self._full_path, "write"):
            files.write_all(descriptor, byte_view(data))

    def sync(self) -> None:
        """Return once everything written is on the disk (at once with fsync=False)."""
        descriptor = self._opened()
        if self._fsync:
            with named(self._full_path, "sync"):
                os.fsync(descriptor)

    def close(self) -> None:
        """Close the file; does not sync. Twice is harmless."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with named(self._full_path, "close"):
                os.close(descriptor)

    def _opened(self) -> int:
        if self._descriptor is None:
            raise ValueError(f"{self._full_path}: this writer is closed")
        return self._descriptor
