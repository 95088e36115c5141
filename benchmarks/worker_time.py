"""Processor time of this process and its workers. The standard library only: peers use it, too."""

import multiprocessing
import os
import pathlib

__all__ = ["all_seconds"]


def all_seconds() -> float:
    """Seconds that the threads of this process and of its children, while those live, have computed so far."""
    processes = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]
    return sum(_nanoseconds(pathlib.Path(f"/proc/{process}/task")) for process in processes) / 1e9


def _nanoseconds(threads: pathlib.Path) -> int:
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads.iterdir())
