"""The counts that a correct loss needs: whatever way a batch is split, its mean a token and its means a document."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from dataset.payload_scenes import counted_spans, spans_at
from headrace import PackedDataset, ShuffledDataset, StatefulDataLoader, WithLengths, stack_segments
from headrace.formats.annotated import SpanNumpyFormat
from headrace.store import MemoryStore
from headrace.views import TokenBudgetBatches
from loading.samples import WORKERS

VOCABULARY = 50
TABLE = torch.rand(VOCABULARY, VOCABULARY, dtype=torch.float64, generator=torch.Generator().manual_seed(45))

# Rows of 9 tokens, with 4, 8, 0, 6 and 8 targets: of one document, of three, of many, and of single tokens.
ROWS = [[5, 1, 1, 1, 1], [9], [1] * 9, [3, 3, 3], [9]]
TARGETS = [4, 8, 0, 6, 8]


def documents(lengths, seed=1):
    """Documents of these lengths, of random tokens."""
    generator = np.random.default_rng(seed)
    return WithLengths([generator.integers(0, VOCABULARY, length, np.uint16) for length in lengths], lengths)


def packed_rows():
    return PackedDataset(documents(list(itertools.chain(*ROWS))), 9, strategy="concat")


def span_windows():
    """Windows of ten elements, of which the last is only a label, over documents that windows cut."""
    spans = [[[(length, b"") for length in (3, 5, 2, 6, 1, 1, 1, 12, 2, 4, 9)]]]
    return spans_at(MemoryStore(), counted_spans(spans), SpanNumpyFormat("<u2")).dataset(9, extra=1)


def token_losses(batch, table=TABLE):
    """The toy model's loss of each element, 0 where there is no target."""
    logits = table[batch["input_ids"].to(torch.int64)]
    losses = cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="none")
    return losses.reshape(batch["labels"].shape)


def document_means(batch):
    """The mean loss of each document that has a target, row by row."""
    losses, bounds = token_losses(batch).flatten(), batch["cu_seqlens"].tolist()
    sums = [float(losses[begin:end].sum()) for begin, end in itertools.pairwise(bounds)]
    counts = batch["segment_targets"].tolist()
    return [total / count for total, count in zip(sums, counts, strict=True) if count]


def ranks_batches(dataset, world_size, local_batch_size, collate, **options):
    """The batches of each rank, of one epoch."""
    ranks = []
    for rank in range(world_size):
        place = {"rank": rank, "world_size": world_size, "device": "cpu", "drop_last": False}
        with StatefulDataLoader(dataset, collate, local_batch_size=local_batch_size, **place, **options) as loader:
            ranks.append(list(loader))
    return ranks


def test_a_batch_counts_its_targets_and_those_of_each_segment():
    collate = stack_segments(labels=True)
    packed = packed_rows()
    assert [int(collate(packed[row : row + 1])["num_targets"]) for row in range(5)] == TARGETS
    batch = collate(packed[:])
    assert batch["num_targets"].tolist() == sum(TARGETS)
    assert (batch["num_targets"].dtype, batch["segment_targets"].dtype) == (torch.int64, torch.int64)
    assert batch["num_targets"].shape == ()
    assert batch["segment_targets"].tolist() == [length - 1 for row in ROWS for length in row]
    assert not {"num_targets", "segment_targets"} & stack_segments()(packed[:]).keys()


def test_padding_is_a_segment_without_targets():
    batch = stack_segments(labels=True)(PackedDataset(documents([3, 4, 2]), 8, strategy="concat", long="drop")[:])
    assert batch["cu_seqlens"].tolist() == [0, 3, 7, 8, 9, 16]
    assert batch["segment_targets"].tolist() == [2, 3, 0, 0, 0]
    assert batch["num_targets"].tolist() == 5


@pytest.mark.parametrize("dataset", [packed_rows(), span_windows()], ids=["packed", "spans"])
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize(("world_size", "local_batch_size"), [(1, 1), (2, 1), (2, 2), (3, 1)])
def test_losses_of_micro_batches_and_ranks_are_combined_to_that_of_the_unsplit_batch(
    dataset, workers, world_size, local_batch_size
):
    collate = stack_segments(labels=True)
    unsplit = collate(dataset[:])
    expected = float(token_losses(unsplit).sum() / unsplit["num_targets"])
    ranks = ranks_batches(dataset, world_size, local_batch_size, collate, **WORKERS[workers])
    assert len({len(batches) for batches in ranks}) == 1, "every rank has as many micro-batches"
    batches = list(itertools.chain(*ranks))
    total = sum(int(batch["num_targets"]) for batch in batches)
    combined = sum(float(token_losses(batch).sum()) for batch in batches) / total
    assert combined == pytest.approx(expected, abs=1e-6)
    for batch in batches:
        assert int(batch["num_targets"]) == int((batch["labels"] != -100).sum())
        assert math.isfinite(float(token_losses(batch).sum() / total))


def test_ranks_of_other_totals_give_the_gradient_of_the_unsplit_batch():
    dataset, collate = packed_rows(), stack_segments(labels=True)
    ranks = ranks_batches(dataset, 2, 1, collate)
    totals = [[int(batch["num_targets"]) for batch in batches] for batches in ranks]
    assert totals == [[4, 0, 8], [8, 6, 0]]  # the last one of rank 1 has no rows
    total = sum(map(sum, totals))

    def gradient(batches):
        table = TABLE.clone().requires_grad_()
        for batch in batches:
            (token_losses(batch, table).sum() / total).backward()
        return table.grad

    expected = gradient([collate(dataset[:])])
    summed = sum(gradient(batches) for batches in ranks)
    torch.testing.assert_close(summed, expected, rtol=0, atol=1e-6)
    assert torch.isfinite(summed).all()
    # A mean of the micro-batches' means is something else, and none at all where one has no targets.
    means = [float(token_losses(batch).sum() / batch["num_targets"]) for batch in itertools.chain(*ranks)]
    assert [math.isnan(mean) for mean in means] == [False, True, False, False, False, True]
    exact = float(token_losses(collate(dataset[:])).sum() / total)
    assert np.nanmean(means) != pytest.approx(exact, abs=1e-6)
    weights = list(itertools.chain(*totals))
    weighed = sum(mean * weight for mean, weight in zip(means, weights, strict=True) if weight) / total
    assert weighed == pytest.approx(exact, abs=1e-6)


