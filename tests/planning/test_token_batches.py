"""Token-budget batches of one window: within the budget, nothing lost, whole steps of nearly equal cost."""

import itertools
import random
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import OptionError, OrderError
from headrace.planning import MAX_WINDOW, BatchBudget, plan_token_batches
from planning import token_batches_reference as reference

SQUARE = (1, 1 / 4096)  # attention beside the rest, of a model 680 wide: enough to tell long samples from short ones


def plan(lengths, max_tokens, per_step, seed=0, **options):
    return plan_token_batches(np.array(lengths, np.int64), BatchBudget(max_tokens, per_step, **options), seed)


def batches(planned):
    return [planned.samples[begin:end].tolist() for begin, end in itertools.pairwise(planned.offsets.tolist())]


def lognormal(count, seed, longest=2048, sigma=1.0):
    return np.clip(np.random.default_rng(seed).lognormal(6, sigma, count), 1, longest).astype(np.int64)


def taken(batch, lengths, padded):
    """What a batch takes of the budget."""
    sizes = [max(1, lengths[one]) for one in batch]
    return (len(sizes) * max(sizes) if padded else sum(sizes)) if sizes else 0


def check(planned, lengths, max_tokens, per_step, *, padded=True, long="error", max_samples=None, **_):
    """The promises that need no reference."""
    made = batches(planned)
    over = [one for one, length in enumerate(lengths) if length > max_tokens]
    kept = set(range(len(lengths))) - (set(over) if long == "drop" else set())
    assert sorted(itertools.chain(*made)) == sorted(kept), "each sample once"
    assert planned.dropped.tolist() == (over if long == "drop" else [])
    assert planned.alone.tolist() == ([] if long == "drop" else over)
    assert planned.num_rows == len(made)
    assert len(made) % per_step == 0, "whole steps"
    for number, batch in enumerate(made):
        assert planned.tokens[number] == sum(lengths[one] for one in batch)
        assert planned.taken[number] == taken(batch, lengths, padded)
        assert len(batch) <= (max_samples or len(batch))
        assert planned.taken[number] <= max_tokens or (len(batch) == 1 and batch[0] in over)
        sizes = [max(1, lengths[one]) for one in batch]
        assert sizes == sorted(sizes, reverse=True)
    if any(not batch for batch in made):
        assert len(kept) < len(made) < len(kept) + per_step
        assert all(len(batch) <= 1 for batch in made)


OPTIONS = st.fixed_dictionaries(
    {
        "padded": st.booleans(),
        "cost": st.sampled_from([(1, 0), SQUARE, (0, 1), (3, 2), (0.5, 1e-300)]),
        "long": st.sampled_from(["drop", "alone"]),
        "max_samples": st.sampled_from([None, 1, 2, 4]),
    }
)


@given(
    st.lists(st.integers(0, 40), max_size=60), st.integers(1, 60), st.integers(1, 9), st.integers(0, 2**64 - 1), OPTIONS
)
def test_any_window_is_planned_as_one_sample_at_a_time_plans_it(lengths, max_tokens, per_step, seed, options):
    planned = plan(lengths, max_tokens, per_step, seed, **options)
    check(planned, lengths, max_tokens, per_step, **options)
    assert batches(planned) == reference.planned(lengths, max_tokens, per_step, seed=seed, **options)


