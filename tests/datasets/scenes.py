"""Small datasets, and looks at their directories."""

import os
from pathlib import Path

import numpy as np

from headrace.datasets import StreamStorage
from headrace.formats.stream import StreamArrayFormat, StreamNumpyFormat
from headrace.store import LocalStore

U2 = StreamArrayFormat("<u2")


def storage_at(place, **options):
    return StreamStorage(place, U2, **options)


def fast_storage_at(place):
    """Not durable in a power cut, which no test here has."""
    return StreamStorage(LocalStore(place, fsync=False), U2)


def write(storage, shards, *, publish=False, **options):
    """Each shard in two records."""
    with storage.sync_writer(**options) as writer:
        for shard, tokens in enumerate(shards):
            tokens = np.asarray(tokens, np.uint16)
            writer.start(shard)
            writer.append(shard, tokens[: len(tokens) // 2])
            writer.append(shard, tokens[len(tokens) // 2 :])
    if publish:
        storage.publish()
    return storage


def ranges(*lengths, start=0):
    """Consecutive numbers, cut into shards."""
    shards = []
    for length in lengths:
        shards.append(np.arange(start, start + length, dtype=np.uint16))
        start += length
    return shards


def tokens_of(storage):
    with storage.sync_reader() as reader:
        return reader.read(0, reader.total_length).tolist() if reader.total_length else []


def files_of(folder):
    """Relative path -> bytes, of everything below."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def leftovers(folder):
    """Files in flight, attempts and leases."""
    return [
        name
        for name in (str(path.relative_to(folder)) for path in Path(folder).rglob("*"))
        if name.endswith((".tmp", ".lease")) or name.startswith(".headrace/attempts/")
    ]


def open_files_below(folder):
    """How many descriptors of this process are files below the folder."""
    count = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{number}").startswith(f"{folder}/")
        except OSError:
            continue
    return count


class Padded(StreamNumpyFormat):
    """A custom format that keeps the pieces of a window; what it inherits for whole batches must not be used."""

    def __init__(self):
        super().__init__(np.dtype([("a", "u1"), ("b", "<i4")], align=True))

    def unpack(self, stream, shard_lengths, shards):
        return stream["b"].tolist(), shard_lengths.tolist(), shards.tolist()
