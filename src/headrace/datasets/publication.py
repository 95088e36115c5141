"""Writing's two commits: a receipt a shard (attempts.py), and here the manifest of the dataset.

Who publishes or withdraws holds the lease "dataset"; who writes a shard holds that shard's. Each takes its own lease
first and looks for the other's then, so of two that start at once at least one sees the other and is refused.
docs/design/publication.md gives the rules and why they are enough.
"""

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace.datasets.ledger import (
    ATTEMPTS,
    DATASET,
    GENERATION,
    LEASES,
    MANIFEST,
    PLAN,
    PRIVATE,
    Ledger,
    receipt_path,
    shard_and_suffix,
)
from headrace.datasets.neighbours import refuse_samples
from headrace.datasets.opening import open_directory
from headrace.datasets.spool import remove_dead_spools
from headrace.errors import (
    AlreadyExistsError,
    HeadraceError,
    LeaseLostError,
    ManifestError,
    PublishedError,
    ShardOwnedError,
    UnfinishedDatasetError,
    UnsupportedOperationError,
    WriteError,
)
from headrace.manifest import VERSION, Manifest, Plan, Receipt, json_object
from headrace.store import Lease, Store, acquire, attempt_id, holder_of, is_dead, open_leases

__all__ = ["Publication", "refuse_unwritable"]

PATIENCE_S = 10.0
TRIES = 3  # for a manifest of which the store kept other bytes than it was given


