"""What both sides of a comparison do, so that neither is measured in another way than the other.

The standard library only: scripts that run in a peer's own interpreter import this from their folder.
"""

import json
import multiprocessing
import os
import pathlib
import sys
import time
import zlib
from collections.abc import Callable, Iterable
from typing import Any, TextIO, TypeVar

__all__ = ["batch_seconds", "checksum", "growing", "serve", "status_bytes"]

Made = TypeVar("Made")


def serve(answers: object, file: TextIO = sys.stdout) -> None:
    """Answer each request on standard input, a line of JSON, with a line of JSON; "do" names the method."""
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(getattr(answers, request.pop("do"))(**request)), file=file, flush=True)


def batch_seconds(loader: Iterable[Any], column: str, skipped: int, batch_count: int) -> list[float]:
    """Seconds a sample of so many batches, once the first ones are there; then processor time of all processes."""
    batches = iter(loader)
    for _ in range(skipped):
        next(batches)
    begin, begin_cpu, count = time.perf_counter(), _all_seconds(), 0
    for _ in range(batch_count):
        count += len(next(batches)[column])
    return [(time.perf_counter() - begin) / count, (_all_seconds() - begin_cpu) / count]


def checksum(values: Iterable[Any]) -> list[int]:
    """How many texts or arrays there are, and a sum over them that no order changes."""
    sums = [zlib.crc32(value.encode() if isinstance(value, str) else value.tobytes()) for value in values]
    return [len(sums), sum(sums)]


def growing(work: Callable[[], Made]) -> tuple[Made, int]:
    """What work returned, and the bytes by which this process grew at most meanwhile."""
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the highest mark starts anew
    before = status_bytes("VmHWM")
    made = work()
    return made, status_bytes("VmHWM") - before


def status_bytes(name: str) -> int:
    """A line of what the system says of this process."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))


def _all_seconds() -> float:
    """Seconds that the threads of this process and of its children, while those live, have computed so far."""
    processes = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]
    return sum(_nanoseconds(pathlib.Path(f"/proc/{process}/task")) for process in processes) / 1e9


def _nanoseconds(threads: pathlib.Path) -> int:
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads.iterdir())
