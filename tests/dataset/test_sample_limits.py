"""Limits of shards of samples: how large they become, how much memory that takes, which values they hold, and none."""

import json
import subprocess
import sys
from decimal import Decimal

import numpy as np
import pytest

from headrace.datasets import MDSWriter, SampleDataset, merge_index
from headrace.datasets.samples import options, sample_writer
from headrace.errors import FieldError, OptionError
from headrace.formats import sample_shards
from headrace.formats.compression import COMPRESSIONS
from headrace.formats.digests import HASH_NAMES
from headrace.store import FolderStore, MemoryStore
from sample_scenes import COLUMNS, WRITERS, stored

FORMATS = ["mds", "json", "csv", "xsv"]
HEADER = {"mds": 0, "json": 0, "csv": len("id,text\n"), "xsv": len("id;text\n")}
KIB = 1024


def opened(shard_format, out, **given):
    separator = {"separator": ";"} if shard_format == "xsv" else {}
    return WRITERS[shard_format](columns=COLUMNS, out=out, **separator, **given)


def shards_of(store):
    return json.loads(store.get("index.json"))["shards"]


# How large shards become


def written(shard_format, samples, **given):
    store = MemoryStore()
    with opened(shard_format, store, **given) as writer:
        for sample in samples:
            writer.write(sample)
    return store


def sized(number, num_bytes):
    return {"id": number, "text": "x" * num_bytes}


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("shard_format", FORMATS)
def test_no_file_before_compression_is_above_the_limit_but_one_that_holds_one_sample(
    shard_format, compression, workers
):
    samples = [sized(number, 100 * KIB if number == 500 else 700) for number in range(1000)]
    store = written(shard_format, samples, size_limit="64kb", compression=compression, max_workers=workers)
    assert SampleDataset(store)[:] == samples
    shards = shards_of(store)
    starts = np.cumsum([0, *(entry["samples"] for entry in shards)]).tolist()
    above = [entry for entry in shards if entry["raw_data"]["bytes"] > 64 * KIB + HEADER[shard_format]]
    assert [entry["samples"] for entry in above] == [1]
    assert starts[shards.index(above[0])] == 500
    sizes = SampleDataset(store).lengths
    counted = 4 if shard_format == "mds" else 0  # a sample's offset
    for number, entry in enumerate(shards[:-1]):  # none of them had room for one more
        following = sizes[starts[number + 1]] + counted
        assert entry["raw_data"]["bytes"] + following > 64 * KIB + HEADER[shard_format]


@pytest.mark.parametrize("shard_format", FORMATS)
def test_a_limit_is_the_size_that_a_file_may_just_have(shard_format):
    samples = [sized(number, 100) for number in range(5)]
    exact = shards_of(written(shard_format, samples, size_limit=999))[0]["raw_data"]["bytes"]
    exact -= HEADER[shard_format]  # which does not count
    assert 100 < exact < 999  # so that the limit takes as many digits in the file
    assert [entry["samples"] for entry in shards_of(written(shard_format, samples, size_limit=exact))] == [5]
    assert [entry["samples"] for entry in shards_of(written(shard_format, samples, size_limit=exact - 1))] == [4, 1]


@pytest.mark.parametrize("shard_format", FORMATS)
def test_a_sample_above_the_limit_is_alone_in_its_shard_after_an_empty_one_where_it_is_the_first(shard_format):
    samples = [sized(0, 1000), sized(1, 10), sized(2, 1000), sized(3, 1000), sized(4, 10), sized(5, 10)]
    store = written(shard_format, samples, size_limit=400)
    assert [entry["samples"] for entry in shards_of(store)] == [0, 1, 1, 1, 1, 2]
    assert SampleDataset(store)[:] == samples
    assert SampleDataset(store).verify() == []


# The width of offsets


@pytest.fixture
def narrow(monkeypatch):
    """Offsets that reach to 2,000 only."""
    for module in (sample_shards, sample_writer, options):
        monkeypatch.setattr(module, "LARGEST_OFFSET", 2000)
    return 2000


def offsets_of(store, entry):
    path = (entry.get("raw_meta") or entry["raw_data"])["basename"]
    return np.frombuffer(store.get(path), "<u4", entry["samples"] + 1, 4).astype(np.int64)