def test_means_a_document_are_there_for_rows_with_three_segments_and_one():
    dataset, collate = packed_rows(), stack_segments(labels=True)
    three, one = collate(dataset[3:4]), collate(dataset[4:5])
    assert (three["segment_targets"].tolist(), one["segment_targets"].tolist()) == ([2, 2, 2], [8])
    both = document_means(collate(dataset[3:5]))
    assert document_means(three) + document_means(one) == pytest.approx(both, abs=1e-12)
    assert len(both) == 4
    losses = token_losses(three)
    assert both[1] == pytest.approx(float(losses[0, 3:5].mean()))


def test_a_rank_without_rows_counts_nothing():
    packed = packed_rows()
    (_, (*_, empty)) = ranks_batches(packed, 2, 1, stack_segments(labels=True))
    assert empty["num_targets"].tolist() == 0
    assert empty["segment_targets"].shape == (0,)
    assert float(token_losses(empty).sum() / 26) == 0


@given(st.lists(st.integers(0, 20), min_size=1, max_size=30), st.integers(2, 12), st.data())
def test_counts_add_up_whatever_rows_are_put_together(lengths, capacity, data):
    packed = PackedDataset(documents(lengths), capacity, window=7)
    collate = stack_segments(labels=True)
    if len(packed) == 0:
        return
    cut = data.draw(st.integers(0, len(packed)))
    whole = collate(packed[:])
    parts = [collate(part) for part in (packed[:cut], packed[cut:])]
    assert sum(int(part["num_targets"]) for part in parts) == int(whole["num_targets"])
    assert torch.equal(torch.cat([part["segment_targets"] for part in parts]), whole["segment_targets"])
    assert int(whole["segment_targets"].sum()) == int(whole["num_targets"])
    pieces = sum(-(-length // capacity) for length in lengths)
    assert int(whole["num_targets"]) == sum(lengths) - pieces


@pytest.mark.parametrize(
    ("dtype", "value", "error", "text"),
    [
        (np.float32, 1.5, TypeError, "labels are integers, and the tokens are float32"),
        (bool, True, TypeError, "labels are integers, and the tokens are bool"),
        (np.uint64, 1 << 63, ValueError, "the tokens have the value 9223372036854775808"),
    ],
)
def test_tokens_that_are_no_labels_are_refused(dtype, value, error, text):
    samples = PackedDataset(WithLengths([np.full(5, value, dtype)], [5]), 8)[:]
    stack_segments()(samples)
    with pytest.raises(error, match=text):
        stack_segments(labels=True)(samples)
    window = {"tokens": np.full(5, value, dtype), "span_lengths": np.array([5])}
    with pytest.raises(error, match=text):
        stack_segments(labels=True)([window])


def test_the_largest_labels_are_kept():
    for dtype, value in ((np.uint64, (1 << 63) - 1), (np.int64, -(1 << 63)), (np.uint8, 255)):
        samples = PackedDataset(WithLengths([np.full(3, value, dtype)], [3]), 4)[:]
        assert stack_segments(labels=True)(samples)["labels"].tolist() == [[value, value, -100, -100]]


def padded(samples):
    """A collate function for batches of documents: their tokens, padded, and what to predict."""
    longest = max(map(len, samples), default=1)
    labels = torch.full((len(samples), longest), -100)
    input_ids = torch.zeros((len(samples), longest), dtype=torch.int64)
    for row, tokens in enumerate(samples):
        input_ids[row, : len(tokens)] = torch.from_numpy(tokens.astype(np.int64))
        labels[row, : len(tokens) - 1] = input_ids[row, 1 : len(tokens)]
    return {"input_ids": input_ids, "labels": labels, "num_targets": (labels != -100).sum()}


@pytest.mark.parametrize("kind", ["packed", "batches"])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_every_rank_has_as_many_micro_batches_and_all_together_give_one_loss(kind, world_size):
    base = ShuffledDataset(documents(np.random.default_rng(2).integers(1, 25, 203).tolist()), 5)
    if kind == "packed":
        dataset, collate = PackedDataset(base, 32, window=60), stack_segments(labels=True)
        options = {"local_batch_size": 8 // world_size}
    else:
        dataset, collate = TokenBudgetBatches(base, 100, 8, cost=(1, 0.1), window=60), padded
        options = {"local_batch_size": None}
    ranks = ranks_batches(dataset, world_size, options["local_batch_size"], collate)
    assert len({len(batches) for batches in ranks}) == 1
    batches = list(itertools.chain(*ranks))
    total = sum(int(batch["num_targets"]) for batch in batches)
    assert total == sum(length - 1 for length in base.lengths.tolist())
    # Rows of 32 hold every document whole, so both kinds have the same targets, and the same loss.
    losses = [token_losses({"input_ids": one[None, :-1], "labels": one[None, 1:]}) for one in map(int64s, base[:])]
    expected = sum(float(loss.sum()) for loss in losses) / total
    assert sum(float(token_losses(batch).sum()) for batch in batches) / total == pytest.approx(expected, abs=1e-6)


def int64s(tokens):
    return torch.from_numpy(tokens.astype(np.int64))
