"""Runs workloads in forked children, so that a crash costs milliseconds and not the start of an interpreter.

Reads one JSON object a line: {"module", "work", "folder", "nth" (0: undisturbed), "half", "target"}. Answers with one:
{"fired" (the kind of call that was died at, or null), "code", "kinds", "error"}. It is started with the library of
kill_at.c preloaded; only the children arm it. Every descendant of a child is gone before the answer is given.
"""

import ctypes
import gc
import importlib
import json
import mmap
import operator
import os
import struct
import sys
import tempfile
import traceback

import sample_workloads
import workloads

MODULES = {"workloads": workloads, "sample_workloads": sample_workloads}
KINDS = ("write", "fsync", "rename", "unlink", "mkdir", "link", "create")
TARGETS = ("any", "parent", "child")
PR_SET_CHILD_SUBREAPER = 36
NUM_BYTES = 4096
PREFIX_AT = 128


def run(plan, order, errors):
    nth, target = order.get("nth", 0), TARGETS.index(order.get("target", "any"))
    half = int(order.get("half", False))
    plan[:] = bytes(NUM_BYTES)
    prefix = os.fsencode(order["folder"])
    plan[PREFIX_AT : PREFIX_AT + len(prefix)] = prefix
    errors.seek(0)
    errors.truncate()
    name = order["module"]
    module = MODULES.get(name) or importlib.import_module(name)  # here, so that the children need not
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.dup2(errors.fileno(), 2)
            struct.pack_into("6Q", plan, 0, 1, nth, 0, os.getpid(), target, half)
            operator.attrgetter(order["work"])(module)(order["folder"])
            code = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    code = None
    while True:  # orphans come to this process, since it is their subreaper
        try:
            ended, status = os.waitpid(-1, 0)
        except ChildProcessError:
            break
        if ended == pid:
            code = os.waitstatus_to_exitcode(status)
    fired = struct.unpack_from("Q", plan, 48)[0]
    counts = struct.unpack_from("7Q", plan, 64)
    errors.seek(0)
    return {
        "fired": KINDS[fired - 1] if fired else None,
        "code": code,
        "kinds": dict(zip(KINDS, counts, strict=True)),
        "error": errors.read().decode(errors="replace")[-4000:],
    }


def main():
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    gc.freeze()
    with open(os.environ["HEADRACE_KILL_FILE"], "r+b") as file, tempfile.TemporaryFile() as errors:
        plan = mmap.mmap(file.fileno(), NUM_BYTES)
        for line in sys.stdin:
            print(json.dumps(run(plan, json.loads(line), errors)), flush=True)


if __name__ == "__main__":
    main()
