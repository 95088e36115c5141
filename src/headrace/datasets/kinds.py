"""Which kind of dataset a directory holds."""

from pathlib import Path

from headrace.datasets.annotated import StreamWithMetaStorage
from headrace.datasets.documents import DocumentStorage
from headrace.datasets.ledger import MANIFEST, Ledger, shard_and_suffix
from headrace.datasets.stream import StreamStorage
from headrace.errors import ManifestError
from headrace.manifest import Manifest
from headrace.store import LocalStore, Store

__all__ = ["AnyStorage", "open_storage"]

AnyStorage = StreamStorage | DocumentStorage | StreamWithMetaStorage


def open_storage(storage_dir: str | Path | Store) -> AnyStorage:
    """The storage of whatever kind of dataset is there, without a format: what the directory records decides.

    The kind is the one recorded in the manifest or the receipts, or follows from the files' names where another program
    wrote them. Where there is nothing yet it is a StreamStorage, and opening that says what is missing.
    ManifestError for a kind that this Headrace does not know.
    """
    store = storage_dir if isinstance(storage_dir, Store) else LocalStore(storage_dir)
    kind = _recorded_kind(store) or _kind_of_files(store)
    for storage in (StreamStorage, DocumentStorage, StreamWithMetaStorage):
        if kind == storage.kind:
            return storage(storage_dir)
    raise ManifestError(
        store.location,
        f"holds a dataset of kind {kind!r}; this Headrace knows stream, documents and annotated; upgrade it",
    )


def _recorded_kind(store: Store) -> str | None:
    ledger = Ledger(store, "")
    if (raw := ledger.get(MANIFEST)) is not None:
        return Manifest.from_json(raw, f"{store.location}/{MANIFEST}").kind
    for receipt, _ in ledger.receipts().values():
        return receipt.kind
    return None


def _kind_of_files(store: Store) -> str:
    suffixes = {named[1] for info in store.list(recursive=False) if (named := shard_and_suffix(info.path))}
    if suffixes == DocumentStorage.suffixes:
        return DocumentStorage.kind
    return StreamWithMetaStorage.kind if suffixes == StreamWithMetaStorage.suffixes else StreamStorage.kind
