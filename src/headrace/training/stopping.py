"""Being asked to stop: SIGTERM, or Ctrl-C once."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Self

__all__ = ["StopRequest"]

GRACE_S = 0.5  # that a request may come behind what else was killed by the same signal


class StopRequest:
    """Notes SIGTERM and SIGINT while it is entered, rather than let them end the process in the middle of a step.

    A second SIGINT is a KeyboardInterrupt as ever. Whoever handled the signals before does so again afterwards. In
    another thread than the main one, which alone may handle signals, nothing is noted.
    """

    def __init__(self) -> None:
        self.name: str | None = None  # of the signal that asked
        self._before: dict[int, Any] = {}
        self._may_handle = False

    def __enter__(self) -> Self:
        self.name = None
        self._may_handle = threading.current_thread() is threading.main_thread()
        for number in (signal.SIGTERM, signal.SIGINT) if self._may_handle else ():
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number in list(self._before):
            self._restore(number)

    def wait_for_late_one(self) -> None:
        """Wait a moment, if there is no request yet. An error may be due to the same signal: it goes to all processes
        of a job, workers included, and not to all at once."""
        if self.name is None:
            threading.Event().wait(GRACE_S)

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """A block that the death of a child process does not break off.

        torch's DataLoader has a handler that raises when a worker died, wherever the process happens to be. The loader
        finds a dead worker without it, too: when it waits for its next batch.
        """
        before = signal.getsignal(signal.SIGCHLD) if self._may_handle else None
        if not callable(before):
            yield
            return
        deaths: list[int] = []
        signal.signal(signal.SIGCHLD, lambda number, frame: deaths.append(number))
        try:
            yield
        finally:
            signal.signal(signal.SIGCHLD, before)
            if deaths:
                with suppress(RuntimeError):  # what torch's would raise
                    before(signal.SIGCHLD, None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.name = signal.Signals(number).name
        if number == signal.SIGINT:
            self._restore(number)

    def _restore(self, number: int) -> None:
        before = self._before.pop(number, None)
        signal.signal(number, signal.SIG_DFL if before is None else before)
