"""Damaged samples under compositions that are drawn: each position gives its own sample or that one's substitute."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.planning import Permutation, derive_seed
from headrace.views import dataset_settings
from headrace.views.leaves import leaves_at
from headrace.views.skipping import CORRUPT, SkippedItems, skipping, with_leaves
from laws.compositions import batches, nodes, packs
from planning.composed_reference import length_of
from planning.composed_views import real


class Damaging:
    """A dataset as it is, but for some samples that raise; never those of 2 tokens or less, so that most have a
    substitute that is short enough."""

    def __init__(self, dataset, tenths):
        self.dataset = dataset
        self.tenths = tenths

    def __len__(self):
        return len(self.dataset)

    def __getattr__(self, name):
        if name in ("__getitems__", "dataset") or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __getitem__(self, item):
        if self.is_damaged(item):
            raise KeyError(item)
        return self.dataset[item]

    @property
    def leaf(self):
        return getattr(self.dataset, "dataset", self.dataset).leaf  # lengths may stand beside it

    def is_damaged(self, item):
        return length_of(int(item), 10, 5) <= self.tenths and self.leaf.tokens(int(item)) > 2

    def substitute(self, item, fit):
        """By the rule, one at a time; None where no sample can be it."""
        tokens = self.leaf.tokens
        for candidate in Permutation(len(self), derive_seed(0, "substitute", item))(np.arange(len(self))).tolist():
            if candidate != item and not self.is_damaged(candidate) and not (fit and tokens(candidate) > tokens(item)):
                return candidate
        return None


def damaged(node, tenths, **options):
    return with_leaves(real(node, **options), lambda leaf, _: Damaging(leaf, tenths))


def some_have_no_substitute(view, positions, fit=False):
    return any(
        leaf.dataset.is_damaged(item) and leaf.dataset.substitute(item, fit) is None
        for leaf in leaves_at(view, positions)
        for item in leaf.items.tolist()
    )


@given(node=nodes(), tenths=st.integers(0, 9), size=st.integers(1, 40))
def test_each_position_gives_its_own_sample_or_its_substitute_and_the_order_knows_nothing_of_it(node, tenths, size):
    view = damaged(node, tenths)
    record = SkippedItems()
    read = skipping(view, CORRUPT, record)
    assert dataset_settings(read) == dataset_settings(real(node))
    assert len(read) == node.n
    if node.n == 0:
        return
    positions = np.arange(2 * node.n)
    if some_have_no_substitute(view, positions):
        return
    expected, met = [None] * len(positions), set()
    for leaf in leaves_at(view, positions):
        for item, place in zip(leaf.items.tolist(), leaf.places.tolist(), strict=True):
            instead = item
            if leaf.dataset.is_damaged(item):
                instead = leaf.dataset.substitute(item, fit=False)
                met.add((leaf.source, item, instead))
            expected[place] = leaf.dataset.dataset[instead]["id"]
    found = [
        sample["id"]
        for begin in range(0, len(positions), size)
        for sample in read.__getitems__(positions[begin : begin + size])
    ]
    assert found == expected
    assert {(one.source, one.item, one.substitute) for one in record} == met


@given(node=packs() | batches(), tenths=st.integers(1, 9))
def test_rows_are_as_many_and_as_large_as_planned_whatever_is_damaged(node, tenths):
    whole, view = real(node, tokens=True), damaged(node, tenths, tokens=True)
    read = skipping(view, CORRUPT, SkippedItems())
    if node.base.n == 0 or some_have_no_substitute(view.base, np.arange(node.base.n), fit=True):
        return
    for window in range(whole.num_windows):
        addresses = whole.addresses(0, window)
        assert (read.addresses(0, window) == addresses).all()
        for planned, row in zip(whole.__getitems__(addresses), read.__getitems__(addresses), strict=True):
            if isinstance(row, dict):
                assert row["input_ids"].shape == planned["input_ids"].shape
                assert (row["document_ids"] == planned["document_ids"]).all()
                assert np.count_nonzero(row["segment_ids"]) <= np.count_nonzero(planned["segment_ids"])
            else:
                lengths = [(len(one), len(other)) for one, other in zip(row, planned, strict=True)]
                assert all(found <= meant for found, meant in lengths)
