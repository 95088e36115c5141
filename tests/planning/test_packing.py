"""Packing: documents into rows, against one document at a time, over whole small domains and at random."""

import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import OptionError, OrderError
from headrace.planning import derive_seed
from headrace.planning.first_fit import first_fit
from headrace.planning.packing import LONG_POLICIES, STRATEGIES, pack
from planning import packing_reference

COUNTS = ("dropped_documents", "dropped_tokens", "empty_documents", "split_documents")


def rows_of(packed):
    """The rows as lists of (document, start, stop)."""
    pieces = list(zip(packed.documents.tolist(), packed.starts.tolist(), packed.stops.tolist(), strict=True))
    return [pieces[begin:end] for begin, end in itertools.pairwise(packed.offsets.tolist())]


def planned(lengths, capacity, strategy="best_fit", long="split", seed=0):
    return pack(np.array(lengths, np.int64), capacity, strategy=strategy, long=long, seed=seed)


def assert_as_reference(lengths, capacity, strategy, long, seed):
    packed = planned(lengths, capacity, strategy, long, seed)
    rows, counts = packing_reference.packed(lengths, capacity, strategy, long, seed)
    assert rows_of(packed) == rows
    assert {name: getattr(packed, name) for name in COUNTS} == counts
    assert packed.num_rows == len(rows)
    assert packed.tokens == sum(stop - start for row in rows for _, start, stop in row)


# Against one document at a time.


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_list_of_a_few_short_documents_is_packed_as_one_at_a_time(strategy):
    for capacity, most, longest in ((1, 3, 3), (2, 4, 4), (3, 4, 4), (4, 4, 5), (5, 5, 3)):
        for number in range(most + 1):
            for lengths in itertools.product(range(longest + 1), repeat=number):
                assert_as_reference(lengths, capacity, strategy, "split", 3)


many = settings(max_examples=4 * settings.default.max_examples)


@many
@given(
    lengths=st.lists(st.integers(0, 40), max_size=60),
    capacity=st.integers(1, 45),
    strategy=st.sampled_from(STRATEGIES),
    long=st.sampled_from(["split", "drop"]),
    seed=st.integers(0, 2**64),
)
def test_any_documents_are_packed_as_one_at_a_time(lengths, capacity, strategy, long, seed):
    assert_as_reference(lengths, capacity, strategy, long, seed)


@given(
    counts=st.dictionaries(st.integers(1, 12), st.integers(1, 60), max_size=8),
    capacity=st.integers(6, 24),
    seed=st.integers(0, 99),
)
def test_many_documents_of_few_lengths_are_packed_as_one_at_a_time(counts, capacity, seed):
    lengths = [length for length, count in counts.items() for _ in range(count)]
    lengths = [lengths[(index * 7919 + seed) % len(lengths)] for index in range(len(lengths))]
    for strategy in STRATEGIES:
        assert_as_reference(lengths, capacity, strategy, "split", seed)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("capacity", [500, 512, 1024, 1300, 2048])  # around the words of the rooms' bits
def test_lognormal_documents_are_packed_as_one_at_a_time(strategy, capacity):
    lengths = np.random.default_rng(capacity).lognormal(5.5, 1.3, 400).astype(int).tolist()
    assert_as_reference(lengths, capacity, strategy, "split", 11)


# Laws.


@many
@given(
    lengths=st.lists(st.integers(0, 5000), max_size=300),
    capacity=st.integers(1, 3000),
    strategy=st.sampled_from(STRATEGIES),
    long=st.sampled_from(["split", "drop"]),
    seed=st.integers(0, 99),
)
def test_every_token_is_in_exactly_one_row_and_no_row_is_too_long_or_empty(lengths, capacity, strategy, long, seed):
    packed = planned(lengths, capacity, strategy, long, seed)
    sizes = packed.stops - packed.starts
    assert (sizes > 0).all()
    totals = np.add.reduceat(sizes, packed.offsets[:-1]) if packed.num_rows else sizes
    assert ((totals > 0) & (totals <= capacity)).all()
    assert (np.diff(packed.offsets) > 0).all()
    kept = [0 if long == "drop" and length > capacity else length for length in lengths]
    order = np.lexsort((packed.starts, packed.documents))
    documents, starts, stops = (part[order].tolist() for part in (packed.documents, packed.starts, packed.stops))
    covered = [0] * len(lengths)
    for document, start, stop in zip(documents, starts, stops, strict=True):
        assert start == covered[document]  # where the piece before it ended
        covered[document] = stop
    assert covered == kept
    assert packed.tokens + packed.dropped_tokens == sum(lengths)
    if strategy != "concat":  # whole documents are cut only where they are longer than a row
        assert packed.split_documents == sum(length > capacity for length in kept)


