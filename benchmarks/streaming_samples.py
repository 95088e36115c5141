"""Runs in mosaicml-streaming's own interpreter: reads, writes and opens as each request on standard input says, and
answers with the seconds a unit that took.

    python streaming_samples.py FOLDER      with the samples' sources and batches.npy, as samples.py saves them

A request is a line of JSON. All have "directory"; "do" is one of
- "read": batches, how many; way, one of READS
- "digest": of all these samples in order
- "write": kind ("texts" or "tokens"), count of samples, and arguments of MDSWriter
- "open": way, one of DATASETS; opens and reads the first sample, "times" times
- "grow": the same once; answers with the seconds, and the bytes by which this process grew at most
"""

import hashlib
import os
import pathlib
import shutil
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from both_sides import growing, serve
from streaming import LocalDataset, MDSWriter, StreamingDataset


def local(directory: str) -> Any:
    return LocalDataset(directory)


def streamed(directory: str) -> Any:
    return StreamingDataset(local=directory, batch_size=1)


def one_by_one(dataset: Any, batches: list[list[int]]) -> None:
    for batch in batches:
        [dataset[number] for number in batch]


def by_list(dataset: Any, batches: list[list[int]]) -> None:
    for batch in batches:
        dataset[batch]


DATASETS: dict[str, Callable[[str], Any]] = {"LocalDataset": local, "StreamingDataset": streamed}
READS = {
    "LocalDataset, [i]": (local, one_by_one),
    "LocalDataset, [list]": (local, by_list),
    "StreamingDataset, [i]": (streamed, one_by_one),
    "StreamingDataset, [list]": (streamed, by_list),
}


class Answers:
    """One method a kind of request."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.datasets: dict[Any, Any] = {}
        self.batches = np.load(folder / "batches.npy").tolist()
        self.samples: dict[str, list[dict[str, Any]]] = {}

    def read(self, directory: str, way: str, batches: int) -> list[float]:
        opened, how = READS[way]
        key = directory, opened
        if key not in self.datasets:
            self.datasets[key] = opened(directory)
        dataset, chosen = self.datasets[key], self.batches[:batches]
        return timed(lambda: how(dataset, chosen), sum(map(len, chosen)))

    def digest(self, directory: str, batches: int) -> str:
        digest = hashlib.sha256()
        for dataset in (local(directory), streamed(directory)):
            for batch in self.batches[:batches]:
                for number in batch:
                    for value in dataset[number].values():
                        digest.update(value.tobytes() if isinstance(value, np.ndarray) else str(value).encode())
        return digest.hexdigest()

    def write(self, directory: str, kind: str, count: int, **arguments: Any) -> list[float]:
        if kind not in self.samples:
            self.samples = {kind: getattr(self, kind)()}
        samples = self.samples[kind][:count]
        shutil.rmtree(directory, ignore_errors=True)
        os.sync()

        def work() -> None:
            with MDSWriter(out=directory, **arguments) as writer:
                for sample in samples:
                    writer.write(sample)

        return timed(work, len(samples))

    def texts(self) -> list[dict[str, Any]]:
        letters = (self.folder / "letters.txt").read_text()
        return [
            {"id": number, "text": letters[start:stop]}
            for number, (start, stop) in enumerate(np.load(self.folder / "texts.npy").tolist())
        ]

    def tokens(self) -> list[dict[str, Any]]:
        return [{"tokens": row} for row in np.load(self.folder / "tokens.npy")]

    def open(self, directory: str, way: str, times: int) -> list[float]:
        def work() -> None:
            for _ in range(times):
                DATASETS[way](directory)[0]

        return timed(work, times)

    def grow(self, directory: str, way: str) -> tuple[float, int]:
        (wall, _), growth = growing(lambda: self.open(directory, way, 1))
        return wall, growth


def timed(work: Callable[[], None], units: int) -> list[float]:
    begin, begin_cpu = time.perf_counter(), time.process_time()
    work()
    return [(time.perf_counter() - begin) / units, (time.process_time() - begin_cpu) / units]


def main(folder: pathlib.Path) -> None:
    serve(Answers(folder))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
