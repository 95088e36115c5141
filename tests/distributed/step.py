"""One rank of a training job whose state depends on every row it ever saw, exactly: integers, not floats."""

import argparse
import json
import os
import signal
import zlib
from pathlib import Path

import corpora
import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from headrace import StatefulDataLoader, StreamDataset, StreamNumpyFormat, StreamStorage

SEQUENCE_LENGTH = 16
GLOBAL_BATCH_SIZE = 12
CHECKPOINT_EVERY = 5
MODULUS = 2**31 - 1


class Model:
    """A number that remembers the order of all rows, and how many steps made it."""

    def __init__(self):
        self.weight = torch.zeros(1, dtype=torch.int64)
        self.step = 0

    def train_step(self, ids):
        """Every rank's rows, wherever they were dealt, change the weight alike."""
        self.step += 1
        total = ((ids + 1) ** 2 * self.step).sum().reshape(1)
        dist.all_reduce(total)
        self.weight = (self.weight * 31 + total) % MODULUS
        return self.weight.item()

    def state_dict(self):
        return {"weight": self.weight, "step": self.step}

    def load_state_dict(self, state):
        self.weight, self.step = state["weight"], int(state["step"])


def save_json(folder, model, loader):
    """One atomic file, written by rank 0 for all."""
    if dist.get_rank() == 0:
        state = {"weight": model.weight.item(), "step": model.step, "loader": loader.state_dict()}
        unfinished = folder / ".unfinished"
        with unfinished.open("w") as file:
            json.dump(state, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(folder / f"step-{model.step:06d}.json")


def load_json(folder, model, loader):
    paths = sorted(folder.glob("step-*.json"))
    if paths:
        state = json.loads(paths[-1].read_text())
        model.load_state_dict({"weight": torch.tensor([state["weight"]]), "step": state["step"]})
        loader.load_state_dict(state["loader"])


def save_dcp(folder, model, loader):
    """Both as Stateful objects; every rank takes part."""
    dcp.save({"model": model, "loader": loader}, checkpoint_id=folder / f"step-{model.step:06d}")


def load_dcp(folder, model, loader):
    paths = sorted(path.parent for path in folder.glob("step-*/.metadata"))  # the metadata is written last
    if paths:
        dcp.load({"model": model, "loader": loader}, checkpoint_id=paths[-1])


def row_ids(batch):
    """The number of each row, read from its content, which must be whole: id * length, + 1, + 2 ..."""
    rows = batch["tokens"].to(torch.int64)
    ids = rows[:, 0] // SEQUENCE_LENGTH
    assert torch.equal(rows, ids[:, None] * SEQUENCE_LENGTH + torch.arange(SEQUENCE_LENGTH)), "a row has wrong content"
    return ids


def number_of(row):
    """A number for a row: its own, or one that follows from its documents."""
    return row if isinstance(row, int) else zlib.crc32(json.dumps(row).encode()) % 65536


def rows_of(order, batches):
    """What the rows of these batches are, from their content."""
    if order == "windows":
        return [number for batch in batches for number in row_ids(batch).tolist()]
    return [row for batch in batches for row in corpora.documents_of(batch)]


def train(loader, model, options, log):
    save = save_dcp if options.checkpoint == "dcp" else save_json
    micro_batches = corpora.ROWS_A_STEP // dist.get_world_size() if options.order == "batches" else 1
    while model.step < options.steps:  # once an epoch
        batches = []
        for batch in loader:
            batches.append(batch)
            if len(batches) < micro_batches:
                continue
            rows = rows_of(options.order, batches)
            weight = model.train_step(torch.tensor([number_of(row) for row in rows], dtype=torch.int64))
            batches = []
            log.write(json.dumps({"step": model.step, "ids": rows, "weight": weight}) + "\n")
            log.flush()
            if model.step % CHECKPOINT_EVERY == 0:
                save(options.out, model, loader)
            if model.step == options.hold_at and dist.get_rank() == 0:
                signal.pause()  # until the kill; the others wait for this rank in the next step, their loaders at work
            if model.step == options.steps:
                break


def make_loader(options, workers):
    """This rank's loader of windows, packed rows or batches."""
    if options.order != "windows":
        dataset, collate, rows_a_batch = corpora.rows(options.order, options.data)
        return StatefulDataLoader(
            dataset, collate, device="cpu", global_batch_size=rows_a_batch, drop_last=False, **workers
        )
    storage = StreamStorage(options.data, StreamNumpyFormat(np.dtype([("tokens", "<u2")])))
    return StatefulDataLoader(
        StreamDataset(storage, SEQUENCE_LENGTH),
        device="cpu",
        global_batch_size=GLOBAL_BATCH_SIZE,
        shuffle=True,
        shuffle_seed=11,
        drop_last=False,
        **workers,
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--attempt", type=int, required=True)
    parser.add_argument("--hold-at", type=int)
    parser.add_argument("--order", choices=["windows", "packed", "batches"], required=True)
    parser.add_argument("--workers", choices=["none", "thread", "fork", "spawn"], required=True)
    parser.add_argument("--checkpoint", choices=["json", "dcp"], required=True)
    options = parser.parse_args()
    workers = {
        "none": {},
        "thread": {"num_workers": 2, "parallel_method": "thread", "prefetch": 3},
        # New processes every epoch under fork, kept ones under spawn.
        "fork": {"num_workers": 2, "parallel_method": "process", "prefetch": 2, "multiprocessing_context": "fork"},
        "spawn": {
            "num_workers": 2,
            "parallel_method": "process",
            "prefetch": 2,
            "multiprocessing_context": "spawn",
            "persistent_workers": True,
        },
    }[options.workers]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    loader = make_loader(options, workers)
    model = Model()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    path = options.out / f"attempt-{options.attempt}-rank-{rank}-of-{world_size}.jsonl"
    with loader, path.open("w") as log:
        (load_dcp if options.checkpoint == "dcp" else load_json)(options.out, model, loader)
        train(loader, model, options, log)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
