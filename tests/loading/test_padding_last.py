"""pad=True: the last global batch of an epoch is filled up with the epoch's first rows."""

import json

import numpy as np
import pytest
import torch
import torch.utils.data
from hypothesis import given
from hypothesis import strategies as st

from headrace import (
    ElasticBatchSampler,
    MixedDataset,
    PackedDataset,
    ShuffledDataset,
    StatefulDataLoader,
    TokenBudgetBatches,
    WithLengths,
)
from headrace.errors import OptionError
from loading.samples import WORKERS, Numbers, epoch, flat, make, numbers, take, together

WORLDS = [1, 2, 3, 4, 6, 12]


def ranks(dataset, size, world_size, *, pad=True, **options):
    return [
        make(dataset, global_batch_size=size, rank=rank, world_size=world_size, drop_last=False, pad=pad, **options)
        for rank in range(world_size)
    ]


def without_repeats(loaders):
    """The rows of what is left of an epoch, those left out that a rank says are repeats; and how many those are."""
    steps = [epoch(loader) for loader in loaders]
    assert len({tuple(map(len, batches)) for batches in steps}) == 1
    assert {len(batch) for batches in steps for batch in batches} == {loaders[0].local_batch_size}
    for loader, batches in zip(loaders, steps, strict=True):
        batches[-1] = batches[-1][: loader.local_batch_size - loader.padding]
    return flat(together(steps)), sum(loader.padding for loader in loaders)


def test_the_last_batch_is_filled_with_the_first_rows_of_its_epoch():
    loaders = ranks(20, 8, 2)
    assert together([epoch(loader) for loader in loaders]) == [
        list(range(8)),
        list(range(8, 16)),
        [16, 17, 18, 19, 0, 1, 2, 3],
    ]
    assert [loader.padding for loader in loaders] == [2, 2]
    described = loaders[0].describe()
    assert (described["pad"], described["padding"], described["steps"]) == (True, 2, 3)


def test_an_epoch_smaller_than_a_batch_is_gone_through_as_often_as_it_takes():
    (loader,) = ranks(3, 8, 1)
    assert epoch(loader) == [[0, 1, 2, 0, 1, 2, 0, 1]]
    assert loader.padding == 5
    assert [epoch(loader) for loader in ranks(1, 4, 4)] == [[[0]]] * 4
    assert [loader.padding for loader in ranks(1, 4, 4)] == [0, 1, 1, 1]
    (empty,) = ranks(0, 8, 1)
    assert (len(empty), epoch(empty), empty.padding) == (0, [], 0)


