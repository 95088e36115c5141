"""What went wrong on which rank, told to all: so that no rank waits for one that has failed.

rank 0   ... failed: "disk full" --.
rank 1   ... fine -----------------+--> all of them: Failed(rank=0, text="OSError: disk full")
rank 2   ... fine -----------------'
"""

from collections.abc import Iterator
from contextlib import contextmanager
from os.path import commonprefix
from typing import NamedTuple

import torch
import torch.distributed as dist

from headrace.errors import OrderError, RankFailedError

__all__ = ["Failed", "check_agreed", "check_same", "first_failure", "together"]

SHOWN = 120  # characters of a text that differs
MOST_BYTES = 4096  # of an error's text; one that quotes a file need not travel whole


class Failed(NamedTuple):
    """The lowest rank that failed, and what it said."""

    rank: int
    text: str


def first_failure(error: BaseException | None, group: dist.ProcessGroup | None = None) -> Failed | None:
    """None when no rank of the group brought an error, else the same Failed on each. Every rank must call it.

    group is one that can hold CPU tensors; None is the default one. A rank that died instead is an error of torch's.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    lowest = torch.tensor([world_size if error is None else rank])
    dist.all_reduce(lowest, dist.ReduceOp.MIN, group=group)
    failed = int(lowest)
    if failed == world_size:
        return None
    text = torch.zeros(MOST_BYTES, dtype=torch.uint8)
    if rank == failed and error is not None:
        said = f"{type(error).__name__}: {error}".encode(errors="replace")[:MOST_BYTES]
        text[: len(said)] = torch.frombuffer(bytearray(said), dtype=torch.uint8)
    dist.broadcast(text, failed, group=group)
    return Failed(failed, bytes(text.tolist()).rstrip(b"\0").decode(errors="ignore"))


def check_agreed(what: str, number: int) -> None:
    """OrderError on every rank where they bring different numbers. Every rank must call it; one alone agrees."""
    if not (dist.is_available() and dist.is_initialized()):
        return
    ends = torch.tensor([number, -number])
    dist.all_reduce(ends, dist.ReduceOp.MIN)
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
    if not (dist.is_available() and dist.is_initialized()):
        return
    own = torch.frombuffer(bytearray(text.encode() + b"\n"), dtype=torch.uint8)
    number = torch.tensor([len(own)])
    dist.broadcast(number, 0)
    first = own.clone() if dist.get_rank() == 0 else torch.zeros(int(number), dtype=torch.uint8)
    dist.broadcast(first, 0)
    with together(f"comparing {what}"):
        expected = bytes(first.tolist()).decode().removesuffix("\n")
        if expected != text:
            begin = max(0, len(commonprefix([expected, text])) - SHOWN // 4)  # noqa: RUF071 -- of characters
            shown = [each[begin : begin + SHOWN] for each in (expected, text)]
            raise OrderError(
                f"rank {dist.get_rank()} has other {what} than rank 0: ...{shown[1]}... in place of ...{shown[0]}...; "
                "give all ranks the same"
            )


@contextmanager
def together(block: str) -> Iterator[None]:
    """A block that every rank goes through by itself. An error in it is raised on every rank, at the block's end: there
    itself, elsewhere as RankFailedError. One process alone has its own errors only."""
    error: BaseException | None = None
    try:
        yield
    except BaseException as raised:
        error = raised
    failed = first_failure(error) if dist.is_available() and dist.is_initialized() else None
    if error is not None:
        raise error
    if failed is not None:
        raise RankFailedError(block, failed.rank, failed.text)
