"""Runs whose mixture changes again and again: what is drawn for them, and what holds for each, by the reference."""

import json
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace

from hypothesis import strategies as st

from laws.runs import together


def phases_of(num_sources, **more):
    """Lists of what a run is told, one after the other: the weights, how many ranks with how many rows each, for how
    many steps; and more."""
    weights = st.lists(st.sampled_from([0, 0, 1, 2, 0.5, 9]), min_size=num_sources, max_size=num_sources)
    phase = {"weights": weights.filter(any), "world_size": st.integers(1, 3), "local": st.integers(1, 30), **more}
    return st.lists(st.fixed_dictionaries(phase), max_size=6)


def check_changes(phases, node_of, loader_of):
    """The run goes on in each phase as the reference does: what was drawn stays counted.

    node_of(phase) is the reference's mixture, loader_of(node, phase, rank) the loader of one.
    """
    position, drawn, state, before = 0, Counter(), None, None
    for phase in phases:
        node = node_of(phase)
        length = getattr(node, "run_length", 1)
        if before is None or (node.points, node.n, length) != before:  # else nothing changed: legs and blocks go on
            begun = replace(node, start=position, drawn=tuple(drawn[k] for k in range(len(node.bases))))
            before = node.points, node.n, length
        with ExitStack() as stack:
            ranks = [stack.enter_context(loader_of(node, phase, rank)) for rank in range(phase["world_size"])]
            for one in ranks:
                if state is not None:
                    one.load_state_dict(json.loads(state), change="from_here")
            iterators = None
            for _ in range(phase["steps"]):
                if position % node.n == 0 or not iterators:
                    iterators = [iter(one) for one in ranks]
                size = phase["world_size"] * phase["local"]
                end = min(position + size, (position // node.n + 1) * node.n)
                expected, found = [], []
                for place in range(position, end):
                    source, draw = begun.draw(place)
                    assert draw == drawn[source]
                    drawn[source] += 1
                    found.append((place // length, source))
                    expected.append(begun.place(place))
                assert len(set(found)) == len({run for run, _ in found})  # a run is of one source
                assert together([next(iterator) for iterator in iterators]) == expected
                position = end
            (state,) = {json.dumps(one.state_dict(), sort_keys=True) for one in ranks}
