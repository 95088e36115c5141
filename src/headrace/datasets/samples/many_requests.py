"""Many requests to one store: at once where each costs a round trip, one after the other where none does."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from headrace.store import Store

__all__ = ["AT_ONCE", "delete_all", "each"]

AT_ONCE = 16  # hides the latency of a remote store
Given = TypeVar("Given")
Found = TypeVar("Found")


def each(store: Store, request: Callable[[Given], Found], given: Iterable[Given]) -> list[Found]:
    """What request gives for each, in order. The first failure is raised; requests behind it may have been made."""
    items = list(given)
    if not store.capabilities.remote or len(items) < 2:
        return [request(item) for item in items]
    pool = ThreadPoolExecutor(min(AT_ONCE, len(items)), "headrace-request")
    try:
        return [future.result() for future in [pool.submit(request, item) for item in items]]
    finally:
        pool.shutdown(cancel_futures=True)


def delete_all(store: Store, paths: Iterable[str]) -> None:
    """Delete these objects, in order unless the store is remote."""
    each(store, store.delete, paths)
