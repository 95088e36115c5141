"""Packs to the device: the same ones, in the same order, however far ahead they are pulled."""

import dataclasses
import gc
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import traceback

import numpy as np
import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader as TorchdataLoader

from headrace import FixedCountMicrobatchPacker, StatefulDataLoader, build_device_pack_stream
from headrace.errors import ClosedError, OptionError, WorkerError
from headrace.loading import MicrobatchPackStream, TokenPack, pack_runs
from interference import interrupted
from loading.pack_streams import NumberedPacks, numbers, pack_threads
from loading.samples import Numbers

DEPTHS = [0, 1, 2, 7]
AHEAD = [1, 2, 7]


def built(depth, inner=None, device="cpu", **options):
    return build_device_pack_stream(NumberedPacks() if inner is None else inner, device, depth, **options)


@pytest.mark.parametrize("depth", DEPTHS)
def test_the_packs_are_those_of_the_stream_pass_after_pass(depth):
    stream = built(depth)
    for number in range(3):
        assert numbers(stream) == [(number, pack) for pack in range(6)]
    assert pack_threads() == []


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_device_stream_is_a_pack_stream_that_says_what_the_inner_one_does(depth):
    stream = built(depth)
    assert isinstance(stream, MicrobatchPackStream)
    assert (stream.total_steps, stream.is_elastic, stream.steps_left) == (60, True, 60)
    packs = iter(stream)
    assert stream.steps_left == 60
    next(packs)
    next(packs)
    assert stream.steps_left == 58  # although the thread is ahead
    assert "NumberedPacks" in repr(stream)


def test_a_stream_that_says_little_is_taken_as_it_is():
    class Plain:
        total_steps = None
        state_dict = load_state_dict = __iter__ = lambda self, *state: iter(())

    stream = build_device_pack_stream(Plain(), "cpu", 1)
    assert (stream.total_steps, stream.is_elastic, stream.steps_left) == (None, False, None)
    stream.close()


@pytest.mark.parametrize("depth", DEPTHS)
def test_on_the_cpu_a_pack_is_the_very_object_that_was_pulled(depth):
    pack = [{"x": torch.ones(2)}]

    class One(NumberedPacks):
        def __iter__(self):
            return iter([pack])

    (got,) = built(depth, One())
    assert got is pack


@dataclasses.dataclass(frozen=True)
class Batch:
    ids: object
    name: str = "n"


@pytest.mark.parametrize("depth", DEPTHS)
def test_every_tensor_of_a_pack_goes_to_the_device_and_the_rest_stays(depth):
    given = [Batch({"a": [torch.ones(2, dtype=torch.int16)]}), (torch.zeros(3), None, 5)]

    class Packs(NumberedPacks):
        def __iter__(self):
            yield TokenPack(given, np.array([4, 8]))
            yield tuple(given)
            yield range(0)

    with built(depth, Packs(), "meta") as stream:
        first, second, third = stream
    for pack, kind in ((first, TokenPack), (second, tuple)):
        assert type(pack) is kind
        batch, (zeros, none, five) = pack
        assert (batch.name, none, five) == ("n", None, 5)
        ids = batch.ids["a"][0]
        assert (ids.device.type, ids.dtype, ids.shape, zeros.device.type) == ("meta", torch.int16, (2,), "meta")
    assert first.num_targets.tolist() == [4, 8]
    assert third == []
    assert given[0].ids["a"][0].device.type == "cpu"


@pytest.mark.parametrize("depth", AHEAD)
def test_the_thread_is_at_most_so_many_packs_ahead(depth):
    inner = NumberedPacks(size=100)
    stream = built(depth, inner)
    packs = iter(stream)
    for handed_out in range(1, 5):
        next(packs)
        while inner.pulls < handed_out + depth:
            assert inner.pulled.acquire(timeout=10)
        threading.Event().wait(0.02)  # for what it may do wrong
        assert inner.pulls == handed_out + depth
        assert stream.state_dict() == {"place": [0, handed_out]}
    assert inner.threads == {"headrace-packs"}


