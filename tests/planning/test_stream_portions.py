"""How many rows of each stream an epoch has: the arithmetic of proportions, repeats and choices, in exact numbers."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import OptionError
from headrace.planning import Portion, samples_an_epoch

NOTHING = Portion()


def portions(*values, of="proportion"):
    return [Portion(**{of: value}) for value in values]


def test_with_nothing_said_each_stream_gives_all_it_has():
    assert samples_an_epoch([90, 60, 33], [NOTHING] * 3, None) == [90, 60, 33]
    assert samples_an_epoch([0, 5], [NOTHING] * 2, None) == [0, 5]
    assert samples_an_epoch([], [], None) == []


def test_an_epoch_size_alone_is_shared_by_size():
    assert samples_an_epoch([90, 60, 33], [NOTHING] * 3, 183) == [90, 60, 33]
    assert samples_an_epoch([90, 60, 33], [NOTHING] * 3, 100) == [49, 33, 18]  # 49.18, 32.79, 18.03
    assert samples_an_epoch([90, 60, 33], [NOTHING] * 3, 366) == [180, 120, 66]
    assert samples_an_epoch([90, 0], [NOTHING] * 2, 50) == [50, 0]
    assert samples_an_epoch([90, 60], [NOTHING] * 2, 0) == [0, 0]
    assert samples_an_epoch([0, 0], [NOTHING] * 2, 0) == [0, 0]


def test_proportions_are_parts_of_the_epoch_size_or_of_all_samples():
    assert samples_an_epoch([90, 60, 33], portions(0.5, 0.25, 0.25), 120) == [60, 30, 30]
    assert samples_an_epoch([90, 60, 33], portions(2, 1, 1), 120) == [60, 30, 30]
    assert samples_an_epoch([10, 30], portions(1, 1), None) == [20, 20]
    assert samples_an_epoch([10, 30], portions(1, 0), None) == [40, 0]
    assert samples_an_epoch([10, 0], portions(1, 0), 7) == [7, 0]


def test_what_rounding_leaves_over_goes_to_the_largest_remainders_and_of_equal_ones_to_the_first():
    assert samples_an_epoch([9, 9, 9], portions(1, 1, 1), 100) == [34, 33, 33]
    assert samples_an_epoch([9, 9, 9], portions(0.2, 0.3, 0.5), 10) == [2, 3, 5]
    assert samples_an_epoch([9, 9], portions(1e-6, 1), 100) == [0, 100]
    assert samples_an_epoch([9, 9], portions(9, 1), 77) == samples_an_epoch([9, 9], portions(0.9, 0.1), 77)


def test_repeats_round_down_and_choices_are_as_given_side_by_side():
    mixed = [Portion(repeat=1.5), Portion(choose=20), NOTHING]
    assert samples_an_epoch([90, 60, 33], mixed, None) == [135, 20, 33]
    assert samples_an_epoch([90, 60, 33], portions(2, 0.3, 1, of="repeat"), None) == [180, 18, 33]
    assert samples_an_epoch([7, 7], portions(0.5, 0, of="repeat"), None) == [3, 0]
    assert samples_an_epoch([0, 7], [Portion(repeat=3), Portion(choose=0)], None) == [0, 0]


def test_numbers_are_the_decimals_that_were_written():
    assert int(0.29 * 100) == 28
    assert samples_an_epoch([100], portions(0.29, of="repeat"), None) == [29]
    assert samples_an_epoch([10**15], portions(0.1, of="repeat"), None) == [10**14]
    assert samples_an_epoch([100], [Portion(repeat=np.float32(0.29))], None) == [29]
    assert samples_an_epoch([100], [Portion(repeat=Fraction(1, 3))], None) == [33]
    assert samples_an_epoch([100, 1], [Portion(choose=np.int64(7)), NOTHING], None) == [7, 1]
    assert samples_an_epoch([10**12, 1], portions(1, 10**12), 10**12 + 1) == [1, 10**12]


@given(
    weights=st.lists(st.integers(0, 50) | st.floats(0, 1, allow_subnormal=False), min_size=1, max_size=9).filter(any),
    epoch_size=st.integers(0, 10**6) | st.just(2**62),
)
def test_parts_sum_up_to_the_epoch_and_each_is_its_exact_share_rounded_down_or_up(weights, epoch_size):
    chosen = samples_an_epoch([1] * len(weights), portions(*weights), epoch_size)
    assert sum(chosen) == epoch_size
    exact = [Fraction(str(weight)) for weight in weights]
    for rows, weight in zip(chosen, exact, strict=True):
        assert abs(rows - weight / sum(exact) * epoch_size) < 1
        assert weight or not rows


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"proportion": 0.5, "repeat": 1}, "repeat=1 .* proportion is given"),
        ({"repeat": 0, "choose": 0}, "choose=0 .* repeat is given"),
        ({"proportion": -0.5}, "proportion=-0.5 .* at least 0"),
        ({"repeat": float("nan")}, "repeat=nan .* finite"),
        ({"proportion": float("inf")}, "proportion=inf .* finite"),
        ({"choose": -1}, "choose=-1 .* at least 0"),
    ],
)
def test_a_portion_that_means_nothing_is_refused(given, named):
    with pytest.raises(OptionError, match=named):
        Portion(**given)


@pytest.mark.parametrize("given", [{"proportion": "0.5"}, {"repeat": True}, {"choose": 1.0}, {"choose": [1]}])
def test_what_is_no_number_is_refused_as_such(given):
    with pytest.raises(TypeError, match=next(iter(given))):
        Portion(**given)


def test_portions_that_do_not_go_together_are_refused_by_the_stream_that_has_them():
    with pytest.raises(OptionError, match=r"streams\[1\].proportion=None .* streams\[0\] has one"):
        samples_an_epoch([9, 9], [Portion(proportion=1), NOTHING], None)
    with pytest.raises(OptionError, match=r"streams\[0\].choose=3 .* streams\[1\] has one"):
        samples_an_epoch([9, 9], [Portion(choose=3), Portion(proportion=1)], None)
    with pytest.raises(OptionError, match=r"epoch_size=10 .* streams\[1\].repeat"):
        samples_an_epoch([9, 9], [NOTHING, Portion(repeat=1)], 10)
    with pytest.raises(OptionError, match="above 0"):
        samples_an_epoch([9, 9], portions(0, 0.0), None)


def test_a_stream_without_samples_gives_none_or_is_refused():
    with pytest.raises(OptionError, match=r"streams\[1\].proportion=0.5 .* no samples"):
        samples_an_epoch([9, 0], portions(0.5, 0.5), None)
    with pytest.raises(OptionError, match=r"streams\[1\].choose=4 .* no samples"):
        samples_an_epoch([9, 0], [NOTHING, Portion(choose=4)], None)
    with pytest.raises(OptionError, match=r"epoch_size=5 .* no stream has samples"):
        samples_an_epoch([0, 0], [NOTHING] * 2, 5)


def test_epochs_that_are_none_are_refused():
    for epoch_size in (-1, 2**62 + 1):
        with pytest.raises(OptionError, match="epoch_size"):
            samples_an_epoch([9], [NOTHING], epoch_size)
    for epoch_size in (1.5, True, "64"):
        with pytest.raises(TypeError, match="epoch_size"):
            samples_an_epoch([9], [NOTHING], epoch_size)
    with pytest.raises(OptionError, match=r"2\*\*62"):
        samples_an_epoch([2**61], portions(1000, of="repeat"), None)
    with pytest.raises(ValueError, match="2 sizes and 1 portions"):
        samples_an_epoch([9, 9], [NOTHING], None)
