"""Where the files of a dataset of samples go: stored whole and checked, each shard noted, the index last.

    OUT/.headrace/samples/leases/         one writer at a time
    OUT/.headrace/samples/shard.NNNNN     the receipt of a shard whose files are all there: its entry in the index
    OUT/shard.NNNNN.*                     its files
    OUT/index.json                        the commit; when it is there, .headrace goes

Without an index and with `.headrace/samples` the dataset is unfinished. Receipts are written in order, so that those
that are there are a beginning, and a writer can go on behind them.
"""

import contextlib
import re
import threading
from collections.abc import Callable, Collection, Iterator, Sequence

from headrace.datasets.neighbours import SAMPLES, refuse_shards
from headrace.datasets.samples.index import INDEX, FileEntry, ShardEntry, index_bytes, read_index, stored_files
from headrace.datasets.samples.pending import RawFile
from headrace.errors import ExistingOutputError, NotFoundError, OutputError, StoreError
from headrace.store import Lease, Store, acquire, attempt_id

__all__ = ["LEASES", "PRIVATE", "Output", "has_index", "is_shard_file", "withdraw"]

PRIVATE = SAMPLES
LEASES = f"{PRIVATE}/leases"
_SHARD_FILE = re.compile(r"shard\.([0-9]{5,})\.(?:mds|json|csv|tsv|xsv)(?:\.meta)?(?:\.(?:br|bz2|gz|snappy|zstd))?")
_FIRST_WAIT_S = 0.1


def is_shard_file(path: str) -> bool:
    """Whether a file's name, in whatever folder, is one that writers give to the files of shards."""
    return _SHARD_FILE.fullmatch(path.rpartition("/")[2]) is not None


class Output:
    """The places that get every file, of which the last one counts: it has the lease and the receipts."""

    def __init__(self, stores: Sequence[Store], *, retry: int) -> None:
        self._stores = stores
        self._place = stores[-1]
        self.where = self._place.location
        self._tries = retry + 1
        self._lease: Lease | None = None
        self._stopped = threading.Event()

    def open(self, *, exist_ok: bool, resume: bool) -> tuple[list[ShardEntry], bool]:
        """Take the place, for this writer alone; the entries of the shards that stay, and whether the dataset is whole.

        ExistingOutputError where something is there that must stay, ShardOwnedError where somebody writes.
        """
        self._refuse_what_is_there(exist_ok=exist_ok, resume=resume)
        self._lease = acquire(
            self._place, LEASES, "writer", what="this dataset", attempt=attempt_id(), on_takeover=lambda _: None
        )
        try:
            # Again: somebody may have finished meanwhile, or begun with a dataset of another kind.
            self._refuse_what_is_there(exist_ok=exist_ok, resume=resume)
            for store in self._stores:
                store.remove_orphans()
                store.remove_orphans(PRIVATE)
            if resume:
                return self._resumed()
            for store in self._stores:
                withdraw(store)
        except BaseException:
            self.release()
            raise
        return [], False

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
        self._place.put(_receipt(shard), index_bytes([entry]))

    def check(self) -> None:
        """Return if the place is still this writer's; LeaseLostError where another one took it."""
        if self._lease is not None:
            self._lease.check()
            self._lease.renew()

    def finish(self, index: bytes) -> None:
        """Store the index, and remove what was noted on the way."""
        self.check()
        self.put(INDEX, index)
        # The dataset is whole from here on: a failure to clean up takes nothing from it.
        with contextlib.suppress(StoreError):
            self._remove_private()

    def stop(self) -> None:
        """Give up waiting for another try."""
        self._stopped.set()

    def release(self) -> None:
        """Let the next one in. Twice is harmless."""
        lease, self._lease = self._lease, None
        if lease is not None:
            with contextlib.suppress(StoreError):  # who comes next takes it from a dead one
                lease.release()

    def _refuse_what_is_there(self, *, exist_ok: bool, resume: bool) -> None:
        for store in self._stores:
            refuse_shards(store)
            if exist_ok:
                continue
            others = [info.path for info in store.list() if not info.path.startswith(f"{PRIVATE}/")]
            if not others or (resume and INDEX in others):
                continue
            if INDEX in others:
                raise ExistingOutputError(store.location, f"holds a dataset already ({INDEX} is there)")
            unknown = [path for path in others if not is_shard_file(path) or "/" in path]
            if unknown or not _is_unfinished(self._place):
                shown = (unknown or others)[:3]
                raise ExistingOutputError(store.location, f"is not empty ({', '.join(shown)}, ... are there)")

    def _resumed(self) -> tuple[list[ShardEntry], bool]:
        with contextlib.suppress(NotFoundError):
            finished = read_index(self._place.get(INDEX), f"{self.where}/{INDEX}")
            self._remove_private()
            return finished, True
        entries: list[ShardEntry] = []
        for shard in range(len(self._place.list(PRIVATE, recursive=False))):
            try:
                raw = self._place.get(_receipt(shard))
            except NotFoundError:
                break
            entries += read_index(raw, f"{self.where}/{_receipt(shard)}")
        for store in self._stores:
            keep = {file.basename: file.bytes for entry in entries for file in _stored(entry)}
            found = {info.path: info.size_bytes for info in store.list(recursive=False)}
            for name, num_bytes in keep.items():
                if found.get(name) != num_bytes:
                    problem = f"it has {found.get(name, 'no')} bytes, but {num_bytes} were written"
                    raise OutputError(f"{store.location}/{name}", f"{problem}; remove the directory and start over")
            for name in found:
                if name not in keep and is_shard_file(name):
                    store.delete(name)
        return entries, False

    def _try(self, store: Store, name: str, num_bytes: int, put: Callable[[Store], None]) -> None:
        for attempt in range(self._tries):
            try:
                put(store)
                found = store.head(name).size_bytes
                if found == num_bytes:
                    return
                error: Exception = StoreError(
                    f"the store kept {found} of {num_bytes} bytes, though it said that all was well"
                )
            except OSError as caught:
                error = caught
            if attempt + 1 < self._tries and self._stopped.wait(min(_FIRST_WAIT_S * 2**attempt, 5.0)):
                break
        raise OutputError(f"{store.location}/{name}", f"{error} ({attempt + 1} tries)") from error

    def _remove_private(self) -> None:
        for store in self._stores:
            for info in store.list(PRIVATE):
                if not info.path.startswith(f"{LEASES}/"):
                    store.delete(info.path)
        self.release()
        for store in self._stores:
            if store.capabilities.rename:
                store.remove_folder(PRIVATE)
                _remove_if_empty(store, PRIVATE.partition("/")[0])