def test_without_prefetching_there_is_no_thread():
    inner = NumberedPacks()
    numbers(built(0, inner))
    assert inner.threads == {threading.current_thread().name}


@pytest.mark.parametrize("depth", DEPTHS)
def test_nothing_is_pulled_before_the_first_pack_is_asked_for(depth):
    inner = NumberedPacks()
    inner.load_state_dict({"place": [0, 2]})
    stream = built(depth, inner)
    packs = iter(stream)
    assert pack_threads() == []
    assert inner.threads == set()
    assert stream.state_dict() == {"place": [0, 2]}
    assert stream.metrics().elapsed_s == 0
    packs.close()


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("later", DEPTHS)
def test_a_state_goes_on_behind_the_last_pack_handed_out_at_any_prefetching(depth, later):
    reference = [(number, pack) for number in range(2) for pack in range(6)]
    for taken in range(7):
        stream = built(depth)
        packs = iter(stream)
        for _ in range(taken):
            next(packs)
        state = stream.state_dict()
        if taken == 3:
            next(packs)  # what was given does not change
        fresh = built(later)
        fresh.load_state_dict(state)
        assert fresh.state_dict() == state
        assert numbers(fresh) + numbers(fresh) == (reference[taken:] if taken < 6 else reference[6:])
        packs.close()


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_pass_that_is_over_is_behind_its_end(depth):
    stream = built(depth)
    packs = iter(stream)
    for _ in range(6):
        next(packs)
    assert stream.state_dict() == {"place": [0, 6]}
    assert next(packs, None) is None
    assert stream.state_dict() == {"place": [1, 0]}
    assert next(packs, None) is None
    assert pack_threads() == []


def failing_collate():
    raise ZeroDivisionError("bad sample")


@pytest.mark.parametrize("depth", DEPTHS)
def test_an_error_comes_behind_the_packs_before_it_with_its_traceback(depth):
    class Failing(NumberedPacks):
        def _packs(self):
            yield [1]
            yield [2]
            failing_collate()

    packs = iter(built(depth, Failing()))
    assert [next(packs), next(packs)] == [[1], [2]]
    with pytest.raises(ZeroDivisionError, match="bad sample") as caught:
        next(packs)
    assert "failing_collate" in [frame.name for frame in traceback.extract_tb(caught.tb)]
    assert pack_threads() == []
    with pytest.raises(ClosedError, match="an error ended it"):
        next(packs)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("place", [0, 1, 4])
def test_after_an_error_iter_goes_on_behind_the_last_pack(depth, place):
    stream = built(depth, NumberedPacks(errors={place: OSError("disk")}))
    packs, got = iter(stream), []
    with pytest.raises(OSError, match="disk"):
        got.extend(packs)  # list.extend keeps nothing of what came before an error
    packs.close()
    state = stream.state_dict()
    assert state == {"place": [0, place]}
    assert numbers(stream) == [(0, pack) for pack in range(place, 6)]


@pytest.mark.parametrize("depth", DEPTHS)
def test_an_error_of_the_first_step_leaves_the_stream_at_its_beginning(depth):
    class Shy(NumberedPacks):
        shy = True

        def __iter__(self):
            if self.shy:
                self.shy = False
                raise FileNotFoundError("not mounted yet")
            return super().__iter__()

    stream = built(depth, Shy())
    with pytest.raises(FileNotFoundError, match="mounted"):
        next(iter(stream))
    assert stream.state_dict() == {"place": [0, 0]}
    assert len(numbers(stream)) == 6


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_loop_that_breaks_off_leaves_no_thread_and_iter_goes_on(depth):
    inner = NumberedPacks()
    stream = built(depth, inner)
    for pack in stream:
        if numbers([pack]) == [(0, 2)]:
            break
    assert pack_threads() == []
    assert inner.open_iterators == 0
    assert stream.state_dict() == {"place": [0, 3]}
    assert numbers(stream) == [(0, 3), (0, 4), (0, 5)]


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_loop_whose_body_fails_leaves_no_thread_once_the_stream_is_closed(depth):
    def work():
        with built(depth) as stream:
            for _ in stream:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert pack_threads() == []


