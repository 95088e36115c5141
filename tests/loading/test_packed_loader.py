"""Batches of packed rows as tensors, and packed rows through a loader."""

import itertools
import json
import pickle
import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace import (
    BufferSortedDataset,
    ElasticBatchSampler,
    PackedBatch,
    PackedDataset,
    SelectedDataset,
    ShuffledDataset,
    StatefulDataLoader,
    StateMismatchError,
    WithLengths,
    stack,
    stack_segments,
)
from headrace.errors import OrderError
from headrace.planning.packing import STRATEGIES
from loading.samples import WORKERS, make
from planning import reference
from views.packed_scenes import Damaged, Listed, documents_of, lists, slow_epoch, with_lengths

# Batches.


def test_a_batch_stacks_as_its_samples_do_and_is_sliced_as_a_list():
    packed = PackedDataset(with_lengths([3, 5, 2, 6, 7, 1, 4, 4, 30]), 8)
    batch = packed[:]
    assert isinstance(batch, PackedBatch)
    samples = list(batch)
    for chosen in (slice(None), slice(1, 4), slice(None, None, -2), slice(0, 0)):
        part = batch[chosen]
        assert isinstance(part, PackedBatch)
        assert [lists(row) for row in part] == [lists(row) for row in samples[chosen]]
    stacked = batch.stacked()
    for name in ("input_ids", "position_ids", "segment_ids"):
        assert np.array_equal(stacked[name], np.stack([sample[name] for sample in samples]))
    ends = [0]
    for sample in samples:
        ends += (ends[-1] + sample["cu_seqlens"][1:]).tolist()
    assert stacked["cu_seqlens"].tolist() == ends
    assert stacked["cu_seqlens"].dtype == np.int32
    for row, (begin, end) in enumerate(itertools.pairwise(stacked["row_segments"].tolist())):
        assert np.array_equal(stacked["document_ids"][begin:end], samples[row]["document_ids"])
    assert lists(batch[-1]) == lists(samples[-1])
    with pytest.raises(IndexError):
        batch[len(batch)]
    assert batch.nbytes >= sum(stacked[name].nbytes for name in ("input_ids", "position_ids", "segment_ids"))


@pytest.mark.parametrize("labels", [False, True])
def test_a_batch_a_list_of_its_samples_and_a_copy_by_pickle_make_the_same_tensors(labels):
    packed = PackedDataset(Listed([{"tokens": np.arange(n), "mask": np.arange(n) % 2} for n in (3, 5, 2, 6, 7)]), 8)
    packed.base.lengths = np.array([3, 5, 2, 6, 7])
    batch = packed[:]
    collate = stack_segments(dtype=torch.int32, labels=labels)
    expected = collate(batch)
    assert expected["input_ids"].dtype == torch.int32
    assert expected["mask"].dtype == torch.int64
    assert ("labels" in expected) == labels
    for other in (list(batch), pickle.loads(pickle.dumps(batch))):
        for name, tensor in collate(other).items():
            assert torch.equal(tensor, expected[name]), name
            assert tensor.dtype == expected[name].dtype
    plain = stack()(batch)
    assert {name: tensor.tolist() for name, tensor in plain.items()} == {
        name: array.tolist() for name, array in batch.stacked().items()
    }


@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=20),
    capacity=st.integers(1, 10),
    strategy=st.sampled_from(STRATEGIES),
)
def test_every_pair_of_neighbours_in_a_piece_is_a_label_exactly_once(lengths, capacity, strategy):
    packed = PackedDataset(with_lengths(lengths, np.int64), capacity, strategy=strategy)
    batch = stack_segments(labels=True)(packed[:])
    seen = [
        (token, label)
        for token, label in zip(batch["input_ids"].flatten().tolist(), batch["labels"].flatten().tolist(), strict=True)
        if label != -100
    ]
    plan = packed.window_plan(0, 0)
    expected = [
        (100 * document + place + 1, 100 * document + place + 2)
        for document, start, stop in zip(
            plan.documents.tolist(), plan.starts.tolist(), plan.stops.tolist(), strict=True
        )
        for place in range(start, stop - 1)
    ]
    assert seen == expected


def test_labels_of_the_documents_own_are_not_replaced():
    packed = PackedDataset(Listed([{"tokens": [5, 6], "labels": [-100, 6]}], [2]), 4)
    with pytest.raises(ValueError, match="labels of their own"):
        stack_segments(labels=True)(packed[:])


