"""Packers: a loader's microbatches, grouped to the packs that steps take.

    loader   m0 m1 m2 | m3 m4 m5 | m6 m7          FixedCountMicrobatchPacker: so many a step, from any loader
    packs    --------   --------   -----          TokenBudgetMicrobatchPacker: a step of token-budget batches, with
                                   short          the weights that make their losses one loss

A packer has no state of its own: its state is the loader's, at the edge between two packs.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import OptionError, StateError
from headrace.loading.pack_protocols import DataLoaderProtocol
from headrace.loading.targets import count_targets as targets_of
from headrace.planning import steps_left
from headrace.views.options import whole_number

__all__ = [
    "FixedCountMicrobatchPacker",
    "TokenBudgetMicrobatchPacker",
    "TokenPack",
    "num_microbatches_for_global_batch",
]


def num_microbatches_for_global_batch(dist_context: Any, global_batch_size: int, microbatch_size: int) -> int:
    """Microbatches of each rank's pack: global_batch_size / (data-parallel ranks * microbatch_size).

    OptionError for sizes below 1, and for a global batch that cannot be shared so; TypeError for what are no integers.
    """
    rows = whole_number("global_batch_size", global_batch_size, least=1)
    size = whole_number("microbatch_size", microbatch_size, least=1)
    ranks = int(dist_context.mesh_for("batch")["dp"].size()) if dist_context.mesh_params.is_distributed else 1
    together = ranks * size
    if rows % together:
        near = sorted({rows - rows % together, rows + -rows % together} - {0})
        raise OptionError(
            "global_batch_size",
            rows,
            f"a multiple of {together} ({ranks} data-parallel ranks times microbatch_size={size}): "
            f"{' or '.join(map(str, near))} would be near",
        )
    return rows // together


class _Packer:
    """Groups of a loader's microbatches. While one is being made, the state is still that behind the last whole one."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self._edge: dict[str, Any] | None = None  # the loader's state where a group that is not whole began

    @property
    def is_elastic(self) -> bool:
        """Whether the state, the loader's, is the same on every rank and loads with any number of them."""
        return bool(getattr(self.loader, "is_elastic", False))

    def state_dict(self) -> dict[str, Any]:
        """The loader's state behind the pack that was handed out last, also after an error in the middle of one.

        TypeError over a loader that has none.
        """
        if not hasattr(self.loader, "state_dict"):
            raise TypeError(
                f"a {type(self.loader).__name__} has no state_dict, so its packs cannot be gone on with; use a "
                "StatefulDataLoader"
            )
        state: dict[str, Any] = self.loader.state_dict() if self._edge is None else self._edge
        return state

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Begin the next iter() there."""
        self.loader.load_state_dict(state_dict)
        self._edge = None

    def close(self) -> None:
        """End the loader's threads and workers, where it has any and can be closed; twice is harmless."""
        close = getattr(self.loader, "close", None)
        if close is not None:
            close()

    def _groups(self, size: int) -> Iterator[list[Any]]:
        """Lists of size microbatches; what is left at the end is the last one, and may be empty."""
        has_state = hasattr(self.loader, "state_dict")
        microbatches = iter(self.loader)
        try:
            while True:
                self._edge = self.loader.state_dict() if has_state else None
                group = list(islice(microbatches, size))
                self._edge = None
                yield group
                if len(group) < size:
                    return
        finally:  # a consumer that breaks off leaves no thread and no worker behind
            close = getattr(microbatches, "close", None)
            if close is not None:
                close()

    def _microbatches(self) -> int | None:
        """Microbatches of one pass; None over a loader without a length."""
        try:
            return len(self.loader)
        except (TypeError, NotImplementedError):  # of an IterableDataset, say
            return None

    def _microbatches_left(self) -> int | None:
        """Microbatches from here to the end of the loader's first epoch; None where the loader cannot say."""
        if not self.is_elastic or not hasattr(type(self.loader), "dataset_size"):
            return None
        state = self.state_dict()
        if state["epoch"] > 0:
            return 0
        try:
            rows = self.loader.dataset_size
        except TypeError:  # a mixture was changed within the epoch: its rows cannot be counted any more
            return None
        return steps_left(rows, state["position"], self.loader.global_batch_size, self.loader.drop_last)


