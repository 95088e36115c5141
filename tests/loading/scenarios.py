"""Datasets of every kind for the scenarios of epochs and resumes, and runs of them here or in a process of its own.

At module level, so that worker processes and new interpreters find what is here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace import (
    BufferSortedDataset,
    DocumentNumpyFormat,
    DocumentStorage,
    MDSWriter,
    MixedDataset,
    PackedDataset,
    SampleDataset,
    SelectedDataset,
    ShardedDataset,
    ShardIndexingMode,
    ShuffledDataset,
    StatefulDataLoader,
    StreamNumpyFormat,
    StreamStorage,
    TokenBudgetBatches,
)
from loading import jobs
from loading.samples import Numbers, Slow, flat

LENGTH = 4  # of a window

PROCESSES = {"parallel_method": "process", "multiprocessing_context": "fork"}
WORKERS = {
    "alone": {},
    "threads": {"num_workers": 3, "prefetch": 4},
    "fork": {"num_workers": 2, "prefetch": 4, **PROCESSES},
    "kept": {"num_workers": 2, "prefetch": 4, "persistent_workers": True, **PROCESSES},
}


@dataclass(frozen=True)
class Case:
    """A dataset, and how to know its rows."""

    build: Callable[[Path, int], Any]  # (a folder of its own, about so many samples) -> dataset; again: the same
    ids: Callable[[Any], list]  # of one row, as `as_rows` makes it: the ids of the samples in it
    shuffle: bool = True  # whether the loader shuffles: views order by themselves
    repeats: bool = False  # whether an epoch may have an id twice
    batches: bool = False  # whether a row is a batch


def as_rows(samples):
    """A collate function: the samples as JSON has them."""
    return [plain(sample) for sample in samples]


def plain(sample):
    if isinstance(sample, dict):
        return {name: plain(value) for name, value in sample.items()}
    return sample.tolist() if hasattr(sample, "tolist") else sample


def windows(folder, count):
    storage = StreamStorage(folder, StreamNumpyFormat([("tokens", "<i4")]))
    if not folder.exists():
        tokens = np.arange(count * LENGTH, dtype=np.int32)
        with storage.sync_writer() as writer:
            for shard, part in enumerate(np.split(tokens, [len(tokens) // 7, len(tokens) // 7 + 1])):
                writer.start(shard)
                writer.append(shard, {"tokens": part})
        storage.publish()
    return storage.dataset(LENGTH)


def window_ids(row):
    begin = row["tokens"][0]
    assert row["tokens"] == list(range(begin, begin + LENGTH))
    return [begin // LENGTH]


def documents(folder, count, first=0):
    """Document i is its number, counted from first, 1 to 9 times."""
    storage = DocumentStorage(folder, DocumentNumpyFormat("<i4"))
    if not folder.exists():
        with storage.sync_writer() as writer:
            for shard, numbers in enumerate(np.array_split(np.arange(count), 3)):
                writer.start(shard)
                for number in numbers.tolist():
                    writer.append(shard, np.full(1 + number * 7 % 9, first + number, np.int32))
        storage.publish()
    return storage.dataset()


def samples(folder, count):
    if not folder.exists():
        with MDSWriter(columns={"id": "int"}, out=folder, size_limit=200, hashes=["xxh64"]) as writer:
            for number in range(count):
                writer.write({"id": number})
    return SampleDataset(folder)


def dict_id(row):
    return [row["id"]]


def first_token(row):
    return row[:1]


def half(row):
    """Of a part that has every other document."""
    return [row[0] // 2]


def mixture(folder, count):
    """Documents of three datasets, 6 to 3 to 1; their ids do not overlap."""
    sources = {
        name: documents(folder / name, count, 1000 * number) for number, name in enumerate(["web", "books", "code"])
    }
    return MixedDataset(sources, {"web": 0.6, "books": 0.3, "code": 0.1}, seed=7, epoch_size=count)


def packed(folder, count):
    return PackedDataset(ShuffledDataset(documents(folder, 3 * count), 6), 16, window=50, seed=1)


def packed_mixture(folder, count):
    base = SelectedDataset(mixture(folder, 3 * count), exclude=[3, 4])
    return PackedDataset(base, 16, window=40, strategy="concat")


def packed_ids(row):
    """One id a document, whose tokens must be its own, and all of them unless it is cut."""
    lengths = np.diff(row["cu_seqlens"])[: len(row["document_ids"])].tolist()
    found, begin = [], 0
    for length in lengths:
        tokens = set(row["input_ids"][begin : begin + length])
        assert len(tokens) == 1, row
        found += tokens
        begin += length
    return found


def budget(folder, count):
    base = ShuffledDataset(documents(folder, 3 * count), 6)
    return TokenBudgetBatches(base, 24, 8, window=100, seed=2)


def batch_ids(row):
    assert len(row) * max(map(len, row), default=0) <= 24
    return [document[0] for document in row]


CASES = {
    "numbers": Case(lambda _, count: Numbers(count), dict_id),
    "slow": Case(lambda _, count: Slow(count), dict_id),
    "windows": Case(windows, window_ids),
    "documents": Case(documents, first_token),
    "samples": Case(samples, dict_id),
    "shuffled twice": Case(
        lambda folder, count: ShuffledDataset(ShuffledDataset(documents(folder, count), 3), 4),
        first_token,
        shuffle=False,
    ),
    "pooled": Case(
        lambda folder, count: ShuffledDataset(windows(folder, count), 3, "pooled", pool_items=20, lanes=4),
        window_ids,
        shuffle=False,
    ),
    "sorted": Case(
        lambda folder, count: BufferSortedDataset(ShuffledDataset(documents(folder, count), 2), 30, 5),
        first_token,
        shuffle=False,
    ),
    "selected": Case(
        lambda folder, count: ShuffledDataset(
            SelectedDataset(documents(folder, 2 * count), keep=range(0, 2 * count, 2)), 3
        ),
        half,
        shuffle=False,
    ),
    "sharded": Case(
        lambda folder, count: ShuffledDataset(
            ShardedDataset(documents(folder, 2 * count), 2, 1, ShardIndexingMode.sequential, False), 3
        ),
        half,
        shuffle=False,
    ),
    "mixed": Case(mixture, first_token, shuffle=False, repeats=True),
    "packed": Case(packed, packed_ids, shuffle=False, repeats=True),
    "packed mixture": Case(packed_mixture, packed_ids, shuffle=False, repeats=True),
    "token budget": Case(budget, batch_ids, shuffle=False, repeats=True, batches=True),
}


def loader(case, folder, count, rank=0, world_size=1, *, size=None, workers="alone", **options):
    """A loader of the case's dataset for one rank; size is that of the global batch, None where rows are batches."""
    of = CASES[case]
    options.setdefault("shuffle", of.shuffle)
    if options["shuffle"]:
        options.setdefault("shuffle_seed", 5)
    if not of.batches:
        options["global_batch_size"] = size
    return StatefulDataLoader(
        of.build(Path(folder) / case, count),
        as_rows,
        device="cpu",
        rank=rank,
        world_size=world_size,
        **WORKERS[workers],
        **options,
    )


class Job(jobs.Job):
    """Loaders of all ranks over the case's dataset."""

    def __init__(self, case, folder, count, world_size=1, state=None, **options):
        loaders = [loader(case, folder, count, rank, world_size, **options) for rank in range(world_size)]
        super().__init__(loaders, (lambda batch: [batch]) if CASES[case].batches else list, state)


def run(**task):
    """{case, folder, count, world_size, ..., state or state_file, steps or epochs} -> {batches, state}."""
    return jobs.run(Job, **task)


def in_a_new_process(tasks, timeout_s=100):
    """run() of each of them, in a fresh interpreter."""
    return jobs.in_a_new_process("loading.scenarios", tasks, timeout_s)


def ids(case, batches):
    """The ids of all samples in these batches, in order."""
    return [one for row in flat(batches) for one in CASES[case].ids(row)]
