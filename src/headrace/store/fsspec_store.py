# ruff: noqa: D102 - Store documents the methods
"""Any place that fsspec reaches, as a store: Google's through gcsfs, Hugging Face's hub, and others to read."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import NotFoundError, ObjectChangedError, StoreError, TruncatedReadError, UnsupportedOperationError
from headrace.store.fsspec_backends import (
    capabilities_of,
    checked_url,
    file_info,
    md5_of,
    opened,
    shown,
    status_of,
    store_error,
)
from headrace.store.store import PIECE_BYTES, Buffer, FileInfo, Store, Stored, byte_view, checked_folder, checked_path
from headrace.store.store import checked_ranges as checked

__all__ = ["FsspecStore"]

NEAR_BYTES = 64 << 10  # ranges with at most this between them are asked for as one
SPAN_BYTES = 8 << 20  # and none so asked for is longer, unless one range is
AT_ONCE = 64  # requests of one call on their way together
ONE_REQUEST_BYTES = 32 << 20  # files up to here go up in one request
BOUNDARY = b"--==0=="  # between the parts of gcsfs's simple upload; data with it in go up another way

Views = list[memoryview]  # where `list` is a method

_left_behind: list[object] = []  # clients of a parent process: ending them here would end what it shares with us


class FsspecStore(Store):
    """The objects below a URL of any scheme that fsspec knows; options are the file system's own.

    Of gs:// and hf:// unknown ones are refused by name at first use; others may hand them to yet another client.

        FsspecStore("gs://bucket/prefix")                       # gcloud's credentials
        FsspecStore("gs://bucket/prefix", anonymous=True)
        FsspecStore("hf://datasets/owner/name@revision", token="...")

    For gs:// `endpoint`, `anonymous`, `credentials` and `request_timeout_s` (longest silence of a connection, 30) mean
    what they mean for other object stores. Only gs:// (and memory://) can be written; of the others fsspec does not say
    whether an object appears whole and whether one of two creators loses. Where the file system names no version
    (ETag, generation, digest), size and time of change stand for it.

    Every request is tried once (of hf:// a few times, by its own client): TemporaryStoreError says that another try may
    pass. A pickle carries the options, and with them credentials that were passed here; those of the environment stay
    there. Nothing of them is ever shown.
    """

    def __init__(self, url: str, **options: Any) -> None:
        self._scheme, self._url = checked_url(url)
        self._options = options
        self.location = shown(self._url)
        self.capabilities = capabilities_of(self._scheme)
        self._live: tuple[int, Any, str] | None = None  # process, file system, path in it

    def __repr__(self) -> str:
        return f"FsspecStore({self.location!r})"

    def __getstate__(self) -> dict[str, object]:
        return {"url": self._url, "options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        FsspecStore.__init__(self, state["url"], **state["options"])

    def head(self, path: str) -> FileInfo:
        return file_info(path, self._info(path))

    def stored(self, path: str) -> Stored:
        answer = self._info(path)
        return Stored(file_info(path, answer), md5_of(answer))

    def get(self, path: str) -> bytes:
        system, key = self._at(checked_path(path))
        with self._translated(path):
            data: bytes = system.cat_file(key)
        if not data:
            self.head(path)  # some file systems have empty folders
        return data

    def get_ranges(self, path: str, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> list[memoryview]:
        return self._ranges(checked_path(path), starts, lengths, {})

    def get_ranges_of(self, found: FileInfo, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> list[memoryview]:
        if not self.capabilities.exact_versions:
            return super().get_ranges_of(found, starts, lengths)
        try:  # the version is a number that Google's store takes: the answer is of that object, or there is none
            return self._ranges(checked_path(found.path), starts, lengths, {"generation": found.version}, found)
        except NotFoundError:
            self.head(found.path)
            raise ObjectChangedError(self._named(found.path)) from None

    def put(self, path: str, data: Buffer) -> None:
        self._needs("write", "write objects")
        self._pipe(path, data, "overwrite")

    def put_if_absent(self, path: str, data: Buffer) -> None:
        self._needs("conditional", "create an object only where none is")
        self._pipe(path, data, "create")

    def upload(self, path: str, file: str | Path, *, check: Callable[[], None] | None = None) -> None:
        self._needs("write", "write objects")
        system, key = self._at(checked_path(path))
        if self._scheme == "memory" or os.path.getsize(file) <= ONE_REQUEST_BYTES:
            return super().upload(path, file, check=check)
        with self._translated(path):
            writer = system.open(key, "wb", block_size=PIECE_BYTES)
        try:
            with open(os.fspath(file), "rb") as source:
                while piece := source.read(PIECE_BYTES):
                    with self._translated(path):
                        writer.write(piece)
            if check is not None:
                check()
            with self._translated(path):
                writer.close()
        except BaseException:
            self._discard(writer)
            raise

    def delete(self, path: str) -> None:
        self._needs("write", "delete objects")
        system, key = self._at(checked_path(path))
        if self._scheme == "memory" and not system.isfile(key):
            return  # it would remove folders, too
        try:
            with self._translated(path):
                system.rm_file(key)
        except NotFoundError:
            return

    def folders(self, folder: str = "") -> list[str]:
        return sorted({name for name, answer in self._entries(folder) if answer["type"] == "directory"})

    def list(self, folder: str = "", *, recursive: bool = True) -> list[FileInfo]:
        prefix = f"{checked_folder(folder)}/" if folder else ""
        if not recursive:
            files = [(name, answer) for name, answer in self._entries(folder) if answer["type"] == "file"]
            return sorted(file_info(prefix + name, answer) for name, answer in files)
        system, key = self._at(folder)
        try:
            with self._translated(folder):
                system.invalidate_cache()
                found = system.find(key, detail=True)
        except NotFoundError:
            return []
        below = [(self._below(key, name), answer) for name, answer in found.items()]
        return sorted(file_info(prefix + name, answer) for name, answer in below if name and not name.endswith("/"))

    def close(self) -> None:
        self._live = None

    def _info(self, path: str) -> dict[str, Any]:
        """What the file system says of the object."""
        system, key = self._at(checked_path(path))
        with self._translated(path):
            system.invalidate_cache()
            answer: dict[str, Any] = system.info(key)
        if answer.get("type") != "file":
            raise NotFoundError(f"{self._named(path)}: no such object")
        return answer

    def _entries(self, folder: str) -> Sequence[tuple[str, dict[str, Any]]]:
        """(name, answer) of what is directly below the folder."""
        system, key = self._at(checked_folder(folder))
        try:
            with self._translated(folder):
                system.invalidate_cache()
                answers = system.ls(key, detail=True)
        except NotFoundError:
            return []
        named = [(self._below(key, answer["name"].rstrip("/")), answer) for answer in answers]
        return [(name, answer) for name, answer in named if name]

    def _ranges(
        self,
        path: str,
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        pinned: dict[str, str],
        found: FileInfo | None = None,
    ) -> Views:
        where, system, key = self._named(path), *self._at(path)
        first, count = np.asarray(starts), np.asarray(lengths)
        try:
            ranges = checked(where, first, count, found.size_bytes if found else 1 << 62)
        except TruncatedReadError:
            ranges = checked(where, first, count, self.head(path).size_bytes)  # with the right number
        if not all(length for _, length in ranges):
            ranges = checked(where, first, count, (found or self.head(path)).size_bytes)
        spans, places = _spans(ranges)
        with self._translated(path):
            try:
                parts = _read(system, key, spans, pinned)
            except _ShortError:
                checked(where, first, count, self.head(path).size_bytes)
                raise StoreError(f"{where}: the store gave fewer bytes than were asked for; it was replaced") from None
        views = [memoryview(part) for part in parts]
        empty = memoryview(b"")
        return [
            views[span][offset : offset + length] if length else empty
            for (_, length), (span, offset) in zip(ranges, places, strict=True)
        ]

    def _pipe(self, path: str, data: Buffer, mode: str) -> None:
        system, key = self._at(checked_path(path))
        whole = data if isinstance(data, bytes) else bytes(byte_view(data))
        more = {"chunksize": len(whole)} if self._scheme != "memory" and BOUNDARY in whole else {}
        with self._translated(path):
            system.pipe_file(key, whole, mode=mode, **more)

    def _discard(self, writer: Any) -> None:
        """End an upload without an object. It must not fail: something else did."""
        with suppress(Exception):  # the store drops what is never completed
            writer.discard()
        writer.closed = True  # or its end would complete it

    def _at(self, path: str) -> tuple[Any, str]:
        """This process's file system, and the path in it."""
        live = self._live
        if live is None or live[0] != os.getpid():
            if live is not None:
                _left_behind.append(live)
            live = self._live = (os.getpid(), *opened(self._scheme, self._url, self._options))
        return live[1], f"{live[2]}/{path}" if path else live[2]

    def _named(self, path: str) -> str:
        return f"{self.location}/{path}"

    def _below(self, key: str, name: str) -> str:
        """The rest of a name behind the folder key; "" where it is not below it."""
        begin = key.strip("/") + "/"
        return name.lstrip("/")[len(begin) :] if name.lstrip("/").startswith(begin) else ""

    def _needs(self, capability: str, what: str) -> None:
        if not getattr(self.capabilities, capability):
            raise UnsupportedOperationError(self.location, what, "write to a local directory or to s3, gs or az")

    @contextmanager
    def _translated(self, path: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            known = store_error(error, self._named(path))
            if known is None or known is error:
                raise
            raise known from None  # in a traceback, the client's own error could show a signature; known has the rest


class _ShortError(Exception):
    """An answer has fewer bytes than were asked for, or none as it begins past the end."""


def _read(system: Any, key: str, spans: list[tuple[int, int]], pinned: dict[str, str]) -> list[bytes]:
    """The bytes of each (start, stop), asked for at once."""
    if len(spans) == 1:  # cat_ranges would go through the same, and more
        answers = [_one(system, key, *spans[0], pinned)]
    elif spans:
        starts, stops = map(list, zip(*spans, strict=True))
        more = {"batch_size": AT_ONCE, **pinned} if getattr(system, "async_impl", False) else pinned
        answers = system.cat_ranges([key] * len(spans), starts, stops, on_error="return", **more)
    else:
        answers = []
    parts: list[bytes] = []
    for answer, (start, stop) in zip(answers, spans, strict=True):
        if isinstance(answer, BaseException):
            if _is_past_the_end(answer):
                raise _ShortError
            raise answer
        if len(answer) != stop - start:
            raise _ShortError
        parts.append(answer)
    return parts


def _one(system: Any, key: str, start: int, stop: int, pinned: dict[str, str]) -> bytes | BaseException:
    try:
        answer: bytes = system.cat_file(key, start=start, end=stop, **pinned)
        return answer
    except Exception as error:
        return error


def _is_past_the_end(error: BaseException) -> bool:
    return status_of(error) == 416


def _spans(ranges: list[tuple[int, int]]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Near ranges as one: the (start, stop) of each span, and of every range the span and the offset in it."""
    spans: list[tuple[int, int]] = []
    places = [(0, 0)] * len(ranges)
    for index in sorted(range(len(ranges)), key=ranges.__getitem__):
        start, length = ranges[index]
        if not length:
            continue
        if spans:
            begin, stop = spans[-1]
            if start < stop or (start - stop <= NEAR_BYTES and start + length - begin <= SPAN_BYTES):
                spans[-1] = (begin, max(stop, start + length))
                places[index] = (len(spans) - 1, start - begin)
                continue
        spans.append((start, start + length))
        places[index] = (len(spans) - 1, 0)
    return spans, places
