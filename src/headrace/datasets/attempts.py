"""One try at writing one shard: a lease, private files, one commit.

    begin    make .headrace/attempts/NNNNNNN-<attempt>/, then take the shard's lease
    write    into that folder, digesting on the way
    commit   1 sync the files            2 put the new receipt into the folder
             3 move the old receipt away, into the folder
             4 rename each file to its final name, and move away what the shard has no longer
             5 rename the receipt to its final name: this is the commit
    end      remove the folder, release the lease

Steps 3, 4 and 5 all need the attempt's folder. Whoever takes the lease over first moves that folder into its own, so a
stopped owner that wakes up fails at its next step, whichever it is, and undoes nothing of its successor's.
"""

from collections import OrderedDict
from collections.abc import Sequence

import xxhash

from headrace.datasets.ledger import ATTEMPTS, LEASES, Ledger, receipt_path, shard_file
from headrace.datasets.publication import Publication
from headrace.errors import LeaseLostError, NotFoundError, WriteError
from headrace.manifest import VERSION, FileRecord, JsonType, Receipt
from headrace.store import ByteWriter, Lease, Store, acquire, attempt_id, is_dead

__all__ = ["BUFFER_BYTES", "MAX_OPEN_FILES", "OpenFiles", "ShardAttempt"]

MAX_OPEN_FILES = 64
BUFFER_BYTES = 1 << 20


class OpenFiles:
    """At most MAX_OPEN_FILES of a writer's files are open and buffered; the least recently used is put aside."""

    def __init__(self) -> None:
        self._files: OrderedDict[int, AttemptFile] = OrderedDict()

    def use(self, file: "AttemptFile") -> None:
        """Keep file open, as the most recently used."""
        key = id(file)
        if key in self._files:
            self._files.move_to_end(key)
            return
        if len(self._files) >= MAX_OPEN_FILES:
            self._files.popitem(last=False)[1].put_aside()
        self._files[key] = file

    def drop(self, file: "AttemptFile") -> None:
        """Forget file, which is closed."""
        self._files.pop(id(file), None)


class AttemptFile:
    """One file of an attempt: appended to through a buffer, digested as it goes."""

    def __init__(self, store: Store, path: str, name: str, open_files: OpenFiles) -> None:
        self.path = path
        self.name = name
        self._store = store
        self._open_files = open_files
        self._digest = xxhash.xxh3_128()
        self._num_bytes = 0
        self._buffer: memoryview | None = None  # BUFFER_BYTES while the file is open and has been appended to
        self._filled = 0
        self._is_broken = False
        self._writer: ByteWriter | None = store.open_writer(path)
        open_files.use(self)

    def append(self, data: memoryview) -> None:
        """Append data (single bytes); it may be changed by the caller afterwards."""
        end = self._filled + len(data)
        if self._buffer is None or end > BUFFER_BYTES:
            self._flush()
            end = len(data)
            if end > BUFFER_BYTES:
                self._write(data)
                return
            if self._buffer is None:
                self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._buffer[self._filled : end] = data
        self._filled = end

    def put_aside(self) -> None:
        """Write what is buffered and close the file; the next append opens it again."""
        try:
            self._flush()
        finally:
            self.close()  # after a failure too: it must not stand in the way of other shards' files

    def finish(self) -> FileRecord:
        """Make all of it durable and close; returns size and digest."""
        writer = self._flush()
        writer.sync()
        self.close()
        return FileRecord(self.name, self._num_bytes, self._digest.hexdigest())

    def close(self) -> None:
        """Close without syncing. Twice is harmless."""
        self._open_files.drop(self)
        self._buffer = None
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _flush(self) -> ByteWriter:
        self._check_whole()
        if self._writer is None:
            self._writer = self._store.open_writer(self.path, append=True)
        self._open_files.use(self)
        if self._buffer is not None and self._filled:
            filled, self._filled = self._filled, 0
            self._write(self._buffer[:filled])
        return self._writer

    def _write(self, data: memoryview) -> None:
        assert self._writer is not None  # _flush() came before
        self._is_broken = True  # until all of it is written: after an error nobody knows how much of it was
        self._writer.write(data)
        self._is_broken = False
        self._digest.update(data)
        self._num_bytes += len(data)

    def _check_whole(self) -> None:
        if self._is_broken:
            raise WriteError(f"{self.name}: an earlier write failed, so this shard cannot be committed; write it again")


