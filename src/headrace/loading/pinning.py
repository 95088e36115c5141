"""Packs in pinned memory, from which a device copies while the host goes on."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from headrace.loading.pack_protocols import MicrobatchPack, MicrobatchPackStream
from headrace.loading.pytree import tree_map

__all__ = ["PinMemoryMicrobatchPackStream", "can_pin", "pinned"]

_log = logging.getLogger("headrace")


class PinMemoryMicrobatchPackStream:
    """inner's packs with every CPU tensor in pinned memory, in whatever trees they are. All else is inner's.

    A pack is pinned in the thread that iterates, by that thread alone: torch would else take every core for it, from
    whoever computes. Batches of a class with a pin_memory() of its own, as torch's DataLoader knows them, are pinned by
    that. Without an accelerator that can use pinned memory, packs come as they are, which is logged once for debugging.

    TypeError where inner is no stream of packs.
    """

    def __init__(self, inner: MicrobatchPackStream) -> None:
        if missing := [name for name in ("__iter__", "state_dict", "load_state_dict") if not hasattr(inner, name)]:
            raise TypeError(
                f"a {type(inner).__name__} is no stream of packs: it has no {' and no '.join(missing)}; give a packer, "
                "such as FixedCountMicrobatchPacker"
            )
        self.inner = inner
        self._told = False

    def __iter__(self) -> Iterator[MicrobatchPack[Any]]:
        pins = can_pin()
        if not pins and not self._told:
            self._told = True
            _log.debug("no accelerator here can use pinned memory: packs come as they are")
        packs = iter(self.inner)
        try:
            for pack in packs:
                yield pinned(pack) if pins else pack
        finally:  # a consumer that breaks off leaves no thread and no worker of inner's behind
            close = getattr(packs, "close", None)
            if close is not None:
                close()

    def __getattr__(self, name: str) -> Any:
        """What inner has besides, such as steps_left and close()."""
        if name == "inner" or name.startswith("__"):  # while this is copied or unpickled there is no inner yet
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.inner, name)

    @property
    def total_steps(self) -> int | None:
        """inner's."""
        return self.inner.total_steps

    @property
    def is_elastic(self) -> bool:
        """Whether inner's state is the same on every rank."""
        return bool(getattr(self.inner, "is_elastic", False))

    def state_dict(self) -> dict[str, Any]:
        """inner's: pinning has no state."""
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Begin the next iter() of inner there."""
        self.inner.load_state_dict(state_dict)


def can_pin() -> bool:
    """Whether there is an accelerator that copies from pinned memory; Apple's shares the host's memory."""
    accelerator = torch.accelerator.current_accelerator()
    return accelerator is not None and accelerator.type != "mps" and torch.accelerator.is_available()


def pinned(pack: MicrobatchPack[Any]) -> MicrobatchPack[Any]:
    """A copy of the pack whose CPU tensors are in pinned memory; what is there already is shared."""
    with _one_thread():
        if isinstance(pack, list | tuple):
            whole: MicrobatchPack[Any] = tree_map(_pinned_leaf, pack)
            return whole
        return [tree_map(_pinned_leaf, microbatch) for microbatch in pack]


def _pinned_leaf(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        can_be = leaf.device.type == "cpu" and leaf.layout == torch.strided
        return leaf.pin_memory() if can_be else leaf
    pin = getattr(leaf, "pin_memory", None)
    return pin() if callable(pin) and not isinstance(leaf, type) else leaf


@contextmanager
def _one_thread() -> Iterator[None]:
    """Torch computes with one thread within, and with as many as before behind."""
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
