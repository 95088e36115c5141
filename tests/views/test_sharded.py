"""A sharded view: all shards together are the dataset, padding is marked, and bounds hold."""

import pickle

import numpy as np
import pytest

from headrace.errors import OptionError
from headrace.views import ShardedDataset, ShardIndexingMode, ShuffledDataset, WithLengths

MODES = list(ShardIndexingMode)


class Batched:
    def __init__(self, num_items):
        self.num_items = num_items
        self.calls = []

    def __len__(self):
        return self.num_items

    def __getitem__(self, index):
        raise AssertionError("asked for one item")

    def __getitems__(self, items):
        self.calls.append(list(items))
        return list(items)


def test_modes_are_d9d_s_texts():
    assert [str(mode) for mode in MODES] == ["sequential", "chunked"]
    for mode in MODES:
        assert list(ShardedDataset(range(7), 2, 0, mode.value, True)) == list(
            ShardedDataset(range(7), 2, 0, mode, True)
        )


@pytest.mark.parametrize("mode", MODES)
def test_unpadded_shards_cover_each_sample_once_also_where_several_are_short(mode):
    for num_items in range(40):
        for total in (1, 2, 3, 4, 7, 16, 50):
            shards = [ShardedDataset(range(num_items), total, number, mode, False) for number in range(total)]
            assert sorted(item for shard in shards for item in shard) == list(range(num_items))
            assert [len(shard) for shard in shards] == [len(list(shard)) for shard in shards]
            assert not any(shard.padding for shard in shards)
    lengths = [len(ShardedDataset(range(5), 4, number, "chunked", False)) for number in range(4)]
    assert lengths == [2, 2, 1, 0]


@pytest.mark.parametrize("mode", MODES)
def test_padding_is_marked_so_that_a_metric_counts_each_sample_once(mode):
    shards = [ShardedDataset(range(9), 8, number, mode, True) for number in range(8)]
    assert {len(shard) for shard in shards} == {2}
    assert sum(shard.padding for shard in shards) == 7
    weight = [(item, not shard.is_padding(index)) for shard in shards for index, item in enumerate(shard)]
    assert sum(counts for item, counts in weight if item == 8) / sum(counts for _, counts in weight) == 1 / 9


def test_is_padding_takes_a_number_or_an_array_of_them_and_refuses_what_is_outside():
    shard = ShardedDataset(range(5), 4, 2, "chunked", True)
    assert list(shard) == [4, 4]
    assert shard.padding == 1
    assert shard.is_padding(0) is False
    assert shard.is_padding(1) is True
    assert shard.is_padding(-1) is True
    assert shard.is_padding(np.int64(-2)) is False
    assert shard.is_padding(np.array([[0, 1], [-1, -2]])).tolist() == [[False, True], [True, False]]
    assert shard.is_padding(range(2)).tolist() == [False, True]
    assert shard.is_padding([]).shape == (0,)
    for outside in (2, -3, [0, 2], [-3]):
        with pytest.raises(IndexError, match="outside a shard of 2 samples"):
            shard.is_padding(outside)
    for wrong in (0.5, [0.5], "a"):
        with pytest.raises(TypeError):
            shard.is_padding(wrong)


@pytest.mark.parametrize("mode", MODES)
def test_indices_are_bounded_negative_ones_count_from_the_end_and_iteration_ends(mode):
    for padded in (True, False):
        shard = ShardedDataset(range(10), 4, 1, mode, padded)
        items = list(shard)
        assert list(iter(shard)) == items
        assert len(items) == len(shard) == 3
        assert [shard[index] for index in range(-3, 0)] == items
        assert list(shard[1:]) == items[1:]
        for outside in (3, 100, -4):
            with pytest.raises(IndexError):
                shard[outside]


def test_a_batch_is_one_call_to_the_dataset():
    base = Batched(10)
    shard = ShardedDataset(base, 3, 1, "sequential", True)
    assert shard.__getitems__([0, 2, 3, 1]) == [1, 7, 9, 4]
    assert base.calls == [[1, 7, 9, 4]]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("padded", [False, True])
def test_positions_are_endless_and_the_base_sees_its_epochs(mode, padded):
    base = ShuffledDataset(range(10), 7)
    for epoch in range(3):
        seen = []
        for number in range(4):
            shard = ShardedDataset(base, 4, number, mode, padded)
            positions = np.arange(len(shard)) + epoch * len(shard)
            assert (shard.locate(positions) // 10 == epoch).all()
            marks = shard.is_padding(np.arange(len(shard)))
            seen += [item for item, mark in zip(shard.__getitems__(positions), marks, strict=True) if not mark]
        assert sorted(seen) == list(range(10))


def test_an_empty_dataset_has_empty_shards():
    for mode in MODES:
        for padded in (True, False):
            shard = ShardedDataset([], 3, 1, mode, padded)
            assert len(shard) == shard.padding == 0
            assert list(shard) == []
            with pytest.raises(IndexError):
                shard[0]
            with pytest.raises(IndexError):
                shard.locate(np.array([0]))


def test_a_trillion_samples_are_sharded_by_arithmetic():
    for padded in (True, False):
        shard = ShardedDataset(range(10**12), 7, 6, "chunked", padded)
        assert shard[-1] == 10**12 - 1
        assert shard.padding == (7 * -(-(10**12) // 7) - 10**12 if padded else 0)


def test_a_dataset_without_a_length_is_refused():
    class Unsized:
        def __getitem__(self, index):
            return index

    with pytest.raises(ValueError, match="with a length"):
        ShardedDataset(Unsized(), 2, 0, "sequential", True)


@pytest.mark.parametrize(
    ("total", "current", "message"),
    [
        (0, 0, "total_shards=0"),
        (-1, 0, "total_shards=-1"),
        (2, 2, "current_shard=2 .* 0 to 1"),
        (2, -1, "current_shard"),
    ],
)
def test_shards_that_do_not_exist_are_refused_by_name(total, current, message):
    with pytest.raises(OptionError, match=message):
        ShardedDataset(range(10), total, current, "sequential", True)


def test_arguments_of_another_kind_are_refused_by_name():
    with pytest.raises(OptionError, match=r"indexing_mode='roundrobin' .*'sequential' or 'chunked'"):
        ShardedDataset(range(10), 2, 0, "roundrobin", True)
    with pytest.raises(TypeError, match="total_shards"):
        ShardedDataset(range(10), 2.0, 0, "chunked", True)
    with pytest.raises(TypeError, match="current_shard"):
        ShardedDataset(range(10), 2, True, "chunked", True)
    with pytest.raises(TypeError, match="pad_to_equal_size_across_shards"):
        ShardedDataset(range(10), 2, 0, "chunked", "yes")


def test_lengths_are_those_of_the_samples_padding_included():
    shard = ShardedDataset(WithLengths(range(5), [3, 1, 4, 1, 5]), 2, 1, "sequential", True)
    assert list(shard) == [1, 3, 4]
    assert shard.lengths.tolist() == [1, 1, 5]


def test_settings_name_the_shard_and_a_pickled_copy_is_the_same():
    shards = [
        ShardedDataset(range(10), total, number, mode, padded)
        for total in (2, 3)
        for number in range(total)
        for mode in MODES
        for padded in (True, False)
    ]
    assert len({str(shard.settings) for shard in shards}) == len(shards)
    for shard in shards:
        copied = pickle.loads(pickle.dumps(shard))
        assert list(copied) == list(shard)
        assert copied.settings == shard.settings
    assert shards[0].base is shards[0].dataset
