"""What the training loop and the data agree on: packs, and streams of them.

A microbatch is what one forward pass takes, as a tree of tensors. A pack is one step's microbatches for one rank. A
pack stream is the only thing of the data that a loop knows, and the only one whose state a checkpoint holds.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from torch import Tensor

__all__ = [
    "CollateFn",
    "DataLoaderProtocol",
    "MicrobatchPack",
    "MicrobatchPackStream",
    "PyTree",
    "ScalarTree",
    "TensorTree",
]

T = TypeVar("T")
TDataTree = TypeVar("TDataTree")

# Trees of dicts, lists, tuples and dataclasses. Types cannot say "any dataclass of tensors", so a leaf may be anything.
PyTree: TypeAlias = T | list["PyTree[T]"] | dict[str, "PyTree[T]"] | tuple["PyTree[T]", ...]
TensorTree: TypeAlias = PyTree[Tensor]
ScalarTree: TypeAlias = PyTree[str | float | int | bool]
CollateFn: TypeAlias = Callable[[Sequence[Any]], Any]
MicrobatchPack: TypeAlias = Sequence[TDataTree]


@runtime_checkable
class DataLoaderProtocol(Protocol):
    """A loader of microbatches that can say where it is, as StatefulDataLoader and torchdata's do."""

    def __iter__(self) -> Iterator[Any]: ...

    def __len__(self) -> int:
        """Microbatches of one pass."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Where it is."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Begin the next iter() there."""
        ...


@runtime_checkable
class MicrobatchPackStream(Protocol):
    """One rank's packs, a pack a step. The one place where data and checkpoints meet.

    Packs hold CPU tensors, which may be pinned; the loop moves them. With prefetching, iter() runs on a background
    thread and `state_dict()` is called behind every pack: it must be cheap, and what it gave must not change later.

    A stream whose state is the same on every rank, and loads with any number of ranks, says so with a true
    `is_elastic`; one without that attribute has a state a rank.
    """

    def __iter__(self) -> Iterator[MicrobatchPack[Any]]: ...

    @property
    def total_steps(self) -> int | None:
        """Packs from the very beginning to the end, or None when nobody knows."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Where it is: behind the pack that was handed out last."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Begin the next iter() there."""
        ...
