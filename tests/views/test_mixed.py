"""MixedDataset: exact proportions, sources in epochs of their own, stop rules, changes, and what is refused."""

import json
import math
import pickle
import time
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import (
    BufferSortedDataset,
    LinearSchedule,
    MemoryStore,
    MixedDataset,
    SelectedDataset,
    ShuffledDataset,
    StateMismatchError,
    StreamNumpyFormat,
    StreamStorage,
    TokenBudgetBatches,
    WithLengths,
    stack,
)
from headrace.errors import OptionError, OrderError
from headrace.planning import derive_seed
from headrace.planning.recipe import consumed
from loading.samples import make, numbers


def named(name, size):
    """A source whose samples say where they come from."""
    return [(name, item) for item in range(size)]


def counted(samples):
    return Counter(name for name, _ in samples)


def epoch_of(mixed, epoch=0):
    return mixed.__getitems__(np.arange(epoch * len(mixed), (epoch + 1) * len(mixed)))


class Closed:
    """A source that must not be touched."""

    def __len__(self):
        raise AssertionError("opened")

    def __getitem__(self, index):
        raise AssertionError("read")


class Lengthy:
    """A source of documents whose lengths are known by arithmetic."""

    def __init__(self, size, length):
        self.size, self.length = size, length

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return np.full(self.length, index)

    def lengths_at(self, items):
        return np.full(len(items), self.length)

    @property
    def mean_length(self):
        return self.length


# Proportions


def test_a_thousandth_of_two_thousand_draws_is_two():
    mixed = MixedDataset({"a": named("a", 1000), "b": named("b", 1000)}, [0.001, 0.999])
    for epoch in range(3):
        assert counted(epoch_of(mixed, epoch)) == {"a": 2, "b": 1998}


@pytest.mark.parametrize(
    ("weights", "draws", "expected"),
    [([0.2, 0.3, 0.5], 10, [2, 3, 5]), ([1 / 3] * 3, 100, [33, 33, 34]), ([1e-6, 1], 100, [0, 100])],
)
def test_ten_draws_and_a_hundred_are_dealt_as_one_would_by_hand(weights, draws, expected):
    mixed = MixedDataset({f"{k}": named(f"{k}", 50) for k in range(len(weights))}, weights, epoch_size=draws)
    assert sorted(np.bincount(mixed.draws(np.arange(draws))[0], minlength=len(weights)).tolist()) == expected


def test_nine_to_one_and_nine_tenths_to_one_tenth_are_one_plan_and_one_state():
    sources = {"a": named("a", 30), "b": named("b", 70)}
    forms = [
        [9, 1],
        [0.9, 0.1],
        {"b": 0.1, "a": 0.9},
        [Fraction(9, 10), Fraction(1, 10)],
        np.array([0.9, 0.1]),
        (18, 2),
    ]
    mixtures = [MixedDataset(sources, weights, 5) for weights in forms]
    assert all(mixed.settings == mixtures[0].settings for mixed in mixtures)
    assert all(mixed[:] == mixtures[0][:] for mixed in mixtures)


def test_without_weights_every_epoch_has_every_sample_once():
    mixed = MixedDataset({"a": named("a", 100), "b": named("b", 300), "c": []})
    assert len(mixed) == 400
    orders = [epoch_of(mixed, epoch) for epoch in range(4)]
    assert all(sorted(order) == named("a", 100) + named("b", 300) for order in orders)
    assert all(orders[epoch] != orders[epoch + 1] for epoch in range(3))


def test_a_small_source_that_is_drawn_a_hundred_times_as_often_makes_full_batches():
    mixed = MixedDataset({"small": range(10), "large": range(10_000)}, [100, 1], epoch_size=1600)
    with make(mixed, lambda samples: samples, global_batch_size=16) as loader:
        assert [len(batch) for batch in loader] == [16] * 100


