"""One try at writing one shard of a store that has no renames: object stores, which take whole objects only.

    begin    take the shard's lease
    write    into a spool on this machine, digesting on the way
    send     1 remove the old receipt    2 put each file under its final name, and ask the store for its size, and its
               digest if it tells one    3 remove files that the shard has no longer
    commit   4 put the receipt, if none is there: this is the commit
    end      remove the spool, release the lease

Before each step that changes the store, and right before each object appears, the lease is checked. The receipt names
the versions of the objects that it was made for, so that it never counts for an object that came later.
docs/design/publication.md says what that proves.
"""

import contextlib
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Self

import xxhash

from headrace.datasets.attempts import AttemptFile, OpenFiles, ShardAttempt
from headrace.datasets.ledger import LEASES, Ledger, receipt_path, shard_file
from headrace.datasets.publication import Publication
from headrace.datasets.spool import Spool
from headrace.errors import AlreadyExistsError, LeaseLostError, StoreError, WriteError
from headrace.manifest import VERSION, FileRecord, JsonType, Objects, Receipt
from headrace.store import Lease, Store, acquire, attempt_id, confirmed, file_pieces

__all__ = ["UploadAttempt", "UploadQueue", "begin_attempt"]

TRIES = 3  # for an object of which the store kept other bytes than it was given
UPLOADS = 4  # shards on their way at once; a store may hold 64 MiB of each in memory
_RENEW_POLL_S = 1.0


def begin_attempt(store: Store, shard: int, publication: Publication, *, force: bool) -> ShardAttempt:
    """A new attempt that owns the shard, of the kind that the store needs.

    ShardOwnedError while another living process owns the shard, unless force.
    """
    kind = ShardAttempt if store.capabilities.rename else UploadAttempt
    return kind.begin(store, shard, publication, force=force)


