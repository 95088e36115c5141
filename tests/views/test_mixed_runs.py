"""MixedDataset in runs of one source, and batches from one source at a time."""

import json
from collections import Counter

import numpy as np
import pytest

from headrace import LinearSchedule, MixedDataset, PackedDataset, StateMismatchError, WithLengths
from headrace.errors import OptionError, OrderError
from loading.samples import make, take, together

SOURCES = {"few": range(3), "many": range(1000, 2000)}


def name_of(item):
    return "few" if item < 1000 else "many"


def mixed(weights=None, run_length=8, **options):
    return MixedDataset(SOURCES, weights, seed=5, run_length=run_length, **options)


@pytest.mark.parametrize("world_size", [1, 2, 8])
@pytest.mark.parametrize("drop_last", [True, False])
def test_three_and_a_thousand_samples_give_batches_of_one_source_on_any_ranks(world_size, drop_last):
    options = {"global_batch_size": 8, "world_size": world_size, "drop_last": drop_last}
    loaders = [make(mixed(), list, rank=rank, **options) for rank in range(world_size)]
    assert {len(loader) for loader in loaders} == {126}  # 1003 samples, in whole runs
    drawn = Counter()
    for epoch in range(3):
        batches = together([list(loader) for loader in loaders])
        assert [len(batch) for batch in batches] == [8] * 126
        for batch in batches:
            (name,) = {name_of(item) for item in batch}
            drawn[name] += 1
        exact = (epoch + 1) * 126 * 3 / 1003
        assert abs(drawn["few"] - exact) < 1
    assert drawn["few"] == 1


@pytest.mark.parametrize("world_size", [1, 2, 8])
def test_equal_weights_make_every_other_batch_one_of_three_samples(world_size):
    options = {"global_batch_size": 8, "world_size": world_size}
    loaders = [make(mixed([1, 1], epoch_size=800), list, rank=rank, **options) for rank in range(world_size)]
    batches = together([list(loader) for loader in loaders])
    names = [{name_of(item) for item in batch} for batch in batches]
    assert Counter(map(len, names)) == {1: 100}
    assert Counter(name for (name,) in names) == {"few": 50, "many": 50}
    few = [item for batch in batches if batch[0] < 3 for item in batch]
    assert Counter(few) == {0: 134, 1: 133, 2: 133} or sorted(Counter(few).values()) == [133, 133, 134]
    many = [item for batch in batches if batch[0] >= 3 for item in batch]
    assert len(set(many)) == 400  # none comes twice while there are others


def test_a_run_goes_on_within_a_run_with_other_ranks_and_batches():
    whole = [item for batch in take(make(mixed([1, 1]), collate, local_batch_size=1), 300) for item in batch]
    done, state = 0, make(mixed([1, 1]), collate, local_batch_size=1).state_dict()
    for world_size, size, steps in [(1, 3, 5), (2, 10, 4), (4, 8, 3), (3, 9, 11), (1, 8, 2)]:
        loaders = [
            make(mixed([1, 1]), collate, rank=rank, world_size=world_size, global_batch_size=size)
            for rank in range(world_size)
        ]
        for loader in loaders:
            loader.load_state_dict(json.loads(json.dumps(state)))
        batches = together([take(loader, steps) for loader in loaders])
        assert [item for batch in batches for item in batch] == whole[done : done + size * steps]
        done, state = done + size * steps, loaders[0].state_dict()


def collate(samples):
    return np.array(samples)


def test_a_state_of_runs_fits_runs_of_that_length_alone():
    state = make(mixed([1, 1]), local_batch_size=8).state_dict()
    for other in (1, 4):
        with pytest.raises(StateMismatchError, match="mixture_run_length"):
            make(mixed([1, 1], other), local_batch_size=8).load_state_dict(state)
    loader = make(mixed([1, 1], 4), list, local_batch_size=8)
    loader.load_state_dict(state, change="from_here")
    assert [len({name_of(item) for item in batch[k : k + 4]}) for batch in loader for k in (0, 4)] == [1] * 2 * 125


def test_schedules_change_with_a_run_and_stop_rules_count_whole_runs():
    later = mixed(schedule=[(0, [1, 0]), (2048, [0, 1])], epoch_size=4096)  # 256 runs of each: a block
    assert [name_of(item) for item in later] == ["few"] * 2048 + ["many"] * 2048
    ramp = mixed(schedule=LinearSchedule([(0, [1, 0]), (8000, [0, 1])]), epoch_size=8000)
    assert abs(ramp.draws_before(8000)["few"] - 4000) <= 8
    first = mixed([1, 1], exhausted="stop_first")
    assert first.draws_before(len(first))["few"] == 8  # the run that has been through it
    last = mixed([1, 1], exhausted="stop_all")
    assert last.draws_before(len(last))["many"] == 1000


def test_sources_leave_with_their_last_whole_run():
    three = MixedDataset({"a": range(20), "b": range(100, 130)}, [1, 1], run_length=8, max_epochs=1)
    assert len(three) == 2 * 8 + 3 * 8
    assert sorted(Counter(item // 100 for item in three).items()) == [(0, 16), (1, 24)]
    assert len(set(three)) == 40
    whole = MixedDataset({"a": range(16), "b": range(100, 124)}, run_length=8, max_epochs=1)
    assert sorted(whole) == [*range(16), *range(100, 124)]


def test_packed_rows_stand_on_runs_too():
    lengths = [5] * 40
    sources = {name: WithLengths([np.full(5, k)] * 40, lengths) for k, name in enumerate("ab")}
    rows = PackedDataset(MixedDataset(sources, [1, 1], run_length=4), 20, window=16, strategy="concat")
    assert {len(set(row["input_ids"].tolist())) for row in rows} == {1}


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"run_length": 0}, OptionError, "run_length"),
        ({"run_length": True}, TypeError, "run_length"),
        ({"run_length": 2.0}, TypeError, "run_length"),
        ({"run_length": 8, "epoch_size": 20}, OptionError, r"epoch_size=20.*run_length=8, such as 16 or 24"),
        ({"run_length": 8, "epoch_size": 3}, OptionError, r"epoch_size=3.*such as 8 or 16"),
        ({"run_length": 8, "schedule": [(0, [1, 1]), (9, [1, 2])]}, OptionError, r"schedule position=9.*such as 8"),
        ({"run_length": 8, "max_epochs": 2}, OrderError, r"source 'few' has too few samples for a run of 8"),
        ({"run_length": 8, "weights": [1, 1], "max_epochs": {"many": 1}, "exhausted": "stop_all"}, None, ""),
        (
            {"run_length": 7, "weights": [0, 1], "max_epochs": 1, "exhausted": "stop_first"},
            OrderError,
            "exhausted='stop_first' is never met",
        ),
    ],
)
def test_what_means_nothing_is_refused(options, error, said):
    if error is None:
        MixedDataset(SOURCES, **options)
        return
    with pytest.raises(error, match=said):
        MixedDataset(SOURCES, **options)
