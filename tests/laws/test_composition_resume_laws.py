"""Laws 3 and 4 over compositions that are drawn: ranks, threads, workers and batches are invisible, and any stop can be
gone on from, by loaders and samplers in turn."""

import itertools
import json
from contextlib import ExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import ElasticBatchSampler
from laws.compositions import nodes
from loading.samples import make
from planning.composed_views import real

WORLDS = [1, 2, 3, 4, 6]
STOPS = 20

# An example makes up to 120 loaders, so there are fewer of them, in `make laws` too.
few = settings(max_examples=max(8, settings.default.max_examples // 10))


class Run:
    """The uninterrupted run, by the reference: one row after the other, cut into batches as they are asked for."""

    def __init__(self, node, drop_last):
        self.node = node
        self.drop_last = drop_last
        self.epoch = 0
        self.position = 0

    def batch(self, size):
        self.leave_what_fills_no_batch(size)
        begin = self.epoch * self.node.n + self.position
        count = min(self.node.n - self.position, size)
        self.position += count
        self.leave_what_fills_no_batch(size)
        return [self.node.place(row) for row in range(begin, begin + count)]

    def leave_what_fills_no_batch(self, size):
        """The end of an epoch is the start of the next; rows that will be dropped are behind it already."""
        left = self.node.n - self.position
        if left == 0 or (self.drop_last and left < size):
            self.epoch, self.position = self.epoch + 1, 0


def ids(samples):
    """The built-in collate would refuse samples of unequal shapes; what counts here are the ids."""
    return [sample["id"] for sample in samples]


def together(parts):
    """The global batch that these ranks' batches are the deal of."""
    rows = [None] * sum(map(len, parts))
    for rank, part in enumerate(parts):
        rows[rank :: len(parts)] = part
    return rows


class ByLoaders:
    """world_size loaders, one batch at a time."""

    def __init__(self, stack, node, state, shape, size, drop_last):
        self.loaders = [
            stack.enter_context(make(real(node), ids, rank=rank, global_batch_size=size, drop_last=drop_last, **shape))
            for rank in range(shape["world_size"])
        ]
        for loader in self.loaders:
            if state is not None:
                loader.load_state_dict(json.loads(state))
        self.iterators = None

    def step(self):
        if self.iterators is None:
            self.iterators = [iter(loader) for loader in self.loaders]
        parts = [next(iterator, None) for iterator in self.iterators]
        if None in parts:
            assert set(map(type, parts)) == {type(None)}  # every rank ends at the same step
            self.iterators = None
            return self.step()
        return together(parts)

    def state(self):
        return [loader.state_dict() for loader in self.loaders]


class BySamplers:
    """world_size samplers, and their datasets asked for each list."""

    def __init__(self, stack, node, state, shape, size, drop_last):
        self.dataset = real(node)
        self.samplers = [
            ElasticBatchSampler(self.dataset, size, rank, shape["world_size"], drop_last=drop_last)
            for rank in range(shape["world_size"])
        ]
        for sampler in self.samplers:
            if state is not None:
                sampler.load_state_dict(json.loads(state))
        self.iterators = None
        self.consumed = 0

    def step(self):
        if self.iterators is None:
            self.iterators, self.consumed = [iter(sampler) for sampler in self.samplers], 0
        lists = [next(iterator, None) for iterator in self.iterators]
        if None in lists:
            assert set(map(type, lists)) == {type(None)}
            self.iterators = None
            return self.step()
        self.consumed += 1
        return together([ids(self.dataset.__getitems__(rows)) if rows else [] for rows in lists])

    def state(self):
        return [sampler.state_dict(batches_consumed=self.consumed) for sampler in self.samplers]


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


def check_chain(node, drop_last, stops):
    """Each stop's batches are the reference's, and all ranks say one and the same of where the run is."""
    run, state = Run(node, drop_last), None
    for by, shape, local, steps in stops:
        size = local * shape["world_size"]
        if drop_last and size > node.n:
            shape, size = {**shape, "world_size": 1}, 1
        with ExitStack() as stack:
            ranks = by(stack, node, state, shape, size, drop_last)
            for _ in range(steps):
                assert ranks.step() == run.batch(size)
            texts = {json.dumps(one, sort_keys=True) for one in ranks.state()}
            assert len(texts) == 1
            state = texts.pop()
            assert len(state) < 4096


@few
@given(node=nodes().filter(lambda node: node.n), drop_last=st.booleans(), stops=stops)
def test_twenty_stops_with_other_ranks_threads_and_batches_continue_the_reference_s_run(node, drop_last, stops):
    check_chain(node, drop_last, stops)


processes = {"parallel_method": "process", "multiprocessing_context": "fork"}


@pytest.mark.slow
@settings(max_examples=10)
@given(node=nodes().filter(lambda node: node.n), drop_last=st.booleans(), stops=stops)
def test_twenty_stops_with_worker_processes_continue_the_reference_s_run(node, drop_last, stops):
    forked = [(by, {**shape, **processes}, local, steps) for by, shape, local, steps in stops]
    check_chain(node, drop_last, forked)


@given(node=nodes().filter(lambda node: node.n), local=st.integers(1, 3), world_size=st.sampled_from(WORLDS))
def test_every_world_size_shares_out_the_same_global_batches(node, local, world_size):
    size = 12 * local
    with ExitStack() as stack:
        ranks = ByLoaders(stack, node, None, {"world_size": world_size}, size, False)
        run = Run(node, False)
        for _ in itertools.repeat(None, 2 * -(-node.n // size)):  # two epochs
            assert ranks.step() == run.batch(size)
