"""Packs to the device: when they are asked for, or some packs ahead by a thread.

    inner stream --pull, state, count--> copy on a side stream --event--> queue of n --> hand-over: wait for the event
    \\________________ one thread ________________________________/                     \\__ the loop's thread ________/

A pack and the state behind it travel together, so `state_dict()` is that of the last pack handed out, however far the
thread is. On the CPU nothing is copied; all else is the same.
"""

import logging
import threading
import weakref
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from time import perf_counter
from types import TracebackType
from typing import Any, NamedTuple, Self

import torch

from headrace.errors import ClosedError
from headrace.loading.data_metrics import CountTokens, DataMetrics, Meter, PackCount, count_pack
from headrace.loading.device_copies import Copies, copies_to
from headrace.loading.pack_protocols import MicrobatchPack, MicrobatchPackStream
from headrace.views.options import whole_number

__all__ = ["DevicePackStream", "build_device_pack_stream"]

_CLOSE_S = 30.0  # how long closing waits for a pack that is being pulled
_FAREWELL_S = 2.0  # the same for an iterator that nobody closed, and at the interpreter's exit

_log = logging.getLogger("headrace")


def build_device_pack_stream(
    stream: MicrobatchPackStream,
    device: torch.device | str,
    prefetch_factor: int,
    *,
    count_tokens: CountTokens | None = None,
) -> "DevicePackStream":
    """The stream's packs with every tensor on the device.

    With prefetch_factor=0 a pack is pulled and copied when it is asked for. With n, one thread pulls and copies at most
    n packs ahead: to CUDA on a stream of its own, from pinned memory (PinMemoryMicrobatchPackStream) beside the
    computation. The packs and the states are the same for every n.

    count_tokens(microbatch) -> (tokens, tokens and padding) is for `metrics()`, in place of the rules of
    headrace.loading.count_tokens; it is called before the copy.

    OptionError for a negative prefetch_factor, TypeError for one that is no integer and for what is no pack stream.
    """
    for method in ("__iter__", "state_dict", "load_state_dict"):
        if not callable(getattr(stream, method, None)):
            raise TypeError(
                f"{type(stream).__name__} is no stream of packs: it has no {method}(); put the loader into a packer, "
                "such as FixedCountMicrobatchPacker"
            )
    depth = whole_number("prefetch_factor", prefetch_factor, 0)
    return DevicePackStream(stream, torch.device(device), depth, count_tokens)


