"""Laws 3 and 4 over compositions that are drawn: ranks, threads, workers and batches are invisible, and any stop can be
gone on from, by loaders and samplers in turn."""

from contextlib import ExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laws.compositions import batches, nodes, packs
from laws.runs import ByLoaders, BySamplers, Run, check_chain
from planning.composed_reference import Leaf, Selected, Shuffled
from planning.composed_rows import Packed

WORLDS = [1, 2, 3, 4, 6]
STOPS = 20

# An example makes up to 120 loaders, so there are fewer of them, in `make laws` too.
few = settings(max_examples=max(8, settings.default.max_examples // 25))
fewer = settings(max_examples=max(25, settings.default.max_examples // 5))

shapes = st.fixed_dictionaries(
    {
        "world_size": st.sampled_from(WORLDS),
        "num_workers": st.sampled_from([0, 0, 2, 3]),
        "prefetch": st.integers(0, 3),
    }
)
stops = st.lists(
    st.tuples(st.sampled_from([ByLoaders, ByLoaders, BySamplers]), shapes, st.integers(1, 3), st.integers(0, 4)),
    min_size=STOPS,
    max_size=STOPS,
)
some = nodes().filter(lambda node: node.n)


@few
@given(node=some, drop_last=st.booleans(), stops=stops)
def test_twenty_stops_with_other_ranks_threads_and_batches_continue_the_reference_s_run(node, drop_last, stops):
    check_chain(node, drop_last, stops)


@few
@given(node=batches(together=12).filter(lambda node: node.epoch(0)), drop_last=st.booleans(), stops=stops)
def test_twenty_stops_in_batches_of_a_token_budget_continue_the_reference_s_run(node, drop_last, stops):
    check_chain(node, drop_last, stops)


@few
@given(node=packs().filter(lambda node: node.epoch(0)), drop_last=st.booleans(), stops=stops)
def test_twenty_stops_in_packed_rows_continue_the_reference_s_run(node, drop_last, stops):
    check_chain(node, drop_last, stops)


@pytest.mark.parametrize("by", [ByLoaders, BySamplers])
def test_a_run_passes_through_epochs_without_rows(by):
    # One of six documents an epoch, and those of more than four tokens are dropped.
    node = Packed(Selected(Shuffled(Leaf(6, longest=9, salt=3), 5), (0,)), 4, 10, long="drop")
    assert [len(node.epoch(epoch)) for epoch in range(10)] == [1, 1, 0, 1, 0, 0, 0, 0, 0, 1]
    check_chain(node, False, 2 * [(by, {"world_size": 1, "num_workers": 0, "prefetch": 0}, 1, 2)])


processes = {"parallel_method": "process", "multiprocessing_context": "fork"}


@pytest.mark.slow
@settings(max_examples=10)
@given(
    node=some | packs().filter(lambda node: node.epoch(0)) | batches(together=12).filter(lambda node: node.epoch(0)),
    drop_last=st.booleans(),
    stops=stops,
)
def test_twenty_stops_with_worker_processes_continue_the_reference_s_run(node, drop_last, stops):
    forked = [(by, {**shape, **processes}, local, steps) for by, shape, local, steps in stops]
    check_chain(node, drop_last, forked)


@fewer
@given(node=some, local=st.integers(1, 3), world_size=st.sampled_from(WORLDS))
def test_every_world_size_shares_out_the_same_global_batches(node, local, world_size):
    size = 12 * local
    with ExitStack() as stack:
        ranks = ByLoaders(stack, node, None, {"world_size": world_size}, size, False)
        run = Run(node, False)
        for _ in range(2 * -(-node.n // size)):  # two epochs
            assert ranks.step() == run.batch(size)
