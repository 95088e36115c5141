"""What writers of every shard format do: collect samples, store shards in the background, and the index at the end.

    write(sample) -> bytes of the sample -> the shard in memory --full--> [ compress, hash, store ] -> receipt
                                                                            on threads, in order
    finish()      -> the rest, then index.json

A dataset has an index when, and only when, every shard that the index names is stored whole.
"""

import contextlib
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import Any, NoReturn, Self, TypedDict

from headrace.datasets.samples.background import Background
from headrace.datasets.samples.index import ShardEntry, index_bytes
from headrace.datasets.samples.options import Place, checked_options, opened_outputs, size_limit_bytes
from headrace.datasets.samples.output import Output
from headrace.datasets.samples.pending import GATHER_BYTES, SPILL_BYTES, PendingShard
from headrace.datasets.samples.places import overlap
from headrace.datasets.samples.progress import ShardProgress
from headrace.datasets.samples.storing import Storing, other_settings
from headrace.datasets.samples.withdrawal import PRIVATE
from headrace.errors import ClosedError, FieldError, OptionError, OutputError, WriteError
from headrace.formats.compression import codec
from headrace.formats.digests import checked_hashes
from headrace.formats.sample_shards import LARGEST_OFFSET, SampleShards, ShardOptions
from headrace.store.below import directory_of

__all__ = ["SampleWriter", "WriterOptions"]

_DEFAULT_LIMIT = 1 << 26
_RENEW_EVERY = 64  # samples; few enough that none takes hours, many enough that asking costs nothing
_open: "weakref.WeakSet[SampleWriter]" = weakref.WeakSet()


