"""A plan tells of any composition what the reference has, both ways, and reads no sample."""

from collections import defaultdict
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import Plan
from laws.compositions import batches, nodes, packs
from planning.composed_rows import Packed, TokenBudget
from planning.composed_views import Items, real

few = settings(max_examples=max(10, settings.default.max_examples // 10))
fewer = settings(max_examples=max(25, settings.default.max_examples // 5))


@pytest.fixture(autouse=True, scope="module")
def _no_sample_can_be_read():
    with mock.patch.object(Items, "sample", side_effect=AssertionError("a sample was read")):
        yield


def origins_of_rows(node, epoch):
    """Where the samples of each row of an epoch come from; a row of items is one."""
    match node:
        case Packed():
            return [[node.base.origin(position) for position, *_ in row] for row in node.epoch(epoch)]
        case TokenBudget():
            return [[node.base.origin(position) for position in row] for row in node.epoch(epoch)]
    return [[node.origin(position)] for position in range(epoch * node.n, (epoch + 1) * node.n)]


def check_plan(node, world_size, local, drop_last, epochs):
    size = world_size * local
    view = real(node)
    plan = Plan(view, size, world_size, drop_last=drop_last)
    seen = defaultdict(set)
    for epoch in range(epochs):
        rows = origins_of_rows(node, epoch)
        steps = [rows[begin : begin + size] for begin in range(0, len(rows), size)]
        steps = [step for step in steps if len(step) == size or not drop_last]
        assert plan.rows_in_epoch(epoch) == len(rows)
        assert plan.steps_in_epoch(epoch) == len(steps)
        for number, step in enumerate(steps):
            found = plan.samples_of_step(number, epoch)
            if not hasattr(view, "windowed"):
                found = [[[origin] for origin in part] for part in found]
            assert found == [step[rank::world_size] for rank in range(world_size)]
            for row in step:
                for origin in row:
                    seen[origin].add((epoch, number))
    return plan, seen


def check_seen(node, plan, seen, epochs):
    """Every sample that was seen is found where it was; and those that were not, nowhere."""
    everything = {(source, item) for source, leaf in sources_of(node) for item in range(leaf.n)}
    assert set(seen) <= everything
    for source, item in sorted(everything)[:: max(1, len(everything) // 12)]:
        assert plan.when_seen(source, item, range(epochs)) == sorted(seen[source, item])


def sources_of(node):
    """The leaves of a node that have weights, with their names in its mixtures."""
    if hasattr(node, "bases"):
        for number, base in enumerate(node.bases):
            if node.used[number]:
                yield from ((f"s{number}/{name}".rstrip("/"), leaf) for name, leaf in sources_of(base))
    elif hasattr(node, "base"):
        yield from sources_of(node.base)
    else:
        yield "", node


sizes = {"world_size": st.integers(1, 4), "local": st.integers(1, 20), "drop_last": st.booleans()}


@fewer
@given(node=nodes(depth=3).filter(lambda node: node.n), **sizes)
def test_a_plan_names_the_samples_of_each_step_and_the_steps_of_each_sample(node, world_size, local, drop_last):
    plan, seen = check_plan(node, world_size, local, drop_last, epochs=2)
    check_seen(node, plan, seen, epochs=2)


@few
@given(node=packs(depth=2), **sizes)
def test_a_plan_names_the_documents_of_packed_rows_and_the_steps_of_each(node, world_size, local, drop_last):
    plan, seen = check_plan(node, world_size, local, drop_last, epochs=2)
    check_seen(node, plan, seen, epochs=2)


@few
@given(node=batches(depth=2), world_size=st.integers(1, 4), drop_last=st.booleans())
def test_a_plan_names_the_samples_of_token_budget_batches_and_the_steps_of_each(node, world_size, drop_last):
    plan, seen = check_plan(node, world_size, 1, drop_last, epochs=2)
    check_seen(node, plan, seen, epochs=2)
