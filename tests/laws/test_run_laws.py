"""Laws of mixtures in runs: so many positions in a row are of one source, and runs are as exact as draws are."""

import json
from collections import Counter
from fractions import Fraction

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headrace import MixedDataset, Plan
from headrace.planning.mixture import BLOCK
from headrace.planning.recipe import consumed
from laws.changes import check_changes, phases_of
from laws.runs import item_rows
from loading.samples import make
from planning.composed_reference import Leaf, Shuffled
from planning.composed_runs import Runs
from planning.composed_views import real

fewer = settings(max_examples=max(25, settings.default.max_examples // 4))
lengths = st.sampled_from([1, 2, 3, 8, 30])
weights = st.lists(st.integers(0, 9) | st.sampled_from([0.25, 1000]), min_size=1, max_size=9).filter(any)


def mixture(sizes, weights=None, **options):
    return MixedDataset({f"s{k}": range(1000 * k, 1000 * k + n) for k, n in enumerate(sizes)}, weights, **options)


@fewer
@given(weights=weights, seed=st.integers(), run_length=lengths, runs=st.integers(1, 700))
def test_every_run_is_of_one_source_and_runs_are_as_exact_as_draws(weights, seed, run_length, runs):
    epoch_size = runs * run_length
    mixed = mixture([100] * len(weights), weights, seed=seed, epoch_size=epoch_size, run_length=run_length)
    sources, draws = (found.reshape(-1, run_length) for found in mixed.draws(np.arange(2 * epoch_size)))
    assert (sources == sources[:, :1]).all()
    assert (np.diff(draws, axis=1) == 1).all()
    counts = np.cumsum(sources[:, :1] == np.arange(len(weights)), axis=0) * run_length
    assert (draws[:, -1] + 1 == counts[np.arange(2 * runs), sources[:, 0]]).all()  # 0, 1, 2, ... of each source
    whole = sum(Fraction(weight) for weight in weights)
    for epoch in (0, runs):
        for edge in [*range(epoch + BLOCK, epoch + runs, BLOCK), epoch + runs]:
            for source, weight in enumerate(weights):
                assert abs(Fraction(int(counts[edge - 1, source]), run_length) - edge * Fraction(weight) / whole) < 2


@fewer
@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=5),
    run_length=lengths,
    data=st.data(),
    epochs=st.integers(1, 3),
)
def test_at_every_position_counts_reports_states_and_the_way_back_agree(sizes, run_length, data, epochs):
    weights = data.draw(st.none() | st.lists(st.integers(1, 9), min_size=len(sizes), max_size=len(sizes)))
    mixed = mixture(sizes, weights, run_length=run_length, seed=3)
    assert len(mixed) % run_length == 0
    assert 0 <= len(mixed) - sum(sizes) < run_length
    end = min(300, epochs * len(mixed))
    sources, draws = mixed.draws(np.arange(end))
    counts = [0] * len(sizes)
    places = [[] for _ in sizes]
    for position, (source, draw) in enumerate(zip(sources.tolist(), draws.tolist(), strict=True)):
        assert list(mixed.draws_before(position).values()) == counts
        if position % 7 == 0:
            assert list(consumed(json.loads(json.dumps(mixed.settings)), position).values()) == counts
            assert sum(row.target for row in mixed.report(position)) - position < 1e-6
        assert draw == counts[source]
        counts[source] += 1
        places[source].append(position)
    for source, expected in enumerate(places):
        assert mixed.positions_of(f"s{source}", np.arange(len(expected))).tolist() == expected


