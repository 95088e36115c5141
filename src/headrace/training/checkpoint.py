"""Checkpoints: whole or absent, and of any number of ranks.

<save_dir>/<run>/.save-40.partial   being written, by torch.distributed.checkpoint; or left when that was broken off
<save_dir>/<run>/save-40            whole: it has this name since all of it was on the disk

Parameters and the optimizer's state are kept tensor by tensor, so that any number of ranks can load them. The data's
state is kept once where it is the same on every rank; else one a rank, for as many ranks only.
"""

import io
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from headrace.errors import RankFailedError, StateMismatchError
from headrace.loading.pack_protocols import MicrobatchPackStream
from headrace.loading.world import World
from headrace.store.files import sync_folder
from headrace.training.agreement import of_rank_0, together

__all__ = ["Checkpoints", "DataState", "TrainedState"]

MOST_NAMES = 5  # of tensors that do not fit


class Checkpoints:
    """The checkpoints of one run. Every rank must call each method, and all see the same folder."""

    def __init__(self, folder: Path, num_to_keep: int | None, world: World) -> None:
        self._folder = folder
        self._num_to_keep = num_to_keep
        self._rank = world.rank
        self._is_main = world.rank == 0
        self._is_alone = world.world_size == 1
        self.newest_step = self._found()

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Write the checkpoint of so many steps; then drop what is more than num_to_keep, the oldest first."""
        partial, whole = self._folder / f".save-{step}.partial", self._folder / f"save-{step}"
        with together(f"making room for {whole}"):
            if self._is_main:
                if whole.exists():
                    raise FileExistsError(
                        f"{whole} is there already: another job saves there; give each run its own name"
                    )
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir(parents=True)
        with self._as_said_by_ranks(f"writing {whole}"):
            state_dict_saver.save(state, checkpoint_id=partial, no_dist=self._is_alone)  # each file is synced
        with together(f"publishing {whole}"):
            if self._is_main:
                sync_folder(str(partial))
                partial.rename(whole)
                sync_folder(str(self._folder))
                self._drop_old()
        self.newest_step = step

    def load(self, state: dict[str, Any]) -> dict[str, Any]:
        """Fill state, which has the names and shapes to look for, from the newest checkpoint."""
        path = self._newest()
        with self._as_said_by_ranks(f"reading {path}"):
            state_dict_loader.load(state, checkpoint_id=path, no_dist=self._is_alone)
        return state

    def check_tensors(self, state: dict[str, Any]) -> None:
        """StateMismatchError where the newest checkpoint has other tensors below the names of state than state has.
        torch would leave out what it does not find a place for."""
        saved = {
            name: tuple(found.size)
            for name, found in FileSystemReader(self._newest()).read_metadata().state_dict_metadata.items()
            if isinstance(found, TensorStorageMetadata) and name.partition(".")[0] in state
        }
        current = {
            name: tuple(tensor.shape)
            for name, tensor in flatten_state_dict(state)[0].items()
            if isinstance(tensor, torch.Tensor)
        }
        differing = sorted(name for name in {*saved, *current} if saved.get(name) != current.get(name))
        shown: dict[str, tuple[object, object]] = {
            name: (saved.get(name, "none"), current.get(name, "none")) for name in differing[:MOST_NAMES]
        }
        if len(differing) > MOST_NAMES:
            shown["tensors in all"] = (len(saved), len(current))
        if shown:
            raise StateMismatchError(shown)

    def _newest(self) -> Path:
        return self._folder / f"save-{self.newest_step}"

    @contextmanager
    def _as_said_by_ranks(self, block: str) -> Iterator[None]:
        """What torch raises on all ranks, with the tracebacks of each, as what this rank said, or RankFailedError."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)  # it was told so
            try:
                yield
            except CheckpointException as error:
                rank = self._rank if self._rank in error.failures else min(error.failures)
                said, _ = error.failures[rank]
                if rank == self._rank:
                    raise said from None
                raise RankFailedError(block, rank, f"{type(said).__name__}: {said}") from None

    def _found(self) -> int | None:
        """The newest checkpoint's step, as the main process sees it. What was never whole is removed."""
        steps: list[int] = []
        with together(f"looking for checkpoints in {self._folder}"):
            if self._is_main:
                self._folder.mkdir(parents=True, exist_ok=True)  # where that fails, now, and not when a step is to save
                if not os.access(self._folder, os.W_OK | os.X_OK):
                    raise PermissionError(f"{self._folder} is not to be written to; give another save_dir")
                for partial in self._folder.glob(".save-*.partial"):
                    shutil.rmtree(partial)
                self._drop_old()  # which a kill may have kept from happening
                steps = self._steps()
        return of_rank_0(max(steps, default=None))

    def _steps(self) -> list[int]:
        names = (path.name.removeprefix("save-") for path in self._folder.glob("save-*"))
        return sorted(int(name) for name in names if name.isdecimal() and str(int(name)) == name)  # not save-007

    def _drop_old(self) -> None:
        for step in self._steps()[: -self._num_to_keep] if self._num_to_keep is not None else ():
            old = self._folder / f"save-{step}"
            shutil.rmtree(old.rename(self._folder / f".save-{step}.partial"))  # never half of it under its whole name