class WriterOptions(TypedDict, total=False):
    """What all writers take besides where to write and what.

    keep_local      of a pair (local, remote), write to local as well
    compression     `br`, `bz2`, `gz`, `snappy` or `zstd`, with a level as in `zstd:7`; None for none
    hashes          names of digests that the index records of each file
    size_limit      of a data file before compression: bytes or a size such as "64mb"; None or 0 for one shard. A larger
                    sample gets a shard of its own (as a first sample after an empty shard, as Streaming does). What is
                    beyond 80 MiB waits in a file: in the directory, or for other stores where TMPDIR says
    progress_bar    show how many shards are stored
    max_workers     threads that compress, hash and store; there are max_workers + 2 shards in memory at most
    retry           how often to try again to store a file; a store that a URL names repeats by a policy of its own what
                    failed for a moment, before such a try counts as failed
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
        checked_options(given, WriterOptions.__annotations__)
        compressed, hashes = codec(given.get("compression") or None), checked_hashes(given.get("hashes"))
        size_limit = size_limit_bytes(given.get("size_limit", _DEFAULT_LIMIT))
        options = ShardOptions(compressed.name if compressed else None, hashes, size_limit)
        self._shards = shards(options)
        self._encode = self._shards.encode
        self._bytes_a_sample = self._shards.bytes_a_sample
        self._most_bytes = min(size_limit or LARGEST_OFFSET, LARGEST_OFFSET - self._shards.bytes_unseen)
        self._limited = bool(size_limit)
        stores = opened_outputs(out, keep_local=given.get("keep_local", False))
        if len(stores) > 1 and overlap(*stores):
            raise OptionError("out", out, "a pair (local, remote) of places of which neither is inside the other")
        self._output = Output(stores, retry=given.get("retry", 2))
        self.where = self._output.where
        self._process = os.getpid()
        entries, self._finished = self._output.open(
            exist_ok=given.get("exist_ok", False), resume=given.get("resume", False)
        )
        try:
            self.num_safe_samples = sum(entry.samples for entry in entries)  # in whole shards, as the writer opened
            self.num_samples = self.num_safe_samples  # written so far, those included
            self._num_shards = len(entries)
            if entries:
                self._refuse_other_settings(entries[0], options)
            self._progress = ShardProgress(given.get("progress_bar", False), self.where, self._num_shards)
            self._storing = Storing(
                self._shards, options, compressed, self._output, entries=entries, progress=self._progress
            )
            directory = directory_of(stores[-1])
            self._pending = PendingShard(directory / PRIVATE if directory is not None else None)
            self._background: Background[tuple[int, ShardEntry]] = Background(
                given.get("max_workers"), self._storing.note
            )
            self._begin_shard()
            self._closed = self._finished
        except BaseException:
            self._output.release()
            raise
        if self._finished:
            self._output.release()
        else:
            _open.add(self)

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
        if not self.num_samples % _RENEW_EVERY:
            self._renew()
        self._running_bytes += size
        self._pending.chunks.append(data)  # from here on the sample is in, even if Ctrl-C comes next
        self.num_samples += 1

    def flush_shard(self) -> None:
        """End the shard here, if it has any sample; the next one begins another."""
        if self._closed or self._background.failure is not None:
            self._refuse()
        if len(self._pending):
            with self._spoiled_by_failure():
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
            if self._background.failure is None and len(self._pending):
                self._end_shard()
            self._background.drain()
            if self._background.failure is not None:
                self._refuse()
            self._output.finish(index_bytes(self._storing.entries))
            self._finished = True
        except Exception as error:
            self._background.fail(error)
            raise
        finally:
            self._close()

    def cancel_future_jobs(self) -> None:
        """Give up: what runs ends, what waits does not begin, and there will be no index."""
        self._background.fail(
            WriteError(f"{self.where}: writing was cancelled; there is no index, and a writer with resume=True goes on")
        )
        self._output.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.finish()
        else:
            failure = self._background.failure
            self._give_up()
            if failure is not None and failure not in (error, error.__cause__):
                error.add_note(f"Storing had failed as well: {failure}")

    def __del__(self) -> None:
        # Dropped without an end. This may run in any thread, whatever it holds, so it waits for nothing: threads end
        # by themselves, and with the last one that stores files another writer of this process gets in.
        if not getattr(self, "_closed", True) and self._process == os.getpid():
            self._background.fail(self._interrupted())
            self._output.drop()
            self._progress.close()
            self._pending.close()

    def _give_up(self) -> None:
        if self._process == os.getpid():
            self.cancel_future_jobs()
            self._close()

    def _renew(self) -> None:
        """Keep the place while a shard takes hours to fill."""
        try:
            self._output.renew()
        except Exception as error:
            self._background.fail(error)
            self._refuse()

    def _begin_shard(self) -> None:
        self._running_bytes = self._shards.bytes_ahead
        self._spill_bytes = SPILL_BYTES
        self._watch()

    def _make_room(self, size: int) -> None:
        """Before a sample of this size: begin another shard, or put together what is there."""
        if self._running_bytes + size > self._most_bytes:
            alone = self._shards.bytes_ahead + size
            if alone > LARGEST_OFFSET - self._shards.bytes_unseen:
                problem = f"the sample needs {alone} bytes in its shard, which has at most {LARGEST_OFFSET}"
                raise FieldError(", ".join(self._column_names()), problem, f"sample {self.num_samples}")
            # Streaming begins with an empty shard where the first sample is larger than the limit.
            if len(self._pending) or (self._limited and self._num_shards == 0):
                with self._spoiled_by_failure():
                    self._end_shard()
        if self._pending.chunks:
            with self._spoiled_by_failure():
                if self._running_bytes + size > self._spill_bytes:
                    self._pending.spill()
                    self._spill_bytes = self._running_bytes + size + SPILL_BYTES
                else:
                    self._pending.gather()
        self._watch(size)

    def _watch(self, size: int = 0) -> None:
        self._watch_bytes = min(self._most_bytes, self._running_bytes + size + min(GATHER_BYTES, SPILL_BYTES))

    def _end_shard(self) -> None:
        self._background.submit(partial(self._storing.store, self._num_shards, *self._pending.take()))
        self._num_shards += 1
        self._begin_shard()

    @contextlib.contextmanager
    def _spoiled_by_failure(self) -> Iterator[None]:
        """A block that leaves samples half way when it fails, be it by Ctrl-C: then the writer writes no more."""
        try:
            yield
        except Exception as error:
            self._background.fail(error)
            self._refuse()
        except BaseException:
            self._background.fail(self._interrupted())
            raise

    def _column_names(self) -> list[str]:
        schema = self._shards.schema()
        return list(schema.get("column_names") or schema["columns"])

    def _refuse_other_settings(self, first: ShardEntry, options: ShardOptions) -> None:
        """OptionError where the shards that are there were written with other columns or options."""
        for name, (stored, wanted) in other_settings(first, self._shards, options).items():
            begun = f"{stored!r}, with which {self.where} was begun"
            raise OptionError(name, wanted, f"{begun}; go on with that, or start over without resume=True")

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
            raise self._interrupted()
        if failure is None:
            raise ClosedError(f"{self.where}: this writer is finished; open another to write another dataset")
        if isinstance(failure, WriteError | ClosedError):
            raise failure
        raise OutputError(self.where, f"{type(failure).__name__}: {failure}") from failure

    def _interrupted(self) -> ClosedError:
        return ClosedError(f"{self.where}: this writer was interrupted; one with resume=True goes on, if need be")

    def _refuse_fork(self) -> None:
        if self._process != os.getpid():
            raise self._inherited()

    def _inherited(self) -> ClosedError:
        return ClosedError(f"{self.where}: this writer belongs to the process that opened it; write there")

    @staticmethod
    def _refuse_in_child() -> None:
        # Here and not in write(), which has no time to ask whose process this is.
        for writer in _open:
            writer._background.fail(writer._inherited())


os.register_at_fork(after_in_child=SampleWriter._refuse_in_child)
