"""Packs in pinned memory, from which a GPU can copy while the host goes on."""

import logging
from collections.abc import Iterator
from typing import Any

import torch

from headrace.loading.pack_protocols import MicrobatchPack, MicrobatchPackStream
from headrace.loading.pytree import tree_map

__all__ = ["PinMemoryMicrobatchPackStream"]

_log = logging.getLogger(__name__)


class PinMemoryMicrobatchPackStream:
    """inner's packs with every CPU tensor in pinned memory, also those in dataclasses. All else is inner's.

    Without an accelerator there is nothing to pin for: the packs come as they are, which is logged once, for debugging.
    """

    def __init__(self, inner: MicrobatchPackStream) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[MicrobatchPack[Any]]:
        if not can_pin():
            _log.debug("there is no accelerator here to pin memory for; packs come as they are")
            yield from self.inner
            return
        for pack in self.inner:
            yield pinned(pack)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    @property
    def total_steps(self) -> int | None:
        """inner's."""
        return self.inner.total_steps

    @property
    def is_elastic(self) -> bool:
        """inner's."""
        return bool(getattr(self.inner, "is_elastic", False))

    def state_dict(self) -> dict[str, Any]:
        """inner's: pinning has no state."""
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Begin the next iter() of inner there."""
        self.inner.load_state_dict(state_dict)


def can_pin() -> bool:
    """Whether there is an accelerator that pinned memory helps."""
    return torch.accelerator.is_available()


def pinned(pack: MicrobatchPack[Any]) -> MicrobatchPack[Any]:
    """The pack in pinned memory."""
    copied: MicrobatchPack[Any] = tree_map(_pinned_leaf, pack)
    return copied


def _pinned_leaf(leaf: Any) -> Any:
    return leaf.pin_memory() if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu" else leaf
