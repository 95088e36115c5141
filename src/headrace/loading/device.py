"""Moving batches: through dicts, lists, tuples, named tuples and dataclasses, to pinned memory and to a device."""

from collections.abc import Callable
from typing import Any

import torch

from headrace.loading.pytree import tree_map_only

__all__ = ["DeviceMover", "default_device", "map_tensors"]


def default_device() -> torch.device:
    """The current CUDA device where there is one, else the CPU."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def map_tensors(tree: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A copy of tree with function applied to every tensor in it; everything else is kept as it is."""
    return tree_map_only(torch.Tensor, function, tree)


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