class Publication:
    """What changes the commit state of one dataset directory. Keeps no state of its own."""

    def __init__(
        self, store: Store, kind: str, suffixes: frozenset[str], optional: frozenset[str] = frozenset()
    ) -> None:
        self.kind = kind
        self.suffixes = suffixes
        self._store = store
        self._optional = optional
        self._has_folders = store.capabilities.rename
        self._ledger = Ledger(store, kind)

    def start_writing(self, *, overwrite: bool = False) -> int:
        """The generation that a writer joins.

        Refuses a published directory and files that Headrace did not write, before anything is changed; with
        overwrite=True the first writer withdraws them and starts a new generation, which later writers join. A dataset
        of samples is refused in any case.
        """
        refuse_unwritable(self._store)
        is_first = self._ledger.head(GENERATION) is None
        if is_first:
            refuse_samples(self._store, self.kind)
        while (obstacle := self._obstacle(overwrite=overwrite)) is not None:
            if not overwrite:
                raise obstacle
            with self._dataset_lease() as lease:
                if self._obstacle(overwrite=True) is not None:
                    # The number first: with it raised and the manifest still there, the old version is whole and opens.
                    self._put_whole(GENERATION, b"%d\n" % (self._generation() + 1), lease)
                    self._check(lease)
                    self._store.delete(PLAN)
                    self._store.delete(MANIFEST)
        if self._has_folders:
            self._store.make_folder(ATTEMPTS)
        else:
            remove_dead_spools()
        with contextlib.suppress(AlreadyExistsError):
            self._store.put_if_absent(GENERATION, b"0\n")
        if is_first:
            refuse_samples(self._store, self.kind)  # again: its writer may have come meanwhile
        self._sweep()
        return self._mended_generation()

    def record_plan(self, tasks: Sequence[str], *, overwrite: bool = False) -> None:
        """Record which task writes which shard: until all have, the directory does not open."""
        self.start_writing(overwrite=overwrite)
        if (receipt := self._receipt_of_another_kind()) is not None:
            raise self._another_kind(receipt)  # before the plan, which would keep that dataset from opening
        plan = Plan(VERSION, tuple(tasks))
        try:
            is_recorded = self._ledger.plan() == plan
        except ManifestError:  # a store kept less of it than it was given
            is_recorded = False
        if not is_recorded:
            self._put_whole(PLAN, plan.to_json())

    def publish(self, metadata: Mapping[str, Any] | None = None) -> Manifest:
        """The manifest, written once every shard has a receipt. Twice gives the same bytes and changes nothing.

        metadata is JSON of the user's own; publishing again with other metadata is refused with PublishedError.
        """
        if metadata is not None:
            metadata = json_object(metadata)
        if not self._ledger.is_published() and not self._ledger.has_commits():
            open_directory(
                self._store, self._ledger.kind, self.suffixes, self._optional
            )  # for its errors: is anything here at all?
            raise UnfinishedDatasetError(
                self._ledger.where, "its files have no receipts", "they open as they are; only Headrace's are published"
            )
        if (published := self._already_published(metadata)) is not None:
            self.recover()  # also from writers that died as they learnt of it
            return published
        self._sweep()
        with self._dataset_lease() as lease:
            if (published := self._already_published(metadata)) is not None:
                return published
            self._ledger.refuse_writers(besides=DATASET)
            generation, plan = self._ledger.generation(), self._ledger.plan()
            receipts = {shard: receipt for shard, (receipt, _) in self._ledger.receipts().items()}
            current = _current(receipts, generation, plan)
            manifest = self._ledger.whole(current, plan, metadata)
            self._ledger.check_files(current)
            self._remove_stale(receipts, keep=current, permitted=generation > 0 or plan is not None)
            if self._has_folders:
                with contextlib.suppress(AlreadyExistsError):  # nobody else can: the bytes follow from the receipts
                    self._store.put_if_absent(MANIFEST, manifest.to_json())
            else:
                self._put_manifest(manifest.to_json(), lease)
            self._take_back_if_late(manifest, generation, lease)
        return manifest

    def recover(self) -> None:
        """Remove what dead processes left: attempts, leases, files in flight. Committed shards stay."""
        if self._has_folders:
            for name in self._store.folders(ATTEMPTS):
                if is_dead(name.partition("-")[2]):
                    self._store.remove_folder(f"{ATTEMPTS}/{name}")
        else:
            remove_dead_spools()
        self._sweep()
        for name, holder in open_leases(self._store, LEASES).items():
            if is_dead(holder["attempt"]):
                self._lease(name, f"shard {name}").release()

    def refuse_while_publishing(self) -> None:
        """Wait for a living process that publishes or withdraws; PublishedError once it has published.

        ShardOwnedError when it takes long: it may be stopped.
        """
        holder = holder_of(self._store, LEASES, DATASET)
        if holder is not None and not is_dead(holder["attempt"]):
            with self._dataset_lease():
                pass
        if self._ledger.is_published():
            raise PublishedError(self._ledger.where)

    def refuse_another_kind(self, shard: int) -> None:
        """PublishedError where this shard, or the first one, is committed as another kind's.

        Replacing it would lose that dataset, and adding to it would give one that is neither. Every dataset has a first
        shard, so whatever the number of shards two receipts tell.
        """
        for number in {0, shard}:
            raw = self._ledger.get(receipt_path(number))
            if raw is None:
                continue
            try:
                receipt = Receipt.from_json(raw, f"{self._ledger.where}/{receipt_path(number)}")
            except ManifestError:
                continue  # damaged: about to be replaced, or publish() will say
            if self._is_of_another_kind(receipt, self._ledger.generation()):
                raise self._another_kind(receipt)

    def _another_kind(self, receipt: Receipt) -> PublishedError:
        return PublishedError(
            self._ledger.where, f"holds a dataset of kind {receipt.kind!r}, so no shards of kind {self.kind!r}"
        )

    def _is_of_another_kind(self, receipt: Receipt, generation: int) -> bool:
        return receipt.kind != self.kind and receipt.generation == generation

    def _receipt_of_another_kind(self) -> Receipt | None:
        generation = self._generation()
        receipts = (receipt for receipt, _ in self._ledger.receipts(pass_damaged=True).values())
        return next((receipt for receipt in receipts if self._is_of_another_kind(receipt, generation)), None)

    def _sweep(self) -> None:
        """Remove files in flight that dead processes left, and the lease of a publisher that died."""
        if self._has_folders:
            for folder in ("", PRIVATE, *(f"{LEASES}/{fan}" for fan in self._store.folders(LEASES))):
                self._store.remove_orphans(folder)
        holder = holder_of(self._store, LEASES, DATASET)
        if holder is not None and is_dead(holder["attempt"]):
            with contextlib.suppress(ShardOwnedError):  # a sibling was faster, and is at work
                self._lease(DATASET, "the dataset").release()

    def _obstacle(self, *, overwrite: bool) -> PublishedError | UnfinishedDatasetError | None:
        if self._ledger.is_published():
            return PublishedError(self._ledger.where)
        if self._ledger.head(GENERATION) is not None:
            if overwrite and self._receipt_of_another_kind():  # without overwrite each shard looks for itself
                return PublishedError(self._ledger.where)
            return None
        shards = [info.path for info in self._store.list(recursive=False) if shard_and_suffix(info.path)]
        if not shards or self._ledger.head(GENERATION) is not None:  # again: its writer may have come meanwhile
            return None
        return UnfinishedDatasetError(
            self._ledger.where,
            f"{shards[0]} was not written by Headrace, and so has no receipt",
            "write to another directory, or pass overwrite=True to replace all that is there",
        )

    @contextlib.contextmanager
    def _dataset_lease(self) -> Iterator[Lease]:
        patience = threading.Event()
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                lease = self._lease(DATASET, "the dataset")
                break
            except ShardOwnedError:  # held for milliseconds, by a sibling that withdraws or publishes too
                if time.monotonic() > deadline_s:
                    raise
                patience.wait(0.01)
        try:
            yield lease
        finally:
            lease.release()

    def _check(self, lease: Lease) -> None:
        """LeaseLostError where the lease was taken over, before a step that nothing else stops."""
        if not self._has_folders:
            lease.check()

    def _put_manifest(self, raw: bytes, lease: Lease) -> None:
        """Put the manifest and see that it is there whole; again where the store kept something else."""
        found: bytes | None = None
        for _ in range(TRIES):
            lease.check()
            with contextlib.suppress(AlreadyExistsError):
                self._store.put_if_absent(MANIFEST, raw)
            found = self._ledger.get(MANIFEST)
            if found == raw:
                return
            if found is None:
                continue
            if not raw.startswith(found):  # whole, and not ours
                raise PublishedError(self._ledger.where, "was published by another process meanwhile")
            lease.check()
            self._store.delete(MANIFEST)
        raise self._cut_short(MANIFEST, raw, found)

    def _take_back_if_late(self, manifest: Manifest, generation: int, lease: Lease) -> None:
        """LeaseLostError where this process slept over its lease, and the manifest is not what lies there now.

        Withdrawn meanwhile, or a shard was written anew: then the manifest goes again, unless it is another process's.
        """
        with contextlib.suppress(LeaseLostError):
            if self._ledger.generation() == generation:
                lease.check()  # held: nobody wrote or withdrew
                return
        with contextlib.suppress(HeadraceError):
            receipts = {shard: receipt for shard, (receipt, _) in self._ledger.receipts().items()}
            plan = self._ledger.plan()
            current = _current(receipts, self._ledger.generation(), plan)
            if self._ledger.whole(current, plan, manifest.metadata) == manifest:
                self._ledger.refuse_writers(besides=DATASET)
                self._ledger.check_files(current)
                return
        if self._ledger.get(MANIFEST) == manifest.to_json():
            self._store.delete(MANIFEST)
        raise LeaseLostError(self._ledger.where, "the dataset")

    def _put_whole(self, path: str, raw: bytes, lease: Lease | None = None) -> None:
        """Put an object, and again where the store kept less of it than it was given."""
        for _ in range(TRIES):
            if lease is not None:
                self._check(lease)
            self._store.put(path, raw)
            if self._has_folders or (found := self._ledger.get(path)) is None or not _is_part(found, raw):
                return  # whole, or another one's since
        raise self._cut_short(path, raw, found)

    def _cut_short(self, path: str, raw: bytes, found: bytes | None) -> WriteError:
        kept = "nothing" if found is None else f"{len(found)} of them"
        return WriteError(
            f"{self._ledger.where.rstrip('/')}/{path}: the store acknowledged {len(raw)} bytes and kept {kept}, "
            f"{TRIES} times; the dataset is not published"
        )

    def _generation(self) -> int:
        """The generation; where a store kept less of the number than it was given, one that no receipt has."""
        if not self._ledger.is_generation_cut_short():
            return self._ledger.generation()
        receipts = self._ledger.receipts(pass_damaged=True).values()
        return 1 + max((receipt.generation for receipt, _ in receipts), default=-1)

    def _mended_generation(self) -> int:
        """The generation, written anew where a store kept less of it than it was given."""
        if self._ledger.is_generation_cut_short():
            with self._dataset_lease() as lease:
                if self._ledger.is_generation_cut_short():
                    self._put_whole(GENERATION, b"%d\n" % self._generation(), lease)
        return self._ledger.generation()

    def _lease(self, name: str, what: str) -> Lease:
        return acquire(self._store, LEASES, name, what=what, attempt=attempt_id(), on_takeover=lambda _: None)

    def _already_published(self, metadata: Mapping[str, Any] | None) -> Manifest | None:
        found = self._ledger.manifest()
        if found is None:
            return None
        if metadata is not None and metadata != found[0].metadata:
            raise PublishedError(self._ledger.where, "is published with other metadata, which cannot change either")
        return found[0]

    def _remove_stale(self, receipts: Mapping[int, Receipt], *, keep: Mapping[int, Receipt], permitted: bool) -> None:
        """Remove what an older run left beside the shards to keep, if somebody said that this run replaces it."""
        owned = {file.name for receipt in keep.values() for file in receipt.files}
        stale = [
            info.path
            for info in self._store.list(recursive=False)
            if shard_and_suffix(info.path) and info.path not in owned
        ]
        if stale and not permitted:
            raise UnfinishedDatasetError(
                self._ledger.where, f"{stale[0]} has no receipt", "write that shard again, or delete the file"
            )
        for path in stale:
            self._store.delete(path)
        for shard in set(receipts) - set(keep):
            self._store.delete(receipt_path(shard))


def _current(receipts: Mapping[int, Receipt], generation: int, plan: Plan | None) -> dict[int, Receipt]:
    """Those that count."""
    return {
        shard: receipt
        for shard, receipt in receipts.items()
        if receipt.generation == generation and (plan is None or shard < len(plan.tasks))
    }


def _is_part(found: bytes, raw: bytes) -> bool:
    return len(found) < len(raw) and raw.startswith(found)


def refuse_unwritable(store: Store) -> None:
    """UnsupportedOperationError for a store in which a crash, or a second writer, could leave something half done."""
    can = store.capabilities
    if can.rename:
        return
    needed = {
        "write objects": can.write,
        "create an object only where there is none, by which one of two writers wins": can.conditional,
        "list objects": can.listing,
    }
    for operation, has in needed.items():
        if not has:
            raise UnsupportedOperationError(store.location, operation, "write to a directory and copy that")