def test_no_sample_comes_again_before_its_source_has_been_through():
    mixed = MixedDataset({"small": named("small", 10), "large": named("large", 10_000)}, [100, 1], epoch_size=3000)
    seen = {"small": [], "large": []}
    for epoch in range(2):
        for name, item in epoch_of(mixed, epoch):
            seen[name].append(item)
    rounds = [seen["small"][begin : begin + 10] for begin in range(0, len(seen["small"]) - 9, 10)]
    assert all(sorted(one) == list(range(10)) for one in rounds)
    assert len({tuple(one) for one in rounds}) > len(rounds) // 2
    assert len(set(seen["large"])) == len(seen["large"])


@given(st.lists(st.integers(0, 9) | st.floats(0, 1), min_size=1, max_size=6).filter(lambda w: sum(w) > 0.01))
def test_counts_are_within_two_of_the_share_at_every_block_edge_and_epoch_end(weights):
    mixed = MixedDataset({f"{k}": named(f"{k}", 40) for k in range(len(weights))}, weights, 3, epoch_size=700)
    for position in (256, 512, 700, 956, 1400, 7000, 7 * 10**12):
        for row, weight in zip(mixed.report(position), weights, strict=True):
            assert abs(row.drawn - row.target) < 2
            assert math.isclose(row.target, position * weight / sum(weights), rel_tol=1e-9, abs_tol=1e-9)


def test_proportions_in_tokens_divide_by_the_mean_lengths():
    mixed = MixedDataset({"long": Lengthy(50, 900), "short": Lengthy(50, 100)}, [0.5, 0.5], unit="tokens")
    rows = mixed.report(10_000)
    assert [row.drawn for row in rows] == [1000, 9000]
    assert [row.tokens for row in rows] == [900_000, 900_000]
    assert [row.token_share for row in rows] == [0.5, 0.5]
    assert mixed.mean_length == 180
    by_sizes = MixedDataset({"long": Lengthy(5, 900), "short": Lengthy(50, 100)}, unit="tokens")
    assert [row.drawn for row in by_sizes.report(55)] == [5, 50]


def test_lengths_that_are_bytes_are_no_tokens_in_a_report():
    class Stored(Lengthy):
        length_unit = "bytes"

    rows = MixedDataset({"text": Stored(100, 10), "books": Lengthy(10, 100)}).report(110)
    assert [(row.tokens, row.token_share) for row in rows] == [(None, None), (1000.0, None)]


def test_the_plan_can_be_printed():
    mixed = MixedDataset({"web": Lengthy(100, 10), "books": Lengthy(10, 100), "off": Closed()}, [3, 1, 0])
    lines = str(mixed.report(220)).splitlines()
    assert lines[0] == "220 positions, 110 an epoch"
    assert lines[1].split() == ["source", "target", "drawn", "epochs", "tokens", "share", "of", "tokens"]
    assert lines[2].split() == ["web", "165.0", "165", "1.650", "1,650", "23.08%"]
    assert lines[3].split() == ["books", "55.0", "55", "5.500", "5,500", "76.92%"]
    assert lines[4].split() == ["off", "0.0", "0", "0.000", "0", "0.00%"]
    assert repr(mixed) == "MixedDataset({'web', 'books', 'off'}, 110 an epoch, seed=0)"


# Sources


def test_a_source_with_its_own_order_keeps_it_and_any_other_is_shuffled_anew_in_each_epoch_of_its_own():
    view = ShuffledDataset(named("view", 7), 5)
    mixed = MixedDataset({"view": view, "list": named("list", 9)}, [1, 1], 3, epoch_size=300)
    samples = epoch_of(mixed)
    drawn = {name: [sample for sample in samples if sample[0] == name] for name in ("view", "list")}
    assert drawn["view"] == view.__getitems__(np.arange(150))
    ours = ShuffledDataset(named("list", 9), derive_seed(3, "source", "list"))
    assert drawn["list"] == ours.__getitems__(np.arange(150))
    assert mixed.asked("view") is view


