"""Worker processes: every start method, and workers that raise, die or never return."""

import contextlib
import gc
import itertools
import multiprocessing
import os
import signal
import sys
import threading
import time
import weakref

import numpy as np
import pytest
from torch.utils.data import dataloader as torch_dataloader

from headrace import StreamNumpyFormat, StreamStorage, stack
from headrace.errors import WorkerError
from headrace.loading import workers
from loading.samples import Arrays, Broken, CrashesAtExit, Numbers, drain, epoch, hurried, make
from preparation.processes import alive, start

METHODS = ["fork", "spawn", "forkserver"]


def by_processes(dataset, method="fork", num_workers=2, **options):
    return make(
        dataset,
        num_workers=num_workers,
        parallel_method="process",
        multiprocessing_context=method,
        **{"local_batch_size": 4, **options},
    )


@pytest.fixture(autouse=True)
def nobody_stays():
    yield
    assert multiprocessing.active_children() == []


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    storage = StreamStorage(tmp_path_factory.mktemp("tokens"), StreamNumpyFormat([("tokens", "<u2")]))
    with storage.sync_writer() as writer:
        for shard in range(3):
            writer.append(shard, {"tokens": np.arange(96) + 96 * shard})
    return storage


def used(dataset, how):
    """The dataset after it was used here, so that handles of this process are open in it."""
    match how:
        case "read":
            dataset[0]
        case "len":
            len(dataset)
        case "epoch":
            list(make(dataset))
    return dataset


def check_cell(storage, method, num_workers, before):
    expected = [batch["tokens"].tolist() for batch in make(storage.dataset(8), local_batch_size=4, shuffle=True)]
    loader = by_processes(used(storage.dataset(8), before), method, num_workers, shuffle=True)
    with loader:
        iterator = iter(loader)
        first = hurried(10, lambda: next(iterator))
        assert [first["tokens"].tolist(), *(batch["tokens"].tolist() for batch in iterator)] == expected


# A process that starts as spawn does imports torch, which takes seconds; the quick run has one of them.
QUICK = [*itertools.product(["fork"], [0, 1, 2], ["nothing", "read", "len", "epoch"]), ("spawn", 1, "epoch")]
GRID = [*itertools.product(METHODS, [1, 2], ["nothing", "read", "len", "epoch"])]


@pytest.mark.parametrize(("method", "num_workers", "before"), QUICK)
def test_every_start_method_gives_the_same_data_whatever_was_used_before(
    storage, busy_threads, method, num_workers, before
):
    check_cell(storage, method, num_workers, before)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "num_workers", "before"), [cell for cell in GRID if cell not in QUICK])
def test_every_start_method_gives_the_same_data_in_the_rest_of_the_grid(
    storage, busy_threads, method, num_workers, before
):
    check_cell(storage, method, num_workers, before)


@pytest.mark.parametrize("keep", [False, True])
def test_workers_are_kept_from_epoch_to_epoch_only_where_asked(keep):
    loader = by_processes(Numbers(16), persistent_workers=keep)
    expected = epoch(make(16, local_batch_size=4))
    seen = []
    for _ in range(3):
        iterator = iter(loader)
        first = next(iterator)
        seen.append({child.pid for child in multiprocessing.active_children()})
        assert [first["id"].tolist(), *(batch["id"].tolist() for batch in iterator)] == expected
        assert len(multiprocessing.active_children()) == (2 if keep else 0)
    assert len(seen[0]) == 2
    assert (seen[0] == seen[2]) == keep
    loader.close()


@pytest.mark.parametrize("keep", [False, True])
def test_a_broken_loop_leaves_no_batch_of_its_own_to_the_next(keep):
    loader = by_processes(Numbers(400), persistent_workers=keep, shuffle=True, prefetch=8)
    expected = epoch(make(400, local_batch_size=4, shuffle=True))
    for stop in (1, 7):
        for _, _ in zip(range(stop), loader, strict=False):
            pass
    assert epoch(loader) == expected
    loader.close()


def test_a_rank_without_rows_gets_an_empty_batch_from_workers_too():
    loader = by_processes(Arrays(10), local_batch_size=None, global_batch_size=9, rank=2, world_size=3, drop_last=False)
    last = list(loader)[-1]
    assert (tuple(last["tokens"].shape), last["name"]) == ((0, 5), [])


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize(
    ("how", "kind", "text"),
    [
        ("value", "ValueError", "bad sample"),
        ("two-part", "TwoPartError", "left and right"),
        ("unpicklable", "LocalError", "made here"),
    ],
)
def test_whatever_a_sample_raises_arrives_with_type_text_samples_and_traceback(how, kind, text, keep):
    loader, got = by_processes(Broken(40, 7, how), persistent_workers=keep), []
    with pytest.raises(WorkerError) as failed:
        drain(loader, got)
    message = str(failed.value)
    assert got == [[0, 1, 2, 3]]
    assert message.startswith(f"{kind}: {text}\nwhile loading samples 4, 5, 6, 7\n")
    assert "Traceback (most recent call last)" in message
    assert "in misbehave" in message
    assert loader.state_dict()["position"] == 4
    loader.close()