@pytest.mark.parametrize("size_limit", [None, 0, 1999, 2000])
@pytest.mark.parametrize("shard_format", FORMATS)
def test_a_shard_ends_before_its_offsets_would_wrap_whatever_the_limit(shard_format, size_limit, narrow):
    samples = [sized(number, 37 * number % 300) for number in range(200)]
    store = written(shard_format, samples, size_limit=size_limit)
    assert SampleDataset(store)[:] == samples
    for entry in shards_of(store):
        offsets = offsets_of(store, entry)
        assert (np.diff(offsets) > 0).all()
        assert offsets[-1] == entry["raw_data"]["bytes"] <= narrow
    sizes = [entry["raw_data"]["bytes"] for entry in shards_of(store)]
    assert min(sizes[:-1]) > narrow - 400  # and not long before


@pytest.mark.parametrize("shard_format", FORMATS)
def test_a_sample_that_no_offset_can_end_is_refused_with_number_size_and_limit(shard_format, narrow):
    store = MemoryStore()
    with opened(shard_format, store, size_limit=None) as writer:
        writer.write(sized(0, 10))
        for num_bytes in (2000, 5000):
            with pytest.raises(FieldError, match=r"sample 1, .* needs [0-9]+ bytes in its shard, .* at most 2000"):
                writer.write(sized(1, num_bytes))
        writer.write(sized(1, 10))
    assert SampleDataset(store)[:] == [sized(0, 10), sized(1, 10)]
    assert len(shards_of(store)) == 1


@pytest.mark.parametrize("shard_format", FORMATS)
def test_a_file_may_be_as_large_as_the_largest_offset_and_no_larger(shard_format, narrow):
    def write(num_bytes):
        return shards_of(written(shard_format, [sized(0, num_bytes)], size_limit=None))

    room = 1000 + narrow - write(1000)[0]["raw_data"]["bytes"]
    assert write(room)[0]["raw_data"]["bytes"] == narrow
    with pytest.raises(FieldError, match="sample 0, "):
        write(room + 1)


@pytest.mark.parametrize("size_limit", [1 << 32, "4gb", 10**30, float("inf"), float("nan"), -1, "-1kb", True, "many"])
def test_a_limit_that_offsets_cannot_count_is_refused_and_nothing_is_left(size_limit, tmp_path):
    with pytest.raises(OptionError, match=r"size_limit=.*below 4 GiB"):
        MDSWriter(columns=COLUMNS, out=tmp_path / "data", size_limit=size_limit)
    assert not (tmp_path / "data").exists()


