"""Batches made by processes: torch's own DataLoader does the work, so its start methods and time-outs are torch's.

Whatever a sample raises travels as text, because an exception may not survive the way between two processes.
"""

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch.utils.data

from headrace.errors import WorkerError
from headrace.views import fetch

__all__ = ["Failure", "WorkerDataset", "batches_from_workers", "make_batch"]


@dataclass(frozen=True)
class Failure:
    """What went wrong in a worker, as text."""

    kind: str
    text: str
    items: tuple[int, ...]
    trace: str

    def error(self) -> WorkerError:
        """The error for the consumer."""
        shown = ", ".join(map(str, self.items[:16])) + (", ..." if len(self.items) > 16 else "")
        return WorkerError(f"{self.kind}: {self.text}\nwhile loading samples {shown}\n\n{self.trace}")


def make_batch(dataset: Any, collate: Callable[[Sequence[Any]], Any], items: Any) -> Any:
    """The collated batch of these items. What is raised carries a note that names them."""
    numbers = np.asarray(items, np.int64)
    try:
        if len(numbers) == 0 and not hasattr(dataset, "settings"):
            return collate(())
        return collate(fetch(dataset, numbers))
    except Exception as error:
        shown = ", ".join(map(str, numbers[:16].tolist())) + (", ..." if len(numbers) > 16 else "")
        error.add_note(f"while loading samples {shown}")
        raise


class WorkerDataset(torch.utils.data.Dataset[Any]):
    """What a worker holds: a dataset and the collate function; an item of it is a whole batch."""

    def __init__(self, dataset: Any, collate: Callable[[Sequence[Any]], Any]) -> None:
        self._dataset = dataset
        self._collate = collate

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])

    def __getitems__(self, items: Sequence[int]) -> Any:
        """The collated batch, or the Failure that it met."""
        try:
            return make_batch(self._dataset, self._collate, items)
        except Exception as error:
            return Failure(type(error).__name__, str(error), tuple(items), traceback.format_exc())


def batches_from_workers(loader: Any) -> Iterator[Any]:
    """The batches of a DataLoader over a WorkerDataset, failures raised as WorkerError."""
    iterator = iter(loader)
    while True:
        try:
            batch = next(iterator)
        except StopIteration:
            return
        except RuntimeError as error:
            pids = [worker.pid for worker in getattr(iterator, "_workers", [])]
            raise WorkerError(f"a loader worker failed (workers {pids}): {error}") from error
        if isinstance(batch, Failure):
            raise batch.error()
        yield batch
