"""Packing: how full rows are, and how fast they are planned, against a packer that goes document by document.

    python -m benchmarks.packing [--check] [--documents N] [--capacity N]

Lengths are lognormal (median 403 tokens, sigma 1.2), in a random order. Windows of 65,536 documents are planned one
after another, as PackedDataset plans them. `next fit` puts each document into the open row, or opens another: what
packing while documents are read gives. `best fit by bisect` is best-fit decreasing of the same windows over a sorted
list of rooms, a Python step a document; it counts rows and does not say what is in them. Both cut long documents as
ours do.

Utilisation is tokens over capacity, cut the documents that are in more than one row. Documents a second are planned, by
processor time; nothing is read.
"""

import argparse
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import Bound, Side, conclude, describe_machine, interleaved, timed
from headrace.planning import derive_seed, pack
from headrace.planning.packing import STRATEGIES, Strategy

WINDOW = 65_536
LEAST = {"best_fit": 1e6, "first_fit": 1e6, "concat": 1e6}  # documents a second

_Ints = NDArray[np.int64]


class Found(NamedTuple):
    """What a packer made of all windows."""

    rows: int
    tokens: int
    cut: int


def make_lengths(documents: int) -> _Ints:
    """Lengths in a random order."""
    return np.maximum(1, np.random.default_rng(1).lognormal(6, 1.2, documents)).astype(np.int64)


def windows(lengths: _Ints) -> Iterator[_Ints]:
    """The windows of an epoch; the last one takes the rest."""
    count = max(1, len(lengths) // WINDOW)
    for window in range(count):
        yield lengths[window * WINDOW : None if window == count - 1 else (window + 1) * WINDOW]


def ours(lengths: _Ints, capacity: int, strategy: Strategy) -> Found:
    """As PackedDataset does."""
    found = Found(0, 0, 0)
    for window, here in enumerate(windows(lengths)):
        packed = pack(here, capacity, strategy=strategy, long="split", seed=derive_seed(0, "pack", 0, window))
        found = Found(found.rows + packed.num_rows, found.tokens + packed.tokens, found.cut + packed.split_documents)
    return found


def next_fit(lengths: _Ints, capacity: int) -> Found:
    """Each document into the open row, or into a new one."""
    rows = room = 0
    for length in lengths.tolist():
        whole, rest = divmod(length, capacity)
        rows += whole
        if rest > room:
            rows, room = rows + 1, capacity
        room -= rest
    return Found(rows, int(lengths.sum()), int(np.count_nonzero(lengths > capacity)))


def best_fit_by_bisect(lengths: _Ints, capacity: int) -> Found:
    """Best-fit decreasing, a document at a time."""
    rows = 0
    for here in windows(lengths):
        rows += int((here // capacity).sum())
        rooms: list[int] = []
        for size in np.sort(here % capacity)[::-1].tolist():
            if size == 0:
                break
            place = bisect_left(rooms, size)
            if place == len(rooms):
                rows, room = rows + 1, capacity
            else:
                room = rooms.pop(place)
            insort(rooms, room - size)
    return Found(rows, int(lengths.sum()), int(np.count_nonzero(lengths > capacity)))


def main() -> int:
    """Measure and print; 1 when --check is given and a bound is missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--documents", type=int, default=5 * WINDOW)
    parser.add_argument("--capacity", type=int, default=2048)
    options = parser.parse_args()
    print(describe_machine())
    lengths, capacity = make_lengths(options.documents), options.capacity

    def packer(strategy: Strategy) -> Callable[[], Found]:
        return lambda: ours(lengths, capacity, strategy)

    packers: dict[str, Callable[[], Found]] = {
        **{str(strategy): packer(strategy) for strategy in STRATEGIES},
        "next fit": lambda: next_fit(lengths, capacity),
        "best fit by bisect": lambda: best_fit_by_bisect(lengths, capacity),
    }

    def side(make: Callable[[], Found]) -> Side:
        def work() -> int:
            make()
            return len(lengths)

        return lambda: timed(work)

    seconds = interleaved({name: side(make) for name, make in packers.items()})
    rates = {name: 1 / sorted(one.cpu for one in taken)[len(taken) // 2] for name, taken in seconds.items()}
    print(f"\n{len(lengths):,} documents, {int(lengths.sum()):,} tokens, rows of {capacity:,}, windows of {WINDOW:,}")
    print(f"  {'':20} {'rows':>9} {'utilised':>9} {'cut':>7} {'documents/s':>12}")
    for name, make in packers.items():
        found = make()
        used = found.tokens / (found.rows * capacity)
        print(f"  {name:20} {found.rows:9,} {used:9.3%} {found.cut / len(lengths):7.1%} {rates[name]:12,.0f}")
    bounds = [
        Bound(f"{name}: million documents planned a second", rates[name] / least, 1.0) for name, least in LEAST.items()
    ]
    return conclude(bounds, options.check)


if __name__ == "__main__":
    raise SystemExit(main())
