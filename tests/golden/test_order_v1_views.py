"""Law 10 for the views: a published order never changes. order_v1_views.json is what version 1 of each is, for good.

A failure here means that a checkpoint of a released version would go on in another order. Do not touch the file: give
the new order the next version number, and keep this one readable.
"""

import json

import numpy as np
import pytest

from headrace.planning.blocks import permuted_in_blocks
from headrace.views.leaves import leaves_at
from planning import golden_order, golden_views
from planning.composed_rows import Packed
from planning.composed_views import real


@pytest.fixture(scope="module")
def golden():
    return json.loads(golden_views.FILE.read_text(encoding="utf-8"))


def block(indices, total, size, seed, epoch):
    return permuted_in_blocks(np.array(indices), total, size, seed, epoch).tolist()


def items(node, positions):
    """The ids at these positions: located, so that leaves of 10^12 items do."""
    found = np.empty(len(positions), np.int64)
    for leaf in leaves_at(real(node), np.array(positions)):
        found[leaf.places] = leaf.dataset.leaf.first + leaf.items
    return found.tolist()


def rows(node, epoch, window):
    view = real(node)
    positions, offsets = view.row_positions(epoch, window)
    entries = positions.tolist()
    if isinstance(node, Packed):
        plan = view.window_plan(epoch, window)
        pieces = zip(entries, plan.starts.tolist(), plan.stops.tolist(), strict=True)
        entries = [list(piece) for piece in pieces]
    return [entries[begin:end] for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]


def test_the_views_give_the_golden_orders(golden):
    content = json.loads(json.dumps(golden_views.document(block=block, items=items, rows=rows)))
    assert set(content) == set(golden)
    for name, entries in content.items():
        if name == "order_version":
            assert entries == golden[name] == 1
            continue
        for entry, expected in zip(entries, golden[name], strict=True):
            assert entry == expected


def test_the_references_give_the_golden_orders_byte_for_byte():
    assert golden_order.text_of(golden_views.from_references()) == golden_views.FILE.read_text(encoding="utf-8")


def test_every_golden_block_is_undone(golden):
    for entry in golden["blocks"]:
        settings = (entry["total"], entry["block"], entry["seed"], entry["epoch"])
        undone = permuted_in_blocks(np.array(entry["items"]), *settings, inverse=True)
        assert undone.tolist() == entry["indices"]
