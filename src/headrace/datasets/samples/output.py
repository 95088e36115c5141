"""Where the files of a dataset of samples go: stored whole and checked, each shard noted, the index last.

    OUT/.headrace/samples/leases/         one writer at a time
    OUT/.headrace/samples/begun           that a writer began; while it removes an older dataset, what has to go
    OUT/.headrace/samples/shard.NNNNN     the receipt of a shard whose files are all there: its entry in the index
    OUT/shard.NNNNN.*                     its files
    OUT/index.json                        the commit; when it is there, .headrace goes

Without an index and with `.headrace/samples` the dataset is unfinished. Receipts are written in order, and removed in
the opposite order, so that those that are there are a beginning, and a writer can go on behind them.
"""

import contextlib
import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from headrace.datasets.neighbours import refuse_shards
from headrace.datasets.samples.index import INDEX, FileEntry, ShardEntry, index_bytes, stored_files
from headrace.datasets.samples.pending import RawFile
from headrace.datasets.samples.shard_index import read_index
from headrace.datasets.samples.withdrawal import (
    LEASES,
    PLAN,
    PRIVATE,
    begin,
    content,
    has_index,
    is_shard_file,
    is_withdrawing,
    remove_private,
    withdraw,
)
from headrace.errors import (
    CorruptShardError,
    ExistingOutputError,
    LeaseLostError,
    ManifestError,
    NotFoundError,
    OutputError,
    ShardOwnedError,
    StoreError,
    UnfinishedDatasetError,
)
from headrace.store import Lease, LocalStore, Store, acquire, attempt_id, process_identity

__all__ = ["OWNED", "Output", "leased"]

OWNED = "write to a directory of its own, wait until that process is done, or end it, which lets the next one in"

_ANEW = "it cannot be gone on with: write it again without resume=True"
_FIRST_WAIT_S = 0.1
_PART = ".part"  # of a file that is written piece by piece
_LEASE_TRIES = 200
_LEASE_WAIT_S = 0.02
_dropped: set[str] = set()  # attempts of writers that were dropped before their end


