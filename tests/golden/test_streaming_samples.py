"""Datasets that mosaicml-streaming 0.13.0 wrote: read as it reads them, and written again byte for byte."""

import json

import numpy as np
import pytest

from golden.tagged import MDS, expected_mds, identical
from headrace.datasets.samples.dataset import LocalDataset, SampleDataset
from headrace.datasets.samples.merge import merge_index
from headrace.datasets.samples.writer import CSVWriter, JSONWriter, MDSWriter, TSVWriter, XSVWriter
from headrace.errors import OptionError, UnsafeDataError
from headrace.formats.compression import codec
from headrace.formats.digests import digests
from headrace.store import FolderStore, LocalStore, MemoryStore

WRITERS = {writer.__name__: writer for writer in (MDSWriter, JSONWriter, XSVWriter, CSVWriter, TSVWriter)}
IMAGES = ("jpeg", "png", "list[jpeg]", "list[png]")  # what a PIL image becomes depends on libraries
MERGED = ("merged", "merged_zstd")
PARTS = ("00", "01", "10")


class Recorded:
    """One recorded dataset: its files, and what was given and read."""

    def __init__(self, name):
        folder, _, split = name.partition("/")
        self.data = MDS / folder / "dataset" / split
        self.expected = expected_mds(folder, split or None)
        self.writer = self.expected["writer"]
        self.columns = dict(self.writer["columns_in_given_order"])
        self.options = {key: self.writer[key] for key in self.writer.keys() - {"class", "columns_in_given_order"}}
        self.samples = self.expected["samples"]
        self.stored = self.expected.get("encoded")  # bytes of each column of each sample

    @property
    def inputs(self):
        """What was given to the writer; of images the stored bytes."""
        given = self.expected["inputs"]
        images = [name for name, kind in self.columns.items() if kind in IMAGES]
        return [
            {**sample, **{name: self.stored[number][name] for name in images}} for number, sample in enumerate(given)
        ]

    def written(self, out, samples, **options):
        """The dataset, written by our writer."""
        unsafe = {"allow_unsafe_types": True} if "pkl" in self.columns.values() else {}
        kind = WRITERS[self.writer["class"]]
        with kind(columns=self.columns, out=out, **self.options, **unsafe, **options) as writer:
            for sample in samples:
                writer.write(sample)

    def files(self):
        """Path -> bytes. What is compressed is so by the libraries here; tests of the codecs compare those."""
        golden = contents(self.data)
        found = dict(golden)
        for path in [path for path in golden if path.endswith("index.json")]:
            top = json.loads(golden[path])
            assert json.dumps(top).encode() == golden[path]
            for entry in top["shards"]:
                for raw, packed in (("raw_data", "zip_data"), ("raw_meta", "zip_meta")):
                    if not entry.get(packed):
                        continue
                    made, file = (
                        codec(entry["compression"]),
                        path.removesuffix("index.json") + entry[packed]["basename"],
                    )
                    plain = made.decompress(golden[file], entry[raw]["bytes"])
                    assert digests(entry["hashes"], plain) == entry[raw]["hashes"]
                    data = found[file] = made.compress(plain)
                    entry[packed].update(bytes=len(data), hashes=digests(entry["hashes"], data))
            found[path] = json.dumps(top).encode()
        return found


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


FOLDERS = sorted(path.name for path in MDS.iterdir() if path.is_dir())
NAMES = [name for name in FOLDERS if name != "splits"] + ["splits/train", "splits/val"]
every = pytest.mark.parametrize("name", NAMES)


def in_memory(folder):
    store = MemoryStore()
    for path in folder.rglob("*"):
        if path.is_file():
            store.put(str(path.relative_to(folder)), path.read_bytes())
    return store


PLACES = {
    "mapped": LocalStore,
    "not mapped": lambda folder: LocalStore(folder, mapped=False),
    "memory": in_memory,
    "a path": str,
}


def assert_same(found, expected):
    """Equal to the last bit, and every array is the reader's own."""
    assert len(found) == len(expected)
    for number, (sample, other) in enumerate(zip(found, expected, strict=True)):
        assert list(sample) == list(other)
        for name, value in sample.items():
            assert identical(value, other[name]), f"sample {number}, column {name!r}: {value!r}, not {other[name]!r}"
            assert not isinstance(value, np.ndarray) or value.flags.writeable


def assert_read(golden, dataset):
    """Every sample, asked for in every way."""
    expected = golden.samples
    count = len(expected)
    assert len(dataset) == golden.expected["num_samples"] == count
    assert dataset.shard_lengths.tolist() == golden.expected["samples_per_shard"]
    assert_same([dataset[number] for number in range(count)], expected)
    assert_same([dataset[number - count] for number in range(count)], expected)
    assert_same(dataset[:], expected)
    assert_same(dataset[::-1], expected[::-1])
    assert_same(dataset[1:-1:3], expected[1:-1:3])
    assert_same([dataset[np.int64(number)] for number in range(count)], expected)
    mixed = [(7 * number + 3) % count for number in range(2 * count)]
    assert_same(dataset.__getitems__(mixed), [expected[number] for number in mixed])
    assert_same(dataset.__getitems__(np.array(mixed, np.int64)), [expected[number] for number in mixed])
    assert_same(list(dataset), expected)
    for outside in (count, -count - 1):
        with pytest.raises(IndexError, match=f"dataset of {count} samples"):
            dataset[outside]
        with pytest.raises(IndexError, match=f"dataset of {count} samples"):
            dataset.__getitems__([outside])