@pytest.mark.parametrize("padded", [True, False])
def test_every_window_of_a_few_samples_is_planned_as_the_reference_plans_it(padded):
    for count in range(6):
        for lengths in itertools.product(range(4), repeat=count):
            for max_tokens, per_step in ((3, 1), (4, 2), (7, 2), (5, 3)):
                planned = plan(lengths, max_tokens, per_step, padded=padded)
                check(planned, lengths, max_tokens, per_step, padded=padded)
                assert batches(planned) == reference.planned(lengths, max_tokens, per_step, padded=padded)


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("cost", [(1, 0), SQUARE])
def test_a_thousand_samples_and_more_than_1024_batches_are_planned_as_the_reference_plans_them(padded, cost):
    for count, max_tokens, per_step in ((1000, 400, 8), (1300, 64, 4), (1500, 70, 64)):
        lengths = (lognormal(count, count) // 32).tolist()
        planned = plan(lengths, max_tokens, per_step, 7, padded=padded, cost=cost)
        expected = reference.planned(lengths, max_tokens, per_step, padded=padded, cost=cost, seed=7)
        assert batches(planned) == expected


def partitions(ones):
    """Every way to put these into batches."""
    if not ones:
        yield []
        return
    for rest in partitions(ones[1:]):
        yield [[ones[0]], *rest]
        for number in range(len(rest)):
            yield [*rest[:number], [ones[0], *rest[number]], *rest[number + 1 :]]


def test_padded_batches_are_as_few_as_whole_steps_allow():
    for lengths in itertools.combinations_with_replacement([1, 2, 3, 5, 8], 6):
        ways = [
            len(way)
            for way in partitions(list(range(6)))
            if all(taken(batch, lengths, True) <= 10 and len(batch) <= 3 for batch in way)
        ]
        for per_step in (1, 2, 4):
            fewest = -(-min(ways) // per_step) * per_step
            assert plan(lengths, 10, per_step, max_samples=3).num_rows == fewest


@given(st.lists(st.integers(0, 40), max_size=120), st.integers(40, 90), st.integers(1, 9), OPTIONS)
def test_what_the_steps_of_a_window_are_out_of_balance_together_is_no_more_than_its_dearest_and_cheapest_batch(
    lengths, max_tokens, per_step, options
):
    planned = plan(lengths, max_tokens, per_step, 3, **options)
    steps = planned.costs.reshape(-1, per_step).tolist()
    apart = sum(max(step) - min(step) for step in steps)
    assert apart <= max(planned.costs.tolist(), default=0) - min(planned.costs.tolist(), default=0)
    for step, imbalance in zip(steps, planned.imbalances(per_step), strict=True):
        mean = sum(step) / per_step
        assert imbalance == pytest.approx(max(step) / mean - 1 if mean else 0)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=120), st.integers(40, 400), st.integers(1, 9))
def test_unpadded_batches_of_a_window_differ_by_no_more_than_its_longest_sample(lengths, max_tokens, per_step):
    planned = plan(lengths, max_tokens, per_step, padded=False)
    assert int(planned.taken.max() - planned.taken.min()) <= max(1, *lengths)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=120), st.integers(40, 400), st.integers(1, 9))
def test_padded_batches_but_one_take_half_of_the_fullest_or_more_where_that_has_several_samples(
    lengths, max_tokens, per_step
):
    together = sorted(plan(lengths, max_tokens, per_step).taken.tolist())
    if together[-1] > max(lengths):
        assert all(2 * size >= together[-1] for size in together[1:])


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=200),
    st.integers(40, 400),
    st.integers(2, 9),
    st.sampled_from([(1, 0), (1, 0.1), (4, 1)]),
)
def test_the_mean_imbalance_of_padded_batches_is_within_the_bound_and_falls_with_the_number_of_steps(
    lengths, max_tokens, per_step, cost
):
    planned = plan(lengths, max_tokens, per_step, cost=cost)
    num_steps = planned.num_rows // per_step
    if int(planned.taken.max()) > max(lengths):  # no sample is longer than what a batch of several may take
        ratio = 2 * (1 + max(lengths) * cost[1] / cost[0])
        bound = ((ratio - 1) * per_step + 1) / ((per_step - 1) * num_steps)
        assert planned.imbalances(per_step).mean() <= bound + 1e-6


