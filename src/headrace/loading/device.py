"""Moving batches: through dicts, lists, tuples, named tuples and dataclasses, to pinned memory and to a device."""

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import torch

__all__ = ["DeviceMover", "default_device", "map_tensors"]


def default_device() -> torch.device:
    """The current CUDA device where there is one, else the CPU."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def map_tensors(tree: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A copy of tree with function applied to every tensor in it; everything else is kept as it is."""
    if isinstance(tree, torch.Tensor):
        return function(tree)
    if isinstance(tree, Mapping):
        moved = {key: map_tensors(value, function) for key, value in tree.items()}
        if type(tree) is dict or not isinstance(tree, MutableMapping):
            return moved
        tree = copy.copy(tree)  # keeps what a subclass has besides its items, such as a defaultdict's factory
        tree.update(moved)
        return tree
    if isinstance(tree, tuple | list):
        parts = [map_tensors(value, function) for value in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        tree = copy.copy(tree)
        for field in dataclasses.fields(tree):
            object.__setattr__(tree, field.name, map_tensors(getattr(tree, field.name), function))  # frozen ones too
        return tree
    return tree


class DeviceMover:
    """Batches from the CPU to `device`; on CUDA on a stream of its own, which the current stream waits for."""

    def __init__(self, device: torch.device, *, pin_memory: bool) -> None:
        self._device = device
        self._pin_memory = pin_memory
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def __call__(self, batch: Any) -> Any:
        """The batch with every tensor on the device."""
        if self._stream is None:
            return map_tensors(batch, lambda tensor: tensor.to(self._device))
        if self._pin_memory:
            batch = map_tensors(batch, lambda tensor: tensor.pin_memory())
        current = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            moved = map_tensors(batch, lambda tensor: tensor.to(self._device, non_blocking=True))
        current.wait_stream(self._stream)

        def used_here(tensor: torch.Tensor) -> torch.Tensor:
            tensor.record_stream(current)  # else its memory may be given away while this stream still reads it
            return tensor

        return map_tensors(moved, used_here)
