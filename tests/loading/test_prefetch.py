"""Threads that make batches ahead: in order, bounded, and never left behind."""

import collections
import contextlib
import gc
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest

from headrace import PackedDataset, StatefulDataLoader, WithLengths
from headrace.errors import WorkerError
from headrace.loading.prefetch import OrderedPool
from loading.samples import Broken, Counting, Slow, drain, epoch, hurried, loader_threads, make


def steps(count):
    return iter([np.array([step]) for step in range(count)])


def slowly(items):
    threading.Event().wait(0.001)
    return int(items[0])


def pool(make_batch=slowly, count=20, **options):
    return OrderedPool(steps(count), make_batch, **{"num_threads": 2, "depth": 4, **options})


@pytest.fixture(autouse=True)
def nobody_stays():
    yield
    assert loader_threads() == []


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_batches_come_in_order_however_long_each_takes(num_threads):
    def uneven(items):
        threading.Event().wait(0.002 * (items[0] % 3))
        return int(items[0])

    assert list(pool(uneven, num_threads=num_threads, depth=6)) == list(range(20))


def test_cheap_batches_are_made_by_the_consumer_and_costly_ones_by_threads():
    names = []

    def slow_in_the_middle(items):
        names.append(threading.current_thread().name)
        if 50 <= items[0] < 60:
            threading.Event().wait(0.003)
        return int(items[0])

    assert list(pool(slow_in_the_middle, 100)) == list(range(100))
    main = threading.main_thread().name
    assert names[0].startswith("headrace-loader")  # nothing is known of them yet
    assert names[45] == main
    assert names[55].startswith("headrace-loader")
    assert names[99] == main


def test_no_more_than_depth_batches_are_made_ahead():
    made = []

    def counted(items):
        made.append(int(items[0]))
        return slowly(items)

    batches = pool(counted, depth=3)
    for got in range(6):
        assert next(batches) == got
        time.sleep(0.03)
        assert len(made) <= got + 1 + 3
    assert len(made) == 6 + 3
    batches.close()


def test_no_more_than_prefetch_bytes_are_made_ahead_but_one_batch_always():
    waiting = []

    def sized(items):
        waiting.append(int(items[0]))
        slowly(items)
        return bytes(1000)

    for limit, ahead in ((3500, 3), (1000, 1), (10, 1)):
        waiting.clear()
        batches = pool(sized, depth=8, prefetch_bytes=limit, size_of=len)
        next(batches)
        time.sleep(0.05)
        assert len(waiting) == 1 + ahead
        batches.close()


@pytest.mark.parametrize("limit", [1, 5_000, 10**9])
def test_a_loader_that_may_make_few_bytes_ahead_gives_the_same_batches(limit):
    expected = epoch(make(Slow(40), local_batch_size=4))
    assert epoch(make(Slow(40), local_batch_size=4, num_workers=2, prefetch=5, prefetch_bytes=limit)) == expected


def test_an_error_comes_where_its_batch_would_have_and_ends_the_iterator():
    def fails_at_five(items):
        slowly(items)
        if items[0] == 5:
            raise KeyError("five")
        return int(items[0])

    batches, got = pool(fails_at_five), []
    with pytest.raises(KeyError, match="five"):
        collections.deque(map(got.append, batches))
    assert got == [0, 1, 2, 3, 4]
    assert list(batches) == []


def test_an_error_in_the_order_itself_comes_after_the_batches_before_it():
    def broken_items():
        yield from steps(3)
        raise OSError("no more")

    batches = OrderedPool(broken_items(), slowly, num_threads=2, depth=8)
    assert [next(batches) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OSError, match="no more"):
        next(batches)


def test_closing_waits_for_the_threads_and_drops_what_was_made():
    begun, ended = [], []

    def tracked(items):
        begun.append(int(items[0]))
        threading.Event().wait(0.05)
        ended.append(int(items[0]))

    batches = pool(tracked)
    next(batches)
    batches.close()
    assert sorted(begun) == sorted(ended)
    assert loader_threads() == []
    assert list(batches) == []
    batches.close()


def test_batches_that_were_handed_out_are_not_kept_alive():
    class Batch:
        pass

    def tracked(items):
        slowly(items)
        return Batch()

    batches = pool(tracked, depth=1, num_threads=1)
    first = weakref.ref(next(batches))
    second = next(batches)
    gc.collect()
    assert first() is None
    assert second is not None
    batches.close()


