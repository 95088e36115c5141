"""Files of an attempt on this machine, until they go up to a store that takes whole objects only."""

import contextlib
import re
import shutil
import tempfile
from pathlib import Path

from headrace.store import LocalStore, is_dead
from headrace.store.identity import ATTEMPT_PATTERN

__all__ = ["Spool", "remove_dead_spools"]

_PREFIX = "headrace-spool-"
_NAME = re.compile(rf"{re.escape(_PREFIX)}({ATTEMPT_PATTERN})-.+")


class Spool:
    """A folder of one attempt in the directory for temporary files (TMPDIR), readable by this user only.

    It is named by the attempt, so that whoever comes after a crash can tell that nobody needs it any more.
    """

    def __init__(self, attempt: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{attempt}-"))
        self.store = LocalStore(self.folder, fsync=False)  # what survives a power cut is in the other store

    def file(self, name: str) -> Path:
        """Where a file of this name lies."""
        return self.folder / name

    def remove(self) -> None:
        """Remove it with all it holds. Twice is harmless."""
        self.store.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def remove_dead_spools() -> None:
    """Remove the spools that dead processes left on this machine; what others own or hold stays."""
    with contextlib.suppress(OSError):
        for folder in Path(tempfile.gettempdir()).iterdir():
            match = _NAME.fullmatch(folder.name)
            if match and is_dead(match[1]) and not folder.is_symlink():
                shutil.rmtree(folder, ignore_errors=True)
