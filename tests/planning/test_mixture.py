"""The order of a mixture against the same worked out one draw at a time, and what it promises at every position."""

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import OrderError
from headrace.planning.legs import Legs
from headrace.planning.mixture import BLOCK, MixturePlan
from headrace.planning.proportions import UNIT
from headrace.planning.schedule import RAMP_PIECES, Schedule
from planning import mixture_reference

SHOWN = 700  # positions that are compared: some blocks


def plan_of(points, limits, epoch_size, seed=0, *, linear=False, means=None, start=0, drawn=None):
    schedule = Schedule(points, linear=linear, divisors=means)
    return MixturePlan(Legs(schedule, limits, start=start, drawn=drawn), epoch_size, seed)


def pairs(plan, begin, end):
    sources, draws = plan.draws(np.arange(begin, end, dtype=np.int64))
    return list(zip(sources.tolist(), draws.tolist(), strict=True))


@st.composite
def mixtures(draw):
    """The arguments of a plan, and the reference of it."""
    size = draw(st.integers(1, 5))
    weight = st.integers(0, 3) | st.decimals(0, 1, places=3).map(Fraction)
    weights = st.lists(weight, min_size=size, max_size=size).filter(any)
    edges = sorted(draw(st.sets(st.integers(1, 300), max_size=4)))
    linear = draw(st.booleans())
    means = draw(st.none() | st.lists(st.fractions(Fraction(1, 9), 9, max_denominator=9), min_size=size, max_size=size))
    points = [(edge, draw(weights)) for edge in [0, *edges]]
    limit = draw(st.sampled_from([st.none(), st.integers(0, 100), st.none() | st.integers(0, 60)]))
    limits = draw(st.lists(limit, min_size=size, max_size=size))
    start = draw(st.sampled_from([0, 0, 5, 150, 400]))
    drawn = draw(st.lists(st.integers(0, 50), min_size=size, max_size=size)) if start else None
    epoch_size = draw(st.sampled_from([1, 2, 7, 100, BLOCK - 1, BLOCK, BLOCK + 1, 513, 700]))
    seed = draw(st.integers(-9, 9))
    if linear:
        pieces = mixture_reference.linear(points, means)
    else:
        pieces = mixture_reference.piecewise(points, means)
    reference = mixture_reference.Mixture(pieces, limits, epoch_size, seed, start, drawn)
    plan = plan_of(points, limits, epoch_size, seed, linear=linear, means=means, start=start, drawn=drawn)
    return plan, reference, limits


@given(mixtures(), st.randoms(use_true_random=False))
def test_every_position_is_the_references_alone_among_others_and_in_any_order(mixture, random):
    plan, reference, _ = mixture
    end = min(reference.start + SHOWN, reference.end if reference.end is not None else 1 << 60)
    expected = [reference.draw(position) for position in range(reference.start, end)]
    assert pairs(plan, reference.start, end) == expected
    if expected:
        chosen = random.choices(range(len(expected)), k=9)
        sources, draws = plan.draws(np.array(chosen) + reference.start)
        assert list(zip(sources.tolist(), draws.tolist(), strict=True)) == [expected[k] for k in chosen]
        assert pairs(plan, reference.start + chosen[0], reference.start + chosen[0] + 1) == [expected[chosen[0]]]


@given(mixtures(), st.randoms(use_true_random=False))
def test_at_every_position_each_source_has_been_drawn_in_order_from_its_first_draw_on(mixture, random):
    plan, reference, limits = mixture
    end = min(reference.start + SHOWN, plan.legs.reach(reference.start + SHOWN))
    counts = plan.counts(reference.start)
    for position, (source, draw) in enumerate(pairs(plan, reference.start, end), reference.start):
        assert draw == counts[source]
        if random.random() < 0.03:
            assert plan.counts(position) == counts
            assert plan.position_of(source, draw) == position
        counts[source] += 1
        assert limits[source] is None or counts[source] <= limits[source]
    assert plan.counts(end) == counts