# torch tells of a death by an exception from its signal handler, which may strike where Python can only print it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("timeout_s", [None, 30])
@pytest.mark.parametrize(("how", "code"), [("kill", -9), ("exit", 3)])
def test_a_worker_that_dies_is_named_with_its_samples(how, code, keep, timeout_s):
    loader = by_processes(Broken(40, 7, how), persistent_workers=keep, timeout_s=timeout_s)
    with pytest.raises(WorkerError) as failed:
        hurried(20, lambda: drain(loader, []))
    message = str(failed.value)
    assert "loader worker 1 (process " in message
    assert f"died (exit code {code})" in message
    assert "while loading samples 4, 5, 6, 7," in message
    assert multiprocessing.active_children() == []
    loader.close()


def test_a_worker_that_dies_is_seen_long_before_the_time_is_out_by_other_threads_too():
    loader, failed = by_processes(Broken(40, 7, "kill"), timeout_s=60), []

    def read():  # torch's signal handler, which tells the main thread at once, does not run here
        with pytest.raises(WorkerError, match=r"loader worker 1 .* died \(exit code -9\)") as error:
            drain(loader, [])
        failed.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join(15)
    assert failed
    loader.close()


@pytest.mark.parametrize("keep", [False, True])
def test_a_worker_that_never_returns_is_named_in_time_and_ended(keep):
    loader, got = by_processes(Broken(40, 7, "sleep"), persistent_workers=keep, timeout_s=0.5), []
    begin = time.perf_counter()
    with pytest.raises(WorkerError, match=r"loader worker 1 \(process \d+\) gave no batch in time: .* timeout_s=0.5"):
        drain(loader, got)
    assert time.perf_counter() - begin < 4
    assert got == [[0, 1, 2, 3]]
    assert multiprocessing.active_children() == []
    loader.close()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("how", ["value", "two-part", "unpicklable", "kill", "sleep"])
def test_failures_are_told_alike_under_the_other_start_methods(method, how):
    loader = by_processes(Broken(40, 7, how), method, timeout_s=30 if how != "sleep" else 8)
    with pytest.raises(WorkerError, match=r"while loading samples 4, 5, 6, 7"):
        drain(loader, [])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("how", ["value", "kill", "sleep"])
def test_after_a_failure_the_loader_goes_on_with_new_workers(how, keep, tmp_path):
    mark = tmp_path / "mended"
    loader = by_processes(Broken(40, 7, how, str(mark)), persistent_workers=keep, timeout_s=2)
    with pytest.raises(WorkerError):
        drain(loader, [])
    mark.touch()
    expected = epoch(make(40, local_batch_size=4))
    assert [epoch(loader), epoch(loader)] == [expected, expected]
    loader.close()


@pytest.mark.parametrize("keep", [False, True])
def test_a_worker_that_crashes_as_it_is_ended_does_not_hide_the_error_that_ended_it(keep):
    loader = by_processes(CrashesAtExit(40, 7, "value"), persistent_workers=keep)
    with pytest.raises(WorkerError, match="ValueError: bad sample"):
        drain(loader, [])
    loader.close()


@pytest.mark.filterwarnings("ignore:Got pickle error")
@pytest.mark.parametrize("breaks_off", [False, True])
def test_a_kept_worker_that_dies_while_nobody_reads_is_replaced(breaks_off):
    loader = by_processes(Numbers(40), persistent_workers=True, timeout_s=20)
    with loader:
        first = list(itertools.islice(loader, 3)) if breaks_off else list(loader)
        assert len(first) == (3 if breaks_off else 10)
        victim, other = multiprocessing.active_children()
        with contextlib.suppress(RuntimeError):  # by which torch tells of the death, wherever the program is then
            victim.kill()
            victim.join()
        begin_s = time.monotonic()
        assert [batch["id"].tolist() for batch in loader] == np.arange(40).reshape(10, 4).tolist()
        assert time.monotonic() - begin_s < 10
        assert not {victim, other} & set(multiprocessing.active_children())


