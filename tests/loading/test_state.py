"""Saved states: what they count, where they lead, and which are refused."""

import copy
import io
import json
import time

import pytest
import torch

from headrace import ShuffledDataset, StateMismatchError
from headrace.errors import OrderError
from loading.samples import IN_PROCESS, WORKERS, Listed, Numbers, Slow, epoch, flat, make, numbers, take, together


def reference(dataset, size, epochs, **options):
    """The global batches of an uninterrupted run on one rank."""
    loader = make(dataset, local_batch_size=size, **options)
    return [batch for _ in range(epochs) for batch in epoch(loader)]


def as_json(state):
    return json.loads(json.dumps(state))


def by_torch(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


class Job:
    """A loader on each of so many ranks, run side by side; its state is what every rank says."""

    def __init__(self, dataset, size, world_size, state=None, workers="alone", **options):
        self.loaders = [
            make(dataset, rank=r, world_size=world_size, global_batch_size=size, **WORKERS[workers], **options)
            for r in range(world_size)
        ]
        for loader in self.loaders:
            if state is not None:
                loader.load_state_dict(state)

    def run(self, steps):
        return together([take(loader, steps) for loader in self.loaders])

    def state(self):
        states = [loader.state_dict() for loader in self.loaders]
        assert all(state == states[0] for state in states)
        return as_json(states[0])

    def close(self):
        for loader in self.loaders:
            loader.close()


@pytest.mark.parametrize("save", [as_json, by_torch])
@pytest.mark.parametrize("workers", IN_PROCESS)
def test_after_every_batch_of_two_epochs_a_new_loader_continues_exactly(workers, save):
    expected = reference(103, 8, 2, shuffle=True)
    run = Job(Numbers(103), 8, 2, workers=workers, shuffle=True)
    for done in range(len(expected) + 1):
        resumed = Job(Numbers(103), 8, 2, save(run.state()), workers=workers, shuffle=True)
        assert resumed.run(len(expected) - done) == expected[done:]
        resumed.close()
        run = Job(Numbers(103), 8, 2, run.state(), workers=workers, shuffle=True)
        if done < len(expected):
            assert run.run(1) == expected[done : done + 1]
        run.close()


@pytest.mark.parametrize("workers", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_worker_processes_continue_exactly(workers, monkeypatch):
    monkeypatch.setitem(WORKERS, "spawn", {**WORKERS["fork"], "multiprocessing_context": "spawn"})
    expected = reference(103, 8, 2, shuffle=True)
    for done in (0, 1, 11, 12, 13) if workers == "fork" else (11,):
        run = Job(Numbers(103), 8, 2, workers=workers, shuffle=True, persistent_workers=True)
        assert run.run(done) == expected[:done]
        resumed = Job(Numbers(103), 8, 2, run.state(), workers=workers, shuffle=True, persistent_workers=True)
        run.close()
        assert resumed.run(len(expected) - done) == expected[done:]
        resumed.close()


@pytest.mark.parametrize("workers", WORKERS)
def test_a_chain_of_saves_with_nothing_between_two_of_them_changes_nothing(workers):
    expected = reference(103, 8, 1, shuffle=True)
    state, got = None, []
    for steps in (3, 2, 0, 4):
        job = Job(Numbers(103), 8, 2, state, workers=workers, shuffle=True)
        got += job.run(steps)
        state = job.state()
        job.close()
    assert got == expected[:9]


@pytest.mark.parametrize("workers", WORKERS)
def test_the_state_counts_what_the_consumer_got_and_never_what_was_made_ahead(workers):
    loader = make(Slow(103), local_batch_size=4, shuffle=True, **WORKERS[workers])
    assert loader.state_dict()["position"] == 0
    for step, _ in enumerate(loader, 1):
        state = loader.state_dict()
        assert (state["epoch"], state["position"]) == ((0, 4 * step) if step < 25 else (1, 0))
    assert (state["epoch"], state["position"]) == (1, 0)
    loader.close()


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("stop", [63, 64, "exhausted", 66])
def test_around_the_end_of_an_epoch_none_is_skipped_or_repeated(workers, keep, stop):
    expected = reference(512, 8, 4, shuffle=True)
    run = make(512, local_batch_size=8, shuffle=True, persistent_workers=keep, **WORKERS[workers])
    if stop == "exhausted":
        done = len(epoch(run))
    else:
        done = len(take(run, stop))
    state = as_json(run.state_dict())
    assert run.state_dict() == state
    assert (state["epoch"], state["position"]) == (done // 64, done % 64 * 8)
    run.close()
    resumed = make(512, local_batch_size=8, shuffle=True, persistent_workers=keep, **WORKERS[workers])
    resumed.load_state_dict(state)
    got = [epoch(resumed) for _ in range(4 - done // 64)]
    assert [len(batches) for batches in got] == [64 - done % 64] + [64] * (3 - done // 64)
    assert flat(got) == expected[done:]
    resumed.close()


def test_four_then_two_then_eight_ranks_continue_one_run_and_three_are_refused():
    expected = reference(96, 8, 2, shuffle=True)
    state, got = None, []
    for world_size, steps in ((4, 5), (2, 3), (8, 4)):
        job = Job(Numbers(96), 8, world_size, state, shuffle=True)
        got += job.run(steps)
        state = job.state()
    assert got == expected[:12]
    with pytest.raises(OrderError, match="global_batch_size=8 is not a multiple of world_size=3; 6 and 9"):
        Job(Numbers(96), 8, 3, state, shuffle=True)
    # Another global batch goes on from the position, with three ranks too.
    job = Job(Numbers(96), 12, 3, state, shuffle=True)
    assert flat(job.run(8)) == flat(expected[12:])


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("workers", WORKERS)
def test_a_larger_global_batch_than_the_rest_of_the_epoch_drops_it_or_serves_it_by_drop_last(drop_last, workers):
    batches = reference(100, 10, 2, shuffle=True)
    run = make(100, local_batch_size=10, shuffle=True, drop_last=drop_last)
    take(run, 9)
    larger = make(100, local_batch_size=40, shuffle=True, drop_last=drop_last, **WORKERS[workers])
    larger.load_state_dict(run.state_dict())
    if not drop_last:
        assert epoch(larger) == batches[9:10]
    assert flat(epoch(larger))[:80] == flat(batches[10:18])
    assert larger.state_dict()["epoch"] == 2
    larger.close()


@pytest.mark.parametrize("workers", WORKERS)
def test_loading_while_an_iterator_is_active_takes_effect(workers):
    expected = reference(40, 4, 2, shuffle=True)
    loader = make(40, local_batch_size=4, shuffle=True, **WORKERS[workers])
    take(loader, 7)
    later = loader.state_dict()
    iterator = iter(loader)
    assert numbers(next(iterator)) == expected[0]
    loader.load_state_dict(later)
    assert loader.state_dict() == later
    assert epoch(loader) == expected[7:10]
    assert epoch(loader) == expected[10:]
    loader.close()


@pytest.mark.parametrize("asked", [1, 3])
def test_an_iterator_that_gave_nothing_yet_does_not_use_up_the_position(asked):
    run = make(40, local_batch_size=4)
    take(run, 7)
    loader = make(40, local_batch_size=4)
    loader.load_state_dict(run.state_dict())
    for _ in range(asked):
        iter(loader)
        assert loader.state_dict() == run.state_dict()
    assert epoch(loader) == [[28, 29, 30, 31], [32, 33, 34, 35], [36, 37, 38, 39]]


def test_a_state_is_used_once_and_then_whole_epochs_follow():
    expected = reference(40, 4, 3, shuffle=True)
    loader = make(40, local_batch_size=4, shuffle=True)
    take(loader, 7)
    state = loader.state_dict()
    loader.load_state_dict(state)
    take(loader, 1)
    assert epoch(loader) == expected[:10]  # broken off: the epoch starts over, not the rest of it
    assert epoch(loader) == expected[10:20]


def test_a_closed_loader_still_says_where_it_was():
    with make(40, local_batch_size=4) as loader:
        take(loader, 7)
    assert loader.state_dict()["position"] == 28
    assert len(epoch(loader)) == 10


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"dataset": Numbers(50)}, "num_samples"),
        ({"dataset": list(range(100))}, "data"),
        ({"shuffle_seed": 2}, "seed"),
        ({"shuffle": False}, "shuffle"),
        ({"drop_last": False}, "drop_last"),
    ],
)
def test_a_state_of_other_data_or_settings_is_refused_by_the_name_of_what_differs(change, field):
    settings = {"dataset": Numbers(100), "shuffle": True, "shuffle_seed": 1, "local_batch_size": 5}
    saved = make(**settings)
    take(saved, 5)
    loader = make(**{**settings, **change})
    take(loader, 2)
    before = loader.state_dict()
    with pytest.raises(StateMismatchError) as refused:
        loader.load_state_dict(saved.state_dict())
    assert field in refused.value.differences
    assert f"{field}: saved " in str(refused.value)
    assert loader.state_dict() == before


@pytest.mark.parametrize(
    "damage",
    [
        {"version": 2},
        {"version": None},
        {"epoch": -1},
        {"position": 2.5},
        {"position": 100},
        {"position": "5"},
        {"plan": "0" * 32},
        {"settings": None},
    ],
)
def test_what_is_no_state_of_this_version_is_refused(damage):
    loader = make(100)
    with pytest.raises(ValueError, match="state"):
        loader.load_state_dict({**loader.state_dict(), **damage})
    for nothing in ({}, None, [], "state"):
        with pytest.raises(ValueError, match="state"):
            loader.load_state_dict(nothing)
    assert loader.state_dict()["position"] == 0


def test_workers_prefetch_and_batch_per_rank_may_change_and_the_state_is_the_same():
    states = []
    for options in ({"local_batch_size": 8}, {"world_size": 4, "local_batch_size": 2, "num_workers": 3}):
        loader = make(96, shuffle=True, **options)
        take(loader, 3)
        states.append(loader.state_dict())
    assert states[0] == states[1]


def test_a_state_is_small_json_that_belongs_to_the_caller():
    loader = make(ShuffledDataset(ShuffledDataset(Listed(), 1), 2), local_batch_size=2)
    take(loader, 3)
    state = loader.state_dict()
    assert as_json(state) == state
    assert len(json.dumps(state)) < 4096
    kept = copy.deepcopy(state)
    take(loader, 5)
    assert state == kept
    state["settings"].clear()
    assert loader.state_dict()["settings"] == kept["settings"]


@pytest.mark.parametrize("workers", IN_PROCESS)
def test_taking_a_state_costs_microseconds(workers):
    loader = make(Slow(1000), local_batch_size=4, shuffle=True, **WORKERS[workers])
    take(loader, 3)
    fastest = 1.0
    for _ in range(20):
        begin = time.perf_counter()
        for _ in range(100):
            loader.state_dict()
        fastest = min(fastest, (time.perf_counter() - begin) / 100)
    loader.close()
    assert fastest < 50e-6


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_it_is_stateful_for_torchs_distributed_checkpoints(tmp_path):
    from torch.distributed.checkpoint import load, save
    from torch.distributed.checkpoint.stateful import Stateful

    loader = make(40, local_batch_size=4, shuffle=True)
    assert isinstance(loader, Stateful)
    take(loader, 13)
    save({"data": loader, "weight": torch.ones(2)}, checkpoint_id=tmp_path / "saved", no_dist=True)
    other = make(40, local_batch_size=4, shuffle=True)
    load({"data": other, "weight": torch.zeros(2)}, checkpoint_id=tmp_path / "saved", no_dist=True)
    assert other.state_dict() == loader.state_dict()
    assert epoch(other) == reference(40, 4, 2, shuffle=True)[13:]
