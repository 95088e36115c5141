"""What a stream of packs says of itself: how much it gave, and how long one waited for it."""

import collections
import dataclasses
import threading

import numpy as np
import pytest
import torch

from headrace import (
    DataMetrics,
    FixedCountMicrobatchPacker,
    PackedDataset,
    StatefulDataLoader,
    build_device_pack_stream,
    pad_stack_1d,
    stack_segments,
)
from headrace.loading import TokenPack, count_tokens
from headrace.loading.data_metrics import count_pack
from loading.pack_streams import NumberedPacks
from loading.samples import Numbers

MASK = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0]])
IDS = torch.tensor([[5, 6, 0, 0], [7, 8, 9, 0]])


@dataclasses.dataclass
class Batch:
    input_ids: torch.Tensor
    labels: torch.Tensor | None = None
    attention_mask: torch.Tensor | None = None


Pair = collections.namedtuple("Pair", ["inputs", "labels"])


@pytest.mark.parametrize(
    ("microbatch", "expected"),
    [
        ({"input_ids": IDS, "attention_mask": MASK}, (5, 8)),
        ({"input_ids": IDS, "attention_mask": MASK.bool()}, (5, 8)),
        ({"input_ids": IDS, "attention_mask": MASK.float()}, (5, 8)),
        (Batch(IDS, IDS, MASK), (5, 8)),
        (Pair({"input_ids": IDS, "attention_mask": MASK}, IDS), (5, 8)),
        ([{"labels": IDS}, {"attention_mask": MASK[0]}], (2, 4)),
        ({"input_ids": IDS, "segment_ids": torch.tensor([[1, 1, 2, 0], [1, 2, 3, 4]])}, (7, 8)),
        ({"attention_mask": torch.ones(2, 1, 4, 4), "segment_ids": torch.tensor([[1, 1, 2, 0]])}, (3, 4)),
        ({"input_ids": IDS, "num_targets": torch.tensor(6)}, (6, 6)),
        ({"input_ids": IDS, "num_targets": torch.tensor([2, 3])}, (5, 5)),
        (Batch(IDS, IDS), (8, 8)),
        ({"tokens": IDS, "id": torch.tensor([1, 2])}, (8, 8)),
        (IDS, (8, 8)),
        (torch.ones(2, 4), (0, 0)),
        ({"image": torch.ones(3, 8, 8), "label": torch.ones(3)}, (0, 0)),
        ({"input_ids": IDS.to("meta"), "attention_mask": MASK.to("meta")}, (0, 0)),
        ({"input_ids": "text", "names": ["a", "b"]}, (0, 0)),
        ({"input_ids": torch.ones(0, 4, dtype=torch.int64)}, (0, 0)),
        ([], (0, 0)),
        (None, (0, 0)),
    ],
    ids=str,
)
def test_tokens_are_counted_by_the_first_field_that_tells(microbatch, expected):
    assert count_tokens(microbatch) == expected


def test_a_packs_own_targets_stand_in_for_masks_that_its_microbatches_lack():
    pack = TokenPack([{"input_ids": IDS}, {"input_ids": IDS, "attention_mask": MASK}], np.array([3, 4]))
    assert count_pack(pack) == (2, 4, 3 + 5, 3 + 8)
    assert count_pack([*pack]) == (2, 4, 8 + 5, 8 + 8)
    assert count_pack([]) == (0, 0, 0, 0)


def test_rows_are_those_of_what_was_counted_or_of_the_first_tensor():
    assert count_pack([{"image": torch.ones(3, 8, 8), "scale": torch.tensor(2.0)}]).rows == 3
    assert count_pack([{"cu_seqlens": torch.arange(9), "segment_ids": torch.ones(2, 5)}]).rows == 2
    assert count_pack([IDS[0]]).rows == 1


