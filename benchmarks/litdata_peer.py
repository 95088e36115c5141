"""Runs in LitData's own interpreter: writes its optimized form of the texts, and loads them as each request on standard
input says.

    python litdata_peer.py FOLDER      with letters.txt and texts.npy, as streaming_sources.py saves them

Requests and answers are lines of JSON. "do" is one of
- "write": directory, chunk_bytes; answers with the number of samples
- "load": directory, batch_size, workers, skipped, batch_count; answers with the seconds a sample of so many batches,
  after those that are skipped, and with the processor time of all processes
- "checksum": directory; of all samples, whatever their order
"""

import functools
import os
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from both_sides import batch_seconds, checksum, serve
from litdata import StreamingDataLoader, StreamingDataset, optimize

PART = 512  # samples that are written by one call


def texts(part: tuple[int, int], folder: str) -> Iterator[dict[str, str]]:
    letters = (pathlib.Path(folder) / "letters.txt").read_text()
    for begin, end in np.load(pathlib.Path(folder) / "texts.npy")[part[0] : part[1]].tolist():
        yield {"text": letters[begin:end]}


class Answers:
    """One method a kind of request."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.datasets: dict[str, Any] = {}

    def write(self, directory: str, chunk_bytes: str) -> int:
        count = len(np.load(self.folder / "texts.npy"))
        optimize(
            functools.partial(texts, folder=str(self.folder)),
            inputs=[(begin, min(begin + PART, count)) for begin in range(0, count, PART)],
            output_dir=directory,
            chunk_bytes=chunk_bytes,
            num_workers=1,
            reorder_files=False,
            verbose=False,
            start_method="fork",
        )
        return count

    def load(self, directory: str, batch_size: int, workers: int, skipped: int, batch_count: int) -> Any:
        if directory not in self.datasets:
            self.datasets[directory] = StreamingDataset(directory, shuffle=True, drop_last=False)
        loader = StreamingDataLoader(
            self.datasets[directory], batch_size=batch_size, num_workers=workers, drop_last=False
        )
        return batch_seconds(loader, "text", skipped, batch_count)

    def checksum(self, directory: str) -> Any:
        dataset = StreamingDataset(directory, shuffle=True, drop_last=False)
        return checksum(sample["text"] for sample in dataset)


def main(folder: pathlib.Path) -> None:
    answers_to = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what LitData prints is no answer
    torch.set_num_threads(1)
    serve(Answers(folder), answers_to)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
