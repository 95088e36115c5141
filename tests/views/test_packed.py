"""PackedDataset: rows against one token at a time, documents of every kind, and what is refused."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import (
    DocumentNumpyFormat,
    DocumentStorage,
    MemoryStore,
    PackedDataset,
    ShuffledDataset,
    StatefulDataLoader,
    WithLengths,
    stack_segments,
)
from headrace.errors import OrderError
from headrace.planning.packing import STRATEGIES
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
        with StatefulDataLoader(packed, local_batch_size=1, rank=rank, world_size=2, drop_last=drop_last) as loader:
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