@given(mixtures())
def test_an_order_of_sources_with_limits_ends_when_no_share_is_left(mixture):
    plan, reference, limits = mixture
    assert plan.legs.end() == reference.end
    if reference.end is not None:
        with pytest.raises(OrderError, match=f"at position {reference.end} all sources"):
            plan.draws(np.array([reference.end]))
        assert plan.legs.reach(reference.end + 5) == reference.end
        for source, limit in enumerate(limits):
            last = plan.counts(reference.end)[source]
            assert plan.position_of(source, last) is None
            assert limit is None or last <= max(limit, plan.counts(reference.start)[source])


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("means", [None, [Fraction(3), Fraction(1, 7)]])
def test_schedules_of_few_positions_are_the_references(linear, means):
    for edges in itertools.combinations(range(1, 8), 2):
        points = [(0, [1, 0]), (edges[0], [1, 3]), (edges[1], [0, 1])]
        make = mixture_reference.linear if linear else mixture_reference.piecewise
        reference = mixture_reference.Mixture(make(points, means), [None, None], 9, 1)
        plan = plan_of(points, [None, None], 9, 1, linear=linear, means=means)
        assert pairs(plan, 0, 20) == [reference.draw(position) for position in range(20)]


def test_counts_at_the_edges_of_legs_follow_the_exact_shares_of_a_schedule():
    points = [(0, [5, 3, 2, 1]), (1000, [1, 7, 2, 4]), (50_000, [1, 1, 1, 0]), (51_000, [0, 0, 0, 1])]
    for linear in (False, True):
        schedule = Schedule(points, linear=linear)
        plan = plan_of(points, [None] * 4, 10**6, linear=linear)
        exact, position = [0] * 4, 0
        while position < 51_000:
            shares, end = schedule.piece_at(position)
            exact = [total + share * (end - position) for total, share in zip(exact, shares, strict=True)]
            position = end
            counts = plan.legs.counts(position)
            assert plan.legs.targets(position) == exact
            assert all(abs(count - Fraction(share, UNIT)) <= 1 for count, share in zip(counts, exact, strict=True))


def test_a_ramp_goes_over_in_a_straight_line():
    plan = plan_of([(0, [1, 0]), (64_000, [0, 1])], [None, None], 10**6, linear=True)
    for done in range(0, RAMP_PIECES + 1, 8):
        part = Fraction(done, RAMP_PIECES)  # the second source has had the triangle below the line
        assert abs(plan.legs.counts(1000 * done)[1] - 64_000 * part * part / 2) <= 1
    assert set(plan.draws(np.arange(64_000, 70_000))[0].tolist()) == {1}


def test_a_source_that_has_been_drawn_as_often_as_it_may_leaves_its_weight_to_the_others():
    plan = plan_of([(0, [2, 1, 1])], [100, None, None], 10**6)
    assert plan.legs.counts(200) == [100, 50, 50]
    assert plan.legs.counts(1200) == [100, 550, 550]
    sources, _ = plan.draws(np.arange(BLOCK, 3000))
    assert set(sources.tolist()) == {1, 2}


def test_sources_that_are_due_to_leave_together_do():
    lengths = [7, 1000, 123_456, 999_999_937]
    plan = plan_of([(0, lengths)], [3 * length for length in lengths], sum(lengths))
    assert plan.legs.end() == 3 * sum(lengths)
    for epoch in range(4):
        assert plan.counts(epoch * sum(lengths)) == [epoch * length for length in lengths]


def test_weights_by_size_draw_every_item_once_an_epoch_at_any_epoch():
    lengths = [3, 17, 280, 100_000]
    size = sum(lengths)
    plan = plan_of([(0, lengths)], [None] * 4, size)
    for epoch in (0, 1, 1000, 10**12):
        assert plan.counts(epoch * size) == [epoch * length for length in lengths]


@pytest.mark.parametrize("weights", [[1, 999], [1, 1, 1], [5, 3, 2], [999, *[1] * 999]])
def test_counts_are_within_two_of_the_share_at_block_edges_and_within_a_block_of_it_everywhere(weights):
    plan = plan_of([(0, weights)], [None] * len(weights), 10**9, 5)
    sources, _ = plan.draws(np.arange(20 * BLOCK))
    counts = np.cumsum(sources[:, None] == np.arange(len(weights)), axis=0)
    shares = np.array(weights) / sum(weights)
    off = np.abs(counts - np.arange(1, len(counts) + 1)[:, None] * shares)
    assert off[BLOCK - 1 :: BLOCK].max() < 2
    assert (off < 4 + BLOCK * shares).all()


