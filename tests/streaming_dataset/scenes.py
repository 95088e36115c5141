"""Datasets of numbers in every layout of shards, and what all ranks and workers of a job get of them.

Sample i of all streams has the number i, so that an order is a list of integers. Ranks are run one after the other in
this process; a worker is pretended by what torch tells its workers.
"""

import contextlib
import itertools
import multiprocessing
import time

import torch.utils.data._utils.worker as torch_worker

from headrace import MDSWriter, MemoryStore, Stream, StreamingDataLoader, StreamingDataset
from loading import jobs
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


def store_of(numbers, layout, store=None):
    """Samples {"number": n} for the numbers, in shards of this layout."""
    store = MemoryStore() if store is None else store
    numbers = iter(numbers)
    rest = list(numbers)
    with MDSWriter(out=store, columns={"number": "int"}, size_limit=None, hashes=["xxh3_64"]) as out:
        for length in shards_of(layout, len(rest)):
            for number in rest[:length]:
                out.write({"number": number})
            rest = rest[length:]
            out.flush_shard()
    return store


def stores_of(num_streams, count, layout):
    """A store for each stream."""
    ends = [0, *itertools.accumulate(sizes_of(num_streams, count))]
    return [store_of(range(*ends_of), layout) for ends_of in itertools.pairwise(ends)]


def dataset_of(stores, **options):
    return StreamingDataset(streams=[Stream(remote=store) for store in stores], **options)


@contextlib.contextmanager
def as_worker(number, num_workers):
    """Within it this process is worker `number` of a DataLoader; None of none is the main process."""
    told = torch_worker._worker_info
    if num_workers:
        torch_worker._worker_info = torch_worker.WorkerInfo(
            id=number, num_workers=num_workers, seed=1000 + number, dataset=None
        )
    try:
        yield
    finally:
        torch_worker._worker_info = told


def rows_of_a_rank(make, num_workers, batch_size, epochs):
    """For each epoch the numbers that a rank's DataLoader collects from its workers in turn; make() is its dataset."""
    turns = []
    for number in range(max(1, num_workers)):
        with as_worker(number, num_workers):
            dataset = make()
            turns.append([batches_of(numbers_of(dataset), batch_size) for _ in range(epochs)])
    return [collected([worker[epoch] for worker in turns]) for epoch in range(epochs)]


def batches_of(rows, batch_size):
    return [rows[begin : begin + batch_size] for begin in range(0, len(rows), batch_size)]


def collected(workers):
    """The rows of one batch after another, from each worker in turn."""
    turns = itertools.zip_longest(*workers)
    batches = [batch for turn in turns for batch in turn]
    while batches and batches[-1] is None:
        batches.pop()
    assert None not in batches, "a worker ended before its turn"
    assert len({len(batch) for batch in batches[:-1]}) <= 1, "a batch within an epoch is short"
    return [row for batch in batches for row in batch]


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


def forked(function, *arguments):
    """A process that calls the function; joined() waits for it."""
    process = multiprocessing.get_context("fork").Process(target=function, args=arguments)
    process.start()
    return process


def joined(processes, within_s=60):
    """All of them have ended well; none outlives this call."""
    deadline_s = time.monotonic() + within_s
    for process in processes:
        process.join(max(0.0, deadline_s - time.monotonic()))
    hung = [process for process in processes if process.is_alive()]
    for process in hung:
        process.kill()
        process.join()
    assert not hung, f"{len(hung)} of {len(processes)} processes hung"
    assert [process.exitcode for process in processes] == [0] * len(processes)


def waited_for(is_so, within_s=20):
    """Whether it becomes so in time."""
    deadline_s = time.monotonic() + within_s
    while not (found := is_so()) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return bool(found)
