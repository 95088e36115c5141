"""What went wrong on which rank, told to all: so that no rank waits for one that has failed.

rank 0   ... failed: "disk full" --.
rank 1   ... fine -----------------+--> all of them: Failed(rank=0, text="OSError: disk full")
rank 2   ... fine -----------------'

Ranks agree in a process group of its own: whatever else they were saying to each other when one failed, this is not
taken for it.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from os.path import commonprefix
from typing import NamedTuple, TypeVar

import torch
import torch.distributed as dist

from headrace.errors import OrderError, RankFailedError

__all__ = [
    "PATIENCE_S",
    "Failed",
    "agree_in",
    "check_agreed",
    "check_same",
    "first_failure",
    "no_longer_agree_in",
    "of_rank_0",
    "together",
]

PATIENCE_S = 30.0  # that a rank which failed in a step waits for others: they may wait for it, in the model
SHOWN = 120  # characters of a text that differs
MOST_CHARACTERS = 4096  # of an error's text; one that quotes a file need not travel whole

T = TypeVar("T")


class Failed(NamedTuple):
    """The lowest rank that failed, and what it said."""

    rank: int
    text: str


_groups: dict[dist.ProcessGroup | None, dist.ProcessGroup] = {}  # of all ranks: the default one -> the one to agree in


def agree_in(group: dist.ProcessGroup) -> None:
    """Agree in this group of all ranks, which can hold CPU tensors, as long as the default group is the one of now."""
    _groups.clear()
    _groups[dist.group.WORLD] = group


def no_longer_agree_in(group: dist.ProcessGroup) -> None:
    """Let go of the group: its threads run as long as anybody holds it."""
    if group in _groups.values():
        _groups.clear()


def _group() -> dist.ProcessGroup | None:
    return _groups.get(dist.group.WORLD)  # None: torch takes the default one


def _is_alone() -> bool:
    return not (dist.is_available() and dist.is_initialized())


def first_failure(error: BaseException | None, group: dist.ProcessGroup | None = None) -> Failed | None:
    """None when no rank of the group brought an error, else the same Failed on each. Every rank must call it.

    group is one that can hold CPU tensors; None is that of all ranks. A rank that died instead is an error of torch's.
    """
    group = _group() if group is None else group
    rank, world_size = dist.get_rank(), dist.get_world_size()
    lowest = torch.tensor([world_size if error is None else rank])
    dist.all_reduce(lowest, dist.ReduceOp.MIN, group=group)
    failed = int(lowest)
    if failed == world_size:
        return None
    said = [f"{type(error).__name__}: {error}"[:MOST_CHARACTERS]]
    dist.broadcast_object_list(said, failed, group=group)
    return Failed(failed, said[0])


def of_rank_0(value: T) -> T:
    """Rank 0's value, on every rank. Every rank must call it; one alone has its own."""
    if _is_alone():
        return value
    held = [value]
    dist.broadcast_object_list(held, 0, group=_group())
    return held[0]


def check_agreed(what: str, number: int) -> None:
    """OrderError on every rank where they bring different numbers. Every rank must call it; one alone agrees."""
    if _is_alone():
        return
    ends = torch.tensor([number, -number])
    dist.all_reduce(ends, dist.ReduceOp.MIN, group=_group())
    least, most = int(ends[0]), -int(ends[1])
    if least != most:
        raise OrderError(
            f"ranks have different {what}: {least} to {most}, and {number} on rank {dist.get_rank()}; give each as "
            "much data (padded shards, or AutoDataProvider, whose ranks share the steps of one order), or configure "
            "the number of steps"
        )


def check_same(what: str, text: str) -> None:
    """OrderError where a rank's text is another than rank 0's; the others get RankFailedError, which says so. Every
    rank must call it; one alone agrees."""
    expected = of_rank_0(text)
    with together(f"comparing {what}"):
        if expected != text:
            begin = max(0, len(commonprefix([expected, text])) - SHOWN // 4)  # noqa: RUF071 -- of characters
            own, theirs = text[begin : begin + SHOWN], expected[begin : begin + SHOWN]
            raise OrderError(
                f"rank {dist.get_rank()} has other {what} than rank 0: ...{own}... in place of ...{theirs}...; "
                "give all ranks the same"
            )


@contextmanager
def together(block: str, patience_s: float | None = None) -> Iterator[None]:
    """A block that every rank goes through by itself. An error in it is raised on every rank, at the block's end: there
    itself, elsewhere as RankFailedError. One process alone has its own errors only.

    In a block where ranks speak with each other, others may wait for the one that failed. So it waits patience_s for
    them (None: as long as torch does), then raises its error all the same; they learn of it when its process ends.
    """
    try:
        yield
    except BaseException as error:
        if not _is_alone():
            with suppress(Exception):  # a rank that is gone, or does not come, must not hide what went wrong here
                if patience_s is not None:
                    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=patience_s), _group())
                first_failure(error)
        raise
    failed = None if _is_alone() else first_failure(None)
    if failed is not None:
        raise RankFailedError(block, failed.rank, failed.text)
