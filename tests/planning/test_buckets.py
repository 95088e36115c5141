"""Order inside a window: sorted into packs, packs and places in them permuted; pure in keys, window and seed."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import OrderError
from headrace.planning.buckets import window_order
from planning import reference

KEYS = st.integers(-5, 5) | st.integers(-(2**63), 2**63 - 1)


def expected(keys, pack_size, window, seed):
    """The rules of docs/design/buckets.md, one place at a time."""
    number = len(keys)
    own = reference.derive_seed(seed, "buckets", window)
    tie_of = reference.whole_or_some(number, reference.derive_seed(own, "ties"), range(number))
    places = sorted(tie_of, key=lambda place: keys[place])  # Python's sort is stable: ties keep the order of tie_of
    key = reference.derive_seed(own, "inside")
    packs = [list(range(begin, min(begin + pack_size, number))) for begin in range(0, number, pack_size)]
    packs = [sorted(pack, key=lambda rank: reference.mixed(rank, key)) for pack in packs]
    order = reference.whole_or_some(len(packs), reference.derive_seed(own, "packs"), range(len(packs)))
    return [places[rank] for number in order for rank in packs[number]]


@given(
    keys=st.lists(KEYS, max_size=60),
    pack_size=st.integers(1, 70),
    window=st.integers(0, 2**40),
    seed=st.integers(-(2**64), 2**64),
)
def test_any_window_is_as_the_rules_say_one_place_at_a_time(keys, pack_size, window, seed):
    assert window_order(np.array(keys, np.int64), pack_size, window, seed).tolist() == expected(
        keys, pack_size, window, seed
    )
    assert window_order(keys, pack_size, window, seed).tolist() == expected(keys, pack_size, window, seed)


def test_large_windows_are_as_the_rules_say():
    keys = np.random.default_rng(0).integers(0, 50, 3000)
    for pack_size in (1, 2, 7, 1000, 1600, 3000, 10**12):
        assert window_order(keys, pack_size, 5, 7).tolist() == expected(keys.tolist(), pack_size, 5, 7)


@pytest.mark.parametrize("pack_size", [1, 3, 5, 60, 61, 100])
def test_each_pack_is_a_contiguous_run_of_the_sorted_keys_and_the_short_one_may_be_anywhere(pack_size):
    keys = np.random.default_rng(1).permutation(61)  # distinct: so the runs are known
    short_at = set()
    for seed in range(30):
        order = window_order(keys, pack_size, 0, seed)
        assert sorted(order.tolist()) == list(range(61))
        got, runs, ranks = order.tolist(), [], keys[order].tolist()
        while got:
            size = min(pack_size, 61 - 61 // pack_size * pack_size if ranks[0] >= 61 // pack_size * pack_size else 61)
            if ranks[0] >= 61 // pack_size * pack_size:
                short_at.add(len(runs))
            runs.append(ranks[:size])
            got, ranks = got[size:], ranks[size:]
        assert sorted(sorted(run) for run in runs) == [
            list(range(begin, min(begin + pack_size, 61))) for begin in range(0, 61, pack_size)
        ]
    if 61 % pack_size and pack_size < 20:
        assert len(short_at) > 3


def test_packs_of_one_are_a_permutation_and_one_pack_too():
    keys = np.zeros(8, np.int64)
    for pack_size in (1, 8):
        orders = {tuple(window_order(keys, pack_size, 0, seed).tolist()) for seed in range(200)}
        assert len(orders) > 195


def test_windows_and_seeds_have_orders_of_their_own():
    keys = np.arange(50)
    orders = {tuple(window_order(keys, 5, window, seed).tolist()) for window in range(5) for seed in range(5)}
    assert len(orders) == 25


def test_equal_keys_are_spread_over_their_packs_fairly():
    # 8 samples of one key in packs of 4: each sample is in the first pack half of the time.
    first = np.zeros(8)
    for seed in range(800):
        first[window_order(np.zeros(8, np.int64), 4, 0, seed)[:4]] += 1
    assert (abs(first - 400) < 90).all()  # six standard deviations


FORMS = {
    "small integers": [3, 1, 2, 1, 0, 3, -1],
    "unsigned": [3, 1, 2, 1, 0, 3, 2**63],
    "beyond 64 bits": [3, 1, 2**80, 1, 0, 3, -(2**80)],
    "floats": [0.5, -1.0, 0.25, 0.5, float("inf"), 3.0, -0.0],
    "integers and floats": [2**53 + 1, float(2**53), 2**53, 1, 0.5, 3, 2],
    "text": ["b", "a", "ä", "", "b", "ab", "B"],
    "pairs": [(1, 2), (0, 9), (1, 1), (1, 2), (0, 0), (2, 0), (1, -1)],
    "lists": [[1], [1, 2], [], [1], [0, 5], [2], [1, 1]],
    "booleans": [True, False, True, False, True, True, False],
}


@pytest.mark.parametrize("form", FORMS)
def test_anything_that_python_compares_is_a_key(form):
    keys = FORMS[form]
    for pack_size in (1, 2, 3):
        assert window_order(keys, pack_size, 2, 3).tolist() == expected(keys, pack_size, 2, 3)


def test_arrays_of_rows_are_compared_one_column_after_the_other():
    rows = np.random.default_rng(2).integers(0, 3, (40, 3))
    got = window_order(rows, 3, 2, 3).tolist()
    assert got == expected([tuple(row) for row in rows.tolist()], 3, 2, 3)
    for dtype in ("i1", "u2", "f4", ">i8"):
        assert window_order(rows.astype(dtype), 3, 2, 3).tolist() == got
    assert window_order(np.array(FORMS["text"]), 3, 2, 3).tolist() == expected(FORMS["text"], 3, 2, 3)
    for listed in (list(rows), list(rows.astype("f4"))):
        assert window_order(listed, 3, 2, 3).tolist() == got
    objects = np.empty(7, object)
    objects[:] = FORMS["pairs"]
    assert window_order(objects, 3, 2, 3).tolist() == expected(FORMS["pairs"], 3, 2, 3)


def test_what_is_not_a_number_comes_last():
    keys = np.array([np.nan, 3.0, np.nan, 1.0, 2.0])
    order = window_order(keys, 3, 0, 0).tolist()
    packs = [set(order[:3]), set(order[3:])]
    if packs[0] & {1, 3, 4} != {1, 3, 4}:
        packs = [set(order[2:]), set(order[:2])]
    assert packs == [{1, 3, 4}, {0, 2}]


def test_keys_of_three_axes_are_refused():
    for shape in ((3, 2, 2), (3, 0)):
        with pytest.raises(OrderError, match="one key a sample"):
            window_order(np.zeros(shape), 2, 0, 0)


def test_a_window_of_100_000_is_ordered_without_a_python_step_a_sample():
    keys = np.random.default_rng(3).integers(0, 2048, 100_000)
    for pack_size in (1, 16, 256, 100_000):
        took = []
        for _ in range(3):
            begin = time.process_time()
            window_order(keys, pack_size, 0, 0)
            took.append(time.process_time() - begin)
        assert min(took) < 0.2  # 20 to 30 ms were measured where this was written
