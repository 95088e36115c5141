"""One owner a shard: among threads and processes, alive, stopped, woken and dead."""

import os
import pickle
import random
import signal
import threading
import time

import numpy as np
import pytest

from dataset.scenes import U2, fast_storage_at, leftovers, ranges, storage_at, tokens_of, write
from headrace.datasets import StreamDataset, StreamStorage
from headrace.errors import (
    ClosedError,
    HeadraceError,
    LeaseLostError,
    PublishedError,
    ShardOwnedError,
    UnfinishedDatasetError,
)
from headrace.store import LocalStore
from headrace.testing import FaultStore, Rule, Run
from interference import FORK, in_child


def test_a_second_owner_in_this_process_is_refused_with_pid_and_host(tmp_path):
    storage = storage_at(tmp_path)
    with storage.sync_writer() as first:
        first.append(0, [1])
        with pytest.raises(ShardOwnedError, match=f"process {os.getpid()} on host {os.uname().nodename}"):
            write(storage, [[2], [3]])
        first.append(0, [4])
    assert tokens_of(storage) == [1, 4]
    assert leftovers(tmp_path) == []


def append_two(folder, barrier, offset_s, value):
    barrier.wait()
    time.sleep(offset_s)
    with fast_storage_at(folder).sync_writer() as writer:
        writer.append(0, [value, value])
        time.sleep(0.002)
        writer.append(0, [value, value])
    return value


def test_of_two_processes_on_one_shard_one_is_refused_or_replaces_the_whole_50_times(tmp_path):
    draw = random.Random(7)
    refused = 0
    for repeat in range(50):
        folder = tmp_path / str(repeat)
        barrier = FORK.Barrier(2)
        children = [in_child(append_two, folder, barrier, draw.uniform(0, 0.02), value) for value in (1, 2)]
        outcomes = [receiver.recv() for _, receiver in children]
        for process, _ in children:
            process.join()
        winners = [value for kind, value in outcomes if kind == "returned"]
        losers = [error for kind, error in outcomes if kind == "raised"]
        assert winners, losers
        assert all(isinstance(error, ShardOwnedError) for error in losers)
        refused += len(losers)
        tokens = tokens_of(storage_at(folder))
        assert tokens in [[value] * 4 for value in winners]
        assert storage_at(folder).verify() == []
        assert leftovers(folder) == []
    assert refused > 0


def write_own_shard(folder, barrier, offset_s, shard):
    barrier.wait()
    time.sleep(offset_s)
    with fast_storage_at(folder).sync_writer() as writer:
        writer.append(shard, [shard, shard])


def test_processes_with_shards_of_their_own_do_not_meet(tmp_path):
    draw = random.Random(8)
    for repeat in range(10):
        folder = tmp_path / str(repeat)
        barrier = FORK.Barrier(4)
        children = [in_child(write_own_shard, folder, barrier, draw.uniform(0, 0.01), shard) for shard in range(4)]
        assert [receiver.recv() for _, receiver in children] == [("returned", None)] * 4
        for process, _ in children:
            process.join()
        storage_at(folder).publish()
        assert tokens_of(storage_at(folder)) == [0, 0, 1, 1, 2, 2, 3, 3]
        assert leftovers(folder) == []


def overwrite_own_shard(folder, barrier, offset_s, shard):
    barrier.wait()
    time.sleep(offset_s)
    with fast_storage_at(folder).sync_writer(overwrite=True) as writer:
        writer.append(shard, [100 + shard])


def test_parallel_writers_that_all_say_overwrite_share_one_new_generation(tmp_path):
    draw = random.Random(9)
    for repeat in range(10):
        folder = tmp_path / str(repeat)
        write(fast_storage_at(folder), ranges(3, 3, 3, 3, 3), publish=True)
        barrier = FORK.Barrier(3)
        children = [in_child(overwrite_own_shard, folder, barrier, draw.uniform(0, 0.01), shard) for shard in range(3)]
        outcomes = [receiver.recv() for _, receiver in children]
        for process, _ in children:
            process.join()
        assert outcomes == [("returned", None)] * 3
        storage_at(folder).publish()
        assert tokens_of(storage_at(folder)) == [100, 101, 102]


def publish(folder, barrier):
    barrier.wait()
    return fast_storage_at(folder).publish().fingerprint


def test_concurrent_publishers_all_succeed_with_the_same_bytes(tmp_path):
    for repeat in range(10):
        folder = tmp_path / str(repeat)
        write(fast_storage_at(folder), ranges(3, 4))
        barrier = FORK.Barrier(3)
        children = [in_child(publish, folder, barrier) for _ in range(3)]
        outcomes = [receiver.recv() for _, receiver in children]
        for process, _ in children:
            process.join()
        assert {kind for kind, _ in outcomes} == {"returned"}, outcomes
        assert len(set(outcomes)) == 1
        assert tokens_of(storage_at(folder)) == list(range(7))
        assert leftovers(folder) == []


def stop_myself(call):
    os.kill(os.getpid(), signal.SIGSTOP)


# Where the first owner falls asleep: (operation, path, which one).
PLACES = {
    "before it closes": None,
    "as it writes": ("write", "*in_band.bin", 1),
    "as it syncs": ("sync", "*in_band.bin", 1),
    "as it makes the receipt": ("open_writer", "*/receipt", 1),
    "as it writes the receipt": ("write", "*/receipt", 1),
    "as it moves the old receipt away": ("rename", "*/replaced", 1),
    "as it renames the data": ("rename", "*/0000000.in_band.bin", 1),
    "as it renames the receipt": ("rename", ".headrace/0000000.receipt", 2),
}


