"""Indexes that are damaged, of another kind, hostile, or replaced while they are read."""

import json
import threading

import pytest

from headrace.datasets.samples.dataset import SampleDataset
from headrace.datasets.samples.index import index_bytes
from headrace.datasets.samples.shard_index import read_index
from headrace.errors import (
    CorruptShardError,
    DatasetChangedError,
    ManifestError,
    ManifestVersionError,
)
from headrace.store import LocalStore, MemoryStore
from sample_scenes import PLACES, in_memory, index_of, put_index, reader, samples, stored, write

FORMATS = ["mds", "json", "csv", "xsv"]


@pytest.fixture(scope="module")
def whole():
    """Of each format a store with two shards of three samples, compressed and not."""
    return {
        (shard_format, compression): write(
            MemoryStore(), (3, 3), shard_format, compression=compression, hashes=["md5"], sample=small
        )
        for shard_format in FORMATS
        for compression in (None, "zstd")
    }


def small(number):
    return {"id": number, "text": "text"[: number % 5]}


def with_index(store, raw):
    """A copy of the store with another index."""
    other = MemoryStore()
    for path, data in stored(store).items():
        other.put(path, data)
    other.put("index.json", raw)
    return other


def edited(store, edit):
    index = json.loads(store.get("index.json"))
    edit(index)
    return with_index(store, json.dumps(index).encode())


VALID = index_bytes(read_index(write(MemoryStore(), (3,)).get("index.json"), "here"))
NO_INDEX = {
    "of 0 bytes": (b"", "is empty"),
    "cut after 100 bytes": (VALID[:100], "100 bytes"),
    "cut by 1 byte": (VALID[:-1], ""),
    "followed by more": (VALID + b"}", ""),
    "of spaces": (b" " * 50, ""),
    "of zeros": (bytes(200), ""),
    "not of text": (b"\xff\xfe" + VALID, ""),
    "a list": (b"[]", ""),
    "a number": (b"2", ""),
    "null": (b"null", ""),
    "an empty object": (b"{}", ""),
    "of another program": (b'{"config": {"chunk_size": 5}, "chunks": []}', ""),
    "of shards that are no list": (b'{"shards": {}, "version": 2}', ""),
    "of shards that are no objects": (b'{"shards": [3], "version": 2}', "shard 0"),
    "without shards": (b'{"version": 2}', "shards"),
    "without a version": (b'{"shards": []}', "version"),
    "with something else": (b'{"shards": [], "version": 2, "metadata": {}}', "metadata"),
    "nested without end": (b'{"version": 2, "shards": ' + b"[" * 200_000, ""),
    "nested deeply": (b'{"version": 2, "shards": [' + b'{"a": ' * 100_000 + b"1" + b"}" * 100_000 + b"]}", ""),
}


@pytest.mark.parametrize("name", NO_INDEX)
def test_what_is_no_index_is_refused_with_its_path(name, tmp_path):
    raw, words = NO_INDEX[name]
    (tmp_path / "index.json").write_bytes(raw)
    for dataset in (reader(tmp_path), reader(tmp_path, "not mapped")):
        with pytest.raises(ManifestError, match=words or None) as caught:
            len(dataset)
        assert str(tmp_path / "index.json") in str(caught.value)
        assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("version", [1, 3, 99, "2", 2.5, True, [2]])
def test_an_index_of_another_version_is_refused_as_such(version, whole):
    store = edited(whole["mds", None], lambda index: index.update(version=version))
    with pytest.raises(ManifestVersionError, match=r"memory://.*index.json: has version .* reads version 2"):
        SampleDataset(store).open()
    store = edited(whole["mds", None], lambda index: index["shards"][1].update(version=version))
    with pytest.raises(ManifestError, match=r"index.json: shard 1 .*version"):
        SampleDataset(store).open()


@pytest.mark.parametrize("raw", [b'{"shards": [], "version": 2}', b'{"version":2,"shards":[]}'])
def test_an_index_without_shards_is_an_empty_dataset(raw, tmp_path):
    (tmp_path / "index.json").write_bytes(raw)
    dataset = reader(tmp_path)
    assert (len(dataset), dataset[:], list(dataset), dataset.columns, dataset.verify()) == (0, [], [], {}, [])
    assert (dataset.lengths.tolist(), dataset.shard_lengths.tolist()) == ([], [])
    assert dataset.__getitems__([]) == []
    with pytest.raises(IndexError, match="dataset of 0 samples"):
        dataset[0]
    assert dataset.describe()["num_samples"] == 0


OUTSIDE = ["../x", "/etc/passwd", "a/../../x", "a/..", "..", ".", "", "a//b", "/", "a/", "a\\b", "..\\x", "a\0b"]