def test_all_recorded_datasets_are_here():
    assert len(FOLDERS) == 51
    columns = {kind for name in NAMES for kind in Recorded(name).columns.values()}
    assert {"bytes", "str", "int", "str_int", "str_float", "str_decimal", "pil", "png", "jpeg", "json", "pkl"} < columns


@pytest.mark.parametrize("place", PLACES)
@every
def test_every_sample_is_what_streaming_reads(name, place):
    golden = Recorded(name)
    with SampleDataset(PLACES[place](golden.data), allow_unsafe_types=True) as dataset:
        assert_read(golden, dataset)
        assert dataset.verify() == []
        assert dataset.columns == dict(sorted(golden.columns.items())) or not golden.samples


@pytest.mark.parametrize("place", ["mapped", "not mapped", "memory"])
@every
def test_with_digests_every_sample_can_be_checked_and_without_them_that_is_refused(name, place):
    golden = Recorded(name)
    with SampleDataset(PLACES[place](golden.data), allow_unsafe_types=True, verify=True) as dataset:
        if golden.options.get("hashes") or not golden.samples:
            assert_read(golden, dataset)
        else:
            with pytest.raises(OptionError, match="verify=True"):
                dataset[0]


@pytest.mark.parametrize("name", ["merged", "merged_zstd"])
@pytest.mark.parametrize("mapped", [True, False])
def test_a_part_of_a_merged_dataset_is_a_dataset(name, mapped):
    golden = Recorded(name)
    store = LocalStore(golden.data, mapped=mapped)
    parts = [SampleDataset(FolderStore(store, part)) for part in PARTS]
    assert_same([sample for part in parts for sample in part], golden.samples)
    assert_same(list(SampleDataset([golden.data / part for part in PARTS])), golden.samples)
    assert_same(list(SampleDataset(store, split="01")), list(parts[1]))


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_split_is_named(split):
    golden = Recorded(f"splits/{split}")
    assert_same(list(LocalDataset(str(MDS / "splits/dataset"), split)), golden.samples)
    assert_same(list(SampleDataset(in_memory(MDS / "splits/dataset"), split=split)), golden.samples)


def test_pickles_are_read_with_the_caller_s_word_only():
    golden = Recorded("enc_pkl")
    with pytest.raises(UnsafeDataError, match=r"column p .*allow_unsafe_types=True"):
        SampleDataset(golden.data)[0]
    with pytest.raises(UnsafeDataError, match="allow_unsafe_types=True"):
        LocalDataset(str(golden.data)).open()
    without = SampleDataset(golden.data, columns=["i"])
    assert_same(list(without), [{"i": sample["i"]} for sample in golden.samples])


@every
def test_each_column_can_be_read_alone(name):
    golden = Recorded(name)
    for column in golden.columns:
        dataset = SampleDataset(golden.data, allow_unsafe_types=True, columns=[column])
        assert_same(list(dataset), [{column: sample[column]} for sample in golden.samples])


def assert_contents(found, expected):
    assert sorted(found) == sorted(expected)
    for path in expected:
        assert found[path] == expected[path], path


@pytest.mark.parametrize("name", [name for name in NAMES if name not in MERGED])
def test_the_same_inputs_give_the_same_bytes(name, tmp_path):
    golden = Recorded(name)
    extra = {"ignore_extra": True} if name == "extra_keys_ignored" else {}
    inputs = [{**sample, "ignored": 1} for sample in golden.inputs] if extra else golden.inputs
    golden.written(LocalStore(tmp_path / "out", fsync=False), inputs, **extra)
    assert_contents(contents(tmp_path / "out"), golden.files())


@pytest.mark.parametrize("name", [name for name in NAMES if Recorded(name).stored and name != "enc_pkl"])
def test_stored_bytes_are_taken_for_values_of_any_encoding(name, tmp_path):
    golden = Recorded(name)
    golden.written(LocalStore(tmp_path / "out", fsync=False), golden.stored)
    assert_contents(contents(tmp_path / "out"), golden.files())


@pytest.mark.parametrize("name", NAMES)
def test_what_was_read_can_be_written_and_gives_the_same_samples(name, tmp_path):
    golden = Recorded(name)
    if {*golden.columns.values()} & {*IMAGES, "jpeg_array", "jpegarray"}:
        golden.columns = {name: kind for name, kind in golden.columns.items() if "pil" in kind or "png" in kind}
        golden.samples = [{name: sample[name] for name in sorted(golden.columns)} for sample in golden.samples]
    if golden.columns:
        golden.written(LocalStore(tmp_path / "out", fsync=False), golden.samples)
        assert_same(list(SampleDataset(tmp_path / "out", allow_unsafe_types=True)), golden.samples)


@pytest.mark.parametrize("name", MERGED)
def test_parts_written_apart_and_merged_give_the_same_bytes(name, tmp_path):
    golden = Recorded(name)
    out = LocalStore(tmp_path / "out", fsync=False)
    begin = 0
    for part in PARTS:
        end = begin + len(SampleDataset(golden.data, split=part))
        golden.written(FolderStore(out, part), golden.inputs[begin:end])
        begin = end
    assert begin == len(golden.inputs)
    merge_index(out)
    assert_contents(contents(tmp_path / "out"), golden.files())


@pytest.mark.parametrize("name", MERGED)
def test_the_recorded_parts_merge_to_the_recorded_index(name):
    expected = (MDS / name / "dataset/index.json").read_bytes()
    store = in_memory(MDS / name / "dataset")
    store.delete("index.json")
    merge_index(store)
    assert store.get("index.json") == expected
