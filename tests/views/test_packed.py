"""PackedDataset: rows against one token at a time, policies, mixtures, and what is refused."""

import pickle
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import (
    PackedDataset,
    SelectedDataset,
    ShuffledDataset,
    stack_segments,
)
from headrace.errors import OptionError, OrderError
from headrace.planning.packing import STRATEGIES
from headrace.views.mixed import MixedDataset
from loading.samples import make
from planning import reference
from views.packed_scenes import Listed, documents_of, lists, slow_epoch, stored, with_lengths

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


# Over mixtures.


def test_over_a_mixture_every_document_says_which_source_it_is_from():
    sources = {"a": with_lengths([3, 5, 2]), "b": ShuffledDataset(with_lengths([6, 1, 4, 4]), 3)}
    inner = MixedDataset(sources, seed=1)
    packed = PackedDataset(MixedDataset({"x": inner, "never": [], "y": with_lengths([2, 2])}, [7, 0, 2]), 8, window=5)
    assert packed.source_names == ["x/a", "x/b", "never", "y"]
    leaves = [sources["a"], sources["b"].base, None, with_lengths([2, 2])]
    seen = []
    for row in packed:
        for segment, (source, item) in enumerate(zip(row["source_ids"], row["document_ids"], strict=True), 1):
            assert row["input_ids"][row["segment_ids"] == segment].tolist() == leaves[source][int(item)].tolist()
            seen.append((int(source), int(item)))
    assert len(seen) == 9
    assert {(3, 0), (3, 1)} <= set(seen)
    stacked = packed[:].stacked()
    assert list(zip(stacked["source_ids"].tolist(), stacked["document_ids"].tolist(), strict=True)) == seen
    assert [lists(row) for row in pickle.loads(pickle.dumps(packed))] == [lists(row) for row in packed]


def test_sources_of_one_name_in_two_mixtures_have_numbers_of_their_own():
    inner = MixedDataset({"b": with_lengths([3])})
    packed = PackedDataset(MixedDataset({"a/b": with_lengths([2]), "a": inner}), 8)
    assert packed.source_names == ["a/b", "a/b"]
    (row,) = packed
    assert dict(zip(row["source_ids"].tolist(), np.diff(row["cu_seqlens"]).tolist(), strict=False)) == {0: 2, 1: 3}


def test_a_rank_without_rows_of_a_mixture_has_sources_of_none():
    mixed = MixedDataset({"a": with_lengths([8]), "b": with_lengths([8, 8])})
    options = {"rank": 1, "world_size": 2, "global_batch_size": 2, "drop_last": False}
    with make(PackedDataset(mixed, 8), stack_segments(labels=True), **options) as loader:
        full, empty = list(loader)
    assert (len(full["source_ids"]), len(empty["source_ids"])) == (1, 0)
    assert empty["source_ids"].dtype == torch.int64


def test_an_error_in_a_mixture_names_the_source_and_one_for_a_long_document_too():
    mixed = MixedDataset({"good": with_lengths([3]), "bad": Listed(["abc"])})
    with pytest.raises(TypeError) as caught:
        PackedDataset(mixed, 8)[:]
    assert "in source 'bad' of a mixture" in "".join(caught.value.__notes__)
    mixed = MixedDataset({"good": with_lengths([3]), "long": with_lengths([30])})
    with pytest.raises(OrderError, match=r"\(item 0 of WithLengths of source 'long'\) has 30 tokens"):
        len(PackedDataset(mixed, 8, long="error"))


def test_packing_over_a_mixture_that_was_changed_shows_batches_of_no_rows_all_the_same():
    mixed = MixedDataset({"a": with_lengths([8] * 4), "b": with_lengths([8] * 4)}).continued(5, {"a": 3, "b": 2})
    assert len(PackedDataset(mixed, 8).no_rows()) == 0


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
