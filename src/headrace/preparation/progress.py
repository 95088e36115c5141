"""One progress bar: done, total, rate and time left, on standard error."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from headrace.preparation.executors import Tell
from headrace.preparation.tasks import Task

__all__ = ["progress_bar"]


if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class _Bar:
    def __init__(self, progress: "Progress", row: "TaskID", sizes: dict[int, int], in_bytes: bool) -> None:
        self._progress, self._row, self._sizes, self._in_bytes = progress, row, sizes, in_bytes
        self._told = dict.fromkeys(sizes, 0)

    def tell(self, shard: int, num_bytes: int) -> None:
        """Move on by what was read of this shard's split, never beyond its size."""
        if self._in_bytes:
            step = min(num_bytes, self._sizes[shard] - self._told[shard])
            self._told[shard] += step
            self._progress.advance(self._row, step)

    def finish(self, shard: int) -> None:
        """Move on by what is left of this shard's split."""
        self._progress.advance(self._row, self._sizes[shard] - self._told[shard])
        self._told[shard] = self._sizes[shard]


@contextmanager
def progress_bar(
    show: bool, tasks: Sequence[Task], done: Sequence[Task]
) -> Iterator[tuple[Tell, Callable[[int], None]]]:
    """(tell, finish): callables for (shard, bytes read) and for a finished shard. `done` counts from the start.

    Shown only if asked for and if standard error is a terminal (or FORCE_COLOR says so). It counts bytes where every
    split has `size_bytes`, else shards.
    """
    if not show or not _terminal():
        yield (lambda shard, num_bytes: None), (lambda shard: None)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    in_bytes = all(isinstance(getattr(task.split, "size_bytes", None), int) for task in tasks)
    sizes = {task.shard: int(task.split.size_bytes) if in_bytes else 1 for task in tasks}
    counts: list[ProgressColumn] = [DownloadColumn(), TransferSpeedColumn()] if in_bytes else [MofNCompleteColumn()]
    columns: list[Any] = [TextColumn("{task.description}"), BarColumn(), *counts, TimeRemainingColumn()]
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=5) as progress:
        row = progress.add_task(
            f"{len(tasks)} shards", total=sum(sizes.values()), completed=sum(sizes[t.shard] for t in done)
        )
        bar = _Bar(progress, row, sizes, in_bytes)
        yield bar.tell, bar.finish


def _terminal() -> bool:
    if sys.stderr is not None and sys.stderr.isatty():
        return True
    from rich.console import Console

    return Console(stderr=True).is_terminal
