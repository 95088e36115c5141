"""Rows of global batches to ranks: the one place where rank and world size exist.

    epoch    |---- global batch 0 ----|---- global batch 1 ----|-- short last one --|
    rows      0  1  2  3  4  5  6  7    8  9 ...
    rank      0  1  2  0  1  2  0  1        row i of a batch goes to rank i mod world_size

The batches do not depend on the world size, so any world size that divides them gives the same ones.

A shard is a dataset's part for one reader, chosen before any order of rows: shard_length and shard_positions are d9d's.
"""

import numpy as np
from numpy.typing import NDArray

from headrace.errors import OrderError

__all__ = ["check_division", "padding_of", "rank_positions", "shard_length", "shard_positions", "steps_left"]


def check_division(global_batch_size: int, world_size: int) -> int:
    """Rows of a full global batch for each rank; OrderError when the ranks cannot share it equally, or none exist."""
    if global_batch_size < 1 or world_size < 1:
        raise OrderError(f"global_batch_size={global_batch_size} and world_size={world_size} must both be at least 1")
    if global_batch_size % world_size:
        below = global_batch_size // world_size * world_size
        above = below + world_size
        near = f"{below} and {above} are the nearest that are" if below else f"{above} is the nearest that is"
        raise OrderError(f"global_batch_size={global_batch_size} is not a multiple of world_size={world_size}; {near}")
    return global_batch_size // world_size


def steps_left(num_rows: int, position: int, global_batch_size: int, drop_last: bool) -> int:
    """How many steps the epoch of num_rows still has from position on; a short last one counts unless dropped."""
    rows = max(0, num_rows - position)
    return rows // global_batch_size if drop_last else -(-rows // global_batch_size)


def padding_of(num_rows: int, global_batch_size: int, rank: int, world_size: int) -> int:
    """How many rows of a rank's last batch are padding, where the last global batch of num_rows rows is filled up.

    They are its last ones, since row i of a global batch goes to rank i mod world_size. 0 where no row is left.
    """
    local = check_division(global_batch_size, world_size)
    rows = max(0, num_rows) % global_batch_size
    return local - -(-max(0, rows - rank) // world_size) if rows else 0


def rank_positions(
    position: int, num_steps: int, *, num_rows: int, global_batch_size: int, rank: int, world_size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The epoch positions of this rank's rows in the next num_steps steps, and where each step begins among them.

    The steps begin at position. Step k has rows[offsets[k] : offsets[k + 1]]; offsets has shape (num_steps + 1,). In a
    step that the epoch's end cuts short a rank may have fewer rows than others, or none; later steps are empty.
    OrderError for a rank outside range(world_size), which would get rows of the next batch.
    """
    local = check_division(global_batch_size, world_size)
    if not 0 <= rank < world_size:
        raise OrderError(f"rank={rank} is outside range({world_size}), the ranks of world_size={world_size}")
    starts = position + global_batch_size * np.arange(num_steps, dtype=np.int64)
    rows = (starts[:, None] + (rank + world_size * np.arange(local, dtype=np.int64))).reshape(-1)
    counts = np.full(num_steps, local, np.int64)
    if num_steps and int(starts[-1]) + global_batch_size > num_rows:
        inside = rows < num_rows
        counts = inside.reshape(num_steps, local).sum(axis=1, dtype=np.int64)
        rows = rows[inside]
    return rows, np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])


def shard_length(num_items: int, total_shards: int, current_shard: int, *, chunked: bool, padded: bool) -> int:
    """How many positions shard current_shard of num_items has: with padding as many as every other.

    Shards are runs of ceil(num_items / total_shards) items (chunked; without padding the last ones may be short, or
    empty), or take every total_shards-th item.
    """
    if not 0 <= current_shard < total_shards:
        raise OrderError(f"current_shard={current_shard} is outside range({total_shards}), the shards there are")
    longest = -(-num_items // total_shards)
    if padded:
        return longest
    if chunked:
        return min(longest, max(0, num_items - longest * current_shard))
    return -(-(num_items - current_shard) // total_shards) if current_shard < num_items else 0


def shard_positions(
    indices: NDArray[np.int64], num_items: int, total_shards: int, current_shard: int, *, chunked: bool
) -> NDArray[np.int64]:
    """The items behind these positions of shard current_shard, of the same shape; num_items and more are padding."""
    if chunked:
        return indices + -(-num_items // total_shards) * current_shard
    return indices * total_shards + current_shard
