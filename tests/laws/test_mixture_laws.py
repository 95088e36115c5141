"""Laws 1 and 2 of mixtures, without a reference: every source in order, and counts that are as exact as promised."""

from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import MixedDataset
from headrace.planning.mixture import BLOCK

fewer = settings(max_examples=max(25, settings.default.max_examples // 5))
numbers = st.integers(0, 10) | st.integers(1, 10**9) | st.decimals(0, 1, places=6).map(float)
weights = st.lists(numbers, min_size=1, max_size=40).filter(any)


def mixture(weights, length=1000, **options):
    return MixedDataset({f"s{k}": range(length) for k in range(len(weights))}, weights, **options)


def counted(mixed, end):
    """How often each source was drawn before positions 0 to end, shape (end + 1, sources); and its draws in order."""
    sources, draws = mixed.draws(np.arange(end))
    counts = np.zeros((end + 1, len(mixed.names)), np.int64)
    counts[1:] = np.cumsum(sources[:, None] == np.arange(len(mixed.names)), axis=0)
    assert (draws == counts[np.arange(end), sources]).all()  # 0, 1, 2, ... of each source, at every position
    return counts


@fewer
@given(weights=weights, seed=st.integers(), epoch_size=st.integers(1, 2000))
def test_counts_are_within_two_draws_of_their_shares_at_the_edge_of_every_block(weights, seed, epoch_size):
    mixed = mixture(weights, seed=seed, epoch_size=epoch_size)
    end = 2 * epoch_size
    counts = counted(mixed, end)
    whole = sum(Fraction(repr(weight)) for weight in weights)
    starts = [start for epoch in (0, epoch_size) for start in range(epoch, epoch + epoch_size, BLOCK)]
    for edge in [*starts, end]:
        for source, weight in enumerate(weights):
            assert abs(int(counts[edge, source]) - edge * Fraction(repr(weight)) / whole) < 2
        assert list(mixed.draws_before(edge).values()) == counts[edge].tolist()
    for begin, after in zip(starts, [*starts[1:], end], strict=True):
        in_block = counts[after] - counts[begin]
        for position in (begin + (after - begin) // 3, begin + 2 * (after - begin) // 3):
            for source, weight in enumerate(weights):
                off = abs(int(counts[position, source]) - position * Fraction(repr(weight)) / whole)
                assert off < 2 + max(int(in_block[source]), (after - begin) * Fraction(repr(weight)) / whole)


@fewer
@given(sizes=st.lists(st.integers(0, 60), min_size=1, max_size=12), seed=st.integers())
def test_without_weights_every_epoch_has_every_sample_once(sizes, seed):
    mixed = MixedDataset({f"s{k}": range(100 * k, 100 * k + size) for k, size in enumerate(sizes)}, seed=seed)
    everything = [100 * k + item for k, size in enumerate(sizes) for item in range(size)]
    assert len(mixed) == len(everything)
    for epoch in (0, 1, 7):
        positions = np.arange(epoch * len(mixed), (epoch + 1) * len(mixed))
        assert sorted(mixed.__getitems__(positions)) == everything


@fewer
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    data=st.data(),
    seed=st.integers(0, 9),
    epoch_size=st.integers(1, 700),
)
def test_each_source_goes_through_all_of_its_samples_before_one_comes_again(sizes, data, seed, epoch_size):
    weights = data.draw(st.lists(st.integers(1, 9), min_size=len(sizes), max_size=len(sizes)))
    mixed = MixedDataset(
        {f"s{k}": range(100 * k, 100 * k + size) for k, size in enumerate(sizes)}, weights, seed, epoch_size=epoch_size
    )
    got = list(mixed.__getitems__(np.arange(1000)))
    for k, size in enumerate(sizes):
        own = [item for item in got if item // 100 == k]
        for begin in range(0, len(own), size):
            epoch = own[begin : begin + size]
            assert len(set(epoch)) == len(epoch)


@fewer
@given(
    weights=weights.filter(lambda weights: sum(map(bool, weights)) > 1),
    scale=st.sampled_from([2, 10, Fraction(1, 3), Fraction(10, 7)]),
    seed=st.integers(0, 9),
)
def test_only_the_proportions_of_weights_count(weights, scale, seed):
    one, two = mixture(weights, seed=seed), mixture([Fraction(repr(w)) * scale for w in weights], seed=seed)
    assert one.settings == two.settings
    positions = np.arange(10**12, 10**12 + 300)
    assert [found.tolist() for found in one.draws(positions)] == [found.tolist() for found in two.draws(positions)]


@fewer
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    epochs=st.integers(1, 3),
    data=st.data(),
    epoch_size=st.none() | st.integers(1, 40),
)
def test_with_max_epochs_every_sample_comes_so_often_and_no_more(sizes, epochs, data, epoch_size):
    weights = data.draw(st.lists(st.integers(1, 99), min_size=len(sizes), max_size=len(sizes)))
    total = epochs * sum(sizes)
    mixed = MixedDataset(
        {f"s{k}": range(100 * k, 100 * k + size) for k, size in enumerate(sizes)},
        weights,
        max_epochs=epochs,
        epoch_size=None if epoch_size is None else min(epoch_size, total),
    )
    got = list(mixed.__getitems__(np.arange(total)))
    assert sorted(got) == sorted(epochs * [100 * k + item for k, size in enumerate(sizes) for item in range(size)])
