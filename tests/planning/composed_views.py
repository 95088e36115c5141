"""The views of headrace that a node of composed_reference describes, over datasets that are computed.

At module level, so that worker processes can unpickle what is in them.
"""

import numpy as np

from headrace.views import ShuffledDataset
from planning.composed_reference import Leaf, Shuffled


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
        return place * 16 + np.arange(self.leaf.tokens(item), dtype=np.int32)


class Known(Items):
    """Has lengths and an identity, and reads batches of arrays."""

    @property
    def settings(self):
        return {"data": self._fingerprint, "num_samples": self.leaf.n}

    def lengths_at(self, items):
        return np.array([self.leaf.tokens(item) for item in items.tolist()], np.int64)

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


def real(node, *, tokens=False):
    """The views of headrace that this node describes."""
    match node:
        case Leaf():
            kinds = {"ours": Known, "foreign": Items, "keyed": Keyed}
            return kinds[node.kind](node, tokens)
        case Shuffled():
            return ShuffledDataset(real(node.base, tokens=tokens), node.seed)
    raise AssertionError(node)
