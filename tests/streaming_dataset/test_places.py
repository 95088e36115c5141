"""From streams to stores: what is read in place, what through which cache, and what no place is."""

import hashlib
import multiprocessing
import os
import pickle
import resource
import shutil
import socket
import stat
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest

from headrace import CachedStore, LocalStore, MemoryStore, SampleDataset, StreamingDataLoader, StreamingDataset
from headrace.errors import DatasetChangedError, NoDatasetError, OptionError, StoreError
from headrace.store import FolderStore, RetryingStore
from headrace.store.cache_files import CacheFolder
from headrace.store.eviction import cached_data
from headrace.streaming.places import check_hashes, opened_stores
from headrace.streaming.stream import Stream
from headrace.testing import FaultStore, Rule, Run
from remote_scenes import FlatFolder
from sample_scenes import index_of, put_index, sample_of, stored, write
from streaming_dataset.processes import waited_for

OPENING = ["head", "get_ranges_of"]  # what reading an index asks


def remote(shards=(5, 6), first=0, **options):
    """A remote store with a dataset whose samples count from first, and which logs what it is asked."""
    store = MemoryStore(flat=True)
    write(store, shards, sample=lambda number: sample_of(first + number), **options)
    return FaultStore(store)


def ids(dataset):
    return [sample["id"] for sample in dataset]


def opened(*streams, cache_limit=None, **options):
    return SampleDataset(opened_stores(streams, cache_limit), **options)


