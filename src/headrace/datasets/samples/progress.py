"""How many shards and samples are stored, on standard error."""

import sys
from typing import Any

__all__ = ["ShardProgress"]


class ShardProgress:
    """A line that counts, if it is asked for and standard error is a terminal."""

    def __init__(self, show: bool, where: str, num_shards: int) -> None:
        self._bar: Any = None
        if show and sys.stderr is not None and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress, TextColumn, TimeElapsedColumn

            text = TextColumn("{task.description}: {task.completed} shards, {task.fields[samples]:,} samples")
            # Drawn when there is something new, and not by a thread, which would outlive a writer that is dropped.
            self._bar = Progress(text, TimeElapsedColumn(), console=Console(stderr=True), auto_refresh=False)
            self._row = self._bar.add_task(where, total=None, completed=num_shards, samples=0)
            self._samples = 0
            self._bar.start()

    def stored(self, num_samples: int) -> None:
        """One more shard, of so many samples."""
        if self._bar is not None:
            self._samples += num_samples
            self._bar.update(self._row, advance=1, samples=self._samples, refresh=True)

    def close(self) -> None:
        """Leave the line as it is. Twice is harmless."""
        if self._bar is not None:
            self._bar.stop()
