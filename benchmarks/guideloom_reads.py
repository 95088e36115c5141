"""Runs in GuideLoom's own interpreter: its best setting and np.take over the same file, in turn; prints JSON.

python guideloom_reads.py DIRECTORY ROUNDS
"""

import json
import pathlib
import sys
import time

import numpy as np
from guideloom import StreamDataset, StreamStorage
from guideloom.io import MmapIO
from guideloom.shuffle import FeistelShuffler

WINDOW, BATCH = 2048, 8


class Plain:
    """Elements as they are."""

    stream_dtype = np.dtype("<u2")

    def pack(self, data: np.ndarray) -> np.ndarray:
        return data

    def unpack(self, stream: np.ndarray, shard_lengths: np.ndarray, shards: np.ndarray) -> np.ndarray:
        return stream


def main(directory: str, rounds: int) -> None:
    table = np.memmap(pathlib.Path(directory) / "0000000.in_band.bin", np.uint16, "r").reshape(-1, WINDOW)
    order = np.random.default_rng(2).permutation(len(table))
    batches = order[: len(order) // BATCH * BATCH].reshape(-1, BATCH)
    buffer = np.empty((BATCH, WINDOW), np.uint16)
    storage = StreamStorage(pathlib.Path(directory), Plain(), MmapIO())
    found = []
    with StreamDataset(storage, WINDOW).sync_reader() as windows:
        shuffle = FeistelShuffler.from_seed(len(table), 0).shuffle
        shuffle(0)  # compiles
        for number in range(rounds + 1):
            begin = time.process_time()
            for batch in batches:
                np.take(table, batch, axis=0, out=buffer, mode="clip")
            middle = time.process_time()
            for start in range(0, len(batches) * BATCH, BATCH):
                np.stack([windows[shuffle(place)] for place in range(start, start + BATCH)]).astype(np.int64)
            end = time.process_time()
            if number:
                found.append({"take": (middle - begin) / len(batches), "guideloom": (end - middle) / len(batches)})
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
