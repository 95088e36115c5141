"""Runs tasks: in this process, in a pool of processes of our own, or on any executor that the caller has.

Each way is a generator of outcomes in the order of completion. Closing it early, by an error or Ctrl-C, stops what
still runs; whichever way it ends, no child of ours is alive behind it.

The pool's processes are spawned, since a fork of a process with threads may hang. They die with their parent: each has
a thread that waits for the parent's end, which the kernel reports even after SIGKILL.
"""

import multiprocessing
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Protocol

from headrace.errors import PreparationError
from headrace.preparation.tasks import Failure, Outcome, Stop, Task

__all__ = [
    "RunTask",
    "Tell",
    "available_cpus",
    "run_in_pool",
    "run_in_process",
    "run_on",
    "would_start_processes_forever",
]

Tell = Callable[[int, int], None]  # (shard, bytes read since the last call)

_UNGUARDED = 78  # exit code of a worker whose main script starts a preparation while it is imported
_MESSAGE = struct.Struct("<qqq")  # pid, shard, bytes; far below PIPE_BUF, so that writers in one pipe never mix
_POLL_S = 0.2
_GRACE_S = 2.0
_TELL_EVERY_S = 0.25
_GUARD_ADVICE = (
    "put what starts the preparation under `if __name__ == '__main__':`, because workers import the main script"
)


class RunTask(Protocol):
    """run_task with everything but the task filled in."""

    def __call__(self, task: Task, *, tell: Callable[[int], None] | None = None, stop: Stop | None = None) -> Outcome:
        """The task's outcome."""
        ...