def _receipt(shard: int) -> str:
    return f"{PRIVATE}/shard.{shard:05d}"


def _stored(entry: ShardEntry) -> Iterator[FileEntry]:
    """The files of a shard that a writer stores: compressed ones if there are, else the raw ones."""
    return (raw if compressed is None else compressed for raw, compressed in stored_files(entry))


def _is_unfinished(store: Store) -> bool:
    return bool(store.list(PRIVATE)) or "samples" in store.folders(".headrace")


def has_index(store: Store) -> bool:
    """Whether index.json is there."""
    try:
        store.head(INDEX)
    except NotFoundError:
        return False
    return True


def withdraw(store: Store, *, keep: Collection[str] = ()) -> None:
    """Remove the dataset, its index first, so that no moment shows a part of it as whole.

    Files that are no dataset's stay, and so does what is in the top-level folders to keep.
    """
    files = [info.path for info in store.list() if info.path.partition("/")[0] not in keep]
    indexes = [path for path in files if path.rpartition("/")[2] == INDEX]
    for path in sorted(indexes, key=lambda path: path.count("/")):
        store.delete(path)
    receipts = [path for path in files if f"/{PRIVATE}/shard." in f"/{path}"]
    shards = [path for path in files if is_shard_file(path) and path not in receipts]
    for path in receipts + shards:
        store.delete(path)
    if store.capabilities.rename:
        for folder in sorted({path.rpartition("/")[0] for path in shards + indexes}, reverse=True):
            _remove_if_empty(store, folder)


def _remove_if_empty(store: Store, folder: str) -> None:
    while folder and not store.list(folder) and not store.folders(folder):
        store.remove_folder(folder)
        folder = folder.rpartition("/")[0]


def _put_pieces(store: Store, name: str, raw: RawFile) -> None:
    part = f"{PRIVATE}/{name}.part"
    store.make_folder(PRIVATE)
    writer = store.open_writer(part)
    try:
        for piece in raw.pieces():
            writer.write(piece)
        writer.sync()
    finally:
        writer.close()
    store.rename(part, name)