class DataState:
    """The data's part of a checkpoint, and how far the job is."""

    def __init__(self, stream: MicrobatchPackStream, world: World) -> None:
        is_elastic = getattr(stream, "is_elastic", False)
        self._stream = stream
        self._ranks = 0 if is_elastic else world.world_size  # 0: the state is of no rank in particular
        self._name = "of_all" if is_elastic else f"dp_{world.rank}"
        self._state: dict[str, Any] = {}

    def note(self) -> None:
        """Keep the stream's state of now for save()."""
        self._state = self._stream.state_dict()

    def save(self, step: int) -> dict[str, Any]:
        """What note() kept last, behind so many steps."""
        data = {"ranks": self._ranks, self._name: as_bytes(self._state)}
        return {"schedule": {"current_step": step}, "microbatch_pack_stream": data}

    def load(self, checkpoints: Checkpoints) -> int:
        """Set the stream to where the newest checkpoint says; the steps done come back.

        StateMismatchError for a state of another number of ranks, where it is of ranks.
        """
        found = checkpoints.load({"schedule": {"current_step": 0}, "microbatch_pack_stream": {"ranks": 0}})
        saved = found["microbatch_pack_stream"]["ranks"]
        if saved != self._ranks:
            saved_for, current = (f"a state of {n} ranks" if n else "one for any ranks" for n in (saved, self._ranks))
            raise StateMismatchError({"the data stream": (saved_for, current)})
        data = checkpoints.load({"microbatch_pack_stream": {self._name: b""}})["microbatch_pack_stream"]
        self._stream.load_state_dict(from_bytes(data[self._name]))
        return int(found["schedule"]["current_step"])


class TrainedState:
    """What training changes: model, optimizer, and whatever else has a state, which is kept as a whole.

    torch's random generators are kept, too, one a rank. They are only loaded by as many ranks as there were.
    """

    def __init__(self, model: nn.Module, optimizer: Any, others: Mapping[str, Any], world: World) -> None:
        self._model = model
        self._optimizer = optimizer if isinstance(optimizer, torch.optim.Optimizer) else None
        self._others = dict(others) if self._optimizer is not None else {**others, "optimizer": optimizer}
        self._ranks = world.world_size
        self._name = f"dp_{world.rank}"

    def save(self) -> dict[str, Any]:
        """All of it, as torch.distributed.checkpoint takes it."""
        others = {name: as_bytes(other.state_dict()) for name, other in self._others.items()}
        random = {"ranks": self._ranks, self._name: as_bytes(generators())}
        with self._no_step():
            return {**self._tensors(), **others, "random": random}

    def load(self, checkpoints: Checkpoints) -> None:
        """All of the newest checkpoint. StateMismatchError for one of another model or optimizer."""
        with together("getting ready to load"):
            tensors = self._tensors()
            checkpoints.check_tensors(tensors)
        found = checkpoints.load({**tensors, **dict.fromkeys(self._others, b""), "random": {"ranks": 0}})
        if found["random"]["ranks"] == self._ranks:
            found["random"] = checkpoints.load({"random": {self._name: b""}})["random"]
        with together("loading model, optimizer, schedule and task"):
            set_model_state_dict(self._model, found["model"])
            if self._optimizer is not None:
                set_optimizer_state_dict(self._model, self._optimizer, found["optimizer"])
            for name, other in self._others.items():
                other.load_state_dict(from_bytes(found[name]))
            if self._name in found["random"]:
                set_generators(from_bytes(found["random"][self._name]))

    def _tensors(self) -> dict[str, Any]:
        tensors: dict[str, Any] = {"model": get_model_state_dict(self._model)}
        if self._optimizer is not None:
            tensors["optimizer"] = get_optimizer_state_dict(self._model, self._optimizer)
        return tensors

    @contextmanager
    def _no_step(self) -> Iterator[None]:
        """torch lets an optimizer without a state, as SGD's, make a step of nothing to get one: whoever counts steps,
        or hooks into them, would see it. It does not where there is a gradient."""
        groups = () if self._optimizer is None else self._optimizer.param_groups
        one = next((one for group in groups for one in group["params"] if one.requires_grad), None)
        if one is None or one.grad is not None:
            yield
            return
        one.grad = torch.zeros_like(one)
        try:
            yield
        finally:
            one.grad = None


def generators() -> list[torch.Tensor]:
    """The states of torch's random generators, that of the CPU first."""
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_available() else ())]


def set_generators(states: list[torch.Tensor]) -> None:
    """Set what generators() gave; those of CUDA where there are as many devices."""
    on_cpu, *on_cuda = states
    torch.set_rng_state(on_cpu)
    if len(on_cuda) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(on_cuda)


def as_bytes(content: Any) -> bytes:
    """content as torch.save writes it: one leaf, whose shape a checkpoint need not know when it is loaded."""
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def from_bytes(content: bytes) -> Any:
    """What as_bytes() was given. It may be any object, as everything in a checkpoint but the tensors."""
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=False)
