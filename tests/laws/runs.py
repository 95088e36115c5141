"""Runs over a drawn composition: the uninterrupted one, by the reference, and those of loaders and samplers that stop
and go on. A row is an id, the tokens of a packed row, or the ids of a batch of a token budget."""

import json
from contextlib import ExitStack

import numpy as np
import pytest

from headrace import ElasticBatchSampler
from headrace.errors import OrderError
from loading.samples import make
from planning.composed_rows import Packed, TokenBudget, Windowed
from planning.composed_views import real, tokens_of


class Run:
    """One row after the other, cut into batches as they are asked for."""

    def __init__(self, node, drop_last):
        self.node = node
        self.drop_last = drop_last
        self.epoch = 0
        self.position = 0

    @property
    def rows(self):
        """How many rows the epoch has."""
        return len(self.node.epoch(self.epoch)) if isinstance(self.node, Windowed) else self.node.n

    def row(self, number):
        node = self.node
        match node:
            case Packed():
                return tokens_of(node, node.epoch(self.epoch)[number])
            case TokenBudget():
                return [node.base.place(position) for position in node.epoch(self.epoch)[number]]
        return node.place(self.epoch * node.n + number)

    def batch(self, size):
        """The next rows; none where an epoch has not even one batch, which loaders refuse with drop_last, and where no
        epoch in sight has a row, without."""
        self.leave_what_fills_no_batch(size)
        for _ in range(20):
            if self.rows == 0 and not self.drop_last:
                self.epoch += 1
        if self.position == 0 and self.rows < (size if self.drop_last else 1):
            return []
        rows = range(self.position, min(self.position + size, self.rows))
        batch = [self.row(number) for number in rows]
        self.position += len(rows)
        self.leave_what_fills_no_batch(size)
        return batch

    def leave_what_fills_no_batch(self, size):
        """The end of an epoch is the start of the next; rows that will be dropped are behind it already."""
        left = self.rows - self.position
        if self.position and (left == 0 or (self.drop_last and left < size)):
            self.epoch, self.position = self.epoch + 1, 0


def item_rows(samples):
    """The built-in collate would refuse samples of unequal shapes; what counts here are the ids."""
    return [sample["id"] for sample in samples]


def packed_rows(samples):
    return [sample["input_ids"][sample["segment_ids"] > 0].tolist() for sample in samples]


def one_row(samples):
    """What a rank gets of token-budget batches is one row."""
    return [item_rows(samples)]


def collate_of(node):
    match node:
        case Packed():
            return packed_rows
        case TokenBudget():
            return one_row
    return item_rows


def together(parts):
    """The global batch that these ranks' batches are the deal of."""
    rows = [None] * sum(map(len, parts))
    for rank, part in enumerate(parts):
        rows[rank :: len(parts)] = part
    return rows


class ByLoaders:
    """world_size loaders, one batch at a time."""

    def __init__(self, stack, node, state, shape, size, drop_last):
        if not isinstance(node, TokenBudget):
            shape = {**shape, "global_batch_size": size}
        self.loaders = [
            stack.enter_context(make(view_of(node), collate_of(node), rank=rank, drop_last=drop_last, **shape))
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
        self.dataset = view_of(node)
        self.node = node
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
        return together([self.read(rows) if rows else [] for rows in lists])

    def read(self, rows):
        samples = self.dataset.__getitems__(np.array(rows))
        return collate_of(self.node)(samples[0] if isinstance(self.node, TokenBudget) else samples)

    def state(self):
        return [sampler.state_dict(batches_consumed=self.consumed) for sampler in self.samplers]


def view_of(node):
    return real(node, tokens=isinstance(node, Packed))


def check_chain(node, drop_last, stops):
    """Each stop's batches are the reference's, and all ranks say one and the same of where the run is."""
    run, state = Run(node, drop_last), None
    for by, shape, local, steps in stops:
        size = local * shape["world_size"]
        if drop_last and size > run.rows:
            shape, size = {**shape, "world_size": 1}, 1
        if isinstance(node, TokenBudget):
            size = shape["world_size"]
        with ExitStack() as stack:
            ranks = by(stack, node, state, shape, size, drop_last)
            dropped = drop_last and run.rows - run.position < size
            if isinstance(node, TokenBudget) and -run.position % node.together % size and not dropped:
                with pytest.raises(OrderError, match="within a step"):  # too few are left for these ranks
                    ranks.step()
                continue
            for _ in range(steps):
                expected = run.batch(size)
                if not expected:
                    if drop_last:
                        with pytest.raises(OrderError, match="do not fill one global batch"):
                            ranks.step()
                    return
                assert ranks.step() == expected
            texts = {json.dumps(one, sort_keys=True) for one in ranks.state()}
            assert len(texts) == 1
            state = texts.pop()
            assert len(state) < 4096
