"""A part of range(n), in order: which item is the k-th of the part, and how many of the part come before an item.

    items        0 1 2 3 4 5 6 7 8 9
    chosen       . x . . x x . . . x          select(0) = 1   select(3) = 9        rank(4) = 1   rank(6) = 3

It is held in the smallest of three forms, whichever way it was given:

    "ids"        the chosen items, sorted               8 bytes a chosen item
    "without"    the items left out, sorted             8 bytes an item left out
    "bitmap"     one bit an item, little-endian, and the number of chosen items before every 512 of them      9/64 bytes

A bit is found by rank and select: bisect the counts, then the 8 words of that block, then the bits of the word.
"""

from collections.abc import Iterable, Iterator
from functools import cached_property
from hashlib import blake2b

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headrace.errors import OptionError
from headrace.planning.permutation import MAX_ITEMS

__all__ = ["Selection"]

WORD = 64
BLOCK_WORDS = 8
BLOCK = WORD * BLOCK_WORDS  # bits between two counts
CHUNK = 1 << 20  # items turned into bits at a time; a multiple of BLOCK

_Ints = NDArray[np.int64]
_Words = NDArray[np.uint64]


class Selection:
    """A subset of range(num_items), made by of_ids, without_ids or of_bitmap. Immutable.

    `len(selection)` items are chosen; `item in selection` tells whether one is. Equal subsets of equal ranges are held
    in the same form and have the same `digest`, however they were given.
    """

    def __init__(self, form: str, num_items: int, ids: _Ints | None, words: _Words | None) -> None:
        self.form = form  # "ids" | "without" | "bitmap"
        self.num_items = num_items
        self._ids = np.empty(0, np.int64) if ids is None else ids  # ascending
        self._words = np.empty(0, np.uint64) if words is None else words  # (whole blocks of 8 words,)
        match form:
            case "ids":
                self._count = len(self._ids)
            case "without":
                self._count = num_items - len(self._ids)
                # an item that is left out has this many chosen ones before it
                self._chosen_before = self._ids - np.arange(len(self._ids), dtype=np.int64)
            case _:
                self._before = _counts_before(self._words)  # (blocks + 1,) chosen items before each block, then all
                self._count = int(self._before[-1])

    @classmethod
    def of_ids(cls, ids: ArrayLike, num_items: int, *, option: str = "keep") -> "Selection":
        """The items in ids, which come in any order. OptionError naming option for one outside or given twice."""
        ascending = _ascending(ids, num_items, option)
        twice = np.flatnonzero(ascending[1:] == ascending[:-1])
        if len(twice):
            raise OptionError(option, int(ascending[twice[0]]), "each item once; this one is given more than once")
        return cls._smallest(ascending, num_items, left_out=False)

    @classmethod
    def without_ids(cls, ids: ArrayLike, num_items: int, *, option: str = "exclude") -> "Selection":
        """All items but those in ids, which come in any order and may repeat. OptionError for one outside."""
        ascending = _ascending(ids, num_items, option)
        fresh = np.ones(len(ascending), bool)
        np.not_equal(ascending[1:], ascending[:-1], out=fresh[1:])
        return cls._smallest(ascending if fresh.all() else ascending[fresh], num_items, left_out=True)

    @classmethod
    def of_bitmap(cls, bitmap: NDArray[np.bool_]) -> "Selection":
        """The items at which bitmap, of shape (num_items,), is true."""
        pieces = (bitmap[begin : begin + CHUNK] for begin in range(0, len(bitmap), CHUNK))
        return cls._of_pieces(pieces, len(bitmap))

    @classmethod
    def _smallest(cls, ascending: _Ints, num_items: int, *, left_out: bool) -> "Selection":
        """Of these distinct items, or of all others: as they are where that is the smallest form."""
        form = _form(num_items, num_items - len(ascending) if left_out else len(ascending))
        if form == ("without" if left_out else "ids"):
            return cls(form, num_items, ascending, None)
        return cls._of_pieces(_marked(ascending, num_items, left_out), num_items)

    @classmethod
    def _of_pieces(cls, pieces: Iterable[NDArray[np.bool_]], num_items: int) -> "Selection":
        """Of a bitmap that comes in pieces of CHUNK items, the last one shorter."""
        whole = cls("bitmap", num_items, None, _packed(pieces, num_items))
        form = _form(num_items, len(whole))
        if form == "bitmap":
            return whole
        held = [np.flatnonzero(piece == (form == "ids")) + number * CHUNK for number, piece in enumerate(whole._bits())]
        return cls(form, num_items, np.concatenate([np.empty(0, np.int64), *held]), None)

    def intersection(self, other: "Selection") -> "Selection":
        """The items chosen in both, which are of one range."""
        if len(other) == other.num_items:
            return self
        if self.form == "ids" or other.form == "ids":
            few, many = (self, other) if self.form == "ids" else (other, self)
            return self._smallest(few._ids[many.holds(few._ids)], self.num_items, left_out=False)
        if self.form == other.form == "without":
            return self.without_ids(np.concatenate([self._ids, other._ids]), self.num_items)
        return self._of_pieces((a & b for a, b in zip(self._bits(), other._bits(), strict=True)), self.num_items)

    def _bits(self) -> Iterator[NDArray[np.bool_]]:
        """The bitmap of a form other than "ids", in chunks."""
        if self.form == "without":
            yield from _marked(self._ids, self.num_items, left_out=True)
            return
        octets = self._words.astype("<u8", copy=False).view(np.uint8)
        for begin in range(0, self.num_items, CHUNK):
            bits = np.unpackbits(octets[begin // 8 : (begin + CHUNK) // 8], bitorder="little")
            yield bits[: self.num_items - begin].view(bool)

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"Selection({self._count} of {self.num_items} items)"

    def __contains__(self, item: int) -> bool:
        return 0 <= item < self.num_items and bool(self.holds(np.array([item], np.int64))[0])

    @cached_property
    def digest(self) -> str:
        """32 hexadecimal digits: BLAKE2b of form, range and items, equal for equal selections."""
        digest = blake2b(f"{self.form}:{self.num_items}:".encode(), digest_size=16)
        held = self._words.astype("<u8", copy=False) if self.form == "bitmap" else self._ids.astype("<i8", copy=False)
        digest.update(held.data)
        return digest.hexdigest()

    @property
    def num_bytes(self) -> int:
        """What it takes in memory."""
        arrays = [self._ids, self._words]
        arrays += [self._chosen_before] if self.form == "without" else []
        arrays += [self._before] if self.form == "bitmap" else []
        return sum(array.nbytes for array in arrays)

    def select(self, numbers: _Ints) -> _Ints:
        """The items that are number k among the chosen ones, of the same shape; IndexError outside range(len)."""
        numbers = _inside(numbers, self._count, "number", "chosen items")
        match self.form:
            case "ids":
                return self._ids.take(numbers)
            case "without":
                return numbers + np.asarray(np.searchsorted(self._chosen_before, numbers, side="right"), np.int64)
            case _:
                return self._bit_of(numbers.reshape(-1)).reshape(numbers.shape)

    def rank(self, items: _Ints) -> _Ints:
        """How many chosen items come before each of these, of the same shape; IndexError outside range(num_items)."""
        items = _inside(items, self.num_items, "item", "items")
        match self.form:
            case "ids":
                return np.asarray(np.searchsorted(self._ids, items), np.int64)
            case "without":
                return items - np.asarray(np.searchsorted(self._ids, items), np.int64)
            case _:
                return self._bits_before(items.reshape(-1)).reshape(items.shape)

    def before(self, edges: _Ints) -> _Ints:
        """As rank(), for places between items: num_items is one, with all chosen items before it."""
        inside = edges < self.num_items
        return np.where(inside, self.rank(np.where(inside, edges, 0)), self._count) if self.num_items else edges * 0

    def holds(self, items: _Ints) -> NDArray[np.bool_]:
        """Whether each of these items is chosen, of the same shape; IndexError outside range(num_items)."""
        items = _inside(items, self.num_items, "item", "items")
        if self.form == "bitmap":
            bits = self._words[items // WORD] >> (items % WORD).astype(np.uint64)
            return (bits & np.uint64(1)).astype(bool)
        if not len(self._ids):
            return np.full(items.shape, self.form == "without")
        places = np.minimum(np.searchsorted(self._ids, items), len(self._ids) - 1)
        found: NDArray[np.bool_] = (self._ids[places] == items) == (self.form == "ids")
        return found

    def _bit_of(self, numbers: _Ints) -> _Ints:
        blocks = np.searchsorted(self._before, numbers, side="right") - 1
        left = numbers - self._before[blocks]  # how many set bits of the block are to be passed
        words = self._words.reshape(-1, BLOCK_WORDS)[blocks]  # (numbers, 8)
        ends = np.cumsum(_popcount(words), axis=1)
        inside = (ends <= left[:, None]).sum(axis=1)
        rows = np.arange(len(numbers))
        word = words[rows, inside]
        left -= np.where(inside > 0, ends[rows, inside - 1], 0)
        bit = np.zeros(len(numbers), np.int64)
        for half in (32, 16, 8, 4, 2, 1):  # bisect the word: is the bit in the lower half, or behind its set bits?
            low = _popcount(word & np.uint64((1 << half) - 1))
            upper = left >= low
            left -= np.where(upper, low, 0)
            bit += half * upper
            word = np.where(upper, word >> np.uint64(half), word)
        items: _Ints = (blocks * BLOCK_WORDS + inside) * WORD + bit
        return items

    def _bits_before(self, items: _Ints) -> _Ints:
        blocks, places = np.divmod(items, BLOCK)
        words = self._words.reshape(-1, BLOCK_WORDS)[blocks]
        starts = np.arange(0, BLOCK, WORD)
        wanted = np.clip(places[:, None] - starts, 0, WORD - 1).astype(np.uint64)  # bits of each word that come before
        masks = (np.uint64(1) << wanted) - np.uint64(1)
        masks[places[:, None] - starts >= WORD] = np.uint64(0xFFFFFFFFFFFFFFFF)
        before: _Ints = self._before[blocks] + _popcount(words & masks).sum(axis=1)
        return before


def _form(num_items: int, chosen: int) -> str:
    """The smallest form; on equal sizes the first of ids, without, bitmap."""
    few = min(chosen, num_items - chosen)
    if 8 * few * 64 > 9 * num_items:
        return "bitmap"
    return "ids" if chosen == few else "without"


def _ascending(items: ArrayLike, num_items: int, option: str) -> _Ints:
    if not 0 <= num_items <= MAX_ITEMS:
        raise OptionError("num_items", num_items, "0 to 2**62")
    given = np.asarray(items)
    if given.size == 0:
        return np.empty(0, np.int64)
    if given.dtype.kind not in "iu" or given.ndim != 1:
        raise TypeError(f"{option} must be a bitmap or a row of integers, not {given.dtype} of shape {given.shape}")
    lowest, highest = int(given.min()), int(given.max())
    if lowest < 0 or highest >= num_items:
        outside = lowest if lowest < 0 else highest
        raise OptionError(option, outside, f"items in range({num_items})")
    ids: _Ints = given.astype(np.int64)  # a copy: the caller's array may change
    return ids if bool((ids[1:] >= ids[:-1]).all()) else np.sort(ids, kind="stable")


def _inside(numbers: _Ints, limit: int, what: str, of: str) -> _Ints:
    numbers = np.asarray(numbers, np.int64)
    if numbers.size and (int(numbers.min()) < 0 or int(numbers.max()) >= limit):
        outside = numbers[(numbers < 0) | (numbers >= limit)].flat[0]
        raise IndexError(f"{what} {outside} is outside range({limit}), the {of}")
    return numbers


def _marked(ascending: _Ints, num_items: int, left_out: bool) -> Iterator[NDArray[np.bool_]]:
    """The bitmap of these items, or of all but them, in chunks: never num_items * 8 bytes at once."""
    edges = np.searchsorted(ascending, np.arange(0, num_items + CHUNK, CHUNK))
    for number, begin in enumerate(range(0, num_items, CHUNK)):
        piece = np.full(min(CHUNK, num_items - begin), left_out)
        piece[ascending[edges[number] : edges[number + 1]] - begin] = not left_out
        yield piece


def _packed(pieces: Iterable[NDArray[np.bool_]], num_items: int) -> _Words:
    """The bits of these pieces, each of CHUNK items but the last, in whole blocks of words."""
    octets = np.zeros(-(-num_items // BLOCK) * (BLOCK // 8), np.uint8)
    for number, piece in enumerate(pieces):
        packed = np.packbits(piece, bitorder="little")
        octets[number * (CHUNK // 8) : number * (CHUNK // 8) + len(packed)] = packed
    return octets.view("<u8").astype(np.uint64, copy=False)


def _counts_before(words: _Words) -> _Ints:
    blocks = words.reshape(-1, BLOCK_WORDS)
    before = np.zeros(len(blocks) + 1, np.int64)
    step = CHUNK // BLOCK
    for begin in range(0, len(blocks), step):  # in chunks: the counts of all words at once would be 8 bytes a word
        before[begin + 1 : begin + step + 1] = _popcount(blocks[begin : begin + step]).sum(axis=1)
    return np.cumsum(before, out=before)


def _popcount(words: _Words) -> _Ints:
    """How many bits of each word are set (in parallel halves; NumPy has bitwise_count only from 2.0 on)."""
    fives, threes, fs = np.uint64(0x5555555555555555), np.uint64(0x3333333333333333), np.uint64(0x0F0F0F0F0F0F0F0F)
    sums = words - ((words >> np.uint64(1)) & fives)
    sums = (sums & threes) + ((sums >> np.uint64(2)) & threes)
    sums = (sums + (sums >> np.uint64(4))) & fs
    counts: _Ints = ((sums * np.uint64(0x0101010101010101)) >> np.uint64(56)).view(np.int64)
    return counts
