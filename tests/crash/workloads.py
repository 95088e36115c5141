"""What is killed: functions of a directory, run in processes that the preloaded library counts."""

import os

import numpy as np

from headrace.datasets import StreamStorage
from headrace.formats.stream import StreamNumpyFormat
from headrace.preparation import prepare

OLD = [list(range(1000, 1010)), list(range(1010, 1021)), list(range(1021, 1030))]  # the older version: three shards
NEW = [list(range(0, 14)), list(range(14, 30))]


def storage_at(folder):
    return StreamStorage(folder, StreamNumpyFormat(np.dtype([("tokens", "<u2")])))


def write_shards(folder, shards, **options):
    with storage_at(folder).sync_writer(**options) as writer:
        for shard, tokens in enumerate(shards):
            half = len(tokens) // 2
            writer.append(shard, {"tokens": tokens[:half]})
            writer.append(shard, {"tokens": tokens[half:]})


def write(folder):
    """A plain writer of two shards."""
    write_shards(folder, NEW)


def write_and_publish(folder):
    """The same, published, as a script does it that may be run again."""
    if not storage_at(folder).is_published():
        write_shards(folder, NEW)
    storage_at(folder).publish()


def overwrite(folder):
    """The same in place of whatever is there."""
    write_shards(folder, NEW, overwrite=True)
    storage_at(folder).publish()


def publish(folder):
    """Publication alone."""
    storage_at(folder).publish(metadata={"made": "here"})


def numbers(split):
    """Of a split (start, stop) two records."""
    start, stop = split
    middle = (start + stop) // 2
    yield {"tokens": np.arange(start, middle)}
    yield {"tokens": np.arange(middle, stop)}


SPLITS = [(tokens[0], tokens[-1] + 1) for tokens in NEW]


def prepare_in_two_processes(folder):
    """prepare() with two spawned workers."""
    prepare(SPLITS, numbers, storage_at(folder), workers=2, progress=False)


def prepare_over_in_two_processes(folder):
    """The same in place of whatever is there."""
    prepare(SPLITS, numbers, storage_at(folder), workers=2, progress=False, overwrite=True)


def prepare_in_one_process(folder):
    """The same in this process: what a second run may well do."""
    prepare(SPLITS, numbers, storage_at(folder), workers=1, progress=False)


def prepare_over_in_one_process(folder):
    """The same, in this process."""
    prepare(SPLITS, numbers, storage_at(folder), workers=1, progress=False, overwrite=True)


def write_old(folder):
    """The older version, published."""
    write_shards(folder, OLD)
    storage_at(folder).publish()


def write_old_foreign(folder):
    """The older version as GuideLoom leaves it: files alone."""
    os.mkdir(folder)
    for shard, tokens in enumerate(OLD):
        with open(f"{folder}/{shard:07d}.in_band.bin", "wb") as file:
            file.write(np.array(tokens, "<u2").tobytes())


def write_old_unpublished(folder):
    """The older version with receipts only, and of two shards."""
    write_shards(folder, OLD[:2])
