"""How packs get to a device: not at all, at hand-over, or ahead on a CUDA stream of their own."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from headrace.loading.device import map_tensors

__all__ = ["Copies", "copies_to", "map_pack"]


class Copies(Protocol):
    """The way to a device, in two halves: one where packs are pulled, one where they are used."""

    @property
    def device(self) -> torch.device:
        """Where it leads."""
        ...

    def send(self, pack: Sequence[Any]) -> tuple[Sequence[Any], Any]:
        """The pack as it goes off, and what says that it is there."""
        ...

    def receive(self, pack: Sequence[Any], event: Any) -> Sequence[Any]:
        """The pack, safe for what the calling thread does next."""
        ...


def copies_to(device: torch.device, *, ahead: bool) -> Copies:
    """The way to the device; ahead: both halves are called by different threads."""
    if device == torch.device("cuda"):  # the current one: of this thread, not of the one that copies
        device = torch.device("cuda", torch.cuda.current_device())
    if device.type == "cpu":
        return _AsTheyAre(device)
    if device.type == "cuda" and ahead:
        return _OnSideStream(device)
    return _AtOnce(device, non_blocking=device.type == "cuda")


def map_pack(pack: Sequence[Any], function: Callable[[torch.Tensor], torch.Tensor]) -> Sequence[Any]:
    """A copy of the pack with function applied to every tensor of its microbatches; lists and tuples stay what they
    are, of whatever class, and other sequences become lists."""
    copied: Sequence[Any] = map_tensors(pack if isinstance(pack, list | tuple) else list(pack), function)
    return copied


class _AsTheyAre:
    """The CPU: packs are there already."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def send(self, pack: Sequence[Any]) -> tuple[Sequence[Any], Any]:
        return pack, None

    def receive(self, pack: Sequence[Any], event: Any) -> Sequence[Any]:
        return pack


class _AtOnce(_AsTheyAre):
    """Copied where they are pulled, in order with what runs there."""

    def __init__(self, device: torch.device, *, non_blocking: bool) -> None:
        super().__init__(device)
        self._non_blocking = non_blocking

    def send(self, pack: Sequence[Any]) -> tuple[Sequence[Any], Any]:
        return map_pack(pack, lambda tensor: tensor.to(self.device, non_blocking=self._non_blocking)), None


class _OnSideStream(_AsTheyAre):
    """CUDA: copied on a stream of their own, beside what the consumer computes."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._stream: Any = None  # made at the first pack, so that building a stream starts nothing on the device

    def send(self, pack: Sequence[Any]) -> tuple[Sequence[Any], Any]:
        if self._stream is None:
            self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream):
            moved = map_pack(pack, lambda tensor: tensor.to(self.device, non_blocking=True))
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._stream)
        return moved, event

    def receive(self, pack: Sequence[Any], event: Any) -> Sequence[Any]:
        current = torch.cuda.current_stream(self.device)
        current.wait_event(event)

        def used_here(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.is_cuda:
                tensor.record_stream(current)  # else its memory may be given away while this stream still reads it
            return tensor

        return map_pack(pack, used_here)