@pytest.mark.parametrize("path", OUTSIDE)
@pytest.mark.parametrize("name", ["raw_data", "zip_data", "raw_meta", "zip_meta"])
def test_no_file_is_looked_for_outside_the_dataset(name, path, whole):
    store = edited(whole["json", "zstd"], lambda index: index["shards"][1][name].update(basename=path))
    with pytest.raises(ManifestError, match=r"index.json: shard 1: its file .* outside"):
        SampleDataset(store).open()


def change(**changes):
    return lambda entry: entry.update(changes)


def change_file(name, **changes):
    return lambda entry: entry[name].update(changes)


def drop(name):
    return lambda entry: entry.pop(name)


SENSELESS = {  # which dataset, what becomes of the entry of its shard 1, words of the message
    "fewer than no samples": ("mds", None, change(samples=-1), "-1 samples"),
    "samples beyond 64 bits": ("mds", None, change(samples=1 << 80), ""),
    "samples that no sum can hold": ("mds", None, change(samples=1 << 62), "samples"),
    "more samples than offsets": ("mds", None, change(samples=1 << 20), "1048576 samples"),
    "more samples than offsets in the other file": ("csv", None, change(samples=1 << 20), "1048576 samples"),
    "a part of a sample": ("mds", None, change(samples=1.5), ""),
    "samples that are text": ("mds", None, change(samples="3"), ""),
    "a size below 0": ("mds", None, change_file("raw_data", bytes=-1), "-1 bytes"),
    "a size beyond 64 bits": ("json", "zstd", change_file("zip_meta", bytes=1 << 70), ""),
    "a size that no file has": ("json", "zstd", change_file("zip_data", bytes=1 << 62), "bytes"),
    "0 bytes for 3 samples": ("mds", None, change_file("raw_data", bytes=0), "3 samples"),
    "0 bytes of offsets for 3 samples": ("json", None, change_file("raw_meta", bytes=0), "3 samples"),
    "one file for two": ("json", None, change_file("raw_meta", basename="shard.00001.json"), "two of its files"),
    "the file of another shard": ("mds", None, change_file("raw_data", basename="shard.00000.mds"), "the same file"),
    "a compression without files": ("mds", None, change(compression="zstd"), "compression"),
    "compressed files without a compression": ("mds", "zstd", change(compression=None), "compression"),
    "an unknown compression": ("mds", "zstd", change(compression="gzipp"), "gzipp.*one of br"),
    "an unknown level": ("json", "zstd", change(compression="zstd:23"), "zstd:23"),
    "compressed data with raw offsets": ("csv", "zstd", change(zip_meta=None), "one of its files"),
    "more names than encodings": ("mds", None, change(column_names=["id", "text", "x"]), "lengths"),
    "fewer sizes than names": ("mds", None, change(column_sizes=[8]), "lengths"),
    "fewer encodings than names": ("xsv", None, change(column_encodings=["int"]), "lengths"),
    "an unknown format": ("mds", None, change(format="parquet"), "parquet"),
    "no format": ("mds", None, drop("format"), "format"),
    "a field that Streaming has not": ("mds", None, change(checksum="abc"), "checksum"),
    "the offsets of another format": ("mds", None, change(raw_meta=None), "raw_meta"),
    "no offsets": ("json", None, drop("raw_meta"), "raw_meta"),
    "no separator": ("xsv", None, drop("separator"), "separator"),
    "no sample count": ("mds", None, drop("samples"), "samples"),
    "a column name that is a number": ("mds", None, change(column_names=[1, 2]), ""),
    "no file at all": ("mds", None, change(raw_data=None), "raw_data"),
}


@pytest.mark.parametrize("name", SENSELESS)
def test_an_entry_that_makes_no_sense_is_refused_with_its_shard(name, whole):
    shard_format, compression, edit, words = SENSELESS[name]
    store = edited(whole[shard_format, compression], lambda index: edit(index["shards"][1]))
    with pytest.raises(ManifestError, match=f"index.json: (shard 1|shards 0 and 1).*{words}"):
        SampleDataset(store)[3]


SCHEMAS = {
    "an unknown encoding": ("mds", change(column_encodings=["int", "text"]), "column 'text'.*one of"),
    "a size that is not the encoding's": ("mds", change(column_sizes=[4, None]), "column 'id'.*4 bytes, not 8"),
    "a size for values that vary": ("mds", change(column_sizes=[8, 3]), "column 'text'"),
    "columns in another order": ("mds", change(column_names=["text", "id"]), "not sorted"),
    "a column twice": ("mds", change(column_names=["id", "id"]), "not sorted and unique"),
    "an encoding of another format": ("json", change(columns={"id": "int", "text": "json"}), "str, int or float"),
    "no columns": ("mds", change(column_names=[], column_encodings=[], column_sizes=[]), "at least one column"),
    "no newline": ("json", change(newline=""), "newline"),
    "no columns of lines": ("json", change(columns={}), "columns"),
    "a separator without length": ("xsv", change(separator=""), "separator"),
    "a separator like the newline": ("xsv", change(separator="\n"), "separator"),
}


