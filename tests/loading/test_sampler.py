"""ElasticBatchSampler: the loader's order and states for a stock DataLoader."""

import itertools
import json

import numpy as np
import pytest
import torch.utils.data

from headrace import ElasticBatchSampler, ShuffledDataset, StateMismatchError
from headrace.errors import OrderError
from loading.samples import Numbers, epoch, make, numbers, take, together


def stock(dataset, sampler, **options):
    return torch.utils.data.DataLoader(dataset, batch_sampler=sampler, **options)


def batches(loader):
    return [numbers(batch) for batch in loader]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("world_size", "size"), [(1, 4), (2, 4), (3, 9), (8, 8)])
def test_its_lists_are_the_loaders_batches_in_every_epoch(shuffle, drop_last, world_size, size):
    for rank in range(world_size):
        sampler = ElasticBatchSampler(Numbers(50), size, rank, world_size, shuffle, 3, drop_last)
        loader = make(
            50,
            global_batch_size=size,
            rank=rank,
            world_size=world_size,
            shuffle=shuffle,
            shuffle_seed=3,
            drop_last=drop_last,
        )
        for _ in range(3):
            lists = list(sampler)
            assert lists == epoch(loader)
            assert len(lists) == len(sampler) == len(loader)
            assert all(type(item) is int and 0 <= item < 50 for items in lists for item in items)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("keep", [False, True])
def test_a_stock_loader_under_it_gives_the_same_batches_and_resumes(num_workers, keep):
    expected = [
        batch for loader in [make(50, local_batch_size=4, shuffle=True)] for _ in range(3) for batch in epoch(loader)
    ]
    options = {"num_workers": num_workers, "persistent_workers": keep and num_workers > 0}
    dataset = Numbers(50)
    sampler = ElasticBatchSampler(dataset, 4, 0, 1, shuffle=True)
    loader = stock(dataset, sampler, **options)
    assert batches(loader) == expected[:12]
    consumed = 0
    for batch in loader:
        assert numbers(batch) == expected[12 + consumed]
        consumed += 1
        if consumed == 5:
            break
    state = json.loads(json.dumps(sampler.state_dict(batches_consumed=consumed)))
    assert (state["epoch"], state["position"]) == (1, 20)
    other = ElasticBatchSampler(dataset, 4, 0, 1, shuffle=True)
    other.load_state_dict(state)
    loader = stock(dataset, other, **options)
    assert batches(loader) == expected[17:24]
    assert batches(loader) == expected[24:]


def test_states_go_from_sampler_to_loader_and_back():
    dataset = Numbers(50)
    loader = make(dataset, local_batch_size=4, shuffle=True, shuffle_seed=3)
    take(loader, 17)
    sampler = ElasticBatchSampler(dataset, 4, 0, 1, shuffle=True, seed=3)
    sampler.load_state_dict(loader.state_dict())
    lists = iter(sampler)
    next(lists)
    other = make(dataset, local_batch_size=4, shuffle=True, shuffle_seed=3)
    other.load_state_dict(sampler.state_dict(batches_consumed=1))
    take(loader, 18 - 17)
    assert epoch(other) == list(lists)


def test_a_state_counts_from_the_last_iter_and_the_end_is_the_next_start():
    sampler = ElasticBatchSampler(50, 4, 0, 1)
    for consumed, place in ((0, (0, 0)), (3, (0, 12)), (12, (1, 0))):
        state = sampler.state_dict(consumed)
        assert (state["epoch"], state["position"]) == place
    sampler.load_state_dict(sampler.state_dict(10))
    assert sampler.state_dict(0)["position"] == 40
    assert sampler.state_dict(2)["epoch"] == 1
    with pytest.raises(ValueError, match="batches_consumed=3, but there were 2"):
        sampler.state_dict(3)
    with pytest.raises(ValueError, match="batches_consumed=-1"):
        sampler.state_dict(-1)
    assert len(list(sampler)) == 2
    iter(sampler)
    assert sampler.state_dict(0)["epoch"] == 1


def test_a_loop_that_is_broken_off_begins_again_and_one_that_took_all_goes_on():
    sampler = ElasticBatchSampler(50, 4, 0, 1, shuffle=True)
    first, second = list(sampler), list(sampler)
    assert first != second
    sampler.set_epoch(0)
    for _ in sampler:
        break
    assert list(itertools.islice(sampler, 12)) == first  # all lists taken, the end not seen
    assert list(sampler) == second
    sampler.set_epoch(1)
    assert list(sampler) == second
    sampler.load_state_dict(sampler.state_dict(5))
    sampler.set_epoch(1)  # where it is anyway, so the position is kept
    assert list(sampler) == second[5:]
    with pytest.raises(ValueError, match="epoch=-1"):
        sampler.set_epoch(-1)


def test_asking_for_an_iterator_takes_nothing():
    sampler = ElasticBatchSampler(50, 4, 0, 1)
    sampler.load_state_dict(sampler.state_dict(10))
    for _ in range(3):
        iter(sampler)
    assert list(sampler) == [[40, 41, 42, 43], [44, 45, 46, 47]]


def test_a_view_under_a_stock_loader_keeps_its_epochs():
    view = ShuffledDataset(Numbers(50), 3)
    loader = stock(view, ElasticBatchSampler(view, 4, 0, 1))
    expected = make(view, local_batch_size=4)
    for _ in range(3):
        assert batches(loader) == epoch(expected)


def test_lengths_of_every_integer_kind_and_datasets_are_taken():
    for given in (50, np.int64(50), Numbers(50), range(50)):
        assert len(ElasticBatchSampler(given, 4, 0, 1)) == 12
    parts = [list(ElasticBatchSampler(10, 4, rank, 2, drop_last=False)) for rank in range(2)]
    assert together(parts) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_what_makes_no_sense_is_refused():
    with pytest.raises(OrderError, match=r"global_batch_size=7 .*world_size=2; 6 and 8"):
        ElasticBatchSampler(50, 7, 0, 2)
    with pytest.raises(ValueError, match="global_batch_size=0"):
        ElasticBatchSampler(50, 0)
    with pytest.raises(OrderError, match="3 samples do not fill"):
        len(ElasticBatchSampler(3, 4, 0, 1))
    with pytest.raises(OrderError, match="already orders"):
        ElasticBatchSampler(ShuffledDataset(Numbers(50), 3), 4, shuffle=True)
    sampler = ElasticBatchSampler(50, 4, 0, 1, shuffle=True, seed=1)
    with pytest.raises(StateMismatchError, match="seed: saved 2, current 1"):
        sampler.load_state_dict(ElasticBatchSampler(50, 4, 0, 1, shuffle=True, seed=2).state_dict())
    with pytest.raises(ValueError, match="position is 50, but an epoch has 50"):
        sampler.load_state_dict({**sampler.state_dict(), "position": 50})
