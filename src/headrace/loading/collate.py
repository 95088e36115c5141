"""From samples to tensors: stored types are kept, and cast once a batch where asked.

A batch of token windows is one array already, so nothing is copied: its tensors share memory with it.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["Stack", "stack"]


class Stack:
    """Samples of equal structure to one batch of that structure, with arrays and numbers stacked to tensors."""

    def __init__(self, dtype: torch.dtype | Mapping[str, torch.dtype] | None = None) -> None:
        self.dtype = dtype

    def __repr__(self) -> str:
        return "stack()" if self.dtype is None else f"stack(dtype={self.dtype})"

    def __call__(self, samples: Sequence[Any]) -> Any:
        """The batch; ValueError for no samples, where their structure cannot be known."""
        stacked = getattr(samples, "stacked", None)
        if stacked is not None:
            tree = stacked()
            if isinstance(tree, dict):
                return {name: self._tensor(array, name) for name, array in tree.items()}
            return self._tensor(tree, "")
        if len(samples) == 0:
            raise ValueError("no samples to stack, and so no structure to give back")
        return self._stacked(samples, "")

    def _stacked(self, samples: Sequence[Any], name: str) -> Any:
        first = samples[0]
        if isinstance(first, torch.Tensor):
            return self._cast(torch.stack(list(samples)), name)
        if isinstance(first, np.ndarray):
            return self._tensor(np.stack(samples), name)
        if isinstance(first, bool | int | float | complex | np.number | np.bool_):
            return self._tensor(np.asarray(samples), name)
        if isinstance(first, str | bytes) or first is None:
            return list(samples)
        if isinstance(first, Mapping):
            for sample in samples:
                if sample.keys() != first.keys():
                    raise ValueError(f"samples have different keys: {sorted(first)} and {sorted(sample)}")
            return {key: self._stacked([sample[key] for sample in samples], str(key)) for key in first}
        if dataclasses.is_dataclass(first):
            fields = [field.name for field in dataclasses.fields(first)]
            values = {field: self._stacked([getattr(s, field) for s in samples], field) for field in fields}
            return dataclasses.replace(first, **values)  # type: ignore[type-var]
        if isinstance(first, tuple | list):
            if any(len(sample) != len(first) for sample in samples):
                raise ValueError("samples have different lengths; pad them in a collate_fn of your own")
            columns = [self._stacked(list(column), name) for column in zip(*samples, strict=True)]
            return type(first)(*columns) if hasattr(first, "_fields") else type(first)(columns)
        raise TypeError(f"samples of type {type(first).__name__} cannot be stacked; pass a collate_fn of your own")

    def _tensor(self, array: NDArray[Any], name: str) -> torch.Tensor:
        if not array.flags.writeable or not array.flags.c_contiguous:
            array = array.copy()  # one field of many lies strided in its records, which torch does not take
        return self._cast(torch.from_numpy(array), name)

    def _cast(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        dtype = self.dtype.get(name) if isinstance(self.dtype, Mapping) else self.dtype
        if dtype is None or tensor.dtype == torch.bool:
            return tensor
        named = isinstance(self.dtype, Mapping)
        if named or tensor.is_floating_point() == dtype.is_floating_point:
            return tensor.to(dtype)
        return tensor  # one dtype for all means: integers for integers, floats for floats


def stack(dtype: torch.dtype | Mapping[str, torch.dtype] | None = None) -> Callable[[Sequence[Any]], Any]:
    """A collate function that stacks samples to tensors, as stored or cast once a batch.

    dtype casts integer fields if it is an integer type and floating fields if it is a floating one; a mapping of field
    names says it for each. `collate_fn=None` is `stack()`.
    """
    return Stack(dtype)
