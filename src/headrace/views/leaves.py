"""The datasets below all views, and which of their items stand at a view's positions."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from headrace.errors import OrderError
from headrace.views.protocol import Int64s, is_ordered, is_view, is_windowed, items_of

__all__ = ["LeafItems", "check_lengths_in_tokens", "check_stateless", "leaf_paths", "leaves_at", "some_leaf"]


class LeafItems(NamedTuple):
    """Items of one dataset below all views."""

    path: tuple[str, ...]  # its name in a mixture, (outer, inner) in one of mixtures, () where there is none
    dataset: Any
    items: Int64s  # (k,)
    places: Int64s  # (k,) where each belongs among the positions that were asked for

    @property
    def source(self) -> str:
        """The path as text: "outer/inner"."""
        return "/".join(self.path)


def leaves_at(dataset: Any, positions: Int64s) -> list[LeafItems]:
    """What stands at these endless positions of dataset, by the dataset it lies in; nothing is read."""
    return list(_leaves(dataset, positions, np.arange(len(positions), dtype=np.int64), ()))


def leaf_paths(dataset: Any) -> list[tuple[str, ...]]:
    """The paths of all datasets below all views, in the order of the mixtures' sources; none is opened."""
    while is_view(dataset):
        dataset = dataset.base
    if not is_ordered(dataset):
        return [()]
    return [(name, *path) for name, source in dataset.sources.items() for path in leaf_paths(source)]


def some_leaf(dataset: Any) -> Any:
    """A dataset below all views that has a sample, if dataset has any: to see what samples look like."""
    while is_ordered(dataset):
        if is_view(dataset):
            dataset = dataset.base
        else:
            dataset = next(dataset.drawn(np.array([dataset.first_position], np.int64))).dataset
    return dataset


def check_lengths_in_tokens(dataset: Any, above: str) -> None:
    """TypeError where a dataset below all views says that its lengths are bytes; `above` is what counts tokens.

    Sources of a mixture without a weight are not asked. A dataset that says nothing is believed.
    """
    while is_view(dataset):
        dataset = dataset.base
    if is_ordered(dataset):
        for name in dataset.recipe.names:
            try:
                check_lengths_in_tokens(dataset.sources[name], above)
            except TypeError as error:
                error.add_note(f"in source {name!r} of a mixture")
                raise
    elif getattr(dataset, "length_unit", None) == "bytes":
        raise TypeError(
            f"{above} counts tokens, and the lengths of {type(dataset).__name__} are stored bytes; give it the tokens "
            "of each sample: WithLengths(dataset, lengths)"
        )


def check_stateless(dataset: Any, above: str) -> None:
    """OrderError where a dataset below all views has a state; `above` is what would not keep it.

    What it gives for a number depends on what was read before, as in d9d's BufferSortedDataset; so no record of a
    position says which samples come next. Sources of a mixture without a weight are not asked.
    """
    while is_view(dataset):
        dataset = dataset.base
    if is_windowed(dataset):
        check_stateless(dataset.base, above)
    elif is_ordered(dataset):
        for name in dataset.recipe.names:
            check_stateless(dataset.sources[name], above)
    elif hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict"):
        raise OrderError(
            f"{type(dataset).__name__} has a state (state_dict), and {above} goes by sample numbers alone: a resumed "
            "run would read other samples. Give it a dataset in which a number is always the same sample, such as "
            "headrace.BufferSortedDataset; or, where this one is so, one without state_dict"
        )


def _leaves(dataset: Any, positions: Int64s, places: Int64s, path: tuple[str, ...]) -> Iterator[LeafItems]:
    while is_view(dataset):
        positions = dataset.locate(positions)
        dataset = dataset.base
    if not is_ordered(dataset):
        yield LeafItems(path, dataset, items_of(dataset, positions), places)
        return
    for name, below, draws, chosen in dataset.drawn(positions):
        yield from _leaves(below, draws, places[chosen], (*path, name))
