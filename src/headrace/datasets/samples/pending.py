"""The samples of the shard that is being written, in memory as long as they are few.

    chunks --gather--> buffer --spill--> file

A hundred thousand small objects are slow to keep, to join and to let go of, and so is memory that is new each time.
Hence samples soon go into a buffer, which serves again when its shard is stored. Beyond SPILL_BYTES they go to an
unnamed file, since a shard without a limit may have 4 GiB.
"""

import tempfile
from array import array
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

__all__ = ["GATHER_BYTES", "SPILL_BYTES", "PendingShard", "RawFile", "TakenSamples"]

GATHER_BYTES = 1 << 20  # joined while they are in the processor's cache
SPILL_BYTES = 80 << 20  # more than the usual limit of a shard
_HEAD_BYTES = 1 << 18  # left free in a buffer for what a file has in front of its samples
_CHUNK_BYTES = 8 << 20


class Gathered:
    """Samples in a row, with room in front of them."""

    def __init__(self, capacity: int) -> None:
        self._buffer = np.empty(_HEAD_BYTES + capacity, np.uint8).data  # takes no memory before it is written to
        self.clear()

    def clear(self) -> None:
        """Forget the samples."""
        self._end = _HEAD_BYTES

    def append(self, data: bytes) -> bool:
        """Whether there was room for data; then it is in."""
        end = self._end + len(data)
        if end > len(self._buffer):
            return False
        self._buffer[self._end : end] = data
        self._end = end
        return True

    def behind(self, head: bytes) -> memoryview:
        """head and the samples; it holds until the next clear()."""
        begin = _HEAD_BYTES - len(head)
        if begin < 0:
            return memoryview(b"".join([head, self._buffer[_HEAD_BYTES : self._end]]))
        self._buffer[begin:_HEAD_BYTES] = head
        return self._buffer[begin : self._end]


class PendingShard:
    """Samples by `chunks.append`, which is all that takes one; gather() and spill() free memory, take() gives all."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder  # where a large shard waits; None for the system's own place
        self._free: deque[Gathered] = deque()
        self._reset()

    def _reset(self) -> None:
        self.chunks: list[bytes] = []
        self._gathered: Gathered | None = None
        self._sizes = array("I")  # of the samples that are no chunks any more
        self._file: BinaryIO | None = None

    def gather(self) -> None:
        """Move the chunks into a buffer, or into the file when it has no room."""
        if self._gathered is None:
            self._gathered = self._free.popleft() if self._free else Gathered(SPILL_BYTES + GATHER_BYTES)
        data = b"".join(self.chunks)
        if not self._gathered.append(data):
            self.spill()
            return
        self._sizes.extend(map(len, self.chunks))
        self.chunks.clear()

    def spill(self) -> None:
        """Move what is in memory into the file."""
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - closed by RawFile or at the end
        if self._gathered is not None:
            self._file.write(self._gathered.behind(b""))
            self._gathered.clear()
        self._file.writelines(self.chunks)
        self._file.flush()  # a forked child must not inherit anything that it could write once more
        self._sizes.extend(map(len, self.chunks))
        self.chunks.clear()

    def __len__(self) -> int:
        """Samples."""
        return len(self._sizes) + len(self.chunks)

    def take(self) -> "tuple[NDArray[np.int64], TakenSamples]":
        """The samples' sizes, and their bytes. Starts over."""
        if self._gathered is not None:
            self.gather()
        sizes = [np.array(self._sizes, np.int64), np.fromiter(map(len, self.chunks), np.int64)]
        taken = np.concatenate(sizes), TakenSamples(self._file, self._gathered, self.chunks, self._free)
        self._reset()
        return taken

    def close(self) -> None:
        """Let go of everything."""
        if self._file is not None:
            self._file.close()
        self._reset()
        self._free.clear()


class TakenSamples:
    """The samples of a whole shard: those in the file, then those in a buffer, then the others."""

    def __init__(
        self, file: BinaryIO | None, gathered: Gathered | None, chunks: list[bytes], free: deque[Gathered]
    ) -> None:
        self.file, self._gathered, self._chunks, self._free = file, gathered, chunks, free

    def behind(self, head: bytes) -> memoryview:
        """head and the samples that are in memory; it holds until give_back()."""
        if self._gathered is None:
            return memoryview(b"".join([head, *self._chunks]))
        return self._gathered.behind(head)  # and then there are no chunks

    def give_back(self) -> None:
        """Let the next shard use the memory."""
        if self._gathered is not None:
            self._gathered.clear()
            self._free.append(self._gathered)
            self._gathered = None
        self._chunks.clear()


class RawFile:
    """The bytes of a file before compression: in memory, or in a file where they wait."""

    def __init__(self, head: bytes, samples: TakenSamples | None = None) -> None:
        self._samples = samples
        self._file = None if samples is None else samples.file
        self._memory = memoryview(head)
        if self._file is not None:
            assert samples is not None
            self._file.write(samples.behind(b""))
            self._file.flush()
            self.num_bytes = len(head) + self._file.tell()
        else:
            if samples is not None:
                self._memory = samples.behind(head)
            self.num_bytes = len(self._memory)

    @property
    def in_memory(self) -> bool:
        """Whether all of it is."""
        return self._file is None

    def pieces(self) -> Iterator[memoryview | bytes]:
        """All bytes, piece by piece."""
        yield self._memory
        if self._file is not None:
            self._file.seek(0)
            while piece := self._file.read(_CHUNK_BYTES):
                yield piece

    def whole(self) -> memoryview | bytes:
        """All bytes as one; they hold until close()."""
        return self._memory if self._file is None else b"".join(self.pieces())

    def close(self) -> None:
        """Let go of the file and the memory."""
        if self._file is not None:
            self._file.close()
        if self._samples is not None:
            self._samples.give_back()
