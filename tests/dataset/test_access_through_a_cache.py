"""Datasets of every kind through a cache: whole files, fetched once, whatever its limit; ranges of what is large."""

import json

import numpy as np
import pytest

from dataset.remote_reading_scenes import (
    KINDS,
    all_of,
    copy_into,
    documents,
    flat,
    requests,
    sample,
    samples,
    streams,
    written_samples,
    written_stream,
)
from headrace.errors import CorruptShardError, DatasetChangedError, OptionError
from headrace.store import LocalStore
from headrace.store.cache import CachedStore
from headrace.testing import Cut, FaultStore, Flip, Rule


def fetched(store):
    """Path -> how often it was fetched whole."""
    found = {}
    for call in store.calls:
        if call.operation in ("get", "pieces") or (call.operation == "get_ranges_of" and ".json" not in call.path):
            found[call.path] = found.get(call.path, 0) + 1
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("access", ["auto", "files"])
def test_every_kind_reads_the_same_and_fetches_each_file_once(kind, access, tmp_path):
    write, dataset = KINDS[kind]
    written = write()
    store = flat(written)
    with dataset(written) as local, dataset(CachedStore(store, tmp_path), access=access) as cached:
        assert all_of(cached) == all_of(local)
    files = {path: count for path, count in fetched(store).items() if not path.endswith(".json")}
    assert set(files.values()) == {1}
    store.calls.clear()
    with dataset(CachedStore(store, tmp_path), access=access) as cached:
        assert len(all_of(cached)) > 0
    assert requests(store) == {"head": 1, "get_ranges_of": 1}  # a warm cache asks for the manifest alone


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limit", [0, 150, 700])
def test_every_kind_reads_the_same_whatever_the_limit(kind, limit, tmp_path):
    write, dataset = KINDS[kind]
    written = write()
    with dataset(written) as local, dataset(CachedStore(flat(written), tmp_path, limit_bytes=limit)) as cached:
        assert all_of(cached) == all_of(local)
        assert all_of(cached) == all_of(local)


@pytest.mark.parametrize("kind", KINDS)
def test_large_files_are_read_by_ranges_until_they_are_cached(kind, tmp_path, monkeypatch):
    monkeypatch.setattr("headrace.datasets.sources.LARGEST_FETCHED_BYTES", 20)
    write, dataset = KINDS[kind]
    written = write()
    store = flat(written)
    with dataset(written) as local, dataset(CachedStore(store, tmp_path)) as cached:
        assert all_of(cached) == all_of(local)
        assert store.count("get_ranges_of", "*[ns]") > 3
        cached.prefetch(np.arange(len(cached)))
        for number in range(len(cached)):
            cached[number]


@pytest.mark.parametrize("kind", KINDS)
def test_ranges_on_wish_leave_the_cache_empty(kind, tmp_path):
    write, dataset = KINDS[kind]
    written = write()
    store = flat(written)
    with dataset(written) as local, dataset(CachedStore(store, tmp_path), access="ranges") as cached:
        assert all_of(cached) == all_of(local)
    assert not store.count("pieces")


