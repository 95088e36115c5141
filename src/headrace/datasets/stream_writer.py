"""Appending records to the shards of a token stream."""

import os
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import numpy as np

from headrace.datasets.attempts import AttemptFile, OpenFiles, ShardAttempt
from headrace.datasets.publication import Publication
from headrace.errors import ClosedError, FieldError
from headrace.formats.stream import StreamFormat, disk_dtype, stored_elements
from headrace.manifest import dtype_to_json
from headrace.store import Store

__all__ = ["StreamWriter"]


class StreamWriter:
    """Appends records to shards, and commits all of them when it closes.

    Until then nothing of a shard is visible; an older version of it stays readable. An exception in the `with` block
    commits none of them. However many shards are open, at most 64 files are. Safe to use from several threads.
    """

    def __init__(
        self,
        store: Store,
        storage_format: StreamFormat,
        publication: Publication,
        *,
        overwrite: bool,
        force: bool,
        tasks: Mapping[int, str] | None,
    ) -> None:
        self._store = store
        self._format = storage_format
        self._publication = publication
        self._overwrite = overwrite
        self._force = force
        self._tasks = dict(tasks or {})
        self._disk = disk_dtype(storage_format.stream_dtype)
        self._dtype = dtype_to_json(self._disk)
        self._lock = threading.Lock()
        self._process: int | None = None  # set while open
        self._generation = 0
        self._open_files = OpenFiles()
        self._shards: dict[int, tuple[ShardAttempt, AttemptFile]] = {}
        self._lengths: dict[int, int] = {}

    def open(self) -> None:
        """Make the directory; nothing happens when it is open. PublishedError where a published dataset lies, unless
        overwrite=True."""
        if self._process == os.getpid():
            return
        self._generation = self._publication.start_writing(overwrite=self._overwrite)
        self._lengths = {}
        self._process = os.getpid()

    def close(self) -> None:
        """Commit every shard that was started. Twice is harmless.

        When one cannot be committed its error is raised and the ones after it are abandoned; those before it stand.
        """
        if self._process is not None:
            self._check_open()  # before the lock too: at the fork, a thread of the parent may have held it
        with self._lock:
            if self._process is None:
                return
            self._process = None
            try:
                while self._shards:
                    shard = next(iter(self._shards))
                    attempt, _ = self._shards[shard]
                    attempt.commit(
                        dtype=self._dtype,
                        length=self._lengths[shard],
                        generation=self._generation,
                        task=self._tasks.get(shard),
                    )
                    del self._shards[shard]
            finally:
                self._abandon()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        elif self._process == os.getpid():
            with self._lock:
                self._process = None
                self._abandon()

    def start(self, shard: int) -> None:
        """Own the shard without appending anything: closing then commits an empty shard."""
        self._check_open()
        with self._lock:
            self._check_open()
            self._file(shard)

    def append(self, shard: int, data: Any) -> None:
        """Append one record, packed by the format. A record that does not fit is refused and leaves nothing behind."""
        try:
            elements = stored_elements(self._format.pack(data), self._disk)
        except FieldError as error:
            place = f"the record after {self._lengths.get(shard, 0)} elements of shard {shard}"
            raise FieldError(error.field, error.problem, place) from error
        self._check_open()
        with self._lock:
            self._check_open()
            file = self._file(shard)
            if len(elements):
                file.append(elements.view(np.uint8).data)
                self._lengths[shard] += len(elements)

    def length(self, shard: int) -> int:
        """Elements appended to the shard by this writer since it opened; KeyError when it has not begun it."""
        return self._lengths[shard]

    def _file(self, shard: int) -> AttemptFile:
        begun = self._shards.get(shard)
        if begun is None:
            number = int(shard)
            if number < 0 or number != shard:
                raise IndexError(f"shard {shard!r} must be an integer from 0 on")
            attempt = ShardAttempt.begin(self._store, "stream", number, self._publication, force=self._force)
            begun = self._shards[number] = attempt, attempt.open_file("in_band.bin", self._open_files)
            self._lengths[number] = 0
        begun[0].renew()
        return begun[1]

    def _check_open(self) -> None:
        if self._process is None:
            raise ClosedError("this writer is not open; use it in a `with` block, one block a session")
        if self._process != os.getpid():
            raise ClosedError("this writer belongs to the process that opened it; open one in each process")

    def _abandon(self) -> None:
        while self._shards:
            self._shards.popitem()[1][0].abandon()
