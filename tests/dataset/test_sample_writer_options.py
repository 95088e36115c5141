"""Options of writers of samples: which ones there are, what they mean, and what is refused before anything is there."""

import json
import math
from pathlib import Path

import pytest

from headrace.datasets import CSVWriter, JSONWriter, MDSWriter, SampleDataset, TSVWriter, XSVWriter
from headrace.datasets.samples import sample_writer
from headrace.errors import OptionError
from headrace.formats.compression import COMPRESSIONS
from headrace.formats.digests import HASH_NAMES
from headrace.store import LocalStore, MemoryStore
from writing_scenes import COLUMNS, everything_in, files_in, fill, ids_in, sample, write

ALL = {"mds": MDSWriter, "json": JSONWriter, "csv": CSVWriter, "tsv": TSVWriter, "xsv": XSVWriter}
EACH_FORMAT = pytest.mark.parametrize("shard_format", ALL)


def opened(shard_format, out, **options):
    separator = {"separator": ";"} if shard_format == "xsv" else {}
    return ALL[shard_format](**{"columns": COLUMNS, **separator, **options}, out=out)


WRONG = {
    "an unknown option": {"retries": 3},
    "a negative retry": {"retry": -1},
    "a retry that is no number": {"retry": "2"},
    "a retry that is a truth value": {"retry": True},
    "no worker": {"max_workers": 0},
    "less than one worker": {"max_workers": -2},
    "a worker and a half": {"max_workers": 1.5},
    "workers by name": {"max_workers": "auto"},
    "a negative size": {"size_limit": -1},
    "a size in words": {"size_limit": "ten"},
    "a size with another unit": {"size_limit": "64 tb"},
    "a size with a sign": {"size_limit": "-1kb"},
    "an empty size": {"size_limit": ""},
    "a size of 4 GiB": {"size_limit": 1 << 32},
    "a size of 4 GiB in words": {"size_limit": "4gb"},
    "a size that is not finite": {"size_limit": math.inf},
    "a size that is no number": {"size_limit": math.nan},
    "a size of another type": {"size_limit": [64]},
    "an unknown compression": {"compression": "gzipp"},
    "a compression by the name of its tool": {"compression": "gzip"},
    "a level that the compression has not": {"compression": "zstd:99"},
    "a level that is no number": {"compression": "zstd:fast"},
    "an unknown hash": {"hashes": ["sha1", "sha257"]},
    "hashes as one string": {"hashes": "sha1"},
    "exist_ok and resume": {"exist_ok": True, "resume": True},
    "exist_ok as text": {"exist_ok": "false"},
    "resume as text": {"resume": "no"},
    "keep_local as text": {"keep_local": "no"},
    "ignore_extra as text": {"ignore_extra": "no"},
    "progress_bar as a number": {"progress_bar": 1},
    "a column of an unknown encoding": {"columns": {"id": "int31"}},
    "no columns": {"columns": {}},
    "columns as a list": {"columns": ["id"]},
    "a column whose name is a number": {"columns": {1: "int"}},
}


@EACH_FORMAT
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_option_is_refused_at_construction_and_leaves_no_directory(shard_format, name, tmp_path):
    option = next(iter(WRONG[name]))
    with pytest.raises(OptionError, match=f"{option}|encoding=") as caught:
        opened(shard_format, tmp_path / "out", **WRONG[name])
    value = next(iter(WRONG[name].values()))
    assert repr(value) in str(caught.value) or isinstance(value, list | dict | bool)
    assert everything_in(tmp_path) == []


def test_wrong_names_are_refused_with_the_list_of_valid_ones(tmp_path):
    with pytest.raises(OptionError) as caught:
        MDSWriter(columns=COLUMNS, out=tmp_path / "out", compression="gzipp")
    assert all(name in str(caught.value) for name in COMPRESSIONS)
    with pytest.raises(OptionError) as caught:
        MDSWriter(columns=COLUMNS, out=tmp_path / "out", hashes=["sha257"])
    assert all(name in str(caught.value) for name in HASH_NAMES)
    with pytest.raises(OptionError) as caught:
        MDSWriter(columns={"id": "int128"}, out=tmp_path / "out")
    assert all(name in str(caught.value) for name in ("int", "uint64", "str", "ndarray", "json", "pkl", "jpeg"))
    with pytest.raises(OptionError) as caught:
        MDSWriter(columns=COLUMNS, out=tmp_path / "out", retries=1)
    assert all(name in str(caught.value) for name in ("retry", "exist_ok", "size_limit"))
    assert not (tmp_path / "out").exists()


