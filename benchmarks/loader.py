"""The whole loader: shuffled batches of 8 windows as int64 tensors, against `np.take` into a reused uint16 buffer.

    python -m benchmarks.loader [--check] [--windows N] [--guideloom PYTHON]

`by hand` is the least that delivers int64: take and cast into two reused buffers, without a loader, order or state. It
hands out the same tensor every time, which no loader may. GuideLoom runs in its own interpreter (`make bench` makes
one) over the same file, with its memory-mapped reader and its shuffle, its best setting: np.stack and a cast a batch;
its ratio is taken against np.take in that same process. What threads do is judged by the wall clock, the rest by
processor time.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gather import write
from benchmarks.measure import (
    ROUNDS,
    WINDOW,
    Bound,
    Seconds,
    conclude,
    describe_machine,
    interleaved,
    make_tokens,
    print_table,
    ratios,
    timed,
)
from headrace import StatefulDataLoader, StreamDataset, stack

BATCH = 8
YARDSTICK = "np.take into a reused buffer"


class SlowWindows:
    """The same windows, a millisecond a batch later: what a slow disk or a costly decode would be."""

    def __init__(self, base: StreamDataset) -> None:
        self.base = base
        self.settings = base.settings

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, index: int) -> Any:
        return self.base[index]

    def __getitems__(self, items: np.ndarray) -> Any:
        """The batch, after a wait that holds no lock."""
        threading.Event().wait(0.001)
        return self.base.__getitems__(items)


def epoch(loader: StatefulDataLoader, limit: int | None = None) -> int:
    """Run through an epoch, or `limit` batches of it; returns the number of batches."""
    count = 0
    for _ in loader:
        count += 1
        if count == limit:
            break
    loader.close()
    return count


def guideloom_ratio(python: str, file: Path) -> list[dict[str, float]]:
    """For each round: seconds a batch of GuideLoom's best setting and of np.take, in its interpreter."""
    script = Path(__file__).parent / "guideloom_reads.py"
    done = subprocess.run([python, str(script), str(file.parent), str(ROUNDS)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"GuideLoom's side failed:\n{done.stderr}")
    rounds: list[dict[str, float]] = json.loads(done.stdout)
    return rounds


def main() -> int:
    """Measure and print; 1 when --check is given and a bound is missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--windows", type=int, default=96_000, help="of 2,048 tokens: 96,000 are 393 MB")
    parser.add_argument("--guideloom", metavar="PYTHON", help="an interpreter that has GuideLoom")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(describe_machine("torch"))
    with tempfile.TemporaryDirectory() as folder:
        tokens = make_tokens(options.windows)
        dataset, in_eight = write(Path(folder) / "1", tokens, 1), write(Path(folder) / "8", tokens, 8)
        file = Path(folder) / "1" / "0000000.in_band.bin"
        table = np.memmap(file, np.uint16, "r").reshape(-1, WINDOW)
        order = np.random.default_rng(2).permutation(options.windows)
        batches = order[: len(order) // BATCH * BATCH].reshape(-1, BATCH)
        raw = np.empty((BATCH, WINDOW), np.uint16)
        delivered = torch.empty((BATCH, WINDOW), dtype=torch.int64)

        def take() -> int:
            for batch in batches:
                np.take(table, batch, axis=0, out=raw, mode="clip")
            return len(batches)

        def by_hand() -> int:
            target = delivered.numpy()
            for batch in batches:
                np.take(table, batch, axis=0, out=raw, mode="clip")
                np.copyto(target, raw)
            return len(batches)

        def loader(data: Any, threads: int, limit: int | None = None) -> Seconds:
            made = StatefulDataLoader(
                data, stack(dtype=torch.int64), device="cpu", local_batch_size=BATCH, shuffle=True, num_workers=threads
            )
            return timed(lambda: epoch(made, limit))

        sides = {
            YARDSTICK: lambda: timed(take),
            "by hand: take and cast, buffers reused": lambda: timed(by_hand),
            "Headrace, no threads": lambda: loader(dataset, 0),
            "Headrace, two threads": lambda: loader(dataset, 2),
            "Headrace, no threads, eight shards": lambda: loader(in_eight, 0),
        }
        seconds = interleaved(sides)
        against = ratios(seconds, YARDSTICK, "cpu")
        print(f"\nbatch of {BATCH} windows of {WINDOW} tokens as int64, {len(order):,} windows, shuffled")
        print_table(seconds, YARDSTICK, "batch")
        threads = ratios(seconds, "Headrace, no threads", "wall")["Headrace, two threads"]

        slow = SlowWindows(dataset)
        slow_seconds = interleaved({"none": lambda: loader(slow, 0, 200), "two": lambda: loader(slow, 2, 200)})
        slow_ratio = ratios(slow_seconds, "none", "wall")
        print("\na batch that waits a millisecond")
        print_table(slow_seconds, "none", "batch")

        bounds = [
            Bound("the whole loader against np.take", against["Headrace, no threads"], 0.4),
            Bound("two threads against none, cheap batches", threads, 0.9),
            Bound("two threads against none, a millisecond a batch", slow_ratio["two"], 1.0),
        ]
        if options.guideloom:
            rounds = guideloom_ratio(options.guideloom, file)
            theirs = sorted(one["take"] / one["guideloom"] for one in rounds)[len(rounds) // 2]
            cost = sorted(one["guideloom"] for one in rounds)[len(rounds) // 2]
            print(f"\nGuideLoom's best setting: {cost * 1e6:.1f} us of cpu a batch, {theirs:.3f} of np.take beside it")
            bounds.append(Bound("times GuideLoom's ratio", against["Headrace, no threads"] / theirs, 4.0))
        else:
            print("\nGuideLoom is left out: no interpreter was given (--guideloom)")
    return conclude(bounds, options.check)


if __name__ == "__main__":
    sys.exit(main())
