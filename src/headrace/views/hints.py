"""Telling the datasets below all views what will be read soon, so that a cache fetches its files ahead of their use.

positions --leaves_at--> items of each dataset, in order --prefetch--> its shards, each once --> the cache

Rows of packs and batches are announced by windows: a row's samples may come from anywhere in its window.
"""

from typing import Any

import numpy as np

from headrace.views.leaves import LeafItems, leaves_at
from headrace.views.protocol import Int64s, is_ordered, is_view, is_windowed

__all__ = ["prefetch", "takes_hints"]

_MOST_NAMED = 1 << 16  # positions of one hint: more of them would be work for little


def takes_hints(dataset: Any) -> bool:
    """Whether prefetch() does anything: some dataset below all views is read through a cache. Opens them."""
    while is_view(dataset) or is_windowed(dataset):
        dataset = dataset.base
    if is_ordered(dataset):
        return any(takes_hints(dataset.sources[name]) for name in dataset.recipe.names)
    return bool(getattr(dataset, "keeps_copies", False))


def prefetch(dataset: Any, positions: Int64s) -> None:
    """Expect these positions to be read, in this order. A hint: each one replaces what was hinted before.

    They are endless positions, or addresses of rows where dataset is a windowed view.
    """
    positions = np.asarray(positions, np.int64)[:_MOST_NAMED]
    while is_view(dataset):
        positions = dataset.locate(positions)
        dataset = dataset.base
    if is_windowed(dataset):
        spans = [dataset.window_positions(epoch, window) for epoch, window, _, _ in dataset.windows_of(positions)]
        below = [np.arange(first, min(end, first + _MOST_NAMED), dtype=np.int64) for first, end in spans]
        if below:
            prefetch(dataset.base, np.concatenate(below))
        return
    found: dict[int, list[LeafItems]] = {}
    for leaf in leaves_at(dataset, positions):
        found.setdefault(id(leaf.dataset), []).append(leaf)
    for leaves in found.values():
        hint = getattr(leaves[0].dataset, "prefetch", None)
        if hint is not None:
            order = np.argsort(np.concatenate([leaf.places for leaf in leaves]), kind="stable")
            hint(np.concatenate([leaf.items for leaf in leaves])[order])
