"""Datasets in stores that behave as object stores do, and a count of what reading them asks for."""

import numpy as np

from dataset.scenes import U2
from headrace.datasets import (
    DocumentDataset,
    DocumentStorage,
    MDSWriter,
    SampleDataset,
    StreamDataset,
    StreamStorage,
    StreamWithMetaStorage,
)
from headrace.formats.annotated import SpanNumpyFormat
from headrace.formats.documents import DocumentBytesFormat
from headrace.store import MemoryStore
from headrace.testing import FaultStore

SHARDS, ELEMENTS = 5, 100
READS = ("head", "get", "get_ranges", "get_ranges_of", "list", "folders", "pieces")


def flat(written):
    """The same objects in a flat store, behind a log."""
    store = MemoryStore(flat=True)
    copy_into(store, written)
    return FaultStore(store)


def copy_into(store, written):
    """All objects of another store; the manifest or index comes last."""
    for info in sorted(written.list(), key=lambda info: info.path.endswith(".json")):
        store.put(info.path, written.get(info.path))


def requests(store):
    """How many requests there were of each kind, since the last time; the log begins anew."""
    found = {name: count for name in READS if (count := store.count(name))}
    store.calls.clear()
    return found


def written_stream(salt=0, publish=True):
    storage = StreamStorage(MemoryStore(), U2)
    with storage.sync_writer() as writer:
        for shard in range(SHARDS):
            writer.append(shard, np.arange(shard * ELEMENTS, (shard + 1) * ELEMENTS, dtype=np.uint16) + salt)
    if publish:
        storage.publish()
    return storage.store


def written_documents(salt=0, publish=True):
    storage = DocumentStorage(MemoryStore(), DocumentBytesFormat())
    with storage.sync_writer() as writer:
        for number in range(SHARDS * 8):
            writer.append(number // 8, document(number, salt))
    if publish:
        storage.publish()
    return storage.store


def document(number, salt=0):
    return bytes([(number + salt) % 256]) * (number % 7 + 1)


def written_annotated(salt=0, publish=True):
    storage = StreamWithMetaStorage(MemoryStore(), SpanNumpyFormat([("tokens", "<u2")]))
    with storage.sync_writer() as writer:
        for number in range(SHARDS * 8):
            spans = {"span_lengths": [5], "payloads": [document(number, salt)], "tokens": np.full(5, number + salt)}
            writer.append(number // 8, spans)
    if publish:
        storage.publish()
    return storage.store


def written_samples(salt=0, **options):
    store = MemoryStore()
    with MDSWriter(columns={"id": "int", "text": "str"}, out=store, size_limit=400, **options) as out:
        for number in range(SHARDS * 10):
            out.write(sample(number, salt))
    return store


def sample(number, salt=0):
    return {"id": number + salt, "text": f"{number + salt:03d}" * 3}


def streams(store, **options):
    return StreamDataset(StreamStorage(store, U2, **options), 10)


def documents(store, **options):
    return DocumentDataset(DocumentStorage(store, **options))


def annotated(store, **options):
    return StreamDataset(StreamWithMetaStorage(store, **options), 10)


def samples(store, **options):
    return SampleDataset(store, **options)


def plain(found):
    """What was read, in a form that can be compared."""
    if isinstance(found, dict):
        return {name: plain(value) for name, value in found.items()}
    if isinstance(found, np.ndarray):
        return found.tolist()
    if isinstance(found, bytes | bytearray | memoryview):
        return bytes(found)
    return [plain(value) for value in found] if isinstance(found, list | tuple) else found


def all_of(dataset):
    """Every item, one by one and as a batch in another order."""
    one_by_one = [plain(dataset[number]) for number in range(len(dataset))]
    order = np.argsort(np.arange(len(dataset)) * 7919 % 31, kind="stable")
    batch = list(dataset.__getitems__(order))
    assert [plain(item) for item in batch] == [one_by_one[number] for number in order.tolist()]
    return one_by_one


KINDS = {
    "stream": (written_stream, streams),
    "documents": (written_documents, documents),
    "annotated": (written_annotated, annotated),
    "samples": (written_samples, samples),
}
