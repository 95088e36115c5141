"""The dataset in a directory, of whatever kind: described, verified, published."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from headrace.datasets import Damage
from headrace.datasets.kinds import AnyStorage, holds_samples, open_storage
from headrace.errors import NoDatasetError, OptionError
from headrace.inspection.samples import Samples, opened_samples, sample_description, sample_lines
from headrace.inspection.shards import shard_description, shard_lines
from headrace.store import LocalStore, Store
from headrace.store.cache import CachedStore
from headrace.store.open import open_store

__all__ = ["Found", "Totals", "Verdict", "description", "found_in", "published", "readable", "verdict"]

Found = AnyStorage | Samples
_SAMPLES = "samples"


class Totals(NamedTuple):
    """How much a dataset holds."""

    counted: str  # what length counts: elements, documents or samples
    num_shards: int
    length: int
    num_bytes: int
    fingerprint: str


class Verdict(NamedTuple):
    """What verifying found."""

    counted: str
    damages: list[Damage]
    num_shards: int
    num_files: int
    num_bytes: int
    unchecked: list[str]


def found_in(place: str | Path | Store, cache: str | Path | None = None) -> Found:
    """The dataset there. Where there is none an error says why: for samples here, else as soon as it is asked.

    cache is a local directory to keep what is read whole of a dataset at a URL; OptionError for one of a local dataset.
    """
    store = place if isinstance(place, Store) else open_store(place)
    if isinstance(store, LocalStore):
        if cache is not None:
            raise OptionError("cache", str(cache), f"nothing for {store.location}, which is local")
        if not store.root.is_dir():
            is_there = store.root.exists()
            problem = "is a file; name the dataset's directory" if is_there else "there is no such directory"
            raise NoDatasetError(store.location, problem)
    elif cache is not None:
        store = CachedStore(store, cache)
    return opened_samples(store) if holds_samples(store) else open_storage(store)


def description(found: Found) -> dict[str, Any]:
    """All that is known, and how the dataset begins; JSON."""
    return sample_description(found) if isinstance(found, Samples) else shard_description(found)


def readable(described: dict[str, Any]) -> Iterator[str]:
    """The lines that tell a description to people."""
    return sample_lines(described) if described["kind"] == _SAMPLES else shard_lines(described)


def verdict(found: Found) -> Verdict:
    """Every file read again and compared with its record."""
    if isinstance(found, Samples):
        described = found.dataset.describe()
        counts = described["num_shards"], found.num_files, described["total_bytes"]
        return Verdict(_SAMPLES, found.dataset.verify(), *counts, described["unchecked"])
    manifest = found.open().manifest
    num_files = sum(len(shard.files) for shard in manifest.shards)
    counts = manifest.num_shards, num_files, manifest.total_bytes
    return Verdict(found.counted, found.verify(), *counts, found.describe()["unchecked"])


def published(found: Found) -> Totals:
    """What is published, from now on at the latest; samples are since they have an index.

    UnfinishedDatasetError where something is missing.
    """
    if isinstance(found, Samples):
        described = found.dataset.describe()
        counts = described["num_shards"], described["total_length"], described["total_bytes"]
        return Totals(_SAMPLES, *counts, described["fingerprint"])
    manifest = found.publish()
    counts = manifest.num_shards, manifest.total_length, manifest.total_bytes
    return Totals(found.counted, *counts, manifest.fingerprint)
