"""A batch of random windows: `StreamDataset.__getitems__` against `np.take` into a buffer that is used again.

    python -m benchmarks.gather [--check] [--windows N]

One process, warm page cache, windows of 2,048 uint16 tokens in random order over all of the data; every side copies the
same bytes. Bounds are checked by processor time. np.take has what no dataset has: a single array, a known length, and a
buffer to reuse.
"""

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.measure import (
    WINDOW,
    Bound,
    conclude,
    describe_machine,
    interleaved,
    make_tokens,
    print_table,
    ratios,
    timed,
)
from headrace import LocalStore, StreamArrayFormat, StreamDataset, StreamStorage, WindowBatch

YARDSTICK = "np.take into a reused buffer"
LEAST = {(1, 8): 0.6, (8, 8): 0.35, (1, 128): 0.6, (8, 128): 0.6}  # (shards, rows a batch) -> ratio


def write(folder: Path, tokens: np.ndarray, num_shards: int) -> StreamDataset:
    """The tokens in so many shards, published."""
    storage = StreamStorage(LocalStore(folder, fsync=False), StreamArrayFormat("<u2"))
    with storage.sync_writer() as writer:
        for shard, part in enumerate(np.split(tokens.reshape(-1, WINDOW), num_shards)):
            writer.append(shard, part.reshape(-1))
    storage.publish()
    return StreamDataset(StreamStorage(folder), WINDOW)


def take(table: np.ndarray, batches: np.ndarray, buffer: np.ndarray) -> int:
    """Every batch of the table into the same buffer; returns the number of batches."""
    for batch in batches:
        np.take(table, batch, axis=0, out=buffer, mode="clip")
    return len(batches)


def gather(dataset: StreamDataset, batches: np.ndarray) -> int:
    """Every batch of the dataset; returns the number of batches."""
    for batch in batches:
        dataset.__getitems__(batch)
    return len(batches)


def main() -> int:
    """Measure and print; 1 when --check is given and a bound is missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--windows", type=int, default=96_000, help="of 2,048 tokens: 96,000 are 393 MB")
    options = parser.parse_args()
    print(describe_machine())
    bounds = []
    with tempfile.TemporaryDirectory() as folder:
        tokens = make_tokens(options.windows)
        datasets = {shards: write(Path(folder) / str(shards), tokens, shards) for shards in (1, 8)}
        table = np.memmap(Path(folder) / "1" / "0000000.in_band.bin", np.uint16, "r").reshape(-1, WINDOW)
        order = np.random.default_rng(2).permutation(options.windows)
        for dataset in datasets.values():  # also brings every page in
            sample = order[:256]
            batch = dataset.__getitems__(sample)
            assert isinstance(batch, WindowBatch)
            assert np.array_equal(batch.stacked(), table[sample])
        for rows in (8, 128):
            batches = order[: len(order) // rows * rows].reshape(-1, rows)
            buffer = np.empty((rows, WINDOW), np.uint16)

            sides = {
                YARDSTICK: partial(timed, partial(take, table, batches, buffer)),
                "one shard": partial(timed, partial(gather, datasets[1], batches)),
                "eight shards": partial(timed, partial(gather, datasets[8], batches)),
            }
            seconds = interleaved(sides)
            against = ratios(seconds, YARDSTICK, "cpu")
            print(f"\nbatch of {rows} windows of {WINDOW} uint16 tokens, {len(order):,} windows in all")
            print_table(seconds, YARDSTICK, "batch")
            for shards, name in ((1, "one shard"), (8, "eight shards")):
                bounds.append(Bound(f"batch {rows}, {name}", against[name], LEAST[shards, rows]))
    return conclude(bounds, options.check)


if __name__ == "__main__":
    sys.exit(main())