def tree(folder):
    """Every file below folder, and what is in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def kept(folder):
    """How many bytes of data files the cache in folder has."""
    return sum(path.stat().st_size for path in Path(folder, "headrace-cache/1/files").rglob("*") if path.is_file())


# Where a stream is read


@pytest.mark.parametrize("argument", ["local", "remote"])
@pytest.mark.parametrize("split", [None, "train"])
def test_a_directory_alone_is_read_where_it_is(argument, split, tmp_path):
    write(tmp_path / "data" / (split or ""))
    before = tree(tmp_path)
    dataset = opened(Stream(**{argument: tmp_path / "data"}, split=split), cache_limit=1)
    assert ids(dataset) == list(range(50))
    assert dataset.keeps_copies is False
    assert tree(tmp_path) == before


@pytest.mark.parametrize("split", [None, "train", "a/b"])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_directory_with_another_one_is_read_through_a_cache_there(split, compression, tmp_path):
    write(tmp_path / "data" / (split or ""), compression=compression)
    before = tree(tmp_path / "data")
    dataset = opened(Stream(remote=str(tmp_path / "data"), local=str(tmp_path / "cache"), split=split))
    assert dataset.keeps_copies is True
    for _ in range(2):
        assert ids(dataset) == list(range(50))
    assert tree(tmp_path / "data") == before
    assert kept(tmp_path / "cache") == sum(shard["raw_data"]["bytes"] for shard in index_of_all(tmp_path / "data"))


def index_of_all(folder):
    return [shard for path in folder.rglob("index.json") for shard in index_of(path.parent)["shards"]]


@pytest.mark.parametrize("spelling", ["same", "slash", "link", "dots", "relative", "url"])
def test_a_remote_that_is_the_local_directory_is_read_where_it_is(spelling, tmp_path, monkeypatch):
    data = write(tmp_path / "data")
    (tmp_path / "link").symlink_to(data)
    monkeypatch.chdir(tmp_path)
    local = {
        "same": data,
        "slash": f"{data}/",
        "link": tmp_path / "link",
        "dots": f"{tmp_path}/data/../data",
        "relative": "data",
        "url": data.as_uri(),
    }[spelling]
    before = tree(tmp_path)
    assert ids(opened(Stream(remote=data, local=local))) == list(range(50))
    assert tree(tmp_path) == before


def test_a_store_is_asked_as_it_is_and_through_a_cache_only_where_local_names_one(tmp_path):
    store = remote()
    (plain,) = opened_stores([Stream(remote=store, download_retry=7, download_timeout=1)], 1000)
    assert plain is store
    (folder,) = opened_stores([Stream(remote=store, split="train")], None)
    assert isinstance(folder, FolderStore)
    assert folder.store is store
    (cached,) = opened_stores([Stream(remote=store, local=tmp_path)], None)
    assert isinstance(cached, CachedStore)
    assert (cached.store, cached.directory, cached.verify) == (store, tmp_path, True)


def test_a_split_of_a_store_is_a_folder_of_it(tmp_path):
    store = MemoryStore(flat=True)
    for number, split in enumerate(("train", "val/clean")):
        write(FolderStore(store, split), (3,), sample=lambda k, first=number * 10: sample_of(first + k))
    streams = [Stream(remote=store, local=tmp_path, split=split) for split in ("train/", "val/clean")]
    assert ids(opened(*streams)) == [0, 1, 2, 10, 11, 12]
    assert ids(opened(*[Stream(remote=store, split=stream.split) for stream in streams])) == [0, 1, 2, 10, 11, 12]


def test_what_streaming_itself_left_in_a_local_directory_stays_there(tmp_path):
    local = write(tmp_path / "local", (5, 6), hashes=["sha1"])
    (local / "notes.txt").write_text("mine")
    before = tree(local)
    store = remote((5, 6), hashes=["sha1"])
    dataset = opened(Stream(remote=store, local=local), cache_limit=7000)
    for _ in range(3):
        assert ids(dataset) == list(range(11))
    assert {name: data for name, data in tree(local).items() if not name.startswith("headrace-cache/")} == before
    assert kept(local) <= 7000


@pytest.mark.parametrize("url", ["s3://bucket/data", "az://container/data", "https://host/data", "gs://bucket/data"])
def test_retries_and_time_outs_of_a_url_are_the_streams(url, tmp_path):
    pytest.importorskip("gcsfs")
    (cached,) = opened_stores([Stream(remote=url, local=tmp_path, download_retry=4, download_timeout=7.5)], None)
    retrying = cached.store
    assert isinstance(retrying, RetryingStore)
    assert retrying.policy.tries == 5
    place = getattr(retrying.store, "place", None)
    found = retrying.store._options["request_timeout_s"] if place is None else place.options.request_timeout_s
    assert found == 7.5


def test_no_retry_is_one_try(tmp_path):
    (cached,) = opened_stores([Stream(remote="s3://bucket/data", local=tmp_path, download_retry=0)], None)
    assert cached.store.policy.tries == 1


def test_a_url_of_another_file_system_takes_no_time_out(tmp_path):
    pytest.importorskip("huggingface_hub")
    stream = Stream(remote="hf://datasets/owner/name", local=tmp_path, download_retry=1, download_timeout=60)
    (cached,) = opened_stores([stream], None)
    assert cached.store.store._options == {}


# The cache that a user has in the temporary folder


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_a_url_without_a_local_directory_has_a_cache_of_this_user_alone(temporary):
    streams = [
        Stream(remote="s3://bucket/data"),
        Stream(remote="s3://bucket/data/", split="train"),
        Stream(remote="s3://bucket/other"),
    ]
    stores = opened_stores(streams, None)
    own = temporary / f"headrace-{os.getuid()}"
    assert [store.directory.parent for store in stores] == [own] * 3
    assert stores[0].directory == stores[1].directory != stores[2].directory
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    assert [store.directory for store in opened_stores(streams, None)] == [store.directory for store in stores]


def test_a_url_is_read_through_that_cache(temporary, http_url, http_folder):
    write(http_folder / "data", (5, 6), hashes=["sha1"])
    stream = Stream(remote=f"{http_url}/data")
    assert ids(opened(stream)) == list(range(11))
    (http_folder / "data/shard.00000.mds").unlink()
    assert ids(opened(stream)) == list(range(11))
    assert [path.name for path in temporary.iterdir()] == [f"headrace-{os.getuid()}"]


@pytest.mark.parametrize("obstacle", ["link", "file", "writable", "other user", "no room"])
def test_a_temporary_folder_that_others_might_have_made_is_refused(obstacle, temporary, tmp_path, monkeypatch):
    own = temporary / f"headrace-{os.getuid()}"
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    match obstacle:
        case "link":
            own.symlink_to(tmp_path / "elsewhere")
        case "file":
            own.write_text("")
        case "writable":
            own.mkdir()
            own.chmod(0o777)
        case "other user":
            own.mkdir(mode=0o700)
            theirs = os.getuid() + 1
            own.rename(temporary / f"headrace-{theirs}")
            monkeypatch.setattr(os, "getuid", lambda: theirs)
        case _:
            monkeypatch.setattr(tempfile, "tempdir", str(temporary / "absent"))
    with pytest.raises(OptionError, match="headrace-") as raised:
        opened_stores([Stream(remote="s3://bucket/data")], None)
    assert raised.value.option == "local"
    assert list((tmp_path / "elsewhere").iterdir()) == []


# What the cache may keep


def test_streams_with_one_directory_share_the_limit_and_directories_have_equal_parts(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    store = MemoryStore(flat=True)
    in_place = write(tmp_path / "in place")
    streams = [
        Stream(remote=store, local=tmp_path / "a"),
        Stream(remote=store, local=f"{tmp_path}/a/"),
        Stream(remote=store, local=tmp_path / "link"),
        Stream(local=in_place),
        Stream(remote=store),
        Stream(remote=store, local=tmp_path / "b"),
    ]
    stores = opened_stores(streams, 1001)
    assert [store.limit_bytes for store in stores if isinstance(store, CachedStore)] == [500] * 4
    assert [type(store) for store in stores[3:5]] == [LocalStore, MemoryStore]
    assert [store.limit_bytes for store in opened_stores(streams[:3], 1001)] == [1001] * 3
    assert [store.limit_bytes for store in opened_stores(streams[:1], None)] == [None]
    assert [store.limit_bytes for store in opened_stores(streams[:1], 0)] == [0]


@pytest.mark.parametrize("limit", [0, 1, 6000, 13_000])
@pytest.mark.parametrize("caches", [("one", "one"), ("one", "two")])
def test_a_limit_holds_whatever_it_is_and_every_sample_comes(limit, caches, tmp_path):
    streams = [
        Stream(remote=remote((5, 6, 5), first=first), local=tmp_path / cache)
        for first, cache in zip((0, 100), caches, strict=True)
    ]
    dataset = opened(*streams, cache_limit=limit)
    expected = [*range(16), *range(100, 116)]
    for numbers in (range(32), range(31, -1, -1), [0, 16, 5, 20, 11, 27] * 2):
        assert [sample["id"] for sample in dataset.__getitems__(list(numbers))] == [expected[k] for k in numbers]
        dataset.close()
        assert sum(kept(tmp_path / cache) for cache in set(caches)) <= limit


# Several streams


@pytest.mark.parametrize("caches", [("one", "one"), ("one", "two"), ("one", "one/two"), ("one/two", "one")])
@pytest.mark.parametrize("options", [{}, {"hashes": ["sha1"]}, {"compression": "zstd"}, {"shard_format": "json"}])
def test_streams_of_other_remotes_never_mix_wherever_their_caches_are(caches, options, tmp_path):
    # Of equal names and sizes; without digests even the indexes are the same bytes.
    stores = [remote((5, 6), **options), remote((5, 6), first=105, **options)]
    streams = [Stream(remote=store, local=tmp_path / cache) for store, cache in zip(stores, caches, strict=True)]
    expected = [*range(11), *range(105, 116)]
    for _ in range(2):
        assert ids(opened(*streams)) == expected
        assert ids(opened(*streams[::-1])) == expected[11:] + expected[:11]
    one_by_one = [ids(opened(stream)) for stream in streams]
    assert one_by_one == [expected[:11], expected[11:]]


class Bucket(MemoryStore):
    """As S3 has it: a version is a digest of the bytes, and a time a whole second."""

    def __init__(self, location, datasets):
        super().__init__(flat=True)
        self.location = location
        for folder, first in datasets.items():
            for path, data in stored(remote((5, 6), first=first)).items():
                self.put(f"{folder}{path}", data)

    def head(self, path):
        return super().head(path)._replace(version=hashlib.md5(self.get(path)).hexdigest(), modified_s=1.7e9)


def test_indexes_of_equal_bytes_written_in_the_same_second_are_of_different_datasets(tmp_path):
    stores = [Bucket("s3://bucket/train", {"": 0}), Bucket("s3://bucket/val", {"": 105})]
    assert stores[0].head("index.json") == stores[1].head("index.json")
    dataset = opened(*[Stream(remote=store, local=tmp_path) for store in stores])
    assert ids(dataset) == [*range(11), *range(105, 116)]


def test_splits_of_equal_indexes_are_of_different_datasets(tmp_path):
    store = Bucket("s3://bucket/data", {"train/": 0, "val/": 105})
    dataset = opened(*[Stream(remote=store, split=split, local=tmp_path) for split in ("train", "val")])
    assert ids(dataset) == [*range(11), *range(105, 116)]


def read_again_and_again(streams, limit, answers):
    found = {tuple(ids(opened(*order, cache_limit=limit))) for order in (streams, streams[::-1]) for _ in range(5)}
    answers.put(sorted(found))


@pytest.mark.parametrize("limit", [None, 15_000])
def test_processes_that_share_a_cache_get_the_data_of_their_own_remotes(limit, tmp_path):
    stores = [FlatFolder(tmp_path / "train"), FlatFolder(tmp_path / "val")]
    for store, first in zip(stores, (0, 105), strict=True):
        write(store, (5, 6), sample=lambda number, first=first: sample_of(first + number))
    streams = [Stream(remote=store, local=tmp_path / "cache") for store in stores]
    train, val = tuple(range(11)), tuple(range(105, 116))
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    children = [context.Process(target=read_again_and_again, args=(streams, limit, answers)) for _ in range(2)]
    for child in children:
        child.start()
    assert [answers.get(timeout=60) for _ in children] == [[train + val, val + train]] * 2
    for child in children:
        child.join(30)
    assert [child.exitcode for child in children] == [0, 0]


def test_the_same_remote_twice_is_fetched_once(tmp_path):
    store = remote(hashes=["sha1"])
    streams = [Stream(remote=store, local=tmp_path), Stream(remote=store, local=tmp_path, repeat=2)]
    assert ids(opened(*streams)) == [*range(11), *range(11)]
    assert [store.count("pieces", f"shard.0000{shard}.mds") for shard in range(2)] == [1, 1]


def test_a_stream_that_was_replaced_says_so_and_the_others_go_on(tmp_path):
    stores = [remote((5, 6)), remote((5, 6), first=100)]
    dataset = opened(*[Stream(remote=store, local=tmp_path) for store in stores])
    assert [dataset[0]["id"], dataset[11]["id"]] == [0, 100]
    write(stores[1].store, (5, 6), sample=lambda number: sample_of(200 + number), exist_ok=True)
    with pytest.raises(DatasetChangedError):
        dataset[16]
    assert [dataset[5]["id"], dataset[10]["id"]] == [5, 10]
    dataset.close()
    assert [dataset[0]["id"], dataset[11]["id"], dataset[16]["id"]] == [0, 200, 205]


def test_streams_are_one_dataset_with_tables_of_each(tmp_path):
    empty = remote(())
    streams = [
        Stream(remote=remote((5, 6)), local=tmp_path / "a"),
        Stream(remote=empty, local=tmp_path / "a"),
        Stream(local=write(tmp_path / "b", (7,))),
    ]
    dataset = opened(*streams)
    assert dataset.shards_per_folder.tolist() == [2, 0, 1]
    assert dataset.samples_per_folder.tolist() == [11, 0, 7]
    assert dataset.shard_items.tolist() == [5, 6, 7]
    assert {table.dtype for table in (dataset.shards_per_folder, dataset.samples_per_folder)} == {np.dtype(np.int64)}
    assert ids(dataset) == [*range(11), *range(7)]


def test_building_costs_no_request_and_opening_two_a_stream():
    stores = [remote(), remote(first=100)]
    streams = [Stream(remote=store, validate_hash=None) for store in stores]
    dataset = opened(*streams)
    pickle.dumps(dataset)
    assert [store.calls for store in stores] == [[], []]
    dataset.open()
    check_hashes(streams, dataset)
    assert len(dataset) == 22
    assert [[call.operation for call in store.calls] for store in stores] == [OPENING, OPENING]


@pytest.fixture
def few_descriptors():
    """This process may have 1,024 files open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("caches", ["one", "each its own"])
