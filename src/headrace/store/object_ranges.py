"""Many ranges of one object in few requests: which bytes to ask for together, and asking for many things at once."""

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

from headrace.errors import TemporaryStoreError
from headrace.store.object_threads import pool

__all__ = ["GAP_BYTES", "SPAN_BYTES", "Span", "answered", "merged", "sliced"]

Key = TypeVar("Key", bound=Hashable)
Answer = TypeVar("Answer")

GAP_BYTES = 256 << 10  # what a request costs, in bytes: reading this much for nothing is as quick as asking again
SPAN_BYTES = 8 << 20  # a view keeps all that came with it in memory


class Span(NamedTuple):
    """Bytes start to stop (exclusive) of an object, and the numbers of the ranges that lie in them."""

    start: int
    stop: int
    ranges: list[int]


def merged(ranges: Sequence[tuple[int, int]], gap_bytes: int, span_bytes: int) -> list[Span]:
    """The spans to ask for, sorted by start, so that every range (start, length) that is not empty lies in one of them.

    Ranges less than gap_bytes apart share a span, as long as it stays within span_bytes; a longer range has its own.
    """
    spans: list[Span] = []
    for number in sorted((number for number, (_, length) in enumerate(ranges) if length), key=ranges.__getitem__):
        start, length = ranges[number]
        stop = start + length
        if spans:
            last = spans[-1]
            if start <= last.stop + gap_bytes and (stop <= last.stop or stop - last.start <= span_bytes):
                last.ranges.append(number)
                spans[-1] = last._replace(stop=max(last.stop, stop))
                continue
        spans.append(Span(start, stop, [number]))
    return spans


def sliced(ranges: Sequence[tuple[int, int]], spans: Sequence[Span], answers: Sequence[memoryview]) -> list[memoryview]:
    """A view a range, of the bytes that came for the spans."""
    views = [memoryview(b"")] * len(ranges)
    for span, answer in zip(spans, answers, strict=True):
        for number in span.ranges:
            start, length = ranges[number]
            views[number] = answer[start - span.start : start - span.start + length]
    return views


def answered(
    units: Sequence[Key], ask: Callable[[Key], Answer], done: dict[Any, Answer], *, at_once: int
) -> list[Answer]:
    """ask(unit) for each unit, at_once of them at a time, in the units' order.

    Answers gather in done, and what is there is not asked for again: after a TemporaryStoreError, which is raised when
    all have come back, the call can be repeated for the rest. Other errors are raised at once.
    """
    missing = [unit for unit in units if unit not in done]
    if len(missing) == 1:
        done[missing[0]] = ask(missing[0])
        missing = []
    futures: list[Future[Answer]] = [pool(at_once).submit(ask, unit) for unit in missing]
    failed: TemporaryStoreError | None = None
    try:
        for unit, future in zip(missing, futures, strict=True):
            try:
                done[unit] = future.result()
            except TemporaryStoreError as error:
                failed = failed or error
    finally:
        for future in futures:
            future.cancel()
    if failed is not None:
        raise failed
    return [done[unit] for unit in units]
