"""Files fetched ahead of their use, in the order in which they will be needed."""

import heapq
import os
import threading
import weakref
from collections.abc import Callable, Mapping

from headrace.store.downloads import NoRoomError

__all__ = ["Prefetcher"]

_THREADS = 4
_THREADS_TOGETHER = 64  # of all in this process that have more than one: each holds files and connections open
_FIRST_RETRY_S, _LONGEST_RETRY_S = 0.05, 1.0  # for room: who lets go of a map tells nobody

AtHand = Callable[[str], memoryview | None]  # what is there already
Fetch = Callable[[str], memoryview]  # NoRoomError where the file cannot be kept

_prefetchers: "weakref.WeakSet[Prefetcher]" = weakref.WeakSet()


class Prefetcher:
    """Threads that fetch what expect() names, as long as what was fetched and not yet used stays within the budget.

    Each fetched file is held, and so pinned, until used() says that the reader has it: what is needed next is not
    evicted for what is needed later. Errors are the reader's to meet: it asks for the file again. Threads end with the
    list, with stop() and with the process. Safe with threads; a forked child has none of it.
    """

    def __init__(self, at_hand: AtHand, fetch: Fetch) -> None:
        self._at_hand, self._fetch = at_hand, fetch
        self._reset()
        _prefetchers.add(self)

    def _reset(self) -> None:
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._sizes_bytes: dict[str, int] = {}  # of what is pending or held
        self._ranks: dict[str, int] = {}  # path -> its place in the order of need
        self._order: list[tuple[int, str]] = []  # a heap of what is pending, and of some that is no longer
        self._pending: set[str] = set()
        self._held: dict[str, memoryview | None] = {}  # path -> its memory; None while it arrives
        self._ahead_bytes = 0
        self._budget_bytes = 0
        self._threads = 0
        self._changes = 0  # counts up whenever there may be more room
        self._full_at = -1  # the count at which there was none
        self._retry_s = _FIRST_RETRY_S
        self._one_by_one = False  # since there was none once: what is needed later must not come first

    def expect(self, sizes_bytes: Mapping[str, int], budget_bytes: int) -> None:
        """Fetch these in order, in place of what was expected before. What is there already is held as well."""
        if self._process != os.getpid():
            self._reset()
        with self._changed:
            for path in [path for path, view in self._held.items() if view is not None and path not in sizes_bytes]:
                self._let_go(path)
            arriving = {path: self._sizes_bytes[path] for path in self._held}
            self._sizes_bytes = dict(sizes_bytes) | arriving
            self._ranks = {path: rank for rank, path in enumerate(sizes_bytes)}
            self._pending = {path for path in sizes_bytes if path not in self._held}
            self._order = [
                (rank, path) for path, rank in self._ranks.items() if path in self._pending
            ]  # sorted: a heap
            self._budget_bytes, self._full_at, self._one_by_one = budget_bytes, -1, False
            if not self._threads:  # one, which calls for more when there is something to fetch
                self._add_thread()
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
            self._there_may_be_room()

    def arrived(self, path: str) -> memoryview | None:
        """The file's memory, once it is there, where a thread here has fetched it or is about to; else None at once.

        Also None when that failed. It spares the reader the wait of one who looks again and again.
        """
        if not self._held or self._process != os.getpid():
            return None
        with self._changed:
            while path in self._held and self._held[path] is None:
                self._changed.wait()
            return self._held.get(path)

    def stop(self) -> None:
        """Expect nothing more. What is arriving is finished and then let go of."""
        if self._process == os.getpid():
            self.expect({}, 0)

    def _let_go(self, path: str) -> None:
        del self._held[path]
        self._ahead_bytes -= self._sizes_bytes[path]

    def _there_may_be_room(self) -> None:
        self._changes += 1
        self._retry_s = _FIRST_RETRY_S
        self._changed.notify_all()

    def _work(self) -> None:
        while (path := self._next()) is not None:
            view, has_room = None, True
            try:
                view = self._fetch(path)
            except NoRoomError:
                has_room = False
            except BaseException:
                # The reader meets it when it comes here, if it still is so. Whatever it is: a reader may be waiting
                # for this thread, and clients of stores raise what is not even an Exception.
                view = None
            with self._changed:
                if path in self._held:  # and not used meanwhile
                    if view is not None and path in self._ranks:
                        self._held[path] = view
                    else:  # it failed, or is expected no more
                        self._let_go(path)
                        if not has_room:
                            self._make_room(path)
                if has_room:
                    self._there_may_be_room()
                self._changed.notify_all()  # a reader may wait for it
            del view

    def _next(self) -> str | None:
        """What to fetch now, counted as ahead; None when there is nothing more, and the thread ends."""
        with self._changed:
            while self._pending:
                _, path = self._order[0]
                size = self._sizes_bytes.get(path, 0)
                if path not in self._pending or size > self._budget_bytes:  # the latter would never fit
                    heapq.heappop(self._order)
                    self._pending.discard(path)
                elif self._full_at == self._changes:
                    if not self._changed.wait(self._retry_s):
                        self._full_at, self._retry_s = -1, min(2 * self._retry_s, _LONGEST_RETRY_S)
                elif self._ahead_bytes + size > self._budget_bytes or (
                    self._one_by_one and None in self._held.values()
                ):
                    self._changed.wait()
                else:
                    # Held before anything later is fetched, so that it is not evicted for that.
                    view = self._found(path)
                    if path not in self._pending:  # all was called off, by the last user of the dataset
                        continue
                    heapq.heappop(self._order)
                    self._pending.remove(path)
                    self._held[path] = view
                    self._ahead_bytes += size
                    if view is None:
                        self._add_thread()
                        return path
            self._threads -= 1
            return None

    def _add_thread(self) -> None:
        if self._pending and self._threads < max(1, min(_THREADS, _THREADS_TOGETHER // len(_prefetchers))):
            self._threads += 1
            threading.Thread(target=self._work, name="headrace prefetch", daemon=True).start()

    def _found(self, path: str) -> memoryview | None:
        try:
            return self._at_hand(path)
        except Exception:
            return None  # fetching it will tell

    def _make_room(self, path: str) -> None:
        """Wait for room for this file: what is needed after it gives way, and what is needed before it will be used."""
        if path not in self._ranks:
            return
        self._one_by_one = True
        rank = self._ranks[path]
        there = [(self._ranks.get(other, -1), other) for other, view in self._held.items() if view is not None]
        last = max(there, default=(-1, ""))
        if last[0] > rank:
            self._let_go(last[1])
            self._expect_again(last[1])
        elif self._held:
            self._full_at = self._changes
        else:
            return  # it is not for us that there is no room
        self._expect_again(path)
        self._changed.notify_all()

    def _expect_again(self, path: str) -> None:
        self._pending.add(path)
        heapq.heappush(self._order, (self._ranks[path], path))
