"""Runs in mosaicml-streaming's own interpreter: iterates over its datasets, and loads from them, as each request on
standard input says.

    python streaming_peer.py FOLDER      where it may leave the files that it makes of itself

Requests and answers are lines of JSON. All have "directory"; "do" is one of
- "iterate": batch_size, predownload; one shuffled epoch, answers with the seconds a sample
- "load": batch_size, workers, skipped, batch_count; answers with the seconds a sample of so many batches, after
  those that are skipped, and with the processor time of all processes
- "first": batch_size, times; from the constructor to the first batch so often, answers with the seconds
- "checksum": column; of all samples, whatever their order
- "resume": samples; answers with the seconds from the constructor to the first sample after half an epoch, and the
  bytes by which this process grew at most
"""

import os
import sys
import time
import warnings
from typing import Any

os.environ["TMPDIR"] = sys.argv[1]

import torch
from both_sides import batch_seconds, checksum, growing, serve
from streaming import StreamingDataLoader, StreamingDataset
from streaming.base.util import clean_stale_shared_memory


class Answers:
    """One method a kind of request."""

    def __init__(self) -> None:
        self.datasets: dict[Any, Any] = {}

    def opened(self, directory: str, batch_size: int, predownload: int | None = None) -> Any:
        # Only one at a time may be of a directory.
        key = directory, batch_size, predownload
        if key not in self.datasets:
            self.datasets.clear()
            self.datasets[key] = StreamingDataset(
                local=directory, shuffle=True, batch_size=batch_size, predownload=predownload
            )
        return self.datasets[key]

    def iterate(self, directory: str, batch_size: int, predownload: int | None) -> list[float]:
        dataset = self.opened(directory, batch_size, predownload)
        begin, begin_cpu, count = time.perf_counter(), time.process_time(), 0
        for _ in dataset:
            count += 1
        return [(time.perf_counter() - begin) / count, (time.process_time() - begin_cpu) / count]

    def load(self, directory: str, batch_size: int, workers: int, skipped: int, batch_count: int) -> Any:
        dataset = self.opened(directory, batch_size)
        loader = StreamingDataLoader(dataset, batch_size=batch_size, num_workers=workers)
        return batch_seconds(loader, "text", skipped, batch_count)

    def first(self, directory: str, batch_size: int, times: int) -> list[float]:
        self.datasets.clear()
        begin, begin_cpu = time.perf_counter(), time.process_time()
        for _ in range(times):
            dataset = StreamingDataset(local=directory, shuffle=True, batch_size=batch_size)
            for _ in StreamingDataLoader(dataset, batch_size=batch_size):
                break
            del dataset
        return [(time.perf_counter() - begin) / times, (time.process_time() - begin_cpu) / times]

    def checksum(self, directory: str, column: str) -> Any:
        return checksum(sample[column] for sample in self.opened(directory, 32))

    def resume(self, directory: str, samples: int) -> list[float]:
        self.datasets.clear()

        def work() -> float:
            begin = time.perf_counter()
            dataset = StreamingDataset(local=directory, shuffle=True, batch_size=32)
            state = dataset.state_dict(samples // 2, from_beginning=True)
            dataset.load_state_dict(state)
            next(iter(dataset))
            return time.perf_counter() - begin

        return [*growing(work)]


def main() -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    clean_stale_shared_memory()
    answers = Answers()
    serve(answers)
    answers.datasets.clear()
    sys.stdout.flush()
    os._exit(0)  # its threads would be waited for


if __name__ == "__main__":
    main()
