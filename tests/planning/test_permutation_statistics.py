"""A permutation looks like a random one. Every test is deterministic: its seeds are fixed, so it cannot fail by chance.

The z of a chi-square is how many standard deviations it is from its mean; |z| < 4 all over.
"""

import itertools
import math

import numpy as np
import pytest

from headrace.planning import Permutation, derive_seed, shuffled

SMALL_AND_LARGE = [8, 32, 100, 1024, 1025, 1100, 2000]  # a table up to 1,024 items, a network beyond


def chi_square_z(observed, expected, degrees):
    return (float((((observed - expected) ** 2) / expected).sum()) - degrees) / math.sqrt(2 * degrees)


def many(n, count, name="statistics"):
    """count permutations of range(n), of seeds that are used nowhere else."""
    numbers = np.arange(n)
    return np.array([Permutation(n, derive_seed(n, name, k))(numbers) for k in range(count)])


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("seeds", ["counted", "derived"])
def test_all_permutations_of_a_few_items_are_reached_and_equally_often(n, seeds):
    number_of = {order: k for k, order in enumerate(itertools.permutations(range(n)))}
    counts = np.zeros(len(number_of))
    each = 60
    for k in range(each * len(number_of)):
        seed = k if seeds == "counted" else derive_seed(7, "shuffle", k)
        counts[number_of[tuple(Permutation(n, seed)(np.arange(n)).tolist())]] += 1
    assert counts.min() > 0
    if n > 1:
        assert abs(chi_square_z(counts, each, len(counts) - 1)) < 4


@pytest.mark.parametrize("n", SMALL_AND_LARGE)
def test_every_item_is_as_likely_at_every_place(n):
    blocks = min(n, 16)
    orders = many(n, 400)
    block_of = np.arange(n) * blocks // n
    table = np.zeros((blocks, blocks))
    np.add.at(table, (np.broadcast_to(block_of, orders.shape), block_of[orders]), 1)
    sizes = np.bincount(block_of)
    expected = len(orders) * np.outer(sizes, sizes) / n
    assert abs(chi_square_z(table, expected, (blocks - 1) ** 2)) < 4


@pytest.mark.parametrize("n", SMALL_AND_LARGE)
def test_fixed_points_and_unbroken_pairs_are_as_rare_as_chance_has_them(n):
    orders = many(n, 600)
    fixed = (orders == np.arange(n)).sum(axis=1)
    pairs = (np.diff(orders, axis=1) == 1).sum(axis=1)
    error = 4 / math.sqrt(len(orders))  # both counts have a variance of about 1
    assert abs(fixed.mean() - 1) < error
    assert abs(pairs.mean() - (n - 1) / n) < error
    assert 0.7 < fixed.var() < 1.3
    chances = np.array([math.exp(-1) / math.factorial(k) for k in range(4)])
    if n > 8:  # Poisson(1) holds in the limit
        observed = np.bincount(np.minimum(fixed, 4), minlength=5)
        expected = len(orders) * np.array([*chances, 1 - chances.sum()])
        assert abs(chi_square_z(observed, expected, 4)) < 4


@pytest.mark.parametrize("n", SMALL_AND_LARGE)
@pytest.mark.parametrize("lag", [1, 2, 7])
def test_neighbours_are_not_correlated(n, lag):
    orders = many(n, 600).astype(float)
    centred = orders - (n - 1) / 2
    variance = (n * n - 1) / 12
    correlations = (centred[:, lag:] * centred[:, :-lag]).mean(axis=1) / variance
    # Drawing without putting back makes every pair of places correlated by -1/(n-1).
    error = correlations.std() / math.sqrt(len(orders))
    assert abs(correlations.mean() + 1 / (n - 1)) < 4 * error
    assert 0.6 < correlations.std() * math.sqrt(n - lag) < 1.4


@pytest.mark.parametrize("n", [5, 16, 100, 1500])
def test_epochs_and_neighbouring_seeds_are_unrelated(n):
    count = 300
    numbers = np.arange(n)
    centred = numbers - (n - 1) / 2
    variance = (n * n - 1) / 12

    def correlations(pairs):
        return np.array([(centred[a] * centred[b]).mean() / variance for a, b in pairs])

    epochs = shuffled(np.arange(n * (count + 1)), n, 7).reshape(count + 1, n) % n
    seeds = np.array([shuffled(numbers, n, seed) for seed in range(count + 1)])
    for orders in (epochs, seeds):
        found = correlations(itertools.pairwise(orders))
        assert abs(found.mean()) < 4 / math.sqrt(n * count) * 1.2
    assert abs(correlations([(epochs[k + 1], seeds[k]) for k in range(count)]).mean()) < 4 / math.sqrt(n * count) * 1.2


@pytest.mark.parametrize(("n", "count"), [(10**4, 40), (10**6, 2)])
def test_in_large_domains_neighbours_epochs_and_seeds_are_unrelated_too(n, count):
    numbers = np.arange(n)
    variance = (n * n - 1) / 12

    def z(one, other):  # each is about normal with deviation 1
        return float((one * other).mean() / variance * math.sqrt(len(one)))

    def order(seed, epoch):
        return (shuffled(numbers + epoch * n, n, seed) % n) - (n - 1) / 2

    neighbours, epochs, seeds = [], [], []
    for k in range(count):
        one = order(k, 1)
        neighbours += [z(one[lag:], one[:-lag]) for lag in (1, 2, 7)]
        epochs.append(z(one, order(k, 2)))
        seeds += [z(one, order(k + 1, 1)), z(one, order(k + 1, 0))]  # the second is what added seeds would share
    for found in (neighbours, epochs, seeds):
        assert max(map(abs, found)) < 4.5
        assert abs(sum(found)) < 4 * math.sqrt(len(found))


@pytest.mark.parametrize("n", [10**6, 10**12, 2**62 - 1])
def test_a_run_of_positions_is_spread_over_all_items_in_high_digits_low_digits_and_steps(n):
    count = 1 << 14
    for start in (0, n // 3, n - count):
        items = Permutation(n, derive_seed(n, "spread", start))(np.arange(start, start + count))
        high = np.bincount((items.astype(object) * 64 // n).astype(np.int64), minlength=64)
        low = np.bincount(items % 64, minlength=64)
        steps = np.bincount(((np.diff(items) % n).astype(object) * 64 // n).astype(np.int64), minlength=64)
        for observed in (high, low, steps):
            assert abs(chi_square_z(observed, observed.sum() / 64, 63)) < 4


def test_the_positions_of_one_rank_are_spread_as_evenly_as_all():
    # What rank r reads is every W-th position; a weak shuffle shows its pattern exactly there.
    n = 1 << 20
    permutation = Permutation(n, derive_seed(7, "shuffle", 0))
    for stride in (8, 64, 1024, 1023):
        items = permutation(np.arange(3, n, stride)[:4096])
        counts = np.bincount(items * 64 // n, minlength=64)
        assert abs(chi_square_z(counts, counts.sum() / 64, 63)) < 4
