"""Readers of samples under constraints: compressed files only, nothing to write to, little memory, many readers."""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import tracemalloc
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest

from headrace.datasets import MDSWriter, SampleDataset
from headrace.errors import OptionError, SchemaMismatchError, StoreError
from headrace.store import LocalStore, MemoryStore
from headrace.testing import FaultStore, Refuse, Rule
from sample_scenes import CODECS, PLACES, in_memory, reader, sample_of, samples, stored, write

COUNT = 50
WRITES = ("put", "put_if_absent", "delete", "open_writer", "rename", "make_folder", "remove_folder", "remove_orphans")
KILOBYTE = 1024


@pytest.fixture(scope="module", params=[("mds", None), ("mds", "zstd"), ("json", "gz"), ("csv", None)], ids=str)
def folder(request, tmp_path_factory):
    """Five shards of ten samples."""
    shard_format, compression = request.param
    return write(tmp_path_factory.mktemp("data") / "data", shard_format=shard_format, compression=compression)


def numbers_of(seed, count=200):
    return np.random.default_rng(seed).integers(-COUNT, COUNT, count)


def read_some(dataset, seed=0):
    """Samples one by one and in batches, compared; the process that did it."""
    numbers = numbers_of(seed).tolist()
    assert [dataset[number] for number in numbers] == [sample_of(number % COUNT) for number in numbers]
    assert dataset.__getitems__(numbers) == [sample_of(number % COUNT) for number in numbers]
    assert len(dataset) == COUNT
    return os.getpid()


# Only compressed files


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("shard_format", ["mds", "tsv"])
@pytest.mark.parametrize("compression", CODECS)
def test_compressed_files_alone_are_read_and_nothing_is_written(compression, shard_format, place, tmp_path):
    folder = write(tmp_path / "data", (10, 10), shard_format, compression=compression)
    before = stored(LocalStore(folder))
    assert [path for path in before if path.endswith((".mds", ".json", ".tsv", ".meta"))] == ["index.json"]
    store = FaultStore(PLACES[place](folder), [Rule(Refuse(StoreError("read-only")), name) for name in WRITES])
    with SampleDataset(store) as dataset:
        assert dataset[0] == sample_of(0)
        assert dataset[:] == samples(20)
        assert dataset.lengths.sum() > 19_000
        assert dataset.verify() == []
    assert stored(LocalStore(folder)) == before
    assert not any(call.operation in WRITES for call in store.calls)


@pytest.mark.parametrize("shard_format", ["mds", "json"])
def test_raw_files_beside_compressed_ones_are_read_in_their_place(shard_format, tmp_path):
    folder = write(tmp_path / "data", (10, 10), shard_format, compression="zstd", hashes=["md5"])
    write(tmp_path / "raw", (10, 10), shard_format, hashes=["md5"])
    names = [f"shard.00000.{suffix}" for suffix in ([shard_format, "json.meta"] if shard_format == "json" else ["mds"])]
    for name in names:
        raw = (tmp_path / "raw" / name).read_bytes()  # but for the name of the compression inside
        (folder / name).write_bytes(raw)
    store = FaultStore(in_memory(folder))
    with SampleDataset(store) as dataset:
        if shard_format == "json":
            assert dataset[:] == samples(20)
            assert store.count("view", "shard.00000.json.zstd") == 0
        else:  # of another size, since the header differs
            assert dataset[:] == samples(20)
            assert store.count("view", "shard.00000.mds") == 0
    for name in names:
        (folder / f"{name}.zstd").unlink()
    assert SampleDataset(folder)[10:] == samples(10, 10)


# Memory