def test_a_pool_that_is_dropped_without_closing_ends_its_threads():
    batches = pool()
    next(batches)
    assert loader_threads()
    del batches
    gc.collect()
    assert loader_threads() == []


@pytest.mark.parametrize("how", ["break", "error", "second iter", "close", "end", "drop"])
def test_whatever_ends_a_loop_ends_the_threads_and_the_loader_goes_on(how):
    loader = make(Slow(40), local_batch_size=4, num_workers=3, prefetch=4)
    whole = epoch(make(40, local_batch_size=4))
    if how == "error":
        with contextlib.suppress(RuntimeError):
            for _ in loader:
                raise RuntimeError("in the loop")
    elif how == "end":
        assert epoch(loader) == whole
        assert loader_threads() == []
        loader.set_epoch(0)
    else:
        for _ in loader:
            break
    if how == "second iter":
        iterator = iter(loader)
        next(iterator)
        assert epoch(loader) == whole
    elif how == "drop":
        del loader
        gc.collect()
    else:
        if how == "close":
            loader.close()
            assert loader_threads() == []
        assert epoch(loader) == whole
        loader.close()
    assert loader_threads() == []


def test_a_with_block_leaves_no_thread():
    with make(Slow(40), num_workers=3) as loader:
        next(iter(loader))
        assert loader_threads()
    assert loader_threads() == []


def test_so_many_threads_as_workers_read_and_one_when_there_are_none():
    for options, most in (({"num_workers": 3}, 3), ({"prefetch": 4}, 1)):
        dataset = Counting(60)
        epoch(make(dataset, local_batch_size=2, **options))
        assert 1 <= len(dataset.threads - {threading.main_thread().name}) <= most
        assert len(dataset.read) == 30  # a batch is read once, whole


@pytest.mark.parametrize("workers", [{"num_workers": 2}, {"prefetch": 2}, {}])
def test_an_error_of_a_sample_comes_in_its_step_with_the_numbers_of_its_samples(workers):
    loader = make(Broken(40, 22, "value"), local_batch_size=4, **workers)
    got = []
    with pytest.raises(ValueError, match="bad sample") as failed:
        drain(loader, got)
    assert got == [list(range(4 * step, 4 * step + 4)) for step in range(5)]
    assert failed.value.__notes__ == ["while loading samples 20, 21, 22, 23"]
    assert loader.state_dict()["position"] == 20


def test_a_thread_that_never_returns_is_an_error_in_time_that_names_it_and_its_samples():
    release = threading.Event()

    class Stuck(Slow):
        def __getitems__(self, items):
            if 8 in items:
                release.wait()
            return super().__getitems__(items)

    loader = make(Stuck(40), local_batch_size=4, num_workers=2, timeout_s=0.3)
    got = []

    with pytest.raises(WorkerError, match=r"headrace-loader-\d gave no batch within timeout_s=0.3\n.*8, 9, 10, 11"):
        hurried(3, lambda: drain(loader, got))
    assert len(got) == 2
    hurried(3, loader.close)
    release.set()
    deadline = time.monotonic() + 5
    while loader_threads() and time.monotonic() < deadline:
        time.sleep(0.01)


def test_a_process_with_a_thread_that_never_returns_can_exit():
    script = """
import threading
from loading.samples import Numbers, make
class Stuck(Numbers):
    def __getitems__(self, items):
        threading.Event().wait(0.01 if 0 in items else None)
        return [self[item] for item in items]
loader = make(Stuck(20), num_workers=2)
print(next(iter(loader)))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, env={"PYTHONPATH": "tests"}
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "tensor([0])" in done.stdout


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 1, "parallel_method": "process"}])
def test_an_error_in_packed_rows_names_them_by_window(options):
    documents = WithLengths([np.arange(3)] * 100, np.full(100, 4))
    rows = PackedDataset(documents, 8, window=20)
    with StatefulDataLoader(rows, local_batch_size=4, **options) as loader:
        loader.load_state_dict({**loader.state_dict(), "window": 2, "row": 8, "position": 28})
        batches = iter(loader)
        with pytest.raises((ValueError, WorkerError)) as failed:
            next(batches)
    told = str(failed.value) + "".join(getattr(failed.value, "__notes__", []))
    assert "rows 8, 9 of window 2 in epoch 0, rows 0, 1 of window 3 in epoch 0" in told