@fewer
@given(sizes=st.lists(st.integers(30, 90), min_size=1, max_size=5), run_length=lengths, epochs=st.integers(1, 3))
def test_with_max_epochs_each_source_comes_as_often_as_whole_runs_of_it_allow(sizes, run_length, epochs):
    mixed = mixture(sizes, [1] * len(sizes), run_length=run_length, max_epochs=epochs)
    runs = [epochs * size // run_length for size in sizes]
    end = mixed.reach(10**6)
    assert end == run_length * sum(runs)
    assert {mixed.reach(end + more) for more in range(run_length + 1)} == {end}
    assert mixed.reach(end - 1) == end - 1
    assert list(mixed.draws_before(end).values()) == [run_length * count for count in runs]
    got = Counter(mixed.__getitems__(np.arange(end)))
    assert max(got.values()) <= epochs


@given(weights=weights, epoch_size=st.integers(1, 300))
def test_runs_of_one_are_the_mixture_that_there_was(weights, epoch_size):
    one = mixture([50] * len(weights), weights, epoch_size=epoch_size)
    two = mixture([50] * len(weights), weights, epoch_size=epoch_size, run_length=1)
    assert one.settings == two.settings
    assert "run" not in json.dumps(one.settings)


@fewer
@given(sizes=st.lists(st.integers(1, 60), min_size=1, max_size=4), run_length=lengths, size=st.integers(1, 40))
def test_plans_find_the_steps_of_a_sample(sizes, run_length, size):
    mixed = mixture(sizes, run_length=run_length)
    plan = Plan(mixed, size, drop_last=False)
    steps = {(0, step): plan.samples_of_step(step)[0] for step in range(plan.steps_in_epoch())}
    for source, item in {one for origins in list(steps.values())[:3] for one in origins}:
        assert plan.when_seen(source, item) == [place for place, origins in steps.items() if (source, item) in origins]


@fewer
@given(
    weights=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    run_length=lengths,
    start=st.integers(0, 200),
    data=st.data(),
    most=st.none() | st.integers(1, 4),
)
def test_behind_a_change_within_a_run_its_rest_is_a_run_and_everything_agrees(weights, run_length, start, data, most):
    before = data.draw(st.lists(st.integers(0, 90), min_size=len(weights), max_size=len(weights)))
    runs = 40 if most is None else min(40, len(weights) * (60 * most // run_length))  # more is refused
    assume(runs)
    mixed = mixture([60] * len(weights), weights, run_length=run_length, epoch_size=runs * run_length, max_epochs=most)
    mixed = mixed.continued(start, {f"s{k}": count for k, count in enumerate(before)})
    end = mixed.reach(start + 200)
    sources, draws = mixed.draws(np.arange(start, end))
    counts, of_run = list(before), {}
    whole, exact = sum(weights), [Fraction(count) for count in before]
    for position, (source, draw) in enumerate(zip(sources.tolist(), draws.tolist(), strict=True), start):
        assert of_run.setdefault(position // run_length, source) == source
        assert draw == counts[source]
        assert list(mixed.draws_before(position).values()) == counts
        assert mixed.positions_of(f"s{source}", np.array([draw])).tolist() == [position]
        if most is None:
            for row, share in zip(mixed.report(position), exact, strict=True):
                assert abs(row.target - share) < 1e-6
        counts[source] += 1
        exact = [share + Fraction(weight, whole) for share, weight in zip(exact, weights, strict=True)]
        assert most is None or counts[source] <= max(most * 60, before[source])
    assert list(mixed.draws_before(end).values()) == counts
    for source, count in enumerate(before):
        assert mixed.positions_of(f"s{source}", np.arange(count)).size == 0


LEAVES = 4


@fewer
@given(
    sizes=st.lists(st.integers(1, 50), min_size=LEAVES, max_size=LEAVES),
    phases=phases_of(LEAVES, run_length=lengths, runs=st.sampled_from([1, 3, 20, 300]), steps=st.integers(0, 8)),
)
def test_runs_that_change_their_weights_and_length_again_and_again_go_on_as_the_reference(sizes, phases):
    leaves = [Leaf(size, 100 * k) for k, size in enumerate(sizes)]
    bases = (*leaves[:2], *(Shuffled(leaf, 7) for leaf in leaves[2:]))

    def node_of(phase):
        length = phase["run_length"]
        return Runs(bases, tuple(phase["weights"]), 3, epoch_size=phase["runs"] * length, run_length=length)

    def loader_of(node, phase, rank):
        size = phase["world_size"] * phase["local"]
        options = {"world_size": phase["world_size"], "global_batch_size": size, "drop_last": False}
        return make(real(node), item_rows, rank=rank, **options)

    check_changes(phases, node_of, loader_of)
