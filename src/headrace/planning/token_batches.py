"""Batches of at most so many tokens, in steps of equal cost: one window of samples, planned from lengths alone.

    lengths       9 2 7 3 3 8 ...           a window of samples, in the order of the base
       | sort                               longest first
       | cut (padded) or deal (unpadded)    batches within the budget, as many as whole steps need
       | sort by cost, cut                  a step is batches_per_step neighbours, so they cost nearly the same
       | permute                            the steps, and the batches of each
    batches       [7 8] [9] | [2 3 3] ...

Padded: a batch takes its longest sample times its count. The sorted samples are cut greedily; the least budget is
sought that still gives the number of batches that whole steps need, and one token less from some batch on gives exactly
that number. Unpadded: a batch takes the sum of its samples. They are dealt longest first, each to the batch that has
least so far (Graham, "Bounds on multiprocessing timing anomalies", SIAM J. Appl. Math. 17, 1969), many at a time.

The order is decided in integers. docs/design/token-batches.md has the rules, the bounds and why.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from headrace.errors import OptionError, OrderError
from headrace.planning.permutation import Permutation, derive_seed

__all__ = ["MAX_WINDOW", "BatchBudget", "TokenBatches", "plan_token_batches"]

MAX_WINDOW = 1 << 24  # samples; with costs of up to 2^38 their sum stays in int64
_COST_UNITS = float(1 << 38)  # of the dearest sample
_LONGEST = 1 << 38

_Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class BatchBudget:
    """What a batch may take, what it costs, and how many make a step. Checked when it is made.

    A batch takes its longest sample times its count (padded) or the sum of its samples, in tokens; a sample of no
    tokens counts as one token. It costs c1 * L + c2 * L**2, cost = (c1, c2), for each of its samples; padded, L is its
    longest. long says what becomes of a sample over max_tokens: OrderError, left out, or a batch by itself.
    """

    max_tokens: int
    batches_per_step: int
    padded: bool = True
    cost: tuple[float, float] = (1, 0)
    long: Literal["error", "drop", "alone"] = "error"
    max_samples: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_tokens", "batches_per_step", "max_samples"):
            value = getattr(self, name)
            if value is None and name == "max_samples":
                continue
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                raise TypeError(f"{name} must be an integer, not {value!r}")
            if value < 1:
                raise OptionError(name, value, "at least 1")
            object.__setattr__(self, name, int(value))
        if self.batches_per_step > MAX_WINDOW:
            raise OptionError("batches_per_step", self.batches_per_step, f"at most {MAX_WINDOW}")
        if not isinstance(self.padded, bool):
            raise TypeError(f"padded must be True or False, not {self.padded!r}")
        if self.long not in ("error", "drop", "alone"):
            raise OptionError("long", self.long, "'error', 'drop' or 'alone'")
        object.__setattr__(self, "cost", _checked_cost(self.cost))


@dataclass(frozen=True, slots=True)
class TokenBatches:
    """The batches of a window, in order: batch k has samples[offsets[k] : offsets[k + 1]], longest first.

    Every batches_per_step of them are a step. All arrays are int64.
    """

    samples: _Int64s  # (num_batched,) numbers in the window
    offsets: _Int64s  # (num_rows + 1,)
    tokens: _Int64s  # (num_rows,) in the samples of each batch
    taken: _Int64s  # (num_rows,) of the budget by each batch; over it only where a sample is alone
    costs: _Int64s  # (num_rows,) in units of this window, at most 2^62 together
    dropped: _Int64s  # (num_dropped,) numbers in the window of samples over the budget, left out
    alone: _Int64s  # (num_alone,) numbers in the window of samples over the budget, each in a batch by itself

    @property
    def num_rows(self) -> int:
        """How many batches there are: a multiple of batches_per_step."""
        return len(self.tokens)

    def imbalances(self, batches_per_step: int) -> NDArray[np.float64]:
        """(num_steps,) cost of each step's dearest batch over the step's mean, less 1; 0 where a step costs nothing."""
        costs = self.costs.reshape(-1, batches_per_step).astype(np.float64)
        means = costs.mean(axis=1)
        dearest: NDArray[np.float64] = np.divide(costs.max(axis=1), means, out=np.ones_like(means), where=means > 0)
        return dearest - 1


def plan_token_batches(lengths: _Int64s, budget: BatchBudget, seed: int) -> TokenBatches:
    """The batches of samples of these lengths, as few steps as the method finds; none for no samples.

    Every sample is in one batch, unless dropped. A batch is empty only where there are fewer samples than the fewest
    whole steps have batches. OrderError for a sample over the budget where that is an error, a negative length, or
    more than MAX_WINDOW samples.
    """
    given = _checked_lengths(lengths)
    long = np.flatnonzero(given > budget.max_tokens)
    if len(long) and budget.long == "error":
        raise OrderError(
            f"sample {long[0]} of the window has {given[long[0]]} tokens, which max_tokens={budget.max_tokens} does "
            "not hold; pass a larger max_tokens, or long='drop' or 'alone'"
        )
    counted = np.maximum(given, 1)
    order = np.argsort(-counted, kind="stable")
    dropped = alone = long[:0]
    if budget.long == "drop":
        dropped, order = long, order[len(long) :]
    else:
        alone = long
    sorted_lengths = counted[order]
    units = _cost_units(sorted_lengths, budget.cost)
    if budget.padded:
        offsets = _cut(sorted_lengths, budget)
        longest = np.zeros(len(offsets) - 1, np.int64)
        dearest = np.zeros(len(offsets) - 1, np.int64)
        sizes = np.diff(offsets)
        longest[sizes > 0] = sorted_lengths[offsets[:-1][sizes > 0]]
        dearest[sizes > 0] = units[offsets[:-1][sizes > 0]]
        taken, costs = longest * sizes, dearest * sizes
    else:
        owners, num_batches = _dealt(sorted_lengths, units, len(alone), budget)
        grouped = np.argsort(owners, kind="stable")
        order, sorted_lengths, units = order[grouped], sorted_lengths[grouped], units[grouped]
        offsets = _offsets(np.bincount(owners, minlength=num_batches))
        taken, costs = _sums(sorted_lengths, offsets), _sums(units, offsets)
    rows = _in_steps(costs, budget.batches_per_step, seed)
    sizes = np.diff(offsets)[rows]
    starts = _offsets(sizes)
    samples = order[np.repeat(offsets[rows] - starts[:-1], sizes) + np.arange(len(order), dtype=np.int64)]
    return TokenBatches(
        samples, starts, _sums(given[samples], starts), taken[rows], costs[rows], dropped=dropped, alone=alone
    )


def _checked_cost(cost: object) -> tuple[float, float]:
    expected = "two finite numbers (c1, c2) of at least 0, not both 0: a sample of L tokens costs c1 * L + c2 * L**2"
    if not isinstance(cost, tuple | list) or len(cost) != 2:
        raise OptionError("cost", cost, expected)
    for one in cost:
        if isinstance(one, bool) or not isinstance(one, int | float | np.integer | np.floating):
            raise TypeError(f"cost must be two numbers, not {cost!r}")
    try:
        first, second = (float(one) for one in cost)
    except OverflowError:  # an integer beyond all floats
        raise OptionError("cost", cost, expected) from None
    if not (isfinite(first) and isfinite(second) and first >= 0 and second >= 0 and first + second > 0):
        raise OptionError("cost", cost, expected)
    return first, second


def _checked_lengths(lengths: _Int64s) -> _Int64s:
    given = np.asarray(lengths, np.int64)
    if given.ndim != 1:
        raise OrderError(f"lengths have {given.ndim} dimensions; expected one length a sample")
    if len(given) > MAX_WINDOW:
        raise OrderError(f"a window has {len(given)} samples; expected at most {MAX_WINDOW}, with a smaller window")
    outside = np.flatnonzero((given < 0) | (given >= _LONGEST))
    if len(outside):
        raise OrderError(f"sample {outside[0]} of the window has length {given[outside[0]]}; expected 0 to 2**38 - 1")
    return given


def _cost_units(sorted_lengths: _Int64s, cost: tuple[float, float]) -> _Int64s:
    """The cost of each sample as an integer, in 2^38ths of the dearest; tokens where cost is linear.

    Each step is one rounded operation an element, the same on every machine and never decreasing in the length.
    """
    if cost[1] == 0 or len(sorted_lengths) == 0:
        return sorted_lengths
    scale = max(cost)
    linear, square = cost[0] / scale, cost[1] / scale
    values = sorted_lengths.astype(np.float64)
    factors = values * square
    factors += linear
    values *= factors
    values /= values[0]
    values *= _COST_UNITS
    return values.astype(np.int64) + 1  # + 1: nothing is free, or one batch would get all of it


def _cut(sorted_lengths: _Int64s, budget: BatchBudget) -> _Int64s:
    """(num_batches + 1,) where each padded batch begins among the samples, longest first."""
    num_samples, per_step = len(sorted_lengths), budget.batches_per_step
    ascending = sorted_lengths[::-1].tolist()
    most = min(budget.max_samples or num_samples, num_samples)

    def starts(taken: int, tokens: int) -> _Int64s:
        runs = np.array(_greedy_runs(ascending, num_samples - taken, tokens, most), np.int64).reshape(-1, 2)
        return np.minimum(_offsets(np.repeat(runs[:, 0], runs[:, 1])) + taken, num_samples)

    def count(taken: int, tokens: int) -> int:
        return sum(batches for _, batches in _greedy_runs(ascending, num_samples - taken, tokens, most))

    wanted = _whole(count(0, budget.max_tokens), per_step)
    if wanted >= num_samples:  # one sample a batch, and empty batches for what is missing
        return np.minimum(np.arange(wanted + 1, dtype=np.int64), np.int64(num_samples))
    tokens = _least(lambda tokens: count(0, tokens) <= wanted, 0, budget.max_tokens)
    begins = starts(0, tokens)
    # With one token less the batches are too many. Taking it from the batches behind the first `kept` only gives a
    # number between the two, and one more kept changes the number by at most one.
    kept = _least(lambda kept: kept + count(int(begins[kept]), tokens - 1) <= wanted, 0, len(begins) - 1)
    return np.concatenate([begins[:kept], starts(int(begins[kept]), tokens - 1)])


def _greedy_runs(ascending: list[int], left: int, tokens: int, most: int) -> list[tuple[int, int]]:
    """(samples a batch, batches) when the `left` shortest samples are cut from the longest of them on.

    A batch has as many as its longest allows, from 1 to most; the last one may have fewer.
    """
    runs = []
    while left > 0:
        size = min(most, max(1, tokens // ascending[left - 1]))
        shorter = 0 if size == most else bisect_left(ascending, tokens // (size + 1) + 1, 0, left)
        batches = -(-(left - shorter) // size)  # those that begin with a sample that allows no more
        runs.append((size, batches))
        left -= batches * size
    return runs


def _dealt(sorted_lengths: _Int64s, units: _Int64s, num_alone: int, budget: BatchBudget) -> tuple[_Int64s, int]:
    """The batch of each sample, and how many batches there are. The first num_alone samples have one each."""
    lengths, per_step = sorted_lengths[num_alone:], budget.batches_per_step
    num_samples = len(lengths)
    total = int(lengths.sum())
    at_least = max(
        -(-total // budget.max_tokens),
        int(np.count_nonzero(lengths > budget.max_tokens // 2)),
        -(-num_samples // (budget.max_samples or max(1, num_samples))),
    )
    found: dict[int, _Int64s] = {}

    def fits(steps: int) -> bool:
        for measure in (units[num_alone:], lengths):  # level costs are better, level tokens need less room
            owners = _deal(measure, lengths, steps * per_step - num_alone, budget)
            if owners is not None:
                found[steps] = owners
                return True
            if budget.cost[1] == 0:
                break  # both measures are the same
        return False

    fewest = _whole(num_alone + at_least, per_step) // per_step
    steps, ahead = fewest, 1
    enough = _whole(num_alone + num_samples, per_step) // per_step  # one sample a batch always fits
    while not fits(steps):
        fewest, steps, ahead = steps + 1, min(steps + ahead, enough), 2 * ahead
    steps = _least(fits, fewest, steps)
    if steps not in found:
        fits(steps)
    own = np.arange(num_alone, dtype=np.int64)
    return np.concatenate([own, found[steps] + num_alone]), steps * per_step


def _deal(measure: _Int64s, lengths: _Int64s, num_batches: int, budget: BatchBudget) -> _Int64s | None:
    """The batch of each sample when each goes to the batch whose measure is least, of equal ones to the first.

    None where a batch gets more than max_tokens. A batch of max_samples gets no more.
    """
    num_samples, most = len(lengths), budget.max_samples
    owners = np.empty(num_samples, np.int64)
    loads, tokens, held = (np.zeros(num_batches, np.int64) for _ in range(3))
    done = 0
    while done < num_samples:
        by_load = np.argsort(loads, kind="stable")
        if most is not None:
            by_load = by_load[held[by_load] < most]
        together = min(len(by_load), num_samples - done)
        if together == 0:
            return None
        # The next samples go to the emptiest batches in turn, as long as none that got one is the emptiest again.
        before = loads[by_load[:together]]
        after = before + measure[done : done + together]
        again = before[1:] >= np.minimum.accumulate(after)[:-1]
        if again.any():
            together = int(again.argmax()) + 1
        chosen = by_load[:together]
        loads[chosen] = after[:together]
        tokens[chosen] += lengths[done : done + together]
        held[chosen] += 1
        if int(tokens[chosen].max()) > budget.max_tokens:
            return None
        owners[done : done + together] = chosen
        done += together
    return owners


def _in_steps(costs: _Int64s, per_step: int, seed: int) -> _Int64s:
    """The batches in their final order: sorted by cost and cut into steps, both then permuted."""
    num_steps = len(costs) // per_step
    steps = np.argsort(-costs, kind="stable").reshape(num_steps, per_step)
    keys = Permutation(len(costs), derive_seed(seed, "batches"))(np.arange(len(costs), dtype=np.int64))
    inside = np.argsort(keys.reshape(num_steps, per_step), axis=1)
    order = Permutation(num_steps, derive_seed(seed, "steps"))(np.arange(num_steps, dtype=np.int64))
    return np.take_along_axis(steps, inside, axis=1)[order].reshape(-1)


def _least(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The number from low to high that bisection finds: holds(high) is known, and it holds from the number on."""
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _whole(batches: int, per_step: int) -> int:
    return -(-batches // per_step) * per_step


def _offsets(sizes: _Int64s) -> _Int64s:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])


def _sums(values: _Int64s, offsets: _Int64s) -> _Int64s:
    return np.diff(_offsets(values)[offsets])
