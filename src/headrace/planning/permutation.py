"""A keyed bijection of range(n) that answers any position alone, and the seeds that key it.

Up to SMALL items the permutation is a table: the numbers sorted by a hash of each. Beyond, it is a mixed-radix Feistel
network over a grid of a x b cells, a = ceil(sqrt(n)), b = ceil(n / a), with cycle walking:

    v = l * b + r          l in range(a), r in range(b)
    l = (l + F0(r)) mod a
    r = (r + F1(l)) mod b          each step can be undone, whatever F is: so the whole is a bijection of the grid
    ... ROUNDS steps in all
    w = l * b + r          w >= n (less than one cell in a)? walk on: apply the network to w again

The construction is Black and Rogaway's generalised Feistel cipher ("Ciphers with arbitrary finite domains", CT-RSA
2002), with integer mixing for the round function: a shuffle needs statistical quality, not secrecy.
"""

import hashlib
from collections.abc import Sequence
from math import isqrt

import numpy as np
from numpy.typing import NDArray

__all__ = ["CHUNK", "MAX_ITEMS", "ROUNDS", "SMALL", "Permutation", "Words", "derive_seed", "mixed", "walked"]

MAX_ITEMS = 1 << 62
SMALL = 1024
ROUNDS = 8
CHUNK = 8192  # numbers worked on at a time, so that the intermediate arrays stay in the processor's cache

FEW = 512  # numbers of one permutation, up to which many permutations are faster worked on together

Words = NDArray[np.uint64]
_Each = Words | np.uint64  # one for all values, or one a value


