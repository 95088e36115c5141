"""How many rows each window of an epoch has, kept in a file between runs. It can always be made again.

{"version": 1, "plan": fingerprint of the settings, "epochs": {"0": [rows of window 0, ...], ...}, "digest": of epochs}
"""

import logging
from hashlib import blake2b
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from headrace.errors import HeadraceError
from headrace.store import LocalStore
from headrace.views.protocol import Int64s

__all__ = ["load_counts", "save_counts"]

_logger = logging.getLogger("headrace")

_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 24)]


class _Kept(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    plan: str
    epochs: dict[str, list[_Count]]
    digest: str

    @classmethod
    def of(cls, plan: str, epochs: dict[str, list[int]]) -> "_Kept":
        text = msgspec.json.encode([plan, epochs], order="sorted")
        return cls(1, plan, epochs, blake2b(text, digest_size=16).hexdigest())


def load_counts(path: Path, plan: str, epoch: int, num_windows: int) -> Int64s | None:
    """The rows of each window, shape (num_windows,); None where the file has none for this plan and epoch."""
    kept = _kept(path, plan)
    counts = None if kept is None else kept.epochs.get(str(epoch))
    return None if counts is None or len(counts) != num_windows else np.array(counts, np.int64)


def save_counts(path: Path, plan: str, epoch: int, counts: Int64s) -> None:
    """Keep them, beside those of other epochs; those of other settings are replaced. The file is whole at any time.

    A file that cannot be written is a warning in the log: nothing depends on it.
    """
    kept = _kept(path, plan)
    epochs = {} if kept is None else kept.epochs
    try:
        with LocalStore(path.parent, fsync=False) as store:
            store.remove_orphans()  # of a process that was killed here
            store.put(path.name, msgspec.json.encode(_Kept.of(plan, {**epochs, str(epoch): counts.tolist()})))
    except (OSError, HeadraceError) as error:
        _logger.warning("the rows of epoch %d cannot be kept, and will be counted again: %s", epoch, error)


def _kept(path: Path, plan: str) -> _Kept | None:
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=_Kept)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None  # there is none, or it is damaged: both are made again
    return kept if kept.version == 1 and kept.plan == plan and kept == _Kept.of(plan, kept.epochs) else None
