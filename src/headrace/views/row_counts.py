"""How many rows each window of an epoch has, kept in a file between runs. It can always be made again.

{"version": 1, "plan": fingerprint of the settings, "epochs": {"0": [rows of window 0, ...], ...}}
"""

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from headrace.views.protocol import Int64s

__all__ = ["load_counts", "save_counts"]

_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 24)]


class _Kept(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    plan: str
    epochs: dict[str, list[_Count]]


def load_counts(path: Path | None, plan: str, epoch: int, num_windows: int) -> Int64s | None:
    """The rows of each window, shape (num_windows,); None where the file has none for this plan and epoch."""
    kept = _kept(path, plan)
    counts = None if kept is None else kept.epochs.get(str(epoch))
    return None if counts is None or len(counts) != num_windows else np.array(counts, np.int64)


def save_counts(path: Path | None, plan: str, epoch: int, counts: Int64s) -> None:
    """Keep them, beside those of other epochs; those of other settings are replaced. The file is whole at any time."""
    if path is None:
        return
    kept = _kept(path, plan) or _Kept(1, plan, {})
    kept.epochs[str(epoch)] = counts.tolist()
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.json.encode(kept))
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _kept(path: Path | None, plan: str) -> _Kept | None:
    if path is None:
        return None
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=_Kept)
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
        return None  # there is none, or it is damaged: both are made again
    return kept if kept.version == 1 and kept.plan == plan else None