@given(lengths=st.lists(st.integers(1, 100), max_size=200), capacity=st.integers(1, 100), seed=st.integers(0, 9))
def test_documents_stand_in_a_row_in_their_own_order(lengths, capacity, seed):
    for strategy in STRATEGIES:
        for row in rows_of(planned(lengths, capacity, strategy, seed=seed)):
            assert row == sorted(row)


@given(lengths=st.lists(st.integers(1, 30), max_size=80), capacity=st.integers(1, 40))
def test_the_seed_decides_the_order_of_the_rows_and_nothing_else(lengths, capacity):
    for strategy in ("best_fit", "first_fit"):
        some, other = (rows_of(planned(lengths, capacity, strategy, seed=seed)) for seed in (1, 2))
        assert sorted(some) == sorted(other)
    assert rows_of(planned(lengths, capacity, "concat", seed=1)) == rows_of(
        planned(lengths, capacity, "concat", seed=2)
    )


def test_rows_come_in_every_order():
    orders = {
        tuple(row[0][0] for row in rows_of(planned([5, 5, 5, 5], 5, seed=derive_seed(0, number))))
        for number in range(500)
    }
    assert len(orders) == 24


@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=100), capacity=st.integers(1, 40))
def test_no_two_rows_of_a_fit_would_go_into_one(lengths, capacity):
    """Hence all rows but one are more than half full, and there are less than twice as many as the tokens need."""
    for strategy in ("best_fit", "first_fit"):
        packed = planned(lengths, capacity, strategy)
        totals = np.sort(np.add.reduceat(packed.stops - packed.starts, packed.offsets[:-1]))
        assert len(totals) == 1 or totals[0] + totals[1] > capacity


@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=100), capacity=st.integers(1, 40))
def test_concat_fills_every_row_but_the_last(lengths, capacity):
    packed = planned(lengths, capacity, "concat")
    assert packed.num_rows == -(-sum(lengths) // capacity)
    totals = np.add.reduceat(packed.stops - packed.starts, packed.offsets[:-1])
    assert (totals[:-1] == capacity).all()


# Documents that are too long, exactly as long as a row, and empty ones.


def test_split_keeps_every_token_of_long_documents():
    packed = planned([9, 20, 4], 8)
    assert packed.tokens == 33
    assert sorted(rows_of(packed)) == [[(0, 0, 8)], [(0, 8, 9)], [(1, 0, 8)], [(1, 8, 16)], [(1, 16, 20), (2, 0, 4)]]
    assert (packed.split_documents, packed.dropped_documents, packed.dropped_tokens) == (2, 0, 0)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_drop_says_how_many_documents_and_tokens_it_left_out(strategy):
    packed = planned([9, 20, 4], 8, strategy, "drop")
    assert rows_of(packed) == [[(2, 0, 4)]]
    assert (packed.dropped_documents, packed.dropped_tokens, packed.tokens) == (2, 29, 4)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_error_names_the_document(strategy):
    with pytest.raises(OrderError, match=r"document 1 has 20 tokens, more than a row of 8; long=\"split\" cuts"):
        planned([8, 20, 9], 8, strategy, "error")
    assert planned([8, 8], 8, strategy, "error").num_rows == 2


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("long", LONG_POLICIES)
def test_a_document_of_exactly_a_row_is_whole_and_one_of_no_tokens_takes_no_place(strategy, long):
    packed = planned([0, 8, 0, 8, 0], 8, strategy, long)
    assert sorted(rows_of(packed)) == [[(1, 0, 8)], [(3, 0, 8)]]
    assert (packed.empty_documents, packed.split_documents, packed.dropped_documents) == (3, 0, 0)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("lengths", "long"), [([], "split"), ([0, 0], "split"), ([9, 10], "drop"), ([], "error")])
def test_nothing_to_pack_gives_no_rows(strategy, lengths, long):
    packed = planned(lengths, 8, strategy, long)
    assert rows_of(packed) == []
    assert packed.offsets.tolist() == [0]
    assert packed.tokens == 0
    assert {part.dtype for part in (packed.documents, packed.starts, packed.stops, packed.offsets)} == {
        np.dtype(np.int64)
    }


