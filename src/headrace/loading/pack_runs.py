"""One pass over a stream of packs, by the consumer itself or by a thread that is some packs ahead."""

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from headrace.loading.data_metrics import CountTokens, Meter, PackCount, count_pack
from headrace.loading.device import DeviceMover
from headrace.loading.pack_protocols import MicrobatchPack, MicrobatchPackStream

__all__ = ["CLOSE_S", "FAREWELL_S", "PackSource", "Pulled", "Run", "RunAhead"]

CLOSE_S = 30.0  # how long closing waits for a pack that is being pulled
FAREWELL_S = 2.0  # the same for an iterator that nobody closed, and at the interpreter's exit

_log = logging.getLogger("headrace")


class Pulled(NamedTuple):
    """A pack with what belongs to it; pack is None at the end."""

    pack: Sequence[Any] | None
    sent: Any  # for DeviceMover.receive
    counted: PackCount
    state: dict[str, Any]


_NOTHING = PackCount(0, 0, 0, 0)


class PackSource:
    """Pulls packs from the inner stream and sends them off. Used by one thread at a time."""

    def __init__(self, inner: MicrobatchPackStream, mover: DeviceMover, count: CountTokens | None) -> None:
        self._inner = inner
        self._mover = mover
        self._count = count
        self._packs: Iterator[MicrobatchPack[Any]] | None = None

    def begin(self) -> tuple[dict[str, Any], int | None]:
        """The state before the first pack, and the steps left then."""
        self._packs = iter(self._inner)
        return self._inner.state_dict(), getattr(self._inner, "steps_left", None)

    def pull(self) -> Pulled:
        """The next pack on its way to the device."""
        assert self._packs is not None
        try:
            pack = next(self._packs)
        except StopIteration:
            return Pulled(None, None, _NOTHING, self._inner.state_dict())
        state = self._inner.state_dict()  # at once: whatever is pulled later is not in it
        if not isinstance(pack, Sequence):
            raise TypeError(f"a pack is a sequence of microbatches, not a {type(pack).__name__}")
        try:
            counted = count_pack(pack, self._count)
        except StopIteration as stop:
            raise RuntimeError("count_tokens raised StopIteration, which is not the end of the stream") from stop
        if not isinstance(pack, list | tuple):
            pack = list(pack)  # which trees can be made of
        moved, sent = self._mover.send(pack)
        return Pulled(moved, sent, counted, state)

    def at_device(self) -> AbstractContextManager[Any]:
        """What a thread that pulls has to be in."""
        return self._mover.as_current()

    def close(self) -> None:
        """Close the inner iterator, if it can be closed: it may hold threads or workers."""
        packs, self._packs = self._packs, None
        close = getattr(packs, "close", None)
        if close is not None:
            close()


class Run:
    """One pass over the inner stream, by the consumer itself."""

    def __init__(self, source: PackSource, meter: Meter) -> None:
        self.source = source
        self.meter = meter
        self.start: dict[str, Any] | None = None  # the state before the first pack
        self.behind: dict[str, Any] | None = None  # the state behind the last pack handed out
        self.steps_left: int | None = None  # at the beginning
        self.handed_out = 0
        self.why: str | None = None  # it is over; None while it goes on
        self.ended = False  # it is over since the inner stream is
        self.begun = False

    @property
    def state(self) -> dict[str, Any] | None:
        """How far the consumer is; None before the inner stream was begun."""
        return self.start if self.behind is None else self.behind

    def begin(self) -> None:
        """Before the first pack; again is harmless."""
        if not self.begun:
            self.begun = True
            self._start()

    def take(self) -> Pulled:
        """The next pack, or the end."""
        return self.source.pull()

    def end(self, why: str, wait_s: float | None = None) -> None:
        """Nothing is pulled from here on; waits CLOSE_S unless told otherwise. The first reason stays; again only
        waits."""
        if self.why is None:
            self.why = why
            self.meter.end()
        self._stop(CLOSE_S if wait_s is None else wait_s)

    def is_busy(self) -> bool:
        """Whether the inner stream is still in use although this is over."""
        return False

    def _start(self) -> None:
        self.start, self.steps_left = self.source.begin()

    def _stop(self, wait_s: float) -> None:
        self.source.close()


class RunAhead(Run):
    """One pass over the inner stream by a thread, at most depth packs ahead.

    permits and ready are SimpleQueues: their put() may run in a finalizer, wherever the garbage collector happens to.
    """

    def __init__(self, source: PackSource, meter: Meter, depth: int) -> None:
        super().__init__(source, meter)
        self._permits: SimpleQueue[None] = SimpleQueue()  # one a pack that may be pulled
        for _ in range(depth):
            self._permits.put(None)
        self._ready: SimpleQueue[Pulled | BaseException] = SimpleQueue()
        # A daemon, so that one which is stuck in the inner stream does not keep the process from exiting.
        self._thread = threading.Thread(target=self._pull_ahead, name="headrace-packs", daemon=True)

    def take(self) -> Pulled:
        """The next pack that the thread has, or the end, or its error."""
        pulled = self._ready.get()
        if isinstance(pulled, BaseException):
            try:
                raise pulled  # with the traceback of the thread
            finally:
                del pulled  # the traceback holds this frame, which must not hold the error in turn
        self._permits.put(None)
        return pulled

    def is_busy(self) -> bool:
        """Whether the thread is still at a pack."""
        return self.why is not None and self._thread.is_alive()

    def _start(self) -> None:
        self._thread.start()

    def _stop(self, wait_s: float) -> None:
        self._permits.put(None)  # wakes it to see that this is over
        thread = self._thread
        if thread.ident is None or thread is threading.current_thread():  # where the garbage collector happened to run
            return
        thread.join(wait_s)
        if not thread.is_alive():
            with suppress(Empty):  # packs that nobody will ask for would keep their memory on the device
                while True:
                    self._ready.get_nowait()
        elif wait_s >= CLOSE_S:
            _log.warning("the thread that pulls packs did not come back within %.0f s; it is left behind", wait_s)

    def _pull_ahead(self) -> None:
        try:
            with self.source.at_device():
                self._pull_until_told()
        except BaseException as error:
            self._ready.put(error)
        finally:
            try:
                self.source.close()
            except Exception:
                _log.warning("closing the stream of packs failed", exc_info=True)

    def _pull_until_told(self) -> None:
        # The inner stream is begun here, not by the consumer: it may start processes, whose death torch would report
        # by an error in the thread that started them, if that is the main one: anywhere in a step.
        self.start, self.steps_left = self.source.begin()
        while True:
            self._permits.get()
            if self.why is not None:
                return
            pulled = self.source.pull()
            self._ready.put(pulled)
            if pulled.pack is None:
                return
            del pulled  # else the pack would live until the next one is there