def test_rows_of_several_lengths_or_fields_are_no_batch():
    some = PackedDataset(with_lengths([3]), 8)[0]
    for other in (PackedDataset(with_lengths([3]), 9)[0], {**some, "mask": np.zeros(8)}):
        with pytest.raises(ValueError, match="different lengths or fields"):
            stack_segments()([some, other])


# Through a loader.


@pytest.mark.parametrize("collate", [None, stack_segments(), stack_segments(labels=True)])
@pytest.mark.parametrize("workers", WORKERS)
def test_a_rank_without_rows_gets_tensors_of_none(collate, workers):
    packed = PackedDataset(with_lengths([8] * 3), 8)
    options = {"rank": 1, "world_size": 2, "global_batch_size": 2, "drop_last": False}
    with make(packed, collate, **options, **WORKERS[workers]) as loader:
        full, empty = list(loader)
    assert full.keys() == empty.keys()
    assert empty["cu_seqlens"].tolist() == [0]
    assert empty["row_segments"].tolist() == [0]
    for name, tensor in empty.items():
        assert tensor.dtype == full[name].dtype
        if name in ("input_ids", "position_ids", "segment_ids", "labels"):
            assert tensor.shape == (0, 8)


@pytest.mark.parametrize("buckets", [False, True])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("workers", ["alone", "threads"])
def test_a_run_resumed_after_any_pack_goes_on_as_the_reference(strategy, workers, buckets):
    lengths = np.random.default_rng(46).integers(1, 21, 200).tolist()
    base = ShuffledDataset(with_lengths(lengths), 7)
    order = [reference.shuffled(k, 200, 7) % 200 for k in range(200)]
    if buckets:
        base = BufferSortedDataset(base, 64, 16, 0)
        order = [int(base.base.locate(base.locate(np.array([k])))[0]) for k in range(200)]
    packed = PackedDataset(base, 16, window=60, strategy=strategy)
    expected = slow_epoch(order, documents_of(lengths), 16, 60, strategy=strategy)

    def loader():
        return make(packed, list, local_batch_size=1, drop_last=False, **WORKERS[workers])

    states = []
    with loader() as first:
        for number, (row,) in enumerate(first):
            assert lists(row) == expected[number]
            states.append(json.dumps(first.state_dict()))
    assert len(states) == len(expected)
    for taken in [*range(10), len(states) // 2]:
        with loader() as resumed:
            resumed.load_state_dict(json.loads(states[taken]))
            for number, (row,) in zip(range(taken + 1, taken + 6), resumed, strict=False):
                assert lists(row) == expected[number]
    assert sum(len(set(row["document_ids"])) for row in expected) >= 200


def test_a_state_names_window_and_row_and_is_refused_by_other_packing():
    packed = PackedDataset(with_lengths([5] * 40), 10, window=10)
    with make(packed, list, local_batch_size=2) as loader:
        next(iter(loader))
        state = loader.state_dict()
        assert (state["window"], state["row"], state["position"]) == (0, 2, 2)
    for other, named in (
        (PackedDataset(packed.base, 11, window=10), "row_length: saved 10, current 11"),
        (PackedDataset(packed.base, 10, window=11), "window: saved 10, current 11"),
        (PackedDataset(packed.base, 10, window=10, strategy="concat"), "packing: saved 'best_fit', current 'concat'"),
        (PackedDataset(packed.base, 10, window=10, long="drop"), "long: saved 'split', current 'drop'"),
        (PackedDataset(packed.base, 10, window=10, seed=1), "pack_seed: saved 0, current 1"),
        (PackedDataset(with_lengths([5] * 39 + [6]), 10, window=10), "lengths"),
    ):
        with make(other, list, local_batch_size=2) as loader, pytest.raises(StateMismatchError, match=named):
            loader.load_state_dict(state)
    with make(PackedDataset(packed.base, 10, window=10, pad_id=3), list, local_batch_size=1) as loader:
        loader.load_state_dict(state)  # padding is no part of the order


def run_within(seconds, work):
    """What work gives or raises; it must not hang."""
    found = []

    def target():
        try:
            found.append(work())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    thread.join(seconds)
    assert found, "it hangs"
    return found[0]


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("rank", [0, 1])
def test_an_epoch_that_drops_every_document_ends_or_raises_on_every_rank(rank, drop_last):
    packed = PackedDataset(with_lengths([9, 20, 30]), 8, long="drop")
    assert len(packed) == 0
    assert packed[:].stacked()["input_ids"].shape == (0, 8)

    def work():
        with make(packed, None, local_batch_size=1, rank=rank, world_size=2, drop_last=drop_last) as loader:
            return list(loader)

    result = run_within(5, work)
    assert isinstance(result, OrderError) if drop_last else result == []


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stock_loader_over_the_sampler_gives_the_same_rows(workers):
    packed = PackedDataset(ShuffledDataset(with_lengths([3, 5, 2, 6, 7, 1, 4, 4] * 9), 2), 8, window=20)
    collate = stack_segments(labels=True)
    ours = [lists(batch) for batch in make(packed, collate, local_batch_size=3, drop_last=False)]
    sampler = ElasticBatchSampler(packed, 3, 0, 1, drop_last=False)
    stock = torch.utils.data.DataLoader(packed, batch_sampler=sampler, collate_fn=collate, num_workers=workers)
    assert [lists(batch) for batch in stock] == ours
    assert [lists(batch) for batch in stock] != ours  # the next epoch


@pytest.mark.parametrize("long", ["split", "drop"])
def test_two_ranks_together_give_every_kept_token_once(long):
    lengths = [9, 20, 4, 0, 8]
    packed = PackedDataset(with_lengths(lengths), 8, long=long)
    found = []
    for rank in range(2):
        with make(packed, list, rank=rank, world_size=2, global_batch_size=2, drop_last=False) as loader:
            steps = list(loader)
        assert len(steps) == -(-packed.rows_in_epoch() // 2)
        found += [row["input_ids"][row["segment_ids"] > 0] for batch in steps for row in batch]
    kept = [document for document in documents_of(lengths) if long == "split" or len(document) <= 8]
    assert sorted(np.concatenate(found).tolist()) == sorted(np.concatenate(kept).tolist())


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_damaged_document_is_replaced_alike_in_whatever_rows_it_lies(strategy):
    lengths = [9, 20, 4, 13, 8, 2, 30, 5, 25, 7]
    packed = PackedDataset(Damaged(documents_of(lengths), lengths), 8, strategy=strategy, window=5)
    plans = [packed.window_plan(0, window) for window in range(2)]
    runs = []
    for how in WORKERS.values():
        with make(packed, stack_segments(), local_batch_size=3, drop_last=False, skip_corrupt=True, **how) as loader:
            runs.append([lists(batch) for batch in loader])
            assert {skipped.item for skipped in loader.skipped} == {3, 8}
            instead = {skipped.item: skipped.substitute for skipped in loader.skipped}
    assert all(run == runs[0] for run in runs)
    tokens = [row for batch in runs[0] for row in batch["input_ids"]]
    segments = [row for batch in runs[0] for row in batch["segment_ids"]]
    rows = [
        [(5 * window + plan.documents[k], plan.starts[k], plan.stops[k]) for k in range(*plan.offsets[row : row + 2])]
        for window, plan in enumerate(plans)
        for row in range(plan.num_rows)
    ]
    documents = documents_of(lengths)
    for row, ids, pieces in zip(tokens, segments, rows, strict=True):
        found = [documents[instead.get(document, document)][start:stop] for document, start, stop in pieces]
        expected = np.concatenate(found).tolist()
        assert row == expected + [0] * (8 - len(expected))
        assert sum(segment > 0 for segment in ids) == len(expected)
    with make(packed, stack_segments()) as loader, pytest.raises(ValueError, match="is damaged"):
        list(loader)


def test_a_loader_is_opened_whatever_its_first_epoch_has_since_a_state_may_be_of_another():
    documents = WithLengths([np.arange(length) for length in range(11)], np.arange(11))
    rows = PackedDataset(SelectedDataset(ShuffledDataset(documents, 1), [0, 10]), 4, window=2)  # two an epoch
    assert [rows.rows_in_epoch(epoch) for epoch in range(2)] == [2, 4]
    with StatefulDataLoader(rows, local_batch_size=3) as loader:
        with pytest.raises(OrderError, match="do not fill one global batch of 3"):
            iter(loader)
        loader.set_epoch(1)
        state = loader.state_dict()
        expected = next(iter(loader))["document_ids"].tolist()
    with StatefulDataLoader(rows, local_batch_size=3) as loader:
        loader.load_state_dict(state)
        assert next(iter(loader))["document_ids"].tolist() == expected