def test_a_hundred_streams_are_read_through_caches_with_the_descriptors_that_a_process_has(
    caches, few_descriptors, tmp_path
):
    streams = []
    for number in range(100):
        data = write(tmp_path / f"data {number}", (1,) * 12, sample=lambda k, first=12 * number: sample_of(first + k))
        streams.append(Stream(remote=data, local=tmp_path / "caches" / (str(number) if caches != "one" else "")))
    with StreamingDataset(streams=streams, shuffle=True, shuffle_algo="global") as dataset:
        for _ in range(2):
            assert sorted(ids(dataset)) == list(range(1200))
            assert len(os.listdir("/proc/self/fd")) < 600
        shutil.rmtree(tmp_path / "data 0")
        assert sorted(ids(dataset)) == list(range(1200))  # all of them from the caches, where they are pinned
        assert sum(data.num_pinned for data in cached_data(CacheFolder(Path(streams[0].local)))) >= 12


def test_the_indexes_of_all_streams_are_read_at_the_same_time(tmp_path):
    together = threading.Barrier(3)
    rule = Rule(Run(lambda call: together.wait(30)), operation="head", path="index.json", times=1)
    stores = [FaultStore(remote(first=first).store, [rule]) for first in (0, 100, 200)]
    dataset = opened(*[Stream(remote=store, local=tmp_path) for store in stores])
    assert ids(dataset) == [*range(11), *range(100, 111), *range(200, 211)]


