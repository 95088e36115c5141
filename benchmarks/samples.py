"""Samples of MDS shards: reading, writing and opening, against mosaicml-streaming.

    python -m benchmarks.samples [--check] [--samples N] [--streaming PYTHON]

Two kinds of samples: {"id": int, "text": str of 200 to 8,192 bytes} and {"tokens": 2,048 uint16}. One process a side,
warm page cache, the same files (they are compared once, and so are the samples read) and the same samples in the same
order; the sides take turns. mosaicml-streaming runs in its own interpreter. It has two datasets and two ways to ask for
many samples: all are measured, and the one with the least processor time is what Headrace is compared with.

Writing is timed from the constructor until finish() came back, by the wall clock, for Headrace works on threads there.
Before each turn the disk is waited for, so that nobody pays for another's files. The claim is about equal promises:
mosaicml-streaming has no fsync, so Headrace's is off. Another, lower bound is for Headrace as it comes, with fsync.
"""

import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.both_sides import growing
from benchmarks.measure import (
    ROUNDS,
    WINDOW,
    Bound,
    Peer,
    Seconds,
    against_fastest,
    conclude,
    describe_machine,
    interleaved,
    make_tokens,
    print_table,
    ratios,
    timed,
)
from headrace import LocalStore, MDSWriter, SampleDataset

BATCH = 32
BATCHES = 300  # a round; 9,600 samples
OPENINGS = 10  # a round
READS = ("LocalDataset, [i]", "LocalDataset, [list]", "StreamingDataset, [i]", "StreamingDataset, [list]")
DATASETS = ("LocalDataset", "StreamingDataset")
COLUMNS = {"texts": {"id": "int", "text": "str"}, "tokens": {"tokens": f"ndarray:uint16:{WINDOW}"}}
TITLES = {"texts": "{'id': int, 'text': 200 to 8,192 bytes}", "tokens": f"{{'tokens': {WINDOW:,} uint16}}"}
HASHES: tuple[list[str], ...] = (["sha1"], ["sha1", "xxh64"], ["xxh3_64"], [])  # of which the first is claimed
WRITING_BOUNDS = {"Headrace, fsync off": 2.0, "Headrace": 2.0}
MEGABYTE = 1_000_000
MANY = 100_000
MOST_BYTES = 100 * MEGABYTE