def test_lengths_and_budget_of_the_bucket_cap_scenario():
    lengths = [10] * 50 + [60] * 5 + [150]
    random.Random(1).shuffle(lengths)
    for per_step in (1, 4):
        planned = plan(lengths, 100, per_step, 7, long="alone", max_samples=4)
        check(planned, lengths, 100, per_step, long="alone", max_samples=4)
        assert len(planned.alone) == 1
        dropped = plan(lengths, 100, per_step, 7, long="drop", max_samples=4)
        check(dropped, lengths, 100, per_step, long="drop", max_samples=4)
        assert [lengths[one] for one in dropped.dropped] == [150]
    with pytest.raises(OrderError, match=f"sample {lengths.index(150)} of the window has 150 tokens.*max_tokens=100"):
        plan(lengths, 100, 1, max_samples=4)


@pytest.mark.parametrize("padded", [True, False])
def test_64_batches_a_step_of_lognormal_lengths_are_within_two_percent_and_waste_less_than_one(padded):
    for seed in range(3):
        lengths = lognormal(65_536, seed)
        planned = plan(lengths, 8192, 64, padded=padded, cost=SQUARE)
        assert planned.imbalances(64).mean() <= 0.02
        assert 1 - planned.tokens.sum() / planned.taken.sum() <= 0.01
        assert planned.tokens.sum() / (8192 * planned.num_rows) >= (0.93 if padded else 0.98)


def test_the_seed_decides_the_order_of_steps_and_batches_and_nothing_else():
    lengths = lognormal(3000, 1)
    one, other = (batches(plan(lengths, 8192, 8, seed)) for seed in (1, 2))
    assert one != other
    steps = [
        sorted(sorted(map(tuple, made[begin : begin + 8])) for begin in range(0, len(made), 8)) for made in (one, other)
    ]
    assert steps[0] == steps[1]
    assert batches(plan(lengths, 8192, 8, 1)) == one


def test_the_dearest_batch_of_a_step_stands_at_any_place_equally_often():
    lengths = lognormal(20_000, 1)
    seen = np.zeros(8, np.int64)
    for seed in range(20):
        costs = plan(lengths, 8192, 8, seed, cost=SQUARE).costs.reshape(-1, 8)
        alone = (costs == costs.max(axis=1, keepdims=True)).sum(axis=1) == 1
        seen += np.bincount(costs[alone].argmax(axis=1), minlength=8)
    expected = seen.sum() / 8
    assert ((seen - expected) ** 2 / expected).sum() < 24.3  # chi-square with 7 degrees of freedom, p = 0.001


def test_dear_and_cheap_steps_come_in_any_order():
    lengths = lognormal(20_000, 1)
    firsts = []
    for seed in range(40):
        step_costs = plan(lengths, 8192, 8, seed, cost=SQUARE).costs.reshape(-1, 8).sum(axis=1)
        firsts.append((step_costs < step_costs[0]).mean())
    assert 0.35 < np.mean(firsts) < 0.65
    assert min(firsts) < 0.2
    assert max(firsts) > 0.8


@pytest.mark.parametrize("padded", [True, False])
def test_only_the_ratio_of_the_costs_counts(padded):
    lengths = lognormal(2000, 3)
    plans = [batches(plan(lengths, 8192, 8, padded=padded, cost=cost)) for cost in (SQUARE, (4096, 1), (8192.0, 2))]
    assert plans[0] == plans[1] == plans[2]


def test_costs_that_are_the_square_of_the_length_put_long_samples_together():
    lengths = [8, 8, 4, 4, 4, 4, 2, 2, 2, 2, 2, 2, 2, 2]
    planned = plan(lengths, 8, 2, cost=(0, 1))
    longest = [[lengths[batch[0]] for batch in batches(planned)[begin : begin + 2]] for begin in range(0, 6, 2)]
    assert sorted(longest) == [[2, 2], [4, 4], [8, 8]]


@pytest.mark.parametrize("padded", [True, False])
def test_no_samples_are_no_batches_and_samples_of_no_tokens_count_as_one(padded):
    assert batches(plan([], 10, 4, padded=padded)) == []
    assert batches(plan([20, 30], 10, 4, padded=padded, long="drop")) == []
    planned = plan([0] * 25, 10, 1, padded=padded)
    check(planned, [0] * 25, 10, 1, padded=padded)
    assert planned.num_rows == 3
    assert planned.tokens.sum() == 0


