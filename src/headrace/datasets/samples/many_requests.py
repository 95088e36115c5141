"""Many requests to one store: at once where each costs a round trip, one after the other where none does."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from headrace.datasets.round_trips import at_once
from headrace.store import Store

__all__ = ["delete_all", "each"]

Given = TypeVar("Given")
Found = TypeVar("Found")


def each(store: Store, request: Callable[[Given], Found], given: Iterable[Given]) -> list[Found]:
    """What request gives for each, in order; the first failure in that order is raised. No nesting, as of at_once()."""
    items = list(given)
    return at_once(request, items) if store.capabilities.remote else [request(item) for item in items]


def delete_all(store: Store, paths: Iterable[str]) -> None:
    """Delete these objects, in order unless the store is remote."""
    each(store, store.delete, paths)