def test_a_stream_without_a_dataset_is_named(tmp_path):
    with pytest.raises(NoDatasetError, match="nothing here"):
        opened(Stream(local=write(tmp_path / "a")), Stream(local=tmp_path / "nothing here")).open()
    with pytest.raises(NoDatasetError, match="memory://"):
        opened(Stream(remote="memory://", local=tmp_path / "cache")).open()


@pytest.mark.parametrize("reader", ["dataset", "loader"])
@pytest.mark.parametrize(("rows", "told"), [(0, 0), (20, 20), (35, 35), (None, 60)])
def test_caches_are_told_of_as_many_rows_ahead_as_is_said(rows, told, reader, tmp_path, monkeypatch):
    hints = []
    monkeypatch.setattr(SampleDataset, "prefetch", lambda self, items: hints.append(len(items)))
    stream = Stream(remote=remote((10,) * 6), local=tmp_path)
    dataset = StreamingDataset(streams=[stream], batch_size=5, predownload=rows)
    reading = iter(dataset if reader == "dataset" else StreamingDataLoader(dataset, batch_size=5))
    next(reading)
    first = next((count for count in hints if count), 0)  # no rows end what was hinted before
    assert first == told or (reader == "dataset" and 0 < told < first <= 60)  # it reads some batches together


