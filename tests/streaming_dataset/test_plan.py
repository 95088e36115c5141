"""Plan over a StreamingDataset: what its loaders serve, without reading it."""

import pytest

from headrace import Plan, StreamingDataLoader
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
