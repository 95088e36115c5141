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
from collections.abc import Iterator, Sequence
from functools import partial

from headrace.datasets.neighbours import refuse_shards
from headrace.datasets.samples.delivery import Delivery
from headrace.datasets.samples.index import INDEX, FileEntry, ShardEntry, index_bytes, stored_files
from headrace.datasets.samples.late_files import take_back_index
from headrace.datasets.samples.ownership import Ownership, leased, refuse_to_write
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
    receipts_in,
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
    StoreError,
    UnfinishedDatasetError,
)
from headrace.store import LocalStore, Store

__all__ = ["Output", "leased"]

_ANEW = "it cannot be gone on with: write it again without resume=True"
_TRUSTED_S = 1.0  # far below what makes a lease expire, and enough to ask once a file of a remote store


class Output:
    """The places that get every file, of which the last one counts: it has the receipts. Each has a lease."""

    def __init__(self, stores: Sequence[Store], *, retry: int) -> None:
        self._stores = stores
        self._place = stores[-1]
        self.where = self._place.location
        self._owned = Ownership(trusted_s=_TRUSTED_S if any(store.capabilities.remote for store in stores) else 0.0)
        self._delivery = Delivery(retry + 1, self._owned)  # nothing of self: a dropped output goes at once

    def open(self, *, exist_ok: bool, resume: bool) -> tuple[list[ShardEntry], bool]:
        """Take the place, for this writer alone; the entries of the shards that stay, and whether the dataset is whole.

        ExistingOutputError where something is there that must stay, ShardOwnedError where somebody writes.
        """
        for store in self._stores:
            refuse_to_write(store)
        self._refuse_what_is_there(exist_ok=exist_ok, resume=resume)
        try:
            for store in self._stores:
                self._owned.take(store)
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
            self._owned.check_anew()  # whoever slept since must not withdraw what its successor made
            if not resume or any(map(is_withdrawing, self._stores)):
                for store in self._stores:
                    withdraw(store, check=self._owned.check_anew)
            for store in self._stores:
                begin(store)
            return self._resumed(), False
        except BaseException:
            self._leave()
            raise

    def put_raw(self, name: str, raw: RawFile) -> None:
        """Store a file that may wait on the disk, everywhere; OutputError when that fails after all tries."""
        self._delivery.put_raw(self._stores, name, raw)

    def put(self, name: str, data: bytes) -> None:
        """Store a file everywhere; OutputError when that fails after all tries."""
        for store in self._stores:
            self._delivery.put(store, name, data)

    def commit(self, shard: int, entry: ShardEntry) -> None:
        """Note that the shard's files are all there."""
        self.check()
        self._delivery.put_receipt(self._place, _receipt(shard), index_bytes([entry]))

    def check(self) -> None:
        """Return if the places are still this writer's; LeaseLostError where another one took one."""
        self._delivery.retried(self.where, self._owned.check)
        self.renew()

    def renew(self) -> None:
        """Keep other hosts from taking the places for abandoned; costs something once a minute only."""
        self._delivery.retried(self.where, self._owned.renew)

    def finish(self, index: bytes) -> None:
        """Store the index, and remove what was noted on the way."""
        self._owned.distrust()
        self.check()
        for store in self._stores:
            self._delivery.retried(store.location, partial(self._delivery.confirm, store))
        put = [store for store in self._stores if self._delivery.put_index(store, index)]
        try:
            self._owned.distrust()
            with contextlib.suppress(OutputError):
                self.check()
        except LeaseLostError:
            # A process that slept while it stored the index comes too late: the shards are its successor's.
            for store in put:
                take_back_index(store, index)
            raise
        # The dataset is whole from here on: a failure to clean up takes nothing from it.
        with contextlib.suppress(StoreError):
            self._remove_private()

    def stop(self) -> None:
        """Give up waiting for another try."""
        self._delivery.stop()

    def drop(self) -> None:
        """What a finalizer may do instead of stop() and release(): it waits for nothing, be it a lock.

        The next writer of this process gets in once no thread is storing files any more.
        """
        self._delivery.drop()
        self._owned.drop()

    def __del__(self) -> None:
        self._owned.let_go()

    def release(self) -> None:
        """Let the next one in. Twice is harmless."""
        self._owned.release()

    def _leave(self) -> None:
        """Release the leases, and leave no trace of them where nothing is begun."""
        with contextlib.suppress(StoreError):
            for store in self._owned.stores:
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
        # None behind a gap: a late request may have made one, and then what it tells of is about to go.
        for receipt in reversed(receipts_in(self._place)[len(entries) :]):
            self._place.delete(receipt)
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


def _receipt(shard: int) -> str:
    return f"{PRIVATE}/shard.{shard:05d}"


def _stored(entry: ShardEntry) -> Iterator[FileEntry]:
    """The files of a shard that a writer stores: compressed ones if there are, else the raw ones."""
    return (raw if compressed is None else compressed for raw, compressed in stored_files(entry))


def _is_unfinished(store: Store) -> bool:
    return bool(store.list(PRIVATE)) or PRIVATE.rpartition("/")[2] in store.folders(".headrace")
