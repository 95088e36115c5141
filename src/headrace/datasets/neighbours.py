"""Two families of datasets, of which a directory holds one: shards with receipts and headrace.json, or samples.

Each writer looks for the other family before it changes anything, and once more when its own mark is there, so of two
that start at once at least one is refused. Overwriting does not reach across: who replaces a family by the other has
most likely named the wrong directory.
"""

from collections.abc import Iterable

from headrace.datasets.ledger import GENERATION, MANIFEST, PRIVATE, shard_and_suffix
from headrace.errors import ExistingOutputError, NotFoundError, PublishedError
from headrace.store import Store

__all__ = ["INDEX", "SAMPLES", "parts_in", "refuse_samples", "refuse_shards", "samples_in", "shards_in"]

INDEX = "index.json"  # the commit of a dataset of samples
SAMPLES = f"{PRIVATE}/samples"  # what its writers need until then
_PARTS_SHOWN = 3


def samples_in(store: Store) -> str | None:
    """What shows that a dataset of samples is there, whole or unfinished; None where there is none."""
    if _is_there(store, INDEX):
        return INDEX
    return SAMPLES if SAMPLES.rpartition("/")[2] in store.folders(PRIVATE) else None


def shards_in(store: Store) -> str | None:
    """What shows that a dataset of any other kind is there, whole or unfinished; None where there is none."""
    found = _shards_among(info.path for info in store.list(recursive=False))
    return found or (GENERATION if _is_there(store, GENERATION) else None)


def parts_in(store: Store) -> str | None:
    """In words, which folders hold a dataset of samples each, and what to do then; None where there are none."""
    parts = [name for name in store.folders() if name[0] != "." and _is_there(store, f"{name}/{INDEX}")]
    if not parts:
        return None
    shown = ", ".join(parts[:_PARTS_SHOWN]) + ", ..." * (len(parts) > _PARTS_SHOWN)
    count = "one of its folders has" if len(parts) == 1 else f"{len(parts)} of its folders have"
    return f"{count} an {INDEX} ({shown}): open such a folder, or make one dataset of all with merge_index()"


def refuse_samples(store: Store, kind: str) -> None:
    """PublishedError where a dataset of samples is: shards of this kind cannot lie beside it."""
    if (found := samples_in(store)) is not None:
        raise PublishedError(
            store.location,
            f"holds a dataset of samples ({found} is there), so no shards of kind {kind!r}",
            "remove that dataset first (no option replaces samples by shards of this kind)",
        )


def refuse_shards(store: Store, listed: Iterable[str] | None = None) -> None:
    """ExistingOutputError where a dataset of another kind is: samples cannot lie beside it.

    listed are the paths that are there, as far as they are not hidden; they are all that is looked at, if given.
    """
    if (found := shards_in(store) if listed is None else _shards_among(listed)) is not None:
        raise ExistingOutputError(
            store.location,
            f"holds a dataset of another kind ({found} is there), so no samples",
            "remove that dataset first (no option replaces it by samples)",
        )


def _shards_among(paths: Iterable[str]) -> str | None:
    return next((path for path in paths if path == MANIFEST or shard_and_suffix(path)), None)


def _is_there(store: Store, path: str) -> bool:
    try:
        store.head(path)
    except NotFoundError:
        return False
    return True