PLACES = [None, 17, ("a",), ("a", "b", "c"), (None, "b"), [], {"a": "b"}]


@pytest.mark.parametrize("out", PLACES, ids=repr)
def test_what_is_no_place_is_refused(out, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError, match=r"out=.*a directory, a URL, a Store, or a pair \(local, remote\)"):
        MDSWriter(columns=COLUMNS, out=out)
    assert everything_in(tmp_path) == []


@pytest.mark.parametrize("out", ["nosuch://bucket/x", "nosuch:/bucket/x", ("local", "nosuch://bucket/x"), ""])
def test_a_url_of_no_known_kind_is_refused_and_no_directory_of_that_name_appears(out, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError, match=r"out=.*directory.* Store"):
        MDSWriter(columns=COLUMNS, out=out)
    assert everything_in(tmp_path) == []


def test_places_may_be_paths_urls_and_stores(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outs = ["a", Path("b"), (tmp_path / "c").as_uri(), LocalStore("d"), (Path("l1"), "e"), ["l2", LocalStore("f")]]
    for out, name in zip(outs, "abcdef", strict=True):
        write(out, range(3))
        assert ids_in(tmp_path / name) == [0, 1, 2]
    assert not Path("l1").exists()
    assert not Path("l2").exists()
    for out in (("l3", "g"), ("l4", MemoryStore())):
        write(out, range(12), keep_local=True)
        assert ids_in(out[0]) == ids_in(out[1]) == list(range(12))
        assert files_in(out[0]) == files_in(out[1])
        assert everything_in(tmp_path / out[0]) == sorted(files_in(out[1]))


SIZES = {
    "100": 100,
    "100b": 100,
    "1k": 1024,
    "1kb": 1024,
    "1 KiB": 1024,
    " 1.5 kb ": 1536,
    ".5mb": 1 << 19,
    "64mb": 64 << 20,
    "3gib": 3 << 30,
    "4294967295": (1 << 32) - 1,
    100: 100,
    1e3: 1000,
    None: None,
    0: None,
    "0": 0,
}


@pytest.mark.parametrize("given", SIZES, ids=repr)
def test_sizes_may_be_numbers_and_words(given):
    store = MemoryStore()
    write(store, range(3), size_limit=given)
    entry = json.loads(store.get("index.json"))["shards"][-1]
    assert entry["size_limit"] == SIZES[given]


@EACH_FORMAT
def test_no_shard_is_larger_than_the_limit_unless_one_sample_is(shard_format):
    store = MemoryStore()
    with opened(shard_format, store, size_limit=500) as writing:
        for number in range(60):
            writing.write(sample(number) if number != 30 else {"id": 30, "text": "x" * 800})
    shards = json.loads(store.get("index.json"))["shards"]
    large = [entry for entry in shards if entry["raw_data"]["bytes"] > 500]
    assert [entry["samples"] for entry in large] == [1]
    assert len(shards) > 2
    with SampleDataset(store) as dataset:
        assert [one["id"] for one in dataset[:]] == list(range(60))


@EACH_FORMAT
def test_a_limit_of_none_gives_one_shard_of_any_size_through_a_file(shard_format, tmp_path, monkeypatch):
    whole = MemoryStore()
    with opened(shard_format, whole, size_limit=None, hashes=["xxh128"]) as writing:
        fill(writing, range(1000), a_shard=2000)
    monkeypatch.setattr(sample_writer, "SPILL_BYTES", 1000)
    for out in (tmp_path / "store", MemoryStore()):
        with opened(shard_format, out, size_limit=None, hashes=["xxh128"]) as writing:
            fill(writing, range(1000), a_shard=2000)
            assert sum(map(len, writing._pending.chunks)) <= 1100
        assert files_in(out) == files_in(whole)
        assert ids_in(out, verify=True) == list(range(1000))
    assert all(path.parent == tmp_path / "store" for path in (tmp_path / "store").rglob("*"))