class Sources:
    """What both sides write, and the numbers of what both read; saved in a folder for the other side."""

    def __init__(self, folder: Path, count: int) -> None:
        generator = np.random.default_rng(5)
        letters = generator.choice(np.frombuffer(b"etaoin shrdlu ", np.uint8), 1 << 20).tobytes().decode()
        lengths = generator.integers(200, 8192, count, endpoint=True)
        starts = generator.integers(0, len(letters) - 8192, count)
        texts = np.stack((starts, starts + lengths), axis=1)
        tokens = make_tokens(count).reshape(-1, WINDOW)
        batches = generator.permutation(count)[: count // BATCH * BATCH].reshape(-1, BATCH)[:BATCHES]
        (folder / "letters.txt").write_text(letters)
        np.save(folder / "texts.npy", texts)
        np.save(folder / "tokens.npy", tokens)
        np.save(folder / "batches.npy", batches)
        self.batches = batches.tolist()
        self.samples: dict[str, list[dict[str, Any]]] = {
            "texts": [{"id": number, "text": letters[a:b]} for number, (a, b) in enumerate(texts.tolist())],
            "tokens": [{"tokens": row} for row in tokens],
        }


def write(folder: Path, samples: Sequence[Mapping[str, Any]], *, fsync: bool = True, **arguments: Any) -> Seconds:
    """Seconds a sample, from the constructor until the writer has closed."""
    shutil.rmtree(folder, ignore_errors=True)
    os.sync()

    def work() -> int:
        with MDSWriter(out=LocalStore(folder, fsync=fsync), **arguments) as writer:
            for sample in samples:
                writer.write(sample)
        return len(samples)

    return timed(work)


def read_singly(dataset: SampleDataset, batches: list[list[int]]) -> int:
    """Every batch, in one call a sample; returns the number of samples."""
    for batch in batches:
        _ = [dataset[number] for number in batch]
    return len(batches) * BATCH


def read(dataset: SampleDataset, batches: list[list[int]]) -> int:
    """Every batch, in one call each; returns the number of samples."""
    for batch in batches:
        dataset.__getitems__(batch)
    return len(batches) * BATCH


def digest_of(folder: Path, batches: list[list[int]]) -> str:
    """A digest of all these samples, once by each way to read them."""
    digest = hashlib.sha256()
    with SampleDataset(folder) as dataset:
        for rows in (
            [[dataset[number] for number in batch] for batch in batches],
            [dataset.__getitems__(batch) for batch in batches],
        ):
            for value in (value for row in rows for sample in row for value in sample.values()):
                digest.update(value.tobytes() if isinstance(value, np.ndarray) else str(value).encode())
    return digest.hexdigest()


def measure_reading(folder: Path, kind: str, sources: Sources, peer: Peer) -> list[Bound]:
    """The claims about [i] and about batches of 32."""
    some = sources.batches[:50]
    theirs = peer.ask(do="digest", directory=str(folder), batches=len(some))
    assert theirs == digest_of(folder, some), "the two libraries read different samples"
    bounds = []
    for name, how, least in (("[i]", read_singly, 5.0), (f"__getitems__ of {BATCH}", read, 6.0)):
        print(f"\nReading {TITLES[kind]}, {len(sources.samples[kind]):,} samples, random: {name}")
        with SampleDataset(folder) as dataset:
            ratio = against_fastest(
                {f"Headrace, {name}": partial(timed, partial(how, dataset, sources.batches))},
                {
                    f"mosaicml-streaming, {way}": partial(
                        peer.seconds, do="read", directory=str(folder), way=way, batches=len(sources.batches)
                    )
                    for way in READS
                },
                "sample",
            )
        bounds.append(Bound(f"{kind}, {name}, times mosaicml-streaming's fastest way", ratio, least))
    return bounds


def measure_writing(root: Path, kind: str, sources: Sources, peer: Peer) -> list[Bound]:
    """The claim about writing with digests, and the same with other hashes for information."""
    bounds, samples = [], sources.samples[kind]
    for hashes in HASHES:
        arguments: dict[str, Any] = {"columns": COLUMNS[kind], "hashes": hashes}
        request = {"do": "write", "kind": kind, "count": len(samples), **arguments}
        print(f"\nWriting {TITLES[kind]}, {len(samples):,} samples, hashes: {', '.join(hashes) or 'none'}")
        seconds = interleaved(
            {
                "Headrace, fsync off": partial(write, root / "off", samples, fsync=False, **arguments),
                "Headrace": partial(write, root / "ours", samples, **arguments),
                "mosaicml-streaming": partial(peer.seconds, directory=str(root / "theirs"), **request),
            }
        )
        print_table(seconds, "mosaicml-streaming", "sample")
        ours, theirs = contents(root / "ours"), contents(root / "theirs")
        assert ours == theirs, "the two libraries wrote different bytes"
        if hashes == HASHES[0]:
            found = ratios(seconds, "mosaicml-streaming", "wall")
            for name, least in WRITING_BOUNDS.items():
                claim = f"writing {kind}, {'+'.join(hashes)}, {name}, times mosaicml-streaming's speed"
                bounds.append(Bound(claim, found[name], least))
        for name in ("off", "ours", "theirs"):
            shutil.rmtree(root / name)
    return bounds


def contents(folder: Path) -> dict[str, str]:
    """Name -> digest of all files."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def measure_opening(root: Path, peer: Peer) -> Bound:
    """The claim about a dataset of 1,000 shards."""
    folder, count = root / "thousand", 1_000
    samples = [{"id": number, "text": "x" * 500} for number in range(10 * count)]
    columns = COLUMNS["texts"]
    write(folder, samples, fsync=False, columns=columns, hashes=["sha1"], size_limit=5_500)
    with SampleDataset(folder) as dataset:
        assert len(dataset.shard_lengths) >= count, "as many shards as it says"
        shards = len(dataset.shard_lengths)
    print(f"\nOpening a dataset of {shards:,} shards, to the first sample")
    ratio = against_fastest(
        {"Headrace": lambda: timed(partial(open_to_first, folder))},
        {
            f"mosaicml-streaming, {way}": partial(
                peer.seconds, do="open", directory=str(folder), way=way, times=OPENINGS
            )
            for way in DATASETS
        },
        "opening",
    )
    return Bound("opening 1,000 shards, times mosaicml-streaming's fastest way", ratio, 20.0)


def open_to_first(folder: Path) -> int:
    """Opens a few times and reads the first sample; returns how many times."""
    for _ in range(OPENINGS):
        with SampleDataset(folder) as dataset:
            dataset[0]
    return OPENINGS


def measure_many_shards(root: Path, peer: Peer | None) -> list[Bound]:
    """The claims about 100,000 shards in the index: one is there, the others are only said to be."""
    folder = root / "many"
    write(folder, [{"id": 0, "text": "x"}] * 10, columns=COLUMNS["texts"], hashes=["sha1"], fsync=False)
    index = json.loads((folder / "index.json").read_text())
    [shard] = index["shards"]
    index["shards"] = [
        {**shard, "raw_data": {**shard["raw_data"], "basename": f"shard.{number:05}.mds"}} for number in range(MANY)
    ]
    (folder / "index.json").write_text(json.dumps(index, sort_keys=True))
    index_bytes = (folder / "index.json").stat().st_size
    print(
        f"\nOpening an index of {MANY:,} shards ({index_bytes / MEGABYTE:.0f} MB), to the first sample, a new process"
    )
    taken = [own_growth(folder) for _ in range(ROUNDS)]
    seconds, grown = (statistics.median(values) for values in zip(*taken, strict=True))
    print(f"  {'Headrace':40} {seconds:8.3f} s, memory grows by {grown / MEGABYTE:6.1f} MB at most")
    if peer is not None:
        wall, growth = peer.ask(do="grow", directory=str(folder), way="LocalDataset")
        print(f"  {'mosaicml-streaming, LocalDataset':40} {wall:8.3f} s, {'':16} {growth / MEGABYTE:6.1f} MB")
    return [
        Bound(f"opening {MANY:,} shards, times as fast as 1 s", 1 / seconds, 1.0),
        Bound(f"opening {MANY:,} shards, times less growth than {MOST_BYTES / MEGABYTE:.0f} MB", MOST_BYTES / grown, 1),
    ]


def own_growth(folder: Path) -> tuple[float, int]:
    """Seconds and bytes of opening it in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.samples", "--grow", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    wall, growth = json.loads(done.stdout)
    return wall, growth


def print_growth(folder: Path) -> None:
    """The seconds to the first sample, and the bytes by which this process grew at most, as JSON."""

    def work() -> int:
        with SampleDataset(folder) as dataset:
            dataset[0]
        return 1

    seconds, growth = growing(lambda: timed(work))
    print(json.dumps([seconds.wall, growth]))


def main() -> int:
    """Measure and print; 1 when --check is given and a bound is missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--samples", type=int, default=50_000, help="of 4.2 kB on average: 50,000 are 210 MB")
    parser.add_argument("--streaming", metavar="PYTHON", help="an interpreter that has mosaicml-streaming")
    parser.add_argument("--grow", metavar="DIRECTORY", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.grow:
        print_growth(options.grow)
        return 0
    print(describe_machine())
    bounds: list[Bound] = []
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        root = Path(temporary)
        if not options.streaming:
            print("\nmosaicml-streaming is left out: no interpreter was given (--streaming)")
            return conclude(measure_many_shards(root, None), options.check)
        sources = Sources(root, options.samples)
        peer = stack.enter_context(Peer(options.streaming, "streaming_samples.py", root))
        for kind, columns in COLUMNS.items():
            write(root / kind, sources.samples[kind], columns=columns, hashes=["sha1"], fsync=False)
            bounds += measure_reading(root / kind, kind, sources, peer)
            bounds += measure_writing(root, kind, sources, peer)
            shutil.rmtree(root / kind)
        bounds.append(measure_opening(root, peer))
        bounds += measure_many_shards(root, peer)
    return conclude(bounds, options.check)


if __name__ == "__main__":
    sys.exit(main())
