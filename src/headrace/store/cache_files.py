"""A cache directory: what lies where, what a file's state is, and who may remove it.

    DIR/headrace-cache/1/
        files/<dataset>/<part>/<file>.<tag>  whole, checked files; <dataset> is a digest of the fingerprint
        downloads/<tag>.<attempt>.kept    a file on its way; its size is the file's from the first moment on
        downloads/<tag>.<attempt>.passing one that is mapped and then unlinked, since there is no room to keep it
        failures/<tag>                    how the last download failed, for those who waited for it
        datasets/<dataset>.json           what a fingerprint is a fingerprint of, for people
        locks/0 ... f                     names that processes hold, see file_locks.py

`<tag>` is a digest of the rest of the name, so that no file that somebody puts there is taken for one of ours. Nothing
else in DIR is looked at.

A checked file bears a stamp, its modification time: a second made from its name, its size and the boot of the machine
during which it was checked. Whatever changes the file afterwards changes that time. So a reader knows by one fstat that
nobody touched the file since it was checked. After a restart, when bytes may be lost that were never on the disk, it is
checked again: by the dataset's digest or, where there is none, by one of ours, of which the nanoseconds keep 30 bits.
"""

import contextlib
import hashlib
import os
import re
import time
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

import headrace.errors
from headrace.errors import HeadraceError
from headrace.store import files
from headrace.store.file_locks import lock_table
from headrace.store.identity import ATTEMPT_PATTERN, attempt_id, parsed_identity, process_identity
from headrace.store.listing import Listing, part_of
from headrace.store.store import DatasetFile

__all__ = ["CacheFolder", "Entry", "Temporary"]

_TREE = "headrace-cache/1"  # raised when the layout changes, so that two versions never touch each other's files
_LONGEST_STEM = 180
_DOWNLOAD = re.compile(rf"[0-9a-f]{{24}}\.{ATTEMPT_PATTERN}\.(kept|passing)")
_STAMPS_FROM_S = 1_000_000_000  # in 2001, and at most 17 years later: no file that is written now has such a time
_STAMPS = 1 << 29


class Entry(NamedTuple):
    """A place for one file of one dataset."""

    name: str  # "<dataset>/<part>/<file>.<tag>"
    tag: str
    full_path: str


