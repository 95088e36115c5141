"""Objects that only one of several writers may put: by a put if absent, whose failures are looked into."""

from headrace.datasets.samples.withdrawal import content
from headrace.errors import AlreadyExistsError, ExistingOutputError
from headrace.store import Store

__all__ = ["put_first", "remove_rest"]


def put_first(store: Store, path: str, data: bytes, when: str) -> bool:
    """Put data at path if nothing else is there; whether it was put, for the same may be there already.

    ExistingOutputError, which says when, where somebody else put something else there. What a store kept of an earlier
    try is neither.
    """
    try:
        store.put_if_absent(path, data)
    except AlreadyExistsError:
        found = content(store, path)
        if found == data:
            return False
        if found is not None and not data.startswith(found):
            problem = f"got an {path} from somebody else {when}"
            raise ExistingOutputError(store.location, problem, "see what else writes there") from None
        remove_rest(store, path, data)
        store.put_if_absent(path, data)
    return True


def remove_rest(store: Store, path: str, data: bytes, *, own: bool = False) -> None:
    """Remove what a store that keeps less than it says kept of data; of one's own, whatever it kept instead."""
    found = content(store, path)
    if found is not None and found != data and (own or data.startswith(found)):
        store.delete(path)