class DevicePackStream:
    """A MicrobatchPackStream over another one, whose packs are on a device. build_device_pack_stream() makes it.

    `iter()` goes on behind the last pack that was handed out, as a fresh stream with this one's state would: also after
    a loop that was broken off and after an error, when the thread was packs ahead; behind the last pack it begins the
    inner stream's next pass. Work begins with the first pack that is asked for. An iterator that is overtaken by a
    newer one, by `load_state_dict()` or by `close()`, and one that raised an error, raise ClosedError when used again.

    One consumer at a time; the inner stream belongs to this one until it is closed. A loop that is broken off, an
    iterator that is dropped and `close()` end the thread, once the pack that it is at is there.
    """

    def __init__(
        self, stream: MicrobatchPackStream, device: torch.device, prefetch_factor: int, count: CountTokens | None = None
    ) -> None:
        self._inner = stream
        self._copies = copies_to(device, ahead=prefetch_factor > 0)
        self._depth = prefetch_factor
        self._count = count
        self._meter = Meter()
        self._run: _Run | None = None  # the last iterator's

    def __repr__(self) -> str:
        return f"DevicePackStream({self._inner!r}, {str(self.device)!r}, prefetch_factor={self._depth})"

    def __iter__(self) -> Iterator[MicrobatchPack[Any]]:
        self._end_run("a newer one took its place")
        state = self._goes_on_at()
        if state is not None:
            self._inner.load_state_dict(state)
        source = _Source(self._inner, self._copies, self._count)
        run = _Ahead(source, self._meter, self._depth) if self._depth else _Run(source, self._meter)
        run.state = state
        self._run = run
        return _Packs(run, self._copies)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the active iterator and its thread, and close the inner stream if that has a close(). Twice is harmless;
        the state stays, and iter() goes on from it.

        A thread that is stuck in the inner stream is waited for half a minute, and then left with a warning: it ends
        with the process, and until it has come back the stream cannot be used.
        """
        self._end_run("the stream was closed", wait=False)
        close = getattr(self._inner, "close", None)
        if close is not None and not self._is_stuck():
            close()

    @property
    def device(self) -> torch.device:
        """Where the packs are."""
        return self._copies.device

    @property
    def prefetch_factor(self) -> int:
        """How many packs the thread may be ahead; 0 without a thread."""
        return self._depth

    @property
    def total_steps(self) -> int | None:
        """The inner stream's."""
        return self._inner.total_steps

    @property
    def is_elastic(self) -> bool:
        """Whether the state is equal on every rank and loads with any number of them, as the inner stream says."""
        return bool(getattr(self._inner, "is_elastic", False))

    @property
    def steps_left(self) -> int | None:
        """Packs from the last one handed out to the end, where the inner stream says; else None."""
        run = self._run
        if run is None or run.ended or not run.begun:
            left: int | None = getattr(self._inner, "steps_left", None)
            return left
        return None if run.steps_left is None else run.steps_left - run.handed_out

    def state_dict(self) -> dict[str, Any]:
        """The inner stream's state behind the last pack that was handed out, or where it begins before the first."""
        run = self._run
        if run is None or run.state is None:
            self._check_free()
            return self._inner.state_dict()
        return dict(run.state)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Begin the next iter() there; a state fits whatever prefetch_factor it was taken with. The inner stream's
        errors; a state that it refuses changes nothing, but the active iterator is over."""
        self._end_run("load_state_dict() chose another position")
        self._inner.load_state_dict(state_dict)
        self._run = None

    def metrics(self) -> DataMetrics:
        """What was handed out until now and how long it was waited for; nothing that is only prefetched counts."""
        return self._meter.read()

    def _goes_on_at(self) -> dict[str, Any] | None:
        """The state that the inner stream has to be taken back to; None where it is at the right place."""
        run = self._run
        return None if run is None or run.ended else run.state

    def _end_run(self, why: str, *, wait: bool = True) -> None:
        if self._run is not None:
            self._run.end(why)
        if wait:
            self._check_free()

    def _is_stuck(self) -> bool:
        return self._run is not None and self._run.is_busy()

    def _check_free(self) -> None:
        if self._is_stuck():
            raise ClosedError(
                f"the thread of an earlier iterator is still waiting for a pack of {type(self._inner).__name__}, "
                "which cannot be used meanwhile; give its loader a time-out"
            )


class _Pulled(NamedTuple):
    """A pack with what belongs to it; pack is None at the end."""

    pack: Sequence[Any] | None
    event: Any
    counted: PackCount
    state: dict[str, Any]


_NOTHING = PackCount(0, 0, 0, 0)


class _Source:
    """Pulls packs from the inner stream and sends them off. Used by one thread at a time."""

    def __init__(self, inner: MicrobatchPackStream, copies: Copies, count: CountTokens | None) -> None:
        self._inner = inner
        self._copies = copies
        self._count = count
        self._packs: Iterator[MicrobatchPack[Any]] | None = None

    def begin(self) -> tuple[dict[str, Any], int | None]:
        """The state before the first pack, and the steps left then."""
        self._packs = iter(self._inner)
        return self._inner.state_dict(), getattr(self._inner, "steps_left", None)

    def pull(self) -> _Pulled:
        """The next pack on its way to the device."""
        assert self._packs is not None
        try:
            pack = next(self._packs)
        except StopIteration:
            return _Pulled(None, None, _NOTHING, self._inner.state_dict())
        state = self._inner.state_dict()  # at once: whatever is pulled later is not in it
        if not isinstance(pack, Sequence):
            raise TypeError(f"a pack is a sequence of microbatches, not a {type(pack).__name__}")
        try:
            counted = count_pack(pack, self._count)
        except StopIteration as stop:
            raise RuntimeError("count_tokens raised StopIteration, which is not the end of the stream") from stop
        return _Pulled(*self._copies.send(pack), counted, state)

    def close(self) -> None:
        """Close the inner iterator, if it can be closed: it may hold threads or workers."""
        packs, self._packs = self._packs, None
        close = getattr(packs, "close", None)
        if close is not None:
            close()


class _Run:
    """One pass over the inner stream, by the consumer itself."""

    def __init__(self, source: _Source, meter: Meter) -> None:
        self.source = source
        self.meter = meter
        self.state: dict[str, Any] | None = None  # behind the last pack handed out; None before the beginning
        self.steps_left: int | None = None  # at the beginning
        self.handed_out = 0
        self.why: str | None = None  # it is over; None while it goes on
        self.ended = False  # it is over since the inner stream is
        self.begun = False

    def begin(self) -> None:
        """Before the first pack; again is harmless."""
        if not self.begun:
            self.begun = True
            self._start()

    def take(self) -> _Pulled:
        """The next pack, or the end."""
        return self.source.pull()

    def end(self, why: str, wait_s: float = _CLOSE_S) -> None:
        """Nothing is pulled from here on. The first reason stays; again only waits."""
        if self.why is None:
            self.why = why
            self.meter.end()
        self._stop(wait_s)

    def is_busy(self) -> bool:
        """Whether the inner stream is still in use although this is over."""
        return False

    def _start(self) -> None:
        self.state, self.steps_left = self.source.begin()

    def _stop(self, wait_s: float) -> None:
        self.source.close()


class _Ahead(_Run):
    """One pass over the inner stream by a thread, at most depth packs ahead.

    permits and ready are SimpleQueues: their put() may run in a finalizer, wherever the garbage collector happens to.
    """

    def __init__(self, source: _Source, meter: Meter, depth: int) -> None:
        super().__init__(source, meter)
        self._permits: SimpleQueue[None] = SimpleQueue()  # one a pack that may be pulled
        for _ in range(depth):
            self._permits.put(None)
        self._ready: SimpleQueue[_Pulled | BaseException] = SimpleQueue()
        # A daemon, so that one which is stuck in the inner stream does not keep the process from exiting.
        self._thread = threading.Thread(target=self._pull_ahead, name="headrace-packs", daemon=True)

    def take(self) -> _Pulled:
        pulled = self._ready.get()
        if isinstance(pulled, BaseException):
            raise pulled  # with the traceback of the thread
        self._permits.put(None)
        return pulled

    def is_busy(self) -> bool:
        return self.why is not None and self._thread.is_alive()

    def _start(self) -> None:
        self._thread.start()

    def _stop(self, wait_s: float) -> None:
        self._permits.put(None)  # wakes it to see that this is over
        thread = self._thread
        if not self.begun or thread is threading.current_thread():  # where the garbage collector happened to run
            return
        thread.join(wait_s)
        if thread.is_alive():
            _log.warning("the thread that pulls packs did not come back within %.0f s; it is left behind", wait_s)

    def _pull_ahead(self) -> None:
        try:
            # The inner stream is begun here, not by the consumer: it may start processes, whose death torch would
            # report by an error in the thread that started them, if that is the main one: anywhere in a step.
            self.state, self.steps_left = self.source.begin()
            while True:
                self._permits.get()
                if self.why is not None:
                    return
                pulled = self.source.pull()
                self._ready.put(pulled)
                if pulled.pack is None:
                    return
                del pulled  # else the pack would live until the next one is there
        except BaseException as error:
            self._ready.put(error)
        finally:
            try:
                self.source.close()
            except Exception:
                _log.warning("closing the stream of packs failed", exc_info=True)


class _Packs(Iterator[MicrobatchPack[Any]]):
    """What the consumer iterates. Nothing else holds it, so that a loop that drops it ends the run."""

    def __init__(self, run: _Run, copies: Copies) -> None:
        self._run = run
        self._copies = copies
        weakref.finalize(self, run.end, "it was dropped", _FAREWELL_S)

    def __next__(self) -> MicrobatchPack[Any]:
        run = self._run
        if run.why is not None:
            if run.ended:
                raise StopIteration
            raise ClosedError(f"this iterator is over: {run.why}; call iter() on the stream again")
        begin_s = perf_counter()
        run.meter.begin(begin_s)
        try:
            run.begin()
            pulled = run.take()
            pack = None if pulled.pack is None else self._copies.receive(pulled.pack, pulled.event)
        except BaseException:
            # Also for Ctrl-C: a pack may be lost on its way, so nobody goes on from here. iter() takes the inner
            # stream back to the last pack that was handed out.
            run.end("an error ended it", _FAREWELL_S)
            raise
        run.meter.waited(perf_counter() - begin_s)
        run.state = pulled.state
        if pack is None:
            run.ended = True
            run.end("the stream ended")
            raise StopIteration
        run.meter.add(pulled.counted)
        run.handed_out += 1
        return pack

    def close(self) -> None:
        """End it and its thread. Twice is harmless, and nothing after the end."""
        self._run.end("it was closed")
