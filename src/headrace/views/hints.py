"""Telling the datasets below all views what will be read soon, so that a cache fetches its files ahead of their use.

positions --leaves_at--> items of each dataset, in order --prefetch--> its shards, each once --> the cache

Rows of packs and batches are announced by windows: a row's samples may come from anywhere in its window.
"""

from typing import Any

import numpy as np

from headrace.views.leaves import LeafItems, leaves_at
from headrace.views.protocol import Int64s, is_ordered, is_view, is_windowed

__all__ = ["prefetch", "takes_hints"]

_NONE = np.zeros(0, np.int64)
_MOST_NAMED = 1 << 16  # positions of one hint: more of them would be work for little


def takes_hints(dataset: Any) -> bool:
    """Whether prefetch() does anything: some dataset below all views is read through a cache. Opens them."""
    return any(getattr(leaf, "keeps_copies", False) for leaf in _datasets_below(dataset))


def prefetch(dataset: Any, positions: Int64s) -> None:
    """Expect these positions to be read, in this order. A hint: each one replaces what was hinted before, none of them
    (no positions) too.

    They are endless positions, or addresses of rows where dataset is a windowed view.
    """
    positions = np.asarray(positions, np.int64)[:_MOST_NAMED]
    found: dict[int, list[LeafItems]] = {}
    for leaf in _leaves_at(dataset, positions) if len(positions) else []:
        found.setdefault(id(leaf.dataset), []).append(leaf)
    for below in _datasets_below(dataset):
        # What is closed by now is not opened to hear that nothing more is expected of it.
        if not hasattr(type(below), "keeps_copies") or (len(positions) and not below.keeps_copies):
            continue
        leaves = found.get(id(below), [])
        order = np.argsort(np.concatenate([leaf.places for leaf in leaves] or [_NONE]), kind="stable")
        below.prefetch(np.concatenate([leaf.items for leaf in leaves] or [_NONE])[order])


def _leaves_at(dataset: Any, positions: Int64s) -> list[LeafItems]:
    while is_view(dataset):
        positions = dataset.locate(positions)
        dataset = dataset.base
    if not is_windowed(dataset):
        return leaves_at(dataset, positions)
    spans = [dataset.window_positions(epoch, window) for epoch, window, _, _ in dataset.windows_of(positions)]
    below = [np.arange(first, min(end, first + _MOST_NAMED), dtype=np.int64) for first, end in spans]
    return _leaves_at(dataset.base, np.concatenate([_NONE, *below])[:_MOST_NAMED])


def _datasets_below(dataset: Any) -> list[Any]:
    """The datasets below all views that are drawn from, each once."""
    while is_view(dataset) or is_windowed(dataset):
        dataset = dataset.base
    if not is_ordered(dataset):
        return [dataset]
    found = [leaf for name in dataset.recipe.names for leaf in _datasets_below(dataset.sources[name])]
    return list({id(leaf): leaf for leaf in found}.values())
