"""Items permuted inside blocks: range(total) is cut into blocks, and no item leaves its own.

    index      0 ... block-1 | block ... 2 block-1 | ...      the last block may be shorter
    becomes      p0(index)   |  block + p1(index)  | ...      pk: a permutation of its own for each epoch and block

Any index of any block of any epoch is found alone, and many blocks at once: keys are hashed from (seed, epoch, block)
in arrays, so that a block costs no Python object. Up to SMALL items a block's permutation is a table, beyond a network,
as in permutation.py.
"""

import numpy as np
from numpy.typing import NDArray

from headrace.planning.permutation import CHUNK, MAX_ITEMS, ROUNDS, SMALL, Words, derive_seed, mixed, walked

__all__ = ["permuted_in_blocks"]

_CELLS = 1 << 18  # hashes sorted at a time for tables: 2 MiB


def permuted_in_blocks(
    indices: NDArray[np.int64],
    total: int,
    block: int,
    seed: int,
    epochs: NDArray[np.int64] | int = 0,
    *,
    inverse: bool = False,
) -> NDArray[np.int64]:
    """The numbers that these of range(total) become, of the same shape; with inverse, the numbers that become these.

    epochs has one epoch for all, or one an index. IndexError for numbers outside range(total), ValueError for a block
    of no items or a total that is no length. Runs of neighbours in blocks of more than SMALL items take about 70 ns a
    number; a number alone in a block of at most SMALL items costs the sort of its block.
    """
    if block < 1 or not 0 <= total <= MAX_ITEMS:
        raise ValueError(f"block={block} must be at least 1, and total={total} between 0 and 2**62")
    given = np.asarray(indices)
    if given.size == 0:
        return np.empty(given.shape, np.int64)
    if given.dtype.kind not in "iu":
        raise TypeError(f"indices must be integers, not {given.dtype}")
    if int(given.min()) < 0 or int(given.max()) >= total:
        outside = given[(given < 0) | (given >= total)].flat[0]
        raise IndexError(f"number {outside} is outside range({total})")
    block = min(block, total)
    blocks, offsets = np.divmod(given.astype(np.int64, copy=False).ravel(), block)
    of_index = np.broadcast_to(np.asarray(epochs, np.int64), given.shape).ravel()
    begins, lengths = _runs(of_index, blocks)
    keys = _block_keys(of_index[begins], blocks[begins], seed)
    num_full, short = divmod(total, block)
    out = np.empty(len(offsets), np.int64)
    if short == 0 or int(blocks.max()) < num_full:
        out[:] = _permuted(offsets, keys, lengths, block, inverse=inverse)
    else:
        in_last = blocks == num_full
        for size, chosen, runs in (
            (block, ~in_last, blocks[begins] < num_full),
            (short, in_last, blocks[begins] == num_full),
        ):
            out[chosen] = _permuted(offsets[chosen], keys[runs], lengths[runs], size, inverse=inverse)
    out += blocks * block
    return out.reshape(given.shape)


def _runs(epochs: NDArray[np.int64], blocks: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where runs of the same epoch and block begin, and their lengths: each run is keyed once."""
    changes = np.flatnonzero((epochs[1:] != epochs[:-1]) | (blocks[1:] != blocks[:-1]))
    begins = np.concatenate([np.zeros(1, np.int64), changes + 1])
    return begins, np.diff(begins, append=len(blocks))


def _block_keys(epochs: NDArray[np.int64], blocks: NDArray[np.int64], seed: int) -> Words:
    """A key for each (epoch, block)."""
    of_epoch = mixed(epochs.astype(np.uint64), np.uint64(derive_seed(seed, "blocks")))
    return mixed(blocks.astype(np.uint64), of_epoch)


def _permuted(
    offsets: NDArray[np.int64], keys: Words, lengths: NDArray[np.int64], size: int, *, inverse: bool
) -> NDArray[np.int64]:
    """The offsets in their blocks of `size` items; keys and lengths are of runs of offsets in one block."""
    if size <= SMALL:
        return _by_tables(offsets, keys, lengths, size, inverse=inverse)
    out = np.empty(len(offsets), np.uint64)
    run_of = np.repeat(np.arange(len(keys)), lengths)
    rounds = [mixed(np.full(1, number, np.uint64), keys) for number in range(ROUNDS)]
    for begin in range(0, len(offsets), CHUNK):
        chunk = slice(begin, begin + CHUNK)
        runs = run_of[chunk]
        alone = runs[0] == runs[-1]
        of_these = [key[runs[0]] if alone else key[runs] for key in rounds]
        out[chunk] = walked(offsets[chunk].view(np.uint64), size, of_these, inverse=inverse)
    return out.view(np.int64)


def _by_tables(
    offsets: NDArray[np.int64], keys: Words, lengths: NDArray[np.int64], size: int, *, inverse: bool
) -> NDArray[np.int64]:
    """The same by sorting each block's hashes, many blocks at a time and each block once."""
    order = np.argsort(keys, kind="stable")
    new = np.concatenate([np.ones(min(1, len(keys)), bool), keys[order[1:]] != keys[order[:-1]]])
    row_of_run = np.empty(len(keys), np.int64)
    row_of_run[order] = np.cumsum(new) - 1
    distinct = keys[order[new]]
    row_of = np.repeat(row_of_run, lengths)
    by_row = np.argsort(row_of, kind="stable")
    sorted_rows = row_of[by_row]
    out = np.empty(len(offsets), np.int64)
    numbers = np.arange(size, dtype=np.uint64)
    step = max(1, _CELLS // size)
    for first in range(0, len(distinct), step):
        hashes = mixed(numbers, distinct[first : first + step, None])
        table = np.argsort(hashes, axis=1, kind="stable")
        if inverse:
            table = np.argsort(table, axis=1, kind="stable")
        begin, end = np.searchsorted(sorted_rows, [first, first + step])
        chosen = by_row[begin:end]
        out[chosen] = table[sorted_rows[begin:end] - first, offsets[chosen]]
    return out