@pytest.mark.parametrize("depth", DEPTHS)
def test_an_iterator_in_a_cycle_ends_its_thread_when_it_is_collected(depth):
    stream = built(depth)
    packs = iter(stream)
    next(packs)
    cycle = [packs]
    cycle.append(cycle)
    del packs, cycle
    gc.collect()
    assert pack_threads() == []


@pytest.mark.parametrize("depth", DEPTHS)
def test_closing_closes_the_inner_stream_too_and_iter_goes_on(depth):
    inner = NumberedPacks()
    stream = built(depth, inner)
    with stream:
        packs = iter(stream)
        next(packs)
    stream.close()
    assert (inner.closed, inner.open_iterators, pack_threads()) == (2, 0, [])
    with pytest.raises(ClosedError, match="the stream was closed"):
        next(packs)
    assert stream.state_dict() == {"place": [0, 1]}
    assert numbers(stream) == [(0, pack) for pack in range(1, 6)]


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("how", ["iter", "load", "close"])
def test_an_iterator_that_was_overtaken_says_so(depth, how):
    stream = built(depth)
    packs = iter(stream)
    next(packs)
    match how:
        case "iter":
            newer = iter(stream)
            said = "a newer one took its place"
            assert numbers([next(newer)]) == [(0, 1)]
        case "load":
            stream.load_state_dict({"place": [3, 3]})
            said = "load_state_dict.. chose another position"
        case "close":
            packs.close()
            packs.close()
            said = "it was closed"
    with pytest.raises(ClosedError, match=said):
        next(packs)
    if how == "load":
        assert numbers(stream) == [(3, 3), (3, 4), (3, 5)]


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_state_that_is_refused_changes_nothing(depth):
    stream = built(depth)
    packs = iter(stream)
    next(packs)
    with pytest.raises(ValueError, match="pack 7 of 6"):
        stream.load_state_dict({"place": [0, 7]})
    assert stream.state_dict() == {"place": [0, 1]}
    assert numbers(stream) == [(0, pack) for pack in range(1, 6)]


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_state_is_the_callers_to_change(depth):
    stream = built(depth)
    packs = iter(stream)
    next(packs)
    stream.state_dict().clear()
    assert stream.state_dict() == {"place": [0, 1]}
    packs.close()


@pytest.mark.parametrize("depth", [0, 1])
def test_what_is_no_pack_is_refused(depth):
    class Microbatches(NumberedPacks):
        def __iter__(self):
            return iter([{"x": torch.ones(2)}])

    with pytest.raises(TypeError, match="a pack is a sequence of microbatches, not a dict"):
        next(iter(built(depth, Microbatches())))


def test_settings_that_mean_nothing_are_refused():
    with pytest.raises(OptionError, match="prefetch_factor=-1 is not valid; expected at least 0"):
        built(-1)
    for wrong in (1.5, "2", None, True):
        with pytest.raises(TypeError, match="prefetch_factor must be an integer"):
            built(wrong)
    with pytest.raises(TypeError, match=r"list is no stream of packs: it has no state_dict\(\)"):
        build_device_pack_stream([], "cpu", 0)
    if not torch.cuda.is_available():
        with pytest.raises(OptionError, match="torch sees no CUDA device"):
            built(0, device="cuda")


@pytest.mark.parametrize("depth", [0, 1])
def test_a_counting_function_cannot_end_the_stream(depth):
    def count(microbatch):
        raise StopIteration

    with pytest.raises(RuntimeError, match="count_tokens raised StopIteration"):
        next(iter(built(depth, count_tokens=count)))


