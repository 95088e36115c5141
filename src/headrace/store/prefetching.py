"""Files fetched ahead of their use, in the order in which they will be needed."""

import os
import threading
from collections import deque
from collections.abc import Callable, Mapping

from headrace.errors import HeadraceError
from headrace.store.downloads import NoRoomError

__all__ = ["Prefetcher"]

_THREADS = 4

Fetch = Callable[[str], memoryview]  # NoRoomError where the file cannot be kept


class Prefetcher:
    """Threads that fetch what expect() names, as long as what was fetched and not yet used stays within the budget.

    Each fetched file is held, and so pinned, until used() says that the reader has it: what is needed next is not
    evicted for what is needed later. Errors are the reader's to meet: it asks for the file again. Threads end with the
    list, with stop() and with the process. Safe with threads; a forked child has none of it.
    """

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._sizes_bytes: dict[str, int] = {}  # of what is pending or held
        self._pending: deque[str] = deque()
        self._held: dict[str, memoryview | None] = {}  # path -> its memory; None while it arrives
        self._ahead_bytes = 0
        self._budget_bytes = 0
        self._threads = 0
        self._uses = 0

    def expect(self, sizes_bytes: Mapping[str, int], budget_bytes: int) -> None:
        """Fetch these in order, in place of what was expected before. What is there already is held as well."""
        if self._process != os.getpid():
            self._reset()
        with self._changed:
            for path in [path for path, view in self._held.items() if view is not None and path not in sizes_bytes]:
                self._let_go(path)
            arriving = {path: self._sizes_bytes[path] for path in self._held}
            self._sizes_bytes = dict(sizes_bytes) | arriving
            self._pending = deque(path for path in sizes_bytes if path not in self._held)
            self._budget_bytes = budget_bytes
            for _ in range(min(_THREADS, len(self._pending)) - self._threads):
                self._threads += 1
                threading.Thread(target=self._work, name="headrace prefetch", daemon=True).start()
            self._changed.notify_all()

    def used(self, path: str) -> None:
        """The reader has the file: it need not be held, nor fetched."""
        if not (self._held or self._pending) or self._process != os.getpid():
            return
        with self._changed:
            if path in self._held:
                self._let_go(path)
            elif path in self._pending:
                self._pending.remove(path)
            else:
                return
            self._uses += 1
            self._changed.notify_all()

    def stop(self) -> None:
        """Expect nothing more. What is arriving is finished and then let go of."""
        if self._process == os.getpid():
            self.expect({}, 0)

    def _let_go(self, path: str) -> None:
        del self._held[path]
        self._ahead_bytes -= self._sizes_bytes[path]

    def _work(self) -> None:
        while (path := self._next()) is not None:
            view = None
            has_room = True
            try:
                view = self._fetch(path)
            except NoRoomError:
                has_room = False
            except (HeadraceError, OSError):
                pass  # the reader meets it when it comes here, if it still is so
            with self._changed:
                if path not in self._held:  # used meanwhile
                    continue
                if view is not None:
                    self._held[path] = view
                    continue
                self._let_go(path)
                others = any(held is not None for held in self._held.values())
                if not has_room and others:  # what is held goes one day, and then there is room
                    self._pending.appendleft(path)
                    uses = self._uses
                    self._changed.wait_for(lambda: self._uses != uses or path not in self._pending)  # noqa: B023

    def _next(self) -> str | None:
        """What to fetch now, counted as ahead; None when there is nothing more, and the thread ends."""
        with self._changed:
            while self._pending:
                path = self._pending[0]
                size = self._sizes_bytes[path]
                if size > self._budget_bytes:
                    self._pending.popleft()  # it would never fit
                elif self._ahead_bytes + size > self._budget_bytes:
                    self._changed.wait()
                else:
                    self._pending.popleft()
                    self._held[path] = None
                    self._ahead_bytes += size
                    return path
            self._threads -= 1
            return None
