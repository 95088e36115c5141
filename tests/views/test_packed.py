"""PackedDataset: rows against one token at a time, documents of every kind, and what is refused."""

import itertools
import json
import pickle
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import (
    BufferSortedDataset,
    DocumentNumpyFormat,
    DocumentStorage,
    MemoryStore,
    PackedBatch,
    PackedDataset,
    SelectedDataset,
    ShuffledDataset,
    StateMismatchError,
    WithLengths,
    stack,
    stack_segments,
)
from headrace.errors import OptionError, OrderError
from headrace.planning.packing import STRATEGIES
from loading.samples import WORKERS, make
from planning import packing_reference, reference


def documents_of(lengths, dtype=np.uint16):
    """Document k holds the numbers 100 * k + 0, 1, 2, ... + 1."""
    return [(np.arange(length) + 100 * number + 1).astype(dtype) for number, length in enumerate(lengths)]


def with_lengths(lengths, dtype=np.uint16):
    return WithLengths(documents_of(lengths, dtype), lengths)


def stored(lengths, dtype="<u2"):
    storage = DocumentStorage(MemoryStore(), DocumentNumpyFormat(dtype))
    with storage.sync_writer() as writer:
        for number, document in enumerate(documents_of(lengths)):
            writer.append(number // 3, document)
    return storage.dataset()


def slow_row(pieces, documents, capacity, pad_id=0):
    """A sample of (document, start, stop), one token after another."""
    sample = {"input_ids": [], "position_ids": [], "segment_ids": [], "cu_seqlens": [0], "document_ids": []}
    for segment, (document, start, stop) in enumerate(pieces, 1):
        for place in range(start, stop):
            sample["input_ids"].append(int(documents[document][place]))
            sample["position_ids"].append(place - start)
            sample["segment_ids"].append(segment)
        sample["cu_seqlens"].append(len(sample["input_ids"]))
        sample["document_ids"].append(document)
    for place in range(capacity - len(sample["input_ids"])):
        sample["input_ids"].append(pad_id)
        sample["position_ids"].append(place)
        sample["segment_ids"].append(0)
    if sample["cu_seqlens"][-1] < capacity:
        sample["cu_seqlens"].append(capacity)
    return sample


def slow_epoch(order, documents, capacity, window, *, epoch=0, pad_id=0, seed=0, **options):
    """All rows of an epoch whose documents come in this order."""
    num_windows = max(1, len(order) // window) if order else 0
    rows = []
    for number in range(num_windows):
        here = order[number * window :] if number == num_windows - 1 else order[number * window : (number + 1) * window]
        lengths = [len(documents[item]) for item in here]
        seed_here = reference.derive_seed(seed, "pack", epoch, number)
        planned, _ = packing_reference.packed(lengths, capacity, seed=seed_here, **options)
        rows += [
            slow_row([(here[index], start, stop) for index, start, stop in row], documents, capacity, pad_id)
            for row in planned
        ]
    return rows


def lists(sample):
    return {name: array.tolist() for name, array in sample.items()}


# What rows hold.


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_boundaries_in_a_pack(strategy):
    packed = PackedDataset(with_lengths([3, 5, 2, 6]), 8, strategy=strategy)
    rows = {tuple(row["document_ids"].tolist()): row for row in packed}
    assert rows.keys() == {(0, 1), (2, 3)}
    assert lists(rows[0, 1]) == {
        "input_ids": [1, 2, 3, 101, 102, 103, 104, 105],
        "position_ids": [0, 1, 2, 0, 1, 2, 3, 4],
        "segment_ids": [1, 1, 1, 2, 2, 2, 2, 2],
        "cu_seqlens": [0, 3, 8],
        "document_ids": [0, 1],
    }
    assert {name: array.dtype.str for name, array in rows[0, 1].items()} == {
        "input_ids": "<u2",
        "position_ids": "<i8",
        "segment_ids": "<i8",
        "cu_seqlens": "<i4",
        "document_ids": "<i8",
    }
    labels = stack_segments(labels=True)([rows[0, 1]])["labels"]
    assert labels.tolist() == [[2, 3, -100, 102, 103, 104, 105, -100]]


def test_padding_is_a_segment_of_its_own_without_labels():
    packed = PackedDataset(with_lengths([3, 2]), 8, pad_id=9)
    (row,) = packed
    assert lists(row) == {
        "input_ids": [1, 2, 3, 101, 102, 9, 9, 9],
        "position_ids": [0, 1, 2, 0, 1, 0, 1, 2],
        "segment_ids": [1, 1, 1, 2, 2, 0, 0, 0],
        "cu_seqlens": [0, 3, 5, 8],
        "document_ids": [0, 1],
    }
    batch = stack_segments(labels=True)(packed[:])
    assert batch["labels"].tolist() == [[2, 3, -100, 102, -100, -100, -100, -100]]


many = settings(max_examples=2 * settings.default.max_examples)


@many
@given(
    lengths=st.lists(st.integers(0, 25), max_size=30),
    capacity=st.integers(1, 20),
    window=st.integers(1, 40),
    strategy=st.sampled_from(STRATEGIES),
    long=st.sampled_from(["split", "drop"]),
    seed=st.integers(0, 2**40),
    shuffle_seed=st.none() | st.integers(0, 9),
    epoch=st.integers(0, 3),
)
def test_any_rows_are_those_of_one_token_at_a_time(
    lengths, capacity, window, strategy, long, seed, shuffle_seed, epoch
):
    documents = documents_of(lengths)
    base = with_lengths(lengths)
    order = list(range(len(lengths)))
    if shuffle_seed is not None:
        base = ShuffledDataset(base, shuffle_seed)
        order = [reference.shuffled(epoch * len(order) + k, len(order), shuffle_seed) % len(order) for k in order]
    packed = PackedDataset(base, capacity, window, strategy, long, seed)
    expected = slow_epoch(order, documents, capacity, window, epoch=epoch, seed=seed, strategy=strategy, long=long)
    assert packed.rows_in_epoch(epoch) == len(expected)
    addresses = [packed.addresses(epoch, number) for number in range(packed.num_windows)]
    addresses = np.concatenate([np.empty(0, np.int64), *addresses])
    if len(addresses) == 0:
        return
    assert [lists(row) for row in packed.__getitems__(addresses)] == expected
    for number in {0, len(addresses) // 2, len(addresses) - 1}:  # a row alone, and among others in another order
        assert lists(packed.__getitems__(addresses[[number]])[0]) == expected[number]
    backwards = packed.__getitems__(np.concatenate([addresses[::-1], addresses[:1]]))
    assert [lists(row) for row in backwards] == [*expected[::-1], expected[0]]


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=20),
    capacity=st.integers(1, 20),
    strategy=st.sampled_from(STRATEGIES),
)
def test_documents_on_disk_of_which_parts_are_read_give_the_same_rows(lengths, capacity, strategy):
    whole = PackedDataset(with_lengths(lengths), capacity, strategy=strategy)
    parts = PackedDataset(stored(lengths), capacity, strategy=strategy)
    assert [lists(row) for row in parts] == [lists(row) for row in whole]


def test_of_a_long_document_on_disk_only_the_row_s_part_is_read(monkeypatch):
    dataset = stored([10_000, 3])
    packed = PackedDataset(dataset, 100)
    read = []
    plain = type(dataset).read_slices

    def watched(self, items, starts, stops):
        read.append((items.tolist(), (stops - starts).tolist()))
        return plain(self, items, starts, stops)

    monkeypatch.setattr(type(dataset), "read_slices", watched)
    monkeypatch.setattr(type(dataset), "__getitems__", lambda self, items: [None] * len(items))
    assert packed.__getitems__(packed.addresses(0, 0)[5:7]).stacked()["document_ids"].tolist() == [0, 0]
    assert read == [([0, 0], [100, 100])]


def test_every_epoch_over_a_shuffle_has_every_token_once_in_rows_of_its_own():
    lengths = np.random.default_rng(3).integers(0, 30, 200).tolist()
    base = ShuffledDataset(with_lengths(lengths), 5)
    packed = PackedDataset(base, 32, window=50)
    epochs = []
    for epoch in range(3):
        addresses = np.concatenate([packed.addresses(epoch, window) for window in range(packed.num_windows)])
        batch = packed.__getitems__(addresses).stacked()
        epochs.append(batch["input_ids"])
        assert sorted(batch["input_ids"][batch["segment_ids"] > 0].tolist()) == sorted(
            np.concatenate(documents_of(lengths)).tolist()
        )
        assert len(batch["document_ids"]) == sum(length > 0 for length in lengths)
    assert not np.array_equal(epochs[0], epochs[1])


def test_view_items_are_the_rows_of_epoch_0_in_order():
    packed = PackedDataset(with_lengths([3, 5, 2, 6, 7, 1, 4, 4]), 8, window=3)
    rows = [lists(row) for row in packed]
    assert len(packed) == len(rows) == packed.rows_in_epoch()
    assert [lists(row) for row in packed[1:3]] == rows[1:3]
    assert lists(packed[-1]) == rows[-1]
    with pytest.raises(IndexError, match="outside a dataset of"):
        packed[len(rows)]


# Over-long documents, and packers that give nothing.


def test_the_policies_for_documents_that_are_too_long():
    dataset = with_lengths([9, 20, 4])
    split = PackedDataset(dataset, 8, long="split")
    assert sum(int((row["segment_ids"] > 0).sum()) for row in split) == 33
    assert (split.report()["tokens"], split.report()["split_documents"]) == (33, 2)
    drop = PackedDataset(dataset, 8, long="drop").report()
    assert (drop["dropped_documents"], drop["dropped_tokens"], drop["tokens"], drop["documents"]) == (2, 29, 4, 1)
    with pytest.raises(OrderError, match=r"position 0 \(item 0 of WithLengths\) has 9 tokens, more than a row of 8"):
        len(PackedDataset(dataset, 8, long="error"))


def test_error_names_position_and_item_of_a_document_in_a_later_epoch():
    lengths = [3] * 20
    lengths[7] = 50
    packed = PackedDataset(ShuffledDataset(with_lengths(lengths), 1), 8, window=5, long="error")
    order = [reference.shuffled(40 + k, 20, 1) % 20 for k in range(20)]
    position = 40 + order.index(7)
    with pytest.raises(OrderError, match=rf"position {position} \(item 7 of WithLengths\) has 50 tokens"):
        packed.rows_in_epoch(2)


def test_empty_documents_take_no_place_and_a_document_may_fill_a_row():
    packed = PackedDataset(with_lengths([0, 8, 0]), 8)
    assert [lists(row)["document_ids"] for row in packed] == [[1]]
    assert packed.report()["empty_documents"] == 2


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


def test_report_counts_an_epoch_from_lengths_alone():
    class Unread:
        lengths = np.array([9, 20, 4, 0, 8, 3])

        def __len__(self):
            return 6

        def __getitem__(self, index):
            raise AssertionError(index)

    packed = PackedDataset(Unread(), 8, window=2)
    assert packed.report() == {
        "rows": 7,
        "documents": 5,
        "tokens": 44,
        "capacity": 56,
        "utilisation": 44 / 56,
        "split_documents": 2,
        "dropped_documents": 0,
        "dropped_tokens": 0,
        "empty_documents": 1,
    }
    assert PackedDataset(with_lengths([]), 8).report()["utilisation"] == 1
    assert packed.rows_in_epoch() == 7


# Documents of every kind.


class Listed:
    """A dataset of these documents, as they are."""

    def __init__(self, documents, lengths=None):
        self.documents = documents
        self.lengths = np.array([len(document) for document in documents] if lengths is None else lengths)

    def __len__(self):
        return len(self.documents)

    def __getitem__(self, index):
        return self.documents[index]


def one_row(document, length, **options):
    (row,) = PackedDataset(Listed([document], [length]), length + 2, **options)
    return {name: array.tolist() for name, array in row.items() if not name.endswith("_ids") or name == "input_ids"}


MASKED = np.array([(5, 1), (6, 0)], [("tokens", "<u2"), ("mask", "u1")])


@pytest.mark.parametrize(
    ("document", "field", "expected"),
    [
        (np.array([5, 6], np.int32), None, {}),
        ([5, 6], None, {}),
        (torch.tensor([5, 6]), None, {}),
        ({"tokens": np.array([5, 6])}, None, {}),
        ({"input_ids": [5, 6], "text": "ab", "id": 3, "names": ["a", "b"], "rows": [[1], [2]]}, None, {}),
        ({"ids": np.array([5, 6]), "tokens": np.array([1.5, 2.5])}, "ids", {"tokens": [1.5, 2.5, 0, 0]}),
        ({"tokens": [5, 6], "mask": [True, False]}, None, {"mask": [True, False, False, False]}),
        ({"tokens": [5, 6], "labels": [-100, 6]}, None, {"labels": [-100, 6, -100, -100]}),
        ({"tokens": [5, 6], "more": np.zeros(9)}, ("tokens",), {}),
        ({"tokens": [5, 6], "more": np.zeros(9), "mask": [1, 2]}, ("tokens", "mask"), {"mask": [1, 2, 0, 0]}),
        (MASKED, None, {"mask": [1, 0, 0, 0]}),
        (MASKED, "mask", {"tokens": [5, 6, 0, 0]}),
    ],
)
def test_documents_are_arrays_or_have_named_ones_which_go_along(document, field, expected):
    tokens = [1, 0, 7, 7] if field == "mask" else [5, 6, 7, 7]
    row = one_row(document, 2, field=field, pad_id=7)
    assert row == {"input_ids": tokens, "cu_seqlens": [0, 2, 4], **expected}


def test_fields_go_along_with_the_part_of_a_document_that_a_row_has():
    documents = [{"tokens": np.arange(10), "mask": np.arange(10) % 2}]
    for row in PackedDataset(Listed(documents, [10]), 4):
        assert (row["mask"] == np.where(row["segment_ids"] > 0, row["input_ids"] % 2, 0)).all()


@pytest.mark.parametrize(
    ("documents", "field", "error", "text"),
    [
        (
            [np.zeros((2, 2), int)],
            None,
            TypeError,
            r"in one dimension, or a dict with one, not ndarray of shape \(2, 2\)",
        ),
        (["ab"], None, TypeError, "or a dict with one, not str"),
        ([{"text": "ab"}], None, ValueError, "no field 'tokens' or 'input_ids'; they have 'text'; pass field="),
        ([{"tokens": [1, 2]}], "ids", ValueError, "no field 'ids'; they have 'tokens'"),
        ([{"tokens": "ab"}], None, TypeError, "field 'tokens' is no array of tokens"),
        ([{"tokens": [1, 2], "input_ids": [1, 2]}], None, ValueError, "fields 'tokens' and 'input_ids'; pass field="),
        ([{"tokens": [1, 2], "input_ids": [1, 2]}], "tokens", ValueError, "'input_ids' would hide what packing makes"),
        ([{"tokens": [1, 2], "more": [1, 2, 3]}], None, ValueError, "'more' has 3 numbers for 2 tokens; field="),
        ([{"tokens": [1, 2], "more": "ab"}], ("tokens", "more"), TypeError, "'more' is no array of numbers"),
        ([{"tokens": [1, 2], "cu_seqlens": [1, 2]}], None, ValueError, "'cu_seqlens' would hide"),
        ([{"tokens": [1, 2], "a": [1, 2]}, {"tokens": [1, 2]}], None, ValueError, "document 1 has other fields"),
        ([np.array([1, 2]), np.array([1.5, 2.5])], None, TypeError, "types that do not go together"),
        ([np.arange(5)], None, ValueError, "document 0 has 5 tokens, but its length was given as 2"),
    ],
)
def test_what_is_no_document_is_refused_when_it_is_read(documents, field, error, text):
    packed = PackedDataset(Listed(documents, [2] * len(documents)), 8, field=field)
    with pytest.raises(error, match=text):
        packed[:]


def test_integers_of_several_types_become_one_that_holds_them_all():
    row = PackedDataset(Listed([np.array([65535], np.uint16), np.array([70_000], np.uint32)]), 2)[0]
    assert sorted(row["input_ids"].tolist()) == [65535, 70_000]
    assert row["input_ids"].dtype == np.uint32


def test_a_pad_id_that_the_stored_type_cannot_hold_is_refused():
    with pytest.raises(OptionError, match="pad_id=-1 is not valid; expected a number of the stored type, uint16"):
        PackedDataset(with_lengths([3]), 8, pad_id=-1)[0]


def test_a_document_that_is_shorter_than_its_length_leaves_padding():
    """As the substitute of a damaged one may be."""
    documents = [np.arange(3, dtype=np.uint16), np.arange(10, 20, dtype=np.uint16)]
    rows = list(PackedDataset(Listed(documents, [5, 10]), 6, strategy="concat"))
    assert [row["input_ids"].tolist() for row in rows] == [
        [0, 1, 2, 10, 0, 0],
        [11, 12, 13, 14, 15, 16],
        [17, 18, 19, 0, 0, 0],
    ]
    assert [row["cu_seqlens"].tolist() for row in rows] == [[0, 3, 4, 6], [0, 6], [0, 3, 6]]


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
    assert batch.nbytes == sum(array.nbytes for array in stacked.values()) or batch.nbytes > stacked["input_ids"].nbytes


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
        (PackedDataset(packed.base, 11, window=10), "sequence_length: saved 10, current 11"),
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


# What is refused at construction.


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"sequence_length": 0}, OptionError, "sequence_length=0"),
        ({"sequence_length": 8.0}, TypeError, "sequence_length must be an integer, not 8.0"),
        ({"window": 0}, OptionError, "window=0"),
        ({"strategy": "worst"}, OptionError, "strategy='worst' is not valid; expected 'best_fit'"),
        ({"long": "alone"}, OptionError, "long='alone' is not valid; expected 'split', 'drop', 'error'"),
        ({"seed": 1.5}, TypeError, "seed must be an integer"),
        ({"pad_id": None}, TypeError, "pad_id must be an integer"),
        ({"field": ()}, OptionError, "field=()"),
        ({"field": 3}, OptionError, "field=3 is not valid; expected the name"),
        ({"field": ("a", "a")}, OptionError, "different names"),
        ({"base": PackedDataset(with_lengths([3]), 8)}, OrderError, "PackedDataset last"),
    ],
)
def test_what_means_nothing_is_refused(changes, error, text):
    with pytest.raises(error, match=re.escape(text)):
        PackedDataset(**{"base": with_lengths([3]), "sequence_length": 8, **changes})