@pytest.mark.parametrize("depth", [0, 2])
def test_a_function_of_ones_own_counts_instead(depth):
    stream = build_device_pack_stream(NumberedPacks(4), "cpu", depth, count_tokens=lambda microbatch: (3, 4))
    list(stream)
    metrics = stream.metrics()
    assert (metrics.packs, metrics.microbatches, metrics.rows) == (4, 4, 8)
    assert (metrics.tokens, metrics.padded_tokens, metrics.padding_share) == (12, 16, 0.25)


class Slow(NumberedPacks):
    def __init__(self, seconds):
        super().__init__(4)
        self.seconds = seconds

    def _packs(self):
        for pack in super()._packs():
            threading.Event().wait(self.seconds)
            yield pack


def test_the_time_that_was_waited_is_told_from_the_consumers_own():
    waiting = build_device_pack_stream(Slow(0.05), "cpu", 0)
    list(waiting)
    metrics = waiting.metrics()
    assert 0.2 <= metrics.wait_s <= metrics.elapsed_s
    assert metrics.wait_share > 0.9
    working = build_device_pack_stream(Slow(0.0), "cpu", 1)
    for _ in working:
        threading.Event().wait(0.05)
    metrics = working.metrics()
    assert metrics.elapsed_s >= 0.2
    assert metrics.wait_share < 0.5
    assert metrics == working.metrics()  # the clock stands when the iterator is over


def test_what_is_prefetched_is_not_counted_and_intervals_are_differences():
    inner = NumberedPacks(6)
    stream = build_device_pack_stream(inner, "cpu", 3, count_tokens=lambda microbatch: (10, 10))
    assert stream.metrics() == DataMetrics()
    assert (stream.metrics().wait_share, stream.metrics().padding_share, stream.metrics().tokens_per_s) == (0, 0, 0)
    packs = iter(stream)
    next(packs)
    while inner.pulls < 4:
        assert inner.pulled.acquire(timeout=10)
    before = stream.metrics()
    assert (before.packs, before.tokens) == (1, 10)
    next(packs)
    next(packs)
    between = stream.metrics().since(before)
    assert (between.packs, between.tokens) == (2, 20)
    assert 0 < between.wait_s <= between.elapsed_s
    assert between.tokens_per_s == pytest.approx(20 / between.elapsed_s)
    packs.close()
    assert stream.metrics().packs == 3


def test_metrics_go_on_over_iterators_and_count_the_packs_of_all():
    stream = build_device_pack_stream(NumberedPacks(5), "cpu", 1)
    for _ in stream:
        break
    list(stream)
    list(stream)
    assert stream.metrics().packs == 10


class Documents(Numbers):
    lengths = np.array([3, 5, 2, 6, 7, 1])

    def __getitem__(self, item):
        return {"tokens": np.arange(self.lengths[item])}


def test_packed_rows_and_padded_ones_tell_their_padding():
    dataset = PackedDataset(Documents(6), 8)
    loader = StatefulDataLoader(dataset, stack_segments(), rank=0, world_size=1, local_batch_size=1, device="cpu")
    stream = build_device_pack_stream(FixedCountMicrobatchPacker(loader, 1), "cpu", 0)
    places = sum(pack[0]["segment_ids"].numel() for pack in stream)
    metrics = stream.metrics()
    assert (metrics.tokens, metrics.padded_tokens) == (24, places)

    def padded(samples):
        rows = [torch.from_numpy(sample["tokens"]) for sample in samples]
        masks = [torch.ones_like(row) for row in rows]
        return {"input_ids": pad_stack_1d(rows, 0), "attention_mask": pad_stack_1d(masks, 0)}

    loader = StatefulDataLoader(Documents(6), padded, rank=0, world_size=1, local_batch_size=2, device="cpu")
    stream = build_device_pack_stream(FixedCountMicrobatchPacker(loader, 1), "cpu", 1)
    list(stream)
    metrics = stream.metrics()
    assert (metrics.rows, metrics.tokens, metrics.padded_tokens) == (6, 24, 2 * (5 + 6 + 7))
    assert metrics.padding_share == pytest.approx(12 / 36)
