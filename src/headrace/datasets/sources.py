"""Where the files of an opened dataset are read, and what tells that they are still the dataset's.

files     a shard is mapped whole: a local file, or the copy that a cache keeps
ranges    only the bytes that are asked for are read: one request a shard and batch

What was replaced behind a reader's back is never served. Whoever replaces a dataset withdraws the evidence first (the
manifest, or of each shard its receipt or its files), so what was read before the evidence was seen to stand is good:

    a local map      map, then look at the evidence and at the file
    a cached copy    the store that keeps it has compared digests or, without any, looked at the evidence
    ranges           look at the file, then at the evidence; from then on only this version of the file is asked for,
                     and the store says when it is another one

So a remote store gets two small requests a shard once in a process's life, and afterwards one a shard and batch.
"""

import contextlib
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Literal, TypeVar, cast, get_args

import numpy as np
from numpy.typing import NDArray

from headrace.datasets.round_trips import AT_ONCE, at_once
from headrace.errors import (
    DatasetChangedError,
    NotFoundError,
    ObjectChangedError,
    OptionError,
    TruncatedReadError,
    UnsupportedOperationError,
)
from headrace.store import DatasetFile, FileInfo, Store

__all__ = ["LARGEST_FETCHED_BYTES", "Access", "Source", "checked_access", "read_whole"]

Access = Literal["auto", "files", "ranges"]
LARGEST_FETCHED_BYTES = 256 << 20  # by access="auto"; a random read of a larger file must not wait for all of it

_MOST_TRIES = 100  # to read an object that somebody keeps replacing

Int64s = NDArray[np.int64]
T = TypeVar("T")
R = TypeVar("R")


def checked_access(access: str) -> Access:
    """access itself; OptionError for what is none."""
    if access not in get_args(Access):
        raise OptionError("access", access, "'auto', 'files' or 'ranges'")
    return cast(Access, access)


