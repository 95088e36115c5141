"""What people and plots see of a job: lines of JSON, and a line on the terminal."""

import json
from contextlib import ExitStack
from time import perf_counter
from typing import Any, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from headrace.training.agreement import together
from headrace.training.parameters import JobLoggerConfig
from headrace.training.schedule import JobSchedule

__all__ = ["Reports"]


class Reports:
    """The reports of the main process; of another one there is nothing."""

    def __init__(self, config: JobLoggerConfig, schedule: JobSchedule, name: str, *, is_main: bool) -> None:
        self._config = config
        self._schedule = schedule
        self._name = name
        self._is_main = is_main
        self._opened = ExitStack()
        self._file: TextIO | None = None
        self._progress: Progress | None = None
        self._task: Any = None
        self._begin_s = 0.0
        self._tokens = 0
        self._wait_s = 0.0

    def __enter__(self) -> Self:
        with together(f"opening {self._config.path}"):
            if self._is_main and self._config.path is not None:
                self._config.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self._opened.enter_context(self._config.path.open("a", encoding="utf-8"))
        console = Console(stderr=True)
        if self._is_main and self._config.progress and console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            progress = Progress(*columns, TextColumn("{task.fields[numbers]}"), console=console)
            self._progress = self._opened.enter_context(progress)
            total, done = self._schedule.total_steps, self._schedule.current_step
            self._task = progress.add_task(self._name, total=total, completed=done, numbers="")
        self._begin_s = perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def add(self, tokens: int, wait_s: float) -> None:
        """All ranks together trained on so many more tokens; this one waited so long for them."""
        self._tokens += tokens
        self._wait_s += wait_s

    def step(self, loss: Tensor, grad_norm: Tensor) -> None:
        """Report the step that was counted last, if it is one to be reported."""
        if self._file is None and self._progress is None:
            return
        if not self._schedule.should_do_action(self._config.period_steps, True, is_post_step_action=True):
            return
        now_s = perf_counter()
        elapsed_s, self._begin_s = now_s - self._begin_s, now_s
        numbers = {
            "step": self._schedule.current_step,
            "loss": loss.item(),
            "grad_norm": grad_norm.item(),
            "tokens_per_s": self._tokens / elapsed_s,
            "data_wait_share": self._wait_s / elapsed_s,
        }
        self._tokens, self._wait_s = 0, 0.0
        if self._file is not None:
            self._file.write(json.dumps(numbers) + "\n")  # one write a line, so that a kill leaves whole lines
            self._file.flush()
        if self._progress is not None:
            shown = "loss {loss:.4g}  {tokens_per_s:,.0f} tokens/s  {data_wait_share:.0%} waiting for data"
            self._progress.update(self._task, completed=numbers["step"], numbers=shown.format(**numbers))