def test_huge_lengths_and_rows_are_planned_in_integers():
    packed = planned([2**40 + 1, 3], 2**39, "concat")
    assert rows_of(packed) == [[(0, 0, 2**39)], [(0, 2**39, 2**40)], [(0, 2**40, 2**40 + 1), (1, 0, 3)]]


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        (
            {"strategy": "worst_fit"},
            OptionError,
            r"strategy='worst_fit' is not valid; expected 'best_fit', 'first_fit'",
        ),
        ({"long": "cut"}, OptionError, "long='cut' is not valid; expected 'split', 'drop', 'error'"),
        ({"capacity": 0}, OptionError, "capacity=0 is not valid; expected at least 1 token"),
        ({"lengths": [3, -1]}, OrderError, "document 1 has a length of -1 tokens"),
    ],
)
def test_what_means_nothing_is_refused(changes, error, text):
    with pytest.raises(error, match=text):
        planned(**{"lengths": [3], "capacity": 8, **changes})


# How full, and how fast.


@pytest.mark.parametrize("capacity", [1024, 2048, 8192])
def test_best_fit_leaves_less_than_a_thousandth_of_the_rows_empty(capacity):
    lengths = np.random.default_rng(0).lognormal(6, 1.2, 65_536).astype(np.int64)
    packed = pack(lengths, capacity, strategy="best_fit", long="split", seed=0)
    assert packed.tokens / (packed.num_rows * capacity) > 0.999


@pytest.mark.parametrize(("strategy", "least"), [("best_fit", 500_000), ("concat", 1_000_000), ("first_fit", 200_000)])
def test_a_window_is_planned_fast(strategy, least):
    """Generous: benchmarks/packing.py holds the real bounds."""
    lengths = np.random.default_rng(0).lognormal(6, 1.2, 65_536).astype(np.int64)
    begin = time.process_time()
    pack(lengths, 2048, strategy=strategy, long="split", seed=0)
    assert 65_536 / (time.process_time() - begin) > least


def first_fit_by_arrays(sizes, capacity):
    """The row of each piece: the first of all rooms that is enough."""
    rooms = np.full(len(sizes) + 1, capacity)
    rows = []
    for size in sizes.tolist():
        rows.append(int((rooms >= size).argmax()))
        rooms[rows[-1]] -= size
    return rows


def a_first_row_that_drains(num_pieces, capacity):
    """The first row has more room than the many behind it, and less than every other piece that comes."""
    rooms = range(capacity - 4, 8, -2)
    drains = [size for room in rooms for size in (2, room + 1)]
    return np.array([2] + [capacity - 1] * (num_pieces - len(drains) - 1) + drains)


ROW = 2048
RNG = np.random.default_rng(3)
LISTS = {
    "lognormal": np.minimum(np.maximum(1, RNG.lognormal(6, 1.2, 9000)), ROW).astype(np.int64),
    "uniform": RNG.integers(1, ROW + 1, 9000),
    "falling": np.sort(RNG.integers(1, ROW + 1, 9000))[::-1],
    "rising": np.sort(RNG.integers(1, ROW + 1, 9000)),
    "tiny and huge": np.where(RNG.random(9000) < 0.5, RNG.integers(1, 20, 9000), RNG.integers(ROW - 60, ROW + 1, 9000)),
    "a first row that drains": a_first_row_that_drains(9000, 1024),
    "whole rows": np.where(RNG.random(2000) < 0.5, ROW, RNG.integers(1, ROW, 2000)),
}


@pytest.mark.parametrize("name", LISTS)
def test_first_fit_of_thousands_of_rows_is_that_of_looking_at_every_row(name):
    capacity = 1024 if "drains" in name else ROW
    rows, num_rows = first_fit(LISTS[name], capacity)
    assert rows.tolist() == first_fit_by_arrays(LISTS[name], capacity)
    assert num_rows == rows.max() + 1


def test_the_worst_window_for_first_fit_is_planned_fast_all_the_same():
    lengths = a_first_row_that_drains(65_536, 8192)
    begin = time.process_time()
    packed = pack(lengths, 8192, strategy="first_fit", long="error", seed=0)
    assert packed.tokens == lengths.sum()
    assert time.process_time() - begin < 5


def test_the_worst_window_for_groups_is_planned_fast_all_the_same():
    """Every length once, in large rows: no two documents can be handled together."""
    lengths = np.arange(1, 65_537, dtype=np.int64)
    begin = time.process_time()
    packed = pack(lengths, 131_072, strategy="best_fit", long="error", seed=0)
    assert packed.tokens == lengths.sum()
    assert time.process_time() - begin < 2
