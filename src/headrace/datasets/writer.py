"""Appending records to shards: what the writers of all kinds share."""

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import TracebackType
from typing import Any, ClassVar, Generic, Self, TypeVar

from headrace.datasets.attempts import AttemptFile, OpenFiles, ShardAttempt
from headrace.datasets.publication import Publication
from headrace.datasets.upload_attempts import UploadAttempt, UploadQueue, begin_attempt
from headrace.errors import ClosedError, FieldError, TemporaryStoreError, WriteError
from headrace.manifest import JsonType
from headrace.store import Store

__all__ = ["ShardOutput", "Writer"]


class ShardOutput(ABC):
    """The files of one shard that is being written."""

    length = 0  # appended so far, in what the dataset counts
    is_torn = False  # an append did not end, and nobody knows how much of it was written

    def __init__(self, attempt: ShardAttempt, open_files: OpenFiles) -> None:
        self.attempt = attempt
        self._open_files = open_files

    @abstractmethod
    def append(self, packed: Any) -> None:
        """Append one packed record; everything about it has been checked."""

    def finish(self) -> None:  # noqa: B027 - most have nothing left to write
        """Write what was held back; the shard is about to be committed."""

    def _file(self, suffix: str) -> AttemptFile:
        return self.attempt.open_file(suffix, self._open_files)


F = TypeVar("F")
O = TypeVar("O", bound=ShardOutput)  # noqa: E741 - O for output


class Writer(ABC, Generic[F, O]):
    """Appends records to shards, and commits all of them when it closes.

    Until then nothing of a shard is visible; an older version of it stays readable. An exception in the `with` block
    commits none of them. However many shards are open, at most 64 files are. Safe to use from several threads. What is
    written to an object store waits in the directory for temporary files (TMPDIR) until the writer closes.
    """

    kind: ClassVar[str]
    counted: ClassVar[str] = "elements"  # what lengths count

    def __init__(
        self,
        store: Store,
        storage_format: F,
        schema: JsonType,
        publication: Publication,
        *,
        overwrite: bool,
        force: bool,
        tasks: Mapping[int, str] | None,
    ) -> None:
        self._store = store
        self._format = storage_format
        self._schema = schema
        self._publication = publication
        self._overwrite = overwrite
        self._force = force
        self._tasks = dict(tasks or {})
        self._lock = threading.Lock()
        self._process: int | None = None  # set while open
        self._generation = 0
        self._open_files = OpenFiles()
        self._shards: dict[int, O] = {}
        self._lengths: dict[int, int] = {}  # of the shards that were closed, too

    @abstractmethod
    def _packed(self, data: Any) -> Any:
        """The record as it will be written, every promise of its format checked; FieldError says what is wrong."""

    def _check_room(self, packed: Any, output: O | None) -> None:
        """FieldError when the shard (None: it would be a new one) has no room for this record."""

    @abstractmethod
    def _output(self, attempt: ShardAttempt, open_files: OpenFiles) -> O:
        """The files of a shard that has just begun."""

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
                self._commit()
            except TemporaryStoreError:
                self._abandon(is_down=True)
                raise
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
            self._begun(shard)

    def append(self, shard: int, data: Any) -> None:
        """Append one record, packed by the format. A record that does not fit is refused and leaves nothing behind.

        A shard is written whole: appending to one that was committed earlier replaces it when the writer closes.
        """
        try:
            packed = self._packed(data)
            self._check_open()
            with self._lock:
                self._check_open()
                output = self._shards.get(shard)
                self._check_room(packed, output)  # before the shard is begun: closing would commit it
                output = output or self._begun(shard)
                self._check_whole(shard, output)
                output.attempt.renew()
                output.is_torn = True
                output.append(packed)
                output.is_torn = False
                self._lengths[shard] = output.length
        except FieldError as error:
            place = f"the record after {self._lengths.get(shard, 0)} {self.counted} of shard {shard}"
            record = ", ".join(filter(None, [place, error.record]))
            raise FieldError(error.field, error.problem, record) from error

    def length(self, shard: int) -> int:
        """What was appended to the shard by this writer since it opened; KeyError when it has not begun it."""
        return self._lengths[shard]

    def _begun(self, shard: int) -> O:
        if (begun := self._shards.get(shard)) is not None:
            return begun
        number = int(shard)
        if number < 0 or number != shard:
            raise IndexError(f"shard {shard!r} must be an integer from 0 on")
        attempt = begin_attempt(self._store, number, self._publication, force=self._force)
        try:
            output = self._output(attempt, self._open_files)
        except BaseException:
            attempt.abandon()
            raise
        self._shards[number] = output
        self._lengths[number] = 0
        return output

    def _check_open(self) -> None:
        if self._process is None and self._lengths:
            raise ClosedError(
                "this writer was closed, which committed its shards, and nothing can be appended to a committed shard; "
                "write new records to another shard, or write this shard again with all its records"
            )
        if self._process is None:
            raise ClosedError("this writer is not open; use it in a `with` block, one block a session")
        if self._process != os.getpid():
            raise ClosedError("this writer belongs to the process that opened it; open one in each process")

    def _check_whole(self, shard: int, output: O) -> None:
        if output.is_torn:
            raise WriteError(
                f"shard {shard}: an earlier write failed half-way, so this shard cannot be committed; write it again"
            )

    def _commit(self) -> None:
        with UploadQueue(self._generation) as uploads:
            unfinished = self._send_ahead(uploads)
            while self._shards:
                shard = next(iter(self._shards))
                output = self._shards[shard]
                if shard in unfinished:
                    raise unfinished[shard]
                self._check_whole(shard, output)
                if self._store.capabilities.rename:
                    output.finish()
                uploads.wait_for(output.attempt)
                output.attempt.commit(
                    dtype=self._schema,
                    length=output.length,
                    generation=self._generation,
                    task=self._tasks.get(shard),
                )
                uploads.end(output.attempt)
                del self._shards[shard]

    def _send_ahead(self, uploads: UploadQueue) -> dict[int, Exception]:
        """Where files have to go up, let those of several shards go up at once; a shard that cannot, with its error."""
        if self._store.capabilities.rename:
            return {}
        for shard, output in self._shards.items():
            try:
                self._check_whole(shard, output)
                output.finish()
                uploads.add(output.attempt)
            except Exception as error:  # said at its turn: the shards before it are committed
                return {shard: error}
        return {}

    def _abandon(self, *, is_down: bool = False) -> None:
        """Give up the shards that are left; is_down: without a request, since the store does not answer."""
        while self._shards:
            attempt = self._shards.popitem()[1].attempt
            if is_down and isinstance(attempt, UploadAttempt):
                attempt.let_go()
            else:
                attempt.abandon()
