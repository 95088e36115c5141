"""Small map-style datasets, and what a loader gave out of them. At module level, so that workers can unpickle them."""

import itertools
import multiprocessing.util
import os
import signal
import threading
import time

import numpy as np
import torch

from headrace import StatefulDataLoader

WORKERS = {
    "alone": {},
    "ahead": {"prefetch": 3},
    "threads": {"num_workers": 3, "prefetch": 4},
    "fork": {"num_workers": 2, "parallel_method": "process", "multiprocessing_context": "fork"},
}
IN_PROCESS = ["alone", "ahead", "threads"]


class Numbers:
    """Sample i is {"id": i}."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if not 0 <= index < self.length:
            raise IndexError(index)
        return {"id": index}


class Slow(Numbers):
    """A batch takes long enough that threads make it."""

    def __getitems__(self, items):
        threading.Event().wait(0.0005 * (1 + items[0] % 3))
        return [self[item] for item in items]


class Counting(Slow):
    """Remembers which batches were read, and by which threads."""

    def __init__(self, length):
        super().__init__(length)
        self.read = []
        self.threads = set()

    def __getitems__(self, items):
        self.threads.add(threading.current_thread().name)
        self.read.append(list(items))
        return super().__getitems__(items)


class TwoPartError(Exception):
    """Cannot be made anew from its message, as pickle tries to."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


class Broken(Numbers):
    """Sample `at` does something else."""

    def __init__(self, length, at, how, mark=None):
        super().__init__(length)
        self.at = at
        self.how = how
        self.mark = mark  # a file: once it is there, all is well

    def __getitem__(self, index):
        if index == self.at and not (self.mark and os.path.exists(self.mark)):
            misbehave(self.how)
        return super().__getitem__(index)


class CrashesAtExit(Broken):
    """Its worker process crashes at its end, as the C++ threads of a library may make it."""

    def __getitems__(self, items):
        multiprocessing.util.Finalize(None, os.kill, (os.getpid(), signal.SIGKILL), exitpriority=0)
        return [self[item] for item in items]


def misbehave(how):
    if how == "value":
        raise ValueError("bad sample")
    if how == "two-part":
        raise TwoPartError("left", "right")
    if how == "unpicklable":

        class LocalError(Exception):
            pass

        error = LocalError("made here")
        error.lock = threading.Lock()
        raise error
    if how == "stop":
        raise StopIteration
    if how == "exit":
        raise SystemExit(3)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "sleep":
        time.sleep(3600)
    raise AssertionError(how)


class Arrays:
    """Samples with an array, a number and a text each."""

    def __init__(self, length=10):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return {"tokens": np.full(5, index, np.uint16), "weight": index / 2, "name": f"sample {index}"}


class Tensors(torch.utils.data.Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.tensor([index, index * 2], dtype=torch.int32)


class Listed:
    """A dataset with a fingerprint, as Hugging Face's have."""

    _fingerprint = "1234abcd"

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return index

    def __getitems__(self, items):
        assert type(items) is list
        assert all(type(item) is int for item in items)
        return [self[item] for item in items]


def make(dataset=None, collate_fn=None, *, rank=0, world_size=1, **options):
    """A loader that asks neither the environment nor torch.distributed."""
    if dataset is None or isinstance(dataset, int):
        dataset = Numbers(20 if dataset is None else dataset)
    return StatefulDataLoader(dataset, collate_fn, device="cpu", rank=rank, world_size=world_size, **options)


def numbers(batch):
    """The ids in a batch."""
    return (batch["id"] if isinstance(batch, dict) else batch).tolist()


def epoch(loader):
    """The ids of each batch of the next epoch (or of what is left of it)."""
    return [numbers(batch) for batch in loader]


def take(loader, steps):
    """The ids of the next batches, however many epochs they are in; the state says how far it got."""
    got = []
    while len(got) < steps:
        for batch in loader:
            got.append(numbers(batch))
            if len(got) == steps:
                break
    return got


def drain(batches, got):
    """Append the ids of each batch to got, which keeps them when it ends in an error."""
    for batch in batches:
        got.append(numbers(batch))


def flat(batches):
    """The ids of all batches in one list."""
    return list(itertools.chain.from_iterable(batches))


def together(batches_of_ranks):
    """Global batches out of each rank's: row i is rank i mod world size's."""
    steps = []
    for parts in zip(*batches_of_ranks, strict=True):
        rows = [None] * sum(map(len, parts))
        for rank, part in enumerate(parts):
            rows[rank :: len(parts)] = part
        steps.append(rows)
    return steps


def loader_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("headrace-loader")]


def hurried(seconds, function):
    """function's result and how long it took; AssertionError when it took longer than that."""
    begin = time.perf_counter()
    result = function()
    took = time.perf_counter() - begin
    assert took < seconds, f"took {took:.1f} s"
    return result
