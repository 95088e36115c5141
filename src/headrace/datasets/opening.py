"""Which state of a directory opens as a dataset, and what a reader may rest on.

headrace.json is there           published: one file is read, whatever the number of shards
.headrace is there               receipts: gapless, one generation, nobody writing or dead, a plan complete
neither, but NNNNNNN.* files     another program's (GuideLoom's): lengths from sizes, nothing can be checked
anything else                    refused
"""

from collections.abc import Mapping
from typing import NamedTuple

import xxhash

from headrace.datasets.ledger import MANIFEST, Ledger, numbers, shard_and_suffix
from headrace.datasets.neighbours import INDEX, parts_in, samples_in
from headrace.datasets.sources import Access, Source, read_whole
from headrace.errors import CorruptShardError, NoDatasetError, SchemaMismatchError, UnfinishedDatasetError
from headrace.manifest import VERSION, FileRecord, Manifest, Receipt, ShardRecord
from headrace.store import DatasetFile, FileInfo, Store

__all__ = ["UNKNOWN_LENGTH", "Opened", "open_directory"]

UNKNOWN_LENGTH = -1  # of a shard whose length follows from its size


class Opened(NamedTuple):
    """A dataset as it was found."""

    manifest: Manifest  # made up where there is none; then without fingerprint, and lengths may be UNKNOWN_LENGTH
    published: bool
    by_headrace: bool  # schema and digests are known
    # The manifest, or of each shard its receipt or its files; another version means that the data was replaced.
    evidence: tuple[tuple[FileInfo, ...], ...]
    content: str  # names what is in the files: the fingerprint, or a digest of their versions where nothing is recorded

    def source(self, store: Store, access: Access) -> Source:
        """The files, read through store, in which this was found."""
        known: dict[str, tuple[int, FileRecord]] = {}

        def file(name: str) -> tuple[int, DatasetFile]:
            if not known:
                known.update((f.name, (number, f)) for number, shard in enumerate(shards) for f in shard.files)
            number, record = known[name]
            return number, DatasetFile(record.bytes, record.xxh3_128, xxhash.xxh3_128 if record.xxh3_128 else None)

        shards = self.manifest.shards
        # The manifest was looked at as it will be again; times in listings are finer with some stores.
        return Source(store, self.content, file, self.evidence, access, keeps_by_time=self.published)


def open_directory(
    store: Store,
    kind: str,
    suffixes: frozenset[str],
    optional: frozenset[str] = frozenset(),
    *,
    check_sizes: bool = True,
) -> Opened:
    """The dataset in store; NoDatasetError or UnfinishedDatasetError say why it does not exist.

    suffixes are the files that a shard of this kind has, to tell a foreign directory of another kind; optional ones may
    be absent where a shard is empty. check_sizes=False
    opens a directory of receipts also where files disagree with them, for somebody who looks at every file himself.
    """
    ledger = Ledger(store, kind)
    if (found := read_whole(store, MANIFEST)) is not None:
        manifest = Manifest.from_json(found[0], f"{ledger.where}/{MANIFEST}")
        ledger.check_kind(manifest.kind)
        return Opened(manifest, published=True, by_headrace=True, evidence=((found[1],),), content=manifest.fingerprint)
    if not store.capabilities.listing:
        problem = f"there is no {MANIFEST}, and files cannot be listed there, so only a published dataset opens"
        raise NoDatasetError(ledger.where, problem)
    if ledger.has_commits():
        return _open_receipts(ledger, check_sizes=check_sizes)
    return _open_foreign(ledger, suffixes, optional)


