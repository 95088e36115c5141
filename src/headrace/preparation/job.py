"""prepare(): one task a split, one shard a task, and a publication at the end.

    plan recorded -> leftovers of dead runs removed -> unfinished tasks run -> published

Everything is as resumable as the target's receipts make it: a shard with the receipt of its task is done, whoever made
it.
"""

import contextlib
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any

from headrace.errors import HeadraceError, PreparationError
from headrace.preparation.executors import (
    RunTask,
    Tell,
    available_cpus,
    leave_unguarded_import,
    run_in_pool,
    run_in_process,
    run_on,
    would_start_processes_forever,
)
from headrace.preparation.progress import progress_bar
from headrace.preparation.tasks import MakeRecords, Outcome, Target, Task, plan_tasks, run_task

__all__ = ["Report", "prepare"]


@dataclass(frozen=True)
class Report:
    """What a preparation did."""

    done: int  # tasks run now
    skipped: int  # tasks found finished
    num_records: int  # appended now
    seconds: float
    totals: Mapping[str, int]  # num_shards, total_length and total_bytes of the published dataset


def prepare(  # noqa: PLR0913 -- what, into what, and independent switches: there is no noun among them
    splits: Iterable[Any],
    make_records: MakeRecords,
    target: Target,
    *,
    executor: Executor | None = None,
    workers: int | None = None,
    resume: bool = True,
    progress: bool = True,
    overwrite: bool = False,
    settings: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Report:
    """Makes shard k of target from `make_records(splits[k])`, publishes target, and reports how much was to do.

    make_records(split) yields what target's writer appends; an empty split gives an empty shard. The tasks run in
    `workers` spawned processes (None: one a CPU; 1: in this process), or on `executor`, any
    concurrent.futures.Executor. A script that uses processes needs a main guard.

    A task is named by its split, make_records (its qualified name, and its arguments or fields if it is a partial or an
    object), the target's settings and `settings`; resume=True skips those that are finished. A change in the body of
    make_records shows in none of these: say it in settings, as in {"version": 2}. On a target that is published with
    the same plan there is nothing to do; with another one PublishedError is raised and nothing is changed, unless
    overwrite=True.

    metadata is JSON of your own that goes into the manifest; it decides nothing.

    Raises PreparationError, from the original error, when a task fails or a worker dies: it names the split and shard,
    the other tasks are stopped, nothing is published, and the finished shards stay for the next run. The same holds for
    Ctrl-C, and for SIGKILL, which the workers do not outlive. Raises it too when there is no split or no record at all.
    """
    num_workers = available_cpus() if workers is None else workers
    if num_workers < 1:
        raise PreparationError(f"workers={workers} must be at least 1")
    if metadata and not target.takes_metadata:
        raise PreparationError(f"{target.storage_dir}: this kind of dataset has no place for metadata; leave it out")
    if executor is None and num_workers > 1 and would_start_processes_forever():
        leave_unguarded_import()
    started_s = time.monotonic()
    tasks = plan_tasks(splits, make_records, target, settings)
    if not tasks:
        raise PreparationError(f"0 splits were given for {target.storage_dir}; there is nothing to prepare")
    ids = [task.id for task in tasks]
    if resume and target.is_published() and target.planned_tasks() == ids:
        target.publish()  # changes nothing but what a publisher that died left behind
        return Report(0, len(tasks), 0, time.monotonic() - started_s, _totals(target))
    target.record_plan(ids, overwrite=overwrite)
    target.recover()
    finished = target.finished_tasks() if resume else {}
    done = [task for task in tasks if finished.get(task.shard) == task.id]
    left = [task for task in tasks if finished.get(task.shard) != task.id]
    run = partial(run_task, make_records=make_records, target=target)
    num_records = 0
    with progress_bar(progress, tasks, done) as (tell, finish):
        try:
            with contextlib.closing(_outcomes(left, run, tell, executor, num_workers)) as outcomes:
                for outcome in outcomes:
                    _raise_failure(outcome, tasks)
                    num_records += outcome.num_records
                    finish(outcome.shard)
        except BaseException:
            # Best effort and quiet: what cannot be removed now is removed by the next run.
            with contextlib.suppress(HeadraceError, OSError):
                target.recover()
            raise
    if num_records == 0 and target.finished_length() == 0:
        raise PreparationError(f"{len(tasks)} splits gave 0 records; {target.storage_dir} was not published")
    target.publish(metadata)
    return Report(len(left), len(done), num_records, time.monotonic() - started_s, _totals(target))


def _totals(target: Target) -> dict[str, int]:
    described = target.describe()
    return {name: int(described[name]) for name in ("num_shards", "total_length", "total_bytes")}


def _outcomes(
    tasks: Sequence[Task], run: RunTask, tell: Tell, executor: Executor | None, num_workers: int
) -> Generator[Outcome, None, None]:
    if executor is not None:
        return run_on(executor, tasks, run, tell)
    # Processes even for a single task that is left: what runs where must not depend on how far an earlier run came.
    if num_workers > 1 and tasks:
        return run_in_pool(tasks, run, min(num_workers, len(tasks)), tell)
    return run_in_process(tasks, run, tell)


def _raise_failure(outcome: Outcome, tasks: Sequence[Task]) -> None:
    if outcome.failure is not None:
        raise PreparationError(f"{tasks[outcome.shard]}: {outcome.failure.summary}") from outcome.failure.cause()
