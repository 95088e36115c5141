"""Mixtures: how far counts are from their shares, and what draws cost, in the middle of 10^12 positions.

    python -m benchmarks.mixtures [--check]

Sources are ranges with weights from 1 to 977. `in a row` are 4,096 positions that follow each other, as one process of
one rank reads; `every 64th` are those of one rank of 64; `alone` are positions of which no two are in one block. What
a mixture remembers of the blocks of before does not help: every call is about others. Times are processor time.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np

from benchmarks.measure import Bound, conclude, describe_machine
from headrace import MixedDataset
from headrace.planning.proportions import shares_of
from headrace.planning.splits import Splits

SIZES = (2, 20, 1000, 5000)
MIDDLE = 5 * 10**11
ROUNDS = 7
STRIDES = {"in a row": 1, "every 64th": 64, "alone": 10_000}
AT_MOST_MS = 5.0  # for 4,096 positions in a row, among 1,000 sources


def weights_of(size: int) -> list[int]:
    """Weights without a pattern."""
    return [1 + k * k % 977 for k in range(size)]


def mixture_of(size: int) -> MixedDataset:
    """A mixture of `size` sources with an epoch of 10^12 positions."""
    return MixedDataset({f"source {k}": range(10**6 + k) for k in range(size)}, weights_of(size), epoch_size=10**12)


def milliseconds(work: Callable[[int], object]) -> float:
    """The least processor time of a round."""
    taken = []
    for number in range(ROUNDS):
        begun = time.process_time()
        work(number)
        taken.append(time.process_time() - begun)
    return 1000 * min(taken)


def farthest(size: int) -> float:
    """How far a source's count is from its share, at the worst of 20,000 draws."""
    weights = weights_of(size)
    numbers = np.arange(20_000, dtype=np.int64)
    found = Splits(shares_of(weights)).ranges(numbers, numbers + 1)
    sources = found.sources[np.argsort(found.of)]
    worst = 0.0
    for source in range(size):
        drawn = np.cumsum(sources == source)
        worst = max(worst, float(np.abs(drawn - (numbers + 1) * (weights[source] / sum(weights))).max()))
    return worst


def main() -> int:
    """Measure and print; 1 when --check is given and a bound is missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    print(describe_machine())
    print(f"\n{'sources':>8} {'construct':>10} {'first':>9}", *(f"{name:>11}" for name in STRIDES), f"{'off by':>7}")
    in_a_row = worst = 0.0
    for size in SIZES:
        construct = milliseconds(lambda _, size=size: mixture_of(size))  # type: ignore[misc]
        first = milliseconds(lambda _, size=size: mixture_of(size).draws(np.arange(8) + MIDDLE))  # type: ignore[misc]
        mixed = mixture_of(size)
        mixed.draws(np.arange(8))
        costs = {}
        for name, stride in STRIDES.items():
            span = np.arange(4096, dtype=np.int64) * stride
            costs[name] = milliseconds(
                lambda number, span=span, mixed=mixed: mixed.draws(MIDDLE + number * 10**9 + span)  # type: ignore[misc]
            )
        off = farthest(size)
        worst = max(worst, off)
        in_a_row = costs["in a row"] if size == 1000 else in_a_row
        shown = (f"{cost:8.2f} ms" for cost in costs.values())
        print(f"{size:8,} {construct:7.2f} ms {first - construct:6.2f} ms", *shown, f"{off:7.2f}")
    bounds = [
        Bound(f"4,096 positions in a row take at most {AT_MOST_MS} ms", AT_MOST_MS / in_a_row, 1.0),
        Bound("counts are within 2 of the share", 2 / worst, 1.0),
    ]
    return conclude(bounds, options.check)


if __name__ == "__main__":
    raise SystemExit(main())
