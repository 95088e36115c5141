"""Token-budget batches: balance, padding and planning speed, against batches of a fixed count.

    python -m benchmarks.token_batches [--check] [--samples N]

Lengths are lognormal (median 403 tokens, sigma 1), cut at 2,048; a batch may take 8,192 tokens, and 64 batches are a
step, as for 64 ranks. A batch costs c1 * L + c2 * L**2 a sample, cost = (1, 1/4096). Batches of a fixed count hold four
samples, the most that are certain to fit. `in buckets` is what d9d's length-sorted buffers give: sort a buffer, cut it
into packs of a step, permute packs and samples; with d9d's own buffer of 1,024 and with our window.

Imbalance is the cost of a step's dearest batch over the step's mean, less 1: what the other ranks wait. Utilisation is
tokens over 8,192 a batch. Samples a second are planned, by processor time; nothing is read.
"""

import argparse
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import Bound, Side, conclude, describe_machine, interleaved, timed
from headrace.planning import BatchBudget, Permutation, derive_seed, plan_token_batches, window_order

CAP, BUDGET, STEP, COUNT = 2048, 8192, 64, 4
WINDOW = 65_536
COST = (1.0, 1 / 4096)

_Ints = NDArray[np.int64]
Batches = tuple[_Ints, _Ints]  # sample numbers, and where each batch begins among them


def make_lengths(samples: int) -> _Ints:
    """Lengths in a random order."""
    return np.clip(np.random.default_rng(1).lognormal(6, 1, samples), 1, CAP).astype(np.int64)


def token_budget(lengths: _Ints, padded: bool) -> Batches:
    """Ours, window by window; the last one takes the rest."""
    budget = BatchBudget(BUDGET, STEP, padded=padded, cost=COST)
    num_windows = max(1, len(lengths) // WINDOW)
    samples, offsets = [], [np.zeros(1, np.int64)]
    for window in range(num_windows):
        begin = window * WINDOW
        end = len(lengths) if window == num_windows - 1 else begin + WINDOW
        plan = plan_token_batches(lengths[begin:end], budget, derive_seed(0, "window", 0, window))
        samples.append(plan.samples + begin)
        offsets.append(plan.offsets[1:] + offsets[-1][-1])
    return np.concatenate(samples), np.concatenate(offsets)


def fixed_count(order: _Ints) -> Batches:
    """Batches of COUNT in this order; what fills no step is left out."""
    order = order[: len(order) // (COUNT * STEP) * COUNT * STEP]
    return order, np.arange(0, len(order) + 1, COUNT, dtype=np.int64)


def at_random(lengths: _Ints) -> Batches:
    """A global shuffle."""
    return fixed_count(Permutation(len(lengths), 7)(np.arange(len(lengths))))


def in_buckets(lengths: _Ints, buffer: int) -> Batches:
    """Sorted inside each buffer, in packs of a step."""
    orders = [
        window_order(lengths[begin : begin + buffer], COUNT * STEP, begin // buffer, 7) + begin
        for begin in range(0, len(lengths), buffer)
    ]
    return fixed_count(np.concatenate(orders))


def quality(lengths: _Ints, batches: Batches, padded: bool) -> tuple[float, float, float, float]:
    """Mean and greatest imbalance of a step, padding of all that is taken, and utilisation."""
    samples, offsets = batches
    sizes, of = np.diff(offsets), lengths[samples]
    longest = np.maximum.reduceat(of, offsets[:-1])
    tokens = np.add.reduceat(of, offsets[:-1])
    taken = longest * sizes if padded else tokens
    if padded:
        costs = sizes * (COST[0] * longest + COST[1] * longest**2)
    else:
        costs = np.add.reduceat(COST[0] * of + COST[1] * of**2, offsets[:-1])
    steps = costs.reshape(-1, STEP)
    imbalances = steps.max(axis=1) / steps.mean(axis=1) - 1
    return (
        float(imbalances.mean()),
        float(imbalances.max()),
        1 - int(tokens.sum()) / int(taken.sum()),
        int(tokens.sum()) / (BUDGET * len(sizes)),
    )


def main() -> int:
    """Measure and print; 1 when --check is given and a bound is missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--samples", type=int, default=1_000_000)
    options = parser.parse_args()
    print(describe_machine())
    lengths = make_lengths(options.samples)
    plans: dict[str, tuple[Callable[[], Batches], bool]] = {
        "token budget, padded": (lambda: token_budget(lengths, True), True),
        "token budget, unpadded": (lambda: token_budget(lengths, False), False),
        "random, four a batch, padded": (lambda: at_random(lengths), True),
        "random, four a batch, unpadded": (lambda: at_random(lengths), False),
        "in buckets of 1,024, four, padded": (lambda: in_buckets(lengths, 1024), True),
        f"in buckets of {WINDOW:,}, four, padded": (lambda: in_buckets(lengths, WINDOW), True),
    }

    def side(make: Callable[[], Batches]) -> Side:
        def work() -> int:
            make()
            return len(lengths)

        return lambda: timed(work)

    seconds = interleaved({name: side(make) for name, (make, _) in plans.items()})
    rates = {name: 1 / sorted(one.cpu for one in taken)[len(taken) // 2] for name, taken in seconds.items()}
    print(f"\n{len(lengths):,} samples, {STEP} batches a step, at most {BUDGET:,} tokens a batch")
    print(f"  {'':36} {'batches':>8} {'imbalance':>10} {'at most':>8} {'padding':>8} {'utilised':>9} {'samples/s':>11}")
    found = {}
    for name, (make, padded) in plans.items():
        batches = make()
        found[name] = mean, most, waste, utilisation = quality(lengths, batches, padded)
        print(
            f"  {name:36} {len(batches[1]) - 1:8,} {mean:10.2%} {most:8.2%} {waste:8.2%} {utilisation:9.1%} "
            f"{rates[name]:11,.0f}"
        )
    bounds = []
    for name in ("token budget, padded", "token budget, unpadded"):
        bounds.append(Bound(f"{name}: 2% over the mean imbalance", 0.02 / max(found[name][0], 1e-9), 1.0))
        bounds.append(Bound(f"{name}: million samples planned a second", rates[name] / 1e6, 1.0))
    waste = found["token budget, padded"][2]
    bounds.append(Bound("token budget, padded: 1% over the padding", 0.01 / max(waste, 1e-9), 1.0))
    return conclude(bounds, options.check)


if __name__ == "__main__":
    raise SystemExit(main())
