"""Orders that end: each source of a mixture may be gone through so often, and no more."""

import pytest

from headrace import ElasticBatchSampler, MixedDataset, PackedDataset, ShuffledDataset, TokenBudgetBatches
from headrace.errors import OrderError
from loading.test_hostile_orders import Documents, Numbers, loader


def ending(**options):
    """150 samples, which are used up 30 rows into epoch 2."""
    sources = {"a": Numbers("a", 100), "b": Numbers("b", 50, 1000)}
    return MixedDataset(sources, [1, 1], seed=5, epoch_size=60, max_epochs=1, **options)


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}], ids=["alone", "threads"])
@pytest.mark.parametrize(
    ("size", "drop_last", "served"), [(4, False, 150), (4, True, 148), (6, True, 150), (8, True, 136)]
)
@pytest.mark.parametrize("world_size", [1, 2])
def test_the_epoch_in_which_an_order_ends_has_the_rows_that_are_there_on_every_rank(
    size, drop_last, served, world_size, workers
):
    group = [loader(ending(), rank, world_size, size, drop_last=drop_last, **workers) for rank in range(world_size)]
    seen = []
    for epoch in range(3):
        for one in group:
            one.set_epoch(epoch)
        assert len({len(one) for one in group}) == 1
        batches = [[batch.tolist() for batch in one] for one in group]
        assert [len(rows) for rows in batches] == [len(batches[0])] * world_size
        seen += [number for rows in batches for batch in rows for number in batch]
        assert all(one.state_dict() == group[0].state_dict() for one in group)
    assert len(seen) == len(set(seen)) == served
    for one in group:
        assert one.state_dict()["epoch"] == 3
        with pytest.raises(OrderError, match="the order ends before epoch 3: all sources"):
            iter(one)
    sampler = ElasticBatchSampler(ending(), size, drop_last=drop_last)
    assert sum(len(rows) for _ in range(3) for rows in sampler) == served
    with pytest.raises(OrderError, match="the order ends before epoch 3"):
        iter(sampler)


def test_a_view_above_an_order_that_ends_has_its_whole_epochs():
    one = loader(ShuffledDataset(ending(), 1), size=6)
    assert sum(len(batch) for _ in range(2) for batch in one) == 120
    with pytest.raises(OrderError, match="the order ends before epoch 2"):
        iter(one)


def test_a_last_epoch_with_too_few_rows_for_a_batch_is_no_epoch():
    one = loader(ending(), size=40)
    assert [len(batch) for _ in range(2) for batch in one] == [40, 40]
    with pytest.raises(OrderError, match="the order ends 30 rows into epoch 2, too few for a batch"):
        len(one)


def ending_documents():
    sources = {"a": Documents("a", 100), "b": Documents("b", 50, 1000)}
    return MixedDataset(sources, [1, 1], seed=5, epoch_size=60, max_epochs=1)


@pytest.mark.parametrize("window", [7, 20, 60, 1000])
@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("kind", ["packs", "budgets"])
def test_the_window_in_which_an_order_ends_has_the_samples_that_are_there(kind, world_size, window):
    def numbers(samples):
        if kind == "budgets":
            return [int(sample[0]) for sample in samples]
        return [
            1000 * int(s) + int(i)
            for row in samples
            for s, i in zip(row["source_ids"], row["document_ids"], strict=True)
        ]

    base = ending_documents()
    view = PackedDataset(base, 16, window=window) if kind == "packs" else TokenBudgetBatches(base, 16, 2, window=window)
    group = [
        loader(view, rank, world_size, world_size, collate_fn=numbers, drop_last=False) for rank in range(world_size)
    ]
    seen = []
    for _ in range(3):
        seen += [number for one in group for batch in one for number in batch]
        assert all(one.state_dict() == group[0].state_dict() for one in group)
    assert sorted(set(seen)) == sorted([*range(100), *range(1000, 1050)])
    assert len(seen) == 150
    for one in group:
        with pytest.raises(OrderError, match="the order ends in or before epoch 3"):
            iter(one)
