"""A selected view: a part of a dataset, however it is named, in the dataset's order, in every epoch."""

import pickle
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import OptionError, OrderError
from headrace.views import BufferSortedDataset, SelectedDataset, ShardedDataset, ShuffledDataset, WithLengths


class Texts:
    """A dataset with batches and lengths."""

    def __init__(self, lengths):
        self.lengths = np.asarray(lengths)
        self.calls = []

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        return self.__getitems__([index])[0]

    def __getitems__(self, items):
        self.calls.append(list(items))
        return [f"text {item}" for item in items]


LETTERS = list("abcdefghij")


def test_numbers_a_bitmap_and_a_function_of_lengths_name_the_same_part():
    base = WithLengths(LETTERS, [3, 1, 4, 1, 5, 9, 2, 6, 5, 3])
    ways = [
        SelectedDataset(base, [8, 2, 4, 7, 5]),
        SelectedDataset(base, np.array([2, 4, 5, 7, 8], np.int32)),
        SelectedDataset(base, base.lengths > 3),
        SelectedDataset(base, (base.lengths > 3).tolist()),
        SelectedDataset(base, lambda lengths: lengths > 3),
        SelectedDataset(base, exclude=[0, 1, 3, 6, 9, 9]),
        SelectedDataset(base, exclude=base.lengths <= 3),
        SelectedDataset(base, lambda lengths: lengths >= 3, exclude=[0, 9]),
    ]
    for view in ways:
        assert list(view) == list("cefhi")
        assert len(view) == 5
        assert view.lengths.tolist() == [4, 5, 9, 6, 5]
        assert view[-1] == "i"
        assert list(view[1:3]) == ["e", "f"]
        assert view.settings == ways[0].settings
    assert ways[0].settings["num_selected"] == 5


@given(data=st.data(), num_items=st.integers(1, 60), epoch=st.integers(0, 10**9))
def test_any_part_is_as_a_list_of_the_kept_samples_in_any_epoch(data, num_items, epoch):
    keep = data.draw(st.none() | st.lists(st.integers(0, num_items - 1), unique=True))
    exclude = data.draw(st.lists(st.integers(0, num_items - 1)) if keep is None else st.none() | st.just([0]))
    view = SelectedDataset(range(num_items), keep, exclude=exclude)
    kept = [item for item in range(num_items) if (keep is None or item in keep) and item not in (exclude or [])]
    assert list(view) == kept
    positions = np.arange(len(kept)) + epoch * len(kept)
    assert view.locate(positions).tolist() == [epoch * num_items + item for item in kept]


def test_a_fixed_sub_sample_is_selected_below_the_shuffle_and_a_new_one_each_epoch_above_it():
    base = range(100)
    ten = np.arange(10)
    fixed = ShuffledDataset(SelectedDataset(base, range(10)), seed=1)
    epochs = [fixed.__getitems__(ten + 10 * epoch) for epoch in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(10))] * 3
    assert len({tuple(epoch) for epoch in epochs}) == 3
    fresh = SelectedDataset(ShuffledDataset(base, seed=1), range(10))
    epochs = [fresh.__getitems__(ten + 10 * epoch) for epoch in range(3)]
    assert len({tuple(sorted(epoch)) for epoch in epochs}) == 3
    assert all(len(set(epoch)) == 10 for epoch in epochs)
    again = SelectedDataset(ShuffledDataset(base, seed=1), range(10))
    assert again.__getitems__(np.arange(30)) == [item for epoch in epochs for item in epoch]


def test_complementary_parts_of_one_shuffle_split_every_epoch():
    base = ShuffledDataset(range(20), 3)
    train, rest = SelectedDataset(base, range(15)), SelectedDataset(base, exclude=range(15))
    for epoch in range(3):
        both = train.__getitems__(np.arange(15) + 15 * epoch) + rest.__getitems__(np.arange(5) + 5 * epoch)
        assert sorted(both) == list(range(20))


def test_a_function_of_lengths_is_called_once_with_all_of_them():
    calls = []

    def longest_half(lengths):
        calls.append(lengths)
        return lengths > np.median(lengths)

    view = SelectedDataset(Texts(np.arange(70_000) % 1000), longest_half)
    assert len(view) == 35_000
    assert [call.shape for call in calls] == [(70_000,)]
    nested = SelectedDataset(view, longest_half)
    assert calls[1].tolist() == view.lengths.tolist()
    assert len(nested) == 17_500


def test_a_function_of_lengths_is_refused_where_another_epoch_has_other_samples_in_those_places():
    base = WithLengths(LETTERS, range(10))
    fixed = [base, SelectedDataset(base, range(5)), ShardedDataset(base, 2, 1, "chunked", False)]
    fixed.append(BufferSortedDataset(fixed[1], 3, 2))
    for below in fixed:
        SelectedDataset(below, lambda lengths: lengths > 0)
    for below in (ShuffledDataset(base, 1), BufferSortedDataset(ShuffledDataset(base, 1), 3, 2)):
        with pytest.raises(OrderError, match="select below it"):
            SelectedDataset(below, lambda lengths: lengths > 0)
        assert len(SelectedDataset(below, base.lengths > 4)) == 5  # positions are meant, and said so


