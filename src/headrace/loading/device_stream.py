"""Packs to the device: when they are asked for, or some packs ahead by a thread.

    inner stream --pull, state, count--> copy on a side stream --event--> queue of n --> hand-over: wait for the event
    \\________________ one thread ________________________________/                     \\__ the loop's thread ________/

A pack and the state behind it travel together, so `state_dict()` is that of the last pack handed out, however far the
thread is. On the CPU nothing is copied; all else is the same.
"""

import weakref
from collections.abc import Iterator
from time import perf_counter
from types import TracebackType
from typing import Any, Self

import torch

from headrace.errors import ClosedError, OptionError
from headrace.loading.data_metrics import CountTokens, DataMetrics, Meter
from headrace.loading.device import DeviceMover
from headrace.loading.pack_protocols import MicrobatchPack, MicrobatchPackStream
from headrace.loading.pack_runs import FAREWELL_S, PackSource, Run, RunAhead
from headrace.views.options import whole_number

__all__ = ["DevicePackStream", "build_device_pack_stream"]


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

    OptionError for a negative prefetch_factor, and for CUDA where there is none; TypeError for a prefetch_factor that
    is no integer, and for what is no pack stream.
    """
    for method in ("__iter__", "state_dict", "load_state_dict"):
        if not callable(getattr(stream, method, None)):
            raise TypeError(
                f"{type(stream).__name__} is no stream of packs: it has no {method}(); put the loader into a packer, "
                "such as FixedCountMicrobatchPacker"
            )
    depth = whole_number("prefetch_factor", prefetch_factor, 0)
    device = torch.device(device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise OptionError("device", str(device), "one that is here, such as 'cpu': torch sees no CUDA device")
    return DevicePackStream(stream, device, depth, count_tokens)


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
        self._mover = DeviceMover(device)
        self._depth = prefetch_factor
        self._count = count
        self._meter = Meter()
        self._run: Run | None = None  # the last iterator's

    def __repr__(self) -> str:
        return f"DevicePackStream({self._inner!r}, {str(self.device)!r}, prefetch_factor={self._depth})"

    def __iter__(self) -> "PackIterator":
        self._end_run("a newer one took its place")
        state = self._goes_on_at()
        if state is not None:
            self._inner.load_state_dict(state)
        source = PackSource(self._inner, self._mover, self._count)
        run = RunAhead(source, self._meter, self._depth) if self._depth else Run(source, self._meter)
        run.start = state
        self._run = run
        return PackIterator(run, self._mover)

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
        if self._run is not None:
            self._run.end("the stream was closed")
        close = getattr(self._inner, "close", None)
        if close is not None and not self._is_stuck():
            close()

    @property
    def device(self) -> torch.device:
        """Where the packs are."""
        return self._mover.device

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

    def _end_run(self, why: str) -> None:
        if self._run is not None:
            self._run.end(why)
        self._check_free()

    def _is_stuck(self) -> bool:
        return self._run is not None and self._run.is_busy()

    def _check_free(self) -> None:
        if self._is_stuck():
            raise ClosedError(
                f"the thread of an earlier iterator is still waiting for a pack of {type(self._inner).__name__}, "
                "which cannot be used meanwhile; give its loader a time-out"
            )


class PackIterator(Iterator[MicrobatchPack[Any]]):
    """What the consumer iterates. Nothing else holds it, so that a loop that drops it ends the run."""

    def __init__(self, run: Run, mover: DeviceMover) -> None:
        self._run = run
        self._mover = mover
        weakref.finalize(self, run.end, "it was dropped", FAREWELL_S)

    def __next__(self) -> MicrobatchPack[Any]:
        run = self._run
        if run.why is not None:
            if run.ended:
                raise StopIteration
            raise ClosedError(f"this iterator is over: {run.why}; call iter() on the stream again")
        begin_s = perf_counter()
        run.meter.begin(begin_s)
        behind = run.behind
        try:
            run.begin()
            pulled = run.take()
            pack = None if pulled.pack is None else self._mover.receive(pulled.pack, pulled.sent)
            run.meter.waited(perf_counter() - begin_s)
            run.behind = pulled.state
            if pack is not None:
                run.handed_out += 1
                run.meter.add(pulled.counted)
                return pack  # type: ignore[no-any-return]
        except BaseException:
            # Also for Ctrl-C: a pack may be lost on its way, so nobody goes on from here. iter() takes the inner
            # stream back to the last pack that was handed out.
            run.behind = behind
            run.end("an error ended it", FAREWELL_S)
            raise
        run.ended = True
        run.end("the stream ended")
        raise StopIteration

    def close(self) -> None:
        """End it and its thread. Twice is harmless, and nothing after the end."""
        self._run.end("it was closed")
