"""Views over datasets that change, lie, or are of odd kinds: right, or refused by name; never other samples."""

import numpy as np
import pytest

from headrace import BufferSortedDataset, MixedDataset, Plan, SelectedDataset, ShardedDataset, ShuffledDataset
from headrace.errors import DatasetChangedError, OptionError, OrderError
from headrace.planning import window_order


@pytest.mark.parametrize("change", [lambda items: items.append(10), lambda items: items.pop()])
def test_a_part_of_a_dataset_that_changed_its_length_is_refused(change):
    items = list(range(10))
    part = SelectedDataset(ShuffledDataset(items, 1), [2, 7, 8])
    assert len(set(part[:])) == 3
    change(items)
    with pytest.raises(DatasetChangedError, match="it had 10 samples and has"):
        part[0]


@pytest.mark.parametrize("ordered", [False, True])
def test_a_mixture_of_a_source_that_changed_its_length_is_refused(ordered):
    items = list(range(10))
    mixed = MixedDataset({"a": ShuffledDataset(items, 1) if ordered else items, "b": [100]})
    assert len(mixed[:]) == 11
    items.append(11)
    with pytest.raises(DatasetChangedError, match="it had 10 samples and has 11 now"):
        mixed[:]


def test_a_source_whose_weight_is_next_to_nothing_never_comes_and_an_epoch_does_not_wait_for_it():
    sources = {"a": range(100), "b": range(100, 150)}
    for weights in ([1e300, 1e-300], [1, 1e-200]):
        mixed = MixedDataset(sources, weights, max_epochs=1)
        assert sorted(mixed[:]) == list(range(100))

        with pytest.raises(OrderError, match="'b' is never drawn through once"):
            MixedDataset(sources, weights, exhausted="stop_all")


class Keyed:
    """Samples that are (source, item) and are sorted by these keys."""

    def __init__(self, name, keys):
        self.name, self.keys = name, keys

    def __len__(self):
        return len(self.keys)

    def __getitem__(self, item):
        return self.name, item

    def sort_keys(self, items):
        return self.keys[items]


def test_numbers_beside_text_have_no_order():
    mixed = MixedDataset({"a": Keyed("a", np.array([9, 10, 2])), "b": Keyed("b", np.array(["1", "30"]))})
    with pytest.raises(TypeError):
        BufferSortedDataset(mixed, 5, 1)[0]


@pytest.mark.parametrize(
    "columns",
    [
        (np.array([2**53 + 1, 3], np.int64), np.array([2.0**53, 1.5])),
        (np.array([2**53 + 1, 5], np.int64), np.array([2**53, 2**53 + 2, 2**64 - 1], np.uint64)),
        (np.array([7, 1], np.int8), np.array([300, 2], np.int64)),
        (np.array([0.5, 8.0], np.float32), np.array([0.25, 2.0**40])),
        (["b", "a"], ["abc", "bcd"]),
    ],
)
def test_keys_of_sources_of_different_types_are_compared_as_they_are(columns):
    keys = [key for column in columns for key in np.asarray(column).tolist()]
    mixed = MixedDataset({str(k): Keyed(str(k), np.asarray(column)) for k, column in enumerate(columns)})
    given = mixed.sort_keys_at(np.arange(len(mixed)))
    order = window_order(given, len(keys), 0, 0)
    ascending = [np.asarray(given, object)[place] for place in sorted(order, key=lambda place: given[place])]
    assert sorted(np.asarray(given).tolist() if isinstance(given, np.ndarray) else given) == sorted(keys)
    assert ascending == sorted(keys)


@pytest.mark.parametrize("keys", [[3, float("nan"), 1.5, 2], [np.float64(3), float("nan"), np.int32(1), 2, 2.5]])
def test_a_key_that_is_no_number_comes_last_among_numbers_of_all_types(keys):
    order = BufferSortedDataset(Listed(keys), len(keys), 1)
    assert sorted(order) == list(range(len(keys)))
    packs = [window_order(keys, len(keys) - 1, 0, seed).tolist() for seed in range(20)]
    assert all(1 in (pack[0], pack[-1]) for pack in packs)  # a pack of its own: the last one of the window


class Listed:
    def __init__(self, keys):
        self.keys = keys

    def __len__(self):
        return len(self.keys)

    def __getitem__(self, item):
        return item

    def sort_key(self, item):
        return self.keys[item]


def test_a_position_whose_epoch_ends_too_late_below_says_where():
    with pytest.raises(IndexError, match="an epoch of range of 1000000 items that does not end below"):
        SelectedDataset(range(10**6), [3]).locate(np.array([1 << 50]))
    with pytest.raises(IndexError, match="in an epoch of 1000000 items"):
        ShardedDataset(range(10**6), 1, 0, "chunked", False).locate(np.array([(1 << 63) - 1]))


@pytest.mark.parametrize("above", [lambda mixed: mixed, lambda mixed: ShuffledDataset(mixed, 1)])
def test_a_plan_of_an_order_that_ends_has_the_steps_that_are_there(above):
    dataset = above(MixedDataset({"a": range(100), "b": range(50)}, [1, 1], epoch_size=60, max_epochs=1))
    plan = Plan(dataset, 8, 2, drop_last=False)
    whole = isinstance(dataset, ShuffledDataset)
    assert [plan.rows_in_epoch(epoch) for epoch in range(4)] == [60, 60, 0 if whole else 30, 0]
    assert [plan.steps_in_epoch(epoch) for epoch in range(4)] == [8, 8, 0 if whole else 4, 0]
    seen = {}
    for epoch in range(4):
        for step in range(plan.steps_in_epoch(epoch)):
            for origins in plan.samples_of_step(step, epoch):
                seen |= dict.fromkeys(origins, (epoch, step))
        with pytest.raises(IndexError):
            plan.samples_of_step(plan.steps_in_epoch(epoch), epoch)
    assert len(seen) == (120 if whole else 150)
    for source, size in (("a", 100), ("b", 50)):
        for item in range(size):
            assert plan.when_seen(source, item, range(4)) == ([seen[source, item]] if (source, item) in seen else [])


def test_a_source_whose_own_order_ends_leaves_a_mixture_after_its_whole_epochs():
    inner = MixedDataset({"a": range(10), "b": range(10, 20)}, max_epochs=3)
    outer = MixedDataset({"x": ShuffledDataset(inner, 1), "y": range(100, 110)}, [1, 1], epoch_size=1000)
    counts = {}
    for number in outer[:]:
        counts[number] = counts.get(number, 0) + 1
    assert [counts[number] for number in range(20)] == [3] * 20
    assert sum(counts.values()) == 1000
    both = MixedDataset({"x": inner, "y": range(100, 110)}, [1, 1], max_epochs={"x": 5, "y": 2})
    assert len(both) == 30
    assert both.draws_before(80) == {"x": 60, "y": 20}
    with pytest.raises(OrderError, match="at position 80 all sources"):
        both.draws(np.array([80]))


def test_names_that_are_no_text_are_refused_and_odd_ones_taken():
    with pytest.raises(OptionError, match="lone surrogates"):
        MixedDataset({"\udc80": range(3)})
    names = ["", "/", "a/b", "a\n", "ü" * 300, "\0", "\U0001f30a"]
    mixed = MixedDataset({name: range(10 * k, 10 * k + 10) for k, name in enumerate(names)})
    assert sorted(mixed[:]) == list(range(70))
