"""Reading from an object store, against boto3, s3fs and mosaicml-streaming's downloader.

    python -m benchmarks.remote [--check] [--shards N] [--ranges N] [--peers PYTHON] [--streaming PYTHON]

The store is SeaweedFS on loopback (`make servers`), so there is no network, and the server works on the same cores as
its clients: times show what a client costs, not how it waits. Every side reads the same objects, which is checked
once; the sides take turns. Clients wait for the server, so the wall clock is judged. The peers run in interpreters of
their own, and each in the number of threads (or of concurrent requests) with which it is fastest of those tried.

- 1,000 objects of 1 MiB into memory, and into files: `get` on threads, and a cold `CachedStore` told by `prefetch`
  what comes. mosaicml-streaming's downloader makes files only. The cache compares digests, as it does for datasets of
  Headrace; the others compare none. Without digests it has each file written to the disk before it counts as whole.
- 200,000 ranges of 8 KiB: in calls of 256 at random places of one of the big objects, and all of an object in one call,
  where near ones are fetched together. The peers have a request a range whatever is asked for, so their time is taken
  on a part of the first kind, of the same size for all sides.
"""

import argparse
import hashlib
import itertools
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from benchmarks.measure import (
    Bound,
    Peer,
    Seconds,
    Side,
    against_fastest,
    conclude,
    describe_machine,
    each_against_fastest,
    timed,
)
from benchmarks.object_server import Place, seaweedfs
from headrace import CachedStore, Store
from headrace.store import DatasetFile

MIB = 1 << 20
RANGE_BYTES = 8 << 10
BIG_OBJECTS = 2
BIG_BYTES = 256 * MIB
CALL = 256  # ranges
TIMED_CALLS = 12  # a round: with the slowest peer some 6 s
THREADS = (4, 8)
CLOSE_TURNS = 7
CLIENTS = ("boto3", "s3fs")
LEAST_WHOLE, LEAST_RANGES = 0.95, 2.0

Call = tuple[str, list[int]]


def fill(store: Store, num_shards: int) -> dict[str, str]:
    """Puts the objects; digests of the small ones by name. All differ, and none can be compressed."""
    random = np.random.default_rng(7).bytes(MIB)
    digests = {}
    for number in range(num_shards):
        name = f"shards/{number:05}"
        data = number.to_bytes(4, "little") + random[4:]
        digests[name] = xxhash.xxh3_64_hexdigest(data)
        store.put(name, data)
    for number in range(BIG_OBJECTS):
        store.put(f"big/{number}", np.random.default_rng(number).bytes(BIG_BYTES))
    return digests


class Reading:
    """What each side does with the objects."""

    def __init__(self, place: Place, folder: Path, digests: Mapping[str, str], num_ranges: int) -> None:
        self.place, self.folder, self.digests = place, folder, digests
        self.names = list(digests)
        self.store = place.store()
        self.fresh = itertools.count()
        generator = np.random.default_rng(11)
        starts = generator.integers(0, BIG_BYTES - RANGE_BYTES, num_ranges, endpoint=True).tolist()
        parts = [starts[begin : begin + CALL] for begin in range(0, num_ranges, CALL)]
        self.calls: list[Call] = [(f"big/{number % BIG_OBJECTS}", part) for number, part in enumerate(parts)]

    def close(self) -> None:
        self.store.close()

    def whole(self, threads: int) -> Seconds:
        """Every object into memory."""

        def work() -> int:
            with ThreadPoolExecutor(threads) as pool:
                sizes = [len(data) for data in pool.map(self.store.get, self.names)]
            assert sizes == [MIB] * len(self.names)
            return len(sizes)

        return timed(work)

    def cached(self, digests: bool) -> Seconds:
        """Every object into a cache that was empty, in order, as told ahead."""
        directory = self.folder / f"cache-{next(self.fresh)}"

        def file(name: str) -> DatasetFile:
            return DatasetFile(MIB, self.digests[name], xxhash.xxh3_64) if digests else DatasetFile(MIB)

        def work() -> int:
            with CachedStore(self.place.store(), directory) as cached:
                bound = cached.of_dataset("benchmark", file)
                bound.prefetch(self.names, 64 * MIB)
                for name in self.names:
                    assert len(bound.view(name)) == MIB
                bound.close()
            return len(self.names)

        try:
            return timed(work)
        finally:
            shutil.rmtree(directory)

    def ranges(self, calls: Sequence[Call]) -> Seconds:
        """Call after call."""

        def work() -> int:
            for name, starts in calls:
                views = self.store.get_ranges(name, np.array(starts), np.full(len(starts), RANGE_BYTES))
                assert len(views) == len(starts)
            return sum(len(starts) for _, starts in calls)

        return timed(work)

    def digest(self, names: Sequence[str], calls: Sequence[Call]) -> str:
        """Of these objects and ranges."""
        digest = hashlib.sha256()
        for name in names:
            digest.update(self.store.get(name))
        for name, starts in calls:
            for view in self.store.get_ranges(name, np.array(starts), np.full(len(starts), RANGE_BYTES)):
                digest.update(view)
        return digest.hexdigest()