def test_compressed_samples_are_decompressed_once_into_the_cache(tmp_path):
    store = flat(written_samples(compression="zstd:3", hashes=["sha1"]))
    with samples(CachedStore(store, tmp_path), verify=False) as dataset:
        assert all_of(dataset) == [sample(number) for number in range(len(dataset))]
        assert not [path for path in fetched(store) if path.endswith(".mds")]
    store.calls.clear()
    with samples(CachedStore(store, tmp_path)) as dataset:
        assert all_of(dataset) == [sample(number) for number in range(len(dataset))]
    assert requests(store) == {"head": 1, "get_ranges_of": 1}
    with samples(CachedStore(store, tmp_path), verify=True) as dataset:
        assert dataset[3] == sample(3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verify", [True, False])
def test_what_was_overwritten_under_a_reader_is_an_error_or_the_old_data(kind, verify, tmp_path):
    write, dataset = KINDS[kind]
    old, store = write(), flat(write())
    with dataset(old) as expected, dataset(CachedStore(store, tmp_path, verify=verify)) as opened:
        first = opened[0]
        copy_into(store.store, write(salt=1))
        assert all_same(opened[0], first)  # its files were here before
        assert all_same(first, expected[0])
        with pytest.raises(DatasetChangedError):
            opened[len(opened) - 1]
    with dataset(CachedStore(store, tmp_path, verify=verify)) as again, dataset(write(salt=1)) as expected:
        assert all_of(again) == all_of(expected)


def all_same(one, other):
    from dataset.remote_reading_scenes import plain

    return plain(one) == plain(other)


def test_foreign_files_that_are_overwritten_are_not_taken_from_the_cache(tmp_path):
    store = flat(written_stream(publish=False))
    for info in store.store.list(".headrace"):
        store.store.delete(info.path)
    with streams(CachedStore(store, tmp_path)) as dataset:
        old = all_of(dataset)
    for shard in range(5):
        name = f"000000{shard}.in_band.bin"
        store.store.put(name, bytes(len(store.store.get(name))))
    with streams(CachedStore(store, tmp_path)) as dataset:
        assert all_of(dataset) != old
        assert not np.any(dataset[0])


@pytest.mark.parametrize("kind", ["stream", "documents", "annotated"])
def test_a_damaged_file_is_named_with_its_shard(kind, tmp_path):
    write, dataset = KINDS[kind]
    store = flat(write())
    name = max(info.path for info in store.store.list(recursive=False) if info.path.endswith(".bin"))
    data = store.store.get(name)
    store.store.put(name, bytes([data[0] ^ 1]) + data[1:])
    with dataset(CachedStore(store, tmp_path)) as opened, pytest.raises(CorruptShardError, match=f"shard 4.*{name}"):
        opened[len(opened) - 1]


def test_a_damaged_sample_file_is_named_with_its_shard(tmp_path):
    store = flat(written_samples(hashes=["md5"]))
    data = store.store.get("shard.00001.mds")
    store.store.put("shard.00001.mds", data[:-1] + b"!")
    with (
        samples(CachedStore(store, tmp_path)) as opened,
        pytest.raises(CorruptShardError, match=r"shard 1.*00001\.mds"),
    ):
        all_of(opened)


def test_digests_that_only_the_cache_can_compare_are_not_left_to_one_that_compares_none(tmp_path):
    store = flat(written_samples(compression="zstd", hashes=["xxh3_64"]))
    index = json.loads(store.get("index.json"))
    for shard in index["shards"]:
        shard["raw_data"]["hashes"] = {}
    store.put("index.json", json.dumps(index).encode())
    with samples(CachedStore(store, tmp_path / "a"), verify=True) as dataset:
        assert dataset[0] == sample(0)
    with (
        samples(CachedStore(store, tmp_path / "b", verify=False), verify=True) as dataset,
        pytest.raises(OptionError, match="CachedStore"),
    ):
        dataset[0]


def test_a_directory_through_a_cache_is_read_as_any_store(tmp_path):
    written = written_stream()
    local = LocalStore(tmp_path / "data", fsync=False)
    copy_into(local, written)
    with streams(written) as expected, streams(CachedStore(FaultStore(local), tmp_path / "cache")) as cached:
        assert all_of(cached) == all_of(expected)


def test_documents_of_a_cold_cache_are_fetched_at_the_same_time(tmp_path):
    from time import monotonic

    from headrace.testing import Delay

    store = flat(KINDS["documents"][0]())
    with documents(CachedStore(store, tmp_path)) as dataset:
        store.rules.append(Rule(Delay(0.1), operation="pieces"))
        begin = monotonic()
        dataset.__getitems__(np.arange(len(dataset)))
        assert monotonic() - begin < 0.6  # 10 files


@pytest.mark.parametrize("damage", [Flip(20), Cut(30)], ids=repr)
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_damage_names_the_file_that_is_damaged_also_where_another_one_is_made_from_it(compression, damage, tmp_path):
    store = flat(written_samples(compression=compression, hashes=["xxh3_64"]))
    suffix = "mds.zstd" if compression else "mds"
    damaged = FaultStore(store, [Rule(damage, "pieces", f"shard.00000.{suffix}")])
    told = rf"shard\.00000\.{suffix}: .*(digest|bytes arrived)"
    with samples(CachedStore(damaged, tmp_path)) as dataset, pytest.raises(CorruptShardError, match=told):
        dataset[0]
