"""Whether a store kept what it was given: by its size, and by the store's own digest where it tells one."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from headrace.errors import NotFoundError
from headrace.store.store import PIECE_BYTES, Buffer, FileInfo, Store, Stored

__all__ = ["confirmed", "file_pieces"]


def confirmed(
    store: Store, path: str, size_bytes: int, pieces: Callable[[], Iterable[Buffer]]
) -> tuple[FileInfo | None, str]:
    """What the store has at path, None for nothing; and what it kept there instead of what it was given, in words.

    That is "" where it kept just that. size_bytes is how much it was given, and pieces gives that again; it is asked
    only where the store tells a digest.
    """
    try:
        stored = store.stored(path)
    except NotFoundError:
        return None, "nothing"
    return stored.found, _otherwise(stored, size_bytes, pieces)


def _otherwise(stored: Stored, size_bytes: int, pieces: Callable[[], Iterable[Buffer]]) -> str:
    if stored.found.size_bytes != size_bytes:
        return f"{stored.found.size_bytes} of {size_bytes} bytes"
    if not stored.md5:
        return ""
    digest = hashlib.md5(usedforsecurity=False)
    for piece in pieces():
        digest.update(piece)
    if digest.hexdigest() == stored.md5:
        return ""
    return f"{size_bytes} other bytes (with the md5 digest {stored.md5} instead of {digest.hexdigest()})"


def file_pieces(file: str | Path) -> Iterator[bytes]:
    """The content of a file of this machine, front to back."""
    with open(file, "rb") as opened:
        while piece := opened.read(PIECE_BYTES):
            yield piece
