"""From samples to tensors: stored types are kept, and cast once a batch where asked.

A batch of token windows is one array already, so nothing is copied: its tensors share memory with it.
"""

import copy
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["Collate", "Stack", "stack"]

_Cast = Callable[[NDArray[Any]], torch.Tensor]


class Collate(ABC):
    """A collate function that knows the batch of no rows, too: a rank may get none in an epoch's last step."""

    @abstractmethod
    def __call__(self, samples: Sequence[Any]) -> Any:
        """The batch of these samples, of which there is at least one."""

    @abstractmethod
    def empty(self, sample: Any) -> Any:
        """A batch of no rows, for samples that look like this one."""


class Stack(Collate):
    """Samples of equal structure to one batch of that structure, with arrays and numbers stacked to tensors."""

    def __init__(self, dtype: torch.dtype | Mapping[str, torch.dtype] | None = None) -> None:
        self.dtype = dtype
        self._casts: dict[str, dict[np.dtype[Any], _Cast]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "_casts": {}}

    def __repr__(self) -> str:
        return "stack()" if self.dtype is None else f"stack(dtype={self.dtype})"

    def __call__(self, samples: Sequence[Any]) -> Any:
        """The batch; ValueError for no samples, where their structure cannot be known, and for unequal ones."""
        stacked = getattr(samples, "stacked", None)
        if stacked is not None:
            tree = stacked()
            if isinstance(tree, dict):
                return {name: self.tensor(array, name) for name, array in tree.items()}
            return self.tensor(tree, "")
        if len(samples) == 0:
            raise ValueError("no samples to stack, and so no structure to give back")
        return self._stacked(samples, samples[0], "")

    def empty(self, sample: Any) -> Any:
        """A batch of no rows, for samples that look like this one: same structure, types and inner shapes."""
        return self._stacked([], sample, "")

    def _stacked(self, samples: Sequence[Any], like: Any, name: str) -> Any:
        if isinstance(like, torch.Tensor):
            return self._cast(torch.stack(list(samples)) if samples else like.new_empty((0, *like.shape)), name)
        if isinstance(like, np.ndarray):
            return self.tensor(
                _stack_arrays(samples, name) if samples else np.empty((0, *like.shape), like.dtype), name
            )
        if isinstance(like, bool | int | float | complex | np.number | np.bool_):
            return self.tensor(np.asarray(samples) if samples else np.asarray([like])[:0], name)
        if isinstance(like, str | bytes) or like is None:
            return list(samples)
        if isinstance(like, Mapping):
            for sample in samples:
                if sample.keys() != like.keys():
                    raise ValueError(f"samples have different keys: {list(like)} and {list(sample)}")
            return {key: self._stacked([sample[key] for sample in samples], like[key], str(key)) for key in like}
        if dataclasses.is_dataclass(like):
            batch = copy.copy(like)
            for field in (field.name for field in dataclasses.fields(like)):
                column = self._stacked([getattr(sample, field) for sample in samples], getattr(like, field), field)
                object.__setattr__(batch, field, column)  # frozen ones too
            return batch
        if isinstance(like, tuple | list):
            if any(len(sample) != len(like) for sample in samples):
                raise ValueError("samples have different lengths; pad them in a collate_fn of your own")
            columns = [self._stacked([sample[k] for sample in samples], like[k], name) for k in range(len(like))]
            return type(like)(*columns) if hasattr(like, "_fields") else type(like)(columns)
        raise TypeError(f"samples of type {type(like).__name__} cannot be stacked; pass a collate_fn of your own")

    def _target(self, name: str, *, is_integer: bool, is_floating: bool) -> torch.dtype | None:
        """What a field is cast to. One dtype for all means: integers for integers, floats for floats."""
        if self.dtype is None:
            return None
        if isinstance(self.dtype, Mapping):
            return self.dtype.get(name)
        if self.dtype.is_floating_point:
            return self.dtype if is_floating else None
        return self.dtype if is_integer else None

    def tensor(self, array: NDArray[Any], name: str) -> torch.Tensor:
        """The array as a tensor, cast as this field is; memory is shared where nothing has to change."""
        # What a field's type asks for is the same in every batch, and working it out costs more than a small batch.
        try:
            cast = self._casts[name][array.dtype]
        except KeyError:
            cast = self._cast_of(array.dtype, name)
            self._casts.setdefault(name, {})[array.dtype] = cast
        return cast(array)

    def _cast_of(self, dtype: np.dtype[Any], name: str) -> "_Cast":
        """What turns arrays of dtype into the tensors of field name."""
        target = self._target(name, is_integer=dtype.kind in "iu", is_floating=dtype.kind == "f")
        if target is None:
            return _as_stored
        numpy_target = _NUMPY.get(target)
        if numpy_target is None:
            return lambda array: _as_stored(array).to(target)
        if dtype != numpy_target and np.can_cast(dtype, numpy_target):
            return lambda array: torch.from_numpy(array.astype(numpy_target, order="C"))
        return lambda array: _as_stored(_converted(array, numpy_target, name))

    def _cast(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        if self.dtype is None:
            return tensor
        is_floating = tensor.is_floating_point()
        is_integer = not (is_floating or tensor.is_complex() or tensor.dtype == torch.bool)
        if is_integer and tensor.device.type == "cpu":
            return self.tensor(tensor.numpy(), name)
        target = self._target(name, is_integer=is_integer, is_floating=is_floating)
        return tensor if target is None else tensor.to(target)


def stack(dtype: torch.dtype | Mapping[str, torch.dtype] | None = None) -> Callable[[Sequence[Any]], Any]:
    """A collate function that stacks samples to tensors, as stored or cast once a batch.

    dtype casts integer fields if it is an integer type and floating fields if it is a floating one; a mapping of field
    names says it for each. An integer that the new type cannot hold is a ValueError. `collate_fn=None` is `stack()`.
    """
    return Stack(dtype)


def _as_stored(array: NDArray[Any]) -> torch.Tensor:
    flags = array.flags
    if not (flags.c_contiguous and flags.writeable and array.dtype.isnative):
        # One field of many lies strided in its records, which torch does not take; nor foreign byte order.
        array = array.astype(array.dtype.newbyteorder("="), order="C")
    return torch.from_numpy(array)


def _stack_arrays(samples: Sequence[Any], name: str) -> NDArray[Any]:
    try:
        return np.stack(samples)  # type: ignore[no-any-return, unused-ignore]
    except ValueError:
        shapes = sorted({str(np.shape(sample)) for sample in samples})
        raise ValueError(
            f"field {name!r} has samples of different shapes, {', '.join(shapes)}; pad them in a collate_fn of your own"
        ) from None


def _converted(array: NDArray[Any], target: np.dtype[Any], name: str) -> NDArray[Any]:
    """array in target; integers by value, or ValueError."""
    if array.dtype.kind in "iu" and target.kind in "iu" and array.size and not np.can_cast(array.dtype, target):
        limits = np.iinfo(target)
        for value in (int(array.min()), int(array.max())):
            if not limits.min <= value <= limits.max:
                raise ValueError(
                    f"field {name!r} has the value {value}, which {target} cannot hold; cast to a wider type"
                )
    return array.astype(target, order="C", copy=False)


# Casting by NumPy takes one call less than by torch; types that NumPy lacks (bfloat16) are cast by torch.
_NUMPY = {
    kind: np.dtype(str(kind).removeprefix("torch."))
    for kind in (
        torch.bool,
        torch.uint8,
        torch.uint16,
        torch.uint32,
        torch.uint64,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.float32,
        torch.float64,
    )
}
