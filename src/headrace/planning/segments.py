"""Documents that stand in rows, as a model needs them: so that no document sees another one.

    tokens          a b c | d e f g h | . .        documents of 3 and 5 tokens in a row of 10
    segment_ids     1 1 1   2 2 2 2 2   0 0        from 1 in each row; 0 is padding
    position_ids    0 1 2   0 1 2 3 4   0 1        begin anew with each segment, padding included
    cu_seqlens      0       3         8     10     where segments begin in the whole flattened batch, and its end

Windows with spans and packed rows both get their arrays here.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Segments", "segment_arrays"]

Int64s = NDArray[np.int64]


class Segments(NamedTuple):
    """What segment_arrays makes."""

    position_ids: Int64s  # (num_rows, row_length) place in the segment
    segment_ids: Int64s  # (num_rows, row_length) from 1 in each row, padding 0
    cu_seqlens: NDArray[np.int32]  # (num_segments + 1,) ascending, from 0 to num_rows * row_length

    def goes_on(self) -> NDArray[np.bool_]:
        """Which elements have a next one in their row and of the same segment, shape (num_rows, row_length - 1).

        That one is their label. Padding has none.
        """
        ids = self.segment_ids
        same: NDArray[np.bool_] = (ids[:, 1:] == ids[:, :-1]) & (ids[:, 1:] > 0)
        return same

    def without_last(self) -> "Segments":
        """The same rows, each without its last element; segments of which nothing is left are left out."""
        row_length = self.segment_ids.shape[1]
        ends = self.cu_seqlens - self.cu_seqlens // max(1, row_length)  # one less for each row that ended before
        kept = np.concatenate([[True], ends[1:] > ends[:-1]])
        return Segments(
            np.ascontiguousarray(self.position_ids[:, :-1]),
            np.ascontiguousarray(self.segment_ids[:, :-1]),
            ends[kept],
        )


def segment_arrays(lengths: Int64s, row_offsets: Int64s, row_length: int) -> Segments:
    """The arrays of a batch whose row i has the documents lengths[row_offsets[i] : row_offsets[i + 1]], in order.

    What is left of a row behind its documents is padding, a segment of its own in cu_seqlens. A document of no elements
    counts in segment_ids, and gives cu_seqlens the same number twice. No rows give arrays of none, and cu_seqlens [0].
    ValueError where the documents of a row are longer than row_length, or the batch has 2**31 elements or more.
    """
    counts = np.diff(row_offsets)
    num_rows = len(counts)
    if num_rows * row_length >= 1 << 31:
        raise ValueError(f"{num_rows} rows of {row_length} elements are too many for one batch: cu_seqlens is int32")
    ends = np.concatenate([np.zeros(1, np.int64), lengths.cumsum()])
    rests = row_length - np.diff(ends[row_offsets])
    if (rests < 0).any():
        raise ValueError(f"the spans of row {int((rests < 0).argmax())} are longer than its window of {row_length}")
    ids = np.arange(1, len(lengths) + 1) - np.repeat(row_offsets[:-1], counts)
    padded = np.flatnonzero(rests)
    if len(padded):
        places = row_offsets[1:][padded]
        lengths, ids = np.insert(lengths, places, rests[padded]), np.insert(ids, places, 0)
    stops = lengths.cumsum()
    positions = np.arange(num_rows * row_length) - np.repeat(stops - lengths, lengths)
    return Segments(
        positions.reshape(num_rows, row_length),
        np.repeat(ids, lengths).reshape(num_rows, row_length),
        np.concatenate([[0], stops]).astype(np.int32),
    )
