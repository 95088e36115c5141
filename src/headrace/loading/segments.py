"""Batches whose documents are kept apart: what a model needs so that no document sees another one.

tokens          a b c | d e f g h        two documents in a window of 8
labels          b c -   e f g h -        the next token of the same segment, else -100

headrace.planning.segments makes the other arrays.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.datasets import SpanBatch
from headrace.loading.collate import Collate, Stack
from headrace.planning import segment_arrays
from headrace.views import PackedBatch

__all__ = ["NO_LABEL", "StackSegments", "stack_segments"]

NO_LABEL = -100  # what torch's cross_entropy ignores

Int64s = NDArray[np.int64]


class StackSegments(Collate):
    """Windows with spans to one batch of tensors; see stack_segments."""

    def __init__(self, field: str, dtype: torch.dtype | None, *, labels: bool) -> None:
        self.field = field
        self.dtype = dtype
        self.labels = labels
        self._stack = Stack(dtype)
        self._as_stored = Stack()

    def __repr__(self) -> str:
        return f"stack_segments({self.field!r}, dtype={self.dtype}, labels={self.labels})"

    def __call__(self, samples: Sequence[Any]) -> dict[str, torch.Tensor]:
        """The batch; ValueError for no samples, where their length cannot be known, and for unequal ones."""
        if isinstance(samples, PackedBatch):
            return self._packed(samples)
        if len(samples) == 0:
            raise ValueError("no samples to stack, and so no window length to give back")
        if _is_packed(samples[0]):
            return self._packed(PackedBatch.of(samples))
        return self._batch(*_rows_and_spans(samples, self.field))

    def empty(self, sample: Any) -> dict[str, torch.Tensor]:
        """A batch of no rows, for samples that look like this one."""
        if _is_packed(sample):
            return self._packed(PackedBatch.of([sample])[:0])
        rows, _, _ = _rows_and_spans([sample], self.field)
        return self._batch(rows[:0], np.zeros(0, np.int64), np.zeros(1, np.int64))

    def _packed(self, batch: PackedBatch) -> dict[str, torch.Tensor]:
        """All of a batch of packed rows, with labels if asked for; nothing of a row is only a label."""
        arrays = batch.stacked()
        if self.labels:
            if "labels" in arrays:
                raise ValueError("the documents have labels of their own; leave out labels=True")
            tokens = _as_labels(arrays["input_ids"])
            arrays["labels"] = np.full(tokens.shape, NO_LABEL, np.int64)
            np.copyto(arrays["labels"][:, :-1], tokens[:, 1:], where=batch.segments.goes_on())
            arrays |= _target_counts(arrays["labels"], batch.segments.cu_seqlens)
        input_ids = self._stack.tensor(arrays.pop("input_ids"), "input_ids")
        return {"input_ids": input_ids, **{name: self._as_stored.tensor(array, name) for name, array in arrays.items()}}

    def _batch(self, rows: NDArray[Any], span_lengths: Int64s, row_spans: Int64s) -> dict[str, torch.Tensor]:
        """rows has shape (batch, window), row i the spans row_spans[i] to row_spans[i + 1]; a rest is padding."""
        if self.labels and rows.shape[1] < 2:
            raise ValueError("labels need windows of at least two elements: the last one is only a label")
        segments = segment_arrays(span_lengths, row_spans, rows.shape[1])
        batch: dict[str, torch.Tensor] = {}
        if self.labels:
            # The last element is only a label: its row is a shorter one, whose last segment lost one element.
            labels = np.where(segments.goes_on(), _as_labels(rows)[:, 1:].astype(np.int64), NO_LABEL)
            rows, segments = rows[:, :-1], segments.without_last()
            counts = _target_counts(labels, segments.cu_seqlens)
            batch = {name: torch.from_numpy(array) for name, array in {"labels": labels, **counts}.items()}
        batch |= {
            "input_ids": self._stack.tensor(np.ascontiguousarray(rows), self.field),
            "position_ids": torch.from_numpy(segments.position_ids),
            "segment_ids": torch.from_numpy(segments.segment_ids),
            "cu_seqlens": torch.from_numpy(segments.cu_seqlens),
        }
        return batch


def stack_segments(
    field: str = "tokens", dtype: torch.dtype | None = None, *, labels: bool = False
) -> Callable[[Sequence[Any]], dict[str, torch.Tensor]]:
    """A collate function for windows with spans (a StreamDataset over SpanNumpyFormat), one segment a span, and for
    rows of a PackedDataset, one segment a document.

    | tensor | shape | meaning |
    | --- | --- | --- |
    | input_ids | (batch, window) | the field, as stored or cast to dtype |
    | position_ids | (batch, window) int64 | place in the segment, from 0 where it begins in this window |
    | segment_ids | (batch, window) int64 | from 1 in each row; 0 is padding |
    | cu_seqlens | (num_segments + 1,) int32 | where each segment begins in the flattened batch, then the batch's size |
    | labels | (batch, window) int64 | with labels=True: the next token if it is in the same segment, else -100 |
    | num_targets | () int64 | with labels=True: how many labels are not -100, 0 for a batch without rows |
    | segment_targets | (num_segments,) int64 | with labels=True: those of each segment of cu_seqlens, padding 0 |

    cu_seqlens is what attention over packed sequences takes; padding is a segment of its own there. With labels=True
    the last element of each window is only a label, so give the dataset extra=1. Samples whose spans add up to less
    than the window are padded behind.

    A mean a token over micro-batches and ranks is the sum of their losses over the sum of their num_targets: a mean a
    micro-batch weighs `mean * num_targets`, and one with 0 targets, whose own mean is NaN, weighs nothing. Take sums
    (`reduction="sum"`) and divide once, by the total of all ranks (times the world size where gradients are averaged,
    as DistributedDataParallel does). Means a document divide by segment_targets where that is over 0.

    Packed rows keep their length: their last label is always -100. The batch has the documents' other fields, too, and
    document_ids, row_segments and over a mixture source_ids, as PackedBatch.stacked() says. field is not for them.
    """
    return StackSegments(field, dtype, labels=labels)


def _as_labels(tokens: NDArray[Any]) -> NDArray[Any]:
    """tokens of a type that int64 holds. TypeError for what are no integers, ValueError for one that it does not."""
    if tokens.dtype.kind not in "iu":
        raise TypeError(f"labels are integers, and the tokens are {tokens.dtype}; leave out labels=True")
    if tokens.dtype != np.uint64:
        return tokens
    if tokens.size and int(tokens.max()) >> 63:
        raise ValueError(f"the tokens have the value {int(tokens.max())}, which the labels' int64 cannot hold")
    return tokens.astype(np.int64)


def _target_counts(labels: Int64s, cu_seqlens: NDArray[np.int32]) -> dict[str, Int64s]:
    """num_targets and segment_targets: the labels that are tokens, in all and in each segment."""
    before = np.zeros(labels.size + 1, np.int64)
    np.cumsum(labels.reshape(-1) != NO_LABEL, out=before[1:])
    return {"num_targets": before[-1:].reshape(()).copy(), "segment_targets": np.diff(before[cu_seqlens])}


def _is_packed(sample: Any) -> bool:
    return isinstance(sample, Mapping) and "segment_ids" in sample and "document_ids" in sample


def _rows_and_spans(samples: Sequence[Any], field: str) -> tuple[NDArray[Any], Int64s, Int64s]:
    """(batch, window) elements, the lengths of all spans in order, and where each row's begin among them."""
    if isinstance(samples, SpanBatch) and samples.is_plain:  # all of it is there already, as arrays
        elements = samples.elements
        _check_field(field, elements.dtype.names or ("tokens",))
        return elements if elements.dtype.names is None else elements[field], samples.span_lengths, samples.row_spans
    for sample in samples:
        if not isinstance(sample, Mapping) or "span_lengths" not in sample:
            raise TypeError(
                f"stack_segments needs windows with spans, from a StreamWithMetaStorage with SpanNumpyFormat, not "
                f"{type(sample).__name__}"
            )
        _check_field(field, tuple(sample))
    lengths = {len(sample[field]) for sample in samples}
    if len(lengths) > 1:
        raise ValueError(f"windows have different lengths, {min(lengths)} to {max(lengths)}; they cannot be stacked")
    counts = [len(sample["span_lengths"]) for sample in samples]
    return (
        np.stack([sample[field] for sample in samples]),
        np.concatenate([sample["span_lengths"] for sample in samples]).astype(np.int64),
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
    )


def _check_field(field: str, known: Sequence[str]) -> None:
    if field not in known:
        raise ValueError(f"the windows have no field {field!r}; they have {', '.join(map(repr, known))}")
