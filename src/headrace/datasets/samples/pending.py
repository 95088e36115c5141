"""The samples of the shard that is being written, in memory as long as they are few.

Beyond SPILL_BYTES they go to an unnamed file, since a shard without a limit may have 4 GiB.
"""

import tempfile
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

__all__ = ["SPILL_BYTES", "PendingShard", "RawFile"]

SPILL_BYTES = 80 << 20  # more than the usual limit of a shard
_CHUNK_BYTES = 8 << 20


class PendingShard:
    """Samples by `chunks.append`, which is all that takes one; spill() frees the memory, take() gives all."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder  # where a large shard waits; None for the system's own place
        self._reset()

    def _reset(self) -> None:
        self.chunks: list[bytes] = []
        self._spilled_sizes = array("I")
        self._file: BinaryIO | None = None

    def spill(self) -> None:
        """Move what is in memory into the file."""
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - closed by RawFile or at the end
        self._file.writelines(self.chunks)
        self._file.flush()  # a forked child must not inherit anything that it could write once more
        self._spilled_sizes.extend(map(len, self.chunks))
        self.chunks.clear()

    def __len__(self) -> int:
        """Samples."""
        return len(self._spilled_sizes) + len(self.chunks)

    def take(self) -> tuple[NDArray[np.int64], list[bytes], BinaryIO | None]:
        """The samples' sizes, and their bytes: those in the file, then those in memory. Starts over."""
        sizes = [np.array(self._spilled_sizes, np.int64), np.fromiter(map(len, self.chunks), np.int64)]
        taken = np.concatenate(sizes), self.chunks, self._file
        self._reset()
        return taken

    def close(self) -> None:
        """Let go of everything."""
        if self._file is not None:
            self._file.close()
        self._reset()


class RawFile:
    """The bytes of a file before compression: a few pieces in memory, or one that waits in a file."""

    def __init__(self, head: bytes, chunks: list[bytes], file: BinaryIO | None = None) -> None:
        self._file = file
        if file is None:
            self._memory = b"".join([head, *chunks])
            self.num_bytes = len(self._memory)
        else:
            file.writelines(chunks)
            file.flush()
            self._memory = head
            self.num_bytes = len(head) + file.tell()

    @property
    def in_memory(self) -> bool:
        """Whether all of it is."""
        return self._file is None

    def pieces(self) -> Iterator[bytes]:
        """All bytes, piece by piece."""
        yield self._memory
        if self._file is not None:
            self._file.seek(0)
            while piece := self._file.read(_CHUNK_BYTES):
                yield piece

    def whole(self) -> bytes:
        """All bytes as one."""
        return self._memory if self._file is None else b"".join(self.pieces())

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
