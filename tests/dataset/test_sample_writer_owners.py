"""Who else writes where a dataset of samples is written: other processes, forked children; and Ctrl-C."""

import gc
import os
import random
import signal
import threading
import time
import weakref

import pytest

from headrace.datasets import JSONWriter, MDSWriter, SampleDataset
from headrace.datasets.samples import ownership, withdrawal
from headrace.errors import (
    ClosedError,
    ExistingOutputError,
    HeadraceError,
    LeaseLostError,
    OutputError,
    ShardOwnedError,
    StoreError,
    WriteError,
)
from headrace.store import LocalStore, MemoryStore
from headrace.testing import FaultStore, Refuse, Rule, Run
from interference import FORK, in_child, interrupted
from writing_scenes import COLUMNS, FORMATS, everything_in, fill, ids_in, sample, write

EACH_FORMAT = pytest.mark.parametrize("writer", FORMATS.values(), ids=FORMATS)


class OwnError(Exception):
    """The user's."""


def write_two(folder, barrier, offset_s, first, options):
    barrier.wait()
    time.sleep(offset_s)
    store = LocalStore(folder, fsync=False)
    write(store, [first, first + 1], writer=JSONWriter, a_shard=1, hashes=["xxh64"], **options)
    return first


@pytest.mark.parametrize("name", ["default", "exist_ok", "resume"])
def test_of_two_processes_on_one_directory_one_is_refused_or_one_replaces_the_other_50_times(name, tmp_path):
    draw = random.Random(name)
    refused = 0
    options = {} if name == "default" else {name: True}
    for repeat in range(50):
        folder = tmp_path / str(repeat)
        barrier = FORK.Barrier(2)
        children = [in_child(write_two, folder, barrier, draw.uniform(0, 0.02), first, options) for first in (10, 20)]
        outcomes = [receiver.recv() for _, receiver in children]
        for process, _ in children:
            process.join()
        winners = [first for kind, first in outcomes if kind == "returned"]
        losers = [error for kind, error in outcomes if kind == "raised"]
        assert winners, losers
        assert name != "default" or len(winners) == 1
        known = (ShardOwnedError, ExistingOutputError, ClosedError)  # the last where resume=True met a whole one
        assert all(isinstance(error, known) for error in losers), losers
        refused += len(losers)
        assert ids_in(folder, verify=True) in [[first, first + 1] for first in winners]
        files = ["index.json", *(f"shard.{n:05d}.json{meta}" for n in range(2) for meta in ("", ".meta"))]
        assert everything_in(folder) == files
    assert refused > 0


def test_a_second_writer_of_this_process_is_refused_with_pid_and_host_and_leaves_the_first_alone(tmp_path):
    for options in ({}, {"exist_ok": True}, {"resume": True}):
        with MDSWriter(columns=COLUMNS, out=tmp_path / "x", exist_ok=True) as writing:
            fill(writing, range(15))
            with pytest.raises(ShardOwnedError, match=f"process {os.getpid()} on host {os.uname().nodename}"):
                write(tmp_path / "x", range(3), **options)
            fill(writing, range(15, 25))
        assert ids_in(tmp_path / "x") == list(range(25))


def test_a_stopped_writer_is_alive_and_a_dead_ones_place_is_taken(tmp_path):
    def stop():
        with MDSWriter(columns=COLUMNS, out=tmp_path) as writing:
            fill(writing, range(15))
            os.kill(os.getpid(), signal.SIGSTOP)

    process, _ = in_child(stop)
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    with pytest.raises(ShardOwnedError, match=f"process {process.pid} "):
        write(tmp_path, range(3))
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    write(tmp_path, range(3))
    assert ids_in(tmp_path) == [0, 1, 2]
    assert everything_in(tmp_path) == ["index.json", "shard.00000.mds"]