STUCK = """
import sys, threading
import torch
from headrace import build_device_pack_stream

class Stuck:
    total_steps = None
    def __iter__(self):
        yield [torch.ones(1)]
        yield [torch.ones(1)]
        if sys.argv[1] == "stuck":
            threading.Event().wait()
        yield from ([torch.ones(1)] for _ in range(1000))
    def state_dict(self):
        return {}
    def load_state_dict(self, state):
        pass

stream = build_device_pack_stream(Stuck(), "cpu", 3)
packs = iter(stream)
next(packs)
if sys.argv[2] == "error":
    raise SystemExit("failed")
"""


@pytest.mark.parametrize(
    ("how", "end"),
    [
        ("idle", "normal"),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("stuck", "error"), ("stuck", "normal"))),
    ],
)
def test_a_process_that_closes_nothing_exits(how, end):
    done = subprocess.run([sys.executable, "-c", STUCK, how, end], capture_output=True, text=True, timeout=60)
    expected = (1, "failed\n") if end == "error" else (0, "")
    assert (done.returncode, done.stderr) == expected


def test_a_thread_that_is_stuck_is_left_behind_with_a_warning(monkeypatch, caplog):
    monkeypatch.setattr(pack_runs, "CLOSE_S", 0.05)
    gate, at_gate = threading.Event(), threading.Event()

    class Gated(NumberedPacks):
        def _packs(self):
            for pack in super()._packs():
                yield pack
                if self.pulls == 2:
                    at_gate.set()
                    gate.wait()

    inner = Gated()
    stream = built(3, inner)
    packs = iter(stream)
    next(packs)
    assert at_gate.wait(10)
    with caplog.at_level(logging.WARNING):
        stream.close()
    assert "did not come back" in caplog.text
    assert inner.closed == 0  # its iterator is at work
    assert stream.state_dict() == {"place": [0, 1]}
    for use in (lambda: iter(stream), lambda: stream.load_state_dict({"place": [0, 0]})):
        with pytest.raises(ClosedError, match="still waiting for a pack of Gated"):
            use()
    (thread,) = pack_threads()
    gate.set()
    thread.join(10)
    assert numbers(stream) == [(0, pack) for pack in range(1, 6)]


@pytest.mark.parametrize("depth", [0, 2])
def test_ctrl_c_at_any_line_loses_no_pack(depth):
    """But for a pack that is on its way from __next__ to who called it, which nobody can call back."""
    nth, finished = 0, False
    while not finished:
        nth += 1
        stream = built(depth)
        packs = iter(stream)
        first = next(packs)
        got = [first]
        finished = not interrupted(lambda: got.append(next(packs)), nth)  # noqa: B023
        packs = None
        assert numbers(got) + numbers(stream) == [(0, pack) for pack in range(6)], nth
        assert pack_threads() == []
    assert nth > 10


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("what", ["close", "iter", "load"])
def test_ctrl_c_in_any_other_call_loses_no_pack_either(depth, what):
    nth, finished = 0, False
    while not finished:
        nth += 1
        stream = built(depth)
        packs = iter(stream)
        got = [next(packs), next(packs)]
        match what:
            case "close":
                finished = not interrupted(stream.close, nth)
            case "iter":
                newer = []  # one that is dropped at once ends in a finalizer, where nothing is raised
                finished = not interrupted(lambda: newer.append(iter(stream)), nth)  # noqa: B023
            case "load":
                state = stream.state_dict()
                finished = not interrupted(lambda: stream.load_state_dict(state), nth)  # noqa: B023
        assert numbers(got) + numbers(stream) == [(0, pack) for pack in range(6)], nth
        assert pack_threads() == []
    assert nth > 5


@pytest.mark.parametrize("depth", [0, 2])
def test_an_inner_stream_that_cannot_be_closed_is_no_reason_to_wait_for_ever(depth, caplog):
    class Clinging(NumberedPacks):
        def _packs(self):
            try:
                yield from super()._packs()
            finally:
                raise OSError("busy")

    stream = built(depth, Clinging())
    packs = iter(stream)
    next(packs)
    if depth:
        packs.close()
        assert "closing the stream of packs failed" in caplog.text
    else:
        with pytest.raises(OSError, match="busy"):
            packs.close()
    assert stream.state_dict() == {"place": [0, 1]}
    assert pack_threads() == []