def test_no_more_than_the_bound_or_one_shard_is_held_decompressed(tmp_path):
    num_shards, shard_bytes = 12, 256 * KILOBYTE
    store = write(MemoryStore(), (1,) * num_shards, sample=big, compression="zstd:1")
    numbers = np.random.default_rng(0).integers(0, num_shards, 60).tolist()
    for bound in (0, shard_bytes, 3 * shard_bytes, 100 * shard_bytes):
        dataset = SampleDataset(store, columns=["id"], decompressed_bytes=bound)
        dataset[0]
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for number in numbers:
                assert dataset[number] == {"id": number}
                held = tracemalloc.get_traced_memory()[0] - before
                assert held <= max(bound, shard_bytes) + 64 * KILOBYTE
            peak = tracemalloc.get_traced_memory()[1] - before
            assert peak <= max(bound, shard_bytes) + 1.5 * shard_bytes + 64 * KILOBYTE  # and the one that comes
        finally:
            tracemalloc.stop()


def big(number):
    return {"id": number, "text": f"{number:08d}" * (32 * KILOBYTE - 40)}


def decompressions(store, bound, numbers):
    dataset = SampleDataset(store, decompressed_bytes=bound)
    for number in numbers:
        dataset[number]
    return store.count("view", "shard.*")


def test_as_long_as_there_is_room_no_shard_is_decompressed_twice():
    store = FaultStore(write(MemoryStore(), (1,) * 5, sample=big, compression="snappy"))
    shard_bytes = int(SampleDataset(store).lengths[0]) + 500
    store.calls.clear()
    assert decompressions(store, 5 * shard_bytes, [0, 1, 2, 3, 4] * 5) == 5
    store.calls.clear()
    assert decompressions(store, 0, [0, 0, 1, 1, 0, 0]) == 3
    store.calls.clear()
    assert decompressions(store, 2 * shard_bytes, [0, 1, 0, 1, 2, 1, 2, 0]) == 4  # the oldest goes first


def test_samples_stay_as_they_are_when_their_shard_is_let_go(folder):
    dataset = reader(folder, decompressed_bytes=0)
    taken = [dataset[number] for number in range(COUNT)]
    dataset.close()
    del dataset
    assert taken == samples(COUNT)


def test_arrays_are_the_caller_s_own(tmp_path):
    columns = {"array": "ndarray:uint16", "fixed": "ndarray:int32:4", "raw": "bytes"}
    with_arrays = {"array": np.arange(7, dtype=np.uint16), "fixed": np.arange(4, dtype=np.int32), "raw": b"raw"}
    write(tmp_path, (2, 2), columns=columns, sample=lambda _: with_arrays)
    for place in PLACES:
        dataset = reader(tmp_path, place)
        for sample in dataset[:]:
            sample["array"][:] = 9
            sample["fixed"][:] = 9
        for sample in dataset[:]:
            assert sample["array"].tolist() == list(range(7))
            assert sample["fixed"].tolist() == list(range(4))
            assert type(sample["raw"]) is bytes


# Threads and processes


@pytest.mark.parametrize("bound", [0, 15_000, 1 << 28])
@pytest.mark.parametrize("place", PLACES)
def test_eight_threads_read_the_same_dataset(folder, place, bound):
    dataset = reader(folder, place, decompressed_bytes=bound)
    barrier = threading.Barrier(8)

    def work(seed):
        barrier.wait()
        return read_some(dataset, seed)

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(work, range(8))) == {os.getpid()}


@pytest.mark.parametrize("used", [False, True], ids=["fresh", "used"])
@pytest.mark.parametrize("place", PLACES)
def test_a_dataset_pickles_as_its_configuration(folder, place, used):
    options = {"decompressed_bytes": 12_345, "columns": ["text", "id"]}
    dataset = reader(folder, place, **options)
    if used:
        read_some(dataset)
        assert len(dataset.lengths) == COUNT
    data = pickle.dumps(dataset)
    assert len(data) < 2000
    copy = pickle.loads(data)
    read_some(copy)
    assert (copy.fingerprint, copy.settings, copy.columns) == (dataset.fingerprint, dataset.settings, dataset.columns)
    assert pickle.dumps(copy) == pickle.dumps(pickle.loads(pickle.dumps(copy)))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_read_a_dataset_that_its_parent_uses(method, tmp_path):
    dataset = reader(write(tmp_path, shard_format="json", compression="zstd"))
    read_some(dataset)
    with ProcessPoolExecutor(2, multiprocessing.get_context(method)) as pool:
        processes = set(pool.map(read_some, [dataset] * 6, range(6)))
    assert os.getpid() not in processes
    read_some(dataset)