def available_cpus() -> int:
    """The number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_in_process(tasks: Sequence[Task], run: RunTask, tell: Tell) -> Generator[Outcome, None, None]:
    """Outcomes of the tasks, one after the other, in this process and thread."""
    for task in tasks:
        yield run(task, tell=lambda num_bytes, shard=task.shard: tell(shard, num_bytes))  # type: ignore[misc]


def run_on(executor: Executor, tasks: Sequence[Task], run: RunTask, tell: Tell) -> Generator[Outcome, None, None]:
    """Outcomes of the tasks on the caller's executor, which stays open.

    Closed early, it cancels what has not begun and waits for what has: threads give up at their next record, while
    tasks in other processes are the executor's, and run to their end.
    """
    stop = threading.Event()
    futures: dict[Future[Outcome], Task] = {}
    try:
        for task in tasks:
            if isinstance(executor, ThreadPoolExecutor):
                hear = lambda num_bytes, shard=task.shard: tell(shard, num_bytes)  # noqa: E731 -- bound to this task
                futures[executor.submit(run, task, tell=hear, stop=stop)] = task
            else:
                futures[executor.submit(run, task)] = task
        pending = set(futures)
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                yield _outcome(future, futures[future])
    finally:
        stop.set()
        for future in futures:
            future.cancel()
        wait(futures)


def run_in_pool(tasks: Sequence[Task], run: RunTask, num_workers: int, tell: Tell) -> Generator[Outcome, None, None]:
    """Outcomes of the tasks in a pool of num_workers spawned processes.

    Raises PreparationError, naming the worker's task, when a worker is killed or cannot start. Closed early, it kills
    the workers, which leaves attempts that the target's recover() removes.
    """
    _check_sendable(run)
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(num_workers, mp_context=context, initializer=_start_worker, initargs=(sender,))
    processes: list[BaseProcess] = []
    running: dict[int, int] = {}  # worker's pid -> shard it began last
    finished = False
    try:
        with _interrupts_held_back():
            try:
                futures = {pool.submit(_work, run, task): task for task in tasks}
            finally:  # also when the system refuses one more process: those that run must be stopped
                processes = list(pool._processes.values())
        sender.close()  # so that only workers have the writing end
        pending = set(futures)
        while pending:
            done, pending = wait(pending, _POLL_S, FIRST_COMPLETED)
            _hear(receiver, running, tell)
            # Asked here too, because the pool may overlook the death of the worker that it started last.
            lost = any(process.exitcode is not None for process in processes)
            if lost or any(isinstance(future.exception(), BrokenProcessPool) for future in done):
                left = [task for future, task in futures.items() if not future.done() or future.exception()]
                raise _worker_lost(processes, running, left)
            for future in done:
                yield _outcome(future, futures[future])
        finished = True
    finally:
        if not finished:
            # The futures are not cancelled: the pool of Python 3.11 forgets its processes when it then breaks.
            _stop(processes)
        pool.shutdown(wait=True)
        sender.close()
        receiver.close()


def would_start_processes_forever() -> bool:
    """Whether this process is a worker that is only just importing its main script.

    Starting workers now means that the script lacks a main guard: each of them would import it and start workers.
    """
    return bool(getattr(multiprocessing.current_process(), "_inheriting", False))


def leave_unguarded_import() -> None:
    """Ends such a worker without a word: its parent says it once, and better than a traceback from each."""
    sys.exit(_UNGUARDED)


def _outcome(future: Future[Outcome], task: Task) -> Outcome:
    error = future.exception()
    return future.result() if error is None else Outcome(task.shard, failure=Failure(error))


def _check_sendable(run: RunTask) -> None:
    try:
        ForkingPickler.dumps(run)
    except Exception as error:
        raise PreparationError(
            f"make_records or the target cannot be sent to worker processes ({error}); make it a function at the top "
            "level of a module, or a functools.partial or dataclass made of such, or pass workers=1"
        ) from error


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    # A spawned child inherits the mask. Ctrl-C reaches the whole process group; workers are stopped by their parent.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _hear(receiver: Connection, running: dict[int, int], tell: Tell) -> None:
    with suppress(EOFError):  # when the last worker is gone, its future says how
        while receiver.poll():
            pid, shard, num_bytes = _MESSAGE.unpack(receiver.recv_bytes())
            running[pid] = shard
            tell(shard, num_bytes)


def _stop(processes: list[BaseProcess]) -> dict[int | None, int | None]:
    """pid -> exit code; -SIGTERM for those that were well until now."""
    for process in processes:
        process.terminate()
    deadline_s = time.monotonic() + _GRACE_S
    for process in processes:
        # More than one join, since the pool joins too, and who comes second may hear "ended" before "how".
        while process.exitcode is None and time.monotonic() < deadline_s:
            process.join(0.05)
    codes = {process.pid: process.exitcode for process in processes}
    for process in processes:
        process.kill()  # one that was stopped, or that ignores SIGTERM
    return codes


def _worker_lost(processes: list[BaseProcess], running: dict[int, int], unfinished: list[Task]) -> PreparationError:
    lost = [(pid, code) for pid, code in _stop(processes).items() if code not in (None, -signal.SIGTERM)]
    if any(code == _UNGUARDED for _, code in lost):
        return PreparationError(f"the main script has no main guard; {_GUARD_ADVICE}")
    shards = {running[pid] for pid, _ in lost if pid in running}
    tasks = [task for task in unfinished if task.shard in shards] or unfinished
    names = ", ".join(map(str, tasks[:4])) + (f" and {len(tasks) - 4} more" if len(tasks) > 4 else "")
    match [code for _, code in lost]:
        case [code, *_] if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
            how += " (the kernel does that when memory runs out)" if code == -signal.SIGKILL else ""
        case [code, *_]:
            how = f"ended with exit code {code}; its output says why. If it could not import the main script, "
            how += _GUARD_ADVICE
        case _:
            how = "ended unexpectedly"
    return PreparationError(f"a worker process {how}; unfinished: {names}")


# From here on: inside a worker process.

_outbox: list[Connection] = []  # the worker's end of the pipe; the pool has no other place to keep it


def _start_worker(sender: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _outbox.append(sender)
    threading.Thread(target=_die_with_parent, name="headrace-parent-watch", daemon=True).start()


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)  # at once: the main thread may be in the middle of a commit, which is made for that


def _work(run: RunTask, task: Task) -> Outcome:
    untold, told_s = 0, time.monotonic()

    def tell(num_bytes: int) -> None:
        nonlocal untold, told_s
        untold += num_bytes
        if (now_s := time.monotonic()) - told_s >= _TELL_EVERY_S:
            _send(task.shard, untold)
            untold, told_s = 0, now_s

    _send(task.shard, 0)
    return run(task, tell=tell)


def _send(shard: int, num_bytes: int) -> None:
    with suppress(OSError):  # when the parent stopped listening, it is about to stop this process
        _outbox[0].send_bytes(_MESSAGE.pack(os.getpid(), shard, num_bytes))
