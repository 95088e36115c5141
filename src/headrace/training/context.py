"""This process's place among those of a job, and how they meet. The only room of training that asks the environment.

    DeviceMeshParameters(data_parallel_replicate=4).build()  -->  DistributedContext
    how many processes, and what for                              which of them this is, its device, and its groups

A job of one process has no process group at all.
"""

import atexit
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, Protocol, Self

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from headrace.errors import ClosedError, OptionError, OrderError, RankFailedError
from headrace.loading import World
from headrace.training.agreement import Failed, agree_in, first_failure, no_longer_agree_in
from headrace.training.mesh import DeviceMeshParameters

__all__ = [
    "DeviceMeshParameters",
    "DistributedContext",
    "DistributedContextLike",
    "Launch",
    "data_parallel_world",
]

START_TIMEOUT_S = 10_000.0  # the main process may have a dataset to download and tokenize while the others wait
BATCH_DOMAIN = "batch"


class MeshParametersLike(Protocol):
    """What is asked of a context's mesh_params."""

    @property
    def is_distributed(self) -> bool:
        """Whether there is more than one process."""
        ...


class DistributedContextLike(Protocol):
    """What the data asks of a context: DistributedContext has it, and so has d9d's own."""

    @property
    def mesh_params(self) -> MeshParametersLike:
        """How many processes there are, and what for."""
        ...

    def mesh_for(self, domain: str) -> Any:
        """The mesh of a domain, by which `mesh_for("batch")["dp"]` has size() and get_local_rank()."""
        ...


def data_parallel_world(dist_context: DistributedContextLike) -> World:
    """This process's place among those that share each global batch: rank 0 of 1 where nothing is distributed."""
    if not dist_context.mesh_params.is_distributed:
        return World(0, 1)
    mesh = dist_context.mesh_for(BATCH_DOMAIN)["dp"]
    return World(int(mesh.get_local_rank()), int(mesh.size()))


