"""What gives a training loop its data, and d9d's way to it: a shard a rank, and a state a rank.

DataProvider                       called once the processes have met; gives this rank's stream of packs
AutoDataProvider                   one for any dataset (auto_data.py)
shard_dataset_data_parallel()      a rank's shard, for a provider that makes its own loader
DataParallelMicrobatchPackStream   a stream whose state is one of several, a rank each
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from headrace.errors import StateError, StateMismatchError
from headrace.loading.pack_protocols import MicrobatchPack, MicrobatchPackStream
from headrace.training.context import DistributedContextLike, data_parallel_world
from headrace.views import ShardedDataset, ShardIndexingMode

__all__ = [
    "DataParallelMicrobatchPackStream",
    "DataProvider",
    "DatasetFactory",
    "InitializeDataProviderContext",
    "shard_dataset_data_parallel",
]

# Called on every rank with the job's context; gives the whole dataset. Any: a context may be d9d's as well as ours.
DatasetFactory: TypeAlias = Callable[[Any], Any]


@dataclass(kw_only=True)
class InitializeDataProviderContext:
    """What a data provider is given: the job's processes, as seen from this one."""

    dist_context: Any  # a DistributedContext, or d9d's: anything that is DistributedContextLike


class DataProvider(Protocol):
    """Gives a rank its stream of packs. What it reads, and how ranks share it, is its own affair."""

    def __call__(self, context: InitializeDataProviderContext) -> MicrobatchPackStream:
        """This rank's stream. Called once on every rank, when the processes have met."""
        ...


def shard_dataset_data_parallel(
    dataset: Any,
    dist_context: DistributedContextLike,
    indexing_mode: ShardIndexingMode = ShardIndexingMode.sequential,
    pad_to_equal_size_across_shards: bool = True,
) -> ShardedDataset:
    """This rank's shard of dataset, one of as many as there are data-parallel ranks; the whole where there is one.

    With padding all shards are equally long, and what a shard lacks is the last sample again: see
    ShardedDataset.is_padding. A loop over shards goes on only with as many ranks as it began with.
    """
    rank, world_size = data_parallel_world(dist_context)
    return ShardedDataset(dataset, world_size, rank, indexing_mode, pad_to_equal_size_across_shards)


class DataParallelMicrobatchPackStream:
    """inner, with its state under "dp_<rank>": so that the states of all ranks can lie in one checkpoint.

    Loading refuses a state of other ranks (StateMismatchError), and one of more ranks than there are: theirs would be
    lost. A stream whose state is equal on every rank (is_elastic) needs none of this.
    """

    is_elastic = False

    def __init__(self, dist_context: DistributedContextLike, inner: MicrobatchPackStream) -> None:
        self._world = data_parallel_world(dist_context)
        self._inner = inner

    def __iter__(self) -> Iterator[MicrobatchPack[Any]]:
        return iter(self._inner)

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":  # asked for before there is one, as by copy.copy()
            raise AttributeError(name)
        return getattr(self._inner, name)

    @property
    def total_steps(self) -> int | None:
        """inner's."""
        return self._inner.total_steps

    def state_dict(self) -> dict[str, Any]:
        """inner's, under this rank's name."""
        return {self._key(self._world.rank): self._inner.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Begin the next iter() where this rank's part of the state says."""
        if not isinstance(state_dict, Mapping):
            raise StateError(f"a state of ranks is a dict, not {type(state_dict).__name__}")
        rank, world_size = self._world
        own, every = self._key(rank), {self._key(number) for number in range(world_size)}
        if own not in state_dict or not (set(state_dict) == {own} or set(state_dict) == every):
            raise StateMismatchError(
                {"data-parallel ranks": (", ".join(map(str, state_dict)) or "none", f"rank {rank} of {world_size}")}
            )
        self._inner.load_state_dict(state_dict[own])

    @staticmethod
    def _key(rank: int) -> str:
        return f"dp_{rank}"
