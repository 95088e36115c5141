"""The bytes of one file on their way from a store: counted, digested, decompressed, and compared with the dataset."""

import os
from collections.abc import Callable

from headrace.errors import DamagedObjectError, NotFoundError
from headrace.store import files
from headrace.store.copies import Wanted, digest_of
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


def fill(wanted: Wanted, target: Target, *, verify: bool) -> bool:
    """Write the file to target; returns whether all was checked that the dataset tells of it.

    Sizes always are; digests with verify. DamagedObjectError where they differ, and what the store raises.
    """
    expected = wanted.expected
    if expected.stored is not None:
        compressed = bytearray()
        try:
            _read(wanted, expected.stored.name, expected.stored.file, target, compressed.extend, verify=verify)
        except NotFoundError:  # only the file itself is there
            target.start_over()
        else:
            _decode(wanted, compressed, target, verify=verify)
            _refuse_replaced(expected, has_digest=bool(expected.digest or expected.stored.file.digest) and verify)
            return verify or not expected.digest
    _read(wanted, wanted.path, expected, target, target.write, verify=verify)
    _refuse_replaced(expected, has_digest=bool(expected.digest) and verify)
    return verify or not expected.digest


def _read(
    wanted: Wanted,
    path: str,
    expected: DatasetFile,
    target: Target,
    write: Callable[[memoryview], object],
    *,
    verify: bool,
) -> None:
    digest = expected.new_digest() if verify and expected.digest and expected.new_digest is not None else None
    size = 0
    for piece in wanted.store.pieces(path):
        size += len(piece)
        if size > expected.size_bytes:
            raise DamagedObjectError(
                wanted.where(path), f"more than the {expected.size_bytes} bytes arrived that the dataset tells of"
            )
        if digest is not None:
            digest.update(piece)
        write(piece)
        target.beat()
    if size != expected.size_bytes:
        raise DamagedObjectError(
            wanted.where(path), f"{size} bytes arrived, but the dataset tells of {expected.size_bytes}"
        )
    if digest is not None:
        _compare_digests(wanted.where(path), digest.hexdigest(), expected.digest)


def _decode(wanted: Wanted, compressed: bytearray, target: Target, *, verify: bool) -> None:
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


def _compare_digests(where: str, found: str, expected: str) -> None:
    if found != expected:
        raise DamagedObjectError(where, f"its digest is {found}, but the dataset tells of {expected}")


def _refuse_replaced(expected: DatasetFile, *, has_digest: bool) -> None:
    """What has no digest can be taken for the dataset's only while the dataset is still there."""
    if not has_digest and expected.unchanged is not None:
        expected.unchanged()