class Pausing(Numbers):
    """Item 4 takes its time."""

    def __init__(self, length, pause_s):
        super().__init__(length)
        self.pause_s = pause_s

    def __getitem__(self, index):
        if index == 4:
            time.sleep(self.pause_s)
        return super().__getitem__(index)


@pytest.mark.parametrize(("pause_s", "timeout_s"), [(0.5, 30), (3600, 0.5)])
def test_a_new_loop_waits_for_what_kept_workers_have_in_hand_as_long_as_for_a_batch(pause_s, timeout_s, monkeypatch):
    monkeypatch.setattr(workers, "_LOOK_S", 0.1)
    loader = by_processes(Pausing(16, pause_s), num_workers=1, persistent_workers=True, timeout_s=timeout_s)
    with loader:
        next(iter(loader))
        if pause_s < timeout_s:
            assert epoch(loader) == epoch(make(16, local_batch_size=4))
        else:
            with pytest.raises(WorkerError, match=r"still at a batch of .* after timeout_s=0.5"):
                next(iter(loader))


def test_an_interruption_of_a_loop_that_waits_for_kept_workers_leaves_the_loader_usable(monkeypatch):
    with by_processes(Pausing(16, 0.3), num_workers=2, persistent_workers=True) as loader:
        next(iter(loader))

        def interrupted(*_):
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(torch_dataloader._MultiProcessingDataLoaderIter, "_get_data", interrupted)
            with pytest.raises(KeyboardInterrupt):
                next(iter(loader))
        assert [epoch(loader), epoch(loader)] == [epoch(make(16, local_batch_size=4))] * 2


def test_a_failure_keeps_nothing_of_its_consumer_alive():
    kept = []

    def consume():
        with by_processes(Broken(40, 7, "kill")) as loader:
            mine = Numbers(1)
            kept.append(weakref.ref(mine))
            try:
                list(loader)
            except WorkerError:
                kept.append("failed")

    gc.disable()
    try:
        consume()
        assert (kept[0](), kept[1]) == (None, "failed")
    finally:
        gc.enable()


class DiesAsking(Numbers):
    """Kills the worker that reads item 7, as if it were just asking torch whether the run is over."""

    def __getitem__(self, index):
        if index == 7:
            frame = sys._getframe()
            while frame.f_code.co_name != "_worker_loop":
                frame = frame.f_back
            lock = getattr(frame.f_locals["done_event"], "_cond", None)
            if lock is not None:
                lock.acquire()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


@pytest.mark.parametrize("keep", [False, True])
def test_a_worker_that_is_killed_as_it_asks_whether_the_run_is_over_keeps_nobody_waiting(keep):
    loader = by_processes(DiesAsking(40), persistent_workers=keep)
    with pytest.raises(WorkerError, match="died"):
        list(loader)


def test_what_cannot_be_sent_to_a_worker_is_refused_with_a_hint():
    loader = by_processes(Numbers(16), "spawn", collate_fn=lambda samples: samples)
    with pytest.raises(WorkerError, match=r"could not be started .*picklable unless the start method is fork"):
        next(iter(loader))


def test_collate_functions_with_a_type_travel(storage):
    import torch

    loader = by_processes(storage.dataset(8), collate_fn=stack(dtype=torch.int64))
    assert {batch["tokens"].dtype for batch in loader} == {torch.int64}


@pytest.mark.parametrize(
    "end",
    [
        "pass",
        *(
            pytest.param(end, marks=pytest.mark.slow)
            for end in ("loader.close()", "raise SystemExit(0)", "list(iterator)", "del loader, iterator")
        ),
    ],
)
def test_a_process_can_exit_at_any_time_and_leaves_no_child(tmp_path, end):
    script = f"""
from loading.samples import Numbers, make
workers = dict(num_workers=2, parallel_method="process", multiprocessing_context="fork")
loaders = [make(Numbers(4000), persistent_workers=keep, **workers) for keep in (False, True)]
for loader in loaders:
    iterator = iter(loader)
    next(iterator)
del loaders
print("ready", flush=True)
{end}
"""
    process = start(tmp_path, script)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "ready\n", "")
    assert alive(process.pid) == []


@pytest.mark.parametrize("how", ["kill", *(pytest.param(how, marks=pytest.mark.slow) for how in ("two-part", "sleep"))])
def test_after_a_worker_failed_the_process_exits_and_leaves_no_child(tmp_path, how):
    script = f"""
from loading.samples import Broken, make
loader = make(
    Broken(40, 7, {how!r}), num_workers=2, parallel_method="process", multiprocessing_context="fork", timeout_s=2,
    persistent_workers=True,
)
for batch in loader:
    pass
"""
    process = start(tmp_path, script)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "WorkerError" in err
    assert alive(process.pid) == []