@pytest.mark.parametrize("padded", [True, False])
def test_fewer_samples_than_batches_a_step_are_one_each_and_empty_batches(padded):
    made = batches(plan([5, 5, 5], 100, 8, padded=padded))
    assert sorted(map(len, made)) == [0, 0, 0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("padded", [True, False])
def test_very_long_samples_and_very_large_budgets_stay_in_integers(padded):
    lengths = [2**38 - 1] * 20 + [1] * 20
    planned = plan(lengths, 2**61, 4, padded=padded, cost=(1, 1))
    check(planned, lengths, 2**61, 4, padded=padded)
    planned = plan(lengths, 1000, 4, padded=padded, cost=(1, 1), long="alone")
    check(planned, lengths, 1000, 4, padded=padded, long="alone")
    assert (planned.costs >= 0).all()


def test_samples_that_fit_badly_take_more_steps_and_are_found_quickly():
    begin = time.process_time()
    planned = plan([34] * 20_000, 100, 1, padded=False)  # 6,800 batches would hold the tokens, but three are 102
    assert planned.num_rows == 10_000
    planned = plan([1] * 20_000 + [51] * 5000, 100, 1, padded=False)
    assert planned.num_rows == 5000
    assert time.process_time() - begin < 2


@pytest.mark.parametrize("padded", [True, False])
def test_a_window_is_planned_at_more_than_half_a_million_samples_a_second(padded):
    lengths = lognormal(65_536, 1)
    taken_s = []
    for _ in range(3):
        begin = time.process_time()
        plan(lengths, 8192, 64, padded=padded, cost=SQUARE)
        taken_s.append(time.process_time() - begin)
    assert min(taken_s) < 65_536 / 500_000  # the benchmark holds it to a million


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"max_tokens": 0}, OptionError, "max_tokens=0 is not valid; expected at least 1"),
        ({"max_tokens": 8.5}, TypeError, "max_tokens must be an integer, not 8.5"),
        ({"batches_per_step": 0}, OptionError, "batches_per_step=0"),
        ({"batches_per_step": True}, TypeError, "batches_per_step must be an integer"),
        ({"batches_per_step": MAX_WINDOW + 1}, OptionError, "expected at most"),
        ({"max_samples": 0}, OptionError, "max_samples=0"),
        ({"padded": 1}, TypeError, "padded must be True or False"),
        ({"long": "split"}, OptionError, "'error', 'drop' or 'alone'"),
        ({"cost": (0, 0)}, OptionError, "not both 0"),
        ({"cost": (1, -1)}, OptionError, "at least 0"),
        ({"cost": (1, float("nan"))}, OptionError, "finite"),
        ({"cost": (10**400, 1)}, OptionError, "finite"),
        ({"cost": (1,)}, OptionError, "two finite numbers"),
        ({"cost": ("1", 0)}, TypeError, "two numbers"),
    ],
)
def test_a_budget_that_means_nothing_is_refused_when_it_is_made(options, error, says):
    with pytest.raises(error, match=says):
        BatchBudget(**{"max_tokens": 100, "batches_per_step": 2, **options})


def test_lengths_that_cannot_be_are_refused():
    with pytest.raises(OrderError, match="sample 1 of the window has length -3"):
        plan([1, -3], 10, 1)
    with pytest.raises(OrderError, match="sample 0 of the window has length 274877906944"):
        plan([2**38], 2**40, 1)
    with pytest.raises(OrderError, match="16777217 samples; expected at most 16777216"):
        plan_token_batches(np.broadcast_to(np.int64(1), MAX_WINDOW + 1), BatchBudget(10, 1), 0)
    with pytest.raises(OrderError, match="2 dimensions"):
        plan([[1]], 10, 1)