class UploadAttempt(ShardAttempt):
    """The files of one shard until they are committed or abandoned."""

    def __init__(self, store: Store, publication: Publication, shard: int, lease: Lease, spool: Spool) -> None:
        super().__init__(store, publication, shard, lease, "", lease.attempt)
        self._spool = spool
        self._where = f"{store.location.rstrip('/')}/"
        self._final = receipt_path(shard)
        self._records: tuple[FileRecord, ...] = ()
        self._versions: dict[str, str] = {}  # of the files that are up
        self._is_sealed = False
        self._is_sent = False
        self._stopped = threading.Event()

    @classmethod
    def begin(cls, store: Store, shard: int, publication: Publication, *, force: bool) -> "UploadAttempt":
        """A new attempt that owns the shard. ShardOwnedError while another living process does, unless force."""
        attempt = attempt_id()
        spool = Spool(attempt)
        try:
            # The fence is the check before each object: there is nothing that could be moved away.
            lease = acquire(
                store,
                LEASES,
                f"{shard:07d}",
                what=f"shard {shard}",
                attempt=attempt,
                force=force,
                on_takeover=lambda _: None,
            )
        except BaseException:
            spool.remove()
            raise
        begun = cls(store, publication, shard, lease, spool)
        try:
            publication.refuse_while_publishing()
            publication.refuse_another_kind(shard)
        except BaseException:
            begun.abandon()
            raise
        return begun

    def open_file(self, suffix: str, open_files: OpenFiles) -> AttemptFile:
        """A new, empty file of this shard, in the spool."""
        name = shard_file(self._shard, suffix)
        file = AttemptFile(self._spool.store, name, name, open_files)
        self._files.append(file)
        return file

    def seal(self) -> None:
        """End the files; nothing is appended any more. Twice is harmless."""
        if not self._is_sealed:
            self._records = tuple(file.finish() for file in self._files)
            self._is_sealed = True

    def send(self, generation: int, *, ahead: bool = False) -> None:
        """Bring the files up. With ahead=True not where a receipt counts: it would be lost if the commit never came."""
        if self._is_sent:
            return
        try:
            self._is_sent = self._send(generation, ahead=ahead)
        except LeaseLostError:
            self._take_back()
            raise

    def commit(self, *, dtype: JsonType, length: int, generation: int, task: str | None) -> Receipt:
        """Make the shard exist, replacing an older one whole. LeaseLostError when it was taken over."""
        self.seal()
        self.send(generation)
        try:
            objects = Objects.of(self._store.location, [self._versions[record.name] for record in self._records])
            receipt = Receipt(
                VERSION, self._kind, dtype, self._shard, length, self._records, self._attempt, generation, task, objects
            )
            self._put_receipt(receipt.to_json(), generation)
        except LeaseLostError:
            self._take_back()
            raise
        self._spool.remove()
        return receipt

    def end(self) -> None:
        """Let the next one in, after the commit."""
        self._lease.release()

    def stop(self) -> None:
        """Let no further object appear: an upload on another thread ends with an error at its last step."""
        self._stopped.set()

    def abandon(self) -> None:
        """Remove what this attempt has put; the shard has no receipt then, or its old one.

        Never raises for a store that does not answer: then the lease is left to whoever comes next.
        """
        self.stop()
        for file in self._files:
            file.close()
        self._spool.remove()
        try:
            if self._versions and self._is_own() and Ledger(self._store, self._kind).head(self._final) is None:
                for name in self._versions:
                    self._store.delete(name)
            self._lease.release()
        except StoreError:
            self._lease.let_go()

    def let_go(self) -> None:
        """Abandon without a request, where the store does not answer: the next one in line removes what is left."""
        self.stop()
        for file in self._files:
            file.close()
        self._spool.remove()
        self._lease.let_go()

    def _send(self, generation: int, *, ahead: bool) -> bool:
        ledger = Ledger(self._store, self._kind)
        if ledger.is_published():
            raise self._lost()
        self._refuse_withdrawn(ledger, generation)
        raw = ledger.get(self._final)
        replaced = self._parsed(raw)
        if ahead and replaced is not None and replaced.generation == generation:
            return False
        if raw is not None:
            self._check_lease()
            self._store.delete(self._final)
        for record in self._records:
            self._send_file(record)
        known = {file.name for file in (replaced.files if replaced else ())}
        known |= {shard_file(self._shard, suffix) for suffix in self._suffixes}
        for name in sorted(known - {record.name for record in self._records}):
            if ledger.head(name) is not None:
                self._check_lease()
                self._store.delete(name)
        return True

    def _send_file(self, record: FileRecord) -> None:
        file = self._spool.file(record.name)
        for _ in range(TRIES):
            self._versions[record.name] = ""  # from here on something of ours may lie there
            self._store.upload(record.name, file, check=self._check_lease)
            found, kept = confirmed(self._store, record.name, record.bytes, lambda: file_pieces(file))
            if found and not kept:
                self._versions[record.name] = found.version
                return
        raise WriteError(
            f"{self._where}{record.name}: the store acknowledged {record.bytes} bytes and kept {kept}, {TRIES} times; "
            f"shard {self._shard} was not committed"
        )

    def _put_receipt(self, raw: bytes, generation: int) -> None:
        ledger = Ledger(self._store, self._kind)
        found: bytes | None = None
        for _ in range(TRIES):
            self._refuse_withdrawn(ledger, generation)  # nobody can have published while the lease is held
            self._check_lease()
            with contextlib.suppress(AlreadyExistsError):  # ours after all, or of an owner that was taken over
                self._store.put_if_absent(self._final, raw)
            found = ledger.get(self._final)
            if found == raw:
                return
            if found is not None:
                self._check_lease()
                self._store.delete(self._final)
        kept = "nothing" if found is None else f"{len(found)} other bytes"
        raise WriteError(
            f"{self._where}{self._final}: the store acknowledged {len(raw)} bytes and kept {kept}, {TRIES} times; "
            f"shard {self._shard} was not committed"
        )

    def _refuse_withdrawn(self, ledger: Ledger, generation: int) -> None:
        if ledger.generation() != generation:
            raise self._lost()

    def _lost(self) -> LeaseLostError:
        return LeaseLostError(self._store.location, f"shard {self._shard} (the dataset was withdrawn or published)")

    def _check_lease(self) -> None:
        if self._stopped.is_set():
            raise WriteError(f"{self._where}: shard {self._shard} was abandoned while its files went up")
        self._lease.check()

    def _is_own(self) -> bool:
        try:
            self._lease.check()
        except LeaseLostError:
            return False
        return True

    def _parsed(self, raw: bytes | None) -> Receipt | None:
        """The receipt in raw; None where there is none or it is damaged."""
        if raw is None:
            return None
        try:
            return Receipt.from_json(raw, self._final)
        except ValueError:
            return None

    def _take_back(self) -> None:
        """Remove files that landed over a successor's: missing is an error to every reader, other bytes might not be.

        Only what a receipt or the manifest says to be something else, and only while it is what this attempt put: by
        its version, or by its content where the answer to the upload was lost.
        """
        with contextlib.suppress(StoreError, ValueError):
            ledger = Ledger(self._store, self._kind)
            manifest, receipt = ledger.manifest(), self._parsed(ledger.get(self._final))
            shards = manifest[0].shards if manifest else ()
            named = shards[self._shard].files if self._shard < len(shards) else receipt.files if receipt else ()
            theirs = {file.name: file for file in named}
            for record in self._records:
                if theirs.get(record.name, record) == record or record.name not in self._versions:
                    continue
                if self._is_in_place(record):
                    self._store.delete(record.name)

    def _is_in_place(self, record: FileRecord) -> bool:
        """Whether the object of this name is the one that this attempt put."""
        found = Ledger(self._store, self._kind).head(record.name)
        if found is None or self._versions[record.name]:
            return found is not None and found.version == self._versions[record.name]
        digest = xxhash.xxh3_128()
        for piece in self._store.pieces(record.name):
            digest.update(piece)
        return digest.hexdigest() == record.xxh3_128


