"""Which rank of how many this process is, when the caller does not say. The only room that asks the environment."""

import operator
import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch.distributed

from headrace.errors import OrderError

__all__ = ["World", "resolve_world", "world_of"]


class World(NamedTuple):
    """This process's place among those that share each global batch."""

    rank: int
    world_size: int


def resolve_world(rank: int | None = None, world_size: int | None = None) -> World:
    """The given rank and world size, else torch.distributed's, else RANK and WORLD_SIZE, else 0 of 1.

    Both must be given or neither. Explicit numbers win, since a data-parallel group may be smaller than the job.
    ValueError or TypeError for numbers that make no sense, OrderError for half of a pair.
    """
    if (rank is None) != (world_size is None):
        raise OrderError(f"rank={rank} and world_size={world_size}: give both or neither")
    if rank is not None and world_size is not None:
        return _checked(rank, world_size, "arguments")
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return World(torch.distributed.get_rank(), torch.distributed.get_world_size())
    named = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE")}
    if named["RANK"] is None and named["WORLD_SIZE"] is None:
        return World(0, 1)
    if named["RANK"] is None or named["WORLD_SIZE"] is None:
        raise OrderError(
            f"the environment has RANK={named['RANK']} and WORLD_SIZE={named['WORLD_SIZE']}; set both or neither, "
            "or pass rank= and world_size="
        )
    try:
        return _checked(int(named["RANK"]), int(named["WORLD_SIZE"]), "environment")
    except ValueError as error:
        raise ValueError(f"RANK={named['RANK']}, WORLD_SIZE={named['WORLD_SIZE']}: {error}") from None


def world_of(dataset: Any, rank: int | None, world_size: int | None) -> Callable[[], World]:
    """What finds this process's place whenever it is asked: as given, else the dataset's own where it deals its rows to
    ranks by itself (`world()` beside `as_view()`, as StreamingDataset), else as resolve_world() says."""
    own: Callable[[], World] | None = getattr(dataset, "world", None) if hasattr(dataset, "as_view") else None
    if rank is None and world_size is None and own is not None:
        return own
    return partial(resolve_world, rank, world_size)


def _checked(rank: int, world_size: int, source: str) -> World:
    rank, world_size = operator.index(rank), operator.index(world_size)
    if world_size < 1:
        raise ValueError(f"world_size={world_size} ({source}) must be at least 1")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank={rank} ({source}) must be in 0..{world_size - 1}, for world_size={world_size}")
    return World(rank, world_size)