def sleepy(folder, place):
    rules = [] if place is None else [Rule(Run(stop_myself), operation=place[0], path=place[1], nth=place[2], times=1)]
    storage = StreamStorage(FaultStore(LocalStore(folder, fsync=False), rules), U2)
    with storage.sync_writer() as writer:
        writer.append(0, [7] * 5)
        if place is None:
            stop_myself(None)
        writer.append(0, [8] * 5)


@pytest.mark.parametrize("name", PLACES)
def test_a_stopped_owner_is_alive_and_once_taken_over_by_force_cannot_commit(name, tmp_path):
    storage = write(fast_storage_at(tmp_path), ranges(4))  # so that there is an old receipt
    process, receiver = in_child(sleepy, tmp_path, PLACES[name])
    try:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        with pytest.raises(ShardOwnedError):
            write(storage, ranges(6, start=50))
        with pytest.raises(UnfinishedDatasetError, match="is being written"):
            storage.publish()
        storage.recover()  # removes nothing of the living
        write(storage, ranges(6, start=50), force=True)
        assert tokens_of(storage) == list(range(50, 56))
        storage.publish()
    finally:
        os.kill(process.pid, signal.SIGCONT)
    kind, error = receiver.recv()
    process.join()
    assert kind == "raised"
    assert isinstance(error, LeaseLostError)
    assert "shard 0" in str(error)
    assert tokens_of(storage) == list(range(50, 56))
    assert storage.verify() == []
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("name", PLACES)
def test_a_stopped_owner_that_wakes_before_its_successor_commits_cannot_commit_either(name, tmp_path):
    storage = write(fast_storage_at(tmp_path), ranges(4))
    process, receiver = in_child(sleepy, tmp_path, PLACES[name])
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    with storage.sync_writer(force=True) as writer:
        writer.append(0, range(50, 53))
        os.kill(process.pid, signal.SIGCONT)
        kind, error = receiver.recv()
        process.join()
        assert kind == "raised"
        assert isinstance(error, LeaseLostError)
        writer.append(0, range(53, 56))
    assert tokens_of(storage) == list(range(50, 56))
    assert leftovers(tmp_path) == []


def test_a_dead_owners_shard_is_taken_over_without_force(tmp_path):
    def die():
        writer = fast_storage_at(tmp_path).sync_writer()
        writer.open()
        writer.append(0, [9, 9])
        os.kill(os.getpid(), signal.SIGKILL)

    process, _ = in_child(die)
    process.join()
    assert leftovers(tmp_path)
    assert tokens_of(write(storage_at(tmp_path), ranges(4))) == [0, 1, 2, 3]
    assert leftovers(tmp_path) == []


def test_a_writer_that_was_open_at_a_publication_cannot_commit_after_it(tmp_path):
    storage = write(fast_storage_at(tmp_path), ranges(4))
    writer = storage.sync_writer()
    writer.open()
    storage.publish()
    with pytest.raises(PublishedError):
        writer.append(0, [1])
    writer.close()
    assert tokens_of(storage) == [0, 1, 2, 3]


def test_a_forked_child_does_not_touch_its_parents_writer(tmp_path):
    storage = fast_storage_at(tmp_path)
    with storage.sync_writer() as writer:
        writer.append(0, [1, 2])

        def child():
            for use in (lambda: writer.append(0, [3]), writer.close):
                with pytest.raises(ClosedError, match="belongs to the process that opened it"):
                    use()

        process, receiver = in_child(child)
        assert receiver.recv() == ("returned", None)
        process.join()
        writer.append(0, [3])
    assert tokens_of(storage) == [1, 2, 3]
    assert leftovers(tmp_path) == []


def read_in_child(dataset, items):
    return dataset.__getitems__(items).stacked()


@pytest.mark.parametrize("max_open_files", [2, 64])
def test_a_dataset_may_be_used_after_a_fork_also_one_that_a_thread_was_mapping(max_open_files, tmp_path):
    write(fast_storage_at(tmp_path), ranges(*[10] * 20), publish=True)
    dataset = StreamDataset(StreamStorage(LocalStore(tmp_path, max_open_files=max_open_files), U2), 10)
    reference = np.arange(200, dtype=np.uint16).reshape(20, 10)
    stop = threading.Event()

    def churn():
        draw = np.random.default_rng(0)
        while not stop.is_set():
            dataset.__getitems__(draw.integers(0, 20, 5))

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for repeat in range(10):
            items = np.random.default_rng(repeat).integers(0, 20, 30)
            process, receiver = in_child(read_in_child, dataset, items)
            assert receiver.poll(30), "the child hangs"
            kind, rows = receiver.recv()
            process.join()
            assert kind == "returned", rows
            np.testing.assert_array_equal(rows, reference[items])
    finally:
        stop.set()
        thread.join()


def test_errors_of_ownership_survive_pickling():
    error = pickle.loads(pickle.dumps(ShardOwnedError("here", "shard 3", {"pid": 7, "host": "h"}, 2.0)))
    assert isinstance(error, HeadraceError)
    assert "process 7" in str(error)
    assert error.holder["pid"] == 7
