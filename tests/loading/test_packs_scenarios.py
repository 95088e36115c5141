"""Packs as people train on them: losses that add up to one, and packed rows that go on in another process."""

import json
import math

import numpy as np
import pytest
import torch

from headrace import PackedDataset, StatefulDataLoader, TokenPack, stack_segments
from loading.pack_scenes import in_a_new_process, run
from loading.test_token_counts import TABLE, documents, token_losses

# Rows of 9 tokens: of one document, of single ones, of three, and again; so 8, 0, 6, 4, 0 and 8 targets.
ROWS = [[9], [1] * 9, [3, 3, 3], [5, 1, 1, 1, 1], [1] * 9, [9]]


def ranks_packs(world_size):
    """One step's pack of each rank."""
    packed = PackedDataset(documents([length for row in ROWS for length in row]), 9, strategy="concat")
    collate = stack_segments(labels=True)
    packs = []
    for rank in range(world_size):
        place = {"rank": rank, "world_size": world_size, "device": "cpu", "local_batch_size": 1}
        packs.append(TokenPack.of(StatefulDataLoader(packed, collate, **place)))
    return packs, collate(packed[:])


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_mean_losses_of_microbatches_weighted_by_a_pack_s_counts_are_that_of_the_unsplit_batch(world_size):
    packs, unsplit = ranks_packs(world_size)
    assert {len(pack) for pack in packs} == {6 // world_size}
    if world_size == 2:
        assert [pack.num_targets.tolist() for pack in packs] == [[8, 6, 0], [0, 4, 8]]

    def gradient(loss_of):
        table = TABLE.clone().requires_grad_()
        loss = loss_of(table)
        loss.backward()
        return float(loss.detach()), table.grad

    def split(table):
        sums = 0.0
        for pack in packs:
            means = [token_losses(batch, table).sum() / batch["num_targets"] for batch in pack]
            assert [math.isnan(float(mean.detach())) for mean in means] == [count == 0 for count in pack.num_targets]
            sums = sums + pack.weighted_sum(means)
        return sums / sum(float(pack.loss_weights.sum()) for pack in packs)

    loss, gradients = gradient(split)
    expected, wanted = gradient(lambda table: token_losses(unsplit, table).sum() / unsplit["num_targets"])
    assert loss == pytest.approx(expected, abs=1e-6)
    torch.testing.assert_close(gradients, wanted, rtol=0, atol=1e-6)


def test_the_weights_add_up_to_the_targets_of_all_segments():
    packs, unsplit = ranks_packs(2)
    assert sum(int(pack.num_targets.sum()) for pack in packs) == int(unsplit["num_targets"])
    assert sum(int(batch["segment_targets"].sum()) for pack in packs for batch in pack) == int(unsplit["num_targets"])
    for pack in packs:
        assert pack.num_targets.tolist() == [int(batch["segment_targets"].sum()) for batch in pack]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_packed_rows_go_on_token_for_token_from_every_pack_in_a_new_process():
    tasks, expected = [], []
    for buckets in (False, True):
        alone = run(buckets, 0, 14)
        for workers in (0, 4):
            whole = run(buckets, workers, 14)
            assert whole == alone, "workers change nothing"
            for done in range(10):
                state = json.loads(json.dumps(whole[done][1]))
                assert state["position"] == 6 * (done + 1), "rows, not packs"
                tasks.append(
                    {"buckets": buckets, "workers": workers if done % 5 == 0 else 0, "steps": 2, "state": state}
                )
                expected.append([content for content, _ in whole[done + 1 : done + 3]])
    found = in_a_new_process(tasks)
    for task, packs, wanted in zip(tasks, found, expected, strict=True):
        assert [content for content, _ in packs] == wanted, task
    tokens = [token for content in expected[0] for batch in content for row in batch["input_ids"] for token in row]
    assert len(tokens) == 2 * 6 * 16
    assert np.diff(tokens).max() > 1
