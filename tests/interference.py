"""Processes and signals that come in between: children that run a function, and Ctrl-C at any line."""

import gc
import linecache
import multiprocessing
import os
import sys
from pathlib import Path

import headrace

FORK = multiprocessing.get_context("fork")
HOME = str(Path(headrace.__file__).parent)


def in_child(function, *arguments):
    """Starts function in a forked process; its outcome comes through the returned pipe."""
    receiver, sender = FORK.Pipe(duplex=False)

    def main():
        try:
            sender.send(("returned", function(*arguments)))
        except BaseException as error:
            sender.send(("raised", error))
        os._exit(0)

    process = FORK.Process(target=main)
    process.start()
    sender.close()
    return process, receiver


def interrupted(call, nth):
    """Calls it, and raises KeyboardInterrupt at the nth line of ours in this thread; whether it came so far.

    Not at `with` lines: they are passed a second time before __exit__ is called, where no signal is looked for.
    """
    count = 0

    def at_line(frame, event, _):
        nonlocal count
        if event == "line" and frame.f_code.co_filename.startswith(HOME):
            if not linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with "):
                count += 1
            if count == nth:
                count += 1
                raise KeyboardInterrupt
        return at_line

    gc.disable()  # finalizers have lines, too
    sys.settrace(lambda frame, event, _: at_line)
    try:
        call()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
        gc.enable()
    return count > nth