class Source:
    """The files of one opened dataset. Safe to use from several threads and after forks.

    content names what is in the files, and is another text where anything else is in them; file says what each of them
    must be, and of which shard it is, or raises KeyError. evidence is what the dataset rests on: the same files for
    all of it, or some a shard; by_time=True takes one for another when it was written again with equal bytes, and
    keeps_by_time=True does so before what no digest was compared of is kept. OptionError where access="files" and the
    store keeps no files.
    """

    def __init__(
        self,
        store: Store,
        content: str,
        file: Callable[[str], tuple[int, DatasetFile]],
        evidence: Sequence[Sequence[FileInfo]],
        access: Access = "auto",
        *,
        by_time: bool = False,
        keeps_by_time: bool = False,
    ) -> None:
        self._by_time = by_time
        self._keeps_by_time = keeps_by_time
        self.store = store.of_dataset(content, lambda name: self._described(*file(name)))
        self.location = store.location
        self.is_remote = store.capabilities.remote
        self.keeps_copies = self.store is not store
        self._asked = store  # for versions: of a cache that means the remote store itself
        self._evidence = evidence
        self._access = access
        self._pins: dict[str, FileInfo] = {}
        if access == "files" and self.is_remote and not self.store.capabilities.view:
            expected = (
                f"'ranges' or 'auto' for {self.location}, which keeps no files on this machine; for whole files read "
                "it through a cache: CachedStore(store, directory)"
            )
            raise OptionError("access", access, expected)

    def maps(self, sizes_bytes: Int64s) -> NDArray[np.bool_]:
        """Which files of these sizes are mapped whole; the others are read by ranges. Of the same shape."""
        if self._access == "ranges" or not self.store.capabilities.view:
            return np.zeros(len(sizes_bytes), np.bool_)
        if self._access == "files" or not self.keeps_copies:
            return np.ones(len(sizes_bytes), np.bool_)
        return sizes_bytes <= LARGEST_FETCHED_BYTES

    def at_once(self, function: Callable[[T], R], arguments: Sequence[T], most: int = AT_ONCE) -> list[R]:
        """function of each, in order; up to `most` at the same time where each is a round trip."""
        if self.is_remote:
            return at_once(function, arguments, most)
        return [function(argument) for argument in arguments]

    def check(self, shards: Iterable[int], *, by_time: bool = False) -> None:
        """DatasetChangedError unless the evidence for these shards stands; to be asked after reading."""
        if not self._evidence:
            return
        groups = [self._evidence[shard if len(self._evidence) > 1 else 0] for shard in shards]
        basis = dict.fromkeys(info for group in groups for info in group)
        for known, found in zip(basis, self.look_up([info.path for info in basis]), strict=True):
            if found is None or found.version != known.version:
                raise self.changed(known.path)
            if (by_time or self._by_time) and found.modified_s != known.modified_s:
                raise self.changed(known.path)

    def look_up(self, names: Sequence[str]) -> list[FileInfo | None]:
        """What the store says of each of these files now; None of those that are not there."""
        return self.at_once(self._head, names)

    def pins(self, names: Sequence[str], shards: Collection[int]) -> list[FileInfo | None]:
        """What read() takes, for files of these shards; None for those that are missing.

        Looked up at first use, while the evidence stood; from then on they are the versions that are read.
        """
        pins = self._pins
        if missing := [name for name in names if name not in pins]:
            found = self.look_up(missing)
            self.check(shards)
            for info in found:
                if info is not None:
                    pins.setdefault(info.path, info)
        return [pins.get(name) for name in names]

    def read(self, pin: FileInfo, starts: Int64s, lengths: Int64s) -> list[memoryview]:
        """These ranges of the file, in request order; neighbours are read as one. DatasetChangedError where it is
        another file by now."""
        begins, counts, owners = _joined(starts, lengths)
        try:
            joined = self.store.get_ranges_of(pin, begins, counts)
        except ObjectChangedError:
            raise self.changed(pin.path) from None
        insides = starts - begins[owners]
        places = zip(owners.tolist(), insides.tolist(), (insides + lengths).tolist(), strict=True)
        return [joined[owner][begin:end] for owner, begin, end in places]

    def changed(self, path: str) -> DatasetChangedError:
        """The error to raise where a file is another one."""
        return DatasetChangedError(self.location, f"{path} is not the file it was")

    def prefetch(self, names: Sequence[str], budget_bytes: int) -> None:
        """Have these files fetched in this order, where copies are kept."""
        self.store.prefetch(names, budget_bytes)

    def close(self) -> None:
        """Release what the store holds; it opens that anew when used again."""
        self.store.close()

    def _described(self, shard: int, file: DatasetFile) -> DatasetFile:
        def unchanged() -> None:
            # A copy stays: another dataset that was there for a while, between two times of this one, must not.
            self.check([shard], by_time=self._keeps_by_time)

        stored = file.stored and file.stored._replace(file=file.stored.file._replace(unchanged=unchanged))
        return file._replace(stored=stored, unchanged=unchanged)

    def _head(self, name: str) -> FileInfo | None:
        try:
            return self._asked.head(name)
        except NotFoundError:
            return None


def read_whole(store: Store, path: str) -> tuple[bytes, FileInfo] | None:
    """The object, and what the store says of it, of one and the same version; None where there is none.

    DatasetChangedError where it is replaced again and again.
    """
    for _ in range(_MOST_TRIES):
        try:
            found = store.head(path)
            if store.capabilities.remote:  # a request less
                with contextlib.suppress(UnsupportedOperationError):  # of a web server that knows no ranges
                    (raw,) = store.get_ranges_of(found, np.array([0]), np.array([found.size_bytes]))
                    return bytes(raw), found
            whole = store.get(path)
            if store.head(path) == found:
                return whole, found
        except NotFoundError:
            return None
        except ObjectChangedError:
            continue
        except TruncatedReadError:
            with contextlib.suppress(NotFoundError):
                if store.head(path) == found:
                    raise
    raise DatasetChangedError(store.location, f"{path} is replaced again and again")


def _joined(
    starts: NDArray[np.int64], num_bytes: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Ranges that touch or overlap made one: their starts, their sizes, and for each given range which one holds it."""
    order = np.argsort(starts, kind="stable")
    begins, ends = starts[order], np.maximum.accumulate((starts + num_bytes)[order])
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = begins[1:] > ends[:-1]
    firsts = np.flatnonzero(is_first)
    lasts = np.append(firsts[1:], len(order))[: len(firsts)] - 1
    owners = np.empty(len(order), np.int64)
    owners[order] = np.cumsum(is_first) - 1
    return begins[firsts], ends[lasts] - begins[firsts], owners
