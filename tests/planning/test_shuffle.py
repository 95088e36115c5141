"""A shuffle of endless positions: a permutation an epoch, any position alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.planning import Permutation, derive_seed, shuffled
from headrace.planning.shuffle import shuffled_each
from planning import reference


@pytest.mark.parametrize("n", [1, 2, 3, 10, 1000, 1025, 2000])
def test_each_epoch_has_every_item_once_and_stays_in_its_own_range(n):
    for epoch in (0, 1, 2, 1000):
        items = shuffled(np.arange(epoch * n, (epoch + 1) * n), n, seed=7)
        assert np.sort(items).tolist() == list(range(epoch * n, (epoch + 1) * n))


def test_epochs_and_seeds_have_orders_of_their_own():
    n = 100
    orders = [tuple((shuffled(np.arange(n) + e * n, n, seed) % n).tolist()) for seed in range(4) for e in range(4)]
    assert len(set(orders)) == 16


def test_seed_7_epoch_1_is_not_seed_8_epoch_0():
    n = 100
    assert (shuffled(np.arange(n) + n, n, 7) % n).tolist() != shuffled(np.arange(n), n, 8).tolist()


def test_an_epoch_is_the_permutation_that_its_derived_seed_names():
    n = 50
    expected = 3 * n + Permutation(n, derive_seed(7, "shuffle", 3))(np.arange(n))
    assert (shuffled(np.arange(3 * n, 4 * n), n, 7) == expected).all()


@given(
    n=st.integers(1, 2**62),
    seed=st.integers(0, 2**64),
    positions=st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=5),
)
def test_any_position_is_as_the_reference_has_it_alone_and_among_others(n, seed, positions):
    last_whole = 2**63 // n * n - 1  # epochs that end behind 2**63 are refused
    positions = [min(position, last_whole) for position in positions]
    expected = [reference.shuffled(position, n, seed) for position in positions]
    assert shuffled(np.array(positions), n, seed).tolist() == expected
    for position, item in zip(positions, expected, strict=True):
        assert shuffled(np.array([position]), n, seed).tolist() == [item]


def test_positions_come_in_any_order_shape_and_integer_type_and_may_repeat():
    n = 30
    everything = shuffled(np.arange(90), n, 7)
    mixed = np.array([[89, 0, 31], [31, 59, 60]])
    assert (shuffled(mixed, n, 7) == everything[mixed]).all()
    assert (shuffled(mixed.astype("u1"), n, 7) == everything[mixed]).all()
    assert (shuffled(mixed.astype(">i4"), n, 7) == everything[mixed]).all()
    assert shuffled(mixed.tolist(), n, 7).tolist() == everything[mixed].tolist()
    assert shuffled(np.array(31), n, 7).shape == ()


@pytest.mark.parametrize("n", [0, 10])
def test_no_positions_give_no_items(n):
    assert shuffled(np.empty((0, 3), np.int64), n, 7).shape == (0, 3)
    assert shuffled([], n, 7).dtype == np.int64


def test_positions_without_an_item_are_refused():
    for positions, n in (([0], 0), ([-1], 10), ([5, -7], 10)):
        with pytest.raises(IndexError, match="outside an order"):
            shuffled(np.array(positions), n, 7)
    with pytest.raises(TypeError, match="float64"):
        shuffled(np.array([1.5]), 10, 7)


def test_the_last_epoch_that_ends_below_the_largest_integer_is_served_and_the_next_is_refused():
    n = 2**62
    assert shuffled(np.array([2 * n - 1]), n, 7).tolist() == [reference.shuffled(2 * n - 1, n, 7)]
    with pytest.raises(IndexError, match="does not end below"):
        shuffled(np.array([3 * 2**61]), 2**62 - 1 - 2**60, 7)
    with pytest.raises(IndexError, match="does not end below"):
        shuffled(np.array([2**63], np.uint64), 10, 7)
    # 2**63 + 1 is a multiple of 3: an epoch that ends one item too late.
    assert int(shuffled(np.array([2**63 - 3]), 3, 7)[0]) == reference.shuffled(2**63 - 3, 3, 7)
    with pytest.raises(IndexError, match="does not end below"):
        shuffled(np.array([2**63 - 2]), 3, 7)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([1, 2, 7, 1024, 1030, 10**6]),
            st.integers(0, 1 << 64),
            st.lists(st.integers(0, 3 * 10**6), min_size=1, max_size=9),
        ),
        min_size=1,
        max_size=9,
    )
)
def test_many_shuffles_at_once_are_the_same_as_one_by_one_over_epochs_too(each):
    bounds = np.cumsum([0, *(len(positions) for _, _, positions in each)]).tolist()
    together = shuffled_each(
        np.array([position for _, _, positions in each for position in positions]),
        bounds,
        [num_items for num_items, _, _ in each],
        [seed for _, seed, _ in each],
    )
    one_by_one = [shuffled(np.array(positions), num_items, seed) for num_items, seed, positions in each]
    assert together.tolist() == np.concatenate(one_by_one).tolist()


@pytest.mark.parametrize(("position", "num_items"), [(-1, 5), (0, 0), ((1 << 63) - 1, 10)])
def test_many_shuffles_at_once_refuse_what_one_refuses(position, num_items):
    with pytest.raises(IndexError):
        shuffled(np.array([position]), num_items, 1)
    with pytest.raises(IndexError):
        shuffled_each(np.array([3, position]), [0, 1, 2], [5, num_items], [1, 2])
