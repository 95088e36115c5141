"""Runs in GuideLoom's own interpreter: writes a dataset with it, or reads one, and tells what it saw as JSON.

python guideloom_side.py write DIR        python guideloom_side.py read DIR
"""

import json
import pathlib
import sys

import numpy as np
from cases import CASES, READS, records
from guideloom import StreamDataset, StreamNumpyFormat, StreamStorage
from guideloom.io import MmapIO, PosixPreadIO, SeekIO


def storage_of(root, name, io=None):
    return StreamStorage(pathlib.Path(root) / name, StreamNumpyFormat(np.dtype(CASES[name])), io or SeekIO())


def write(root):
    for name in CASES:
        with storage_of(root, name).sync_writer() as writer:
            for shard, record in records(name):
                writer.append(shard, record)


def read(root):
    seen = {}
    for name in CASES:
        for io in (SeekIO(), PosixPreadIO(), MmapIO()):
            storage = storage_of(root, name, io)
            with storage.sync_reader() as reader:
                lengths = [reader.length(shard) for shard in range(reader.num_shards)]
                reads = [
                    {field: values.tolist() for field, values in reader.read(start, length).items()}
                    for start, length in READS
                ]
            with StreamDataset(storage, 5).sync_reader() as windows:
                items = [{field: values.tolist() for field, values in windows[i].items()} for i in range(len(windows))]
            found = {"lengths": lengths, "reads": reads, "windows": items}
            if seen.setdefault(name, found) != found:
                raise SystemExit(f"{name}: {type(io).__name__} reads otherwise than SeekIO")
    print(json.dumps(seen))


if __name__ == "__main__":
    {"write": write, "read": read}[sys.argv[1]](sys.argv[2])
