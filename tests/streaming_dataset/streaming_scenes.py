"""Small streams, and loaders over them for each rank."""

from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from headrace import MDSWriter, Stream, StreamingDataLoader, StreamingDataset
from headrace.store import LocalStore

LAYOUTS = {"one shard": lambda n: [n], "one sample a shard": lambda n: [1] * n, "skewed": lambda n: skewed(n)}


def skewed(count):
    """About the sizes 10, 10 and 50, and what is left."""
    sizes = [min(10, count), min(10, max(0, count - 10))]
    return [size for size in [*sizes, count - sum(sizes)] if size]


def numbers(folder, count, begin=0, layout="skewed"):
    """A dataset of the numbers from begin on."""
    folder.mkdir(parents=True)
    with MDSWriter(columns={"id": "int", "text": "str"}, out=LocalStore(folder, fsync=False)) as writer:
        for size in LAYOUTS[layout](count):
            for number in range(begin, begin + size):
                writer.write({"id": number, "text": f"sample {number}"})
            writer.flush_shard()
            begin += size
    return str(folder)


def streams(folder, counts, **options):
    """Streams of so many numbers, one after the other, and a dataset of them."""
    begins = np.cumsum([0, *counts]).tolist()
    places = [folder / f"stream {k} of {counts}" for k in range(len(counts))]
    for place, count, begin in zip(places, counts, begins, strict=False):
        if not place.exists():
            numbers(place, count, begin)
    return StreamingDataset(streams=[Stream(local=str(place)) for place in places], **options)


def loader_of(dataset_of, rank, world_size, batch_size, **options) -> StreamingDataLoader:
    """The loader of one rank; dataset_of takes options of StreamingDataset."""
    return StreamingDataLoader(dataset_of(rank=rank, world_size=world_size), batch_size, **options)


def ids(loader, steps=None):
    """The ids of the next epoch's batches, or of the first steps of them."""
    got = []
    for batch in loader:
        got.append(batch["id"].tolist())
        if len(got) == steps:
            break
    return got


class Ranks:
    """One loader a rank, read in step."""

    def __init__(self, dataset_of: Any, world_size: int, batch_size: int, **options: Any) -> None:
        self.loaders = [loader_of(dataset_of, rank, world_size, batch_size, **options) for rank in range(world_size)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for loader in self.loaders:
            loader.close()

    def epoch(self, steps=None):
        """The next epoch's batches, or the first steps of them: [step][rank] -> ids."""
        return [list(step) for step in zip(*(ids(loader, steps) for loader in self.loaders), strict=True)]

    def states(self):
        return [loader.state_dict() for loader in self.loaders]

    def load(self, state):
        for loader in self.loaders:
            loader.load_state_dict(state)


def merged(step):
    """The rows of a global batch, in their order: dealt to the ranks one by one."""
    longest = max(map(len, step))
    return [rows[k] for k in range(longest) for rows in step if k < len(rows)]


class Transformed(StreamingDataset):
    """A dataset whose samples are tensors, with the worker that made each."""

    def __getitem__(self, at):
        info = get_worker_info()
        return {**super().__getitem__(at), "worker": -1 if info is None else info.id, "random": torch.rand(())}
