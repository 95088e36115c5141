"""The views of headrace that a node of composed_reference describes, over datasets that are computed.

At module level, so that worker processes can unpickle what is in them.
"""

import numpy as np

from headrace.views import LinearSchedule, MixedDataset, ShuffledDataset
from headrace.views.buffer_sorted import BufferSortedDataset
from headrace.views.packed import PackedDataset
from headrace.views.selected import SelectedDataset
from headrace.views.sharded import ShardedDataset, ShardIndexingMode
from headrace.views.token_budget import TokenBudgetBatches
from headrace.views.with_lengths import WithLengths
from planning.composed_mixture import Mixed
from planning.composed_reference import LISTED, BufferSorted, Leaf, Pooled, Selected, Sharded, Shuffled, length_of
from planning.composed_rows import Packed, TokenBudget


class Items:
    """The dataset of a leaf. Sample i is {"id": its id}; with tokens, also an array of id * 16 + (0, 1, ...)."""

    def __init__(self, leaf, tokens):
        self.leaf = leaf
        self.with_tokens = tokens
        self._fingerprint = f"{leaf.first} {leaf.longest} {leaf.salt}"

    def __len__(self):
        return self.leaf.n

    def __getitem__(self, item):
        if not 0 <= item < self.leaf.n:
            raise IndexError(item)
        return self.sample(int(item))

    def sample(self, item):
        place = self.leaf.place(item)
        if not self.with_tokens:
            return {"id": place}
        return place * 16 + np.arange(self.leaf.tokens(item))


class Known(Items):
    """Has lengths and an identity, and reads batches of arrays."""

    @property
    def settings(self):
        return {"data": self._fingerprint, "num_samples": self.leaf.n}

    @property
    def shard_items(self):
        return np.array(self.leaf.shard_items, np.int64)

    def lengths_at(self, items):
        return length_of(self.leaf.first + items, self.leaf.longest, self.leaf.salt)

    @property
    def mean_length(self):
        if self.leaf.n <= LISTED:
            raise AttributeError("mean_length")  # as of a dataset that has lengths alone
        return self.leaf.mean

    @property
    def lengths(self):
        return self.lengths_at(np.arange(self.leaf.n))

    def __getitems__(self, items):
        assert isinstance(items, np.ndarray)
        assert items.dtype == np.int64
        return [self[item] for item in items.tolist()]


class Keyed(Items):
    """Knows d9d's key of each item, and reads batches of lists as foreign datasets do."""

    def sort_key(self, item):
        assert type(item) is int
        return self.leaf.tokens(item)

    def __getitems__(self, items):
        assert all(type(item) is int for item in items)
        return [self[item] for item in items]


def tokens_of(node, row):
    """The tokens of a row of a Packed node."""
    return [node.base.place(position) * 16 + k for position, start, stop in row for k in range(start, stop)]


def real(node, *, tokens=False):
    """The views of headrace that this node describes; with tokens, their samples are documents."""
    if isinstance(node, Leaf) and node.kind == "measured":
        return WithLengths(Items(node, tokens), [node.tokens(item) for item in range(node.n)])
    if isinstance(node, Leaf):
        return {"ours": Known, "foreign": Items, "keyed": Keyed}[node.kind](node, tokens)
    if isinstance(node, Mixed):
        return mixed(node, [real(base, tokens=tokens) for base in node.bases])
    base = real(node.base, tokens=tokens)
    match node:
        case Shuffled():
            return ShuffledDataset(base, node.seed)
        case Pooled():
            return ShuffledDataset(base, node.seed, "pooled", pool_items=node.pool_items, lanes=node.lanes)
        case Selected():
            return selected(base, node)
        case BufferSorted():
            return BufferSortedDataset(base, node.buffer, node.pack, node.seed)
        case Sharded():
            return ShardedDataset(base, node.total, node.current, ShardIndexingMode(node.mode), node.padded)
        case Packed():
            return PackedDataset(base, node.capacity, node.window, node.strategy, node.long, node.seed)
        case TokenBudget():
            return TokenBudgetBatches(
                base,
                node.max_tokens,
                node.together,
                node.padded,
                node.cost,
                long=node.long,
                max_samples=node.most,
                window=node.window,
                seed=node.seed,
            )
    raise AssertionError(node)


def selected(base, node):
    """The same selection given in the way that the node says."""
    few = np.array(node.few, np.int64)
    match node.how:
        case "ids":
            return SelectedDataset(base, few[::-1])
        case "exclude":
            return SelectedDataset(base, exclude=few.tolist())
    bitmap = np.zeros(len(base), bool)
    bitmap[few] = True
    return SelectedDataset(base, bitmap)


def mixed(node, bases):
    names = [f"s{number}" for number in range(len(bases))]
    schedule = node.schedule
    if schedule is not None:
        points = [(position, dict(zip(names, weights, strict=True))) for position, weights in schedule]
        schedule = LinearSchedule(points) if node.linear else points
    most = node.max_epochs
    if isinstance(most, tuple):
        most = {name: epochs for name, epochs in zip(names, most, strict=True) if epochs is not None}
    return MixedDataset(
        dict(zip(names, bases, strict=True)),
        node.weights,
        node.seed,
        schedule=schedule,
        unit=node.unit,
        epoch_size=node.epoch_size,
        exhausted=node.exhausted,
        max_epochs=most,
        run_length=getattr(node, "run_length", 1),
    )