def test_a_child_of_a_fork_reads_while_the_parent_s_threads_open_shards(folder):
    numbers_of(0)  # imports what NumPy imports late: a lock of Python's own, held by a thread, would stay so in a child
    dataset = reader(folder, decompressed_bytes=0)  # so that every read may open one, under the lock
    stop = threading.Event()

    def read():
        while not stop.is_set():
            read_some(dataset)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for seed in range(6):
            child = os.fork()
            if child == 0:
                code = 1
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(60)  # a child that waits for a lock that nobody holds must not outlive the tests
                try:
                    read_some(dataset, seed)
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        thread.join()


def test_readers_of_their_own_share_nothing_but_the_configuration(folder):
    dataset = reader(folder)
    with dataset.sync_reader() as other:
        read_some(other)
        dataset.close()
        read_some(other)
    read_some(dataset)


# Thousands of shards, few descriptors

LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
import numpy as np
from headrace.datasets import MDSWriter, SampleDataset
from headrace.store import LocalStore

folder, mapped, num_shards = sys.argv[1], sys.argv[2] == "mapped", int(sys.argv[3])
dataset = SampleDataset(LocalStore(folder, mapped=mapped))
expected = [{"id": number} for number in range(2 * num_shards)]
assert dataset[:] == expected
for number in np.random.default_rng(0).permutation(2 * num_shards)[:2000].tolist():
    assert dataset[number] == expected[number]
assert len(dataset.lengths) == 2 * num_shards
assert dataset.verify() == []
"""


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """3,000 shards, and the same compressed."""
    place = tmp_path_factory.mktemp("many")
    for name, options in {"raw": {}, "packed": {"compression": "snappy"}, "split": {"shard_format": "csv"}}.items():
        write(place / name, (2,) * 3000, columns={"id": "int"}, sample=lambda number: {"id": number}, **options)
    return place


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ["raw", "packed", "split"])
def test_thousands_of_shards_are_read_with_256_descriptors(many, name, place):
    result = subprocess.run(
        [sys.executable, "-c", LIMITED, str(many / name), place, "3000"], capture_output=True, text=True, timeout=100
    )
    assert result.returncode == 0, result.stderr


def test_more_shards_than_descriptors_are_read(tmp_path):
    write(tmp_path, (2,) * 300, columns={"id": "int"}, sample=lambda number: {"id": number})
    for place in PLACES:
        command = [sys.executable, "-c", LIMITED, str(tmp_path), place, "300"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=100)
        assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("max_open_files", [1, 2, 7])
def test_a_store_that_keeps_few_views_is_read_all_the_same(folder, max_open_files):
    dataset = SampleDataset(LocalStore(folder, max_open_files=max_open_files))
    assert dataset[:] == samples(COUNT)
    read_some(dataset)


def test_directories_with_other_columns_are_one_dataset_only_in_the_columns_that_all_have(tmp_path):
    for name, columns in (("a", {"id": "int", "text": "str"}), ("b", {"id": "int", "label": "int"})):
        with MDSWriter(columns=columns, out=tmp_path / name) as out:
            out.write({"id": 1, **({"text": "x"} if name == "a" else {"label": 2})})
    both = [tmp_path / "a", tmp_path / "b"]
    with pytest.raises(SchemaMismatchError, match=r"b/index\.json.*'label'.*'text'.*columns=\[\.\.\.\]"):
        SampleDataset(both).open()
    assert SampleDataset(both, columns=["id"])[:] == [{"id": 1}, {"id": 1}]
    with pytest.raises(OptionError, match="'text'"):
        SampleDataset(both, columns=["text"]).open()
