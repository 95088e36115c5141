"""d9d's way to the data: a shard a rank, and a state a rank."""

import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from headrace import (
    BufferSortedDataset,
    DataParallelMicrobatchPackStream,
    DataProvider,
    FixedCountMicrobatchPacker,
    InitializeDataProviderContext,
    MicrobatchPackStream,
    ShardIndexingMode,
    StateMismatchError,
    WithLengths,
    shard_dataset_data_parallel,
)
from headrace.errors import StateError
from training.ranks import Place


def packer(rank, world_size, number=24):
    """A rank's packs of its shard, as a provider of one's own makes them."""
    shard = shard_dataset_data_parallel(range(number), Place(rank, world_size))
    return FixedCountMicrobatchPacker(StatefulDataLoader(shard, batch_size=2, collate_fn=list), 2)


def test_shards_of_all_ranks_are_the_dataset_in_turn_or_in_runs():
    def shards(*options):
        return [list(shard_dataset_data_parallel(range(7), Place(rank, 3), *options)) for rank in range(3)]

    assert shards() == [[0, 3, 6], [1, 4, 6], [2, 5, 6]]
    assert shards(ShardIndexingMode.chunked, False) == [[0, 1, 2], [3, 4, 5], [6]]
    assert shards(ShardIndexingMode.sequential, False) == [[0, 3, 6], [1, 4], [2, 5]]


def test_one_process_has_the_whole_dataset_and_asks_for_no_mesh():
    assert list(shard_dataset_data_parallel(range(7), Place())) == list(range(7))


def test_a_provider_may_be_a_class_of_its_own_or_any_callable():
    class Own(DataProvider):
        def __init__(self, number):
            self.number = number

        def __call__(self, context):
            return packer(0, 1, self.number)

    stream = Own(8)(InitializeDataProviderContext(dist_context=Place()))
    assert isinstance(stream, MicrobatchPackStream)
    assert list(stream) == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    with pytest.raises(TypeError):
        InitializeDataProviderContext(Place())


def test_a_state_of_a_rank_lies_under_its_name_and_goes_on_there():
    stream = DataParallelMicrobatchPackStream(Place(1, 2), packer(1, 2))
    assert isinstance(stream, MicrobatchPackStream)
    assert (stream.total_steps, stream.is_elastic, stream.microbatches_per_step) == (3, False, 2)
    packs = iter(stream)
    next(packs)
    state = stream.state_dict()
    assert list(state) == ["dp_1"]
    for saved in (state, {"dp_0": {}} | state):
        again = DataParallelMicrobatchPackStream(Place(1, 2), packer(1, 2))
        again.load_state_dict(saved)
        assert list(again) == [[[9, 11], [13, 15]], [[17, 19], [21, 23]]]


@pytest.mark.parametrize(
    ("saved", "problem"),
    [
        ({"dp_0": {}, "dp_1": {}, "dp_2": {}, "dp_3": {}}, "saved 'dp_0, dp_1, dp_2, dp_3', current 'rank 1 of 2'"),
        ({"dp_0": {}}, "saved 'dp_0', current 'rank 1 of 2'"),
        ({}, "saved 'none', current 'rank 1 of 2'"),
    ],
)
def test_a_state_of_other_ranks_is_refused_with_both_numbers(saved, problem):
    stream = DataParallelMicrobatchPackStream(Place(1, 2), packer(1, 2))
    with pytest.raises(StateMismatchError, match=problem):
        stream.load_state_dict(saved)
    with pytest.raises(StateError, match="not NoneType"):
        stream.load_state_dict(None)


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_buckets_without_a_seed_give_every_sample_once_on_all_ranks_together(world_size):
    # d9d draws the order of each rank from the operating system where no seed is given, and loses a third of the data.
    dataset = WithLengths(range(512), [1 + index * 7 % 50 for index in range(512)])
    seen = []
    for rank in range(world_size):
        buckets = BufferSortedDataset(dataset, buffer_size=128, pack_size=64)
        shard = shard_dataset_data_parallel(buckets, Place(rank, world_size))
        seen += [row for batch in StatefulDataLoader(shard, batch_size=16, collate_fn=list) for row in batch]
    assert sorted(seen) == list(range(512))


def test_a_default_collate_of_tensors_needs_nothing_of_ours():
    shard = shard_dataset_data_parallel(torch.arange(8), Place(1, 2))
    assert torch.equal(torch.cat(list(StatefulDataLoader(shard, batch_size=2))), torch.tensor([1, 3, 5, 7]))