def test_mixtures_nest_and_stand_above_and_below_other_views():
    inner = MixedDataset({"a": named("a", 5), "b": named("b", 5)}, [1, 3], 1)
    outer = MixedDataset({"inner": inner, "c": named("c", 30)}, [1, 2], 2, epoch_size=60)
    assert counted(outer[:]) == {"a": 5, "b": 15, "c": 40}
    chosen = SelectedDataset(ShuffledDataset(MixedDataset({"a": range(10), "b": range(10, 20)}, seed=1), 2), range(15))
    assert len(set(chosen[:])) == 15
    assert sorted(ShuffledDataset(MixedDataset({"a": range(10), "b": range(10, 20)}), 3)[:]) == list(range(20))


def test_a_source_without_weight_is_never_opened():
    mixed = MixedDataset({"on": named("on", 10), "off": Closed()}, {"on": 1, "off": 0})
    assert counted(epoch_of(mixed)) == {"on": 10}
    mixed = pickle.loads(pickle.dumps(mixed))
    assert [row.drawn for row in mixed.report(5)] == [5, 0]
    assert mixed.draws_before(7) == {"on": 7, "off": 0}
    assert mixed.settings == MixedDataset({"on": named("on", 10)}, [1]).settings
    scheduled = MixedDataset({"on": range(10), "off": Closed()}, schedule=[(0, [1, 0]), (5, [2, 0])])
    assert len(scheduled) == 10
    with make(mixed, lambda samples: samples, global_batch_size=5) as loader:
        assert len(list(loader)) == 2


@pytest.mark.parametrize("order", [["x", "a", "b"], ["a", "x", "b"], ["a", "b", "x"], ["b", "x", "a"]])
@pytest.mark.parametrize("exhausted", ["repeat", "stop_first", "stop_all"])
def test_an_empty_source_without_weights_takes_no_draws_in_any_place(order, exhausted):
    sources = {"x": [], "a": [0, 1], "b": [10]}
    mixed = MixedDataset({name: sources[name] for name in order}, exhausted=exhausted)
    samples = mixed[:]
    assert sorted(samples) == [0, 1, 10] or (exhausted == "stop_first" and len(samples) < 3)


def test_many_shards_of_which_few_hold_data_give_that_data_to_any_workers_and_ranks():
    sources = {f"{k}": range(k, k + 3) if k % 41 == 0 else [] for k in range(1024)}
    expected = sorted(item for source in sources.values() for item in source)
    assert len(expected) == 75
    mixed = MixedDataset(sources, exhausted="stop_all")
    assert len(mixed) == 75
    for repetition in range(100):
        with make(mixed, num_workers=8, prefetch=8, global_batch_size=15) as loader:
            loader.set_epoch(repetition)
            assert sorted(number for batch in loader for number in numbers(batch)) == expected
    shuffled = ShuffledDataset(mixed, 1)
    halves = []
    for rank in range(2):
        with make(shuffled, rank=rank, world_size=2, global_batch_size=6, drop_last=False) as loader:
            halves += [number for batch in loader for number in numbers(batch)]
    assert sorted(halves) == expected


def test_an_empty_mixture_is_empty():
    mixed = MixedDataset({"a": [], "b": []})
    assert len(mixed) == 0
    assert mixed[:] == []
    assert mixed.draws_before(0) == {"a": 0, "b": 0}
    assert [row.drawn for row in mixed.report(0)] == [0, 0]
    assert mixed.settings == pickle.loads(pickle.dumps(mixed)).settings
    with pytest.raises(IndexError):
        mixed[0]
    with pytest.raises(IndexError, match="0 samples"):
        mixed.draws(np.array([3]))


# Where it stops


def test_once_each_means_each_sample_once_when_weights_follow_sizes():
    mixed = MixedDataset({"a": [1, 2, 3], "b": [4, 5, 6, 7], "c": [8, 9, 10]}, exhausted="stop_all")
    assert sorted(mixed[:]) == list(range(1, 11))


