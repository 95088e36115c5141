# ruff: noqa: D102 - Store documents the methods
"""A remote store that repeats what failed in a way that may pass: the one place where anything is retried.

Only TemporaryStoreError is repeated: overload (429 and its kin), a server's own failure, a reset, a stall, a cut body,
a token that just expired. What the store decided (not there, not allowed, there already) is raised at once. The waits
double, and each is shortened by a share that differs among processes and paths, so that a thousand readers that were
refused together do not come back together.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from headrace.errors import AlreadyExistsError, NotFoundError, OptionError, TemporaryStoreError
from headrace.store.identity import process_identity
from headrace.store.store import PIECE_BYTES, Buffer, ByteWriter, DatasetFile, FileInfo, Store, Stored, byte_view

__all__ = ["Resumable", "RetryPolicy", "RetryingStore"]

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How often a request is tried, and how long is waited in between.

    The first wait is up to first_wait_s, each next one up to twice the last, none longer than longest_wait_s, and all
    at least half of that. What the store asks for (retry_after_s) is waited in full. Nothing is tried again more than
    total_s after the first try began. tries=1 retries nothing.
    """

    tries: int = 5
    first_wait_s: float = 0.5
    longest_wait_s: float = 20.0
    total_s: float = 300.0

    def __post_init__(self) -> None:
        if isinstance(self.tries, bool) or not isinstance(self.tries, int) or self.tries < 1:
            raise OptionError("tries", self.tries, "a whole number of at least 1")
        for name in ("first_wait_s", "longest_wait_s", "total_s"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
                raise OptionError(name, value, "a number of seconds, 0 or more")

    def wait_s(self, name: str, tried: int, retry_after_s: float | None = None) -> float:
        """How long to wait for the next try of what is called name, after tried tries that failed (at least 1)."""
        full = min(self.longest_wait_s, self.first_wait_s * 2.0 ** min(tried - 1, 60))
        text = f"{process_identity()}\0{threading.get_ident()}\0{name}\0{tried}"
        share = int.from_bytes(hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=6).digest()) / 2**48
        return max(full * (0.5 + 0.5 * share), retry_after_s or 0.0)


@runtime_checkable
class Resumable(Protocol):
    """A store that can go on with what broke off."""

    def stream(
        self, path: str, piece_bytes: int, start: int = 0, found: FileInfo | None = None
    ) -> tuple[FileInfo, Iterator[memoryview]]:
        """What the object is, and its bytes from start on in pieces; of found's version where that is given."""
        ...

    def read_ranges(
        self,
        path: str,
        found: FileInfo | None,
        wanted: tuple[NDArray[np.int64], NDArray[np.int64]],
        done: dict[Any, Any],
    ) -> list[memoryview]:
        """get_ranges (with found: get_ranges_of) of wanted starts and lengths, keeping in done what came already."""
        ...


