"""Samples of several sources as one batch, in the order they were asked for."""

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.views.protocol import Int64s

__all__ = ["MixedBatch", "joined"]


class MixedBatch(Sequence[Any]):
    """A batch whose parts can each be stacked to arrays of the same names, types and inner shapes: so can the whole."""

    def __init__(self, parts: Sequence[Sequence[Any]], trees: Sequence[Any], places: Sequence[Int64s]) -> None:
        self._parts = parts
        self._trees = trees
        self._places = places
        number = sum(map(len, places))
        self._part_of = np.empty(number, np.int64)
        self._index_of = np.empty(number, np.int64)
        for part, chosen in enumerate(places):
            self._part_of[chosen] = part
            self._index_of[chosen] = np.arange(len(chosen))

    def __len__(self) -> int:
        return len(self._part_of)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = operator.index(index)
        return self._parts[int(self._part_of[number])][int(self._index_of[number])]

    def stacked(self) -> Any:
        """The samples as one: a dict of arrays or one array, the batch first."""
        first = self._trees[0]
        if isinstance(first, dict):
            return {name: self._merged([tree[name] for tree in self._trees]) for name in first}
        return self._merged(self._trees)

    def _merged(self, arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
        merged = np.empty((len(self), *arrays[0].shape[1:]), arrays[0].dtype)
        for array, places in zip(arrays, self._places, strict=True):
            merged[places] = array
        return merged


def joined(parts: Sequence[Sequence[Any]], places: Sequence[Int64s]) -> Sequence[Any]:
    """The samples of all parts, each at its place: a MixedBatch where all can be stacked alike, else a list."""
    if len(parts) == 1:
        return parts[0]  # places of one part are 0, 1, ...
    if all(hasattr(part, "stacked") for part in parts):
        trees = [part.stacked() for part in parts]  # type: ignore[attr-defined]
        if all(_outline(tree) == _outline(trees[0]) is not None for tree in trees):
            return MixedBatch(parts, trees, places)
    samples: list[Any] = [None] * sum(map(len, places))
    for part, chosen in zip(parts, places, strict=True):
        for place, sample in zip(chosen.tolist(), part, strict=True):
            samples[place] = sample
    return samples


def _outline(tree: Any) -> Any:
    """Names, types and inner shapes of a stacked batch; None for what is no array or dict of arrays."""
    if isinstance(tree, dict):
        outlines = {name: _outline(array) for name, array in tree.items()}
        return None if any(not isinstance(outline, tuple) for outline in outlines.values()) else outlines
    return (tree.dtype, tree.shape[1:]) if isinstance(tree, np.ndarray) and tree.ndim else None