def derive_seed(seed: int, *names: str | int) -> int:
    """64 bits that depend on seed and every name: another seed for each use, never by addition.

    Different arguments give unrelated seeds, also where their texts run together: ("ab", "c") is not ("a", "bc"), and
    "1" is not 1.
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in (seed, *names):
        if isinstance(part, bool) or not isinstance(part, int | np.integer | str):
            raise TypeError(f"seeds and names are integers or text, not {part!r}")
        text = part if isinstance(part, str) else str(int(part))
        raw = text.encode()
        digest.update(b"%c%d:" % (b"s" if isinstance(part, str) else b"i", len(raw)) + raw)
    return int.from_bytes(digest.digest(), "little")


class Permutation:
    """A bijection of range(n), chosen by seed: p(positions) gives items, p.inverse(items) gives positions.

    Both take and return int64 arrays of any shape; numbers outside range(n) raise IndexError. O(1) memory beyond
    SMALL items, and less than 100 ns a number when thousands are asked for at once. n is at most 2**62.
    """

    def __init__(self, n: int, seed: int) -> None:
        if not 0 <= n <= MAX_ITEMS:
            raise ValueError(f"n={n} must be between 0 and 2**62")
        self._n = int(n)
        self.seed = int(seed)
        self._table: NDArray[np.int64] | None = None
        if n <= SMALL:
            key = np.uint64(derive_seed(self.seed, "table"))
            self._table = np.argsort(mixed(np.arange(n, dtype=np.uint64), key), kind="stable").astype(np.int64)
            return
        self._keys = [np.uint64(derive_seed(self.seed, "round", number)) for number in range(ROUNDS)]
        self._sides = _sides(self._n)

    def __len__(self) -> int:
        return self._n

    def __repr__(self) -> str:
        return f"Permutation({self._n}, seed={self.seed})"

    def __call__(self, positions: NDArray[np.int64] | Sequence[int] | int) -> NDArray[np.int64]:
        """The items at these positions."""
        numbers = self._checked(positions)
        return self._in_chunks(numbers, inverse=False) if self._table is None else self._table.take(numbers)

    def inverse(self, items: NDArray[np.int64] | Sequence[int] | int) -> NDArray[np.int64]:
        """The positions of these items."""
        numbers = self._checked(items)
        return self._in_chunks(numbers, inverse=True) if self._table is None else np.argsort(self._table).take(numbers)

    def _checked(self, numbers: NDArray[np.int64] | Sequence[int] | int) -> NDArray[np.int64]:
        given = np.asarray(numbers)
        if given.dtype.kind not in "iu":
            if given.size:
                raise TypeError(f"positions must be integers, not {given.dtype}")
            given = given.astype(np.int64)
        if given.size and (int(given.min()) < 0 or int(given.max()) >= self._n):
            outside = given[(given < 0) | (given >= self._n)].flat[0]
            raise IndexError(f"number {outside} is outside range({self._n})")
        return given.astype(np.int64, copy=False)

    def _in_chunks(self, numbers: NDArray[np.int64], *, inverse: bool) -> NDArray[np.int64]:
        flat = numbers.reshape(-1).view(np.uint64) if numbers.flags.c_contiguous else numbers.ravel().view(np.uint64)
        out = np.empty(len(flat), np.uint64)
        for begin in range(0, len(flat), CHUNK):
            out[begin : begin + CHUNK] = walked(flat[begin : begin + CHUNK], self._n, self._keys, inverse=inverse)
        return out.view(np.int64).reshape(numbers.shape)

    @staticmethod
    def of_each(
        permutations: Sequence["Permutation"], bounds: Sequence[int], numbers: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """permutations[k] of numbers[bounds[k] : bounds[k + 1]], for every k: the same as one by one, and faster where
        there are many of few numbers each. Numbers must be inside."""
        out = np.empty(len(numbers), np.int64)
        together: list[int] = []
        for k, permutation in enumerate(permutations):
            begin, end = bounds[k], bounds[k + 1]
            if permutation._table is None and end - begin < FEW:
                together.append(k)
            else:
                out[begin:end] = permutation(numbers[begin:end])
        if not together:
            return out
        counts = [bounds[k + 1] - bounds[k] for k in together]
        places = np.concatenate([np.arange(bounds[k], bounds[k + 1]) for k in together])
        nets = [permutations[k] for k in together]
        keys = np.repeat(np.array([net._keys for net in nets], np.uint64).T, counts, axis=1)  # (ROUNDS, n)
        sides = np.repeat(np.array([net._sides for net in nets], np.uint64).T, counts, axis=1)  # (2, n)
        ends = np.repeat(np.array([net._n for net in nets], np.uint64), counts)
        values = numbers[places].astype(np.uint64)
        out[places] = _walked(values, ends, (sides[0], sides[1]), list(keys), inverse=False).view(np.int64)
        return out


def walked(values: Words, n: int, keys: Sequence[_Each], *, inverse: bool) -> Words:
    """The permuted values, all below n: the network, with cycle walking.

    Of few items it prefers some permutations: up to SMALL of them a table is better, or a turn (stream_draws.py).
    keys has the key of each round: one for all values, or an array with one a value, where each value is permuted by a
    bijection of its own.
    """
    return _walked(values, np.uint64(n), _sides(n), keys, inverse=inverse)


def _sides(n: int) -> tuple[np.uint64, np.uint64]:
    """The sides of the grid for n items: the first is the square root, rounded up."""
    side = isqrt(n - 1) + 1
    return np.uint64(side), np.uint64(-(-n // side))


def _walked(values: Words, ends: _Each, sides: tuple[_Each, _Each], keys: Sequence[_Each], *, inverse: bool) -> Words:
    """walked(), for values of one grid or each of its own."""
    out = _network(values, sides, keys, inverse=inverse)
    outside = np.flatnonzero(out >= ends)
    while outside.size:
        ends_of, left, right, *keys_of = (
            part[outside] if isinstance(part, np.ndarray) else part for part in (ends, *sides, *keys)
        )
        again = _network(out[outside], (left, right), keys_of, inverse=inverse)
        out[outside] = again
        outside = outside[again >= ends_of]
    return out


def _network(values: Words, sides: tuple[_Each, _Each], keys: Sequence[_Each], *, inverse: bool) -> Words:
    left, right = np.divmod(values, sides[1])
    halves = [(left, sides[0]), (right, sides[1])]
    for number in reversed(range(ROUNDS)) if inverse else range(ROUNDS):
        changed, size = halves[number % 2]
        other, _ = halves[1 - number % 2]
        moved = mixed(other, keys[number])
        moved -= moved // size * size  # moved % size; NumPy divides by a constant faster than it takes remainders
        if inverse:
            np.subtract(size, moved, out=moved)  # changed - moved, without going below zero
        changed += moved
        np.minimum(changed, changed - size, out=changed)  # mod size: where it was less, the difference wraps
    left *= sides[1]
    left += right
    return left


def mixed(values: Words, key: _Each) -> Words:
    """A hash of each value under key, all 64 bits of it good (two rounds of multiply and xor-shift)."""
    out = values + key
    out *= np.uint64(0x9E3779B97F4A7C15)
    out ^= out >> np.uint64(32)
    out *= np.uint64(0xD6E8FEB86659FD93)
    out ^= out >> np.uint64(32)
    return out
