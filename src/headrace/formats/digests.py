"""Digests of files under Streaming's names: `sha1`, `xxh64`, ... 17 of them, in lower-case hexadecimal.

hashlib's and xxhash's functions let other threads run while they work on more than a few kilobytes.
"""

import hashlib
from collections.abc import Iterable
from typing import Protocol, cast

import xxhash

from headrace.errors import OptionError

__all__ = ["HASH_NAMES", "Digests", "checked_hashes", "digests", "new_digest"]

Buffer = bytes | bytearray | memoryview

# Spelled out: hashlib.algorithms_available differs from one OpenSSL to the next.
HASH_NAMES = (
    "blake2b",
    "blake2s",
    "md5",
    "sha1",
    "sha224",
    "sha256",
    "sha384",
    "sha3_224",
    "sha3_256",
    "sha3_384",
    "sha3_512",
    "sha512",
    "xxh128",
    "xxh32",
    "xxh3_128",
    "xxh3_64",
    "xxh64",
)


class _Hash(Protocol):
    def update(self, data: Buffer, /) -> None: ...
    def hexdigest(self) -> str: ...


def checked_hashes(hashes: Iterable[str] | None) -> tuple[str, ...]:
    """The names, sorted and each once; () for None.

    Raises OptionError for a name that is not in HASH_NAMES, and for what is no list of names (a single name among it).
    """
    if hashes is None:
        return ()
    expected = f"a list of names, each one of {', '.join(HASH_NAMES)}"
    if isinstance(hashes, str) or not isinstance(hashes, Iterable):
        raise OptionError("hashes", hashes, expected)
    names = list(hashes)
    for name in names:
        if not isinstance(name, str) or name not in HASH_NAMES:
            raise OptionError("hashes", name, expected)
    return tuple(sorted({str(name) for name in names}))


class Digests:
    """Several digests of one stream of bytes, taken while it passes."""

    def __init__(self, names: Iterable[str]) -> None:
        self._hashes = {name: new_digest(name) for name in checked_hashes(names)}

    def update(self, data: Buffer) -> None:
        """The bytes that follow; a view must be contiguous."""
        for one in self._hashes.values():
            one.update(data)

    def hex(self) -> dict[str, str]:
        """Name to lower-case hexadecimal digest of all bytes so far, in the order of the names."""
        return {name: one.hexdigest() for name, one in self._hashes.items()}


def digests(names: Iterable[str], data: Buffer) -> dict[str, str]:
    """Name to lower-case hexadecimal digest of data, in the order of the names."""
    taken = Digests(names)
    taken.update(data)
    return taken.hex()


def new_digest(name: str) -> _Hash:
    """What takes one of these digests, piece by piece."""
    if name.startswith("xxh"):
        return cast("_Hash", getattr(xxhash, name)())
    # They detect damage, so they are allowed where a system's policy forbids md5 and sha1 for security.
    return cast("_Hash", hashlib.new(name, usedforsecurity=False))
