"""Small streams in every layout of shards, in memory and in folders, and loaders over them for each rank of a job.

Sample i of all streams has the number i, so that an order is a list of integers.
"""

import itertools

import numpy as np
import torch
from torch.utils.data import get_worker_info

from headrace import MDSWriter, MemoryStore, Stream, StreamingDataLoader, StreamingDataset
from headrace.store import LocalStore
from loading import jobs
from loading.samples import together
from streaming_dataset.written import numbers_of

LAYOUTS = ("one shard", "one sample a shard", "skewed")


def shards_of(layout, count):
    """Samples of each shard."""
    if layout == "one shard":
        return [count]
    if layout == "one sample a shard":
        return [1] * count
    return [count // 7, count // 7, count - 2 * (count // 7)]  # 10, 10 and 50 of 70


def sizes_of(num_streams, count):
    """Samples of each stream; of few samples some streams have none."""
    return [count] if num_streams == 1 else [count // 6, count // 2 - count // 6, count - count // 2]


def store_of(content, layout):
    """A store of samples {"number": n} for the numbers, in shards of this layout."""
    store, content = MemoryStore(), list(content)
    with MDSWriter(out=store, columns={"number": "int"}, size_limit=None, hashes=["xxh3_64"]) as out:
        ends = itertools.accumulate(shards_of(layout, len(content)), initial=0)
        for begin, end in itertools.pairwise(ends):
            for number in content[begin:end]:
                out.write({"number": number})
            out.flush_shard()
    return store


def stores_of(num_streams, count, layout):
    """A store for each stream."""
    ends = [0, *itertools.accumulate(sizes_of(num_streams, count))]
    return [store_of(range(*ends_of), layout) for ends_of in itertools.pairwise(ends)]


def dataset_of(stores, **options):
    return StreamingDataset(streams=[Stream(remote=store) for store in stores], **options)


def numbers(folder, count, begin=0, layout="skewed"):
    """A folder of samples {"id": n, "text": ...} for the numbers from begin on."""
    folder.mkdir(parents=True)
    with MDSWriter(columns={"id": "int", "text": "str"}, out=LocalStore(folder, fsync=False)) as writer:
        for size in shards_of(layout, count):
            for number in range(begin, begin + size):
                writer.write({"id": number, "text": f"sample {number}"})
            writer.flush_shard()
            begin += size
    return str(folder)


def streams(folder, counts, **options):
    """A dataset of streams of so many ids each, in folders that are written once."""
    begins = np.cumsum([0, *counts]).tolist()
    places = [folder / f"stream {k} of {counts}" for k in range(len(counts))]
    for place, count, begin in zip(places, counts, begins, strict=False):
        if not place.exists():
            numbers(place, count, begin)
    return StreamingDataset(streams=[Stream(local=str(place)) for place in places], **options)


class Job(jobs.Job):
    """StreamingDataLoaders of all ranks over one dataset: make(rank, world_size) -> dataset."""

    def __init__(self, make, world_size=1, global_batch_size=8, state=None, **options):
        assert global_batch_size % world_size == 0
        size = global_batch_size // world_size
        loaders = [
            StreamingDataLoader(make(rank=rank, world_size=world_size), batch_size=size, **options)
            for rank in range(world_size)
        ]
        super().__init__(loaders, lambda batch: numbers_of([batch]), state)


def loader_of(dataset_of, rank, world_size, batch_size, **options):
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

    def __init__(self, dataset_of, world_size, batch_size, **options):
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
    return together([[rows] for rows in step])[0]


class Transformed(StreamingDataset):
    """A dataset whose samples are tensors, with the worker that made each."""

    def __getitem__(self, at):
        info = get_worker_info()
        return {**super().__getitem__(at), "worker": -1 if info is None else info.id, "random": torch.rand(())}