@dataclass(frozen=True)
class Launch:
    """Which process of a job this is, as its launcher (torchrun) says; one alone where nobody does."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    master_addr: str = "127.0.0.1"

    @classmethod
    def found(cls, environment: Mapping[str, str] | None = None) -> Self:
        """What the environment says, by default this process's. OrderError for half of it, and for what is no place."""
        given = os.environ if environment is None else environment

        def number(name: str, otherwise: int) -> int:
            text = given.get(name, str(otherwise))
            if not text.isdecimal():
                raise OrderError(f"the environment has {name}={text}, which is no number; start the job with torchrun")
            return int(text)

        if ("RANK" in given) != ("WORLD_SIZE" in given):
            raise OrderError(
                f"the environment has RANK={given.get('RANK')} and WORLD_SIZE={given.get('WORLD_SIZE')}; set both or "
                "neither, as torchrun does"
            )
        rank, world_size = number("RANK", 0), number("WORLD_SIZE", 1)
        local_world_size = number("LOCAL_WORLD_SIZE", world_size)
        local_rank = number("LOCAL_RANK", rank % max(1, local_world_size))
        if not (rank < world_size and local_rank < local_world_size <= world_size):
            raise OrderError(
                f"the environment has RANK={rank} of WORLD_SIZE={world_size} and LOCAL_RANK={local_rank} of "
                f"LOCAL_WORLD_SIZE={local_world_size}; each rank must be below its size"
            )
        node_rank = number("GROUP_RANK", rank // local_world_size)
        return cls(rank, world_size, local_rank, local_world_size, node_rank, given.get("MASTER_ADDR", "127.0.0.1"))


class DistributedContext:
    """The processes of a job, seen from one of them. DeviceMeshParameters.build() makes it.

    Ranks 0 to local_world_size - 1 are those of the first node, and so on. Where nothing is distributed there is no
    mesh, and whatever waits for others returns at once.
    """

    def __init__(self, mesh_params: DeviceMeshParameters, log_level: int = logging.INFO) -> None:
        launch = Launch.found()
        if dist.is_available() and dist.is_initialized():
            launch = _of_group(launch)
        if launch.world_size != mesh_params.data_parallel:
            raise OptionError(
                "data_parallel_replicate * data_parallel_shard",
                mesh_params.data_parallel,
                f"{launch.world_size}, the number of processes that were started (torchrun --nproc-per-node)",
            )
        self._mesh_params = mesh_params
        self._launch = launch
        self._device = _device_of(launch.local_rank)
        self._logger, self._handler = _logger_of(launch.rank, log_level)
        self._meshes: dict[str, DeviceMesh] = {}
        self._node_group: dist.ProcessGroup | None = None
        self._agreement_group: dist.ProcessGroup | None = None
        self._owns_group = False
        self._is_closed = False
        self._in_turn: str | None = None
        if mesh_params.is_distributed:
            self._meet()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _meet(self) -> None:
        atexit.register(self._close_at_exit)
        on_cuda = self._device.type == "cuda"
        if on_cuda:
            torch.cuda.set_device(self._device)  # before any collective, else all ranks use the first device
        if not dist.is_initialized():
            backend = "cpu:gloo,cuda:nccl" if on_cuda else "gloo"
            dist.init_process_group(backend, timeout=timedelta(seconds=START_TIMEOUT_S))
            self._owns_group = True
        self._agreement_group = dist.new_group(backend="gloo", timeout=timedelta(seconds=START_TIMEOUT_S))
        agree_in(self._agreement_group)
        replicate, shard = self._mesh_params.data_parallel_replicate, self._mesh_params.data_parallel_shard
        # Axes that are always of one process are left out: each would cost a group a process, made by all of them.
        shapes = {
            BATCH_DOMAIN: {"dp": replicate * shard},
            "regular": {"dp_replicate": replicate, "dp_shard": shard},
            "flat": {"world": self._launch.world_size},
        }
        for domain, shape in shapes.items():
            self._meshes[domain] = init_device_mesh(
                self._device.type, tuple(shape.values()), mesh_dim_names=tuple(shape)
            )
        each, nodes = self._launch.local_world_size, self.num_nodes
        for node in range(nodes if nodes > 1 else 0):
            group = dist.new_group(list(range(node * each, (node + 1) * each)), backend="gloo")
            if node == self._launch.rank // each:
                self._node_group = group

    @property
    def mesh_params(self) -> DeviceMeshParameters:
        """How many processes there are, and what for."""
        return self._mesh_params

    @property
    def rank(self) -> int:
        """This process's number in the job."""
        return self._launch.rank

    @property
    def local_rank(self) -> int:
        """This process's number on its node."""
        return self._launch.local_rank

    @property
    def node_rank(self) -> int:
        """The number of this process's node."""
        return self._launch.node_rank

    @property
    def num_nodes(self) -> int:
        """How many nodes there are."""
        return -(-self._launch.world_size // self._launch.local_world_size)

    @property
    def master_addr(self) -> str:
        """Where the processes meet."""
        return self._launch.master_addr

    @property
    def is_main_process(self) -> bool:
        """Whether this is rank 0."""
        return self._launch.rank == 0

    @property
    def is_local_main_process(self) -> bool:
        """Whether this is the first process of its node."""
        return self._launch.local_rank == 0

    @property
    def current_device(self) -> torch.device:
        """The CUDA device of this process, or the CPU."""
        return self._device

    @property
    def logger(self) -> logging.Logger:
        """This rank's logger, below `headrace`."""
        return self._logger

    def mesh_for(self, domain: str) -> DeviceMesh:
        """The processes as the domain sees them; `mesh_for("batch")["dp"]` are those that share each global batch.

        Domains are "batch" (its axis is dp), "regular" (dp_replicate, dp_shard) and "flat" (world). OptionError for
        another, and for any where nothing is distributed.
        """
        self._check_open()
        if domain not in self._meshes:
            known = " or ".join(map(repr, self._meshes)) or "none: one process has no mesh (see is_distributed)"
            raise OptionError("domain", domain, known)
        return self._meshes[domain]

    def wait_world(self) -> None:
        """Return once every process of the job has come here."""
        self._check_open()
        if self._meshes:
            dist.all_reduce(torch.zeros(1))  # of CPU tensors: a barrier of NCCL would take memory on the device

    def set_timeout(self, timeout_seconds: float) -> None:
        """How long processes wait for one another from here on, before that is an error. All must call it."""
        if not timeout_seconds > 0:
            raise OptionError("timeout_seconds", timeout_seconds, "more than 0")
        self._check_open()
        if not self._meshes:
            return
        self.wait_world()
        timeout = timedelta(seconds=timeout_seconds)
        meshes = (group for mesh in self._meshes.values() for group in mesh.get_all_groups())
        for group in (dist.group.WORLD, self._agreement_group, self._node_group, *meshes):
            if group is not None:
                dist.distributed_c10d._set_pg_timeout(timeout, group)

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """A block that rank 0 goes through first, then the others at once: it makes a file, they find it.

        An error in the block on any rank is raised on every rank: there itself, elsewhere as RankFailedError, which
        names the rank and the error. Every rank must come here, and leaves when all are through.
        """
        with self._first(self.is_main_process, None, "main_process_first()"):
            yield

    @contextmanager
    def local_main_process_first(self) -> Iterator[None]:
        """A block that the first process of each node goes through first, then the others of that node.

        For files that nodes do not share. Errors are raised on every rank of every node, as main_process_first() says.
        """
        with self._first(self.is_local_main_process, self._node_group, "local_main_process_first()"):
            yield

    @contextmanager
    def _first(self, goes_first: bool, group: dist.ProcessGroup | None, block: str) -> Iterator[None]:
        self._check_open()
        if self._in_turn is not None:
            raise RuntimeError(f"{block} within {self._in_turn}: several ranks would wait for each other for ever")
        error: BaseException | None = None
        failed: Failed | None = None
        self._in_turn = block
        try:
            if goes_first or not self._meshes or first_failure(None, group) is None:
                try:
                    yield
                except BaseException as raised:
                    error = raised
            if self._meshes:
                if goes_first:
                    first_failure(error, group)
                failed = first_failure(error)
        finally:
            self._in_turn = None
        if error is not None:
            raise error
        if failed is not None:
            raise RankFailedError(block, *failed)

    def close(self) -> None:
        """End the process group, if it was made here. Twice is harmless."""
        if self._handler is not None:
            self._logger.removeHandler(self._handler)
        self._meshes.clear()
        if self._agreement_group is not None:
            no_longer_agree_in(self._agreement_group)
        self._agreement_group = self._node_group = None
        self._is_closed = True
        owns, self._owns_group = self._owns_group, False
        if owns and dist.is_initialized():
            dist.destroy_process_group()
        atexit.unregister(self._close_at_exit)

    def _close_at_exit(self) -> None:
        """For a program that closes nothing: gloo's threads abort an interpreter that ends before them, at times. With
        NCCL not behind an error: it would wait for ranks that may be gone."""
        if self._device.type == "cpu" or getattr(sys, "last_value", None) is None:
            self.close()

    def _check_open(self) -> None:
        if self._is_closed and self._mesh_params.is_distributed:
            raise ClosedError("the context is closed, and its processes no longer hear each other; build() another one")


def _of_group(launch: Launch) -> Launch:
    """The launch, with the numbers of the process group that there is: it may have been made without a launcher."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if (rank, world_size) == (launch.rank, launch.world_size):
        return launch
    return Launch(rank, world_size, rank, world_size, 0, launch.master_addr)


def _device_of(local_rank: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    number = torch.cuda.device_count()
    if local_rank >= number:
        raise OptionError("LOCAL_RANK", local_rank, f"less than {number}, the CUDA devices of this node: one a process")
    return torch.device("cuda", local_rank)


def _logger_of(rank: int, level: int) -> tuple[logging.Logger, logging.Handler | None]:
    """A rank's logger; and what it writes to, where the program has not set up logging itself."""
    logger = logging.getLogger(f"headrace.rank{rank}")
    logger.setLevel(level)
    if logging.getLogger().handlers or logger.handlers:
        return logger, None
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(f"%(asctime)s [rank {rank}] %(levelname)s %(message)s"))
    logger.addHandler(handler)
    return logger, handler
