# ruff: noqa: D102 - Store documents the methods
"""Object stores through obstore: S3, Azure Blob Storage, and reading over HTTP.

Every method sends each request once: what fails in a way that may pass raises TemporaryStoreError, and a RetryingStore
around it decides what then. `object_places.py` holds URLs and options, `object_requests.py` this process's connection,
`object_ranges.py` how many ranges become few requests, `object_threads.py` the threads that wait for them,
`object_errors.py` what a failure means, `object_heads.py` the digest that Azure has of what it keeps, and
`obstore_client.py` obstore in a forked process.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.errors import (
    NotFoundError,
    ObjectChangedError,
    StoreError,
    TemporaryStoreError,
    TruncatedReadError,
    UnsupportedOperationError,
)
from headrace.store.object_errors import TEMPORARY, PastEndError
from headrace.store.object_heads import asked, early_s, signed_url
from headrace.store.object_places import object_place
from headrace.store.object_ranges import GAP_BYTES, SPAN_BYTES, Span, answered, merged, sliced
from headrace.store.object_requests import ObjectRequests
from headrace.store.object_threads import interruptible
from headrace.store.store import (
    PIECE_BYTES,
    Buffer,
    Capabilities,
    FileInfo,
    Store,
    Stored,
    byte_view,
    checked_folder,
    checked_path,
    checked_ranges,
)

__all__ = ["ObjectStore"]

_LARGEST = 2**63 - 1
_AHEAD_S = 5.0  # this machine's clock may be of the store's, and nobody loses a digest by it
_SINGLE_BYTES = 32 << 20  # up to here an object goes up in one request
_PART_BYTES = 16 << 20
_PARTS_AT_ONCE = 4
_MOST_PARTS = 9000  # S3 allows 10,000
_REQUESTS_AT_ONCE = 16
_MANY_SPANS = _REQUESTS_AT_ONCE + 1  # from here on obstore sends them, and one more request proves the version
_CALL_SPANS = (10, 128)  # it has ten on their way at a time
_CALLS_AT_ONCE = 4


class ObjectStore(Store):
    """The objects below a URL: s3://, az:// (also azure://, abfs://, abfss://), or http(s):// to read.

    Options are those of ObjectOptions. `version` is the ETag: of S3 a digest of the bytes, so that a replacement by
    equal bytes may keep it. Pickles as its configuration, explicit credentials included, because workers need them.
    """

    def __init__(self, url: str | Path, **options: Any) -> None:
        self.place = object_place(str(url), options)
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
        self._requests = ObjectRequests(self.place)
        self._tells_md5 = self.place.kind == "azure" and not self.place.options.anonymous
        self._single_bytes = _SINGLE_BYTES * (2 if self._tells_md5 else 1)  # of one in parts, Azure has no digest

    def __repr__(self) -> str:
        return f"ObjectStore({self.location!r})"

    def head(self, path: str) -> FileInfo:
        return interruptible(lambda: self._head(path))

    def _head(self, path: str) -> FileInfo:
        with self._requests.about(path) as (obstore, client, key):
            return self._info(obstore.head(client, key), path)

    def stored(self, path: str) -> Stored:
        return interruptible(lambda: self._stored(path))

    def _stored(self, path: str) -> Stored:
        url = self._signed_url(path)
        head = asked(url, {}, self.place.options.request_timeout_s) if url else None
        if head and head.status == 403 and 0 < (wait_s := early_s(url, head)) <= _AHEAD_S:
            threading.Event().wait(wait_s)
            head = asked(url, {}, self.place.options.request_timeout_s)
        if head and head.status == 200:
            with suppress(KeyError, ValueError):
                return Stored(self._info(head.meta(), path), head.md5())
        if head and head.status in TEMPORARY:
            raise TemporaryStoreError(f"{self._named(path)}: {head.status} when its digest was asked for")
        found = self._head(path)
        self._tells_md5 &= head is None or head.status == 0  # what was refused once would be so each time
        return Stored(found)

    def _signed_url(self, path: str) -> str:
        """Where the object's digest is to be asked for; "" where that cannot be."""
        if not self._tells_md5:
            return ""
        try:
            with self._requests.about(path) as request:
                return signed_url(self.place, request)
        except TemporaryStoreError:
            raise
        except StoreError:
            self._tells_md5 = False
            return ""

    def get(self, path: str) -> bytes:
        return interruptible(lambda: self._get(path))

    def _get(self, path: str) -> bytes:
        with self._requests.about(path) as (obstore, client, key):
            result = obstore.get(client, key)
            data = bytes(result.bytes())
        if len(data) != result.meta["size"]:
            raise TemporaryStoreError(f"{self._named(path)}: {len(data)} of {result.meta['size']} bytes came")
        return data

    def get_ranges(self, path: str, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> list[memoryview]:
        return self.read_ranges(path, None, (starts, lengths), {})

    def get_ranges_of(self, found: FileInfo, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> list[memoryview]:
        return self.read_ranges(found.path, found, (starts, lengths), {})

    def read_ranges(
        self,
        path: str,
        found: FileInfo | None,
        wanted: tuple[NDArray[np.int64], NDArray[np.int64]],
        done: dict[Any, Any],
    ) -> list[memoryview]:
        """get_ranges (with found: get_ranges_of) of wanted starts and lengths, keeping in done what came already."""
        return interruptible(lambda: self._ranges(path, found, wanted, done))

    def _ranges(
        self,
        path: str,
        found: FileInfo | None,
        wanted: tuple[NDArray[np.int64], NDArray[np.int64]],
        done: dict[Any, Any],
    ) -> list[memoryview]:
        checked_path(path)
        where = self._named(path)
        try:
            ranges = checked_ranges(where, *wanted, found.size_bytes if found else _LARGEST)
        except TruncatedReadError:
            if found:
                raise
            return self._ranges(path, self.head(path), wanted, done)  # raises, and names the true size
        spans = merged(ranges, GAP_BYTES, SPAN_BYTES)
        if not found and ranges and (not spans or len(spans) >= _MANY_SPANS):
            found = done["found"] = done.get("found") or self.head(path)
            ranges = checked_ranges(where, *wanted, found.size_bytes)
        if found and len(spans) >= _MANY_SPANS:
            return sliced(ranges, spans, self._many(found, spans, done))
        answers = answered(
            [(span.start, span.stop) for span in spans],
            lambda bounds: self._one(path, bounds),
            done,
            at_once=_REQUESTS_AT_ONCE,
        )
        if found and ranges and not spans and self.head(path).version != found.version:
            raise ObjectChangedError(where)
        for answer in answers:
            found = found or answer.found
            if answer.found.version != found.version:
                raise ObjectChangedError(where)
        if found:
            checked_ranges(where, *wanted, found.size_bytes)
        return sliced(ranges, spans, [answer.data for answer in answers])

    def stream(
        self, path: str, piece_bytes: int, start: int = 0, found: FileInfo | None = None
    ) -> tuple[FileInfo, Iterator[memoryview]]:
        """What the object is, and its bytes from start on in pieces, by one request; of found's version if given."""
        return interruptible(lambda: self._stream(path, piece_bytes, start, found))

    def _stream(
        self, path: str, piece_bytes: int, start: int, found: FileInfo | None
    ) -> tuple[FileInfo, Iterator[memoryview]]:
        if found and start >= found.size_bytes:
            return found, iter(())
        options = {"range": {"offset": start}} if start else None
        with self._requests.about(path) as (obstore, client, key):
            result = obstore.get(client, key, options=options)
            now = self._info(result.meta, path)
        if found and now.version != found.version:
            raise ObjectChangedError(self._named(path))
        return now, self._pieces_of(path, result, piece_bytes)

    def pieces(self, path: str, piece_bytes: int = PIECE_BYTES) -> Iterator[memoryview]:
        now, pieces = self.stream(path, piece_bytes)
        came = 0
        for piece in pieces:
            came += len(piece)
            yield piece
        if came != now.size_bytes:
            raise TemporaryStoreError(f"{self._named(path)}: {came} of {now.size_bytes} bytes came")

    def put(self, path: str, data: Buffer) -> None:
        self._needs_write()
        with self._requests.about(path, sent_bytes=memoryview(data).nbytes) as (obstore, client, key):
            obstore.put(client, key, byte_view(data), use_multipart=False)

    def put_if_absent(self, path: str, data: Buffer) -> None:
        self._needs_write()
        with self._requests.about(path, sent_bytes=memoryview(data).nbytes) as (obstore, client, key):
            obstore.put(client, key, byte_view(data), mode="create", use_multipart=False)

    def upload(self, path: str, file: str | Path, *, check: Callable[[], None] | None = None) -> None:
        """As Store says; above 32 MiB (Azure: 64) in parts, of which at most 64 MiB are in memory.

        check is called when the last part is on its way. What it raises takes the parts back.
        """
        self._needs_write()
        checked_path(path)
        with open(os.fspath(file), "rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            if size <= self._single_bytes:
                data = opened.read()
                if check is not None:
                    check()
                self.put(path, data)
                return
            part_bytes = max(_PART_BYTES, -(-size // _MOST_PARTS))

            def parts() -> Iterator[bytes]:
                while part := opened.read(part_bytes):
                    yield part
                if check is not None:
                    with ThreadPoolExecutor(1, "headrace-check") as elsewhere:
                        # It may ask this very store, and obstore's requests cannot wait inside one another.
                        elsewhere.submit(check).result()

            with self._requests.about(path, sent_bytes=size) as (obstore, client, key):
                obstore.put(
                    client,
                    key,
                    parts(),
                    use_multipart=True,
                    chunk_size=part_bytes,
                    max_concurrency=_PARTS_AT_ONCE,
                )

    def delete(self, path: str) -> None:
        self._needs_write()
        with suppress(NotFoundError), self._requests.about(path) as (obstore, client, key):
            obstore.delete(client, key)

    def folders(self, folder: str = "") -> list[str]:
        listed = interruptible(lambda: self._listed(folder, recursive=False))
        return sorted({name.rstrip("/").rpartition("/")[2] for name in listed["common_prefixes"]})

    def list(self, folder: str = "", *, recursive: bool = True) -> list[FileInfo]:
        listed = interruptible(lambda: self._listed(folder, recursive=recursive))
        found = [self._info(meta, self.place.path(meta["path"])) for meta in listed["objects"]]
        return sorted(self._without_markers(found, checked_folder(folder), recursive=recursive))

    def close(self) -> None:
        self._requests.close()

    def _named(self, path: str) -> str:
        return f"{self.location}/{path}"

    def _needs_write(self) -> None:
        if not self.capabilities.write:
            raise UnsupportedOperationError(self.location, "write or delete objects", "HTTP is for reading only")

    def _info(self, meta: Any, path: str) -> FileInfo:
        modified_s = float(int(meta["last_modified"].timestamp()))  # some listings know more digits than head() does
        tag = (meta["e_tag"] or "").removeprefix("W/").strip('"')
        return FileInfo(path, meta["size"], tag or f"{modified_s:.0f}-{meta['size']}", modified_s)

    def _one(self, path: str, bounds: tuple[int, int]) -> "_Answer":
        """Bytes bounds[0] to bounds[1] by one request, which also says of which version they are.

        Fewer only where the object ends before bounds[1].
        """
        try:
            with self._requests.about(path) as (obstore, client, key):
                result = obstore.get(client, key, options={"range": bounds})
                answer = _Answer(self._info(result.meta, path), memoryview(result.bytes()))
        except PastEndError:
            answer = _Answer(self.head(path), memoryview(b""))
        if answer.found.size_bytes >= bounds[1]:
            self._check_whole(path, bounds, answer.data)
        return answer

    def _many(self, found: FileInfo, spans: Sequence[Span], done: dict[Any, Any]) -> Sequence[memoryview]:
        """The spans' bytes by as few calls as obstore needs to be quick; all of found's version."""
        path = found.path
        call_spans = min(max(_CALL_SPANS[0], -(-len(spans) // _CALLS_AT_ONCE)), _CALL_SPANS[1])

        def call(first: int) -> Sequence[memoryview]:
            some = spans[first : first + call_spans]
            with self._requests.about(path) as (obstore, client, key):
                bounds = {"starts": [span.start for span in some], "ends": [span.stop for span in some]}
                views = [memoryview(part) for part in obstore.get_ranges(client, key, coalesce=0, **bounds)]
            for span, view in zip(some, views, strict=True):
                self._check_whole(path, (span.start, span.stop), view)
            return views

        try:
            calls = answered(range(0, len(spans), call_spans), call, done, at_once=_CALLS_AT_ONCE)
        except PastEndError:
            calls = None
        if self.head(path).version != found.version:  # after reading, so that what was read is good
            raise ObjectChangedError(self._named(path))
        if calls is None:
            raise TemporaryStoreError(f"{self._named(path)}: a range within the object was said to be past its end")
        return [view for views in calls for view in views]

    def _check_whole(self, path: str, bounds: tuple[int, int], data: memoryview) -> None:
        start, stop = bounds
        if len(data) != stop - start:
            raise TemporaryStoreError(f"{self._named(path)}: {len(data)} of {stop - start} bytes came from {start} on")

    def _pieces_of(self, path: str, result: Any, piece_bytes: int) -> Iterator[memoryview]:
        with self._requests.about(path):
            chunks = iter(result.stream(min_chunk_size=max(1, piece_bytes // 2)))
            while (chunk := interruptible(lambda: next(chunks, None))) is not None:
                view = memoryview(chunk).toreadonly()
                for begin in range(0, len(view), piece_bytes):
                    yield view[begin : begin + piece_bytes]

    def _without_markers(self, found: Sequence[FileInfo], folder: str, *, recursive: bool) -> Iterable[FileInfo]:
        """What is listed but for the empty objects "folder/" that some programs make; obstore drops their "/"."""
        found = [each for each in found if each.path != folder]
        # Below a folder that is not gone into, none are listed.
        empty = [each.path for each in found if recursive and not each.size_bytes]
        there = answered(empty, self._is_there, {}, at_once=_REQUESTS_AT_ONCE)
        absent = {path for path, is_there in zip(empty, there, strict=True) if not is_there}
        # Where an object has the name of a folder with such an object, both are listed by it: it is the larger.
        return {each.path: each for each in sorted(found) if each.path not in absent}.values()

    def _is_there(self, path: str) -> bool:
        try:
            return bool(self.head(path))
        except NotFoundError:
            return False

    def _listed(self, folder: str, *, recursive: bool) -> Any:
        if not self.capabilities.listing:
            raise UnsupportedOperationError(self.location, "list objects", "name the files to read")
        prefix = self.place.key(checked_folder(folder)) or None
        with self._requests.about(folder, folder=True) as (obstore, client, _):
            if recursive:
                return {"objects": obstore.list(client, prefix, chunk_size=1000).collect()}
            return obstore.list_with_delimiter(client, prefix)


class _Answer(NamedTuple):
    """Bytes of an object, and what the same response said of it."""

    found: FileInfo
    data: memoryview