class Output:
    """The places that get every file, of which the last one counts: it has the receipts. Each has a lease."""

    def __init__(self, stores: Sequence[Store], *, retry: int) -> None:
        self._stores = stores
        self._place = stores[-1]
        self.where = self._place.location
        self._tries = retry + 1
        self._leases: list[Lease] = []
        self._stopped = threading.Event()
        self._dropped = False

    def open(self, *, exist_ok: bool, resume: bool) -> tuple[list[ShardEntry], bool]:
        """Take the place, for this writer alone; the entries of the shards that stay, and whether the dataset is whole.

        ExistingOutputError where something is there that must stay, ShardOwnedError where somebody writes.
        """
        self._refuse_what_is_there(exist_ok=exist_ok, resume=resume)
        try:
            for store in self._stores:
                self._leases.append(leased(store))
            # Again: somebody may have finished meanwhile, or begun with a dataset of another kind.
            self._refuse_what_is_there(exist_ok=exist_ok, resume=resume)
            for store in self._stores:
                store.remove_orphans()
                store.remove_orphans(PRIVATE)
            if resume and has_index(self._place):
                finished = read_index(self._place.get(INDEX), f"{self.where}/{INDEX}")
                self._refuse_damaged(finished)
                self._remove_private()
                return finished, True
            if not resume or any(map(is_withdrawing, self._stores)):
                for store in self._stores:
                    withdraw(store)
            for store in self._stores:
                begin(store)
            return self._resumed(), False
        except BaseException:
            self._leave()
            raise

    def put_raw(self, name: str, raw: RawFile) -> None:
        """Store a file that may wait on the disk, everywhere; OutputError when that fails after all tries."""
        for store in self._stores:
            if raw.in_memory or not store.capabilities.rename:
                data = raw.whole()
                self._try(store, name, raw.num_bytes, lambda place, data=data: place.put(name, data))  # type: ignore[misc]
            else:
                self._try(store, name, raw.num_bytes, lambda place: _put_pieces(place, name, raw))

    def put(self, name: str, data: bytes) -> None:
        """Store a file everywhere; OutputError when that fails after all tries."""
        for store in self._stores:
            self._try(store, name, len(data), lambda place: place.put(name, data))

    def commit(self, shard: int, entry: ShardEntry) -> None:
        """Note that the shard's files are all there."""
        self.check()
        receipt = index_bytes([entry])
        self._try(self._place, _receipt(shard), len(receipt), lambda place: place.put(_receipt(shard), receipt))

    def check(self) -> None:
        """Return if the places are still this writer's; LeaseLostError where another one took one."""
        for lease in self._leases:
            self._retried(self.where, lease.check)
        self.renew()

    def renew(self) -> None:
        """Keep other hosts from taking the places for abandoned; costs something once a minute only."""
        for lease in self._leases:
            self._retried(self.where, lease.renew)

    def finish(self, index: bytes) -> None:
        """Store the index, and remove what was noted on the way."""
        self.check()
        self.put(INDEX, index)
        try:
            with contextlib.suppress(OutputError):
                self.check()
        except LeaseLostError:
            # A process that slept while it stored the index comes too late: the shards are its successor's.
            for store in self._stores:
                if content(store, INDEX) == index:
                    store.delete(INDEX)
            raise
        # The dataset is whole from here on: a failure to clean up takes nothing from it.
        with contextlib.suppress(StoreError):
            self._remove_private()

    def stop(self) -> None:
        """Give up waiting for another try."""
        self._stopped.set()

    def drop(self) -> None:
        """What a finalizer may do instead of stop() and release(): it waits for nothing, be it a lock.

        The next writer of this process gets in once no thread is storing files any more.
        """
        self._dropped = True
        _dropped.update(lease.attempt for lease in self._leases)

    def __del__(self) -> None:
        for lease in self._leases:
            lease.let_go()

    def release(self) -> None:
        """Let the next one in. Twice is harmless."""
        while self._leases:
            with contextlib.suppress(StoreError):  # who comes next takes it from a dead one
                self._leases.pop().release()

    def _leave(self) -> None:
        """Release the leases, and leave no trace of them where nothing is begun."""
        with contextlib.suppress(StoreError):
            for store, _ in zip(self._stores, self._leases, strict=False):  # as many as were taken
                if all(info.path.startswith(f"{LEASES}/") for info in store.list(PRIVATE)):
                    remove_private(store)
        self.release()

    def _refuse_what_is_there(self, *, exist_ok: bool, resume: bool) -> None:
        for store in self._stores:
            if isinstance(store, LocalStore) and store.root.is_file():
                raise ExistingOutputError(store.location, "is a file", "remove it")
            refuse_shards(store)
            if content(store, PLAN) is not None and not has_index(store):
                problem = "is being prepared, or was not prepared to its end"
                raise ExistingOutputError(store.location, problem, "prepare it again, or remove the directory")
            if exist_ok:
                continue
            others = [info.path for info in store.list() if not info.path.startswith(f"{PRIVATE}/")]
            if not others or (resume and has_index(self._place)):
                continue
            if INDEX in others and not self._is_half_finished(store):
                raise ExistingOutputError(store.location, f"holds a dataset already ({INDEX} is there)")
            unknown = [path for path in others if not (is_shard_file(path) or path == INDEX) or "/" in path]
            if unknown or not _is_unfinished(self._place):
                raise _not_empty(store, unknown or others)

    def _is_half_finished(self, store: Store) -> bool:
        """Whether the index there is the one that only the place that counts did not get."""
        with contextlib.suppress(NotFoundError):
            return store is not self._place and store.get(INDEX) == index_bytes(self._receipts())
        return False

    def _receipts(self) -> list[ShardEntry]:
        entries: list[ShardEntry] = []
        with contextlib.suppress(NotFoundError):
            while True:
                shard = len(entries)
                entries += self._read_receipt(shard, self._place.get(_receipt(shard)))
        return entries

    def _read_receipt(self, shard: int, receipt: bytes) -> list[ShardEntry]:
        where = f"{self.where}/{_receipt(shard)}"
        try:
            found = read_index(receipt, where)
        except ManifestError as error:
            raise UnfinishedDatasetError(self.where, f"a receipt is damaged: {error}", _ANEW) from None
        if len(found) != 1 or not found[0].raw_data.basename.startswith(f"shard.{shard:05d}."):
            raise UnfinishedDatasetError(self.where, f"{where} is not the receipt of shard {shard}", _ANEW)
        return found

    def _refuse_damaged(self, entries: Sequence[ShardEntry]) -> None:
        """CorruptShardError where a file that the index names is missing or has another size."""
        sizes = {info.path: info.size_bytes for info in self._place.list()}
        for shard, entry in enumerate(entries):
            for forms in stored_files(entry):
                files = [file for file in forms if file is not None]
                if not any(sizes.get(file.basename) == file.bytes for file in files):
                    found = sizes.get(files[-1].basename, "no")
                    problem = f"{files[-1].basename} has {found} bytes, but the index says {files[-1].bytes}"
                    raise CorruptShardError(self.where, shard, problem)

    def _resumed(self) -> list[ShardEntry]:
        """What the receipts say; nothing beside it is left. UnfinishedDatasetError for a file not as it was written."""
        entries = self._receipts()
        for store in self._stores:
            keep = {file.basename: file.bytes for entry in entries for file in _stored(entry)}
            found = {info.path: info.size_bytes for info in store.list(recursive=False)}
            for name, num_bytes in keep.items():
                if found.get(name) != num_bytes:
                    problem = f"{name} has {found.get(name, 'no')} bytes, but {num_bytes} were written"
                    raise UnfinishedDatasetError(store.location, problem, _ANEW)
            for name in found:
                if name not in keep and is_shard_file(name):
                    store.delete(name)
        return entries

    def _try(self, store: Store, name: str, num_bytes: int, put: Callable[[Store], None]) -> None:
        is_first = True

        def put_whole() -> None:
            nonlocal is_first
            if not is_first:  # perhaps it failed because somebody took the place
                for lease in self._leases:
                    lease.check()
            is_first = False
            put(store)
            if (found := store.head(name).size_bytes) != num_bytes:
                raise StoreError(f"the store kept {found} of {num_bytes} bytes, though it said that all was well")

        self._retried(f"{store.location}/{name}", put_whole)

    def _retried(self, where: str, request: Callable[[], None]) -> None:
        """The request, until a try does not fail; OutputError with where after the last one."""
        for attempt in range(self._tries):
            try:
                return request()
            except OSError as caught:
                error = caught
            if attempt + 1 < self._tries:
                self._stopped.wait(min(_FIRST_WAIT_S * 2**attempt, 5.0))
                if self._stopped.is_set() or self._dropped:
                    break
        tries = "1 try" if attempt == 0 else f"{attempt + 1} tries"
        try:
            raise OutputError(where, f"{error} ({tries})") from error
        finally:
            del error  # else error and frame hold one another, and with them this output and its leases

    def _remove_private(self) -> None:
        # With the leases held, so that nobody begins in a folder that is being removed.
        for store in self._stores:
            if has_index(store):  # a local copy of what was finished by another pair may be half removed
                remove_private(store)
        self.release()


