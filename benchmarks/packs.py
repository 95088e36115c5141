"""Packs for the training loop: AutoDataProvider, against d9d's own over torchdata's loader.

    python -m benchmarks.packs [--check] [--windows N] [--d9d PYTHON]

A pack is a step's data: 8 microbatches of 4 rows of 2,048 tokens as int64, shuffled, on the CPU. Both stacks are given
the same dataset and the same collate function: windows of a stream (Headrace's StreamDataset, for either), and rows of
a Hugging Face dataset in torch format with the collate function of d9d's documentation. d9d runs in an interpreter of
its own (`make bench` makes one); what both gave in an epoch is compared once.

Without workers nothing waits, and the processor time decides. With two worker processes it is the wall clock; what the
workers' processor time was, neither clock of the consumer says.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from benchmarks.measure import (
    Bound,
    Peer,
    Seconds,
    Side,
    conclude,
    describe_machine,
    interleaved,
    make_tokens,
    print_table,
    ratios,
)
from benchmarks.pack_data import ALONE, DATASETS, MICROBATCHES, ROWS, WINDOW, seconds_a_pack, totals, write
from headrace import AutoDataConfig, AutoDataProvider, InitializeDataProviderContext, stack

PACKS = {"windows": 280, "rows": 60}  # a turn
LEAST = 3.0
TITLES = {"windows": "windows of a stream", "rows": "rows of a Hugging Face dataset"}
OURS, THEIRS = "Headrace", "d9d"


def make(folder: Path, dataset: str, workers: int, collate: Callable[..., Any] | None = None) -> Any:
    """Headrace's stack over the dataset, shuffled."""
    opened, given = DATASETS[dataset]
    config = AutoDataConfig(
        global_batch_size=MICROBATCHES * ROWS, microbatch_size=ROWS, num_workers=workers, shuffle=True
    )
    provider = AutoDataProvider(lambda _: opened(folder), collate or given, config)
    return provider(InitializeDataProviderContext(dist_context=ALONE))


def ours(folder: Path, dataset: str, workers: int, collate: Callable[..., Any] | None = None) -> Seconds:
    """Seconds a pack of Headrace's."""
    return Seconds(*seconds_a_pack(make(folder, dataset, workers, collate), PACKS[dataset]))


def measure(folder: Path, peer: Peer | None, dataset: str, workers: int) -> list[Bound]:
    """The claim about one dataset and number of workers; without d9d only Headrace's times."""
    sides: dict[str, Side] = {OURS: partial(ours, folder, dataset, workers)}
    if dataset == "windows":
        by_stack = partial(ours, folder, dataset, workers, stack(dtype=torch.int64))
        sides["Headrace, its own stack() to collate"] = by_stack
    if peer is not None:
        sides[THEIRS] = partial(peer.seconds, dataset=dataset, workers=workers, packs=PACKS[dataset])
    seconds = interleaved(sides)
    clock: Literal["wall", "cpu"] = "wall" if workers else "cpu"
    how = f"{workers} worker processes" if workers else "no workers"
    print(f"\n{TITLES[dataset]}, {how}: a pack of {MICROBATCHES} x {ROWS} x {WINDOW:,} tokens")
    print_table(seconds, THEIRS if peer is not None else OURS, "pack")
    if peer is None:
        return []
    return [Bound(f"{TITLES[dataset]}, {how}, times d9d", ratios(seconds, THEIRS, clock)[OURS], LEAST)]


def main() -> int:
    """Measure and print; 1 when --check is given and a bound is missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--windows", type=int, default=9_600, help="of 2,048 tokens: 9,600 are 39 MB")
    parser.add_argument("--d9d", metavar="PYTHON", help="an interpreter that has d9d and Headrace")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(describe_machine("torch", "torchdata"))
    bounds: list[Bound] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write(folder, make_tokens(options.windows))
        if not options.d9d:
            print("\nd9d is left out: no interpreter was given (--d9d)")
            for dataset in DATASETS:
                measure(folder, None, dataset, 0)
            return 0
        with Peer(options.d9d, "d9d_packs.py", folder) as peer:
            for dataset in DATASETS:
                theirs = peer.ask(dataset=dataset, workers=0, packs=0)
                assert theirs == totals(make(folder, dataset, 0)), "the two stacks gave different rows"
                for workers in (0, 2):
                    bounds += measure(folder, peer, dataset, workers)
    return conclude(bounds, options.check)


if __name__ == "__main__":
    sys.exit(main())