def collated(samples):
    return {"id": torch.tensor([int(sample["id"]) for sample in samples])}


def loader_of(workers, **options):
    return StatefulDataLoader(
        Numbers(96), collated, rank=0, world_size=1, local_batch_size=4, num_workers=workers, device="cpu", **options
    )


def packed(depth, workers=0, **options):
    loader = loader_of(workers, **options)
    return build_device_pack_stream(FixedCountMicrobatchPacker(loader, 3), "cpu", depth), loader


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("workers", [{}, {"workers": 2}, {"workers": 2, "parallel_method": "process"}])
def test_over_headraces_loader_every_state_goes_on_exactly(depth, workers):
    def ids(stream):
        return [[microbatch["id"].tolist() for microbatch in pack] for pack in stream]

    stream, loader = packed(depth, **workers)
    with loader:
        reference = ids(stream)
        assert len(reference) == stream.total_steps == 8
        for taken in (0, 1, 5, 8) if depth and not workers else (3,):
            loader.load_state_dict(packed(0)[1].state_dict())
            stream.load_state_dict(packed(0)[0].state_dict())
            packs = iter(stream)
            begin = [[microbatch["id"].tolist() for microbatch in next(packs)] for _ in range(taken)]
            state = stream.state_dict()
            packs.close()
            fresh, other = packed(2 - depth)
            with other:
                fresh.load_state_dict(state)
                assert fresh.is_elastic == getattr(other, "is_elastic", False)
                rest = ids(fresh)
            assert begin + rest == reference if taken < 8 else rest == ids(stream)
    assert pack_threads() == []
    assert multiprocessing.active_children() == []


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata's own
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("depth", [0, 3])
def test_over_torchdatas_loader_every_state_goes_on_exactly(depth, workers, shuffle):
    def stream(depth):
        loader = TorchdataLoader(
            range(48), 2, shuffle, num_workers=workers, generator=torch.Generator().manual_seed(1), drop_last=True
        )
        return build_device_pack_stream(FixedCountMicrobatchPacker(loader, 3), "cpu", depth)

    def ids(packs):
        return [[microbatch.tolist() for microbatch in pack] for pack in packs]

    reference = ids(stream(0))
    for taken in (0, 1, 7):
        with stream(depth) as first, stream(2) as fresh:
            packs = iter(first)
            got = ids(next(packs) for _ in range(taken))
            state = first.state_dict()
            packs.close()
            assert got + ids(first) == reference
            fresh.load_state_dict(state)
            assert got + ids(fresh) == reference
    assert multiprocessing.active_children() == []


class Dying(Numbers):
    def __getitem__(self, item):
        if item == 40:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(item)


@pytest.mark.slow  # torch looks after its workers every five seconds
def test_the_death_of_a_worker_is_an_error_at_the_consumer_and_no_interruption():
    loader = StatefulDataLoader(
        Dying(96),
        collated,
        rank=0,
        world_size=1,
        local_batch_size=4,
        num_workers=2,
        parallel_method="process",
        device="cpu",
    )
    stream = build_device_pack_stream(FixedCountMicrobatchPacker(loader, 3), "cpu", 2)
    with loader, stream:
        got = []
        with pytest.raises(WorkerError, match="died"):
            got.extend(pack for pack in stream)
        # Item 40 is in pack 3. The batch before it of the same worker may still have been on its way, and dies too.
        assert len(got) in (2, 3)
    assert pack_threads() == []
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("depth", DEPTHS)
def test_pulling_packs_draws_nothing_from_torchs_generator(depth):
    torch.manual_seed(3)
    expected = torch.rand(3).tolist()
    torch.manual_seed(3)
    stream, loader = packed(depth)
    with loader, stream:
        list(stream)
    assert torch.rand(3).tolist() == expected