def test_an_empty_part_and_an_empty_base_have_no_samples():
    for view in (
        SelectedDataset(LETTERS, []),
        SelectedDataset(LETTERS, np.zeros(10, bool)),
        SelectedDataset([], []),
        SelectedDataset([], np.zeros(0, bool)),
        SelectedDataset([], exclude=[]),
        SelectedDataset(LETTERS, exclude=range(10)),
    ):
        assert len(view) == 0
        assert list(view) == []
        assert list(view.__getitems__([])) == []
        with pytest.raises(IndexError):
            view[0]
        with pytest.raises(IndexError):
            view.locate(np.array([0]))


def test_a_batch_is_one_call_to_the_base():
    base = Texts(range(10))
    assert SelectedDataset(base, [1, 3, 5]).__getitems__([0, 2, 4, 5]) == ["text 1", "text 5", "text 3", "text 5"]
    assert base.calls == [[1, 5, 3, 5]]


@pytest.mark.parametrize(
    ("keep", "exclude", "message"),
    [
        (None, None, "keep=None"),
        ([10], None, r"keep=10 .*range\(10\)"),
        ([-1], None, r"keep=-1 .*range\(10\)"),
        ([3, 3], None, "keep=3 .*each item once"),
        (None, [11], "exclude=11"),
        (np.ones(9, bool), None, r"keep='bitmap of shape \(9,\)'"),
        (np.ones(0, bool), None, r"bitmap of shape \(0,\)"),
        (None, np.ones((10, 1), bool), r"exclude='bitmap of shape \(10, 1\)'"),
        (lambda lengths: lengths[:3] > 0, None, r"bitmap of shape \(3,\)"),
    ],
)
def test_what_names_no_part_is_refused_by_name(keep, exclude, message):
    with pytest.raises(OptionError, match=message):
        SelectedDataset(WithLengths(LETTERS, range(10)), keep, exclude=exclude)


def test_what_is_of_another_type_is_refused():
    base = WithLengths(LETTERS, range(10))
    for keep in ([0.5], "abc", [[1]]):
        with pytest.raises(TypeError, match="row of integers"):
            SelectedDataset(base, keep)
    with pytest.raises(TypeError, match="array of booleans"):
        SelectedDataset(base, lambda lengths: lengths)
    with pytest.raises(TypeError, match="lengths"):
        SelectedDataset(LETTERS, lambda lengths: lengths > 3)


def test_settings_differ_with_the_part_and_nested_parts_hide_nothing():
    views = [SelectedDataset(LETTERS, keep) for keep in ([1], [2], [1, 2], range(10))]
    views.append(SelectedDataset(views[3], [1]))
    assert len({str(view.settings) for view in views}) == 5
    assert views[4].settings["num_selected"] == 10
    assert views[4].settings["outer_num_selected"] == 1


def test_a_part_of_10_to_the_12_samples_is_named_by_the_few_that_are_kept_or_left_out():
    base = range(10**12)
    few = SelectedDataset(base, [10**12 - 1, 5])
    assert few.__getitems__([0, 1, 10**6]) == [5, 10**12 - 1, 5]
    rest = ShuffledDataset(SelectedDataset(base, exclude=[5]), 1)
    assert len(rest) == 10**12 - 1
    assert 0 <= rest[10**11] < 10**12
    assert len(pickle.dumps(rest)) < 2000


def test_a_part_survives_pickling():
    for keep in ([1, 5], np.arange(1000) % 3 == 0, np.arange(1000) > 2):
        view = SelectedDataset(range(1000), keep)
        copied = pickle.loads(pickle.dumps(view))
        assert list(copied) == list(view)
        assert copied.settings == view.settings


def test_a_pooled_shuffle_reads_the_chosen_samples_of_few_shards_at_a_time():
    class Sharded(list):
        shard_items = (0, 30, 20, 0, 50)

    base = Sharded(range(100))
    for keep in ([], range(100), range(0, 100, 7), range(30, 50)):
        view = SelectedDataset(base, keep)
        edges = np.cumsum([0, *base.shard_items])
        assert view.shard_items.tolist() == [
            sum(begin <= item < end for item in keep) for begin, end in pairwise(edges.tolist())
        ]
    view = SelectedDataset(SelectedDataset(base, range(0, 100, 2)), exclude=[0])
    assert view.shard_items.tolist() == [0, 14, 10, 0, 25]
    pooled = ShuffledDataset(view, 1, scope="pooled", pool_items=10)
    assert sorted(pooled) == list(range(2, 100, 2))
    assert WithLengths(base, range(100)).shard_items == base.shard_items
    assert not hasattr(SelectedDataset(LETTERS, [1]), "shard_items")
    assert not hasattr(SelectedDataset(ShuffledDataset(base, 1), [1]), "shard_items")
