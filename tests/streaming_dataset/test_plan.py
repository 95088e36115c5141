"""Plan over a StreamingDataset: what its loaders serve, without reading it."""

import pytest

from headrace import Plan, StreamingDataLoader, WithLengths
from headrace.errors import OrderError
from streaming_dataset.scenes import dataset_of, stores_of


@pytest.mark.parametrize("epoch_size", [None, 15, 55])
def test_a_plan_says_what_each_step_of_the_loader_has_and_when_each_sample_is_seen(epoch_size):
    stores = stores_of(3, 36, "skewed")
    options = {"shuffle": True, "epoch_size": epoch_size, "batch_size": 4}
    plan = Plan(dataset_of(stores, **options).as_view(), 8, 2, drop_last=False)
    seen = {item: [] for item in range(36)}
    loaders = [StreamingDataLoader(dataset_of(stores, **options, rank=rank, world_size=2)) for rank in range(2)]
    for epoch in range(3):
        batches = [[batch["number"].tolist() for batch in loader] for loader in loaders]
        assert len(batches[0]) == plan.steps_in_epoch(epoch)
        for step, ranks in enumerate(zip(*batches, strict=True)):
            assert [rank.items.tolist() for rank in plan.samples_of_step(step, epoch)] == list(ranks)
            for item in {*ranks[0], *ranks[1]}:
                seen[item].append((epoch, step))
    assert {item: plan.when_seen(None, item, range(3)) for item in range(36)} == seen


def test_a_plan_of_the_dataset_is_that_of_its_view():
    dataset = dataset_of(stores_of(1, 36, "skewed"), shuffle=True, rank=1, world_size=2)
    given, view = Plan(dataset, 8, 2), Plan(dataset.as_view(), 8, 2)
    assert given.rows_in_epoch() == 36
    assert given.samples_of_step(1, epoch=2) == view.samples_of_step(1, epoch=2)
    assert given.when_seen(None, 5, range(3)) == view.when_seen(None, 5, range(3))


def test_lengths_do_not_go_on_a_dataset_whose_length_is_a_share():
    dataset = dataset_of(stores_of(1, 36, "skewed"), rank=1, world_size=2)
    with pytest.raises(OrderError, match="goes below StreamingDataset"):
        WithLengths(dataset, [1] * len(dataset))
