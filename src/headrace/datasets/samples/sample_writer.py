"""What writers of every shard format do: collect samples, store shards in the background, and the index at the end.

    write(sample) -> bytes of the sample -> the shard in memory --full--> [ compress, hash, store ] -> receipt
                                                                            on threads, in order
    finish()      -> the rest, then index.json

A dataset has an index when, and only when, every shard that the index names is stored whole.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, NoReturn, Self, TypedDict

import numpy as np
from numpy.typing import NDArray

from headrace.datasets.samples.background import Background
from headrace.datasets.samples.index import (
    CsvEntry,
    FileEntry,
    JsonEntry,
    MdsEntry,
    ShardEntry,
    TsvEntry,
    XsvEntry,
    index_bytes,
    schema_of,
)
from headrace.datasets.samples.options import Place, opened_outputs, size_limit_bytes
from headrace.datasets.samples.output import PRIVATE, Output
from headrace.datasets.samples.pending import SPILL_BYTES, PendingShard, RawFile
from headrace.datasets.samples.progress import ShardProgress
from headrace.errors import ClosedError, FieldError, OptionError, OutputError, WriteError
from headrace.formats.compression import codec
from headrace.formats.digests import Digests, checked_hashes, digests
from headrace.formats.sample_shards import LARGEST_OFFSET, SampleShards, ShardOptions
from headrace.store import LocalStore

__all__ = ["SampleWriter", "WriterOptions"]

_ENTRIES: dict[str, Any] = {"mds": MdsEntry, "json": JsonEntry, "csv": CsvEntry, "tsv": TsvEntry, "xsv": XsvEntry}
_DEFAULT_LIMIT = 1 << 26
_SETTINGS = ("compression", "hashes", "size_limit")


class WriterOptions(TypedDict, total=False):
    """What all writers take besides where to write and what.

    keep_local      of a pair (local, remote), write to local as well
    compression     `br`, `bz2`, `gz`, `snappy` or `zstd`, with a level as in `zstd:7`; None for none
    hashes          names of digests that the index records of each file
    size_limit      of a data file before compression: bytes or a size such as "64mb"; None or 0 for one shard. A larger
                    sample gets a shard of its own (as a first sample after an empty shard, as Streaming does)
    progress_bar    show how many shards are stored
    max_workers     threads that compress, hash and store; there are max_workers + 2 shards in memory at most
    retry           how often to try again to store a file
    exist_ok        replace a dataset that is there: its index goes first, then its files; other files stay
    resume          go on after the last whole shard of an unfinished dataset; `num_safe_samples` tells where
    ignore_extra    leave out what a sample has besides the columns
    """

    keep_local: bool
    compression: str | None
    hashes: Iterable[str] | None
    size_limit: int | str | None
    progress_bar: bool
    max_workers: int | None
    retry: int
    exist_ok: bool
    resume: bool
    ignore_extra: bool


class SampleWriter:
    """Writes samples; use it as a context manager.

    Nothing is committed before finish(), which leaving the block calls: then index.json appears, and the dataset is
    there. An exception in the block leaves an unfinished dataset, which the next writer overwrites or, with
    resume=True, continues. A failure in the background is raised by the next write() or by finish(), as OutputError.
    Use one writer in one thread.
    """

    def __init__(
        self, shards: Callable[[ShardOptions], SampleShards], out: Place | tuple[Place, Place], given: WriterOptions
    ) -> None:
        if unknown := set(given) - set(WriterOptions.__annotations__):
            known = ", ".join(sorted(WriterOptions.__annotations__))
            raise OptionError(min(unknown), given.get(min(unknown)), f"no such option; there are {known}")
        self._codec = codec(given.get("compression") or None)
        self._hashes = checked_hashes(given.get("hashes"))
        size_limit = size_limit_bytes(given.get("size_limit", _DEFAULT_LIMIT))
        self._options = ShardOptions(self._codec.name if self._codec else None, self._hashes, size_limit)
        self._shards = shards(self._options)
        max_workers, retry = given.get("max_workers"), given.get("retry", 2)
        for option, value, least in (("max_workers", max_workers or 1, 1), ("retry", retry, 0)):
            if not isinstance(value, int) or value < least:
                raise OptionError(option, value, f"a whole number of at least {least}")
        if given.get("exist_ok") and given.get("resume"):
            raise OptionError("resume", True, "one of exist_ok, which starts over, and resume, which goes on")
        stores = opened_outputs(out, keep_local=given.get("keep_local", False))
        self._output = Output(stores, retry=retry)
        self.where = self._output.where
        self._encode = self._shards.encode
        self._bytes_a_sample = self._shards.bytes_a_sample
        self._most_bytes = min(size_limit or LARGEST_OFFSET, LARGEST_OFFSET - self._shards.bytes_unseen)
        self._limited = bool(size_limit)
        self._process = os.getpid()
        self._entries, self._finished = self._output.open(
            exist_ok=given.get("exist_ok", False), resume=given.get("resume", False)
        )
        self.num_safe_samples = sum(entry.samples for entry in self._entries)  # in whole shards, as the writer opened
        self.num_samples = self.num_safe_samples  # written so far, those included
        self._num_shards = len(self._entries)
        self._closed = self._finished
        try:
            self._refuse_other_settings()
        except BaseException:
            self._output.release()
            raise
        if self._finished:
            self._output.release()
        folder = stores[-1].root / PRIVATE if isinstance(stores[-1], LocalStore) else None
        self._pending = PendingShard(folder)
        self._background: Background[tuple[int, ShardEntry]] = Background(max_workers, self._commit)
        self._progress = ShardProgress(given.get("progress_bar", False), self.where, self._num_shards)
        self._begin_shard()

    def write(self, sample: Mapping[str, Any]) -> None:
        """Append one sample; FieldError, with its number and column, where it does not fit, and then nothing happened.

        OutputError when a shard before could not be stored.
        """
        if self._closed or self._background.failure is not None:
            self._refuse()
        data = self._encode(sample, self.num_samples)
        size = len(data) + self._bytes_a_sample
        if self._running_bytes + size > self._watch_bytes:
            self._make_room(size)
        self._running_bytes += size
        self._pending.chunks.append(data)
        self._pending.sizes.append(len(data))
        self.num_samples += 1

    def flush_shard(self) -> None:
        """End the shard here, if it has any sample; the next one begins another."""
        if self._closed or self._background.failure is not None:
            self._refuse()
        if self._pending.sizes:
            self._end_shard()

    def finish(self) -> None:
        """Store the rest and the index. Twice is harmless; after a failure it raises that again.

        What counts is when it returns: before, there is no index.
        """
        if self._closed:
            if not self._finished:
                self._refuse()
            return
        self._refuse_fork()
        try:
            if self._background.failure is None and self._pending.sizes:
                self._end_shard()
            self._background.drain()
            if self._background.failure is not None:
                self._refuse()
            self._output.finish(index_bytes(self._entries))
            self._finished = True
        except Exception as error:
            self._background.fail(error)
            raise
        finally:
            self._close()

    def cancel_future_jobs(self) -> None:
        """Give up: what runs ends, what waits does not begin, and there will be no index."""
        self._background.fail(WriteError(f"{self.where}: writing was cancelled; there is no index"))
        self._output.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.finish()
        else:
            self._give_up()

    def __del__(self) -> None:
        # Dropped without an end: another writer of this process must be able to take the place.
        if not getattr(self, "_closed", True):
            self._give_up()

    def _give_up(self) -> None:
        if self._process == os.getpid():
            self.cancel_future_jobs()
            self._close()

    def _begin_shard(self) -> None:
        self._running_bytes = self._shards.bytes_ahead
        self._watch_bytes = min(self._most_bytes, SPILL_BYTES)

    def _make_room(self, size: int) -> None:
        """Before a sample of this size: begin another shard, or move what is in memory to the disk."""
        if self._running_bytes + size > self._most_bytes:
            alone = self._shards.bytes_ahead + size
            if alone > LARGEST_OFFSET - self._shards.bytes_unseen:
                problem = f"the sample needs {alone} bytes in its shard, which has at most {LARGEST_OFFSET}"
                raise FieldError(", ".join(self._column_names()), problem, f"sample {self.num_samples}")
            # Streaming begins with an empty shard where the first sample is larger than the limit.
            if self._pending.sizes or (self._limited and self._num_shards == 0):
                self._end_shard()
        if self._running_bytes + size > SPILL_BYTES and self._pending.chunks:
            self._pending.spill()
        self._watch_bytes = min(self._most_bytes, self._running_bytes + size + SPILL_BYTES)

    def _end_shard(self) -> None:
        sizes, chunks, file = self._pending.take()
        self._background.submit(partial(self._stored, self._num_shards, sizes, chunks, file))
        self._num_shards += 1
        self._begin_shard()

    def _stored(self, shard: int, sizes: NDArray[np.int64], chunks: list[bytes], file: Any) -> tuple[int, ShardEntry]:
        """Compresses, hashes and stores the files of a shard; runs on a thread. The entry for the index comes back."""
        self._output.check()
        name = f"shard.{shard:05d}.{self._shards.format}"
        raw = RawFile(self._shards.head(sizes), chunks, file)
        chunks.clear()
        try:
            files = {f"{form}_data": entry for form, entry in self._store(name, raw)}
        finally:
            raw.close()
        if (meta := self._shards.meta(sizes)) is not None:
            files |= {f"{form}_meta": entry for form, entry in self._store(f"{name}.meta", RawFile(meta, []))}
        entry: ShardEntry = _ENTRIES[self._shards.format](
            version=2, samples=len(sizes), **self._options._asdict(), **files, **self._shards.schema()
        )
        return shard, entry

    def _store(self, name: str, raw: RawFile) -> list[tuple[str, FileEntry | None]]:
        found = Digests(self._hashes)
        if self._hashes:
            for piece in raw.pieces():
                found.update(piece)
        entry = FileEntry(name, raw.num_bytes, found.hex())
        if self._codec is None:
            self._output.put_raw(name, raw)
            return [("raw", entry), ("zip", None)]
        data = self._codec.compress(raw.whole())
        zip_name = f"{name}.{self._codec.extension}"
        self._output.put(zip_name, data)
        return [("raw", entry), ("zip", FileEntry(zip_name, len(data), digests(self._hashes, data)))]

    def _commit(self, result: tuple[int, ShardEntry]) -> None:
        shard, entry = result
        self._output.commit(shard, entry)
        self._entries.append(entry)
        self._progress.stored(entry.samples)

    def _column_names(self) -> list[str]:
        schema = self._shards.schema()
        return list(schema.get("column_names") or schema["columns"])

    def _refuse_other_settings(self) -> None:
        """OptionError where the shards that are there were written with other columns or options."""
        if not self._entries:
            return
        first = self._entries[0]
        asked = _ENTRIES[self._shards.format](
            version=2,
            samples=0,
            **self._options._asdict(),
            **self._shards.schema(),
            raw_data=first.raw_data,
            zip_data=None,
            **({"raw_meta": first.raw_data, "zip_meta": None} if self._shards.has_meta else {}),
        )
        settings = {name: (getattr(first, name), getattr(asked, name)) for name in _SETTINGS}
        settings["columns"] = (schema_of(first), schema_of(asked))
        for name, (stored, wanted) in settings.items():
            if stored != wanted and not self._finished:
                raise OptionError(name, wanted, f"{stored!r}, with which {self.where} was begun, to resume it")

    def _close(self) -> None:
        self._closed = True
        self._progress.close()
        self._background.close()
        self._pending.close()
        self._output.release()

    def _refuse(self) -> NoReturn:
        self._refuse_fork()
        failure = self._background.failure
        if failure is None and not self._finished:
            raise ClosedError(f"{self.where}: this writer was interrupted; there is no index")
        if failure is None:
            raise ClosedError(f"{self.where}: this writer is finished; open another to write another dataset")
        if isinstance(failure, WriteError):
            raise failure
        raise OutputError(self.where, f"{type(failure).__name__}: {failure}") from failure

    def _refuse_fork(self) -> None:
        if self._process != os.getpid():
            raise ClosedError(f"{self.where}: this writer belongs to the process that opened it; write there")
