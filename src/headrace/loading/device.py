"""Moving batches: through dicts, lists, tuples, named tuples and dataclasses, to pinned memory and to a device."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
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
    """Trees of tensors from the CPU to `device`; to CUDA on a stream of its own, which the consumer's stream waits for.

    mover(tree) is both halves of the way: `send()` starts the copy, and may be called by a thread that works ahead;
    `receive()` makes it safe to use, and is called by the thread that uses it, in whatever stream is current there.
    The host waits for the device in neither. On the CPU a tree stays as it is.
    """

    def __init__(self, device: torch.device, *, pin_memory: bool = False) -> None:
        if device == torch.device("cuda"):  # the current one: of this thread, not of the one that sends
            device = torch.device("cuda", torch.cuda.current_device())
        self.device = device
        self._pin_memory = pin_memory
        self._has_streams = device.type == "cuda"
        self._stream: Any = None  # made when first needed, so that nothing starts on the device before

    def __call__(self, tree: Any) -> Any:
        """The tree with every tensor on the device."""
        return self.receive(*self.send(tree))

    def as_current(self) -> AbstractContextManager[Any]:
        """The device as the calling thread's current one, as long as this is entered.

        A new thread begins with the first GPU: whatever it pins or makes would take memory there, on every rank.
        """
        return torch.cuda.device(self.device) if self._has_streams else nullcontext()

    def send(self, tree: Any) -> tuple[Any, Any]:
        """The tree with every tensor on its way, and what `receive()` must know to wait for it."""
        if self.device.type == "cpu":
            return tree, None
        if not self._has_streams:
            return map_tensors(tree, lambda tensor: tensor.to(self.device)), None
        if self._pin_memory:
            tree = map_tensors(tree, lambda tensor: tensor.pin_memory())
        if self._stream is None:
            self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream):
            moved = map_tensors(tree, lambda tensor: tensor.to(self.device, non_blocking=True))
            sent = torch.cuda.Event()  # type: ignore[no-untyped-call]
            sent.record(self._stream)  # one each: the stream may be sending the next ones already
        return moved, sent

    def receive(self, tree: Any, sent: Any) -> Any:
        """What was sent, for the current stream."""
        if sent is None:
            return tree
        current = torch.cuda.current_stream(self.device)
        current.wait_event(sent)

        def used_here(tensor: torch.Tensor) -> torch.Tensor:
            tensor.record_stream(current)  # else its memory may be given away while this stream still reads it
            return tensor

        return map_tensors(tree, used_here)
