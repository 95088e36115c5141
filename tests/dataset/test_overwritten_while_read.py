"""A dataset in an object store that is written anew again and again, with equal names and sizes, while it is read."""

import threading
from time import monotonic

import numpy as np
import pytest

from dataset.scenes import U2
from headrace import SampleDataset, StreamDataset, StreamStorage
from headrace.datasets import DocumentDataset, DocumentStorage, MDSWriter
from headrace.errors import CorruptShardError, DatasetChangedError, NoDatasetError, UnfinishedDatasetError
from headrace.formats.documents import DocumentBytesFormat
from headrace.store import MemoryStore
from headrace.store.cache import CachedStore

SHARDS, SECONDS = 6, 1.5


def stream(salt):
    storage = StreamStorage(MemoryStore(), U2)
    with storage.sync_writer() as writer:
        for shard in range(SHARDS):
            writer.append(shard, np.full(40, salt, np.uint16))
    storage.publish()
    return storage.store


def documents(salt):
    storage = DocumentStorage(MemoryStore(), DocumentBytesFormat())
    with storage.sync_writer() as writer:
        for number in range(SHARDS * 4):
            writer.append(number // 4, bytes([salt]) * (number % 5 + 1))
    storage.publish()
    return storage.store


def samples(salt):
    store = MemoryStore()
    with MDSWriter(columns={"id": "int"}, out=store, size_limit=300, hashes=["xxh64"]) as out:
        for _ in range(SHARDS * 10):
            out.write({"id": salt})
    return store


KINDS = {
    "stream": (stream, lambda place: StreamDataset(StreamStorage(place), 10), lambda item: set(item.tolist())),
    "documents": (documents, lambda place: DocumentDataset(DocumentStorage(place)), set),
    "samples": (samples, SampleDataset, lambda item: {item["id"]}),
}


def replace_forever(store, versions, is_over):
    """Each version in turn, in the order of Headrace's writers: the evidence goes first, and comes last."""
    turn = 0
    while not is_over.is_set():
        objects = versions[turn % len(versions)]
        for name in objects:
            if name.endswith(".json"):
                store.delete(name)
        for name, data in sorted(objects.items(), key=lambda item: item[0].endswith(".json")):
            store.put(name, data)
        turn += 1
        is_over.wait(0.003)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["by ranges", "through a cache", "through a cache that compares no digests"])
def test_what_is_read_is_all_of_one_version_or_an_error(kind, how, tmp_path):
    write, dataset, values = KINDS[kind]
    written = [write(salt) for salt in (1, 2, 3)]
    versions = [{info.path: source.get(info.path) for info in source.list()} for source in written]
    known = {}
    for salt, source in enumerate(written, 1):
        with dataset(source) as opened:
            known[opened.fingerprint] = {salt}
    store = MemoryStore(flat=True)
    place = store if how == "by ranges" else CachedStore(store, tmp_path, verify=how == "through a cache")
    is_over = threading.Event()
    writer = threading.Thread(target=replace_forever, args=(store, versions, is_over))
    writer.start()
    whole, begin = 0, monotonic()
    try:
        while monotonic() - begin < SECONDS or (whole == 0 and monotonic() - begin < 20):
            try:
                with dataset(place) as opened:
                    expected = known[opened.fingerprint]
                    for items in np.array_split(np.arange(len(opened))[::-1], 4):
                        for item in opened.__getitems__(items.tolist()):
                            assert values(item) == expected
                    whole += 1
            except (DatasetChangedError, NoDatasetError, UnfinishedDatasetError):
                continue
            except CorruptShardError as error:
                raise AssertionError("what was replaced is called damaged") from error
    finally:
        is_over.set()
        writer.join()
    assert whole > 0
