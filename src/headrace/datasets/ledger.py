"""What a dataset directory says of itself: receipts, plan, generation, leases. Everything here only reads.

DIR/headrace.json                          the manifest; present = published, immutable
DIR/NNNNNNN.*.bin                          data, renamed here whole
DIR/.headrace/NNNNNNN.receipt              a shard's commit
DIR/.headrace/plan.json                    which task writes which shard (prepare() only)
DIR/.headrace/generation                   a number; raised by whoever withdraws a manifest
DIR/.headrace/attempts/NNNNNNN-<attempt>/  one writer's private files; not where there are no renames
DIR/.headrace/leases/                      who writes what
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from msgspec import UNSET

from headrace.errors import (
    CorruptShardError,
    ManifestError,
    NotFoundError,
    ObjectChangedError,
    SchemaMismatchError,
    UnfinishedDatasetError,
)
from headrace.manifest import Manifest, Plan, Receipt
from headrace.store import FileInfo, Store, is_dead, open_leases

__all__ = [
    "ATTEMPTS",
    "DATASET",
    "GENERATION",
    "LEASES",
    "MANIFEST",
    "PLAN",
    "PRIVATE",
    "Ledger",
    "numbers",
    "receipt_path",
    "shard_and_suffix",
    "shard_file",
]

MANIFEST = "headrace.json"
PRIVATE = ".headrace"
PLAN = f"{PRIVATE}/plan.json"
GENERATION = f"{PRIVATE}/generation"
ATTEMPTS = f"{PRIVATE}/attempts"
LEASES = f"{PRIVATE}/leases"
DATASET = "dataset"  # the lease of whoever publishes or withdraws

_REQUESTS = 16  # at once
_SHARD_FILE = re.compile(r"([0-9]{7,})\.(in_band\.bin|out_of_band\.bin|out_of_band\.index)")
_RECEIPT = re.compile(rf"{re.escape(PRIVATE)}/([0-9]{{7,}})\.receipt")


def receipt_path(shard: int) -> str:
    """Where the shard's receipt lies."""
    return f"{PRIVATE}/{shard:07d}.receipt"


def shard_file(shard: int, suffix: str) -> str:
    """The final name of one file of a shard."""
    return f"{shard:07d}.{suffix}"


def shard_and_suffix(name: str) -> tuple[int, str] | None:
    """Number and suffix of a shard's data file; None for any other name."""
    match = _SHARD_FILE.fullmatch(name)
    if match is None or shard_file(int(match[1]), match[2]) != name:
        return None
    return int(match[1]), match[2]


