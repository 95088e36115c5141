"""The store contract: bytes at paths, and nothing else.

A store never knows what a shard is. Paths are relative, with `/`, without `..`, empty parts or backslashes; `""`
names the root. What a store cannot do it declares in `capabilities`, and refuses by name.

Guarantees that every store makes (`headrace.testing.StoreContract` checks them):

- An object appears whole or not at all; `put` replaces it atomically.
- `put_if_absent` has exactly one winner among any number of concurrent callers.
- `get_ranges` returns exactly the bytes asked for, or raises; it never returns fewer.
- `FileInfo.version` differs whenever an object was replaced by other bytes, and with `exact_versions` by any.
- A store pickles as its configuration; open handles are made anew in each process.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ObjectChangedError, PathOutsideRootError, TruncatedReadError, UnsupportedOperationError

__all__ = [
    "PIECE_BYTES",
    "Buffer",
    "ByteWriter",
    "Capabilities",
    "DatasetFile",
    "Digest",
    "FileInfo",
    "Store",
    "Stored",
    "StoredForm",
    "byte_view",
    "checked_folder",
    "checked_path",
    "checked_ranges",
]

Buffer = bytes | bytearray | memoryview
PIECE_BYTES = 8 << 20


class FileInfo(NamedTuple):
    """What a listing says of one object."""

    path: str
    size_bytes: int
    version: str  # opaque; another value after a replacement
    modified_s: float  # by the store's own clock, seconds since 1970


class Stored(NamedTuple):
    """What a store says of an object that was just put."""

    found: FileInfo
    md5: str = ""  # hexadecimal, as the store itself made it of the bytes that it keeps; "" where it tells none


class Capabilities(NamedTuple):
    """What a store can do beyond get, put, delete and list."""

    view: bool  # view(): an object as memory, without copying
    rename: bool  # open_writer(), rename() and folders that move as one
    durable: bool  # what put() and sync() acknowledged survives a power cut
    write: bool = True  # put(), upload() and delete()
    conditional: bool = True  # put_if_absent()
    listing: bool = True  # list() and folders()
    exact_versions: bool = True  # another FileInfo.version after a replacement by equal bytes, too
    remote: bool = False  # a request costs a round trip: ask little, and for much at a time
    verified: bool = False  # files of a dataset are compared with their digests before anybody gets them


@runtime_checkable
class ByteWriter(Protocol):
    """A new object being written front to back; nothing is promised before sync()."""

    def write(self, data: Buffer) -> None:
        """Append all of data."""
        ...

    def sync(self) -> None:
        """Return once everything written is durable, as far as the store is."""
        ...

    def close(self) -> None:
        """Release the handle; does not sync. Twice is harmless."""
        ...


class Digest(Protocol):
    """What hashlib's and xxhash's objects have in common."""

    def update(self, data: Buffer, /) -> None:
        """Take more bytes."""
        ...

    def hexdigest(self) -> str:
        """The digest of what was taken so far, in hexadecimal digits."""
        ...


class DatasetFile(NamedTuple):
    """What a dataset says of one of its files: enough to tell a whole copy from a damaged one."""

    size_bytes: int
    digest: str = ""  # hexadecimal; "" where none is known
    new_digest: Callable[[], Digest] | None = None  # makes what computes it
    stored: "StoredForm | None" = None  # where the file itself may be absent, and is made from another one
    unchanged: Callable[[], None] | None = None  # raises where the dataset was replaced; without a digest asked
    # after reading a file, before it is kept as the dataset's


class StoredForm(NamedTuple):
    """A compressed file, and how the file is made from it."""

    name: str
    file: DatasetFile
    decode: Callable[[memoryview], Buffer]  # ValueError says what is wrong with the bytes


class Store(ABC):
    """Bytes at paths. Subclasses implement the abstract methods and what they declare in `capabilities`."""

    capabilities: Capabilities
    location: str  # for messages only: a directory or URL without secrets

    @abstractmethod
    def head(self, path: str) -> FileInfo:
        """Size and version of the object; NotFoundError when there is none (a folder is none)."""

    def stored(self, path: str) -> Stored:
        """head(path), and the digest that the store has of what it keeps; NotFoundError when there is no such object.

        For writers, to confirm what they put: it may take more than head() does.
        """
        return Stored(self.head(path))

    @abstractmethod
    def get(self, path: str) -> bytes:
        """The whole object; NotFoundError when there is none."""

    @abstractmethod
    def get_ranges(self, path: str, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> list[memoryview]:
        """One read-only memoryview a range, in request order; repeats and overlaps are allowed.

        starts and lengths have shape (num_ranges,), in bytes; a length of 0 gives an empty view, also at the end.
        Raises TruncatedReadError for a range that reaches past the end, ValueError for a negative start or length,
        NotFoundError when there is no such object.
        """

    def get_ranges_of(self, found: FileInfo, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> list[memoryview]:
        """get_ranges of found.path as long as the object is still the one that found tells of.

        ObjectChangedError where it was replaced, and NotFoundError where it is gone.
        """
        views = self.get_ranges(found.path, starts, lengths)
        if self.head(found.path).version != found.version:  # after reading, so that what was read is good
            raise ObjectChangedError(f"{self.location.rstrip('/')}/{found.path}")
        return views

    @abstractmethod
    def put(self, path: str, data: Buffer) -> None:
        """Store data at path, whole and atomically, replacing what was there. Folders appear as needed.

        UnsupportedOperationError, here and in delete(), from a store without capabilities.write.
        """

    @abstractmethod
    def put_if_absent(self, path: str, data: Buffer) -> None:
        """Store data at path if nothing is there, else raise AlreadyExistsError. One caller of many wins.

        Needs capabilities.conditional.
        """

    @abstractmethod
    def delete(self, path: str) -> None:
        """Remove the object. That it is absent already is fine, and a folder is no object."""

    @abstractmethod
    def folders(self, folder: str = "") -> list[str]:
        """Names of the folders directly below the folder, sorted; [] when there are none. Empty ones count."""

    @abstractmethod
    def list(self, folder: str = "", *, recursive: bool = True) -> list[FileInfo]:
        """The objects below the folder, sorted by path; [] when it does not exist. Files in flight are not listed."""

    def pieces(self, path: str, piece_bytes: int = PIECE_BYTES) -> Iterator[memoryview]:
        """The whole object from front to back, in read-only pieces of at most piece_bytes; of an empty one none.

        All of one version: ObjectChangedError where it is replaced meanwhile. Memory holds a few pieces at a time.
        """
        found = self.head(path)
        for begin in range(0, found.size_bytes, piece_bytes):
            count = min(piece_bytes, found.size_bytes - begin)
            yield self.get_ranges_of(found, np.array([begin]), np.array([count]))[0]

    def upload(self, path: str, file: str | Path, *, check: Callable[[], None] | None = None) -> None:
        """Store the content of a local file at path, whole and atomically, in bounded memory where the store can.

        check is called right before the object appears: what it raises leaves the object as it was. It may be called
        more than once.
        """
        with open(os.fspath(file), "rb") as opened:
            data = opened.read()
        if check is not None:
            check()
        self.put(path, data)

    def of_dataset(self, fingerprint: str, file: Callable[[str], DatasetFile]) -> "Store":
        """The store to read one dataset's files through; fingerprint names its content, file says what a name holds.

        A store that keeps copies keeps them apart by fingerprint, and checks them by what file says; others are it
        themselves. file raises KeyError for a name that the dataset does not have. What comes back need not pickle.
        """
        return self

    def prefetch(self, paths: Sequence[str], budget_bytes: int) -> None:  # noqa: B027 - a hint
        """Expect these objects to be read, in this order, and fetch up to budget_bytes of them ahead. Returns at once.

        Only a hint, which the next one replaces: a store without a cache ignores it, and errors come when reading.
        """

    def view(self, path: str) -> memoryview:
        """The object's bytes as read-only memory, valid while the view lives, even after the object is replaced.

        Needs capabilities.view. An empty object gives an empty view.
        """
        raise UnsupportedOperationError(self.location, "map objects into memory", "read with get_ranges")

    def open_writer(self, path: str, *, append: bool = False) -> ByteWriter:
        """A new, empty object at path in place of an older one, written front to back. Needs capabilities.rename.

        append=True goes on at the end of an object that exists. NotFoundError when it does not, and without append when
        the parent folder is absent: a writer whose folder was taken away must not get it back.
        """
        raise UnsupportedOperationError(self.location, "write objects piece by piece", "use put")

    def rename(self, source: str, target: str) -> None:
        """Move an object or a whole folder, atomically and durably; an object at target is replaced.

        NotFoundError when source is absent or target's parent folder is; StoreError when target is a folder that
        holds something, or one of the two is a folder and the other an object. Needs capabilities.rename.
        """
        raise UnsupportedOperationError(self.location, "rename objects", "write to a local directory")

    def make_folder(self, folder: str) -> None:
        """Create the folder and its parents; that it exists is fine (`""` too). Needs capabilities.rename."""
        raise UnsupportedOperationError(self.location, "create folders", "object stores have none")

    def remove_folder(self, folder: str) -> None:
        """Remove the folder with all it holds; that it is absent is fine. Needs capabilities.rename.

        A link is removed itself, never what it points to. The root (`""`) is refused.
        """
        raise UnsupportedOperationError(self.location, "remove folders", "object stores have none")

    def remove_orphans(self, folder: str = "", *, of: str = "") -> None:  # noqa: B027 - most stores leave none
        """Remove files in flight that dead processes left directly in this folder. Others are untouched.

        `of` is an attempt of a process that lost its right to write here: what it has in flight goes as well, so that a
        put() in which it slept fails when it wakes.
        """

    @property
    def max_views(self) -> int:
        """How many views one reader may hold at a time, so that a process stays within its limits."""
        return 1 << 20

    def close(self) -> None:  # noqa: B027 - a store may have none
        """Release open handles; the store opens them anew when used again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def checked_path(path: str) -> str:
    """path itself where it is a proper relative path; PathOutsideRootError otherwise. `""` is refused too."""
    if not path or "\\" in path or "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
        raise PathOutsideRootError(path)
    return path


