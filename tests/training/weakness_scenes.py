"""Data for the tests of what d9d's data stack was found to do wrong."""

import numpy as np
from torchdata.stateful_dataloader import StatefulDataLoader

from headrace import BufferSortedDataset, ShardedDataset, num_microbatches_for_global_batch, shard_dataset_data_parallel
from headrace.loading import FixedCountMicrobatchPacker
from training.ranks import Place

LENGTHS = np.random.default_rng(1).integers(0, 2048, 4096)


class Keyed:
    """Sample i is i; each has a key to be sorted by, asked for one at a time, as d9d's users write it."""

    def __init__(self, keys=LENGTHS):
        self.keys = np.asarray(keys)
        self.calls = 0

    def __len__(self):
        return len(self.keys)

    def __getitem__(self, index):
        return int(index)

    def sort_key(self, index):
        self.calls += 1
        return self.keys[index].item()


class Numbers:
    """Sample i is i. Counts the calls it gets."""

    def __init__(self, number):
        self.number = number
        self.batches = []

    def __len__(self):
        return self.number

    def __getitem__(self, index):
        return int(index)

    def __getitems__(self, indices):
        self.batches.append(len(indices))
        return [int(index) for index in indices]


def second_sample(dataset, rank, world_size, *, buffer_size, global_batch_size, microbatch_size, workers=0):
    """The stack of the document's second sample, for one rank, without a seed."""
    place = Place(rank, world_size)
    buffered = BufferSortedDataset(dataset, buffer_size=buffer_size, pack_size=global_batch_size)
    loader = StatefulDataLoader(
        shard_dataset_data_parallel(buffered, place),
        batch_size=microbatch_size,
        collate_fn=list,
        num_workers=workers,
        drop_last=True,
    )
    number = num_microbatches_for_global_batch(place, global_batch_size, microbatch_size)
    return FixedCountMicrobatchPacker(loader, microbatches_per_step=number, drop_last=True)


def shards(dataset, number, mode="sequential", pad=True):
    """All of them."""
    return [ShardedDataset(dataset, number, rank, mode, pad) for rank in range(number)]


def mean_padding(rows, lengths, size):
    """Padded tokens a row, when rows are stacked size at a time."""
    batches = np.asarray(lengths)[np.asarray(rows)].reshape(-1, size)
    return (batches.max(axis=1, keepdims=True) - batches).mean()