class RetryingStore(Store):
    """Another store whose temporary failures are tried again, as policy says.

    The error of the last try names the first cause, and says how often and how long it was tried.
    """

    def __init__(self, store: Store, policy: RetryPolicy | None = None) -> None:
        if not isinstance(policy, RetryPolicy | None):
            raise TypeError(f"retry must be a RetryPolicy, not {type(policy).__name__}: RetryPolicy(tries=...)")
        self.store = store
        self.policy = policy or RetryPolicy()
        self.capabilities = store.capabilities
        self.location = store.location
        self._resumable = store if isinstance(store, Resumable) else None

    def __repr__(self) -> str:
        return f"RetryingStore({self.store!r}, {self.policy!r})"

    def head(self, path: str) -> FileInfo:
        return self._tried(path, lambda: self.store.head(path))

    def stored(self, path: str) -> Stored:
        return self._tried(path, lambda: self.store.stored(path))

    def get(self, path: str) -> bytes:
        return self._tried(path, lambda: self.store.get(path))

    def get_ranges(self, path: str, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> list[memoryview]:
        if inner := self._resumable:
            done: dict[Any, Any] = {}
            return self._tried(path, lambda: inner.read_ranges(path, None, (starts, lengths), done))
        return self._tried(path, lambda: self.store.get_ranges(path, starts, lengths))

    def get_ranges_of(self, found: FileInfo, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> list[memoryview]:
        if inner := self._resumable:
            done: dict[Any, Any] = {}
            return self._tried(found.path, lambda: inner.read_ranges(found.path, found, (starts, lengths), done))
        return self._tried(found.path, lambda: self.store.get_ranges_of(found, starts, lengths))

    def pieces(self, path: str, piece_bytes: int = PIECE_BYTES) -> Iterator[memoryview]:
        inner = self._resumable
        if inner is None:
            yield from super().pieces(path, piece_bytes)  # a retried request a piece
            return
        tries = _Tries(self.policy, self._named(path))
        found: FileInfo | None = None
        done = 0
        while found is None or done < found.size_bytes:
            try:
                now, stream = inner.stream(path, piece_bytes, done, found)
                found = found or now
                for piece in stream:
                    done += len(piece)
                    yield piece
                    tries = _Tries(self.policy, self._named(path))  # it went on: what breaks now is another failure
                if done < found.size_bytes:
                    raise TemporaryStoreError(
                        f"{self._named(path)}: the body ended after {done} of {found.size_bytes} bytes"
                    )
            except TemporaryStoreError as error:
                tries.wait_after(error)

    def put(self, path: str, data: Buffer) -> None:
        self._tried(path, lambda: self.store.put(path, data))

    def put_if_absent(self, path: str, data: Buffer) -> None:
        tries = _Tries(self.policy, self._named(path))
        while True:
            try:
                self.store.put_if_absent(path, data)
            except TemporaryStoreError as error:
                tries.wait_after(error)
            except AlreadyExistsError:
                # A try that seemed to fail may have stored it after all: equal bytes are this caller's own.
                if tries.failed and self._holds(path, data):
                    return
                raise
            else:
                return

    def upload(self, path: str, file: str | Path, *, check: Callable[[], None] | None = None) -> None:
        self._tried(path, lambda: self.store.upload(path, file, check=check))

    def delete(self, path: str) -> None:
        self._tried(path, lambda: self.store.delete(path))

    def folders(self, folder: str = "") -> list[str]:
        return self._tried(folder, lambda: self.store.folders(folder))

    def list(self, folder: str = "", *, recursive: bool = True) -> list[FileInfo]:
        return self._tried(folder, lambda: self.store.list(folder, recursive=recursive))

    def of_dataset(self, fingerprint: str, file: Callable[[str], DatasetFile]) -> Store:
        bound = self.store.of_dataset(fingerprint, file)
        return self if bound is self.store else RetryingStore(bound, self.policy)

    def prefetch(self, paths: Sequence[str], budget_bytes: int) -> None:
        self.store.prefetch(paths, budget_bytes)

    def view(self, path: str) -> memoryview:
        return self._tried(path, lambda: self.store.view(path))

    def open_writer(self, path: str, *, append: bool = False) -> ByteWriter:
        return self._tried(path, lambda: self.store.open_writer(path, append=append))

    def rename(self, source: str, target: str) -> None:
        self.store.rename(source, target)  # not repeated: what the second try means depends on what the first one did

    def make_folder(self, folder: str) -> None:
        self._tried(folder, lambda: self.store.make_folder(folder))

    def remove_folder(self, folder: str) -> None:
        self._tried(folder, lambda: self.store.remove_folder(folder))

    def remove_orphans(self, folder: str = "", *, of: str = "") -> None:
        self._tried(folder, lambda: self.store.remove_orphans(folder, of=of))

    @property
    def max_views(self) -> int:
        """As many as the inner store allows."""
        return self.store.max_views

    def close(self) -> None:
        self.store.close()

    def _holds(self, path: str, data: Buffer) -> bool:
        with suppress(NotFoundError):  # somebody took it away meanwhile
            return self.get(path) == byte_view(data)
        return False

    def _named(self, path: str) -> str:
        return f"{self.location.rstrip('/')}/{path}"

    def _tried(self, path: str, request: Callable[[], Result]) -> Result:
        tries = _Tries(self.policy, path)
        while True:
            try:
                return request()
            except TemporaryStoreError as error:
                tries.wait_after(error)


class _Tries:
    """The tries of one request so far."""

    def __init__(self, policy: RetryPolicy, name: str) -> None:
        self._policy, self._name = policy, name
        self._began_s = time.monotonic()
        self._first: TemporaryStoreError | None = None
        self.failed = 0

    def wait_after(self, error: TemporaryStoreError) -> None:
        """Wait until the next try is due; raise the first cause where no try is left."""
        first = self._first = self._first or error
        self.failed += 1
        spent_s = time.monotonic() - self._began_s
        wait_s = self._policy.wait_s(self._name, self.failed, error.retry_after_s)
        if self.failed >= self._policy.tries or spent_s + wait_s > self._policy.total_s:
            if self.failed == 1:
                raise error
            last = "" if str(error) == str(first) else f"; the last one: {error}"
            raise TemporaryStoreError(
                f"{first}; gave up after {self.failed} tries in {spent_s:.1f} s{last}", error.retry_after_s
            ) from first
        threading.Event().wait(wait_s)