def checked_folder(folder: str) -> str:
    """folder itself where it is `""` or a proper relative path; PathOutsideRootError otherwise."""
    return folder and checked_path(folder)


def checked_ranges(
    where: str, starts: NDArray[np.int64], lengths: NDArray[np.int64], size_bytes: int
) -> list[tuple[int, int]]:
    """The (start, length) of each range as plain integers, for an object of size_bytes called where.

    Raises what get_ranges promises: TruncatedReadError past the end, ValueError for anything that is no range.
    """
    first, count = np.asarray(starts), np.asarray(lengths)
    if first.ndim != 1 or first.shape != count.shape:
        raise ValueError(
            f"{where}: starts and lengths must be one-dimensional and alike, not {first.shape}, {count.shape}"
        )
    if first.size == 0:
        return []
    if first.dtype.kind not in "iu" or count.dtype.kind not in "iu":
        raise ValueError(f"{where}: starts and lengths must be integers, not {first.dtype} and {count.dtype}")
    if first.min() < 0 or count.min() < 0:
        index = int(np.flatnonzero((first < 0) | (count < 0))[0])
        raise ValueError(
            f"{where}: range {index} has start {first[index]} and length {count[index]}; both must be >= 0"
        )
    past = (first > size_bytes) | (count > size_bytes - np.minimum(first, size_bytes))  # no sum: it could overflow
    if past.any():
        index = int(np.argmax(past))
        raise TruncatedReadError(where, int(first[index]), int(count[index]), size_bytes)
    return list(zip(first.tolist(), count.tolist(), strict=True))


def byte_view(data: Buffer) -> memoryview:
    """data as one-dimensional memory of single bytes, without copying; a wider memoryview counts its bytes."""
    view = memoryview(data)
    return view.cast("B") if view.nbytes else memoryview(b"")