def _open_receipts(ledger: Ledger, *, check_sizes: bool) -> Opened:
    # Receipts that are the same before and after a moment at which nobody writes were all there at that moment.
    generation, found = ledger.generation(), ledger.receipts()
    if not found:
        _refuse_samples(ledger)
    ledger.refuse_writers()
    _refuse_changed(ledger, found)
    for shard, (receipt, _) in found.items():
        if receipt.generation != generation:
            raise UnfinishedDatasetError(ledger.where, f"shard {shard} is of an older run that is being replaced")
    manifest = ledger.whole({shard: receipt for shard, (receipt, _) in found.items()}, ledger.plan(), None)
    if check_sizes:
        try:
            ledger.check_files({shard: receipt for shard, (receipt, _) in found.items()})
        except CorruptShardError:
            _refuse_changed(ledger, found)  # then it is no damage that the files are others
            raise
    owned = {file.name for shard in manifest.shards for file in shard.files}
    for info in ledger.store.list(recursive=False):
        if shard_and_suffix(info.path) and info.path not in owned:
            raise UnfinishedDatasetError(ledger.where, f"{info.path} has no receipt")
    return Opened(
        manifest,
        published=False,
        by_headrace=True,
        evidence=tuple((info,) for _, (_, info) in sorted(found.items())),
        content=manifest.fingerprint,
    )


def _refuse_changed(ledger: Ledger, found: Mapping[int, tuple[Receipt, FileInfo]]) -> None:
    if ledger.receipt_versions() != {info.path: info.version for _, info in found.values()}:
        raise UnfinishedDatasetError(ledger.where, "shards were committed while it was being opened", "open it again")


def _open_foreign(ledger: Ledger, suffixes: frozenset[str], optional: frozenset[str]) -> Opened:
    shards = _shard_files(ledger)
    # Who writes or copies has something in .headrace before the first file is there, until the last one is. So files
    # that are the same before and after a moment without it are all there.
    if shards and (ledger.has_commits() or _shard_files(ledger) != shards):
        raise UnfinishedDatasetError(ledger.where, "files came or went while it was being opened", "open it again")
    if not shards:
        _refuse_samples(ledger)
        problem = f"holds no dataset: there is no headrace.json, no {INDEX} and no shard 0000000"
        parts = parts_in(ledger.store)
        raise NoDatasetError(ledger.where, f"{problem}, but {parts}" if parts else problem)
    if gaps := sorted(set(range(max(shards) + 1)) - set(shards)):
        raise UnfinishedDatasetError(
            ledger.where, f"the files of shards {numbers(gaps)} of 0 to {max(shards)} are missing"
        )
    for shard, files in shards.items():
        is_empty = not any(info.size_bytes for info in files.values())
        if not suffixes - (optional if is_empty else frozenset()) <= set(files) <= suffixes:
            where = f"{ledger.where}, shard {shard}"
            raise SchemaMismatchError(where, "files", sorted(files), sorted(suffixes))
    ordered = [[files[suffix] for suffix in sorted(files)] for _, files in sorted(shards.items())]
    records = tuple(
        ShardRecord(UNKNOWN_LENGTH, tuple(FileRecord(info.path, info.size_bytes, "") for info in files))
        for files in ordered
    )
    total_bytes = sum(info.size_bytes for files in ordered for info in files)
    manifest = Manifest(VERSION, ledger.kind, None, len(records), 0, total_bytes, "", records)
    versions = [(info.path, info.size_bytes, info.version) for files in ordered for info in files]
    return Opened(
        manifest,
        published=False,
        by_headrace=False,
        evidence=tuple(map(tuple, ordered)),
        content=f"versions:{xxhash.xxh3_128_hexdigest(repr(versions).encode())}",
    )


def _shard_files(ledger: Ledger) -> dict[int, dict[str, FileInfo]]:
    """Shard -> suffix -> file, of what is there."""
    shards: dict[int, dict[str, FileInfo]] = {}
    for info in ledger.store.list(recursive=False):
        if named := shard_and_suffix(info.path):
            shards.setdefault(named[0], {})[named[1]] = info
    return shards


def _refuse_samples(ledger: Ledger) -> None:
    found = samples_in(ledger.store)
    if found == INDEX:
        advice = "open it with SampleDataset(directory)"
        raise SchemaMismatchError(ledger.where, "a dataset of kind", "samples", ledger.kind, advice)
    if found is not None:
        problem = f"samples are being written there, or were, and there is no {INDEX} yet"
        raise UnfinishedDatasetError(ledger.where, problem, "finish them, then open it with SampleDataset(directory)")
