"""Equal batches on all ranks, and full cover: by size, layout, number of ranks and workers, batch, order and policy."""

import itertools

import numpy as np
import pytest

from headrace import MemoryStore, StatefulDataLoader, StreamNumpyFormat, StreamStorage
from headrace.errors import OrderError

COUNTS = [7, 8, 9, 64, 100, 101]
LAYOUTS = ["one shard", "one sample a shard", "skewed"]
RANKS = range(1, 9)
WORKERS = [0, 1, 3]
BATCHES = [1, 4, 7]
POLICIES = ["drop", "short", "pad"]
LENGTH = 2


def shards_of(layout, count):
    if layout == "one shard":
        return [count]
    if layout == "one sample a shard":
        return [1] * count
    small = count // 7
    return [small, small, count - 2 * small]  # 10, 10 and 50 of 70


@pytest.fixture(scope="module")
def windows():
    datasets = {}
    for layout, count in itertools.product(LAYOUTS, COUNTS):
        storage = StreamStorage(MemoryStore(), StreamNumpyFormat([("tokens", "<i4")]))
        begin = 0
        with storage.sync_writer() as writer:
            for shard, samples in enumerate(shards_of(layout, count)):
                writer.start(shard)
                writer.append(shard, {"tokens": np.arange(begin, begin + samples * LENGTH)})
                begin += samples * LENGTH
        datasets[layout, count] = storage.dataset(LENGTH)
        assert len(datasets[layout, count]) == count
    return datasets


def ids(samples):
    return [int(sample["tokens"][0]) // LENGTH for sample in samples]


def check(dataset, count, world_size, workers, batch, shuffle, policy, **options):
    """One epoch of a cell of the grid."""
    size = world_size * batch
    steps, padded, lengths = [], [], set()
    options |= {"num_workers": workers, "shuffle": shuffle, "drop_last": policy == "drop", "pad": policy == "pad"}
    for rank in range(world_size):
        loader = StatefulDataLoader(
            dataset, ids, device="cpu", local_batch_size=batch, rank=rank, world_size=world_size, **options
        )
        if policy == "drop" and count < size:
            with pytest.raises(OrderError, match=f"{count} samples do not fill one global batch of {size}"):
                loader.open()
            continue
        with loader:
            lengths.add(len(loader))
            steps.append(list(loader))
            padded.append(loader.padding)
    if not steps:
        return
    assert {len(batches) for batches in steps} == lengths == {-(-count // size) if policy != "drop" else count // size}
    for batches, padding in zip(steps, padded, strict=True):
        assert {len(ids) for ids in batches[:-1]} <= {batch}
        if policy == "short":
            assert padding == 0
            assert len(batches[-1]) <= batch
        else:
            assert len(batches[-1]) == batch
    seen = [one for batches in steps for ids in batches for one in ids]
    assert set(seen) <= set(range(count))
    own = [one for batches, padding in zip(steps, padded, strict=True) for one in _own(batches, batch - padding)]
    assert len(set(own)) == len(own)  # apart from declared padding, no id is with two ranks, or twice with one
    if policy == "drop":
        assert sum(padded) == 0
        assert count - len(own) < size
    else:
        assert set(own) == set(range(count))
        assert len(seen) - count == sum(padded) < size


def _own(batches, in_last):
    return [one for ids in [*batches[:-1], batches[-1][:in_last]] for one in ids]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("workers", WORKERS)
def test_ranks_have_equal_batches_and_see_all_ids_in_every_cell_of_the_grid(windows, layout, workers, policy):
    for count, world_size, batch, shuffle in itertools.product(COUNTS, RANKS, BATCHES, [False, True]):
        check(windows[layout, count], count, world_size, workers, batch, shuffle, policy)


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("workers", [1, 3])
def test_worker_processes_change_nothing_about_that(windows, workers, policy):
    processes = {"parallel_method": "process", "multiprocessing_context": "fork"}
    for count, world_size, batch in [(7, 2, 1), (9, 4, 4), (100, 3, 7), (101, 8, 4)]:
        check(windows["skewed", count], count, world_size, workers, batch, True, policy, **processes)