@EACH_FORMAT
def test_a_writer_whose_place_was_taken_commits_nothing(writer, tmp_path):
    """As after a day without a network, when the lease is expired."""
    store = LocalStore(tmp_path, fsync=False)
    writing = writer(columns=COLUMNS, out=store)
    fill(writing, range(5))
    for info in store.list(withdrawal.LEASES):
        store.delete(info.path)
    write(store, range(100, 103), writer=writer)
    with pytest.raises(LeaseLostError):
        writing.finish()
    assert ids_in(store) == [100, 101, 102]
    assert not (tmp_path / ".headrace").exists()


@pytest.mark.parametrize("begun", [0, 5, 15])
@EACH_FORMAT
def test_a_forked_child_does_not_touch_its_parents_writer(writer, begun, tmp_path):
    with writer(columns=COLUMNS, out=tmp_path, max_workers=1) as writing:
        fill(writing, range(begun))

        def child():
            uses = [lambda: writing.write(sample(begun)), writing.flush_shard, writing.finish]
            for use in (*uses, lambda: fill(writing, range(1000), 1)):
                with pytest.raises(ClosedError, match="belongs to the process that opened it"):
                    use()
            with pytest.raises(OwnError), writing:
                raise OwnError
            writing.cancel_future_jobs()
            writing.__del__()

        process, receiver = in_child(child)
        assert receiver.poll(30), "the child hangs"
        assert receiver.recv() == ("returned", None)
        process.join()
        fill(writing, range(begun, 25))
    assert ids_in(tmp_path) == list(range(25))
    assert not (tmp_path / ".headrace").exists()


def test_a_writer_that_is_dropped_as_its_threads_store_files_waits_for_nothing_and_then_lets_the_next_one_in(
    tmp_path, monkeypatch
):
    """Waiting in a finalizer can be for ever: it may run in a thread that holds what another one waits for."""
    monkeypatch.setattr(ownership, "_LEASE_TRIES", 3)
    begun, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def block(call):
        begun.set()
        assert go_on.wait(20)
        done.set()

    rules = [Rule(Run(block), "put", "shard.00000.mds", times=1)]
    writing = MDSWriter(columns=COLUMNS, out=FaultStore(LocalStore(tmp_path, fsync=False), rules), max_workers=1)
    fill(writing, range(25))
    assert begun.wait(20)
    del writing
    assert not done.is_set()
    with pytest.raises(ShardOwnedError, match=f"process {os.getpid()} "):  # a thread may still store a file
        write(tmp_path, range(3))
    monkeypatch.setattr(ownership, "_LEASE_TRIES", 300)
    go_on.set()
    write(tmp_path, range(3))
    assert done.is_set()
    assert ids_in(tmp_path) == [0, 1, 2]
    assert everything_in(tmp_path) == ["index.json", "shard.00000.mds"]


def test_a_dropped_writer_may_be_collected_by_one_of_its_own_threads(tmp_path, monkeypatch):
    monkeypatch.setattr(ownership, "_LEASE_TRIES", 3)
    dropped, collected = threading.Event(), threading.Event()

    def collect(call):
        assert dropped.wait(20)
        gc.collect()
        with pytest.raises(ShardOwnedError):
            write(tmp_path, range(3))
        collected.set()

    gc.collect()
    gc.disable()  # the thread below is to be the one
    try:
        store = FaultStore(LocalStore(tmp_path, fsync=False), [Rule(Run(collect), "put", "shard.00000.mds", times=1)])
        writing = [MDSWriter(columns=COLUMNS, out=store, max_workers=1)]
        writing.append(writing)
        gone = weakref.ref(writing[0])
        fill(writing[0], range(5))
        writing[0].flush_shard()
        del writing
        dropped.set()
        assert collected.wait(20)
    finally:
        gc.enable()
    assert gone() is None
    assert ids_in(tmp_path) is None
    monkeypatch.setattr(ownership, "_LEASE_TRIES", 300)
    write(tmp_path, range(3))
    assert ids_in(tmp_path) == [0, 1, 2]