# Paths


NAMES = ["a b", "a#b", "a%20b", "a?b", "caf\u00e9", "cafe\u0301", "x" * 200, "a:b", "~b"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("slash", ["", "/", "//"])
def test_any_name_of_a_directory_is_good(name, slash, tmp_path):
    data = write(tmp_path / name / "data", (3,))
    for stream in (
        Stream(local=f"{data}{slash}"),
        Stream(remote=f"{data}{slash}", local=f"{tmp_path / name}/cache{slash}"),
        Stream(local=f"{tmp_path / name}{slash}", split=f"data{slash}"),
        Stream(remote=remote((3,)), local=f"{tmp_path / name}/cache{slash}"),
        Stream(local=tmp_path, split=f"{name}/data"),
    ):
        assert ids(opened(stream)) == [0, 1, 2]


def test_home_and_relative_paths_are_those_of_the_time_of_building(tmp_path, monkeypatch):
    write(tmp_path / "data", (3,))
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    datasets = [
        opened(Stream(local="~/data")),
        opened(Stream(local=Path("data"))),
        opened(Stream(remote="./data", local="~/cache")),
    ]
    monkeypatch.chdir("other")
    assert [ids(dataset) for dataset in datasets] == [[0, 1, 2]] * 3
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("local", ["s3://bucket/cache", "https://host/cache", Path("s3://bucket/cache")])
def test_a_url_is_no_local_directory_and_no_folder_of_that_name_is_made(local, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for given in ({"local": local}, {"local": local, "remote": "s3://bucket/data"}):
        with pytest.raises(OptionError, match="remote"):
            Stream(**given)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("local", ["file", "file/below", "dangling", "dangling/below"])
def test_a_cache_in_what_is_no_directory_is_refused_when_it_is_asked_for(local, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    for origin in (tmp_path / "data", "s3://bucket/data", MemoryStore(flat=True)):
        with pytest.raises(OptionError, match="directory") as raised:
            StreamingDataset(remote=origin, local=tmp_path / local)
        assert raised.value.option == "local"


@pytest.mark.parametrize("url", ["s3://", "nothing://host/data", "https://host/?sig=geheim"])
def test_a_url_that_names_no_place_is_refused_without_secrets(url, tmp_path):
    with pytest.raises(OptionError) as raised:
        opened_stores([Stream(remote=url, local=tmp_path)], None)
    assert raised.value.option == "remote"
    assert "geheim" not in str(raised.value)


@pytest.fixture
def silent_port():
    """A port at which somebody listens and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_server_that_is_silent_is_an_error_that_names_the_option_for_it(silent_port, tmp_path):
    url = f"http://127.0.0.1:{silent_port}/data"
    dataset = StreamingDataset(remote=url, local=tmp_path, download_retry=0, download_timeout=0.2)
    with pytest.raises(StoreError, match=f"{url}.*download_timeout"):
        len(dataset)


def test_a_server_that_refuses_is_an_error_with_the_url(tmp_path):
    pytest.importorskip("fsspec")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    dataset = StreamingDataset(remote=f"ftp://user:geheim@127.0.0.1:{port}/data", local=tmp_path, download_retry=0)
    with pytest.raises(StoreError, match=f"ftp://127.0.0.1:{port}/data.*refused") as raised:
        len(dataset)
    assert "geheim" not in str(raised.value)


@pytest.mark.parametrize("url", ["github://owner/data", "simplecache://data", "reference://data"])
def test_a_url_that_says_too_little_is_an_error_that_says_what_to_do(url, tmp_path):
    pytest.importorskip("requests")
    with pytest.raises(StoreError, match=rf"{url}.*open_store\(url, \.\.\.\)"):
        len(StreamingDataset(remote=url, local=tmp_path, download_retry=0))


# Digests


def test_a_digest_that_is_asked_for_must_be_in_every_index(tmp_path):
    streams = [
        Stream(remote=remote(hashes=["sha1", "xxh64"]), local=tmp_path, validate_hash="sha1"),
        Stream(local=write(tmp_path / "data", hashes=["xxh64"]), validate_hash="xxh64"),
        Stream(local=write(tmp_path / "bare")),
        Stream(local=write(tmp_path / "empty", ()), validate_hash="sha1"),
    ]
    check_hashes(streams, opened(*streams))
    wrong = [streams[0], Stream(local=tmp_path / "data", validate_hash="sha1")]
    with pytest.raises(OptionError, match=r"'xxh64'.*/data") as raised:
        check_hashes(wrong, opened(*wrong))
    assert (raised.value.option, raised.value.value) == ("validate_hash", "sha1")
    none = [Stream(local=tmp_path / "bare", validate_hash="sha1")]
    with pytest.raises(OptionError, match="no digests"):
        check_hashes(none, opened(*none))


@pytest.mark.parametrize("options", [{}, {"compression": "zstd"}, {"shard_format": "csv"}])
def test_a_digest_counts_only_where_every_file_has_it(options, tmp_path):
    write(tmp_path, hashes=["md5", "sha1"], **options)
    streams = [Stream(local=tmp_path, validate_hash="sha1")]
    check_hashes(streams, opened(*streams))
    index = index_of(tmp_path)
    names = [name for name in ("zip_meta", "raw_meta", "zip_data", "raw_data") if index["shards"][3].get(name)]
    del index["shards"][3][names[0]]["hashes"]["sha1"]
    put_index(tmp_path, index)
    with pytest.raises(OptionError, match="'md5'"):
        check_hashes(streams, opened(*streams))


def test_no_digest_asked_for_opens_nothing(tmp_path):
    streams = [Stream(local=tmp_path / "absent")]
    check_hashes(streams, opened(*streams))


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("largest", [1 << 28, 10])  # bytes above which files are read by ranges until they are there
def test_a_shard_that_is_prepared_is_in_the_cache(tmp_path, monkeypatch, blocking, largest):
    monkeypatch.setattr("headrace.datasets.sources.LARGEST_FETCHED_BYTES", largest)
    with StreamingDataset(remote=remote((5, 6, 7)), local=tmp_path) as dataset:
        dataset.prepare_shard(1, blocking)

        def names():
            return [path.name for path in Path(tmp_path, "headrace-cache/1/files").rglob("*.mds*") if path.is_file()]

        if blocking and largest > 10:
            assert len(names()) == 1
        assert waited_for(names)
        (name,) = names()
        assert "shard.00001" in name