class Others:
    """The peers' ways to the same objects."""

    def __init__(self, reading: Reading, peers: Peer, streaming: Peer | None) -> None:
        self.reading, self.peers, self.streaming = reading, peers, streaming

    def check(self) -> None:
        """All sides read the same bytes."""
        some, calls = self.reading.names[:5], [(name, starts[:20]) for name, starts in self.reading.calls[:2]]
        ours = self.reading.digest(some, calls)
        for client in CLIENTS:
            theirs = self.peers.ask(do="digest", client=client, names=some, length=RANGE_BYTES, calls=calls)
            assert theirs == ours, f"{client} reads other bytes"

    def sides(self, do: str, **request: Any) -> dict[str, Side]:
        """One a client and a number of threads."""
        return {
            f"{client}, {threads} at a time": partial(
                self.peers.seconds, do=do, client=client, threads=threads, **request
            )
            for client, threads in itertools.product(CLIENTS, THREADS)
        }

    def files(self) -> dict[str, Side]:
        """Every object into files of a new folder."""

        def one(peer: Peer, client: str, threads: int) -> Seconds:
            folder = self.reading.folder / f"files-{next(self.reading.fresh)}"
            names = self.reading.names
            try:
                return peer.seconds(do="files", client=client, threads=threads, names=names, folder=str(folder))
            finally:
                shutil.rmtree(folder)

        sides: dict[str, Side] = {
            f"{client}, {threads} at a time": partial(one, self.peers, client, threads)
            for client, threads in itertools.product(CLIENTS, THREADS)
        }
        if self.streaming:
            for threads in (1, *THREADS):
                sides[f"mosaicml-streaming, {threads} at a time"] = partial(
                    one, self.streaming, "mosaicml-streaming", threads
                )
        return sides


def measure_whole(reading: Reading, others: Others) -> list[Bound]:
    """The claims about whole objects."""
    count, bounds = len(reading.names), []
    ours: dict[str, Side] = {
        f"Headrace, get on {threads} threads": partial(reading.whole, threads) for threads in (8, 4)
    }
    print(f"\n{count:,} objects of 1 MiB into memory")
    ratio = against_fastest(ours, others.sides("whole", names=reading.names), "object", "wall", CLOSE_TURNS)
    bounds.append(Bound("objects of 1 MiB into memory, times the fastest peer", ratio, LEAST_WHOLE))
    print(f"\n{count:,} objects of 1 MiB into local files")
    caches: dict[str, Side] = {
        "Headrace, cold CachedStore": partial(reading.cached, True),
        "Headrace, the same without digests": partial(reading.cached, False),
    }
    ratio = against_fastest(caches, others.files(), "object", "wall", CLOSE_TURNS)
    bounds.append(Bound("objects of 1 MiB through a cold cache, times the fastest peer", ratio, LEAST_WHOLE))
    return bounds


def measure_ranges(reading: Reading, others: Others) -> list[Bound]:
    """The claims about small ranges."""
    part, count = reading.calls[:TIMED_CALLS], sum(len(starts) for _, starts in reading.calls)
    together: dict[str, list[int]] = {f"big/{number}": [] for number in range(BIG_OBJECTS)}
    for name, starts in reading.calls:
        together[name].extend(starts)
    some = sum(len(starts) for _, starts in part)
    sparse, dense = f"Headrace, calls of {CALL}", f"Headrace, calls of {count // BIG_OBJECTS:,}"
    print(f"\nRanges of 8 KiB: {some:,} a round in calls of {CALL}, or {count:,} in {BIG_OBJECTS} calls")
    found = each_against_fastest(
        {sparse: partial(reading.ranges, part), dense: partial(reading.ranges, list(together.items()))},
        others.sides("ranges", length=RANGE_BYTES, calls=part),
        "range",
        "wall",
        rounds=CLOSE_TURNS,
        alone=(sparse, dense),
    )
    return [
        Bound(f"ranges of 8 KiB, {ours}, times the fastest peer", ratio, LEAST_RANGES)
        for ours, ratio in zip((sparse, dense), found, strict=True)
    ]


def main() -> int:
    """Measure and print; 1 when --check is given and a bound is missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--shards", type=int, default=1_000, help="objects of 1 MiB")
    parser.add_argument("--ranges", type=int, default=200_000, help="ranges of 8 KiB")
    parser.add_argument("--peers", metavar="PYTHON", help="an interpreter that has boto3 and s3fs")
    parser.add_argument("--streaming", metavar="PYTHON", help="one that has mosaicml-streaming and boto3")
    parser.add_argument("--only", choices=("whole", "ranges"), help="one part")
    options = parser.parse_args()
    print(describe_machine("obstore"))
    if not options.peers:
        print("\nnothing to compare with: no interpreter with boto3 and s3fs was given (--peers)")
        return 0
    bounds: list[Bound] = []
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        root = Path(temporary)
        place = stack.enter_context(seaweedfs(root / "server"))
        peers = stack.enter_context(place.peer(options.peers))
        streaming = stack.enter_context(place.peer(options.streaming)) if options.streaming else None
        with place.store() as store:
            digests = fill(store, options.shards)
        reading = Reading(place, root, digests, options.ranges)
        stack.callback(reading.close)
        others = Others(reading, peers, streaming)
        others.check()
        if options.only != "ranges":
            bounds += measure_whole(reading, others)
        if options.only != "whole":
            bounds += measure_ranges(reading, others)
    return conclude(bounds, options.check)


if __name__ == "__main__":
    sys.exit(main())
