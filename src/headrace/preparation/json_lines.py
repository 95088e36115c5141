"""One file of JSON lines as a target of `prepare`: parts beside it, joined at the end.

out.jsonl                      the file, whole, or not there
.out.jsonl.headrace/parts/     while it is being made: a dataset of documents, each a line; its files, one after
                               the other, are the lines
.out.jsonl.headrace/done.json  which tasks made the file, by which the same preparation knows that it is done
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import xxhash

from headrace.datasets import DocumentStorage
from headrace.datasets.payloads import DATA
from headrace.errors import CorruptShardError, NotFoundError, PublishedError
from headrace.formats.documents import DocumentBytesFormat
from headrace.preparation.tasks import ShardWriter
from headrace.store import LocalStore

__all__ = ["JsonLinesFile"]

_DONE = "done.json"
_PARTS = "parts"
_JOINED = "joined-"
_BLOCK_BYTES = 4 << 20


class _Done(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    tasks: list[str]
    num_lines: int
    size_bytes: int  # size and time of the file tell whether it is still the one that the tasks made
    modified_ns: int


class JsonLinesFile:
    """A file of JSON lines; its writer appends lines, with their ends. Constructing it reads and writes nothing."""

    takes_metadata: ClassVar[bool] = False

    def __init__(self, path: str | Path) -> None:
        self.path = Path(os.path.abspath(path))
        self._private = LocalStore(self.path.with_name(f".{self.path.name}.headrace"))
        self._parts = DocumentStorage(self._private.root / _PARTS, DocumentBytesFormat())

    @property
    def storage_dir(self) -> Path:
        """The file."""
        return self.path

    def sync_writer(
        self, *, overwrite: bool = False, force: bool = False, tasks: Mapping[int, str] | None = None
    ) -> AbstractContextManager[ShardWriter]:
        """A writer of parts."""
        return self._parts.sync_writer(overwrite=overwrite, force=force, tasks=tasks)

    def record_plan(self, tasks: Sequence[str], *, overwrite: bool = False) -> None:
        """Record the tasks.

        PublishedError where the file is there already, unless overwrite=True: then it stays until the new one takes its
        place, but no longer counts as what the tasks made that wrote it.
        """
        if self.path.exists() and not overwrite:
            raise PublishedError(str(self.path), "is there already, and not what this preparation makes")
        self._private.delete(_DONE)
        self._parts.record_plan(tasks)

    def planned_tasks(self) -> list[str] | None:
        """The tasks that made the file, None where nobody knows."""
        done = self._done()
        return None if done is None else done.tasks

    def finished_tasks(self) -> dict[int, str]:
        """shard -> task of the parts that are there."""
        return self._parts.finished_tasks()

    def finished_length(self) -> int:
        """Lines in those parts."""
        return self._parts.finished_length()

    def is_published(self) -> bool:
        """Whether the file is there."""
        return self.path.exists()

    def recover(self) -> None:
        """Remove what dead processes left."""
        for info in self._private.list(recursive=False):
            if info.path.startswith(_JOINED):
                self._private.delete(info.path)
        self._private.remove_orphans()
        self._parts.recover()

    def publish(self, metadata: Mapping[str, Any] | None = None) -> None:
        """Join the parts to the file, which appears whole. Twice is harmless. UnfinishedDatasetError without some."""
        if self._done() is None:
            self._join()
        self._private.remove_folder(_PARTS)

    def describe(self) -> dict[str, Any]:
        """One file, its lines and its bytes."""
        done = self._done()
        if done is None:
            raise NotFoundError(str(self.path), "it is not finished")
        return {"num_shards": 1, "total_length": done.num_lines, "total_bytes": done.size_bytes}

    def settings_digest(self) -> str:
        """What decides the bytes: nothing but the lines."""
        return "json lines"

    def _join(self) -> None:
        opened = self._parts.open()
        tasks = self._parts.planned_tasks() or []
        joined = self._private.root / f"{_JOINED}{os.getpid()}.tmp"
        try:
            with open(joined, "wb") as file:
                for number, shard in enumerate(opened.manifest.shards):
                    self._copy(number, shard.file(DATA).name, shard.file(DATA).xxh3_128, file)
                file.flush()
                os.fsync(file.fileno())
                stat = os.fstat(file.fileno())
            done = _Done(1, tasks, opened.manifest.total_length, stat.st_size, stat.st_mtime_ns)
            # Before the file itself: a record without its file says nothing, a file without record would be a stranger.
            self._private.put(_DONE, msgspec.json.encode(done))
            os.replace(joined, self.path)
        finally:
            joined.unlink(missing_ok=True)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _copy(self, number: int, name: str, digest: str, target: Any) -> None:
        found = xxhash.xxh3_128()
        with open(self._private.root / _PARTS / name, "rb") as part:
            while block := part.read(_BLOCK_BYTES):
                found.update(block)
                target.write(block)
        if found.hexdigest() != digest:
            raise CorruptShardError(str(self._private.root / _PARTS), number, f"{name} is not what was written")

    def _done(self) -> _Done | None:
        try:
            done = msgspec.json.decode(self._private.get(_DONE), type=_Done)
            stat = os.stat(self.path)
        except (NotFoundError, FileNotFoundError, msgspec.DecodeError):
            return None
        return done if (done.size_bytes, done.modified_ns) == (stat.st_size, stat.st_mtime_ns) else None