class FixedCountMicrobatchPacker(_Packer):
    """Packs of microbatches_per_step microbatches of loader, in its order. A MicrobatchPackStream.

    `iter()` is one pass over the loader. A short pack at its end is left out, unless drop_last is False.

    Over Headrace's StatefulDataLoader the state is the same on every rank: whoever goes on with another number of ranks
    gives the loader and the packer the sizes that go with it. Over another loader it is what that makes of it.

    OptionError for microbatches_per_step below 1.
    """

    def __init__(self, loader: DataLoaderProtocol, microbatches_per_step: int, drop_last: bool = True) -> None:
        super().__init__(loader)
        self.microbatches_per_step = whole_number("microbatches_per_step", microbatches_per_step, least=1)
        if not isinstance(drop_last, bool | np.bool_):
            raise TypeError(f"drop_last must be a bool, not {drop_last!r}")
        self.drop_last = bool(drop_last)

    def __iter__(self) -> Iterator[list[Any]]:
        for pack in self._groups(self.microbatches_per_step):
            if len(pack) == self.microbatches_per_step or (pack and not self.drop_last):
                yield pack

    @property
    def total_steps(self) -> int | None:
        """Packs of one pass over the loader; None over one that has no length."""
        return self._packs_in(self._microbatches())

    @property
    def steps_left(self) -> int | None:
        """Packs from here to the end of the first pass, as the loader's sizes are now; None where it cannot say."""
        return self._packs_in(self._microbatches_left())

    def _packs_in(self, microbatches: int | None) -> int | None:
        if microbatches is None:
            return None
        return (
            microbatches // self.microbatches_per_step
            if self.drop_last
            else -(-microbatches // self.microbatches_per_step)
        )


class TokenPack(list[Any]):
    """A list of microbatches of unequal size, which knows how many tokens each of them predicts.

    num_targets has shape (microbatches,). It stays with the pack when a tree of it is mapped, pinned or moved.
    """

    def __init__(self, microbatches: Iterable[Any], num_targets: Sequence[int] | NDArray[np.int64]) -> None:
        super().__init__(microbatches)
        self.num_targets: NDArray[np.int64] = np.array(num_targets, np.int64)
        if self.num_targets.shape != (len(self),) or (self.num_targets < 0).any():
            raise OptionError(
                "num_targets", num_targets, f"a count for each of the {len(self)} microbatches, at least 0"
            )

    @classmethod
    def of(cls, microbatches: Iterable[Any], count_targets: Callable[[Any], int] | None = None) -> "TokenPack":
        """A pack of these microbatches, counted by count_targets, or else by what headrace.loading.targets says."""
        pack = list(microbatches)
        return cls(pack, [(count_targets or targets_of)(microbatch) for microbatch in pack])

    @property
    def loss_weights(self) -> NDArray[np.float64]:
        """The weight of each microbatch's mean loss a target: its number of targets.

        The sum of loss * weight over the packs of all ranks, over the sum of the weights, is the mean loss a target of
        the batch that was not split. What has weight 0 is left out: its mean is NaN.
        """
        return self.num_targets.astype(np.float64)

    def weighted_sum(self, mean_losses: Sequence[Any]) -> Any:
        """The sum of loss * weight over the microbatches that have targets; 0.0 where none has.

        mean_losses are numbers or tensors, one a microbatch in order. What has no targets is not looked at.
        """
        if len(mean_losses) != len(self):
            raise OptionError("mean_losses", f"{len(mean_losses)} losses", f"one for each of {len(self)} microbatches")
        weights = self.num_targets.tolist()
        return sum((loss * weight for loss, weight in zip(mean_losses, weights, strict=True) if weight), 0.0)


class TokenBudgetMicrobatchPacker(_Packer):
    """A pack a step from a StatefulDataLoader over TokenBudgetBatches: all batches of the step that this rank gets.

    A step has batches_per_step batches of nearly equal cost, of which every rank gets as many. Packs are TokenPacks:
    they count the targets of each microbatch, by count_targets(microbatch) or as headrace.loading.targets says.

    The state is the same on every rank, always at the edge between two steps, and loads with any number of ranks that
    divides batches_per_step (OrderError for others). StateError for one that was taken within a step, from the loader
    alone. TypeError for a loader over something else.
    """

    def __init__(self, loader: Any, count_targets: Callable[[Any], int] | None = None) -> None:
        dataset = getattr(loader, "dataset", None)
        if not (getattr(dataset, "rows_are_batches", False) and hasattr(type(loader), "world_size")):
            over = "" if dataset is None else f" over {type(dataset).__name__}"
            raise TypeError(
                f"a TokenBudgetMicrobatchPacker needs a StatefulDataLoader over TokenBudgetBatches, not a "
                f"{type(loader).__name__}{over}; FixedCountMicrobatchPacker takes other loaders"
            )
        super().__init__(loader)
        self.batches_per_step = int(loader.dataset.rows_per_step)
        self.count_targets = count_targets

    def __iter__(self) -> Iterator[TokenPack]:
        for group in self._groups(self.microbatches_per_step):
            if group:
                yield TokenPack.of(group, self.count_targets)

    @property
    def microbatches_per_step(self) -> int:
        """Batches of a step that this rank gets; OrderError where the ranks cannot share a step equally."""
        return self.batches_per_step // int(self.loader.world_size)

    @property
    def total_steps(self) -> int | None:
        """Packs of the epoch that `iter()` begins in, from the lengths of all of its samples, counted once; None where
        a mixture was changed within it."""
        batches = self._microbatches()
        return None if batches is None else batches // self.microbatches_per_step

    @property
    def steps_left(self) -> int | None:
        """Packs from here to the end of the first epoch; None where a mixture was changed within it."""
        batches = self._microbatches_left()
        return None if batches is None else batches // self.microbatches_per_step

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Begin the next iter() there. A refused state changes nothing."""
        row = state_dict.get("row") if isinstance(state_dict, dict) else None
        if isinstance(row, int) and row % self.batches_per_step:
            saved = state_dict.get("settings")
            if isinstance(saved, dict) and saved.get("batches_per_step") == self.batches_per_step:
                raise StateError(
                    f"the state was taken within a step: {row % self.batches_per_step} of its {self.batches_per_step} "
                    "batches were read; packs begin between steps, where this packer's own states are taken"
                )
        super().load_state_dict(state_dict)
