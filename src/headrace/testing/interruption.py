"""Threads that meet at the worst moment, every time: work that another thread interrupts at each of its lines.

Threads let loose on one object hardly ever meet inside a short function, so a test that waits for it proves nothing.
"""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import FrameType
from typing import Any

__all__ = ["interrupted_at_every_line"]

_LOCKED_S = 0.05  # how long other() is waited for; one that takes longer waits for a lock that work() holds


def interrupted_at_every_line(work: Callable[[], Any], other: Callable[[], Any]) -> Iterator[Any]:
    """What work() returns when another thread does all of other() before its first line of Python, its second, ...

    One result for each line that work() runs, whoever's function it is in; an exception of either is raised. Where
    work() holds a lock that other() needs, other() ends after it.
    """
    with ThreadPoolExecutor(1) as pool:
        line, num_lines = 0, 1
        while line < num_lines:
            num_lines = 0
            interruption: Future[Any] | None = None

            def trace(frame: FrameType, event: str, arg: Any, line: int = line) -> Any:
                nonlocal num_lines, interruption
                if event == "line":
                    if num_lines == line:
                        interruption = pool.submit(other)
                        wait([interruption], _LOCKED_S)
                    num_lines += 1
                return trace

            usual = sys.gettrace()
            sys.settrace(trace)
            try:
                result = work()
            finally:
                sys.settrace(usual)
            if interruption is not None:
                interruption.result()
            yield result
            line += 1
