"""Scenarios from bug reports of comparable tools: a StreamingDataset's cache, whatever its limit, faults and sharers.

What a cache promises below is tested in tests/store (test_cache*.py: failing locks, takeovers, kills at each step) and
which places get which cache in test_places.py; here it is met through datasets and loaders.
"""

import os
import shutil
import signal
import threading
import time
from contextlib import suppress

import pytest

from headrace import LocalStore, MDSWriter, Stream, StreamingDataLoader, StreamingDataset
from headrace.errors import CorruptShardError, OptionError, StoreError
from headrace.testing import FaultStore
from servers.faulty_http import Cut, Rule, Stall, Status
from streaming_dataset.processes import forked, joined, waited_for
from streaming_dataset.written import numbers_of

SHARDS, A_SHARD, SAMPLE_BYTES = 10, 5, 200
SAMPLES = SHARDS * A_SHARD


def write_shards(folder, shards=SHARDS, *, first=0, sample_bytes=SAMPLE_BYTES, **options):
    """Shards of A_SHARD samples, of about A_SHARD * sample_bytes bytes each."""
    columns = {"number": "int", "text": "str"}
    store = LocalStore(folder, fsync=False)
    with MDSWriter(out=store, columns=columns, size_limit=None, **{"hashes": ["xxh3_64"], **options}) as out:
        for number in range(first, first + shards * A_SHARD):
            out.write({"number": number, "text": f"{number:04d}" * (sample_bytes // 4)})
            if number % A_SHARD == A_SHARD - 1:
                out.flush_shard()
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_shards(tmp_path_factory.mktemp("data") / "numbers")


def kept_bytes(cache):
    """Bytes of the data files that a cache has; files come and go meanwhile."""
    total = 0
    for path in cache.rglob("files/**/*"):
        with suppress(FileNotFoundError):
            if path.is_file():
                total += path.stat().st_size
    return total


def on_their_way(cache):
    return list(cache.rglob("downloads/*"))


def is_quiet(cache):
    """Whether all downloads end, those of what was fetched ahead included."""
    return waited_for(lambda: not on_their_way(cache))


# O22: limits that are too small, and options of zero

SHARD_BYTES = 1300  # a shard has less, and more than 1,000
WORKERS = {"num_workers": 4, "multiprocessing_context": "fork"}


LIMITS = [0, 1, 1000, SHARD_BYTES, 2 * SHARD_BYTES, "4kb", "1MiB", None]


@pytest.mark.parametrize(
    ("limit", "workers"),
    [
        *((limit, {}) for limit in LIMITS),
        *((limit, {"num_workers": 2, "multiprocessing_context": "fork"}) for limit in (0, SHARD_BYTES)),
        *(pytest.param(limit, WORKERS, marks=pytest.mark.slow) for limit in LIMITS),
    ],
)
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_any_limit_serves_two_epochs_and_holds(limit, workers, folder, tmp_path):
    dataset = StreamingDataset(remote=folder, local=tmp_path, cache_limit=limit, shuffle=True)
    in_place = StreamingDataset(local=folder, shuffle=True)
    expected = [numbers_of(in_place) for _ in range(2)]
    begun_s = time.monotonic()
    with StreamingDataLoader(dataset, batch_size=4, **workers) as loader:
        first = next(iter(loader))
        assert numbers_of([first]) == expected[0][:4]
        assert time.monotonic() - begun_s < 10
        assert [numbers_of(loader) for _ in range(2)] == expected
    dataset.close()
    assert is_quiet(tmp_path)
    most = {"4kb": 4 << 10, "1MiB": 1 << 20, None: 1 << 30}.get(limit, limit)
    assert kept_bytes(tmp_path) <= most
    if most >= 1 << 20:
        assert kept_bytes(tmp_path) == sum(path.stat().st_size for path in folder.glob("*.mds"))


@pytest.mark.parametrize("predownload", [0, 1, SAMPLES, 1_000_000, None])
@pytest.mark.parametrize("limit", [0, SHARD_BYTES, None])
def test_any_number_of_rows_ahead_gives_the_same(predownload, limit, folder, tmp_path):
    options = {"remote": folder, "local": tmp_path, "cache_limit": limit, "shuffle": True}
    dataset = StreamingDataset(**options, predownload=predownload, batch_size=4)
    expected = numbers_of(StreamingDataset(local=folder, shuffle=True))
    assert numbers_of(dataset) == expected
    with StreamingDataLoader(StreamingDataset(**options, predownload=predownload), batch_size=4) as loader:
        assert numbers_of(loader) == expected


@pytest.mark.parametrize("limit", ["-1", "ten", -1, "1.5 parsec"])
def test_a_limit_that_is_none_is_refused_as_it_is_built_with_the_forms_there_are(limit, folder, tmp_path):
    with pytest.raises(OptionError, match=r"cache_limit.*20GiB"):
        StreamingDataset(remote=folder, local=tmp_path, cache_limit=limit)


# O23: failed downloads


def test_what_a_broken_connection_left_is_fetched_again_and_only_whole_files_are_kept(
    http_server, http_folder, http_url, tmp_path
):
    write_shards(http_folder, sample_bytes=1000)
    http_server.rules.append(Rule(Cut(1024), method="GET", path="*.mds", times=3))
    dataset = StreamingDataset(remote=http_url, local=tmp_path / "cache")
    assert numbers_of(dataset) == list(range(SAMPLES))
    sizes = {path.stat().st_size for path in http_folder.glob("*.mds")}
    assert {path.stat().st_size for path in (tmp_path / "cache").rglob("files/**/*.mds.*")} == sizes
    assert is_quiet(tmp_path / "cache")


def read_all(url, cache):
    assert numbers_of(StreamingDataset(remote=url, local=cache)) == list(range(SAMPLES))


def test_a_process_killed_as_it_downloads_leaves_nothing_that_looks_complete(
    http_server, http_folder, http_url, tmp_path
):
    write_shards(http_folder, sample_bytes=1000)
    rule = Rule(Stall(2000, seconds=60), method="GET", path="*00003.mds", times=2)
    http_server.rules.append(rule)
    cache = tmp_path / "cache"
    for _ in range(2):
        reader = forked(read_all, http_url, cache)
        assert waited_for(lambda: http_server.count("GET", "*00003.mds") and on_their_way(cache))
        os.kill(reader.pid, signal.SIGKILL)
        reader.join(10)
        assert not list(cache.rglob("files/**/*00003.mds.*"))
        http_server.requests.clear()
    read_all(http_url, cache)
    assert is_quiet(cache)  # what the dead had begun is gone


def test_shards_that_can_never_be_had_leave_nothing_and_the_next_run_reads_all(
    http_server, http_folder, http_url, tmp_path
):
    write_shards(http_folder, 20)
    cache = tmp_path / "cache"
    for code in (403, 404, 500):
        http_server.rules[:] = [Rule(Status(code), method="GET", path="*.mds")]
        dataset = StreamingDataset(remote=http_url, local=cache, download_retry=0)
        for shard in range(20):
            with pytest.raises((StoreError, CorruptShardError), match=rf"shard\.000{shard:02d}\.mds"):
                dataset[shard * A_SHARD]
        assert kept_bytes(cache) == 0
        assert is_quiet(cache)
    http_server.rules.clear()
    assert numbers_of(StreamingDataset(remote=http_url, local=cache)) == list(range(20 * A_SHARD))


# O24: many processes, one cold cache


def read_as_rank(url, cache, rank):
    dataset = StreamingDataset(remote=url, local=cache, rank=rank // 4, world_size=2, batch_size=3)
    whole = dataset.as_view()
    assert sorted(numbers_of(whole[k] for k in range(SAMPLES))) == list(range(SAMPLES))  # all begin with shard 0
    assert len(numbers_of(dataset)) == SAMPLES // 2


@pytest.mark.parametrize("rounds", [2, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_eight_processes_on_a_cold_cache_fetch_each_compressed_shard_once(
    rounds, http_server, http_folder, http_url, tmp_path
):
    write_shards(http_folder, compression="zstd")
    for number in range(rounds):
        cache = tmp_path / f"cache {number}"
        http_server.requests.clear()
        joined([forked(read_as_rank, http_url, cache, rank) for rank in range(8)])
        fetched = [request.path for request in http_server.requests if ".mds" in request.path]
        assert sorted(fetched) == sorted(f"/{path.name}" for path in http_folder.glob("*.mds.zstd"))
        assert not on_their_way(cache)


# O25: the limit holds, and nothing stays locked


@pytest.mark.timeout(200)
def test_four_readers_stay_below_the_limit_whatever_was_there_and_whoever_was_killed(tmp_path):
    folder = write_shards(tmp_path / "data", 20, sample_bytes=10_000)
    shard_bytes = max(path.stat().st_size for path in folder.glob("*.mds"))
    cache, limit = tmp_path / "cache", 5 * shard_bytes
    options = {"remote": folder, "local": cache, "shuffle": True, "shuffle_block_size": A_SHARD}
    earlier = StreamingDataset(remote=write_shards(tmp_path / "older", first=1000), local=cache)
    assert numbers_of(earlier) == list(range(1000, 1000 + SAMPLES))
    earlier.close()
    begun = [tmp_path / f"begun {rank}" for rank in range(4)]

    def read(rank):
        dataset = StreamingDataset(**options, cache_limit=limit, rank=rank, world_size=4, batch_size=2)
        for epoch in range(2):
            for _ in dataset:
                time.sleep(0.002)
            begun[rank].touch()
            if rank == 3 and epoch == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    most, over = [], threading.Event()

    def watch():
        while not over.wait(0.005):
            most.append(kept_bytes(cache))

    watcher = threading.Thread(target=watch)
    watcher.start()
    readers = [forked(read, rank) for rank in range(4)]
    joined(readers[:3])
    readers[3].join(30)
    over.set()
    watcher.join()
    assert readers[3].exitcode == -signal.SIGKILL
    assert all(path.exists() for path in begun)
    assert len(most) > 5
    assert max(most) <= limit + 4 * shard_bytes
    assert is_quiet(cache)
    assert kept_bytes(cache) <= limit


def test_an_epoch_whose_shards_are_read_in_one_go_fetches_each_once_with_room_for_two(tmp_path):
    store = FaultStore(LocalStore(write_shards(tmp_path / "data", 20)))
    dataset = StreamingDataset(
        streams=[Stream(remote=store, local=tmp_path / "cache")],
        cache_limit=2 * SHARD_BYTES,
        predownload=0,
        shuffle=True,
        shuffle_block_size=A_SHARD,
    )
    with StreamingDataLoader(dataset, batch_size=A_SHARD) as loader:
        for _ in range(2):
            store.calls.clear()
            assert sorted(numbers_of(loader)) == list(range(20 * A_SHARD))
            assert 20 - 2 <= store.count("pieces") <= 20


# O26: two datasets, one directory. test_places.py has streams of one dataset, and parent and child directories


def read_numbers(folder, cache, first):
    with StreamingDataLoader(StreamingDataset(remote=folder, local=cache, shuffle=True), batch_size=7) as loader:
        for _ in range(2):
            assert sorted(numbers_of(loader)) == list(range(first, first + SAMPLES))


@pytest.mark.parametrize("caches", [("one", "one"), ("one", "one/below"), ("one/below", "one")])
def test_train_and_val_with_one_directory_keep_their_samples_in_one_process_and_in_two(caches, tmp_path):
    # Of the same names and sizes.
    train, val = write_shards(tmp_path / "train"), write_shards(tmp_path / "val", first=1000)
    caches = [tmp_path / cache for cache in caches]
    for _ in range(2):
        read_numbers(train, caches[0], 0)
        read_numbers(val, caches[1], 1000)
    shutil.rmtree(tmp_path / "one")
    places = [(train, caches[0], 0), (val, caches[1], 1000)] * 2  # and the same remote twice at once
    joined([forked(read_numbers, *place) for place in places])
    datasets = [StreamingDataset(remote=remote, local=cache) for remote, cache, _ in places]
    for samples in zip(*datasets, strict=True):  # side by side
        assert [sample["number"] for sample in samples] == [samples[0]["number"], samples[0]["number"] + 1000] * 2