class Ledger:
    """The commit state of one directory; every answer is read from the store anew."""

    def __init__(self, store: Store, kind: str) -> None:
        self.store = store
        self.kind = kind
        self.where = store.location

    def manifest(self) -> tuple[Manifest, FileInfo] | None:
        """The manifest and what the store says of its file; None when the dataset is not published."""
        info, raw = self._with_info(MANIFEST)
        if info is None or raw is None:
            return None
        manifest = Manifest.from_json(raw, f"{self.where}/{MANIFEST}")
        self.check_kind(manifest.kind)
        return manifest, info

    def is_published(self) -> bool:
        """Whether a manifest is there."""
        return self.head(MANIFEST) is not None

    def has_commits(self) -> bool:
        """Whether Headrace writers have worked here."""
        return PRIVATE in self.store.folders()

    def generation(self) -> int:
        """The generation that receipts must have to count."""
        raw = self.get(GENERATION)
        if raw is None:
            return 0
        if not re.fullmatch(rb"[0-9]{1,18}\n", raw):
            advice = "; the next writer writes it again" if _is_cut_short(raw) else ""
            raise ManifestError(f"{self.where}/{GENERATION}", f"is no number: {raw[:40]!r}{advice}")
        return int(raw)

    def is_generation_cut_short(self) -> bool:
        """Whether a store kept less of the number than it was given, so that no receipt counts."""
        raw = self.get(GENERATION)
        return raw is not None and _is_cut_short(raw)

    def plan(self) -> Plan | None:
        """The recorded plan, if any."""
        raw = self.get(PLAN)
        return None if raw is None else Plan.from_json(raw, f"{self.where}/{PLAN}")

    def receipts(self, *, pass_damaged: bool = False) -> dict[int, tuple[Receipt, FileInfo]]:
        """Every receipt by shard, of whatever generation, with its file. ManifestError for a damaged one.

        pass_damaged=True leaves damaged ones out, for those to whom their shards are not written.
        """
        found = {}
        listed = [info for info in self.store.list(PRIVATE, recursive=False) if _RECEIPT.fullmatch(info.path)]
        for info, raw in zip(listed, self._all([info.path for info in listed]), strict=True):
            if raw is None:
                continue  # its shard is being replaced just now
            try:
                receipt = Receipt.from_json(raw, f"{self.where}/{info.path}")
                if receipt_path(receipt.shard) != info.path:
                    raise ManifestError(f"{self.where}/{info.path}", f"is the receipt of shard {receipt.shard}")
            except ManifestError:
                if pass_damaged:
                    continue
                raise
            found[receipt.shard] = receipt, info
        return found

    def receipt_versions(self) -> dict[str, str]:
        """Path -> version of every receipt: what has changed when a receipt came, went or was replaced."""
        listed = self.store.list(PRIVATE, recursive=False)
        return {info.path: info.version for info in listed if _RECEIPT.fullmatch(info.path)}

    def finished(self) -> dict[int, Receipt]:
        """The receipts of the current generation whose task is recorded and whose files are there, by shard."""
        if self.is_generation_cut_short():
            return {}
        generation = self.generation()
        receipts = {shard: receipt for shard, (receipt, _) in self.receipts(pass_damaged=True).items()}
        found = self._files()
        return {
            shard: receipt
            for shard, receipt in receipts.items()
            if receipt.generation == generation and receipt.task is not None and not self._problem(receipt, found)
        }

    def refuse_writers(self, besides: str | None = None) -> None:
        """UnfinishedDatasetError while an attempt or lease is open, a dead writer's included."""
        holders = {name: held for name, held in open_leases(self.store, LEASES).items() if name != besides}
        attempts = self.store.folders(ATTEMPTS)
        if not holders and not attempts:
            return
        shards = {int(name) for name in holders if name.isdigit()} | {int(name.partition("-")[0]) for name in attempts}
        what = f"shard {numbers(sorted(shards))}" if shards else "the manifest"
        identities = [*(held["attempt"] for held in holders.values()), *(name.partition("-")[2] for name in attempts)]
        if all(map(is_dead, identities)):
            raise UnfinishedDatasetError(self.where, f"a writer died while it wrote {what}")
        raise UnfinishedDatasetError(self.where, f"{what} is being written", "wait for its writer to finish")

    def whole(self, receipts: Mapping[int, Receipt], plan: Plan | None, metadata: Mapping[str, Any] | None) -> Manifest:
        """The manifest of these receipts if they are a whole dataset: planned, gapless, of one schema."""
        if plan is not None:
            missing = [k for k, task in enumerate(plan.tasks) if k not in receipts or receipts[k].task != task]
            if missing:
                raise UnfinishedDatasetError(
                    self.where, f"shards {numbers(missing)} of the {len(plan.tasks)} planned are not written"
                )
            if extra := [shard for shard in receipts if shard >= len(plan.tasks)]:
                raise UnfinishedDatasetError(
                    self.where, f"shards {numbers(extra)} are not of the plan, which has {len(plan.tasks)}"
                )
        if not receipts:
            raise UnfinishedDatasetError(self.where, "no shard has been committed")
        if gaps := sorted(set(range(max(receipts) + 1)) - set(receipts)):
            raise UnfinishedDatasetError(
                self.where,
                f"shards {numbers(gaps)} of 0 to {max(receipts)} have no receipt; shards are numbered without gaps",
            )
        ordered = [receipts[shard] for shard in range(len(receipts))]
        for receipt in ordered:
            self.check_kind(receipt.kind)
            if receipt.dtype != ordered[0].dtype:
                where = f"{self.where}, shard {receipt.shard}"
                raise SchemaMismatchError(where, "elements of type", receipt.dtype, ordered[0].dtype)
        return Manifest.of(self.kind, ordered[0].dtype, [receipt.record for receipt in ordered], metadata)

    def check_kind(self, kind: str) -> None:
        """SchemaMismatchError when kind is not this dataset's."""
        if kind != self.kind:
            raise SchemaMismatchError(self.where, "a dataset of kind", kind, self.kind)

    def head(self, path: str) -> FileInfo | None:
        """store.head(path), or None when nothing is there."""
        try:
            return self.store.head(path)
        except NotFoundError:
            return None

    def get(self, path: str) -> bytes | None:
        """store.get(path), or None when nothing is there."""
        try:
            return self.store.get(path)
        except NotFoundError:
            return None

    def _with_info(self, path: str) -> tuple[FileInfo | None, bytes | None]:
        """What the store says of an object, and its bytes: both of one version."""
        while True:
            info = self.head(path)
            if self.store.capabilities.remote and info is not None:
                try:  # two requests instead of three
                    start, length = np.zeros(1, np.int64), np.array([info.size_bytes], np.int64)
                    return info, bytes(self.store.get_ranges_of(info, start, length)[0])
                except (NotFoundError, ObjectChangedError):
                    continue
            raw = self.get(path)
            if info == self.head(path):
                return info, raw

    def _all(self, paths: Sequence[str]) -> Iterator[bytes | None]:
        """get() of each path, in order: many at once where each is a round trip."""
        if not self.store.capabilities.remote:
            yield from map(self.get, paths)
            return
        with ThreadPoolExecutor(_REQUESTS, thread_name_prefix="headrace-receipts") as pool:
            yield from pool.map(self.get, paths)

    def check_files(self, receipts: Mapping[int, Receipt]) -> None:
        """CorruptShardError for the first file that is missing, has another size than recorded, or was replaced."""
        found = self._files()
        start = 0
        for shard, receipt in sorted(receipts.items()):
            if problem := self._problem(receipt, found):
                raise CorruptShardError(self.where, shard, problem, (start, start + receipt.length))
            start += receipt.length

    def _files(self) -> dict[str, FileInfo]:
        return {info.path: info for info in self.store.list(recursive=False)}

    def _problem(self, receipt: Receipt, found: Mapping[str, FileInfo]) -> str | None:
        """What is wrong with the first of the shard's files that is not what its receipt says; None if all are."""
        recorded = None if receipt.objects is UNSET else receipt.objects.at(self.where)
        for number, file in enumerate(receipt.files):
            info = found.get(file.name)
            if info is None or info.size_bytes != file.bytes:
                problem = "is missing" if info is None else f"has {info.size_bytes} bytes"
                return f"{file.name} {problem}, but its receipt says {file.bytes} bytes"
            if recorded is not None and info.version != recorded[number]:
                return f"{file.name} is another object than its receipt was made for; write that shard again"
        return None


def _is_cut_short(generation: bytes) -> bool:
    return re.fullmatch(rb"[0-9]{0,18}", generation) is not None


def numbers(values: Sequence[int]) -> str:
    """The first few of the values, and how many there are."""
    shown = ", ".join(map(str, sorted(values)[:8]))
    return f"{shown}, ... ({len(values)} in all)" if len(values) > 8 else shown
