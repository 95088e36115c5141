"""Scenarios from bug reports of comparable tools: loaders over a cache, with limits, kills and new starts."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from dataset.remote_reading_scenes import copy_into, flat, samples, streams, written_samples, written_stream
from headrace import StatefulDataLoader
from headrace.store import LocalStore
from headrace.store.cache import CachedStore
from headrace.testing import FaultStore

JOB = Path(__file__).with_name("cached_job.py")
SHARD_BYTES = 200
FIRST_BATCH_S = 10


def batches(dataset, **options):
    with StatefulDataLoader(dataset, local_batch_size=5, shuffle=True, rank=0, world_size=1, **options) as loader:
        return [np.asarray(batch).tolist() for _ in range(2) for batch in loader]


def nothing_is_on_its_way(cache, within_s=10):
    """Whether all downloads have ended, those of what was fetched ahead included."""
    deadline_s = time.monotonic() + within_s
    while list(cache.rglob("downloads/*")) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return not list(cache.rglob("downloads/*"))


WORKERS = [
    {},
    {"num_workers": 1},
    {"num_workers": 4},
    {"num_workers": 4, "prefetch": 1},
    {"num_workers": 4, "prefetch": 100},  # more than the dataset has
    {"num_workers": 2, "parallel_method": "process", "timeout_s": 30},
]


@pytest.mark.parametrize("options", WORKERS, ids=str)
@pytest.mark.parametrize("limit", [0, 1, SHARD_BYTES - 1, SHARD_BYTES, SHARD_BYTES + 1, "1kb", "1MiB", None])
def test_any_limit_serves_two_epochs_to_any_number_of_workers(limit, options, tmp_path):
    written = written_stream()
    store = CachedStore(flat(written), tmp_path, limit_bytes=limit)
    with streams(written) as local, streams(store) as cached:
        expected = batches(local)
        assert batches(cached, **options) == expected
    assert nothing_is_on_its_way(tmp_path)
    kept_bytes = sum(file.stat().st_size for file in tmp_path.rglob("files/**/*") if file.is_file())
    assert kept_bytes <= {"1kb": 1 << 10, "1MiB": 1 << 20, None: 1 << 30}.get(limit, limit)


@pytest.mark.parametrize("options", [{}, {"num_workers": 3}], ids=str)
def test_an_epoch_fetches_each_shard_once_where_all_fit(options, tmp_path):
    written = written_samples(compression="zstd", hashes=["xxh3_64"])
    store = flat(written)
    with samples(CachedStore(store, tmp_path)) as cached:
        loader = StatefulDataLoader(cached, list, local_batch_size=5, shuffle=True, rank=0, world_size=1, **options)
        with loader:
            for _ in range(2):
                assert sorted(sample["id"] for batch in loader for sample in batch) == list(range(50))
    fetched = [call.path for call in store.calls if call.operation == "pieces"]
    assert sorted(fetched) == sorted(info.path for info in written.list() if ".mds" in info.path)


def test_two_datasets_of_one_job_share_a_cache_and_are_never_mixed(tmp_path):
    train, val = written_stream(), written_stream(salt=1000)
    stores = [CachedStore(flat(written), tmp_path) for written in (train, val)]
    for _ in range(2):
        for written, store in zip((train, val), stores, strict=True):
            with streams(written) as local, streams(store) as cached:
                assert batches(cached, num_workers=2) == batches(local)


def started(url, cache, limit):
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    return [
        subprocess.Popen(
            [sys.executable, JOB, url, str(cache), str(rank), str(limit)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        for rank in range(2)
    ]


def first_batches(ranks):
    for rank in ranks:
        word, seconds = rank.stdout.readline().split()
        assert word == "ready"
        assert float(seconds) < FIRST_BATCH_S


def ended(ranks, within_s=30):
    deadline_s = time.monotonic() + within_s
    for rank in ranks:
        rank.wait(max(0.1, deadline_s - time.monotonic()))


def processes_of(ranks):
    """The processes, of any generation, that these ranks have started and that still live."""
    sessions = {rank.pid for rank in ranks}
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # ended meanwhile
            continue
        if int(fields[3]) in sessions and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def nothing_lives(ranks, within_s=20):
    deadline_s = time.monotonic() + within_s
    while processes_of(ranks) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    return not processes_of(ranks)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
@pytest.mark.parametrize("limit", [0, 900])
def test_the_same_command_goes_on_at_once_after_any_kill_with_the_same_cache(limit, http_folder, http_url, tmp_path):
    written = written_samples(compression="zstd", hashes=["xxh3_64"])
    copy_into(LocalStore(http_folder, fsync=False), written)
    cache = tmp_path / "cache"
    kills = [
        lambda ranks: [rank.send_signal(signal.SIGINT) for rank in ranks],
        lambda ranks: [rank.send_signal(signal.SIGTERM) for rank in ranks],
        lambda ranks: ranks[0].kill(),
        lambda ranks: [os.killpg(rank.pid, signal.SIGKILL) for rank in ranks],
    ]
    for round_, kill in enumerate(kills):
        ranks = started(http_url, cache, limit)
        first_batches(ranks)
        time.sleep(0.03 * round_)
        kill(ranks)
        if round_ == 2:  # the other rank does not care
            ended(ranks[1:])
            assert ranks[1].stdout.read().splitlines()[-1] == "done"
        ended(ranks)
        assert nothing_lives(ranks)
    ranks = started(http_url, cache, limit)
    first_batches(ranks)
    outputs = [rank.stdout.read() for rank in ranks]
    ended(ranks)
    assert [rank.returncode for rank in ranks] == [0, 0], [rank.stderr.read() for rank in ranks]
    for epoch in range(2):
        lines = [line.split() for out in outputs for line in out.splitlines() if line.startswith(f"batch {epoch}")]
        seen = [int(number) for line in lines for number in line[2:]]
        assert len(seen) == len(set(seen)) == 48  # of 50, in steps of 4
    assert nothing_lives(ranks)
    assert nothing_is_on_its_way(cache)


def test_no_reader_needs_what_the_store_counts_as_another_request_once_all_is_cached(tmp_path):
    written = written_stream()
    store = FaultStore(flat(written).store)
    with streams(CachedStore(store, tmp_path)) as cached:
        first = batches(cached, num_workers=2)
        store.calls.clear()
        assert batches(cached, num_workers=4) == first
        assert store.calls == []
