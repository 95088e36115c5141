"""What the examples that resume share: data, a model, and a log of what each step saw. All of it fits on a screen."""

import gc
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from headrace import StreamDataset, StreamNumpyFormat, StreamStorage, stack

__all__ = [
    "CHECKPOINT_EVERY",
    "GLOBAL_BATCH_SIZE",
    "SEED",
    "STEPS",
    "Bigram",
    "StepLog",
    "collate",
    "leave_group",
    "same_steps",
    "windows",
]

SEQUENCE_LENGTH = 16
NUM_WINDOWS = 200  # 16 steps an epoch
GLOBAL_BATCH_SIZE = 12  # rows a step for all ranks together: 1, 2, 3, 4, 6 or 12 ranks
STEPS = 40  # two epochs and a half
CHECKPOINT_EVERY = 4  # steps
SEED = 7
collate = stack(dtype=torch.int64)


def windows(directory: Path) -> StreamDataset:
    """Windows of tokens; beside each token the number of its window, so that a step can tell what it saw."""
    storage = StreamStorage(directory, StreamNumpyFormat([("tokens", "<u2"), ("window", "<u2")]))
    if not (directory / "headrace.json").exists():
        places = np.arange(NUM_WINDOWS * SEQUENCE_LENGTH)
        with storage.sync_writer() as writer:
            writer.append(0, {"tokens": places * places % 251, "window": places // SEQUENCE_LENGTH})
        storage.publish()
    return StreamDataset(storage, SEQUENCE_LENGTH)


class Bigram(nn.Module):
    """Predicts a token from the one before it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(SEED)  # the same beginning on every rank
        self.predict = nn.Sequential(nn.Embedding(256, 32), nn.Linear(32, 256))

    def forward(self, tokens: Tensor) -> Tensor:
        """The mean loss of windows of shape (rows, tokens)."""
        scores = self.predict(tokens[:, :-1])
        loss: Tensor = nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        return loss


class StepLog:
    """A line of JSON a step, in a file of this rank; dies of SIGKILL right after step kill_at."""

    def __init__(self, folder: Path, rank: int, world_size: int, kill_at: int | None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"rank-{rank}.jsonl"
        self._place = {"rank": rank, "of": world_size}
        self._kill_at = kill_at

    def write(self, step: int, window: Tensor, loss: Tensor) -> None:
        """What this rank trained on in this step."""
        line = {"step": step, **self._place, "ids": window[:, 0].tolist(), "loss": loss.item()}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        if step == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def same_steps(folder: Path, reference: Path) -> int:
    """How many steps the runs in folder have done as the run of one rank in reference; AssertionError where not.

    Row i of a step is rank i mod ranks', and the loss of a step is the mean over its ranks.
    """
    whole = {line["step"]: line for line in _lines(reference)}
    losses: dict[tuple[int, int], dict[int, float]] = {}
    for line in _lines(folder):  # a step that was trained twice is there twice
        assert line["ids"] == whole[line["step"]]["ids"][line["rank"] :: line["of"]], (line, whole[line["step"]])
        losses.setdefault((line["step"], line["of"]), {})[line["rank"]] = line["loss"]
    done = set()
    for (step, world_size), parts in losses.items():
        if len(parts) == world_size:
            assert abs(sum(parts.values()) / world_size - whole[step]["loss"]) < 1e-5, (step, parts, whole[step])
            done.add(step)
    assert done == set(whole), f"steps {sorted(set(whole) - done)} are missing"
    return len(done)


def _lines(folder: Path) -> list[dict[str, Any]]:
    paths = sorted(folder.glob("rank-*.jsonl"))
    return [json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines()]


def leave_group() -> None:
    """End the process group that a trainer made and left: gloo's threads abort, at times, an interpreter that ends
    before them."""
    gc.collect()  # whatever still holds the group keeps its threads
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
