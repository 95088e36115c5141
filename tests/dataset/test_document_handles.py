"""Document datasets in other processes and threads, over other stores and records, and when something is wrong."""

import gc
import os
import pickle
import threading

import numpy as np
import pytest

from dataset.payload_scenes import (
    STORES,
    Marked,
    Picky,
    RangesOnly,
    documents_at,
    in_another_process,
    unsynced,
    write,
)
from dataset.scenes import open_files_below
from headrace.datasets import DocumentDataset, DocumentStorage, MmapIO, PosixPreadIO, SeekIO
from headrace.errors import CorruptShardError, SchemaMismatchError, UnsafeDataError
from headrace.formats.documents import (
    DocumentBytesFormat,
    DocumentJsonFormat,
    DocumentNumpyFormat,
    DocumentPickleFormat,
)
from headrace.store import LocalStore, MemoryStore
from headrace.views import dataset_settings

BYTES = DocumentBytesFormat()
SHARDS = [[b"", b"a", b"bc"], [], [b"def", b"", b"ghij"]]
FLAT = [document for shard in SHARDS for document in shard]


@pytest.fixture
def no_collector():
    """Python's collector of cycles rests: what is freed is freed because nothing refers to it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_a_dataset_and_its_storage_pickle_as_their_configuration(tmp_path):
    storage = documents_at(tmp_path, SHARDS, BYTES)
    dataset = storage.dataset()
    assert (dataset[3], dataset.lengths.sum()) == (b"def", 10)
    raw = pickle.dumps(dataset)
    assert len(raw) < 1000
    copy = pickle.loads(raw)
    assert copy[:] == FLAT
    assert (copy.settings, repr(copy)) == (dataset.settings, repr(dataset))
    assert pickle.loads(pickle.dumps(storage)).dataset()[:] == FLAT
    assert str(tmp_path) in repr(dataset)
    assert "DocumentBytesFormat()" in repr(dataset)


def test_a_pickled_dataset_over_memory_carries_its_documents():
    dataset = documents_at(MemoryStore(), SHARDS, BYTES).dataset()
    assert pickle.loads(pickle.dumps(dataset))[:] == FLAT


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("used", [False, True])
def test_another_process_reads_the_same_whether_the_dataset_was_used_before_or_not(method, used, tmp_path):
    dataset = documents_at(unsynced(tmp_path), [[[i] * i for i in range(40)]] * 2, DocumentNumpyFormat("<u2")).dataset()
    if used:
        dataset[:]
    got = in_another_process(method, dataset, [79, 3, 3, -40])
    assert [document.tolist() for document in got] == [[39] * 39, [3] * 3, [3] * 3, []]
    assert dataset[5].tolist() == [5] * 5


def test_a_fork_while_another_thread_opens_files_still_reads(tmp_path):
    dataset = documents_at(unsynced(tmp_path), [[b"%d" % i] for i in range(60)], BYTES, publish=True).dataset()
    dataset = DocumentStorage(LocalStore(tmp_path, max_open_files=4), BYTES).dataset()
    over = threading.Event()

    def read():
        at = 0
        while not over.is_set():
            dataset[at % 60]
            at += 7

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for start in range(5):
            assert in_another_process("fork", dataset, range(start, 60, 9)) == [b"%d" % i for i in range(start, 60, 9)]
    finally:
        over.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("options", [{}, {"max_open_files": 1}, {"max_open_files": 8}, {"mapped": False}], ids=repr)
def test_threads_read_right_while_maps_come_and_go(options, tmp_path):
    documents = [bytes([65 + i % 26]) * (i % 40) for i in range(300)]
    documents_at(unsynced(tmp_path), np.array_split(np.array(documents, object), 30), BYTES, publish=True)
    dataset = DocumentStorage(LocalStore(tmp_path, **options), BYTES).dataset()
    failures = []

    def work(seed):
        draw = np.random.default_rng(seed)
        for _ in range(40):
            items = draw.integers(-300, 300, draw.integers(1, 20))
            if dataset.__getitems__(items) != [documents[item] for item in items]:
                failures.append(items)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    dataset.close()
    assert open_files_below(tmp_path) == 0


@pytest.mark.parametrize("store", STORES)
def test_every_store_gives_the_same(store):
    storage = documents_at(STORES[store](), SHARDS, BYTES)
    assert storage.dataset()[:] == FLAT
    assert storage.dataset()[::-2] == FLAT[::-2]
    with storage.sync_reader() as reader:
        assert reader.read_many([5, 0, 5, 3]) == [FLAT[5], FLAT[0], FLAT[5], FLAT[3]]


@pytest.mark.parametrize("interface", [MmapIO(), PosixPreadIO(), SeekIO(), PosixPreadIO(advice=True)])
def test_every_read_interface_gives_the_same(interface, tmp_path):
    documents_at(unsynced(tmp_path), SHARDS, BYTES)
    storage = DocumentStorage(tmp_path, BYTES, interface)
    assert storage.dataset()[:] == FLAT
    assert storage.dataset().lengths.tolist() == [len(document) for document in FLAT]


def test_closing_releases_the_files_at_once(no_collector, tmp_path):
    dataset = documents_at(tmp_path, SHARDS, BYTES).dataset()
    assert dataset.__getitems__([0, 5]) == [b"", b"ghij"]
    assert open_files_below(tmp_path) > 0
    dataset.close()
    assert open_files_below(tmp_path) == 0


def test_a_closed_dataset_opens_what_is_there_at_its_next_use(tmp_path):
    storage = documents_at(tmp_path, SHARDS, BYTES)
    with storage.dataset() as dataset:
        assert dataset[:] == FLAT
        reader = dataset.sync_reader()
        assert isinstance(reader, DocumentDataset)
        with reader:
            assert reader[-1] == b"ghij"
        assert dataset[3] == b"def"
    write(storage, [[b"new"]] * 3)
    assert dataset[:] == [b"new"] * 3
    assert (len(dataset), dataset.lengths.tolist()) == (3, [3, 3, 3])
    dataset.close()
    dataset.close()


def test_published_or_not_data_and_settings_are_the_same(tmp_path):
    unpublished = documents_at(tmp_path / "a", SHARDS, BYTES)
    before = unpublished.dataset()
    settings, fingerprint = before.settings, before.fingerprint
    assert settings == {"data": fingerprint} == dataset_settings(before)
    unpublished.publish()
    assert DocumentStorage(tmp_path / "a").dataset().fingerprint == fingerprint
    assert documents_at(MemoryStore(), SHARDS, BYTES, publish=True).dataset().fingerprint == fingerprint
    others = (
        documents_at(MemoryStore(), [SHARDS[0], SHARDS[2]], BYTES),
        documents_at(MemoryStore(), SHARDS, Marked()),
        documents_at(MemoryStore(), [*SHARDS[:2], [b"def", b"", b"ghiJ"]], BYTES),
        documents_at(MemoryStore(), [*SHARDS[:2], [b"def", b"g", b"hij"]], BYTES),
    )
    assert len({fingerprint, *(other.dataset().fingerprint for other in others)}) == 5


def test_describe_counts_documents(tmp_path):
    told = documents_at(tmp_path, SHARDS, BYTES).dataset().describe()
    known = {"kind": "documents", "num_shards": 3, "total_length": 6, "num_samples": 6, "published": False}
    assert told.items() >= {**known, "dtype": {"encoding": "bytes"}}.items()


# Formats, recorded and asked for.


RECORDS = {
    "json": (DocumentJsonFormat(), [{"a": [1, None]}, "text", 3]),
    "numpy": (DocumentNumpyFormat("<u2"), [[1, 2], [], [65535]]),
    "bytes": (BYTES, [b"", b"x"]),
}


@pytest.mark.parametrize("name", RECORDS)
def test_without_a_format_the_record_decides(name, tmp_path):
    storage_format, records = RECORDS[name]
    documents_at(tmp_path, [records], storage_format)
    got = DocumentStorage(tmp_path).dataset()[:]
    assert [one.tolist() if isinstance(one, np.ndarray) else one for one in got] == records
    assert all(type(one) is bytes for one in DocumentStorage(tmp_path, BYTES).dataset()[:])


@pytest.mark.parametrize(
    ("written", "asked"),
    [
        (DocumentNumpyFormat("<u2"), DocumentNumpyFormat("<i2")),
        (DocumentNumpyFormat("<u2"), DocumentJsonFormat()),
        (DocumentJsonFormat(), DocumentNumpyFormat("u1")),
        (DocumentJsonFormat(), DocumentPickleFormat(allow_pickle=True)),
    ],
    ids=repr,
)
def test_documents_of_another_format_are_refused_when_they_are_opened(written, asked, tmp_path):
    documents_at(tmp_path, [[]], written)
    with pytest.raises(SchemaMismatchError):
        DocumentStorage(tmp_path, asked).dataset().open()
    with pytest.raises(SchemaMismatchError), DocumentStorage(tmp_path, asked).sync_reader():
        pass
    DocumentStorage(tmp_path, Marked()).dataset().open()  # says nothing of what it reads


def test_pickles_need_the_caller_s_word_and_the_refusal_names_the_document(tmp_path):
    documents_at(tmp_path, [[{"a": (1, 2)}, {1, 2}]], DocumentPickleFormat())
    with pytest.raises(UnsafeDataError, match="allow_pickle=True") as refused:
        DocumentStorage(tmp_path).dataset().__getitems__([1, 0])
    assert refused.value.__notes__ == [f"while reading document 1 of {tmp_path}"]
    assert DocumentStorage(tmp_path, DocumentPickleFormat(allow_pickle=True)).dataset()[:] == [{"a": (1, 2)}, {1, 2}]


def test_payloads_of_no_whole_number_of_elements_are_named_whether_they_are_counted_or_read(tmp_path):
    documents_at(tmp_path, [[b"even"], [b"", b"odd"]], Marked())  # whose records say nothing of elements
    dataset = DocumentStorage(tmp_path, DocumentNumpyFormat("<u2")).dataset()
    with pytest.raises(CorruptShardError, match="shard 1: payload 1 is no whole number of elements of 2 bytes"):
        dataset.lengths
    with pytest.raises(ValueError) as failed:
        dataset[:]
    assert failed.value.__notes__ == [f"while reading document 2 of {tmp_path}"]
    assert [document.tolist() for document in dataset[:2]] == [np.frombuffer(b"even", "<u2").tolist(), []]


# Notes.


@pytest.mark.parametrize("interface", [None, PosixPreadIO()])
@pytest.mark.parametrize("in_place", [False, True])
def test_what_a_format_raises_names_the_document(interface, in_place, tmp_path):
    storage_format = Picky()
    storage_format.reads_in_place = in_place
    documents_at(unsynced(tmp_path), [[b"fine", b"!broken"], [b"good", b"fine too", b"!also"]], Marked())
    storage = DocumentStorage(tmp_path, storage_format, interface)
    dataset = storage.dataset()
    with storage.sync_reader() as reader:
        for read, number in (
            (lambda: dataset[1], 1),
            (lambda: dataset[-1], 4),
            (lambda: dataset[np.int64(4)], 4),
            (lambda: dataset[::-1], 4),
            (lambda: dataset[:], 1),
            (lambda: dataset.__getitems__([3, 0, 0, 4, 1]), 4),
            (lambda: reader.read(4), 4),
            (lambda: reader.read_many([0, 2, 1]), 1),
        ):
            with pytest.raises(RuntimeError, match="cannot decode") as failed:
                read()
            assert failed.value.__notes__ == [f"while reading document {number} of {tmp_path}"]
        assert dataset.__getitems__([0, 3, 2]) == reader.read_many([0, 3, 2]) == [b"fine", b"fine too", b"good"]


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("damage", ["missing", "short", "index"])
def test_a_note_names_no_document_of_another_shard_than_the_damaged_one(mapped, damage, tmp_path):
    documents_at(unsynced(tmp_path), [[b"a", b"b"], [b"c", b"d", b"e"]], Marked(), publish=True)
    dataset = DocumentStorage(LocalStore(tmp_path, mapped=mapped), Marked()).dataset()
    match damage:
        case "missing":
            (tmp_path / "0000001.out_of_band.bin").unlink()
        case "short":
            os.truncate(tmp_path / "0000001.out_of_band.bin", 2)
        case _:
            (tmp_path / "0000001.out_of_band.index").write_bytes(np.array([0, 1, 9, 3], "<i8").tobytes())
    with pytest.raises(CorruptShardError, match="shard 1") as failed:
        dataset.__getitems__([1, 0, 3])
    for note in getattr(failed.value, "__notes__", []):
        assert "document 3" in note or "document" not in note
    assert [bytes(data) for data, _ in dataset.__getitems__([1, 0])] == [b"b", b"a"]


def test_a_batch_over_more_shards_than_may_be_mapped_is_whole(tmp_path):
    documents_at(unsynced(tmp_path), [[b"%d" % shard] for shard in range(50)], BYTES, publish=True)
    for limit in (1, 3, 10):
        dataset = DocumentStorage(LocalStore(tmp_path, max_open_files=limit), BYTES).dataset()
        assert dataset[::-1] == [b"%d" % shard for shard in reversed(range(50))]
        assert open_files_below(tmp_path) <= limit + max(limit, 2)  # read by position; mapped
        dataset.close()


def test_reading_without_a_format_of_ones_own_needs_no_view_of_the_data():
    store = RangesOnly()
    documents_at(store, SHARDS, BYTES)
    assert DocumentStorage(store).dataset()[3] == b"def"
