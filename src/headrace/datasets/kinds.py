"""Which kind of dataset a directory holds."""

from pathlib import Path

from headrace.datasets.annotated import StreamWithMetaStorage
from headrace.datasets.documents import DocumentStorage
from headrace.datasets.ledger import MANIFEST, Ledger, shard_and_suffix
from headrace.datasets.neighbours import INDEX, samples_in
from headrace.datasets.stream import StreamStorage
from headrace.errors import ManifestError, NotFoundError, SchemaMismatchError
from headrace.manifest import Manifest
from headrace.store import LocalStore, Store
from headrace.store.open import open_store

__all__ = ["AnyStorage", "holds_samples", "open_storage"]

AnyStorage = StreamStorage | DocumentStorage | StreamWithMetaStorage
_STORAGES = (StreamStorage, DocumentStorage, StreamWithMetaStorage)
_KNOWN = "stream, documents and annotated"


def open_storage(storage_dir: str | Path | Store) -> AnyStorage:
    """The storage of whatever kind of dataset is there, without a format: what the directory records decides.

    The kind is the one recorded in the manifest or the receipts, or follows from the files' names where another program
    wrote them. Where there is nothing yet it is a StreamStorage, and opening that says what is missing.
    ManifestError for a kind that this Headrace does not know; SchemaMismatchError for samples: see SampleDataset.
    """
    store = storage_dir if isinstance(storage_dir, Store) else open_store(storage_dir)
    kind = _recorded_kind(store) or _kind_of_files(store)
    if kind is None and _samples_in(store):
        advice = "open it with SampleDataset(directory)"
        raise SchemaMismatchError(store.location, "a dataset of kind", "samples", f"one of {_KNOWN}", advice)
    for storage in _STORAGES:
        if storage.kind == (kind or StreamStorage.kind):
            return storage(storage_dir if isinstance(store, LocalStore) else store)
    raise ManifestError(store.location, f"holds a dataset of kind {kind!r}; this Headrace knows {_KNOWN}; upgrade it")


def holds_samples(store: Store) -> bool:
    """Whether a dataset of samples is there, finished or not.

    An index.json beside shards of another kind decides nothing: some other program put it there.
    """
    return _samples_in(store) and (_recorded_kind(store) or _kind_of_files(store)) is None


def _samples_in(store: Store) -> bool:
    if store.capabilities.listing:
        return samples_in(store) is not None
    try:
        store.head(INDEX)
    except NotFoundError:
        return False  # what is unfinished cannot be seen there
    return True


def _recorded_kind(store: Store) -> str | None:
    ledger = Ledger(store, "")
    if (raw := ledger.get(MANIFEST)) is not None:
        return Manifest.from_json(raw, f"{store.location}/{MANIFEST}").kind
    if not store.capabilities.listing:
        return None
    for receipt, _ in ledger.receipts().values():
        return receipt.kind
    return None


def _kind_of_files(store: Store) -> str | None:
    if not store.capabilities.listing:
        return None
    suffixes = {named[1] for info in store.list(recursive=False) if (named := shard_and_suffix(info.path))}
    if suffixes == DocumentStorage.suffixes:
        return DocumentStorage.kind
    if suffixes == StreamWithMetaStorage.suffixes:
        return StreamWithMetaStorage.kind
    return StreamStorage.kind if suffixes else None