@pytest.mark.slow
def test_more_than_4_gib_without_a_limit_become_two_shards(tmp_path):
    size, count = 96 << 20, 44  # 4.1 GiB
    block = np.zeros(size // 8, np.uint64)
    with MDSWriter(columns={"data": "bytes"}, out=tmp_path, size_limit=None) as writer:
        for number in range(count):
            block[[0, -1]] = number
            writer.write({"data": block.tobytes()})
    index = json.loads((tmp_path / "index.json").read_bytes())["shards"]
    assert [entry["samples"] for entry in index] == [42, 2]
    assert index[0]["raw_data"]["bytes"] < 1 << 32
    dataset = SampleDataset(tmp_path)
    for number in (0, 1, 20, 21, 22, 41, 42, 43):
        found = np.frombuffer(dataset[number]["data"], np.uint64)
        assert (len(found), found[0], found[1], found[-1]) == (size // 8, number, 0, number)
    assert dataset.lengths.tolist() == [size + 4] * count


# Memory

GROWTH = """
import sys
from headrace.datasets import {writer}

def kib(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name))

data = {{"data": {value}}}
with {writer}(columns={columns}, out=sys.argv[1], size_limit=None, hashes=["xxh3_64"]) as writer:
    for _ in range(1000):
        writer.write(data)
    before = kib("VmRSS:")
    for _ in range((1 << 20) - 1000):
        writer.write(data)
print((kib("VmHWM:") - before) // 1024)
"""
OF_1_KIB = {
    "MDSWriter": ('b"x" * 1020', {"data": "bytes"}),
    "CSVWriter": ('"x" * 1023', {"data": "str"}),
}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("writer", OF_1_KIB)
def test_a_shard_of_1_gib_takes_less_than_200_mib_of_memory(writer, tmp_path):
    value, columns = OF_1_KIB[writer]
    program = GROWTH.format(writer=writer, value=value, columns=columns)
    command = [sys.executable, "-c", program, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) < 200
    dataset = SampleDataset(tmp_path)
    assert dataset.shard_lengths.tolist() == [1 << 20]
    assert (dataset.lengths == KIB).all()
    assert dataset[(1 << 20) - 1] == dataset[0]


# Values


COLUMNS_OF_VALUES = {
    "half": "ndarray:float16:2,3",
    "any": "ndarray",
    "bytes8": "ndarray:int8",
    "small": "int8",
    "raw": "bytes",
    "text": "str",
    "number": "int",
    "double": "float64",
    "exact": "str_decimal",
    "nested": "json",
}


def values_of(number):
    return {
        "half": np.arange(6, dtype=np.float16).reshape(2, 3) / 7 + number,
        "any": np.arange(number + 1, dtype=np.uint16).reshape(-1, 1),
        "bytes8": np.array([[number], [-1]], np.int8),
        "small": np.int8(-number),
        "raw": bytes(range(number)),
        "text": "text \0 é 🎉" * number,
        "number": -(2**63) + number,
        "double": np.float64(0.1 * number),
        "exact": Decimal("1.10") / (number + 1),
        "nested": {"a": [1, None, {"b": number}], "c": 0.5},
    }


def assert_equal(found, expected):
    assert list(found) == sorted(expected)
    for name, value in expected.items():
        if isinstance(value, np.ndarray | np.generic):
            assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape)
            assert found[name].tobytes() == value.tobytes()
        assert type(found[name]) is type(value)
        assert np.array_equal(found[name], value)


@pytest.mark.parametrize("compression", [None, *COMPRESSIONS])
def test_every_codec_with_every_digest_gives_back_every_value(compression):
    for hashes in (*([name] for name in HASH_NAMES), [], HASH_NAMES):
        store = MemoryStore()
        with MDSWriter(columns=COLUMNS_OF_VALUES, out=store, compression=compression, hashes=hashes) as writer:
            for number in range(4):
                writer.write(values_of(number))
        dataset = SampleDataset(store, verify=bool(hashes))
        assert dataset.describe()["compression"] == compression
        assert dataset.describe()["hashes"] == sorted(hashes)
        for number, found in enumerate(dataset):
            assert_equal(found, values_of(number))


@pytest.mark.parametrize(
    ("option", "value", "valid"),
    [("compression", "gzipp", "br, br:0 to br:11, bz2"), ("hashes", ["sha1", "sha257"], "blake2b.*sha256.*xxh64")],
)
def test_wrong_names_are_refused_at_construction_with_the_valid_ones_and_no_directory_is_left(
    option, value, valid, tmp_path
):
    with pytest.raises(OptionError, match=f"(gzipp|sha257).*{valid}"):
        MDSWriter(columns=COLUMNS_OF_VALUES, out=tmp_path / "data", **{option: value})
    assert list(tmp_path.iterdir()) == []


MISFITS = {
    "without a column": lambda sample: sample.pop("raw"),
    "with another column": lambda sample: sample.update(more=1),
    "of another element type": lambda sample: sample.update(half=sample["half"].astype(np.float32)),
    "of another shape": lambda sample: sample.update(half=sample["half"].T.copy()),
    "with a scalar for an array": lambda sample: sample.update(any=np.array(3)),
    "with an empty array": lambda sample: sample.update(any=np.zeros((0,), np.int64)),
    "with an array of truths": lambda sample: sample.update(any=np.array([True])),
    "with an array of objects": lambda sample: sample.update(any=np.array([object()])),
    "with a number that is too large": lambda sample: sample.update(small=128),
    "with a number that has a part": lambda sample: sample.update(small=0.5),
    "with text for bytes": lambda sample: sample.update(raw="raw"),
    "with a lone surrogate": lambda sample: sample.update(text="\ud800"),
    "with bytes inside JSON": lambda sample: sample.update(nested={"data": b"bytes"}),
}


@pytest.mark.parametrize("name", MISFITS)
def test_sample_7_of_10_that_does_not_fit_is_refused_by_number_and_column_and_leaves_no_trace(name):
    expected = [values_of(number) for number in range(10) if number != 7]
    stores = MemoryStore(), MemoryStore()
    for store, numbers in zip(stores, (range(10), [number for number in range(10) if number != 7]), strict=True):
        with MDSWriter(columns=COLUMNS_OF_VALUES, out=store, size_limit=500, hashes=["md5"]) as writer:
            for number in numbers:
                sample = values_of(number)
                if number == 7 and store is stores[0]:
                    MISFITS[name](sample)
                    with pytest.raises(FieldError, match=r"sample 7, .*'(raw|more|half|any|small|text|nested)'"):
                        writer.write(sample)
                else:
                    writer.write(sample)
    assert stored(stores[0]) == stored(stores[1])
    for found, sample in zip(SampleDataset(stores[0]), expected, strict=True):
        assert_equal(found, sample)


@pytest.mark.parametrize("encoding", ["ndarray", "ndarray:int32", "ndarray:int32:3,4"])
def test_arrays_are_written_by_value_however_they_lie_in_memory(encoding):
    plain = np.arange(12, dtype=np.int32).reshape(3, 4)
    wide = np.zeros((6, 8), np.int32)
    wide[::2, ::2] = plain
    read_only = plain.copy()
    read_only.flags.writeable = False
    layouts = {
        "plain": plain,
        "Fortran": np.asfortranarray(plain),
        "strided": wide[::2, ::2],
        "backwards": plain[::-1, ::-1].copy()[::-1, ::-1],
        "transposed": plain.T.copy().T,
        "big-endian": plain.astype(">i4"),
        "read-only": read_only,
        "unaligned": np.frombuffer(b"\0" + plain.tobytes(), np.int32, 12, 1).reshape(3, 4),
    }
    store = MemoryStore()
    with MDSWriter(columns={"a": encoding}, out=store) as writer:
        for array in layouts.values():
            writer.write({"a": array})
    found = SampleDataset(store)[:]
    for name, sample in zip(layouts, found, strict=True):
        assert sample["a"].dtype == np.dtype("<i4"), name
        assert sample["a"].tolist() == plain.tolist(), name


class Constant:
    """An encoding of one's own whose values take no room."""

    name, size = "constant", 0

    def encode(self, value):
        return b""

    def decode(self, data):
        assert data.nbytes == 0
        return "constant"


@pytest.mark.parametrize("others", [{}, {"b": "str"}, {"z": "str"}, {"b": "str", "z": "int"}, {"b": "str", "z": "str"}])
def test_values_of_no_bytes_are_found_beside_any_others(others):
    store = MemoryStore()
    values = {"str": "text", "int": 7}
    sample = {"m": "constant", **{name: values[kind] for name, kind in others.items()}}
    with MDSWriter(columns={"m": Constant(), **others}, out=store) as writer:
        for _ in range(3):
            writer.write(sample)
    assert SampleDataset(store, encodings=[Constant()])[:] == [sample] * 3


# None at all


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("shard_format", FORMATS)
def test_no_samples_are_a_dataset_of_length_0_without_any_shard(shard_format, compression):
    store = written(shard_format, [], compression=compression, hashes=["md5"])
    assert stored(store) == {"index.json": b'{"shards": [], "version": 2}'}
    with SampleDataset(store, verify=True) as dataset:
        assert (len(dataset), list(dataset), dataset[:], dataset.verify()) == (0, [], [], [])
        assert dataset.describe()["num_shards"] == 0


@pytest.mark.parametrize("order", ["01", "10"])
@pytest.mark.parametrize("shard_format", FORMATS)
def test_a_part_without_samples_adds_nothing(shard_format, order):
    store = MemoryStore()
    for part, count in zip(order, (0, 5), strict=True):
        with opened(shard_format, FolderStore(store, part)) as writer:
            for number in range(count):
                writer.write(sized(number, 5))
    merge_index(store)
    assert SampleDataset(store)[:] == [sized(number, 5) for number in range(5)]
    paths = [path for path in stored(store) if path.rpartition("/")[2].startswith("shard.")]
    assert all(path.startswith(order[1]) for path in paths)