@given(
    count=st.integers(1, 60), size=st.integers(1, 5), world_size=st.integers(1, 8), seed=st.none() | st.integers(0, 9)
)
def test_every_rank_has_full_batches_all_rows_are_there_and_repeats_are_fewer_than_a_batch(
    count, size, world_size, seed
):
    options = {"shuffle": seed is not None, "shuffle_seed": seed}
    loaders = ranks(count, size * world_size, world_size, **options)
    short = ranks(count, size * world_size, world_size, pad=False, **options)
    for _ in range(3):
        rows, repeats = without_repeats(loaders)
        assert rows == flat(together([epoch(loader) for loader in short]))
        assert sorted(rows) == list(range(count))
        assert repeats == -count % (size * world_size)
        assert {len(loader) for loader in loaders} == {-(-count // (size * world_size))}


@given(count=st.integers(1, 70), stops=st.lists(st.tuples(st.sampled_from(WORLDS), st.integers(0, 4)), max_size=8))
def test_stopped_and_gone_on_with_other_ranks_the_same_batches_come(count, stops):
    expected = take(ranks(count, 12, 1, shuffle=True)[0], sum(steps for _, steps in stops))
    got, text = [], json.dumps(ranks(count, 12, 1, shuffle=True)[0].state_dict())
    for world_size, steps in stops:
        loaders = ranks(count, 12, world_size, shuffle=True)
        for loader in loaders:
            loader.load_state_dict(json.loads(text))
        got += together([take(loader, steps) for loader in loaders])
        (text,) = {json.dumps(loader.state_dict()) for loader in loaders}
    assert got == expected


@given(count=st.integers(2, 60), sizes=st.tuples(st.integers(1, 30), st.integers(1, 30)), steps=st.integers(0, 5))
def test_a_batch_of_another_size_pads_what_it_needs(count, sizes, steps):
    (first,) = ranks(count, sizes[0], 1)
    done = flat(take(first, min(steps, len(first) - 1)))
    (second,) = ranks(count, sizes[1], 1)
    second.load_state_dict(first.state_dict())
    assert second.padding == -(count - len(done)) % sizes[1]
    rest, repeats = without_repeats([second])
    assert (done + rest, repeats) == (list(range(count)), second.padding)


def test_it_is_no_part_of_a_state_since_every_row_that_counts_is_the_same():
    (padded,), (short,) = ranks(20, 8, 1), ranks(20, 8, 1, pad=False)
    take(padded, 2)
    assert list(padded.state_dict()["settings"]) == list(short.state_dict()["settings"])
    short.load_state_dict(padded.state_dict())
    assert epoch(short) == [[16, 17, 18, 19]]
    assert short.padding == 0
    padded.load_state_dict(padded.state_dict())
    assert epoch(padded) == [[16, 17, 18, 19, 0, 1, 2, 3]]
    assert padded.state_dict() == short.state_dict()
    dropping = make(20, global_batch_size=8)
    with pytest.raises(ValueError, match="drop_last"):
        dropping.load_state_dict(padded.state_dict())


@pytest.mark.parametrize("workers", WORKERS)
def test_however_batches_are_made_the_last_one_is_filled(workers):
    expected = [epoch(loader) for loader in ranks(21, 6, 3, shuffle=True)]
    loaders = ranks(21, 6, 3, shuffle=True, **WORKERS[workers])
    assert [epoch(loader) for loader in loaders] == expected
    assert [loader.padding for loader in loaders] == [1, 1, 1]
    for loader in loaders:
        loader.close()


def test_what_is_padding_is_known_before_the_first_batch_and_behind_the_last():
    (loader,) = ranks(10, 4, 1)
    assert loader.padding == 2
    batches = iter(loader)
    assert [loader.padding for _ in batches] == [2, 2, 2]
    assert loader.state_dict()["epoch"] == 1
    assert loader.padding == 2


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stock_loader_gets_the_same_from_the_sampler(num_workers):
    for rank in range(2):
        sampler = ElasticBatchSampler(Numbers(21), 8, rank, 2, shuffle=True, drop_last=False, pad=True)
        loader = torch.utils.data.DataLoader(Numbers(21), batch_sampler=sampler, num_workers=num_workers)
        expected = ranks(21, 8, 2, shuffle=True)[rank]
        assert sampler.padding == expected.padding == [1, 2][rank]
        for _ in range(2):
            assert [numbers(batch) for batch in loader] == epoch(expected)
        assert sampler.padding == expected.padding


def packed(**options):
    lengths = np.random.default_rng(1).integers(1, 30, 400)
    documents = WithLengths([np.full(length, number) for number, length in enumerate(lengths)], lengths)
    return PackedDataset(ShuffledDataset(documents, 3), 32, **{"window": 90, **options})


def rows_of(samples):
    return [tuple(sample["input_ids"].tolist()) for sample in samples]


@pytest.mark.parametrize("window", [90, 400, 7])
def test_packed_rows_are_filled_up_too(window):
    rows = packed(window=window)
    for number in range(2):
        total = rows.rows_in_epoch(number)
        size = next(size for size in (24, 36, 48) if total % size)
        expected = rows_of(row for loader in [make(rows, list, drop_last=False)] for row in _epoch_of(loader, number))
        assert len(expected) == total
        for world_size in (1, 2, 3, 4):
            loaders = ranks(rows, size, world_size, collate_fn=rows_of)
            for loader in loaders:
                loader.set_epoch(number)
            batches = together([list(loader) for loader in loaders])
            assert {len(batch) for batch in batches} == {size}
            assert flat(batches) == expected + expected[: -total % size]
            assert sum(loader.padding for loader in loaders) == -total % size


def _epoch_of(loader, number):
    loader.set_epoch(number)
    return flat(loader)


def test_fewer_packed_rows_than_a_batch_come_as_often_as_it_takes():
    rows = packed(window=400)
    total = rows.rows_in_epoch(0)
    (loader,) = ranks(rows, 3 * total - 1, 1, collate_fn=rows_of)
    (batch,) = list(loader)
    assert batch == (batch[:total] * 3)[:-1]
    assert loader.padding == 2 * total - 1


def test_packed_rows_go_on_from_a_state_and_are_filled_up_with_the_first_rows_of_the_epoch():
    rows = packed()
    (first,) = ranks(rows, 20, 1, collate_fn=rows_of)
    whole = list(first)
    (loader,) = ranks(rows, 20, 1, collate_fn=rows_of)
    steps = iter(loader)
    for _ in range(3):
        next(steps)
    halves = ranks(rows, 20, 2, collate_fn=rows_of)
    for half in halves:
        half.load_state_dict(loader.state_dict())
    assert sum(half.padding for half in halves) == first.padding > 0
    assert together([list(half) for half in halves]) == whole[3:]


def test_where_a_mixture_was_changed_its_epoch_is_filled_up_with_rows_that_are_still_there():
    def mixed(weights):
        return MixedDataset({"a": range(100), "b": range(1000, 1100)}, weights, seed=3, epoch_size=50)

    def loader_over(dataset):
        return StatefulDataLoader(dataset, list, global_batch_size=8, drop_last=False, pad=True, rank=0, world_size=1)

    first = loader_over(mixed({"a": 1, "b": 1}))
    steps = iter(first)
    for _ in range(3):
        next(steps)
    second = loader_over(mixed({"a": 0, "b": 1}))
    second.load_state_dict(first.state_dict(), change="from_here")
    assert second.padding == 6
    batches = list(second)
    assert flat(batches)[26:] == batches[0][:6]
    assert list(map(len, batches)) == [8] * 4


def test_an_order_that_ends_is_filled_up_where_it_ends():
    dataset = MixedDataset({"a": range(30)}, epoch_size=20, max_epochs=1)
    loader = StatefulDataLoader(dataset, list, global_batch_size=8, drop_last=False, pad=True, rank=0, world_size=1)
    first, second = flat(loader), flat(loader)
    assert (len(first), len(second), loader.padding) == (24, 16, 6)
    assert sorted(first[:20] + second[:10]) == list(range(30))
    assert (first[20:], second[10:]) == (first[:4], second[:6])


def test_what_makes_no_sense_is_refused():
    with pytest.raises(OptionError, match=r"pad=True.*drop_last=False"):
        make(20, local_batch_size=4, pad=True)
    with pytest.raises(OptionError, match=r"pad=True.*drop_last=False"):
        ElasticBatchSampler(20, 4, 0, 1, pad=True)
    lengths = [3, 4, 5]
    budget = TokenBudgetBatches(WithLengths([np.zeros(length) for length in lengths], lengths), 8, 2)
    with pytest.raises(OptionError, match=r"pad=True.*a batch for every rank"):
        make(budget, list, drop_last=False, pad=True)
