"""Parts, buckets and shards under the loader: the same batches for any workers and ranks, and states that know them."""

import json

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from headrace import (
    BufferSortedDataset,
    ElasticBatchSampler,
    SelectedDataset,
    ShardedDataset,
    ShuffledDataset,
    StatefulDataLoader,
    StateMismatchError,
    WithLengths,
)
from headrace.errors import OrderError
from loading.samples import WORKERS, Numbers

LENGTHS = np.random.default_rng(0).integers(1, 500, 120)


def numbers():
    return WithLengths(Numbers(120), LENGTHS)


def epochs_of(dataset, count, **options):
    """The ids of so many epochs: a list of batches each."""
    with StatefulDataLoader(dataset, lambda samples: [sample["id"] for sample in samples], **options) as loader:
        return [list(loader) for _ in range(count)]


def flat(batches):
    return [sample for batch in batches for sample in batch]


@pytest.mark.parametrize("workers", WORKERS)
def test_ten_of_a_hundred_are_the_same_each_epoch_below_a_shuffle_and_new_ones_above_it(workers):
    hundred, ten = Numbers(100), list(range(0, 100, 10))
    fixed = ShuffledDataset(SelectedDataset(hundred, ten), 1)
    fresh = SelectedDataset(ShuffledDataset(hundred, 1), range(10))
    for dataset, same in ((fixed, True), (fresh, False)):
        epochs = [flat(epoch) for epoch in epochs_of(dataset, 3, local_batch_size=5, **WORKERS[workers])]
        assert [len(set(epoch)) for epoch in epochs] == [10] * 3
        assert len({tuple(epoch) for epoch in epochs}) == 3
        assert (len({tuple(sorted(epoch)) for epoch in epochs}) == 1) is same
        if same:
            assert sorted(epochs[0]) == ten
        assert [flat(epoch) for epoch in epochs_of(dataset, 3, local_batch_size=5)] == epochs


@pytest.mark.parametrize("workers", WORKERS)
def test_buckets_are_the_same_for_any_workers_though_batches_straddle_them(workers):
    def dataset():
        return BufferSortedDataset(ShuffledDataset(numbers(), 3), 24, 16)

    expected = epochs_of(dataset(), 3, local_batch_size=10)
    assert [sorted(flat(epoch)) for epoch in expected] == [list(range(120))] * 3
    assert epochs_of(dataset(), 3, local_batch_size=10, **WORKERS[workers]) == expected


def test_every_rank_has_its_rows_of_one_order_of_buckets_and_none_is_lost():
    whole = epochs_of(BufferSortedDataset(numbers(), 32, 8), 2, global_batch_size=24)
    for world_size in (2, 3, 4, 8):
        ranks = [
            epochs_of(BufferSortedDataset(numbers(), 32, 8), 2, global_batch_size=24, rank=rank, world_size=world_size)
            for rank in range(world_size)
        ]
        for epoch in range(2):
            for step, batch in enumerate(whole[epoch]):
                assert [ranks[row % world_size][epoch][step][row // world_size] for row in range(24)] == batch
    assert [sorted(flat(epoch)) for epoch in whole] == [list(range(120))] * 2


def test_a_stock_loader_over_buckets_sees_the_same_order():
    dataset = BufferSortedDataset(SelectedDataset(numbers(), exclude=[7]), 32, 8)
    sampler = ElasticBatchSampler(dataset, 10, rank=0, world_size=1)
    loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=lambda samples: [s["id"] for s in samples])
    assert list(loader) == epochs_of(dataset, 1, local_batch_size=10)[0]


def test_shuffling_what_orders_already_is_refused_with_the_right_order():
    for dataset in (
        BufferSortedDataset(numbers(), 32, 8),
        SelectedDataset(numbers(), [1, 2]),
        ShardedDataset(numbers(), 2, 0, "chunked", True),
    ):
        with pytest.raises(OrderError, match="shuffle its base"):
            StatefulDataLoader(dataset, shuffle=True)


def test_a_state_goes_on_in_the_same_part_however_it_is_named_and_is_refused_for_another():
    keep = LENGTHS > 100

    def loader(view):
        return StatefulDataLoader(view, lambda samples: [sample["id"] for sample in samples], local_batch_size=4)

    first = loader(ShuffledDataset(SelectedDataset(numbers(), keep), 1))
    batches = iter(first)
    next(batches)
    state = json.loads(json.dumps(first.state_dict()))
    rest = list(batches)
    for same in (np.flatnonzero(keep)[::-1], lambda lengths: lengths > 100):
        resumed = loader(ShuffledDataset(SelectedDataset(numbers(), same), 1))
        resumed.load_state_dict(state)
        assert list(resumed) == rest
    for other in (LENGTHS > 150, LENGTHS > 0, [0]):
        with pytest.raises(StateMismatchError, match="selected"):
            loader(ShuffledDataset(SelectedDataset(numbers(), other), 1)).load_state_dict(state)


def test_a_state_of_the_same_views_in_another_order_is_refused():
    state = StatefulDataLoader(SelectedDataset(ShuffledDataset(numbers(), 1), range(50))).state_dict()
    other = StatefulDataLoader(ShuffledDataset(SelectedDataset(numbers(), range(50)), 1))
    with pytest.raises(StateMismatchError, match="views: saved 'shuffle, selected', current 'selected, shuffle'"):
        other.load_state_dict(state)


@pytest.mark.parametrize(
    ("change", "named"),
    [({"buffer_size": 33}, "buffer_size"), ({"pack_size": 9}, "pack_size"), ({"init_seed": 2}, "buffer_seed")],
)
def test_a_state_of_other_buckets_is_refused_by_name(change, named):
    options = {"buffer_size": 32, "pack_size": 8, "init_seed": 1}
    state = StatefulDataLoader(BufferSortedDataset(numbers(), **options)).state_dict()
    StatefulDataLoader(BufferSortedDataset(numbers(), **options)).load_state_dict(state)
    with pytest.raises(StateMismatchError, match=named):
        StatefulDataLoader(BufferSortedDataset(numbers(), **{**options, **change})).load_state_dict(state)


def test_a_state_of_another_shard_or_of_other_lengths_is_refused():
    state = StatefulDataLoader(ShardedDataset(numbers(), 2, 0, "chunked", True)).state_dict()
    for other in (
        ShardedDataset(numbers(), 3, 0, "chunked", True),
        ShardedDataset(numbers(), 2, 1, "chunked", True),
        ShardedDataset(numbers(), 2, 0, "sequential", True),
        ShardedDataset(numbers(), 2, 0, "chunked", False),
        ShardedDataset(WithLengths(Numbers(120), LENGTHS + 1), 2, 0, "chunked", True),
    ):
        with pytest.raises(StateMismatchError):
            StatefulDataLoader(other).load_state_dict(state)


def test_padded_shards_feed_a_metric_that_counts_each_sample_once():
    total = 0
    for number in range(8):
        shard = ShardedDataset(numbers(), 8, number, "sequential", True)
        marks = torch.tensor(~shard.is_padding(np.arange(len(shard))))
        ids = flat(epochs_of(shard, 1, local_batch_size=5, drop_last=False)[0])
        total += int(torch.tensor(ids)[marks].sum())
    assert total == sum(range(120))
