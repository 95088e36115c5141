"""Train a small GPT on token windows, and stop or go on anywhere, with any number of ranks.

    torchrun --standalone --nproc-per-node 2 -m examples.demo.train --data TOKENS --out RUN --steps 60

All there is to the data is in `numbered_windows` and the loader in `main`. Which rows a step trains on follows from the
data, the seed and the global batch size, never from the number of ranks: a checkpoint of 2 ranks goes on with 1 or 4.
"""

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from examples.demo.model import GPT, Shape
from headrace import StatefulDataLoader, StreamDataset, StreamStorage

__all__ = ["GLOBAL_BATCH_SIZE", "SEED", "NumberedWindows", "numbered_windows"]

GLOBAL_BATCH_SIZE = 12  # rows of 128 tokens, a step; 1, 2, 3, 4, 6 or 12 ranks divide it
CHECKPOINT_EVERY = 10  # steps
WARMUP_STEPS = 5
LEARNING_RATE = 1e-3
SEED = 7
SHAPE = Shape()
Sample = Mapping[str, Any]


class NumberedWindows:
    """A map-style dataset whose samples carry their own number, so that a training step can write down what it saw."""

    def __init__(self, windows: StreamDataset) -> None:
        self.windows = windows

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, item: int) -> Sample:
        return {"id": item, "tokens": self.windows[item]["tokens"]}

    def __getitems__(self, items: Sequence[int]) -> list[Sample]:
        """The samples of a whole batch, in order: the windows are gathered at once."""
        windows = self.windows.__getitems__(items)
        return [{"id": int(item), "tokens": window["tokens"]} for item, window in zip(items, windows, strict=True)]

    @property
    def settings(self) -> Mapping[str, Any]:
        """What identifies the data: a checkpoint is refused where this differs."""
        return self.windows.settings


def numbered_windows(directory: Path) -> NumberedWindows:
    """Windows of 128 tokens and the one that follows them, the last target."""
    return NumberedWindows(StreamDataset(StreamStorage(directory), sequence_length=SHAPE.context, extra=1))


class Batch(NamedTuple):
    """This rank's rows of one step."""

    ids: Tensor  # int64 (rows,)
    windows: Tensor  # int64 (rows, context + 1)


def collate(samples: Sequence[Sample]) -> Batch:
    """The samples as tensors, cast once a batch."""
    windows = np.stack([sample["tokens"] for sample in samples]).astype(np.int64)
    return Batch(torch.tensor([sample["id"] for sample in samples]), torch.from_numpy(windows))


def train_step(model: GPT, optimizer: torch.optim.Optimizer, step: int, batch: Batch) -> float:
    """The mean loss of the global batch, before its update; equal on every rank."""
    for group in optimizer.param_groups:
        group["lr"] = LEARNING_RATE * min(1.0, step / WARMUP_STEPS)
    parameters = list(model.parameters())
    # Row by row, and added up in float64: rounded to float32, such a sum is the same however the rows were dealt to
    # ranks. Microbatches of several rows would be faster and, after 60 steps, agree to about four digits.
    total = torch.zeros(1 + sum(parameter.numel() for parameter in parameters), dtype=torch.float64)
    for window in batch.windows.unbind():
        loss: Tensor = model(window[None])
        gradients = torch.autograd.grad(loss, parameters)
        total += torch.cat([loss.detach()[None], *map(torch.ravel, gradients)])
    dist.all_reduce(total)  # the loss and all gradients in one message
    total /= GLOBAL_BATCH_SIZE * SHAPE.context  # by the global count: this rank's share of the rows plays no part
    start = 1
    for parameter in parameters:
        parameter.grad = total[start : start + parameter.numel()].view_as(parameter).float()
        start += parameter.numel()
    nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    return float(total[0])


def save_checkpoint(folder: Path, step: int, state: Mapping[str, Any]) -> None:
    """Write the checkpoint so that it is whole or absent, whenever this process dies."""
    unfinished = folder / f".step-{step:06d}.tmp"
    with unfinished.open("wb") as file:
        torch.save(dict(state), file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(folder / f"step-{step:06d}.pt")


def newest_checkpoint(folder: Path) -> dict[str, Any] | None:
    """The content of the latest whole checkpoint; None in a run that starts."""
    paths = sorted(folder.glob("step-*.pt"))
    content: dict[str, Any] | None = torch.load(paths[-1], weights_only=True) if paths else None
    return content


def record(file: TextIO, step: int, batch: Batch, loss: float) -> None:
    """Append what this rank just trained on; one write a line, so that a kill leaves whole lines."""
    file.write(json.dumps({"step": step, "ids": batch.ids.tolist(), "loss": loss}) + "\n")
    file.flush()


def train(loader: StatefulDataLoader, out: Path, log: TextIO, steps: int) -> None:
    """Train from the newest checkpoint in out, or from nothing, until `steps` steps are done in all."""
    torch.manual_seed(SEED)  # the same first weights on every rank
    model = GPT(SHAPE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.1)
    step = 0
    if saved := newest_checkpoint(out):
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        step = saved["step"]
    while step < steps:  # once an epoch
        for batch in loader:
            step += 1
            loss = train_step(model, optimizer, step, batch)
            record(log, step, batch, loss)
            if step % CHECKPOINT_EVERY == 0 and dist.get_rank() == 0:
                state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
                save_checkpoint(out, step, state | {"loader": loader.state_dict()})
            if step == steps:
                break


def main() -> None:
    """Entry point of one rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--attempt", type=int, default=1, help="names this launch's records")
    options = parser.parse_args()
    torch.set_num_threads(1)  # as many processes as cores or more
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("gloo")
    options.out.mkdir(parents=True, exist_ok=True)
    records = options.out / f"attempt-{options.attempt}-rank-{dist.get_rank()}-of-{dist.get_world_size()}.jsonl"
    # Rank and world size come from the process group.
    loader = StatefulDataLoader(
        numbered_windows(options.data),
        collate,
        device="cpu",
        global_batch_size=GLOBAL_BATCH_SIZE,
        shuffle=True,
        shuffle_seed=SEED,
        num_workers=1,
        prefetch=4,
    )
    with loader, records.open("a", encoding="utf-8") as log:
        train(loader, options.out, log, options.steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
