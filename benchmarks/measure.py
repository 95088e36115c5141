"""What every benchmark shares: interleaved rounds, medians, ratios, and what is said about the machine.

Machines are shared and noisy, so an absolute time proves nothing. Each round runs every side once, right after one
another; a ratio is taken within a round, and the median of the rounds is what is reported. Both clocks are read: the
wall's, and the processor time of all threads of this process. Where nothing waits (one thread, a warm page cache) both
say the same on an idle machine; on a busy one only the second leaves the neighbours out, so claims about such work are
checked by it. Claims about waiting (threads, fsync) are checked by the wall clock.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np

__all__ = [
    "CLOSE_ROUNDS",
    "ROUNDS",
    "WINDOW",
    "Bound",
    "Peer",
    "Seconds",
    "Side",
    "against_fastest",
    "conclude",
    "describe_machine",
    "each_against_fastest",
    "interleaved",
    "make_tokens",
    "print_table",
    "ratios",
    "timed",
]

ROUNDS = 5
CLOSE_ROUNDS = 15
WINDOW = 2048


class Seconds(NamedTuple):
    """What one unit of work took, by both clocks."""

    wall: float
    cpu: float


Side = Callable[[], Seconds]  # runs once


class Peer:
    """A script in another interpreter, kept running: one request a line to it, one answer a line back, both JSON.

    A context manager; leaving it ends the script.
    """

    def __init__(self, python: str, script: str, *arguments: object) -> None:
        command = [python, str(Path(__file__).parent / script), *map(str, arguments)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._process.communicate()

    def ask(self, **request: Any) -> Any:
        """Its answer; SystemExit when it gave none and ended."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None, "both were asked for"
        assert stdout is not None, "both were asked for"
        with suppress(BrokenPipeError):  # then there will be no answer either
            stdin.write(json.dumps(request) + "\n")
            stdin.flush()
        answer = stdout.readline()
        if not answer:
            raise SystemExit(f"the other interpreter ended without an answer to {request}")
        return json.loads(answer)

    def seconds(self, **request: Any) -> Seconds:
        """What a unit of work took there, by its own clocks."""
        return Seconds(*self.ask(**request))


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
    """Seconds a unit of each side, one entry a round; one round before that is not counted.

    Each round another side begins: who comes first may pay for what the last one left behind.
    """
    seconds: dict[str, list[Seconds]] = {name: [] for name in sides}
    names = list(sides)
    for number in range(rounds + 1):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            taken = sides[name]()
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


def against_fastest(
    ours: Mapping[str, Side],
    others: Mapping[str, Side],
    unit: str,
    clock: Literal["wall", "cpu"] = "cpu",
    rounds: int = CLOSE_ROUNDS,
) -> float:
    """How many times as fast as the fastest of the others the first of ours is, by this clock; prints both tables."""
    return each_against_fastest(ours, others, unit, clock, rounds, alone=list(ours)[:1])[0]


def each_against_fastest(
    ours: Mapping[str, Side],
    others: Mapping[str, Side],
    unit: str,
    clock: Literal["wall", "cpu"],
    rounds: int,
    alone: Sequence[str],
) -> list[float]:
    """The same of several of ours, those named by alone.

    All sides take a few turns, which tells the fastest; then it and those of ours alone take many short ones, since a
    neighbour that comes and goes between them is what spoils a ratio.
    """
    seconds = interleaved({**ours, **others}, 3)
    of = attrgetter(clock)
    medians = {name: statistics.median(of(one) for one in seconds[name]) for name in others}
    fastest = min(medians, key=medians.__getitem__)
    print_table(seconds, fastest, unit)
    print(f"  alone with the fastest, {rounds} rounds")
    seconds = interleaved({**{name: ours[name] for name in alone}, fastest: others[fastest]}, rounds)
    print_table(seconds, fastest, unit)
    found = ratios(seconds, fastest, clock)
    return [found[name] for name in alone]


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
