"""A batch of packed rows over a few arrays, and the joining of documents' fields to such arrays."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from headrace.errors import OptionError
from headrace.planning.segments import Segments, segment_arrays
from headrace.views.document_fields import MADE, TOKENS, Fields
from headrace.views.protocol import Int64s

__all__ = ["PackedBatch", "joined", "padding_of"]

NO_LABEL = -100  # what torch's cross_entropy ignores


@dataclass(frozen=True, eq=False)
class PackedBatch(Sequence[dict[str, Any]]):
    """A batch of packed rows: a sequence of samples, and `stacked()` for all of them at once.

    A sample is a dict of
    | input_ids | (sequence_length,) | the tokens, as stored; pad_id behind the documents |
    | position_ids | (sequence_length,) int64 | place in the piece of the document, from 0; in padding, too |
    | segment_ids | (sequence_length,) int64 | from 1, one a document; 0 is padding |
    | cu_seqlens | (num_segments + 1,) int32 | where each segment begins, padding included, then sequence_length |
    | document_ids | (num_documents,) int64 | the item of each document in its dataset, of segment 1 first |
    | source_ids | (num_documents,) int64 | over a mixture: which of its sources that is |
    and the documents' other fields, padded with 0 (`labels` with -100).
    """

    fields: Fields  # each (num_rows, sequence_length)
    lengths: Int64s  # (num_documents,) tokens of each document, row by row
    row_segments: Int64s  # (num_rows + 1,) where the documents of each row begin, from 0
    document_ids: Int64s  # (num_documents,)
    source_ids: Int64s | None  # (num_documents,)

    def __len__(self) -> int:
        return len(self.row_segments) - 1

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> "PackedBatch": ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return self._rows(range(len(self))[index])
        row = range(len(self))[index]
        begin, end = self.row_segments[row : row + 2].tolist()
        segments = segment_arrays(
            self.lengths[begin:end], np.array([0, end - begin], np.int64), self.fields[TOKENS].shape[1]
        )
        sample: dict[str, Any] = {
            TOKENS: self.fields[TOKENS][row],
            "position_ids": segments.position_ids[0],
            "segment_ids": segments.segment_ids[0],
            "cu_seqlens": segments.cu_seqlens,
            "document_ids": self.document_ids[begin:end],
        }
        if self.source_ids is not None:
            sample["source_ids"] = self.source_ids[begin:end]
        return sample | {name: array[row] for name, array in self.fields.items() if name != TOKENS}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[row] for row in range(len(self)))

    @property
    def nbytes(self) -> int:
        """The memory of all rows, with the arrays that stacked() makes."""
        tokens = self.fields[TOKENS].size
        return sum(array.nbytes for array in self.fields.values()) + 16 * tokens + 24 * len(self.lengths)

    @cached_property
    def segments(self) -> Segments:
        """Position ids, segment ids and cumulative lengths of the whole batch."""
        return segment_arrays(self.lengths, self.row_segments, self.fields[TOKENS].shape[1])

    def stacked(self) -> dict[str, NDArray[Any]]:
        """The samples as one: (num_rows, sequence_length) arrays; cu_seqlens over the flattened batch.

        document_ids and source_ids are those of all rows, one behind another: row i has row_segments[i] to
        row_segments[i + 1] of them.
        """
        segments = self.segments
        batch = {
            TOKENS: self.fields[TOKENS],
            **segments._asdict(),
            "document_ids": self.document_ids,
            "row_segments": self.row_segments,
        }
        if self.source_ids is not None:
            batch["source_ids"] = self.source_ids
        return batch | {name: array for name, array in self.fields.items() if name != TOKENS}

    @classmethod
    def of(cls, samples: Sequence[Mapping[str, Any]]) -> "PackedBatch":
        """A batch of samples that came from batches; ValueError for none, or of different lengths or fields."""
        if len(samples) == 0:
            raise ValueError("no samples to stack, and so no row length to give back")
        names = [name for name in samples[0] if name not in MADE]
        for sample in samples:
            if {name: np.shape(sample[name]) for name in sample if name not in MADE} != {
                name: np.shape(samples[0][name]) for name in names
            }:
                raise ValueError("packed rows have different lengths or fields; they cannot be stacked")
        lengths = [np.diff(sample["cu_seqlens"])[: len(sample["document_ids"])] for sample in samples]
        offsets = np.zeros(len(samples) + 1, np.int64)
        np.cumsum([len(one) for one in lengths], out=offsets[1:])
        return cls(
            {name: np.stack([sample[name] for sample in samples]) for name in names},
            np.concatenate(lengths).astype(np.int64),
            offsets,
            np.concatenate([sample["document_ids"] for sample in samples]),
            np.concatenate([sample["source_ids"] for sample in samples]) if "source_ids" in samples[0] else None,
        )

    def _rows(self, rows: range) -> "PackedBatch":
        chosen = np.array(rows, np.int64)
        counts = np.diff(self.row_segments)[chosen]
        ends = counts.cumsum()
        documents = np.arange(counts.sum()) + np.repeat(self.row_segments[chosen] - (ends - counts), counts)
        return PackedBatch(
            {name: array[chosen] for name, array in self.fields.items()},
            self.lengths[documents],
            np.concatenate([np.zeros(1, np.int64), ends]),
            self.document_ids[documents],
            None if self.source_ids is None else self.source_ids[documents],
        )


def joined(name: str, pieces: Sequence[NDArray[Any]], rests: Sequence[tuple[int, int]], pad: int) -> NDArray[Any]:
    """The pieces end to end, in one array, with paddings between: (before which piece, how many numbers), ascending.

    TypeError for integers among floats; OptionError where the pad_id is none of the stored type.
    """
    kinds = {piece.dtype for piece in pieces}
    dtype = kinds.pop() if len(kinds) == 1 else np.result_type(*kinds)
    if any((kind.kind == "f") != (dtype.kind == "f") for kind in kinds):
        raise TypeError(f"field {name!r} has numbers of types that do not go together: {', '.join(map(str, kinds))}")
    if not rests:
        return np.concatenate(pieces)
    try:
        padding = np.full(max(count for _, count in rests), pad, dtype)
    except OverflowError:
        raise OptionError("pad_id", pad, f"a number of the stored type, {dtype}") from None
    parts: list[NDArray[Any]] = []
    begin = 0
    for end, count in rests:
        parts += pieces[begin:end]
        parts.append(padding[:count])
        begin = end
    return np.concatenate([*parts, *pieces[begin:]])


def padding_of(name: str, dtype: np.dtype[Any], pad_id: int) -> int:
    """What stands behind the documents in a field."""
    if name == TOKENS:
        return pad_id
    return NO_LABEL if name == "labels" and dtype.kind == "i" else 0