def test_a_failed_writer_that_a_traceback_keeps_lets_the_next_one_in(tmp_path):
    def refuse(call):  # a new error each time, so that nothing here holds the one that comes
        raise StoreError("no")

    store = FaultStore(LocalStore(tmp_path, fsync=False), [Rule(Run(refuse), "put", "shard.*")])
    writing = MDSWriter(columns=COLUMNS, out=store, retry=0)
    with pytest.raises(OutputError, match=r"shard\.0000"):
        fill(writing, range(1000))
    del writing
    write(tmp_path, range(3))
    assert ids_in(tmp_path) == [0, 1, 2]


USES = {
    "a write": lambda writing: writing.write(sample(3)),
    "a write that ends a shard": lambda writing: writing.write({"id": 3, "text": "x" * 300}),
    "flush_shard": lambda writing: writing.flush_shard(),
    "finish": lambda writing: writing.finish(),
}


@pytest.mark.parametrize("use", USES)
@EACH_FORMAT
def test_an_interrupt_at_any_line_leaves_the_sample_whole_or_out_or_the_writer_refuses(writer, use):
    """The user catches it, writes one more, and finishes: what is committed is what was written, in order."""
    outcomes = set()
    for nth in range(1, 2000):
        store = MemoryStore()
        writing = writer(columns=COLUMNS, out=store, size_limit=200, max_workers=1)
        for number in range(3):
            writing.write(sample(number))
        came = interrupted(lambda writing=writing: USES[use](writing), nth)
        refused = False
        try:
            if use != "finish":
                writing.write(sample(4))
            writing.finish()
        except (WriteError, ClosedError):
            refused = True
        found = ids_or_none(store)
        if use == "finish":
            assert found in (None, [0, 1, 2])
            assert refused == (found is None) or (refused and found is not None and came)
        elif refused:
            assert found is None
        else:
            assert found in ([0, 1, 2, 4], [0, 1, 2, 3, 4])
        outcomes.add("refused" if refused else str(found))
        del writing
        if not came:
            assert not refused
            break
    assert not came
    assert len(outcomes) > 1


def ids_or_none(store):
    try:
        dataset = SampleDataset(store)
        found = [one["id"] for one in dataset[:]]
    except HeadraceError:
        return None
    assert dataset.verify() == []
    return found


def test_after_an_interrupted_finish_another_writer_of_the_process_gets_in(tmp_path):
    interrupt = Rule(Refuse(KeyboardInterrupt()), "put", "index.json", times=1)
    store = FaultStore(LocalStore(tmp_path, fsync=False), [interrupt])
    with pytest.raises(KeyboardInterrupt), MDSWriter(columns=COLUMNS, out=store) as writing:
        fill(writing, range(15))
    with pytest.raises(ClosedError, match="interrupted"):
        writing.finish()
    assert ids_in(tmp_path) is None
    write(store, range(3))
    assert ids_in(tmp_path) == [0, 1, 2]


@pytest.mark.parametrize("what", ["write", "finish"])
def test_ctrl_c_while_a_writer_waits_for_a_slow_store_ends_it_soon(what, tmp_path):
    """A real signal, as the main thread waits for a thread."""

    def main():
        def interrupt(call):
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)

        signal.signal(signal.SIGINT, signal.default_int_handler)
        store = FaultStore(LocalStore(tmp_path / "out"), [Rule(Run(interrupt), "put", "shard.00000.mds", times=1)])
        with MDSWriter(columns=COLUMNS, out=store, max_workers=1) as writing:
            fill(writing, range(1000 if what == "write" else 10))

    process, receiver = in_child(main)
    assert receiver.poll(30), "it hangs"
    kind, error = receiver.recv()
    process.join()
    assert kind == "raised"
    assert isinstance(error, KeyboardInterrupt)
    assert ids_in(tmp_path / "out") is None
    write(tmp_path / "out", range(3))
    assert ids_in(tmp_path / "out") == [0, 1, 2]
