"""The bytes of one file on their way from a store: counted, digested, decompressed, and compared with the dataset."""

import os
from collections.abc import Callable

import xxhash

from headrace.errors import DamagedObjectError, NotFoundError
from headrace.store import files
from headrace.store.copies import EMPTY, Wanted, digest_of, kept_digest, own_digest
from headrace.store.store import DatasetFile, byte_view

__all__ = ["Target", "fill"]


class Target:
    """Where a file arrives: an open file, or memory in its place.

    The open file's time moves with what arrives, also where nothing is written yet: that is how others see progress.
    """

    def __init__(self, descriptor: int, memory: bytearray | None = None) -> None:
        self._descriptor = descriptor
        self._memory = memory
        self._written = 0

    def write(self, data: memoryview) -> None:
        """Append data."""
        end = self._written + len(data)
        if self._memory is None:
            files.write_all(self._descriptor, data)
        else:
            self._memory[self._written : end] = data
        self._written = end

    def start_over(self) -> None:
        """Forget what was written."""
        self._written = 0
        os.lseek(self._descriptor, 0, os.SEEK_SET)

    def beat(self) -> None:
        """Show that bytes arrive."""
        os.utime(self._descriptor)


def fill(wanted: Wanted, target: Target, *, verify: bool) -> int | None:
    """Write the file to target; returns the nanoseconds of its stamp, None where a digest is told and was not compared.

    Sizes always are compared, digests with verify. DamagedObjectError where they differ, and what the store raises.
    """
    expected = wanted.expected
    if expected.stored is not None:
        compressed = bytearray()
        try:
            _read(wanted, expected.stored.name, expected.stored.file, target, compressed.extend, verify=verify)
        except NotFoundError:  # only the file itself is there
            target.start_over()
        else:
            own = _decode(wanted, compressed, target, verify=verify)
            _refuse_replaced(expected, has_digest=bool(expected.digest or expected.stored.file.digest) and verify)
            return _stamp(expected, own, verify=verify)
    own = _read(wanted, wanted.path, expected, target, target.write, verify=verify)
    _refuse_replaced(expected, has_digest=bool(expected.digest) and verify)
    return _stamp(expected, own, verify=verify)


def _stamp(expected: DatasetFile, own: xxhash.xxh3_64, *, verify: bool) -> int | None:
    if expected.digest:
        return 0 if verify else None
    return kept_digest(own)


def _read(
    wanted: Wanted,
    path: str,
    expected: DatasetFile,
    target: Target,
    write: Callable[[memoryview], object],
    *,
    verify: bool,
) -> xxhash.xxh3_64:
    """Hand the object to write and compare it with what is expected; returns a digest of ours, if none is expected."""
    told = expected.new_digest() if verify and expected.digest and expected.new_digest is not None else None
    own = own_digest()
    size = 0
    for piece in wanted.store.pieces(path):
        size += len(piece)
        if size > expected.size_bytes:
            raise DamagedObjectError(
                wanted.where(path), f"more than the {expected.size_bytes} bytes arrived that the dataset tells of"
            )
        if told is not None:
            told.update(piece)
        elif not expected.digest:
            own.update(piece)
        write(piece)
        target.beat()
    if size != expected.size_bytes:
        raise DamagedObjectError(
            wanted.where(path), f"{size} bytes arrived, but the dataset tells of {expected.size_bytes}"
        )
    if told is not None:
        _compare_digests(wanted.where(path), told.hexdigest(), expected.digest)
    return own


def _decode(wanted: Wanted, compressed: bytearray, target: Target, *, verify: bool) -> xxhash.xxh3_64:
    """Write what comes out of the compressed bytes; returns a digest of ours, if none is expected."""
    expected = wanted.expected
    assert expected.stored is not None
    where = wanted.where(expected.stored.name)
    try:
        data = byte_view(expected.stored.decode(memoryview(compressed).toreadonly()))
    except ValueError as error:
        raise DamagedObjectError(where, f"it cannot be decompressed: {error}") from None
    if len(data) != expected.size_bytes:
        problem = f"{len(data)} bytes came out of it, but the dataset tells of {expected.size_bytes}"
        raise DamagedObjectError(where, problem)
    if verify and expected.digest:
        _compare_digests(wanted.where(), digest_of(expected, data), expected.digest)
    target.write(data)
    return own_digest(EMPTY if expected.digest else data)


def _compare_digests(where: str, found: str, expected: str) -> None:
    if found != expected:
        raise DamagedObjectError(where, f"its digest is {found}, but the dataset tells of {expected}")


def _refuse_replaced(expected: DatasetFile, *, has_digest: bool) -> None:
    """What has no digest can be taken for the dataset's only while the dataset is still there."""
    if not has_digest and expected.unchanged is not None:
        expected.unchanged()
