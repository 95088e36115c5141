"""Processes that are forked from a test, and what it waits for."""

import multiprocessing
import time


def forked(function, *arguments):
    """A process that calls the function; joined() waits for it."""
    process = multiprocessing.get_context("fork").Process(target=function, args=arguments)
    process.start()
    return process


def joined(processes, within_s=60):
    """All of them have ended well; none outlives this call."""
    deadline_s = time.monotonic() + within_s
    for process in processes:
        process.join(max(0.0, deadline_s - time.monotonic()))
    hung = [process for process in processes if process.is_alive()]
    for process in hung:
        process.kill()
        process.join()
    assert not hung, f"{len(hung)} of {len(processes)} processes hung"
    assert [process.exitcode for process in processes] == [0] * len(processes)


def waited_for(is_so, within_s=20):
    """Whether it becomes so in time."""
    deadline_s = time.monotonic() + within_s
    while not (found := is_so()) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return bool(found)
