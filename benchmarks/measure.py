"""What every benchmark shares: interleaved rounds, medians, ratios, and what is said about the machine.

Machines are shared and noisy, so an absolute time proves nothing. Each round runs every side once, right after one
another; a ratio is taken within a round, and the median of the rounds is what is reported. Both clocks are read: the
wall's, and the processor time of all threads of this process. Where nothing waits (one thread, a warm page cache) both
say the same on an idle machine; on a busy one only the second leaves the neighbours out, so claims about such work are
checked by it. Claims about waiting (threads, fsync) are checked by the wall clock.
"""

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from operator import attrgetter
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

__all__ = ["ROUNDS", "WINDOW", "Bound", "conclude", "describe_machine", "interleaved", "make_tokens", "ratios"]

ROUNDS = 5
WINDOW = 2048


class Seconds(NamedTuple):
    """What one unit of work took, by both clocks."""

    wall: float
    cpu: float


Side = Callable[[], Seconds]  # runs once


class Bound:
    """A claim: this ratio is at least so much."""

    def __init__(self, claim: str, ratio: float, least: float) -> None:
        self.claim, self.ratio, self.least = claim, ratio, least

    def __str__(self) -> str:
        verdict = "holds" if self.ratio >= self.least else "MISSED"
        return f"{verdict:7} {self.claim}: {self.ratio:.2f} (bound {self.least:.2f})"


def describe_machine(*packages: str) -> str:
    """Processor, cores, versions, load and the command, in a few lines."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    found = []
    for package in ("headrace", "numpy", *packages):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            found.append(f"{package} absent")
    load = os.getloadavg()[0]
    return (
        f"{model}, {os.cpu_count()} cores, load {load:.1f}; Python {platform.python_version()}, {', '.join(found)}\n"
        f"$ python {' '.join(sys.argv)}"
    )


def interleaved(sides: Mapping[str, Side], rounds: int = ROUNDS) -> dict[str, list[Seconds]]:
    """Seconds a unit of each side, one entry a round; one round before that is not counted."""
    seconds: dict[str, list[Seconds]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, side in sides.items():
            taken = side()
            if number:
                seconds[name].append(taken)
    return seconds


def ratios(seconds: Mapping[str, Sequence[Seconds]], yardstick: str, clock: Literal["wall", "cpu"]) -> dict[str, float]:
    """How many times as fast as the yardstick each side is: the median over the rounds of the ratio within a round."""
    of = attrgetter(clock)
    return {
        name: statistics.median(of(base) / of(own) for base, own in zip(seconds[yardstick], taken, strict=True))
        for name, taken in seconds.items()
    }


def print_table(seconds: Mapping[str, Sequence[Seconds]], yardstick: str, unit: str) -> None:
    """One line a side: medians and spread in microseconds, and the ratio to the yardstick, by both clocks."""
    wall, cpu = ratios(seconds, yardstick, "wall"), ratios(seconds, yardstick, "cpu")
    print(
        f"  {'us a ' + unit:40} {'wall':>9} {'min to max':>18} {'ratio':>6} {'cpu':>9} {'min to max':>18} {'ratio':>6}"
    )
    for name, taken in seconds.items():
        cells = []
        for values, ratio in (([one.wall for one in taken], wall[name]), ([one.cpu for one in taken], cpu[name])):
            low, middle, high = (value * 1e6 for value in (min(values), statistics.median(values), max(values)))
            cells.append(f"{middle:9.2f} {f'{low:.2f} to {high:.2f}':>18} {ratio:6.2f}")
        print(f"  {name:40} {' '.join(cells)}")


def conclude(bounds: Sequence[Bound], check: bool) -> int:
    """Print the claims; with check, 1 when one is missed."""
    print()
    for bound in bounds:
        print(f"  {bound}")
    return int(check and any(bound.ratio < bound.least for bound in bounds))


def timed(work: Callable[[], int]) -> Seconds:
    """Seconds a unit, where work returns how many units it did."""
    begin, begin_cpu = time.perf_counter(), time.process_time()
    units = work()
    return Seconds((time.perf_counter() - begin) / units, (time.process_time() - begin_cpu) / units)


def make_tokens(num_windows: int) -> np.ndarray[tuple[int], np.dtype[np.uint16]]:
    """num_windows * WINDOW token ids, the same every time."""
    return np.random.default_rng(1).integers(0, 50_257, num_windows * WINDOW, dtype=np.uint16)