class Temporary:
    """A file on its way: this process alone writes it, and it goes with whoever made it."""

    def __init__(self, folder: "CacheFolder", entry: Entry) -> None:
        self._folder = folder
        self._name = f"{entry.tag}.{attempt_id()}"
        self._lock = f"download {self._name}"
        # The lock comes first: a file without one belongs to the dead.
        while not folder.locks.take(self._lock):
            if folder.locks.read_only:
                raise PermissionError(30, os.strerror(30), str(folder.root))
            self._name = f"{entry.tag}.{attempt_id()}"  # two names share a byte of the lock file: as good as never
            self._lock = f"download {self._name}"
        self.full_path = folder.download_path(f"{self._name}.kept")
        try:
            self.descriptor = folder.create(self.full_path)
        except BaseException:
            folder.locks.give_back(self._lock)
            raise

    def reserve(self, size_bytes: int) -> None:
        """Count as that many bytes for whoever looks how full the cache is."""
        os.ftruncate(self.descriptor, size_bytes)

    def pass_by(self) -> None:
        """Count no longer: the file will be unlinked as soon as it is mapped."""
        passing = self.full_path.removesuffix("kept") + "passing"
        os.rename(self.full_path, passing)
        self.full_path = passing

    def close(self) -> None:
        """The file is gone where it was not renamed. Twice is harmless."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
            with contextlib.suppress(OSError):
                files.unlink_if_there(self.full_path)
            self._folder.locks.give_back(self._lock)


class CacheFolder:
    """The files below one cache directory. Nothing is read or created before the first use."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.root = os.path.join(directory, _TREE)
        self.locks = lock_table(Path(self.root, "locks"))
        self.listing = Listing(os.path.join(self.root, "files"), _tag)

    def entry(self, fingerprint: str, path: str) -> Entry:
        """Where the file at path of the dataset with this fingerprint lies, if it does."""
        stem = quote(path, safe="")
        if len(stem) > _LONGEST_STEM:
            stem = f"{stem[: _LONGEST_STEM - 40]}%%{_digest(path, 16)}"  # quote gives no "%%"
        dataset = _digest(fingerprint, 16)
        tag = _tag(dataset, stem)
        name = f"{dataset}/{part_of(tag)}/{stem}.{tag}"
        return Entry(name, tag, os.path.join(self.root, "files", name))

    def stamp_s(self, entry: Entry, expected: DatasetFile) -> int:
        """The second that the entry's file bears as its time once it was checked in this boot of the machine."""
        identity = parsed_identity(process_identity())
        text = f"{entry.name}\0{expected.size_bytes}\0{identity.boot if identity else ''}"
        return _STAMPS_FROM_S + int(_digest(text, 8), 16) % _STAMPS

    def stamp(self, descriptor: int, stamp_ns: int | None) -> None:
        """Mark the open file as used now and, with a stamp, as checked."""
        now = time.time_ns()
        os.utime(descriptor, ns=(now, now if stamp_ns is None else stamp_ns))

    def touch(self, descriptor: int, status: os.stat_result) -> None:
        """Mark the open file as used now; where that is not allowed, it is not."""
        with contextlib.suppress(OSError):
            os.utime(descriptor, ns=(time.time_ns(), status.st_mtime_ns))

    def is_there(self) -> bool:
        """Whether the directory was ever used as a cache."""
        return os.path.isdir(self.root)

    def reserved_bytes(self) -> int:
        """What the files on their way, which are to be kept, will take. Those of dead processes are removed."""
        total = 0
        for name in self._on_their_way():
            path = self.download_path(name)
            with contextlib.suppress(FileNotFoundError):
                size = os.stat(path).st_size
                if not self._is_of_the_dead(name, path) and name.endswith(".kept"):
                    total += size
        return total

    def remove_dead(self) -> None:
        """Remove what processes that died had on their way."""
        for name in self._on_their_way():
            self._is_of_the_dead(name, self.download_path(name))

    def progress(self, entry: Entry) -> tuple[frozenset[tuple[str, int]], list[int]]:
        """How far the downloads of this entry are, in a form to compare, and the process ids of who is at it."""
        seen, pids = [], []
        for name in self._on_their_way():
            if name.startswith(f"{entry.tag}."):
                with contextlib.suppress(OSError):
                    seen.append((name, os.stat(self.download_path(name)).st_mtime_ns))
                    identity = parsed_identity(name.split(".")[1])
                    pids.append(identity.pid if identity else 0)
        return frozenset(seen), pids

    def download_path(self, name: str) -> str:
        """The full path of a file on its way."""
        return os.path.join(self.root, "downloads", name)

    def create(self, full_path: str) -> int:
        """A descriptor to write and read a file that did not exist; folders appear as needed."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            return os.open(full_path, flags, 0o666)
        except FileNotFoundError:
            files.make_folders(os.path.dirname(full_path), fsync=False)
            return os.open(full_path, flags, 0o666)

    def publish(self, temporary: Temporary, entry: Entry) -> None:
        """Give the whole, stamped file its final name."""
        try:
            os.rename(temporary.full_path, entry.full_path)
        except FileNotFoundError:
            files.make_folders(os.path.dirname(entry.full_path), fsync=False)
            os.rename(temporary.full_path, entry.full_path)

    def discard(self, full_path: str) -> bool:
        """Whether there was a file, which is gone now."""
        return files.unlink_if_there(full_path)

    def failure(self, entry: Entry) -> tuple[int, int] | None:
        """What tells the last recorded failure of this entry from any other; None where there is none."""
        try:
            status = os.stat(self._failure_path(entry))
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns

    def failed(self, entry: Entry, location: str) -> HeadraceError | None:
        """The last recorded failure; None where it is gone, cannot be read, or was met at another location."""
        try:
            with open(self._failure_path(entry), "rb") as file:
                record = msgspec.json.decode(file.read(), type=dict[str, Any])
            if record["location"] != location:
                return None
            kind = getattr(headrace.errors, record["error"])
            error: HeadraceError = kind.__new__(kind)
            error.args = tuple(record["args"])
            error.__dict__.update(record["fields"])
        except (OSError, msgspec.MsgspecError, KeyError, AttributeError, TypeError):
            return None
        return error

    def record_failure(self, entry: Entry, location: str, error: HeadraceError) -> None:
        """Tell those who wait for the entry; where that cannot be written, each of them finds out by itself."""
        fields = {name: value for name, value in vars(error).items() if isinstance(value, str | int | float)}
        args = [str(text) for text in error.args]
        record = {"location": location, "error": type(error).__name__, "args": args, "fields": fields}
        self._note(self._failure_path(entry), record)

    def forget_failure(self, entry: Entry) -> None:
        """The entry is there: how it failed before is of no interest."""
        with contextlib.suppress(OSError):
            files.unlink_if_there(self._failure_path(entry))

    def label(self, fingerprint: str, location: str) -> None:
        """Note for people what the dataset is, if that is not noted yet."""
        dataset = _digest(fingerprint, 16)
        if not self.labelled(dataset):
            self._note(self._label_path(dataset), {"fingerprint": fingerprint, "location": location})

    def forget_label(self, dataset: str) -> None:
        """Nothing is left of the dataset."""
        with contextlib.suppress(OSError):
            files.unlink_if_there(self._label_path(dataset))

    def labelled(self, dataset: str) -> dict[str, str]:
        """What label() noted for the folder of a dataset; {} where nothing can be read."""
        try:
            with open(self._label_path(dataset), "rb") as file:
                return msgspec.json.decode(file.read(), type=dict[str, str])
        except (OSError, msgspec.MsgspecError):
            return {}

    def _on_their_way(self) -> list[str]:
        return [name for name in _names(self.download_path("")) if _DOWNLOAD.fullmatch(name)]

    def _note(self, path: str, record: dict[str, Any]) -> None:
        """Write a small file in place of another. Half a one is as good as none for those who read it."""
        with contextlib.suppress(OSError):
            files.unlink_if_there(path)
            descriptor = self.create(path)
            try:
                files.write_all(descriptor, memoryview(msgspec.json.encode(record)))
            finally:
                os.close(descriptor)

    def _label_path(self, dataset: str) -> str:
        return os.path.join(self.root, "datasets", f"{dataset}.json")

    def _failure_path(self, entry: Entry) -> str:
        return os.path.join(self.root, "failures", entry.tag)

    def _is_of_the_dead(self, name: str, full_path: str) -> bool:
        """Whether nobody writes this file on its way any more; then it is removed."""
        lock = f"download {name.rpartition('.')[0]}"
        if not self.locks.take(lock):
            return False
        try:
            self.discard(full_path)
        finally:
            self.locks.give_back(lock)
        return True


def _tag(dataset: str, stem: str) -> str:
    return _digest(f"{dataset}/{stem}", 12)


def _digest(text: str, size: int) -> str:
    return hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=size).hexdigest()


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
