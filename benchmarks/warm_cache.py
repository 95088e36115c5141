"""A warm cache of a remote store, against a local directory with the same files: windows, documents and samples.

    python -m benchmarks.warm_cache [--check] [--items N]

The store is SeaweedFS on loopback (`make servers`). Random batches of 32, one process, warm page cache. The items of
both sides are compared once, which fills the cache. Nothing waits for the server then: processor time is judged.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import (
    WINDOW,
    Bound,
    conclude,
    describe_machine,
    interleaved,
    make_tokens,
    print_table,
    ratios,
    timed,
)
from benchmarks.object_server import Place, seaweedfs
from headrace import (
    CachedStore,
    DocumentBytesFormat,
    DocumentDataset,
    DocumentStorage,
    LocalStore,
    MDSWriter,
    SampleDataset,
    Store,
    StreamArrayFormat,
    StreamDataset,
    StreamStorage,
)

MIB = 1 << 20
LEAST = 0.9
BATCH = 32
BATCHES = 1500  # a round


def write_windows(store: LocalStore, count: int) -> None:
    storage = StreamStorage(store, StreamArrayFormat("<u2"))
    with storage.sync_writer() as writer:
        for shard, part in enumerate(np.split(make_tokens(count), 8)):
            writer.append(shard, part)
    storage.publish()


def texts(count: int) -> Iterator[bytes]:
    letters = np.random.default_rng(5).bytes(MIB)
    lengths = np.random.default_rng(6).integers(200, 8192, count, endpoint=True).tolist()
    starts = np.random.default_rng(7).integers(0, MIB - 8192, count).tolist()
    return (letters[start : start + length] for start, length in zip(starts, lengths, strict=True))


def write_documents(store: LocalStore, count: int) -> None:
    storage = DocumentStorage(store, DocumentBytesFormat())
    with storage.sync_writer() as writer:
        for number, text in enumerate(texts(count)):
            writer.append(number * 4 // count, text)
    storage.publish()


def write_samples(store: LocalStore, count: int) -> None:
    with MDSWriter(out=store, columns={"id": "int", "data": "bytes"}, hashes=["xxh3_64"], size_limit=1 << 24) as out:
        for number, text in enumerate(texts(count)):
            out.write({"id": number, "data": text})


# What is written, and how it is opened. A dataset's number of items is asked for as its length.
KINDS: dict[str, tuple[Callable[[LocalStore, int], None], Callable[[Store], Any]]] = {
    f"windows of {WINDOW:,} uint16": (write_windows, lambda store: StreamDataset(StreamStorage(store), WINDOW)),
    "documents of 200 to 8,192 bytes": (write_documents, lambda store: DocumentDataset(DocumentStorage(store))),
    "samples of 200 to 8,192 bytes": (write_samples, SampleDataset),
}


def read(dataset: Any, batches: NDArray[np.int64]) -> int:
    """Every batch in one call; returns the number of batches."""
    for batch in batches:
        dataset.__getitems__(batch)
    return len(batches)


def same(left: Any, right: Any) -> bool:
    """Whether two batches have the same items."""
    if hasattr(left, "stacked"):
        return np.array_equal(left.stacked(), right.stacked())
    return list(left) == list(right)


def measure(place: Place, root: Path, count: int) -> list[Bound]:
    """The claims about a warm cache."""
    bounds = []
    for number, (kind, (write, opened)) in enumerate(KINDS.items()):
        local = LocalStore(root / f"local-{number}", fsync=False)
        write(local, count)
        remote = place.store(f"warm-{number}")
        for info in local.list():
            remote.put(info.path, local.get(info.path))
        cached = CachedStore(remote, root / "cache")
        order = np.random.default_rng(2).permutation(count)[: BATCH * BATCHES].reshape(-1, BATCH)
        print(f"\nA warm cache: {kind}, random batches of {BATCH}")
        with ExitStack() as stack:
            datasets = {
                name: stack.enter_context(opened(store))
                for name, store in (("Headrace, warm cache", cached), ("Headrace, local files", local))
            }
            warm, plain = datasets.values()
            for batch in order:  # fetches, and compares
                assert same(warm.__getitems__(batch), plain.__getitems__(batch)), "the cache has other items"
            seconds = interleaved(
                {name: partial(timed, partial(read, one, order)) for name, one in datasets.items()}, 9
            )
        print_table(seconds, "Headrace, local files", "batch")
        ratio = ratios(seconds, "Headrace, local files", "cpu")["Headrace, warm cache"]
        bounds.append(Bound(f"{kind}, warm cache, times local files", ratio, LEAST))
        taken = {
            name: [open_to_first(opened, store) for _ in range(5)]
            for name, store in (("a warm cache", cached), ("local files", local))
        }
        said = ", ".join(f"{statistics.median(values) * 1e3:.2f} ms from {name}" for name, values in taken.items())
        print(f"  opening and the first batch: {said}")
    return bounds


def open_to_first(opened: Callable[[Store], Any], store: Store) -> float:
    """Seconds of opening, and reading a batch."""

    def work() -> int:
        with opened(store) as dataset:
            dataset.__getitems__(np.arange(BATCH))
        return 1

    return timed(work).wall


def main() -> int:
    """Measure and print; 1 when --check is given and a bound is missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--items", type=int, default=48_000, help="of 4.2 kB on average: 48,000 are 200 MB")
    options = parser.parse_args()
    print(describe_machine("obstore"))
    with tempfile.TemporaryDirectory() as temporary, seaweedfs(Path(temporary) / "server") as place:
        bounds = measure(place, Path(temporary), options.items)
    return conclude(bounds, options.check)


if __name__ == "__main__":
    sys.exit(main())
