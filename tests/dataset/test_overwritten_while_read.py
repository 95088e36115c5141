"""A dataset in an object store that is written anew again and again, with equal names and sizes, while it is read."""

import threading
from time import monotonic

import numpy as np
import pytest
import xxhash

from dataset.scenes import U2
from headrace import SampleDataset, StreamDataset, StreamStorage
from headrace.datasets import DocumentDataset, DocumentStorage, MDSWriter, StreamWithMetaStorage
from headrace.datasets.sources import read_whole
from headrace.errors import (
    CorruptShardError,
    DatasetChangedError,
    NoDatasetError,
    ObjectChangedError,
    TruncatedReadError,
    UnfinishedDatasetError,
)
from headrace.formats.annotated import SpanNumpyFormat
from headrace.formats.documents import DocumentBytesFormat
from headrace.store import LocalStore, MemoryStore
from headrace.store.cache import CachedStore
from headrace.testing import FaultStore

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


PARTS = ["in_band.bin", "out_of_band.bin", "out_of_band.index"]
SPANS = SpanNumpyFormat([("tokens", "<u2")])


def foreign_annotated(salt):
    storage = StreamWithMetaStorage(MemoryStore(), SPANS)
    with storage.sync_writer() as writer:
        for number in range(salt, salt + 6):
            spans = {"span_lengths": [4], "payloads": [bytes([number]) * 3], "tokens": np.full(4, number)}
            writer.append((number - salt) // 3, spans)
    return {info.path: storage.store.get(info.path) for info in storage.store.list(recursive=False)}


def annotated(place):
    return StreamDataset(StreamWithMetaStorage(place, SPANS), 4)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("how", ["by ranges", "through a cache", "mapped", "by position"])
def test_any_file_of_a_foreign_shard_that_is_overwritten_is_noticed(how, part, tmp_path):
    is_local = how in ("mapped", "by position")
    live = LocalStore(tmp_path / "data", mapped=how == "mapped") if is_local else MemoryStore(flat=True)
    old, new = foreign_annotated(1), foreign_annotated(101)
    for name, data in old.items():
        live.put(name, data)
    place = CachedStore(live, tmp_path / "cache") if how == "through a cache" else live
    with annotated(place) as dataset:
        for shard in (0, 1):
            live.put(f"{shard:07d}.{part}", new[f"{shard:07d}.{part}"])
        for number in range(len(dataset)):
            try:
                found = dataset[number]
            except DatasetChangedError:
                continue
            assert found["payloads"][0][0] == found["tokens"][0] < 100
    with annotated(place) as dataset:  # what a cache holds of it by now
        assert dataset[1]["tokens"][0] == (102 if part == "in_band.bin" else 2)
        assert dataset[1]["payloads"][0][0] == (102 if part == "out_of_band.bin" else 2)


class Replaced(FaultStore):
    """Before the request with this number something happens to what is behind it."""

    def __init__(self, store, number, happens):
        super().__init__(store)
        self.left, self.happens = number, happens

    def _begin(self, *call):
        self.left -= 1
        if self.left == -1:
            self.happens(self.store)
        return super()._begin(*call)


def unpublished(salt):
    storage = StreamStorage(MemoryStore(), U2)
    with storage.sync_writer() as writer:
        for shard in range(SHARDS):
            writer.append(shard, np.full(20, salt, np.uint16))
    return storage.store


def put_all(store, written):
    for info in sorted(written.list(), key=lambda info: info.path.endswith(".json")):
        store.put(info.path, written.get(info.path))


def written_anew(store, write):
    withdrawn(store, write)
    written = write(2)
    for info in written.list():  # the receipts of another run
        if info.path.endswith("generation"):
            store.put(info.path, b"2")
    put_all(store, written)


def withdrawn(store, write):
    """As a writer begins: what the dataset rests on goes first, then the rest."""
    for info in sorted(store.list(), key=lambda info: not info.path.endswith(".json")):
        store.delete(info.path)


@pytest.mark.parametrize("happens", [written_anew, withdrawn])
@pytest.mark.parametrize("kind", [*KINDS, "unpublished"])
def test_whatever_request_it_happens_before_a_replacement_is_told_as_one(kind, happens):
    write, dataset, values = (unpublished, *KINDS["stream"][1:]) if kind == "unpublished" else KINDS[kind]
    seen = set()
    for number in range(1000):
        store = Replaced(MemoryStore(flat=True), number, lambda inner: happens(inner, write))
        put_all(store.store, write(1))
        try:
            with dataset(store) as opened:
                found = [values(item) for items in (range(len(opened)), [0, -1]) for item in opened.__getitems__(items)]
                assert all(value == found[0] for value in found)
        except (DatasetChangedError, NoDatasetError, UnfinishedDatasetError) as error:
            seen.add(type(error))
        if store.left >= 0:
            break
    assert DatasetChangedError in seen
    assert number > 5


def test_a_manifest_that_becomes_shorter_as_it_is_read_is_read_again():
    store = MemoryStore(flat=True)
    store.put("headrace.json", b"a longer one")
    found = read_whole(Replaced(store, 1, lambda inner: inner.put("headrace.json", b"short")), "headrace.json")
    assert found == (b"short", store.head("headrace.json"))


class Digested(MemoryStore):
    """Versions are digests of the bytes, as S3's are."""

    def head(self, path):
        return super().head(path)._replace(version=xxhash.xxh3_64_hexdigest(self.get(path)))


class ThereAndBack(FaultStore):
    """Another version is there while a data file is fetched, and the first one again right after."""

    def __init__(self, store, one, two):
        super().__init__(store)
        self.one, self.two = one, two

    def pieces(self, path, piece_bytes=1 << 20):
        put_all(self.store, self.two)
        data = self.store.get(path)
        put_all(self.store, self.one)
        yield memoryview(data)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_fetched_while_another_version_was_there_is_not_kept_unchecked(kind, tmp_path):
    write, dataset, values = KINDS[kind]
    store = Digested(flat=True)
    put_all(store, write(1))
    hidden = ThereAndBack(store, write(1), write(2))
    with dataset(CachedStore(hidden, tmp_path, verify=False)) as opened, pytest.raises(DatasetChangedError):
        opened[0]
    with dataset(CachedStore(store, tmp_path, verify=False)) as opened:
        assert values(opened[0]) == {1}


class BrokenOff(FaultStore):
    """Every fetch of a data file ends in an error."""

    def __init__(self, store, error):
        super().__init__(store)
        self.error = error

    def pieces(self, path, piece_bytes=1 << 20):
        yield memoryview(b"a")
        raise self.error


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_replaced_whenever_it_is_fetched_is_told_as_replaced(kind, tmp_path):
    write, dataset, _ = KINDS[kind]
    store = MemoryStore(flat=True)
    put_all(store, write(1))
    changed = BrokenOff(store, ObjectChangedError("memory://x"))
    with dataset(CachedStore(changed, tmp_path / "1")) as opened, pytest.raises(DatasetChangedError):
        opened[0]
    cut = BrokenOff(store, TruncatedReadError("memory://x", 0, 9, 1))
    with dataset(CachedStore(cut, tmp_path / "2")) as opened, pytest.raises(CorruptShardError, match=r"has 1 byte"):
        opened[0]
