"""Packers: a loader's microbatches, grouped to the packs that steps take.

FixedCountMicrobatchPacker    so many microbatches a step, from any loader
TokenBudgetMicrobatchPacker   a step of token-budget batches, with the weights that make their losses one loss
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.errors import OptionError
from headrace.loading.pack_protocols import DataLoaderProtocol, MicrobatchPack

__all__ = [
    "FixedCountMicrobatchPacker",
    "TokenBudgetMicrobatchPacker",
    "TokenPack",
    "num_microbatches_for_global_batch",
]


def num_microbatches_for_global_batch(dist_context: Any, global_batch_size: int, microbatch_size: int) -> int:
    """Microbatches of each rank's pack: global_batch_size / (data-parallel ranks * microbatch_size).

    OptionError for sizes below 1, and for a global batch that does not divide.
    """
    for name, size in (("global_batch_size", global_batch_size), ("microbatch_size", microbatch_size)):
        if size < 1:
            raise OptionError(name, size, "a whole number of at least 1")
    ranks = 1
    if dist_context.mesh_params.is_distributed:
        ranks = int(dist_context.mesh_for("batch")["dp"].size())
    together = ranks * microbatch_size
    if global_batch_size % together:
        raise OptionError("global_batch_size", global_batch_size, f"a multiple of {together}")
    return global_batch_size // together


class FixedCountMicrobatchPacker:
    """Packs of microbatches_per_step microbatches of loader, one after another. A MicrobatchPackStream."""

    def __init__(self, loader: DataLoaderProtocol, microbatches_per_step: int, drop_last: bool = True) -> None:
        if microbatches_per_step < 1:
            raise OptionError("microbatches_per_step", microbatches_per_step, "a whole number of at least 1")
        self.loader = loader
        self.microbatches_per_step = microbatches_per_step
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[MicrobatchPack[Any]]:
        pack: list[Any] = []
        for microbatch in self.loader:
            pack.append(microbatch)
            if len(pack) == self.microbatches_per_step:
                yield pack
                pack = []
        if pack and not self.drop_last:
            yield pack

    @property
    def total_steps(self) -> int | None:
        """Packs of one pass over the loader; None over one that has no length."""
        try:
            microbatches = len(self.loader)
        except (TypeError, NotImplementedError):
            return None
        size = self.microbatches_per_step
        return microbatches // size if self.drop_last else -(-microbatches // size)

    @property
    def is_elastic(self) -> bool:
        """Whether the loader's state, which is the state of this, is the same on every rank."""
        return bool(getattr(self.loader, "is_elastic", False))

    def state_dict(self) -> dict[str, Any]:
        """The loader's state behind the pack that was handed out last."""
        return self.loader.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Begin the next iter() there."""
        self.loader.load_state_dict(state_dict)


class TokenPack(list[Any]):
    """A pack that knows how many tokens each microbatch predicts."""

    def __init__(self, microbatches: Iterable[Any], num_targets: NDArray[np.int64]) -> None:
        super().__init__(microbatches)
        self.num_targets = num_targets

    @property
    def loss_weights(self) -> torch.Tensor:
        """The weight of each microbatch's mean loss a target."""
        return torch.from_numpy(self.num_targets).to(torch.float32)


class TokenBudgetMicrobatchPacker:
    """A pack a step from a loader over TokenBudgetBatches."""

    def __init__(self, loader: Any, count_targets: Callable[[Any], int] | None = None) -> None:
        self.loader = loader
        self.count_targets = count_targets

    def __iter__(self) -> Iterator[TokenPack]:
        pack: list[Any] = []
        for microbatch in self.loader:
            pack.append(microbatch)
            if len(pack) == self.microbatches_per_step:
                yield TokenPack(pack, np.array([int(m["num_targets"]) for m in pack], np.int64))
                pack = []

    @property
    def microbatches_per_step(self) -> int:
        """Batches of a step that this rank gets."""
        return int(self.loader.dataset.rows_per_step) // int(self.loader.world_size)

    @property
    def total_steps(self) -> int | None:
        """Packs of the whole epoch."""
        return len(self.loader) // self.microbatches_per_step

    @property
    def is_elastic(self) -> bool:
        """True over Headrace's loader."""
        return bool(getattr(self.loader, "is_elastic", False))

    def state_dict(self) -> dict[str, Any]:
        """The loader's state behind the pack that was handed out last."""
        state: dict[str, Any] = self.loader.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Begin the next iter() there."""
        self.loader.load_state_dict(state_dict)