@pytest.mark.parametrize("read", ["one", "many", "lengths"])
@pytest.mark.parametrize("shard", [0, 1])
@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_that_cannot_be_read_is_refused_with_the_index(name, shard, read, whole):
    shard_format, edit, words = SCHEMAS[name]
    dataset = SampleDataset(edited(whole[shard_format, None], lambda index: edit(index["shards"][shard])))
    reads = {"one": lambda: dataset[3], "many": lambda: dataset[1:5], "lengths": lambda: dataset.lengths}
    with pytest.raises(ManifestError, match=f"index.json: .*{words}"):
        reads[read]()
    if shard == 1:
        assert dataset[:3] == [small(number) for number in range(3)]


@pytest.mark.parametrize("place", PLACES)
def test_numbers_as_large_as_they_may_be_take_neither_time_nor_memory(place, tmp_path):
    write(tmp_path, (3, 3, 3))
    index = index_of(tmp_path)
    for entry in index["shards"][1:]:
        entry["samples"] = (1 << 32) - 1
        entry["raw_data"]["bytes"] = (1 << 62) - 1
    put_index(tmp_path, index)
    dataset = reader(tmp_path, place)
    assert len(dataset) == 3 + 2 * ((1 << 32) - 1)
    assert dataset[:3] == samples(3)
    for read in (lambda: dataset[3], lambda: dataset[-1], lambda: dataset.__getitems__([5]), lambda: dataset.lengths):
        with pytest.raises(CorruptShardError, match=r"shard [12] "):
            read()
    assert [damage.shard for damage in dataset.verify()] == [1, 2]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("shard_format", FORMATS)
def test_an_empty_shard_of_0_bytes_between_others_is_harmless(shard_format, place, tmp_path):
    write(tmp_path, (10, 10), shard_format)
    index = index_of(tmp_path)
    empty = json.loads(json.dumps(index["shards"][0]))
    empty["samples"] = 0
    for name in ("raw_data", "raw_meta"):
        if name in empty:
            empty[name].update(basename=f"empty.{name}", bytes=0)
            (tmp_path / f"empty.{name}").touch()
    index["shards"].insert(1, empty)
    put_index(tmp_path, index)
    dataset = reader(tmp_path, place)
    assert list(dataset) == samples(20)
    assert dataset.shard_lengths.tolist() == [10, 0, 10]
    assert len(dataset.lengths) == 20
    assert dataset.verify() == []


def test_the_offsets_of_a_shard_larger_than_they_can_count_are_refused(tmp_path):
    write(tmp_path, (3, 3))
    index = index_of(tmp_path)
    index["shards"][1]["raw_data"]["bytes"] = 5 << 30
    put_index(tmp_path, index)
    with (tmp_path / "shard.00001.mds").open("ab") as file:
        file.truncate(5 << 30)  # a hole: nothing is written
    dataset = reader(tmp_path)
    assert dataset[:3] == samples(3)
    for number in (3, 4, 5):
        with pytest.raises(
            CorruptShardError, match=r"its last sample ends at byte [0-9]+, but the file has 5368709120"
        ):
            dataset[number]


@pytest.mark.parametrize("kind", ["memory", "local", "not mapped"])
def test_readers_of_an_index_that_is_replaced_200_times_see_a_whole_one(kind, tmp_path):
    folder = write(tmp_path / "data", (2, 3, 4))
    store = in_memory(folder) if kind == "memory" else LocalStore(folder, fsync=False, mapped=kind == "local")
    entries = read_index(store.get("index.json"), "here")
    indexes = [index_bytes(entries[:2]), index_bytes(entries), index_bytes(entries[2:])]
    contents = [samples(5), samples(9), samples(4, 5)]
    store.put("index.json", indexes[0])
    stop, failures, seen = threading.Event(), [], set()

    def read():
        try:
            while not stop.is_set():
                with SampleDataset(store) as dataset:
                    length = len(dataset)
                    seen.add(length)
                    try:
                        assert dataset[:] in contents
                        assert len(dataset[:]) == length
                    except DatasetChangedError:
                        continue
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for turn in range(200):
        store.put("index.json", indexes[turn % 3])
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert seen <= {5, 9, 4}
    assert SampleDataset(store)[:] == contents[199 % 3]
