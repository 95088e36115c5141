"""First-fit: pieces in their order, each into the first row that has room for it; else a row is opened.

    rooms     0 3 1 0 0 0 9 0 | 4 0 0 2 1 0 0 0 | 0 5 0 12 0 7 0 0 | all of it, not opened yet ...      by row
    most              9       |        4        |        12        |                                   by block
    stairs            9       |        9        |        12        |             most so far, or more than that

The first row that has room for a piece is in the first block that has, and that is where the stairs first reach its
size: they rise, so it is found by bisection. A room that shrinks may lower the stairs over many blocks. They are left
as they are, and lowered by who comes to a step that is none: it goes on from block to block, and mends them on its way.
So they are never too low, and a piece costs a bisection, a look at a block, and now and then a short walk.

A piece that fills a row takes a new one and nothing else sees that: such pieces are numbered in between, all at once.
"""

from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

__all__ = ["first_fit"]

_BLOCK = 8  # rows
_GROUP = 64  # blocks, that a long walk passes in one step

Int64s = NDArray[np.int64]


def first_fit(sizes: Int64s, capacity: int) -> tuple[Int64s, int]:
    """The row of each piece, and the number of rows. Sizes are 1 to capacity; rows are numbered as they are opened."""
    others = np.flatnonzero(sizes < capacity)
    found = _placed(sizes[others].tolist(), capacity)
    opening = sizes == capacity
    # A row is opened when all before it lack the room, so the numbers of opened rows have no gaps.
    openers = others[np.flatnonzero(np.diff(np.maximum.accumulate(found), prepend=-1))]
    opening[openers] = True
    rows: Int64s = opening.cumsum() - 1
    rows[others] = rows[openers][found]
    return rows, int(np.count_nonzero(opening))


def _placed(sizes: list[int], capacity: int) -> Int64s:
    """The row of each piece, by first-fit."""
    groups = len(sizes) // (_BLOCK * _GROUP) + 1  # rows for all pieces, and one left over
    rooms = [capacity] * (groups * _GROUP * _BLOCK)
    most = [capacity] * (groups * _GROUP)
    stairs = [capacity] * (groups * _GROUP)
    most_of_group = [capacity] * groups
    rows = []
    for size in sizes:
        block = bisect_left(stairs, size)
        if most[block] < size:
            block = _walked(block, size, most, stairs, most_of_group)
        row = first = block * _BLOCK
        while (room := rooms[row]) < size:
            row += 1
        rows.append(row)
        rooms[row] = room - size
        if room == most[block] and rooms[first + _BLOCK - 1] < capacity:  # else a row is left that is not opened
            most[block] = max(rooms[first : first + _BLOCK])
    return np.array(rows, np.int64)


def _walked(block: int, size: int, most: list[int], stairs: list[int], most_of_group: list[int]) -> int:
    """The first block from here on with room for size. Those before it have none, and the stairs say so from now on.

    most_of_group is what a group had when somebody walked over it: never too little, since rooms only shrink.
    """
    height = stairs[block - 1] if block else 0
    far = block + _GROUP
    while (here := most[block]) < size:
        if block >= far and block % _GROUP == 0:
            group, end = block // _GROUP, block + _GROUP
            if most_of_group[group] >= size:
                most_of_group[group] = max(most[block:end])
            if most_of_group[group] < size:
                height = max(height, most_of_group[group])
                stairs[block:end] = [height] * _GROUP
                block = end
                continue
        if here > height:
            height = here
        stairs[block] = height
        block += 1
    return block