def test_a_base_that_does_not_know_its_lengths_is_refused_when_rows_are_planned():
    with pytest.raises(TypeError, match="list does not know the lengths"):
        len(PackedDataset([np.arange(3)], 8))


def test_views_do_not_stand_on_packed_rows():
    packed = PackedDataset(with_lengths([3, 5]), 8)
    for view in (lambda: ShuffledDataset(packed, 0), lambda: SelectedDataset(packed, keep=[0])):
        with pytest.raises(OrderError, match="put PackedDataset last"):
            view()


def test_it_pickles_as_its_settings_and_says_them():
    packed = PackedDataset(with_lengths([3, 5, 2, 6]), 8, seed=4)
    expected = [lists(row) for row in packed]
    assert [lists(row) for row in pickle.loads(pickle.dumps(packed))] == expected
    assert "8, window=65536, strategy='best_fit', long='split', seed=4" in repr(packed)


def test_many_threads_read_rows_at_once():
    packed = PackedDataset(with_lengths(np.random.default_rng(1).integers(1, 30, 300).tolist()), 32, window=40)
    addresses = np.concatenate([packed.addresses(0, window) for window in range(packed.num_windows)])
    expected = [lists(row) for row in packed.__getitems__(addresses)]

    def read(number):
        fresh = [lists(packed.__getitems__(addresses[[k]])[0]) for k in range(number, len(addresses), 7)]
        return fresh == expected[number::7]

    with ThreadPoolExecutor(7) as pool:
        assert all(pool.map(read, range(7)))
