"""Scenarios from bug reports of comparable tools: equal batches, few samples, and the order of each run.

test_grid.py has every size, layout, number of ranks, workers and rows a batch.
"""

import copy
import itertools
import time

import pytest
import torch.utils.data

from headrace import StreamingDataLoader, StreamingDataset
from headrace.errors import OptionError, OrderError
from loading.samples import flat
from streaming_dataset.processes import forked, joined
from streaming_dataset.scenes import Job, dataset_of, stores_of
from streaming_dataset.written import numbers_of, streams, write_numbers

FORK = {"multiprocessing_context": "fork"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_numbers(tmp_path_factory.mktemp("numbers") / "all", range(100))


# O32, O33: equal batches and the length that is told


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_hundred_samples_are_25_full_batches_and_fifty_are_seven_with_a_short_last_one(shuffle, folder):
    with StreamingDataLoader(
        StreamingDataset(local=folder, shuffle=shuffle), batch_size=4, num_workers=4, **FORK
    ) as loader:
        assert len(loader) == 25
        assert [len(batch["number"]) for batch in loader] == [4] * 25
    fifty = StreamingDataset(local=folder, shuffle=shuffle, epoch_size=50)
    with StreamingDataLoader(fifty, batch_size=8, num_workers=4, **FORK) as loader:
        assert len(loader) == 7
        assert [len(batch["number"]) for batch in loader] == [8] * 6 + [2]
    stock = torch.utils.data.DataLoader(
        StreamingDataset(local=folder, shuffle=shuffle, epoch_size=50, batch_size=8), 8, num_workers=4, **FORK
    )
    assert len(stock) == len(list(stock)) == 7


def test_a_stock_loader_that_drops_its_last_batch_has_full_ones_alone(folder):
    dataset = StreamingDataset(local=folder, batch_size=7, rank=0, world_size=3)
    stock = torch.utils.data.DataLoader(dataset, 7, drop_last=True, num_workers=2, **FORK)
    assert len(stock) == 34 // 7
    assert [len(batch["number"]) for batch in stock] == [7] * 4


# O34: few samples


@pytest.mark.parametrize("nodes", [1, 64])
def test_few_samples_come_once_each_or_are_refused_alike_on_all_ranks(nodes):
    for count, world_size, workers in itertools.product([0, 1, 2, 3, 49], [1, 2, 8], [0, 1]):
        stores = stores_of(1, count, "one shard")

        def make(rank, world_size, stores=stores):
            options = {"num_canonical_nodes": nodes, "shuffle": True, "shuffle_block_size": 8}
            return dataset_of(stores, **options, rank=rank, world_size=world_size)

        options = {"num_workers": workers, **(FORK if workers else {})}
        if workers and (world_size != 2 or count > 3):
            continue  # processes take time
        job = Job(make, world_size, world_size, **options)
        assert {len(one) for one in job.loaders} == {-(-count // world_size)}
        batches = job.epoch()
        assert len(batches) == -(-count // world_size)
        assert sorted(flat(batches)) == list(range(count))
        job.close()
        if count >= world_size:
            dropping = Job(make, world_size, world_size, drop_last=True)
            assert len(dropping.epoch()) == count // world_size
            continue
        for one in Job(make, world_size, world_size, drop_last=True, **options).loaders:
            for ask in (len, iter):
                with pytest.raises(OrderError, match=f"{count} samples .* {world_size} .*{world_size} ranks"):
                    ask(one)
        rows = [numbers_of(make(rank, world_size)) for rank in range(world_size)]
        assert {len(some) for some in rows} == {-(-count // world_size)}


def test_two_samples_and_64_canonical_nodes_are_two_samples(tmp_path):
    write_numbers(tmp_path, range(2))
    for workers in (0, 1, 2):
        dataset = StreamingDataset(local=tmp_path, num_canonical_nodes=64, shuffle=True, batch_size=4)
        stock = torch.utils.data.DataLoader(dataset, 4, num_workers=workers)
        assert sorted(numbers_of(stock)) == [0, 1]


def test_batches_from_one_stream_at_a_time_have_every_full_batch_of_each(tmp_path):
    few, many = write_numbers(tmp_path / "few", range(3)), write_numbers(tmp_path / "many", range(3, 1003), a_shard=100)
    for method, batch_size in itertools.product(["per_stream", "device_per_stream"], [1, 2, 3, 4]):

        def make(rank, world_size, method=method, batch_size=batch_size):
            return StreamingDataset(
                streams=streams([few, many]),
                batching_method=method,
                batch_size=batch_size,
                shuffle=True,
                rank=rank,
                world_size=world_size,
            )

        if batch_size == 4:
            with pytest.raises(OptionError, match=r"batch_size=4 .* stream 0, which gives 3 rows an epoch"):
                Job(make, 1, batch_size).epoch()
            continue
        job = Job(make, 1, batch_size)
        epoch = job.epoch()
        assert len(epoch) == len(job.loaders[0]) == 3 // batch_size + 1000 // batch_size
        assert all(len(batch) == batch_size and len({number < 3 for number in batch}) == 1 for batch in epoch)
        assert len(set(flat(epoch))) == len(flat(epoch))


def test_a_stream_without_samples_is_a_part_of_nothing(tmp_path):
    folders = [write_numbers(tmp_path / "none", []), write_numbers(tmp_path / "some", range(10))]
    for order in (folders, folders[::-1]):
        for method in ("random", "per_stream", "device_per_stream"):
            dataset = StreamingDataset(streams=streams(order), batch_size=5, batching_method=method, shuffle=True)
            assert sorted(numbers_of(dataset)) == list(range(10))
    with pytest.raises(OptionError, match=r"streams\[0\].choose=3 .* no samples"):
        len(StreamingDataset(streams=streams(folders, choose=[3, 3])))


# O35: the order of epochs and of runs


def three_epochs(folder, workers=0, *, told=False, **options):
    """Three epochs of numbers, counted by the loader or told to the dataset."""
    loading = {}
    if workers:
        loading = {"num_workers": abs(workers), "persistent_workers": workers < 0, **FORK}
    dataset = StreamingDataset(local=folder, **{"shuffle": True, "shuffle_seed": 1, **options})
    found = []
    with StreamingDataLoader(dataset, batch_size=10, **loading) as loader:
        for epoch in range(3):
            if told:
                dataset.next_epoch = epoch
            found.append(numbers_of(loader))
    return found


def check_epochs(folder, expected):
    assert three_epochs(folder) == expected


def test_epochs_are_three_permutations_that_any_workers_and_other_processes_repeat(folder):
    first = three_epochs(folder)
    assert all(sorted(epoch) == list(range(100)) for epoch in first)
    assert len({tuple(epoch) for epoch in first}) == 3
    for workers in (2, -2):  # fresh ones, and kept ones
        assert three_epochs(folder, workers) == first
    raw = StreamingDataset(local=folder, shuffle=True, shuffle_seed=1)
    assert [numbers_of(raw) for _ in range(3)] == first
    joined([forked(check_epochs, folder, first) for _ in range(2)])
    other = three_epochs(folder, shuffle_seed=2)
    assert all(mine != its for mine in first for its in other)
    for shuffle_algo in ("naive", "py1s"):
        assert all(sorted(epoch) == list(range(100)) for epoch in three_epochs(folder, shuffle_algo=shuffle_algo))
    assert three_epochs(folder, shuffle=False) == [list(range(100))] * 3


@pytest.mark.parametrize("workers", [0, -1])
def test_the_caller_may_say_which_epoch_it_is(workers, folder):
    assert three_epochs(folder, workers, told=True) == three_epochs(folder)


class Slow(StreamingDataset):
    """Some samples take longer."""

    def __getitem__(self, at):
        time.sleep(0.002 * (at % 5 == 0) * (at % 3))
        return super().__getitem__(at)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_slow_samples_change_no_order(folder):
    options = {"local": folder, "shuffle": True, "batch_size": 4}
    expected = numbers_of(StreamingDataset(**options))
    with StreamingDataLoader(Slow(**options), num_workers=3, **FORK) as loader:
        assert numbers_of(loader) == expected
    assert numbers_of(torch.utils.data.DataLoader(Slow(**options), 4, num_workers=3, **FORK)) == expected


@pytest.mark.parametrize("method", ["balanced", "fixed"])
@pytest.mark.parametrize("workers", [0, 2])
def test_ten_samples_of_a_hundred_are_others_each_epoch_or_the_same_ten(method, workers, folder):
    options = {"epoch_size": 10, "sampling_method": method}
    epochs = three_epochs(folder, workers, **options)
    assert epochs == three_epochs(folder, **options)
    assert [len(set(epoch)) for epoch in epochs] == [10] * 3
    assert len(set(flat(epochs))) == (30 if method == "balanced" else 10)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_a_seed_that_is_set_before_each_epoch_does_not_repeat_the_first_one(folder):
    epochs = [numbers_of(batches) for batches in _epochs(folder)]
    dataset = StreamingDataset(local=folder, shuffle=True, batch_size=4)
    loader = torch.utils.data.DataLoader(dataset, 4, num_workers=2, **FORK)
    for expected in epochs:
        torch.manual_seed(5)
        assert numbers_of(loader) == expected
    assert dataset.next_epoch == 3


def test_loaders_that_are_read_at_the_same_time_have_an_epoch_each(folder):
    epochs = [numbers_of(batches) for batches in _epochs(folder)]
    dataset = StreamingDataset(local=folder, shuffle=True, batch_size=4)
    read = [iter(torch.utils.data.DataLoader(dataset, 4, num_workers=2, **FORK)) for _ in range(3)]
    rounds = list(zip(*read, strict=True))
    got = [numbers_of(batches) for batches in zip(*rounds, strict=True)]
    assert sorted(got) == sorted(epochs)
    assert dataset.next_epoch == 3


def test_a_shallow_copy_counts_epochs_together_with_its_original(folder):
    dataset = StreamingDataset(local=folder, shuffle=True)
    other = copy.copy(dataset)
    epochs = [numbers_of(batches) for batches in _epochs(folder)]
    assert [numbers_of(dataset), numbers_of(other), numbers_of(dataset)] == epochs


def _epochs(folder):
    dataset = StreamingDataset(local=folder, shuffle=True)
    return [list(dataset) for _ in range(3)]