class UploadQueue:
    """Sends the files of several attempts at once, in the background; each is committed by its owner, in its order."""

    def __init__(self, generation: int) -> None:
        self._generation = generation
        self._pool: ThreadPoolExecutor | None = None
        self._sending: dict[int, tuple[UploadAttempt, Future[None]]] = {}  # by id
        self._ending: list[Future[None]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            for attempt, sending in self._sending.values():
                attempt.stop()
                sending.cancel()
            self._pool.shutdown(wait=True)
        if error is None:
            for ending in self._ending:
                ending.result()

    def add(self, attempt: ShardAttempt) -> None:
        """Seal this attempt, which is in the queue from now on; others need nothing sent ahead."""
        if isinstance(attempt, UploadAttempt):
            attempt.seal()
            self._pool = self._pool or ThreadPoolExecutor(UPLOADS, thread_name_prefix="headrace-upload")
            sending = self._pool.submit(attempt.send, self._generation, ahead=True)
            self._sending[id(attempt)] = attempt, sending

    def wait_for(self, attempt: ShardAttempt) -> None:
        """Return when this attempt's files are up as far as they go ahead; what went wrong with them is raised."""
        if id(attempt) not in self._sending:
            return
        sending = self._sending[id(attempt)][1]
        while not wait([sending], timeout=_RENEW_POLL_S).done:
            for other, _ in self._sending.values():
                with contextlib.suppress(LeaseLostError, StoreError):  # said when it is that one's turn
                    other.renew()
        del self._sending[id(attempt)]
        sending.result()

    def end(self, attempt: ShardAttempt) -> None:
        """End an attempt that is committed, in the background; errors are raised when the queue ends."""
        if isinstance(attempt, UploadAttempt) and self._pool is not None:
            self._ending.append(self._pool.submit(attempt.end))
