"""Whether a store kept what it was given: by its size, and by the store's own digest where it tells one."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from headrace.store.store import PIECE_BYTES, Buffer, Stored

__all__ = ["file_pieces", "kept_otherwise"]


def kept_otherwise(stored: Stored, size_bytes: int, pieces: Callable[[], Iterable[Buffer]]) -> str:
    """What the store kept instead of what it was given, in words; "" where it kept just that.

    size_bytes is how much it was given, and pieces gives that again; it is asked only where there is a digest.
    """
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
