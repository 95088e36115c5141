"""Which share of the global batches this process reads: by a mesh, by numbers, or as every loader finds out."""

import sys
from typing import Any

from torch.utils.data import get_worker_info

from headrace.errors import OptionError, OrderError
from headrace.loading.world import World, resolve_world
from headrace.streaming.epochs import iterating_process

__all__ = ["Ranks", "data_parallel_world"]

_DATA_PARALLEL = ("dp", "dp_replicate", "dp_shard", "data_parallel", "replicate", "shard", "ddp", "fsdp", "data")
_SAME_DATA = {"tp", "cp", "pp", "ep", "sp", "tensor_parallel", "context_parallel", "pipeline_parallel"}


def data_parallel_world(
    rank: int | None, world_size: int | None, device_mesh: Any = None, replication: int | None = None
) -> World:
    """This process's rank among those that read different samples, and how many these are.

    From device_mesh: its place in a mesh of one dimension, unless its name says that all in it read the same (tp, pp,
    cp, ...); or in those dimensions of a larger one whose names say data (dp, dp_replicate, dp_shard, replicate, shard,
    ddp, fsdp, data, data_parallel). Else from rank and world_size, else as resolve_world() says. Of these, replication
    ranks in a row are one: they read the same.

    OptionError for a mesh in which no dimension says data, OrderError where replication does not divide the ranks.
    """
    if device_mesh is not None:
        if rank is not None or world_size is not None:
            raise OptionError("device_mesh", device_mesh, "nothing beside rank and world_size: it has both")
        world = _of_mesh(device_mesh)
    else:
        world = resolve_world(rank, world_size)
    if replication is None or replication == 1:
        return world
    if world.world_size % replication:
        raise OrderError(
            f"replication={replication} does not divide the {world.world_size} ranks: every sample goes to so many "
            "ranks in a row"
        )
    return World(world.rank // replication, world.world_size // replication)


def _of_mesh(mesh: Any) -> World:
    names = tuple(mesh.mesh_dim_names or ())
    if mesh.ndim == 1 and not set(names) & _SAME_DATA:
        return World(int(mesh.get_local_rank()), int(mesh.size()))
    chosen = [number for number, name in enumerate(names) if name in _DATA_PARALLEL]
    if not chosen:
        raise OptionError(
            "device_mesh",
            f"a mesh of {mesh.ndim} dimensions {names or 'without names'}",
            f"one of one dimension, such as mesh['dp'], or one in which some are called {', '.join(_DATA_PARALLEL)}",
        )
    rank, size = 0, 1
    for number in chosen:
        rank = rank * int(mesh.size(number)) + int(mesh.get_local_rank(number))
        size *= int(mesh.size(number))
    return World(rank, size)


class Ranks:
    """This process's place among the ranks that read different samples, looked up when it is needed.

    Workers of a DataLoader, forked or spawned, have that of their loader; pickled elsewhere a mesh becomes its numbers.
    The arguments are data_parallel_world()'s, and rank and world_size that make no sense are refused at once.
    """

    def __init__(self, rank: int | None, world_size: int | None, device_mesh: Any, replication: int | None) -> None:
        self._given = (rank, world_size, device_mesh)
        self._replication = replication
        self._found: tuple[int, World] | None = None  # for the process of this number, and its workers
        self._processes = 0  # among which accelerate deals, where this was pickled
        if device_mesh is not None and not hasattr(device_mesh, "get_local_rank"):
            raise TypeError(f"device_mesh must be a torch.distributed.DeviceMesh, not {type(device_mesh).__name__}")
        if rank is not None or world_size is not None:
            data_parallel_world(*self._given, replication)

    def __getstate__(self) -> dict[str, Any]:
        world = self.world()
        given = self._given
        if given[2] is not None:  # a mesh lives in its own process
            times = self._replication or 1
            given = (world.rank * times, world.world_size * times, None)
        return {**self.__dict__, "_given": given, "_processes": _processes_of_accelerate()}

    def world(self) -> World:
        """The place. Looked up each time, but by workers: the process group may be made after the dataset."""
        process = iterating_process()
        if self._found is None or self._found[0] != process or get_worker_info() is None:
            self._found = process, data_parallel_world(*self._given, self._replication)
        return self._found[1]

    def check_dealt_once(self, *, has_own_loader: bool) -> None:
        """Nothing, or OrderError where accelerate is in use, and would read other rows than are meant.

        has_own_loader tells of a StreamingDataLoader over the dataset.
        """
        processes = max(self._processes, _processes_of_accelerate())
        if processes and has_own_loader:
            raise OrderError(
                "accelerate is in use, and a dataset that StreamingDataLoader reads is iterated by itself, as Trainer "
                "does to pass over the batches that were done: it knows neither the epoch nor the place. Set "
                "ignore_data_skip=True, and give the loader its state by load_state_dict(); look at samples by "
                "dataset[i]"
            )
        if processes > 1 and self._given == (None, None, None):
            raise OrderError(
                f"accelerate (and Trainer by it) deals what a dataset gives to its {processes} processes, and this "
                "dataset deals its rows to them already: most rows would reach nobody. Give it rank=0, world_size=1 "
                "to leave that to accelerate, or use StreamingDataLoader, which accelerate leaves as it is; with a "
                "DataLoader that accelerate does not prepare, say rank=accelerator.process_index, "
                "world_size=accelerator.num_processes"
            )


def _processes_of_accelerate() -> int:
    """Among how many processes accelerate deals what a dataset gives here; 0 where it is not in use."""
    state = getattr(sys.modules.get("accelerate.state"), "PartialState", None)
    return int(getattr(state, "_shared_state", {}).get("num_processes", 0))