def _not_empty(store: Store, paths: Sequence[str]) -> ExistingOutputError:
    shown = ", ".join(paths[:3]) + ", ..." * (len(paths) > 3)
    problem = f"is not empty ({shown} {'is' if len(paths) == 1 else 'are'} there)"
    return ExistingOutputError(
        store.location, problem, "pass exist_ok=True, which removes shards and an index and leaves all other files"
    )


def leased(store: Store, what: str = "this dataset") -> Lease:
    """The right to write here; ShardOwnedError, which says what is owned, while somebody alive has it."""
    for _ in range(_LEASE_TRIES - 1):
        try:
            return _lease(store, what)
        except NotFoundError:  # somebody who just finished removed the folder that the lease was put into
            continue
        except ShardOwnedError as error:
            if not _is_dropped(error.holder.get("attempt", "")):
                raise
            threading.Event().wait(_LEASE_WAIT_S)
    return _lease(store, what)


def _is_dropped(attempt: str) -> bool:
    """Whether it is that of a writer of this process which nobody refers to any more, only its threads."""
    if attempt.startswith(f"{process_identity()}-") and attempt not in _dropped:
        gc.collect()  # a traceback may have kept it
    return attempt in _dropped


def _lease(store: Store, what: str) -> Lease:
    try:
        return acquire(store, LEASES, "writer", what=what, attempt=attempt_id(), on_takeover=partial(_fence, store))
    except ShardOwnedError as error:
        raise ShardOwnedError(error.where, error.what, error.holder, error.age_s, OWNED) from None


def _fence(store: Store, attempt: str) -> None:
    """Take from a predecessor what it has in flight: one that slept in the middle of storing a file must not end it."""
    if attempt.startswith(f"{process_identity()}-"):
        return  # one of this process, which let go of the place once nothing was in flight
    for folder in ("", PRIVATE):
        store.remove_orphans(folder, of=attempt)
    for info in store.list(PRIVATE, recursive=False):
        if info.path.endswith(_PART):
            store.delete(info.path)


def _receipt(shard: int) -> str:
    return f"{PRIVATE}/shard.{shard:05d}"


def _stored(entry: ShardEntry) -> Iterator[FileEntry]:
    """The files of a shard that a writer stores: compressed ones if there are, else the raw ones."""
    return (raw if compressed is None else compressed for raw, compressed in stored_files(entry))


def _is_unfinished(store: Store) -> bool:
    return bool(store.list(PRIVATE)) or PRIVATE.rpartition("/")[2] in store.folders(".headrace")


def _put_pieces(store: Store, name: str, raw: RawFile) -> None:
    part = f"{PRIVATE}/{name}.{attempt_id()}{_PART}"  # a name of its own: a successor stores the same file
    store.make_folder(PRIVATE)
    writer = store.open_writer(part)
    try:
        for piece in raw.pieces():
            writer.write(piece)
        writer.sync()
    finally:
        writer.close()
    store.rename(part, name)