@pytest.mark.parametrize("seed", range(3))
def test_stop_rules_stop_at_the_first_position_that_meets_them(seed):
    sources = {"a": named("a", 40), "b": named("b", 100), "c": named("c", 7)}
    for rule, met in (("stop_first", any), ("stop_all", all)):
        mixed = MixedDataset(sources, [5, 3, 1], seed, exhausted=rule)
        for position, expected in ((len(mixed), True), (len(mixed) - 1, False)):
            counts = mixed.plan.legs.counts(position)  # before sources are permuted inside the last block
            assert met(count >= len(source) for count, source in zip(counts, sources.values(), strict=True)) == expected
        counts = counted(mixed[:])
        assert met(counts[name] >= len(source) for name, source in sources.items())


def test_a_rule_that_is_never_met_is_refused():
    sources = {"a": range(10), "b": range(1000)}
    never = [(0, [1, 1]), (20, [1, 0])]
    with pytest.raises(OrderError, match="'b' is never drawn through"):
        MixedDataset(sources, schedule=never, exhausted="stop_all")
    assert len(MixedDataset(sources, schedule=never, exhausted="stop_first")) == 19


def test_max_epochs_bounds_each_source_over_the_whole_run_and_the_others_take_its_place():
    mixed = MixedDataset({"a": named("a", 10), "b": named("b", 100)}, [1, 1], max_epochs={"a": 2})
    assert len(mixed) == 110
    counts = counted(epoch_of(mixed, 0) + epoch_of(mixed, 1))
    assert counts == {"a": 20, "b": 200}
    assert max(Counter(epoch_of(mixed, 0) + epoch_of(mixed, 1)).values()) == 2


def test_an_epoch_is_no_longer_than_max_epochs_allow_and_positions_behind_say_where_the_end_is():
    sources = {"a": named("a", 10), "b": named("b", 20)}
    mixed = MixedDataset(sources, [1, 1], max_epochs=1)
    assert len(mixed) == 30
    assert sorted(mixed[:]) == sorted(sources["a"] + sources["b"])
    with pytest.raises(OrderError, match="at position 30 all sources"):
        mixed.draws(np.array([30]))
    with pytest.raises(OptionError, match=r"epoch_size=61 .*at most 60"):
        MixedDataset(sources, [1, 1], max_epochs=2, epoch_size=61)
    assert len(MixedDataset(sources, [1, 1], max_epochs=2, epoch_size=60)) == 60
    only_a = MixedDataset(sources, schedule=[(0, [1, 0]), (40, [1, 1])], max_epochs=1)
    assert len(only_a) == 10
    short = MixedDataset(sources, [1, 2], max_epochs=1, epoch_size=20)
    assert sorted(short.__getitems__(np.arange(30))) == sorted(sources["a"] + sources["b"])


# Schedules


def test_weights_change_at_their_positions_of_the_run_whatever_the_epoch():
    mixed = MixedDataset(
        {"a": named("a", 10), "b": named("b", 10)}, schedule=[(0, [1, 0]), (500, {"a": 1, "b": 3})], epoch_size=100
    )
    assert mixed.draws_before(500) == {"a": 500, "b": 0}
    assert mixed.draws_before(900) == {"a": 600, "b": 300}


