"""What packs.py gives to both data stacks: the same dataset, collate function and clock, in either interpreter."""

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pyarrow
import torch

from headrace import LocalStore, StreamArrayFormat, StreamDataset, StreamStorage

__all__ = ["ALONE", "DATASETS", "MICROBATCHES", "ROWS", "WINDOW", "seconds_a_pack", "totals", "write"]

MICROBATCHES, ROWS, WINDOW = 8, 4, 2048  # a pack
FIRST = 5  # packs that are not timed: workers are started meanwhile
ALONE = SimpleNamespace(mesh_params=SimpleNamespace(is_distributed=False))  # the context of a job of one process


@dataclass
class Batch:
    """A microbatch of d9d's documentation."""

    input_ids: torch.Tensor
    labels: torch.Tensor


def collate_windows(samples: Sequence[np.ndarray]) -> Batch:
    """Windows as stored to rows of int64."""
    ids = torch.from_numpy(np.asarray(samples, np.int64))
    return Batch(input_ids=ids, labels=ids)


def collate_rows(samples: list[dict[str, torch.Tensor]]) -> Batch:
    """The documentation's own function."""
    return Batch(
        input_ids=torch.stack([sample["input_ids"] for sample in samples]),
        labels=torch.stack([sample["labels"] for sample in samples]),
    )


def windows(folder: Path) -> Any:
    """Windows of a stream of uint16, by Headrace for either stack."""
    return StreamDataset(StreamStorage(folder / "windows"), WINDOW)


def rows(folder: Path) -> Any:
    """A Hugging Face dataset of int32, in torch format, as the documentation's collate function needs it."""
    return datasets.load_from_disk(str(folder / "rows")).with_format("torch")


DATASETS: dict[str, tuple[Callable[[Path], Any], Callable[..., Batch]]] = {
    "windows": (windows, collate_windows),
    "rows": (rows, collate_rows),
}


def write(folder: Path, tokens: np.ndarray) -> None:
    """Both datasets, of the same tokens; WINDOW divides their number."""
    storage = StreamStorage(LocalStore(folder / "windows", fsync=False), StreamArrayFormat("<u2"))
    with storage.sync_writer() as writer:
        writer.append(0, tokens)
    storage.publish()
    offsets = np.arange(0, len(tokens) + 1, WINDOW, dtype=np.int32)
    column = pyarrow.ListArray.from_arrays(pyarrow.array(offsets), pyarrow.array(tokens.astype(np.int32)))
    datasets.disable_progress_bars()
    datasets.Dataset(pyarrow.table({"input_ids": column, "labels": column})).save_to_disk(str(folder / "rows"))


def seconds_a_pack(stream: Any, packs: int) -> tuple[float, float]:
    """Wall and processor time of this process for each of so many packs of an epoch, its first few left out."""
    iterator = iter(stream)
    for _ in range(FIRST):
        next(iterator)
    begin, begin_cpu = time.perf_counter(), time.process_time()
    count = sum(len(pack) == MICROBATCHES for pack in itertools.islice(iterator, packs))
    taken = (time.perf_counter() - begin) / packs, (time.process_time() - begin_cpu) / packs
    if count != packs:
        raise SystemExit(f"{count} whole packs of {packs}")
    if hasattr(stream, "close"):
        stream.close()  # d9d's ends its workers when its iterator goes
    return taken


def totals(stream: Any) -> list[int]:
    """Microbatches, rows and the sum of all input_ids of an epoch, whatever its order."""
    counted = np.zeros(3, np.int64)
    for batch in itertools.chain.from_iterable(stream):
        assert batch.input_ids.dtype == torch.int64, "both stacks were given the same collate function"
        counted += 1, len(batch.input_ids), int(batch.input_ids.sum())
    return [int(count) for count in counted]
