"""Orders: what it costs to say which sample comes when, and what pools of shards are worth.

    python -m benchmarks.orders [--check]

Nothing is read but the batches of packed rows, whose documents lie in memory. A state's time is the median of 300 by
the wall. Each other time is the least processor time of five rounds, each about other positions, since what was worked
out for the last ones is remembered. The table of pools is that of docs/provenance.md: 10,000 shards of a million
samples, batches of 256, a reader that keeps 1 % of them.
"""

import argparse
import time
import tracemalloc
from collections.abc import Callable
from itertools import count

import numpy as np

from benchmarks.measure import Bound, conclude, describe_machine
from benchmarks.packing import make_lengths
from headrace import (
    MixedDataset,
    PackedDataset,
    Plan,
    ShuffledDataset,
    StatefulDataLoader,
    TokenBudgetBatches,
    WithLengths,
    stack,
)
from headrace.inspection.quality import Layout, shuffle_qualities
from headrace.planning import BatchBudget, Permutation, pack, plan_token_batches, window_order
from headrace.planning.blocks import permuted_in_blocks
from headrace.planning.pools import PooledShuffle

TRILLION = 10**12
CHUNK = 8192
SHARDS = 100_000
WINDOW = 65_536


def seconds(work: Callable[..., object], *arguments: object) -> float:
    """The least processor time of a round; work gets the round's number, and the arguments."""
    taken = []
    for number in range(5):
        begun = time.process_time()
        work(number, *arguments)
        taken.append(time.process_time() - begun)
    return min(taken)


def show(what: str, value: float, unit: str) -> float:
    """Print a line; the value."""
    print(f"  {what:74} {value:9,.2f} {unit}")
    return value


