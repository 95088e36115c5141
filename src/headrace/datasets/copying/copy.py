"""copy_dataset: a dataset at another place, the same to the byte, and there as a whole or not at all."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import xxhash

from headrace.datasets.copying.contents import Contents, CopiedFile, contents_of
from headrace.datasets.copying.destination import Destination
from headrace.datasets.copying.transfer import DamagedCopyError, StoppedError, Transfer
from headrace.datasets.samples.options import Place, opened_place
from headrace.datasets.samples.places import overlap
from headrace.datasets.samples.withdrawal import content
from headrace.errors import (
    CorruptShardError,
    DatasetChangedError,
    ExistingOutputError,
    NotFoundError,
    OptionError,
)
from headrace.store import FileInfo, Store

__all__ = ["CopyReport", "Tell", "copy_dataset"]

_WORKERS = 8
_TICK_S = 2.0  # how often the lease may be renewed

Tell = Callable[[int, int], None]  # bytes read now, bytes in all


@dataclass(frozen=True)
class CopyReport:
    """What a copy did. fingerprint is None for files that another program wrote."""

    copied_files: int
    copied_bytes: int
    skipped_files: int  # that were there already
    seconds: float
    fingerprint: str | None


def copy_dataset(source: Place, destination: Place, *, workers: int = _WORKERS, tell: Tell | None = None) -> CopyReport:
    """Copies the dataset, of whatever kind, to an empty place; what it did comes back.

    Both are a directory, a URL or a Store. Every file is compared with its recorded digest as it passes, and with its
    size once it is stored. The manifest or index comes last, and only if nobody else put one there: before that the
    copy is an unfinished dataset. A dataset of which only receipts tell is published by its copy. Files beside the
    dataset are not copied.

    Run it again after an interruption: files that this copy stored whole are skipped. What is being copied is noted at
    the destination; files without a recorded digest count as the same while the source has the same version of them.
    Where the copy is whole already, nothing is written, and what a killed copy left beside it goes; files without a
    recorded digest are read on both sides then.

    workers threads copy a file each, with a few pieces of 8 MiB in memory. tell hears, from any of them, (bytes read
    now, bytes in all); now can be negative where a file is read again.

    Raises ExistingOutputError where anything but this dataset is at the destination, ShardOwnedError while somebody
    writes there, CorruptShardError for a source that is not as recorded, DatasetChangedError where it is replaced
    meanwhile, StoreError where a store fails; UnfinishedDatasetError and NoDatasetError for a source that is no whole
    dataset.
    """
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise OptionError("workers", workers, "a whole number of at least 1")
    began_s = time.monotonic()
    read, written = opened_place(source, "source"), opened_place(destination, "destination")
    if overlap(read, written):
        raise OptionError("destination", destination, f"a place that is neither in {read.location} nor around it")
    contents = contents_of(read)
    target = Destination(written, contents)
    found = target.look()
    try:
        if target.is_littered(found):
            found = target.clear(found, read.location)
        elif not found.is_whole:
            found = target.begin(read.location)
            if found.is_whole:  # somebody was faster
                target.tidy()
        if found.is_whole:
            _refuse_other_bytes(read, written, [file for file in contents.files if not file.digest], workers)
            return CopyReport(0, 0, len(contents.files), time.monotonic() - began_s, contents.fingerprint)
        left = [file for file in contents.files if not _is_whole(file, found.files)]
        with _told_if_replaced(read, contents):
            copied = _copy_files(_Job(read, target, contents.private, tell), contents.files, left, workers)
        target.confirm(copied)
        if contents_of(read).identity != contents.identity:
            raise DatasetChangedError(read.location, "it was replaced while it was copied")
        target.commit()
        target.tidy()
    finally:
        target.release()
    num_bytes = sum(file.size_bytes for file in left)
    skipped = len(contents.files) - len(left)
    return CopyReport(len(left), num_bytes, skipped, time.monotonic() - began_s, contents.fingerprint)


@contextlib.contextmanager
def _told_if_replaced(source: Store, contents: Contents) -> Iterator[None]:
    """DatasetChangedError instead of what follows from it: a file that is gone, or has other bytes than recorded."""
    try:
        yield
    except (NotFoundError, CorruptShardError) as error:
        for path, data in contents.commits[-1:]:
            if content(source, path) != data and not contents.made_here:
                raise DatasetChangedError(source.location, f"{path} was replaced while it was copied") from error
        raise


@dataclass(frozen=True)
class _Job:
    """From where to where."""

    source: Store
    target: Destination
    private: str
    tell: Tell | None


def _copy_files(job: _Job, files: list[CopiedFile], left: list[CopiedFile], workers: int) -> dict[str, FileInfo]:
    """Copy what is left of the files; what the destination says of them comes back."""
    total = sum(file.size_bytes for file in files)
    tell = job.tell or (lambda now, total: None)
    tell(total - sum(file.size_bytes for file in left), total)
    stop = threading.Event()
    transfer = Transfer(
        job.source,
        job.target.store,
        private=job.private,
        tell=lambda now: tell(now, total),
        check=job.target.check,
        stopped=stop.is_set,
    )
    pool = ThreadPoolExecutor(workers, "headrace-copy")
    largest_first = sorted(left, key=lambda file: -file.size_bytes)
    try:
        running = {pool.submit(transfer.copy, file): file for file in largest_first}
        _await(running, job)
        return {file.path: future.result() for future, file in running.items()}
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


def _await(running: dict[Future[FileInfo], CopiedFile], job: _Job) -> None:
    """Return when all are done; the first failure is raised."""
    left: Iterable[Future[FileInfo]] = running
    while left:
        done, left = wait(left, timeout=_TICK_S, return_when=FIRST_EXCEPTION)
        for future in done:
            error = future.exception()
            if isinstance(error, DamagedCopyError):
                raise CorruptShardError(job.source.location, _shard_of(running[future].path), str(error)) from None
            if error is not None and not isinstance(error, StoppedError):
                raise error
        job.target.renew()


def _shard_of(path: str) -> int:
    digits = "".join(part for part in path.rpartition("/")[2].split(".") if part.isdecimal())
    return int(digits or 0)


def _is_whole(file: CopiedFile, files: dict[str, FileInfo]) -> bool:
    return file.path in files and files[file.path].size_bytes == file.size_bytes


def _refuse_other_bytes(source: Store, target: Store, files: list[CopiedFile], workers: int) -> None:
    """ExistingOutputError where files of the same names and sizes, of which no digest tells, are not the same.

    Samples of one length make equal indexes, whatever is in them.
    """

    def refuse(file: CopiedFile) -> None:
        if _digest(source, file.path) != _digest(target, file.path):
            raise ExistingOutputError(target.location, f"holds another {file.path}", "remove what is there first")

    with ThreadPoolExecutor(workers, "headrace-compare") as pool:
        comparing = [pool.submit(refuse, file) for file in files]
        try:
            for comparison in comparing:
                comparison.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _digest(store: Store, path: str) -> str:
    digest = xxhash.xxh3_128()
    for piece in store.pieces(path):
        digest.update(piece)
    return digest.hexdigest()