class ShardAttempt:
    """The files of one shard until they are committed or abandoned."""

    def __init__(
        self, store: Store, publication: Publication, shard: int, lease: Lease, folder: str, attempt: str
    ) -> None:
        self._store = store
        self._kind = publication.kind
        self._suffixes = publication.suffixes
        self._shard = shard
        self._lease = lease
        self._folder = folder
        self._attempt = attempt
        self._files: list[AttemptFile] = []

    @classmethod
    def begin(cls, store: Store, shard: int, publication: Publication, *, force: bool) -> "ShardAttempt":
        """A new attempt that owns the shard. ShardOwnedError while another living process does, unless force."""
        attempt = attempt_id()
        folder = f"{ATTEMPTS}/{shard:07d}-{attempt}"
        what = f"shard {shard}"

        def move_away(loser: str) -> None:
            theirs = f"{ATTEMPTS}/{shard:07d}-{loser}"
            try:
                store.rename(theirs, f"{folder}/lost-{loser}")
            except NotFoundError:
                return  # moved by a taker that died since, or never made
            store.remove_folder(f"{folder}/lost-{loser}")

        # The folder comes first: made after a takeover, it would escape the taker.
        store.make_folder(folder)
        try:
            lease = acquire(
                store, LEASES, f"{shard:07d}", what=what, attempt=attempt, force=force, on_takeover=move_away
            )
        except BaseException:
            store.remove_folder(folder)
            raise
        begun = cls(store, publication, shard, lease, folder, attempt)
        try:
            publication.refuse_while_publishing()
            publication.refuse_another_kind(shard)
            begun._remove_dead_attempts()
        except BaseException:
            begun.abandon()
            raise
        return begun

    def open_file(self, suffix: str, open_files: OpenFiles) -> AttemptFile:
        """A new, empty file of this shard."""
        name = shard_file(self._shard, suffix)
        file = AttemptFile(self._store, f"{self._folder}/{name}", name, open_files)
        self._files.append(file)
        return file

    def renew(self) -> None:
        """Keep the lease fresh; costs something once a minute only."""
        self._lease.renew()

    def commit(self, *, dtype: JsonType, length: int, generation: int, task: str | None) -> Receipt:
        """Make the shard exist, replacing an older one whole. LeaseLostError when it was taken over."""
        try:
            receipt = self._commit(dtype, length, generation, task)
        except NotFoundError as error:
            # Every path that can be missing lies in our folder: it was moved away.
            raise LeaseLostError(self._store.location, f"shard {self._shard}") from error
        self._end()
        return receipt

    def abandon(self) -> None:
        """Remove the attempt; the shard stays as it was. Never raises for what is already gone."""
        for file in self._files:
            file.close()
        self._end()

    def _commit(self, dtype: JsonType, length: int, generation: int, task: str | None) -> Receipt:
        records = tuple(file.finish() for file in self._files)
        self._lease.check()
        ledger = Ledger(self._store, self._kind)
        if ledger.is_published() or ledger.generation() != generation:
            raise LeaseLostError(self._store.location, f"shard {self._shard} (the dataset was withdrawn or published)")
        receipt = Receipt(VERSION, self._kind, dtype, self._shard, length, records, self._attempt, generation, task)
        final = receipt_path(self._shard)
        # open_writer, not put: put would make the folder anew after a taker moved it away.
        new_receipt = f"{self._folder}/receipt"
        writer = self._store.open_writer(new_receipt)
        try:
            writer.write(receipt.to_json())
            writer.sync()
        finally:
            writer.close()
        replaced = self._replaced_files(ledger, final)
        if replaced is not None:
            self._store.rename(final, f"{self._folder}/replaced")
        for file in self._files:
            self._store.rename(file.path, file.name)
        # Moved rather than deleted: who was taken over must not remove a file of his successor's. The kind's own files
        # are looked for too, since an attempt that failed between these steps left files without a receipt.
        known = {*(replaced or ()), *(shard_file(self._shard, suffix) for suffix in self._suffixes)}
        for number, name in enumerate(sorted(known - {record.name for record in records})):
            if ledger.head(name) is not None:
                self._store.rename(name, f"{self._folder}/old-{number}")
        self._store.rename(new_receipt, final)
        return receipt

    def _replaced_files(self, ledger: Ledger, path: str) -> Sequence[str] | None:
        """The files of the receipt that is to be replaced; None when there is none."""
        raw = ledger.get(path)
        if raw is None:
            return None
        try:
            return [file.name for file in Receipt.from_json(raw, path).files]
        except ValueError:
            return []  # damaged: what it named is unknown, and whatever is left over publish() will say

    def _end(self) -> None:
        self._store.remove_folder(self._folder)
        self._lease.release()

    def _remove_dead_attempts(self) -> None:
        prefix = f"{self._shard:07d}-"
        for name in self._store.folders(ATTEMPTS):
            if name.startswith(prefix) and is_dead(name.removeprefix(prefix)):
                self._store.remove_folder(f"{ATTEMPTS}/{name}")