def test_a_linear_schedule_ends_where_it_goes():
    mixed = MixedDataset(
        {"a": range(10), "b": range(10)}, schedule=LinearSchedule([(0, [1, 0]), (6400, [0, 1])]), epoch_size=6400
    )
    assert mixed.draws_before(6400) == {"a": 3200, "b": 3200}
    assert mixed.draws_before(12_800) == {"a": 3200, "b": 9600}
    assert abs(mixed.draws_before(3200 // 256 * 256)["b"] - 800 * (1 - 1 / 25) ** 2) < 5


# Changes


def test_after_a_change_every_source_goes_on_where_it_was_and_a_new_one_begins():
    before = MixedDataset({"a": named("a", 20), "b": named("b", 50)}, [1, 1], 3)
    position = 57
    state = json.loads(json.dumps(before.settings))
    drawn = consumed(state, position)
    assert drawn == before.draws_before(position)
    after = MixedDataset({"b": named("b", 50), "c": named("c", 30)}, [1, 2], 3).continued(position, drawn)
    assert after.first_position == position
    old = before.__getitems__(np.arange(position))
    new = after.__getitems__(np.arange(position, position + 200))
    of_b = [item for name, item in old + new if name == "b"]
    expected = ShuffledDataset(range(50), derive_seed(3, "source", "b")).__getitems__(np.arange(len(of_b)))
    assert of_b == list(expected)
    assert [item for name, item in new if name == "c"][:30] == list(
        ShuffledDataset(range(30), derive_seed(3, "source", "c"))[:]
    )
    counts = after.draws_before(position + 200)
    assert counts["b"] - drawn["b"] in range(60, 75)
    # and once more, where a comes back
    later = position + 123
    saved = consumed(json.loads(json.dumps(after.settings)), later)
    assert saved == {**after.draws_before(later), "a": drawn["a"]}
    back = MixedDataset({"a": named("a", 20)}, [1], 3).continued(later, saved)
    first = back.__getitems__(np.arange(later, later + 1))[0][1]
    assert first == ShuffledDataset(range(20), derive_seed(3, "source", "a")).__getitems__([drawn["a"]])[0]
    assert consumed(back.settings, later)["c"] == saved["c"]


def test_settings_say_of_a_change_where_it_was_and_what_had_been_drawn():
    mixed = MixedDataset({"a": range(20), "b": range(50)}, [1, 1])
    changed = mixed.continued(40, {"a": 30, "b": 10})
    assert set(changed.settings) - set(mixed.settings) == {"mixture_from", "mixture_drawn"}
    assert changed.settings["mixture"] == mixed.settings["mixture"]
    assert changed.settings != mixed.continued(40, {"a": 29, "b": 11}).settings
    assert pickle.loads(pickle.dumps(changed)).draws_before(40) == {"a": 30, "b": 10}
    assert mixed.draws_before(70) == {"a": 35, "b": 35}
    with pytest.raises(OrderError, match="positions before"):
        changed[3]
    with pytest.raises(OptionError, match=r"drawn\['a'\]"):
        mixed.continued(40, {"a": -1})


def test_max_epochs_count_what_was_drawn_before_a_change_too():
    mixed = MixedDataset({"a": named("a", 20), "b": named("b", 20)}, [1, 1], max_epochs=2).continued(
        30, {"a": 25, "b": 5}
    )
    samples = mixed.__getitems__(np.arange(30, 80))
    assert counted(samples) == {"a": 15, "b": 35}
    with pytest.raises(OrderError, match="at position 80 all"):
        mixed.draws(np.array([80]))


def test_a_state_of_a_thousand_sources_stays_small_and_names_them_after_a_change():
    sources = {f"source {k}": range(10**9 + k) for k in range(1000)}
    mixed = MixedDataset(sources, [k + 1 for k in range(1000)])
    assert len(json.dumps(mixed.settings)) < 300
    changed = mixed.continued(10**12, mixed.draws_before(10**12))
    assert len(json.dumps(changed.settings)) < 300 + 16 * 1000


# Data and settings


def stream(length, dtype, names=("tokens", "mask")):
    storage = StreamStorage(MemoryStore(), StreamNumpyFormat([(names[0], dtype), (names[1], "u1")]))
    with storage.sync_writer() as writer:
        writer.append(0, {names[0]: np.arange(length), names[1]: np.arange(length) % 2})
    return storage.dataset(8)


def test_another_source_other_data_seed_or_settings_do_not_fit_a_state():
    sources = {"a": WithLengths([[0]] * 10, [1] * 10), "b": range(10)}
    mixed = MixedDataset(sources, [1, 2])
    others = {
        "a source more": MixedDataset({**sources, "c": range(9)}, [1, 2, 1]),
        "a source less": MixedDataset({"b": range(10)}, [1]),
        "other data": MixedDataset({**sources, "a": WithLengths([[0]] * 10, [2] * 10)}, [1, 2]),
        "another size": MixedDataset({**sources, "b": range(11)}, [1, 2], epoch_size=20),
        "other weights": MixedDataset(sources, [2, 1]),
        "another seed": MixedDataset(sources, [1, 2], 1),
        "another epoch": MixedDataset(sources, [1, 2], epoch_size=21),
        "another name": MixedDataset({"a": sources["a"], "B": sources["b"]}, [1, 2]),
        "a limit": MixedDataset(sources, [1, 2], max_epochs=9),
        "a schedule": MixedDataset(sources, schedule=[(0, [1, 2]), (9, [2, 1])]),
        "another order": MixedDataset({"b": sources["b"], "a": sources["a"]}, [2, 1]),
    }
    with make(mixed, lambda samples: samples, global_batch_size=4) as loader:
        next(iter(loader))
        state = loader.state_dict()
    for what, other in others.items():
        with make(other, lambda samples: samples, global_batch_size=4) as loader:
            with pytest.raises(StateMismatchError, match=r"mixture|epoch_size"):
                loader.load_state_dict(state)
            assert other.settings != mixed.settings, what
    with make(MixedDataset(sources, [1, 2]), lambda samples: samples, global_batch_size=4) as loader:
        loader.load_state_dict(state)
        assert loader.state_dict() == state


def test_batches_of_streams_of_one_type_are_stacked_without_going_through_samples():
    mixed = MixedDataset({"a": stream(80, "<u2"), "b": stream(160, "<u2")}, [1, 1], epoch_size=30)
    batch = mixed.__getitems__(np.arange(30))
    rows = batch.stacked()
    assert {name: (array.dtype, array.shape) for name, array in rows.items()} == {
        "tokens": (np.dtype("<u2"), (30, 8)),
        "mask": (np.dtype("u1"), (30, 8)),
    }
    for name, array in rows.items():
        assert all((batch[k][name] == array[k]).all() for k in range(-30, 30))
        assert [sample[name].tolist() for sample in batch[3:6]] == array[3:6].tolist()
        assert stack()(batch)[name].tolist() == stack()(list(batch))[name].tolist() == array.tolist()
        assert [sample[name].tolist() for sample in batch] == [mixed[k][name].tolist() for k in range(30)]
    with pytest.raises(IndexError):
        batch[30]


@pytest.mark.parametrize("other", [("<i4", ("tokens", "mask")), ("<u2", ("tokens", "labels"))])
def test_batches_of_streams_that_differ_are_samples_one_by_one(other):
    mixed = MixedDataset({"a": stream(80, "<u2"), "b": stream(160, *other)}, [1, 1], epoch_size=30)
    batch = mixed.__getitems__(np.arange(30))
    assert not hasattr(batch, "stacked")
    assert len({str({name: array.dtype for name, array in sample.items()}) for sample in batch}) == 2


def test_lengths_and_sort_keys_come_from_the_sources():
    lengths = {"a": [3, 1, 2], "b": [9, 8, 7, 6]}
    mixed = MixedDataset({name: WithLengths([[name]] * len(of), of) for name, of in lengths.items()}, seed=4)
    assert sorted(mixed.lengths.tolist()) == [1, 2, 3, 6, 7, 8, 9]
    names, draws = mixed.draws(np.arange(14))
    expected = [mixed.asked("ab"[k]).lengths_at(np.array([draw]))[0] for k, draw in zip(names, draws, strict=True)]
    assert mixed.lengths_at(np.arange(14)).tolist() == expected
    assert mixed.sort_keys_at(np.arange(14)).tolist() == expected
    assert len(BufferSortedDataset(mixed, 7, 2)[:]) == 7
    assert sum(len(batch) for batch in TokenBudgetBatches(mixed, 20, 1)) == 7
    without = MixedDataset({"a": [1], "b": WithLengths([[1]], [1])})
    with pytest.raises(AttributeError, match="does not know the lengths"):
        _ = without.lengths
    assert [row.tokens for row in without.report(2)] == [None, 1.0]


def test_items_are_those_of_a_sequence():
    mixed = MixedDataset({"a": named("a", 10), "b": named("b", 20)}, seed=2)
    whole = mixed[:]
    assert [mixed[k] for k in range(30)] == whole
    assert [mixed[k - 30] for k in range(30)] == whole
    assert mixed[5:20:3] == whole[5:20:3]
    assert list(mixed) == whole
    for index in (30, -31):
        with pytest.raises(IndexError, match="outside a dataset of 30 samples"):
            mixed[index]


def test_draws_have_their_places_and_counts_again():
    mixed = MixedDataset({"a": range(10), "off": Closed(), "b": range(20)}, [3, 0, 1], epoch_size=100)
    sources, draws = mixed.draws(np.arange(1000, 1300))
    assert sorted(set(sources.tolist())) == [0, 2]
    for source, name in ((0, "a"), (2, "b")):
        chosen = np.flatnonzero(sources == source)
        assert mixed.positions_of(name, draws[chosen]).tolist() == (1000 + chosen).tolist()
        assert mixed.draws_before(1000)[name] == draws[chosen][0]
    assert mixed.positions_of("off", np.array([0])).tolist() == []


def test_no_positions_draw_nothing():
    mixed = MixedDataset({"a": range(10), "b": range(20)})
    assert list(mixed.drawn(np.empty(0, np.int64))) == []
    assert list(mixed.__getitems__([])) == []
    assert mixed.lengths_at(np.empty(0, np.int64)).tolist() == []
    assert list(mixed.sort_keys_at(np.empty(0, np.int64))) == []


def test_a_copy_over_other_datasets_has_the_same_order():
    mixed = MixedDataset({"a": named("a", 10), "b": named("b", 20)}, [1, 1], 2)
    copied = mixed.with_sources({"a": named("A", 10), "b": named("B", 20)})
    assert copied[:] == [(name.upper(), item) for name, item in mixed[:]]
    assert counted(mixed[:]) == {"a": 15, "b": 15}


def test_an_error_inside_a_source_names_it():
    class Broken(list):
        def __getitem__(self, index):
            raise OSError("disk on fire")

    mixed = MixedDataset({"fine": range(10), "broken": Broken(range(10))}, [1, 1])
    with pytest.raises(OSError, match="on fire") as caught:
        mixed[:]
    assert any("source 'broken'" in note for note in caught.value.__notes__)


def test_a_source_that_gives_another_number_of_samples_is_refused_by_name():
    class Short(list):
        def __getitems__(self, items):
            return [0]

    with pytest.raises(ValueError, match="gave 1 samples for 10") as caught:
        MixedDataset({"short": Short(range(10))})[:]
    assert "'short'" in "".join([str(caught.value), *getattr(caught.value, "__notes__", [])])


def test_only_sources_that_are_drawn_are_read_and_thousands_cost_little():
    read = []

    class Noting:
        def __init__(self, name):
            self.name = name

        def __len__(self):
            return 10**9

        def __getitem__(self, index):
            read.append(self.name)
            return self.name

    begun = time.process_time()
    mixed = MixedDataset({f"{k}": Noting(f"{k}") for k in range(5000)}, [k + 1 for k in range(5000)])
    samples = mixed.__getitems__(np.arange(10**12, 10**12 + 8))
    assert time.process_time() - begun < 3  # about 0.3 s
    assert sorted(read) == sorted(samples)


# Refused


SOURCES = {"a": range(10), "b": range(20)}
REFUSED = {
    "no sources": ({}, {}, OptionError, "sources"),
    "sources without names": ([range(3)], {}, TypeError, "mapping of names"),
    "names that are no text": ({1: range(3)}, {}, TypeError, "mapping of names"),
    "all weights zero": (SOURCES, {"weights": [0, 0]}, OptionError, "above 0"),
    "a negative weight": (SOURCES, {"weights": [1, -1]}, OptionError, r"weights\['b'\]=-1"),
    "NaN": (SOURCES, {"weights": [1, float("nan")]}, OptionError, "finite"),
    "infinity": (SOURCES, {"weights": {"a": 1, "b": float("inf")}}, OptionError, "finite"),
    "a weight that is text": (SOURCES, {"weights": ["1", 1]}, TypeError, "'a'"),
    "weights that are text": (SOURCES, {"weights": "ab"}, TypeError, "mapping of names or a sequence"),
    "a weight too few": (SOURCES, {"weights": [1]}, OptionError, "one for each of 2 sources"),
    "a source without weight": (SOURCES, {"weights": {"a": 1}}, OptionError, "nothing for 'b'"),
    "a weight without source": (SOURCES, {"weights": {"a": 1, "b": 1, "c": 1}}, OptionError, "'c'.*'a', 'b'"),
    "weights and a schedule": (SOURCES, {"weights": [1, 1], "schedule": [(0, [1, 1])]}, OptionError, "either"),
    "a schedule from later on": (SOURCES, {"schedule": [(5, [1, 1])]}, OptionError, "begin at 0 and rise"),
    "a schedule that falls": (SOURCES, {"schedule": [(0, [1, 1]), (9, [1, 1]), (9, [2, 1])]}, OptionError, "rise"),
    "an empty schedule": (SOURCES, {"schedule": []}, OptionError, "begin at 0"),
    "an empty linear schedule": (SOURCES, {"schedule": LinearSchedule([])}, OptionError, "begin at 0"),
    "a schedule of weights alone": (SOURCES, {"schedule": [[1, 1, 1]]}, OptionError, "pairs of a position"),
    "a schedule at half a position": (SOURCES, {"schedule": [(0.5, [1, 1])]}, TypeError, "integer"),
    "an unknown unit": (SOURCES, {"unit": "bytes"}, OptionError, "'samples' or 'tokens'"),
    "an unknown rule": (SOURCES, {"exhausted": "stop"}, OptionError, "'stop_all'"),
    "an epoch size and a rule": (SOURCES, {"epoch_size": 9, "exhausted": "stop_all"}, OptionError, "decides it"),
    "an epoch of none": (SOURCES, {"epoch_size": 0}, OptionError, "at least|1 to"),
    "half an epoch": (SOURCES, {"epoch_size": 1.5}, TypeError, "integer"),
    "no epochs": (SOURCES, {"max_epochs": 0}, OptionError, "1 to"),
    "epochs of nobody": (SOURCES, {"max_epochs": {"c": 1}}, OptionError, "'c'"),
    "half a limit": (SOURCES, {"max_epochs": {"a": 1.5}}, TypeError, "integer"),
    "a seed that is text": (SOURCES, {"seed": "7"}, TypeError, "seed"),
    "an empty source with a weight": ({"a": [], "b": [1]}, {"weights": [1, 1]}, OrderError, "'a' has a weight and no"),
    "tokens without lengths": (SOURCES, {"weights": [1, 1], "unit": "tokens"}, TypeError, "lengths"),
    "tokens of nothing": ({"a": Lengthy(5, 0)}, {"weights": [1], "unit": "tokens"}, OrderError, "0 tokens"),
    "rows of batches": (
        {"a": TokenBudgetBatches(WithLengths([[1]], [1]), 10, 1)},
        {},
        OrderError,
        "MixedDataset cannot stand on TokenBudgetBatches",
    ),
    "what has no length": ({"a": iter([1])}, {}, TypeError, "length"),
}


@pytest.mark.parametrize(("sources", "options", "error", "said"), REFUSED.values(), ids=REFUSED)
def test_what_means_nothing_is_refused_at_once(sources, options, error, said):
    with pytest.raises(error, match=said):
        MixedDataset(sources, **options)
