"""What torch's default_collate gives, by a shorter way, and what it cannot give: a batch of no rows.

torch makes a tensor of every array before it stacks them, and in a worker process it puts each column into shared
memory of its own. Here a column's arrays are copied once, and all columns of a batch travel together.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from headrace.loading.collate import Collate

__all__ = ["DefaultCollate", "SingleSample"]

# torch's own. A user may add to the table, or change it, at any time.
_KNOWN = {kind: by for kind, by in default_collate_fn_map.items() if by.__module__ == default_collate.__module__}
_DTYPES = tuple(
    np.dtype(name)
    for name in (
        *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
)
_SCALARS = frozenset(dtype.type for dtype in _DTYPES)
_TENSORS = {dtype: torch.from_numpy(np.zeros(0, dtype)).dtype for dtype in _DTYPES}


@dataclass(frozen=True)
class DefaultCollate(Collate):
    """default_collate, and for no rows the batch with its structure: tensors of shape (0, ...) and empty lists."""

    def __repr__(self) -> str:
        return "default_collate"

    def __call__(self, samples: Sequence[Any]) -> Any:
        """What default_collate(samples) is, and raises; but what it refuses of NumPy's is taken, in its own type:
        unsigned numbers, and arrays that are read backwards.

        ValueError for dicts with different keys, of which it would lose some.
        """
        if default_collate_fn_map != _KNOWN:
            return default_collate(samples)  # type: ignore[arg-type]
        return _collated(samples)

    def empty(self, sample: Any) -> Any:
        """A batch of no rows, for samples that look like this one; TypeError where nobody knows how that looks."""
        return _without_rows(self([sample]), sample)


@dataclass(frozen=True)
class SingleSample:
    """The batch of one sample, where there are no batches: what convert(sample) is."""

    convert: Callable[[Any], Any]

    def __call__(self, samples: Sequence[Any]) -> Any:
        """The one sample."""
        (sample,) = samples
        return self.convert(sample)


def _collated(values: Sequence[Any]) -> Any:
    first = values[0]
    kind = type(first)
    if kind is dict:
        for sample in values:
            if type(sample) is dict and sample.keys() != first.keys():
                raise _other_columns(first, sample)
        return {key: _collated([sample[key] for sample in values]) for key in first}
    if kind is tuple or kind is list:
        if all(len(value) == len(first) for value in values):
            return [_collated(column) for column in zip(*values, strict=True)]
    elif kind is np.ndarray:
        if _are_alike(values, first) and first.dtype in _TENSORS and first.ndim:
            return _stacked(values, first)
    elif kind is torch.Tensor:
        if all(_is_plain(value, first) for value in values):
            return torch.stack(values, 0)  # type: ignore[arg-type]
    elif kind in _SCALARS and all(type(value) is kind for value in values):
        return torch.from_numpy(np.array(values))
    elif kind is int or kind is float:
        array = _numbers(values, kind)
        if array is not None:
            return torch.from_numpy(array)
    return default_collate(values)  # type: ignore[arg-type]


def _other_columns(first: Mapping[Any, Any], other: Mapping[Any, Any]) -> ValueError:
    return ValueError(
        f"a batch has samples with the columns {list(first)} and {list(other)}: torch's default_collate would drop "
        "what the first one has not. Pass a collate_fn that knows what to do, or let each batch be of one stream "
        "(batching_method='per_stream')"
    )


def _are_alike(arrays: Sequence[Any], first: Any) -> bool:
    shape, dtype = first.shape, first.dtype
    return all(type(array) is np.ndarray and array.shape == shape and array.dtype == dtype for array in arrays)


def _stacked(arrays: Sequence[Any], first: Any) -> torch.Tensor:
    tensor = torch.empty((len(arrays), *first.shape), dtype=_TENSORS[first.dtype])
    end_to_end = tensor.numpy().reshape(len(arrays) * first.shape[0], *first.shape[1:])
    np.concatenate(arrays, out=end_to_end)
    return tensor


def _numbers(values: Sequence[Any], kind: type[int | float]) -> NDArray[Any] | None:
    """Python's numbers as torch keeps them; None where they are not alike, or too large, which torch says itself."""
    if not all(type(value) is kind for value in values):
        return None
    try:
        return np.array(values, np.int64 if kind is int else np.float64)
    except OverflowError:
        return None


def _is_plain(value: Any, first: torch.Tensor) -> bool:
    return (
        type(value) is torch.Tensor
        and value.dtype == first.dtype
        and value.layout == torch.strided
        and value.device.type == "cpu"
        and not value.is_nested
        and not value.requires_grad
    )


def _without_rows(batch: Any, sample: Any) -> Any:
    """The batch of one sample without that sample."""
    if isinstance(batch, torch.Tensor):
        return batch[:0].clone()
    if isinstance(sample, str | bytes):
        return batch[:0]
    if isinstance(sample, Mapping):
        return _like(batch, {key: _without_rows(batch[key], sample[key]) for key in batch})
    if isinstance(sample, Sequence):
        columns = [_without_rows(*pair) for pair in zip(batch, sample, strict=True)]
        return type(batch)(*columns) if hasattr(batch, "_fields") else _like(batch, columns)
    raise TypeError(
        f"a {type(sample).__name__} is collated by a function of yours (default_collate_fn_map), so nobody knows what "
        "no rows look like, as a rank may get in the last step: pass drop_last=True, or a collate_fn that takes []"
    )


def _like(batch: Any, content: Any) -> Any:
    """content in the type of batch where that can be, as default_collate does it."""
    try:
        return type(batch)(content)
    except TypeError:
        return content
