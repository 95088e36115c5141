"""StreamingDataset and StreamingDataLoader against mosaicml-streaming, LitData and a plain list.

    python -m benchmarks.streaming_dataset [--check] [--windows N] [--documents N]
                                           [--streaming PYTHON] [--litdata PYTHON]

Local directories, warm page cache, the same MDS files for Headrace and mosaicml-streaming (all samples of both are
compared once, by a sum that no order changes), everything shuffled as each library does it. Sides take
turns. Workers of mosaicml-streaming and LitData wait, so loading is compared with theirs by the wall clock. All else is
compared by processor time (with workers, that of all processes), which neighbours change little; on an idle machine
mosaicml-streaming's two threads overlap by up to a seventh. Tables have both clocks.

- Iterating, `for sample in dataset` in one process, whole epochs. mosaicml-streaming is measured with batch_size=32 and
  256 and, for information, with a predownload of the whole epoch, which few will set; of the filelock releases
  that it may find (3.4 to 4.3 were tried) none makes it faster than the one in its environment, 3.12.4.
- Loading documents with two worker processes and batches of 32: from batch 50 to nearly the end of an epoch, so without
  the start of the workers. LitData reads its own optimized form of the same texts, in its default order, which shuffles
  within blocks of neighbours; of its chunk sizes two are measured that suit it (at 64 MB its workers wait more). The
  plain list is in memory, under torch's DataLoader.
- Opening 1,000 shards: from the constructor of the dataset to the first batch of 32.
"""

import argparse
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import torch.utils.data

from benchmarks.both_sides import batch_seconds
from benchmarks.measure import (
    CLOSE_ROUNDS,
    Bound,
    Peer,
    Seconds,
    Side,
    conclude,
    describe_machine,
    interleaved,
    print_table,
    ratios,
    timed,
)
from benchmarks.streaming_sources import COLUMNS, TITLES, checksum_of, write_texts, write_thousand, write_tokens
from headrace import SampleDataset, StreamingDataLoader, StreamingDataset

BATCH = 32
SKIPPED = 50  # batches until the workers run
OPENINGS = 5  # a round
EPOCHS = 5  # of ours, a round
ROUNDS = 5
CHUNKS = ("4MB", "16MB")
LEAST = {"tokens": 25.0, "texts": 12.0}
OURS, THEIRS, LITDATA, PLAIN = "Headrace", "mosaicml-streaming", "LitData", "a plain list, torch's DataLoader"

CLAIMS: tuple[tuple[str, float, Literal["wall", "cpu"]], ...] = (
    (THEIRS, 4.0, "wall"),
    (LITDATA, 1.0, "wall"),
    (PLAIN, 0.9, "cpu"),
)


def iterate(dataset: StreamingDataset) -> int:
    """A few epochs, for one is short; returns the number of samples."""
    count = 0
    for _ in range(EPOCHS):
        for _ in dataset:
            count += 1
    return count


def load(loader: Any, batch_count: int) -> Seconds:
    """Seconds a sample of so many batches, once the first ones are there."""
    return Seconds(*batch_seconds(loader, "text", SKIPPED, batch_count))


def open_to_first(folder: Path) -> int:
    """Opens a few times and reads the first batch; returns how many times."""
    for _ in range(OPENINGS):
        dataset = StreamingDataset(local=folder, shuffle=True, batch_size=BATCH)
        for _ in StreamingDataLoader(dataset, batch_size=BATCH):
            break
        dataset.close()
    return OPENINGS


def measure_iterating(root: Path, kind: str, count: int, streaming: Peer | None) -> list[Bound]:
    """The claim about one process."""
    folder = root / kind
    print(f"\nIterating, one process: {count:,} {TITLES[kind]}")
    dataset = StreamingDataset(local=folder, shuffle=True, batch_size=BATCH)
    sides: dict[str, Side] = {OURS: lambda: timed(partial(iterate, dataset))}
    if streaming is None:
        print_table(interleaved(sides), OURS, "sample")
        return []
    [column] = COLUMNS[kind]
    theirs = streaming.ask(do="checksum", directory=str(folder), column=column)
    assert theirs == checksum_of(folder, column), "the two libraries read different samples"
    settings: dict[str, tuple[int, int | None]] = {
        f"{THEIRS}, batch_size=32": (32, None),
        f"{THEIRS}, batch_size=256": (256, None),
        f"{THEIRS}, whole epoch ahead": (32, count),
    }
    for name, (batch_size, ahead) in settings.items():
        sides[name] = partial(
            streaming.seconds, do="iterate", directory=str(folder), batch_size=batch_size, predownload=ahead
        )
    seconds = interleaved(sides, ROUNDS)
    names = list(settings)
    print_table(seconds, names[0], "sample")
    found = [ratios(seconds, name, "cpu")[OURS] for name in names]
    print(f"  {found[2]:.1f} times the one with the whole epoch ahead")
    return [Bound(f"iterating over {kind}, one process, times {THEIRS}", min(found[:2]), LEAST[kind])]


