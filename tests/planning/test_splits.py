"""Proportions in whole numbers: shares from weights, whole draws from shares, and draws dealt by splits in two."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import OptionError
from headrace.planning.proportions import UNIT, apportioned, exact_weight, quotas, shares_of
from headrace.planning.splits import Splits
from planning import mixture_reference

weights = st.integers(0, 5) | st.integers(1, 10**9) | st.fractions(0, 10, max_denominator=10**6)
some_weights = st.lists(weights, min_size=1, max_size=9).filter(any)
FIBONACCI = [1, 1]
while len(FIBONACCI) < 60:
    FIBONACCI.append(FIBONACCI[-1] + FIBONACCI[-2])
LOPSIDED = {
    "one half beside 999 that share the other": [999, *[1] * 999],
    "a thousand equal ones": [1] * 1000,
    "each twice the one before": [1 << k for k in range(60)],
    "Fibonacci numbers, the deepest tree": FIBONACCI,
    "a millionth": [1, 10**6],
    "harmonic": [Fraction(1, k) for k in range(1, 200)],
}


@given(some_weights)
def test_shares_are_the_references_and_sum_to_one(given_weights):
    shares = shares_of(given_weights)
    assert sum(shares) == UNIT
    assert shares == mixture_reference.shares_of(given_weights)
    assert all(
        abs(share - Fraction(weight) / sum(given_weights) * UNIT) < 2
        for share, weight in zip(shares, given_weights, strict=True)
    )


@given(some_weights, st.fractions(1, 1000, max_denominator=1000))
def test_weights_that_are_scaled_alike_have_the_same_shares(given_weights, factor):
    assert shares_of([weight * factor for weight in given_weights]) == shares_of(given_weights)


def test_a_weight_is_the_decimal_number_that_was_written():
    assert exact_weight(0.1, "a") == exact_weight(np.float32(0.1), "a") == exact_weight(np.float64(0.1), "a")
    assert exact_weight(0.1, "a") == Fraction(1, 10)
    assert exact_weight(np.int64(3), "a") == exact_weight(3, "a") == exact_weight(Fraction(3), "a") == 3
    assert exact_weight(1e-300, "a") == Fraction(1, 10**300)


@pytest.mark.parametrize("weight", [-1, -0.5, float("nan"), float("inf"), -float("inf"), np.float32("nan")])
def test_a_weight_that_is_negative_or_no_number_is_refused_by_name(weight):
    with pytest.raises(OptionError, match=r"weights\['web'\]"):
        exact_weight(weight, "web")


@pytest.mark.parametrize("weight", [True, None, "1", b"1", 1j, [1]])
def test_a_weight_of_another_type_is_refused_by_name(weight):
    with pytest.raises(TypeError, match="'web'"):
        exact_weight(weight, "web")


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=9).filter(any), st.integers(0, 10**6))
def test_whole_numbers_are_apportioned_by_largest_remainder(numbers, total):
    parts = apportioned(numbers, total)
    assert sum(parts) == total
    assert parts == mixture_reference.largest_remainder(numbers, total)


@given(st.data())
def test_quotas_sum_up_keep_their_caps_and_are_the_references(data):
    size = data.draw(st.integers(1, 6))
    parts = st.lists(st.integers(-3 * UNIT, 9 * UNIT), min_size=size, max_size=size)
    targets = data.draw(parts)
    caps = data.draw(st.lists(st.none() | st.integers(0, 9), min_size=size, max_size=size))
    most = 30 if None in caps else sum(caps)
    total = data.draw(st.integers(0, most))
    counts = quotas(targets, caps, total)
    assert sum(counts) == total
    assert all(count >= 0 and (cap is None or count <= cap) for count, cap in zip(counts, caps, strict=True))
    assert counts == mixture_reference.quotas(targets, caps, total)


def dealt(splits, number):
    numbers = np.arange(number, dtype=np.int64)
    of, sources, first, counts = splits.ranges(numbers, numbers + 1)
    assert counts.tolist() == [1] * number
    order = np.argsort(of)
    assert of[order].tolist() == numbers.tolist()
    return list(zip(sources[order].tolist(), first[order].tolist(), strict=True))


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_draw_of_every_small_mixture_is_the_references(size):
    for given_weights in itertools.product(range(5 if size < 4 else 3), repeat=size):
        if not any(given_weights):
            continue
        splits, tree = Splits(given_weights), mixture_reference.Tree(given_weights)
        before = [0] * size
        for number, (source, draw) in enumerate(dealt(splits, 30)):
            assert splits.counts(number) == tree.counts(number) == before
            assert draw == before[source]
            before[source] += 1
            assert tree.counts(number + 1) == before
            assert splits.number_of(source, draw) == number


@given(some_weights, st.integers(0, (1 << 62) - 1))
def test_any_draw_is_found_alone_and_finds_its_place_again(given_weights, number):
    splits, tree = Splits(given_weights), mixture_reference.Tree(given_weights)
    _, (source,), (draw,), _ = (column.tolist() for column in splits.ranges(np.array([number]), np.array([number + 1])))
    before, after = splits.counts(number), splits.counts(number + 1)
    assert before == tree.counts(number)
    assert after == tree.counts(number + 1)
    assert sum(before) == number
    assert [later - earlier for earlier, later in zip(before, after, strict=True)] == [
        int(k == source) for k in range(len(given_weights))
    ]
    assert before[source] == draw
    assert splits.number_of(source, draw) == number


@given(some_weights, st.lists(st.tuples(st.integers(0, 1 << 61), st.integers(1, 2000)), min_size=1, max_size=4))
def test_ranges_of_draws_have_what_counts_grow_by(given_weights, spans):
    splits = Splits(given_weights)
    begins = np.array([begin for begin, _ in spans], np.int64)
    of, sources, first, counts = splits.ranges(begins, begins + np.array([size for _, size in spans], np.int64))
    expected = []
    for number, (begin, size) in enumerate(spans):
        pairs = zip(splits.counts(begin), splits.counts(begin + size), strict=True)
        expected += [(number, s, low, high - low) for s, (low, high) in enumerate(pairs) if low < high]
    found = zip(of.tolist(), sources.tolist(), first.tolist(), counts.tolist(), strict=True)
    assert sorted(found) == expected


@pytest.mark.parametrize("given_weights", LOPSIDED.values(), ids=LOPSIDED)
def test_counts_are_within_two_of_the_share_at_every_prefix(given_weights):
    total = sum(map(Fraction, given_weights))
    shares = np.array([float(Fraction(weight) / total) for weight in given_weights])
    sources = np.array(dealt(Splits(shares_of(given_weights)), 3000))[:, 0]
    counts = np.cumsum(sources[:, None] == np.arange(len(shares)), axis=0)
    assert np.abs(counts - np.arange(1, 3001)[:, None] * shares).max() < 2


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=30).filter(any))
def test_weights_that_sum_to_the_number_of_draws_are_the_counts(quota):
    assert Splits(quota).counts(sum(quota)) == quota


def test_counts_of_a_share_are_exact_after_any_number_of_rounds():
    for rounds in (1, 7, 10**15, (1 << 62) // 1000):
        assert Splits([1, 999]).counts(1000 * rounds) == [rounds, 999 * rounds]
        assert Splits([300, 200, 500]).counts(1000 * rounds) == [300 * rounds, 200 * rounds, 500 * rounds]


def test_a_source_without_weight_is_never_drawn():
    assert {source for source, _ in dealt(Splits([0, 3, 0, 1]), 1000)} == {1, 3}


def test_a_share_below_what_64_bits_hold_does_not_take_the_others_draws():
    splits = Splits([1, 1 << 126])
    assert splits.counts(1 << 60) == [0, 1 << 60]
    assert Splits(shares_of([Fraction(1, 10**300), 1])).counts(1 << 60)[1] == 1 << 60
