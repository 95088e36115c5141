"""Orders that end: those of a mixture whose sources may be drawn so often and no more (max_epochs)."""

from collections.abc import Callable
from functools import partial
from typing import Any

from headrace.views.protocol import is_ordered, is_view

__all__ = ["reach_of", "whole_epochs"]

_FAR = 1 << 61


def reach_of(dataset: Any) -> Callable[[int], int] | None:
    """reach(position) -> the position, or the end of the order where that comes before it. None for endless orders.

    A view above a mixture that ends goes on as long as all of its epoch is there.
    """
    below = dataset
    while is_view(below):
        below = below.base
    ends = is_ordered(below) and any(epochs is not None for epochs in below.recipe.max_epochs)
    return partial(_reach, dataset) if ends else None


def whole_epochs(dataset: Any) -> int | None:
    """How many whole epochs the order of dataset has; None where it does not end."""
    reach, length = reach_of(dataset), len(dataset)
    if reach is None or length == 0:
        return None
    far = _FAR // length * length
    end = reach(far)
    return None if end == far else end // length


def _reach(dataset: Any, position: int) -> int:
    if not is_view(dataset):
        return int(dataset.reach(position))
    length, below = len(dataset), len(dataset.base)
    if not length:
        return position
    epochs = -(-position // length)
    return min(position, _reach(dataset.base, epochs * below) // below * length)