def measure_loading(root: Path, streaming: Peer | None, litdata: Peer | None) -> list[Bound]:
    """The claims about two workers."""
    folder = root / "texts"
    dataset = StreamingDataset(local=folder, shuffle=True, batch_size=BATCH)
    with SampleDataset(folder) as stored:
        plain: Any = list(stored)
    batch_count = len(plain) // BATCH - SKIPPED - 10  # the workers are there to the end
    request = {"do": "load", "batch_size": BATCH, "workers": 2, "skipped": SKIPPED, "batch_count": batch_count}
    sides: dict[str, Side] = {
        OURS: lambda: load(StreamingDataLoader(dataset, batch_size=BATCH, num_workers=2), batch_count),
        PLAIN: lambda: load(torch.utils.data.DataLoader(plain, BATCH, shuffle=True, num_workers=2), batch_count),
    }
    print(f"\nLoading, two worker processes: {len(plain):,} {TITLES['texts']}")
    if litdata is None:
        print("  LitData is left out: no interpreter was given (--litdata)")
    else:
        for chunk_bytes in CHUNKS:
            optimized = str(root / f"chunks of {chunk_bytes}")
            litdata.ask(do="write", directory=optimized, chunk_bytes=chunk_bytes)
            theirs = litdata.ask(do="checksum", directory=optimized)
            assert theirs == checksum_of(folder, "text"), "the two libraries read different samples"
            sides[f"{LITDATA}, chunks of {chunk_bytes}"] = partial(litdata.seconds, directory=optimized, **request)
    if streaming is not None:
        sides[THEIRS] = partial(streaming.seconds, directory=str(folder), **request)
    seconds = interleaved(sides, ROUNDS)
    print_table(seconds, PLAIN, "sample")
    close = {name: side for name, side in sides.items() if name != THEIRS}
    print(f"  without {THEIRS}, {CLOSE_ROUNDS} rounds")
    nearest = interleaved(close, CLOSE_ROUNDS)
    print_table(nearest, PLAIN, "sample")
    return [
        Bound(
            f"loading texts, two workers, times {name}",
            ratios(nearest if name in nearest else seconds, name, clock)[OURS],
            least,
        )
        for name in sides
        for start, least, clock in CLAIMS
        if name.startswith(start)
    ]


def measure_opening(root: Path, streaming: Peer) -> Bound:
    """The claim about 1,000 shards."""
    folder = root / "thousand"
    shards = write_thousand(folder)
    print(f"\nOpening {shards:,} shards, from the constructor to the first batch of {BATCH}")
    sides: dict[str, Side] = {
        OURS: lambda: timed(partial(open_to_first, folder)),
        THEIRS: partial(streaming.seconds, do="first", directory=str(folder), batch_size=BATCH, times=OPENINGS),
    }
    seconds = interleaved(sides)
    print_table(seconds, THEIRS, "opening")
    return Bound(f"opening 1,000 shards, times {THEIRS}", ratios(seconds, THEIRS, "cpu")[OURS], 10.0)


def main() -> int:
    """Measure and print; 1 when --check is given and a bound is missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--windows", type=int, default=24_000, help="of 2,048 tokens: 24,000 are 98 MB")
    parser.add_argument("--documents", type=int, default=96_000, help="of 1.5 kB on average: 96,000 are 144 MB")
    parser.add_argument("--streaming", metavar="PYTHON", help="an interpreter that has mosaicml-streaming")
    parser.add_argument("--litdata", metavar="PYTHON", help="an interpreter that has LitData")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(describe_machine("torch"))
    bounds: list[Bound] = []
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        root = Path(temporary)
        write_tokens(root, options.windows)
        write_texts(root, options.documents)
        streaming = litdata = None
        if options.streaming:
            streaming = stack.enter_context(Peer(options.streaming, "streaming_peer.py", root))
        else:
            print("\nmosaicml-streaming is left out: no interpreter was given (--streaming)")
        if options.litdata:
            litdata = stack.enter_context(Peer(options.litdata, "litdata_peer.py", root))
        bounds += measure_iterating(root, "tokens", options.windows, streaming)
        bounds += measure_iterating(root, "texts", options.documents, streaming)
        bounds += measure_loading(root, streaming, litdata)
        if streaming is not None:
            bounds.append(measure_opening(root, streaming))
    return conclude(bounds, options.check)


if __name__ == "__main__":
    sys.exit(main())