def test_what_changes_at_a_position_begins_new_blocks_there_and_old_ones_with_the_next_epoch():
    old = plan_of([(0, [1, 3])], [None, None], 1000, 5)
    start = 1300
    new = plan_of([(0, [1, 3])], [None, None], 1000, 5, start=start, drawn=old.counts(start))
    first = [len(set(pairs(new, start + begin, start + begin + BLOCK))) for begin in (0, BLOCK)]
    assert first == [BLOCK, BLOCK]
    assert new.counts(2000)[0] - old.counts(start)[0] == 175
    for position in (0, start - 1):
        with pytest.raises(OrderError, match=f"before {start}, from where on this mixture was changed"):
            new.draws(np.array([position]))
        with pytest.raises(OrderError, match="before 1300"):
            new.counts(position)
    assert new.position_of(0, old.counts(start)[0] - 1) is None


def test_draws_beyond_any_run_are_refused_and_those_before_it_too():
    plan = plan_of([(0, [1, 2])], [None, None], 100)
    with pytest.raises(IndexError, match="position -1 is outside"):
        plan.draws(np.array([3, -1]))
    with pytest.raises(IndexError, match="2\\*\\*62"):
        plan.draws(np.array([1 << 62]))
    with pytest.raises(TypeError, match="integers"):
        plan.draws(np.array([0.5]))
    assert [found.dtype for found in plan.draws(np.array([]))] == [np.int64, np.int64]
    far = (1 << 62) - 1000
    assert plan.positions_of(*plan.draws(np.array([far]))).tolist() == [far]


def test_a_draw_that_never_comes_has_no_position():
    plan = plan_of([(0, [1, 1, 0]), (100, [0, 1, 0])], [None] * 3, 1000)
    assert plan.positions_of([0, 0, 1, 2], [0, 50, 60, 0])[[1, 3]].tolist() == [-1, -1]


def test_every_place_of_a_block_is_equally_likely_for_a_source_and_strides_see_the_shares():
    plan = plan_of([(0, [1, 15])], [None, None], 10**9, 3)
    sources, _ = plan.draws(np.arange(4000 * BLOCK))
    by_place = (sources.reshape(-1, BLOCK) == 0).sum(axis=0)
    mean = 4000 / 16
    chi_square = ((by_place - mean) ** 2 / (mean * 15 / 16)).sum()  # each place is a draw of one in sixteen
    assert abs(chi_square - (BLOCK - 1)) < 5 * (2 * (BLOCK - 1)) ** 0.5
    for stride in (2, 8, 16, 64, 256, 1000, 4096):
        for first in (0, 1, stride - 1):
            seen = sources[first::stride] == 0
            assert abs(seen.mean() - 1 / 16) < 5 * (1 / 16 / len(seen)) ** 0.5
    first, second = (sources[epoch * BLOCK : (epoch + 1) * BLOCK] for epoch in (0, 1))
    assert (first != second).any()


def test_threads_that_ask_at_once_get_one_order():
    weights = list(range(1, 60))
    limits = [weight * 100 + weight % 7 for weight in weights]
    whole = pairs(plan_of([(0, weights)], limits, 10**6), 0, sum(limits))
    plan = plan_of([(0, weights)], limits, 10**6)
    barrier = threading.Barrier(8)

    def run(thread):
        barrier.wait()
        begins = [(997 * (step * 8 + thread)) % (len(whole) - 50) for step in range(20)]
        return all(pairs(plan, begin, begin + 50) == whole[begin : begin + 50] for begin in begins)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(run, range(8)))


def test_a_thousand_sources_cost_little_at_any_position():
    weights = [1 + k * k % 977 for k in range(1000)]
    begun = time.process_time()
    plan = plan_of([(0, weights)], [None] * 1000, 10**12)
    plan.draws(np.arange(10))
    assert time.process_time() - begun < 1
    for begin in (0, 5 * 10**11, 10**12, 10**15):
        times = []
        for step in range(5):
            begun = time.process_time()
            plan.draws(np.arange(begin + 4096 * step, begin + 4096 * (step + 1)))
            times.append(time.process_time() - begun)
        assert min(times) < 0.05  # about 3 ms