def costs_of_items() -> float:
    """Positions to items; nanoseconds an item of a global shuffle."""
    many, alone = np.arange(CHUNK), np.arange(CHUNK) * 10_000_019
    keyed = count()
    permutation = Permutation(TRILLION, 7)
    shown = show(
        "global shuffle, an item, in chunks of 8,192",
        1e9 / (16 * CHUNK) * seconds(lambda n: [permutation(many + (16 * n + k) * CHUNK) for k in range(16)]),
        "ns",
    )
    show(
        "a permutation keyed, and its first eight items",
        1e6 / 100 * seconds(lambda n: [Permutation(TRILLION, next(keyed))(np.arange(8)) for _ in range(100)]),
        "us",
    )
    for block in (256, 2048):
        for name, numbers in (("neighbours", many), ("alone", alone)):
            taken = seconds(lambda n, block, of: permuted_in_blocks(of + n * CHUNK, TRILLION, block, 7), block, numbers)
            show(f"in blocks of {block:,}, an item, {name}", 1e9 / CHUNK * taken, "ns")
    shard_items = np.full(SHARDS, TRILLION // SHARDS)
    pooled = PooledShuffle(shard_items, 64 * TRILLION // SHARDS, 8, 7)
    show(
        "an epoch's first item, pooled, of 100,000 shards",
        1e3 * seconds(lambda n: pooled(np.array([n * TRILLION]))),
        "ms",
    )
    for name, numbers in (("neighbours", many), ("alone", alone)):
        taken = seconds(lambda n, of: pooled(of + n * CHUNK), numbers)
        show(f"pooled shuffle, an item, {name}", 1e9 / CHUNK * taken, "ns")
    keys = np.random.default_rng(1).integers(1, 2000, 100_000)
    show("a window of 100,000 sorted into packs of 64", 1e3 * seconds(lambda n: window_order(keys, 64, n, 7)), "ms")
    return shown


def costs_of_plans() -> None:
    """Which samples a step has, and when a sample is seen."""
    plan = Plan(ShuffledDataset(range(TRILLION), 7), 1024)
    show("a step of 1,024 rows of 10^12 samples", 1e3 * seconds(lambda n: plan.samples_of_step(10**8 + n)), "ms")
    show("when a sample of 10^12 is seen", 1e3 * seconds(lambda n: plan.when_seen("", 10**11 + n, epochs=[n])), "ms")


def peak_bytes(work: Callable[[], object]) -> int:
    """The most memory that work takes."""
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def costs_of_packing() -> None:
    """Packed rows, beyond what benchmarks.packing says."""
    lengths = make_lengths(5 * WINDOW)[:WINDOW]
    for number in (4096, WINDOW):
        packed = pack(lengths[:number], 131_072, strategy="best_fit", long="split", seed=0)
        what = f"rows of 131,072 from {number:,} documents: {packed.num_rows} rows, full"
        show(what, 100 * packed.tokens / (packed.num_rows * 131_072), "%")
    few = lengths[:4096]
    taken = seconds(lambda n: pack(few, 2048, strategy="best_fit", long="split", seed=n))
    show("4,096 documents packed into rows of 2,048", 1e3 * taken, "ms")
    worst = np.random.default_rng(2).permutation(WINDOW) + 1
    taken = seconds(lambda n: pack(worst, 2 * WINDOW, strategy="best_fit", long="split", seed=n))
    show("65,536 documents of 65,536 lengths packed into rows of 131,072", 1e3 * taken, "ms")
    texts = WithLengths([np.zeros(length, np.uint16) for length in lengths.tolist()], lengths)
    rows = PackedDataset(texts, 2048)
    addresses = rows.addresses(0, 0)
    for size in (8, 64):
        taken = seconds(lambda n, size: stack()(rows.__getitems__(addresses[n * size : (n + 1) * size])), size)
        show(f"a batch of {size} packed rows of 2,048, documents in memory", 1e3 * taken, "ms")


def costs_of_token_budgets() -> None:
    """Batches of a token budget, beyond what benchmarks.token_batches says."""
    drawn = np.random.default_rng(1).lognormal(6, 1.5, 2 * WINDOW)
    lengths = np.clip(drawn, 1, WINDOW).astype(np.int64)
    for samples, together in ((WINDOW, 64), (2 * WINDOW, 64), (WINDOW, 8)):
        base = WithLengths(range(samples), lengths[:samples])
        report = TokenBudgetBatches(base, WINDOW, together, cost=(1, 1 / 4096), window=samples).report()
        what = f"long samples, a window of {samples:,}: {report['steps']} steps of {together}, off balance"
        show(what, 100 * report["imbalance"], "%")
    capped = np.minimum(lengths[:WINDOW], 2048)
    for batches in (24, 2):
        budget = BatchBudget(-(-int(capped.sum()) // batches) + 2048, batches, padded=False)
        taken = seconds(lambda n, budget: plan_token_batches(capped, budget, n), budget)
        show(f"samples planned a second, unpadded, {batches} batches of a window", WINDOW / taken / 1e6, "million")
    budget = BatchBudget(8192, 64)
    taken_bytes = peak_bytes(lambda: plan_token_batches(capped, budget, 7))
    show("memory for a plan, a sample", taken_bytes / WINDOW, "bytes")


def cost_of_a_state() -> float:
    """Seconds for the state of a loader over a packed mixture of 40 sources, right behind each of 300 batches."""
    lengths = make_lengths(WINDOW)[:2000]
    texts = WithLengths([np.zeros(length, np.uint16) for length in lengths.tolist()], lengths)
    mixed = MixedDataset({f"source {k}": texts for k in range(40)}, [1 + k for k in range(40)], seed=7)
    taken = []
    with StatefulDataLoader(
        PackedDataset(mixed, 2048, window=4096), local_batch_size=8, rank=0, world_size=1
    ) as loader:
        for batches, _ in enumerate(loader):
            begun = time.perf_counter()
            loader.state_dict()
            taken.append(time.perf_counter() - begun)
            if batches == 300:
                break
    a_state = float(np.median(taken))
    show("a state, behind a batch of a packed mixture of 40 sources", 1e6 * a_state, "us")
    return a_state


def main() -> int:
    """Measure and print; 1 when --check is given and a bound is missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    print(describe_machine(), "\n")
    an_item = costs_of_items()
    costs_of_plans()
    costs_of_packing()
    costs_of_token_budgets()
    a_state = cost_of_a_state()
    print("\n  shuffle   samples a pool   distance from ideal   bytes fetched, times the data")
    layout = Layout(np.full(10_000, 10**6), TRILLION, TRILLION // 100, 256)
    for found in shuffle_qualities(layout):
        pool = "" if found.pool_items is None else f"{found.pool_items:,}"
        print(f"  {found.order:<8} {pool:>15} {found.distance:>21.3f} {found.fetched_bytes / TRILLION:>31,.1f}")
    bounds = [
        Bound("a global shuffle takes at most 200 ns an item", 200 / an_item, 1.0),
        Bound("a state takes less than 50 us", 50e-6 / a_state, 1.0),
    ]
    return conclude(bounds, options.check)


if __name__ == "__main__":
    raise SystemExit(main())
