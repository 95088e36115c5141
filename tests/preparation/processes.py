"""Scripts in sessions of their own, and who is still alive in them."""

import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

TESTS = Path(__file__).parents[1]


def start(folder, script, **env):
    """A process that runs the script, in a session of its own."""
    path = folder / "script.py"
    path.write_text(textwrap.dedent(script))
    return start_command([sys.executable, str(path)], **env)


def start_command(command, **env):
    env = {**os.environ, "PYTHONPATH": str(TESTS), **env}
    return subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def alive(session):
    """Command lines of the live processes of a session, its leader and Python's resource tracker aside."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        other = int(fields[3]) == session and int(folder.name) != session
        # One without a command line has ended but for the bookkeeping.
        if other and fields[0] != "Z" and command and "resource_tracker" not in command:
            found.append(command)
    return found


def wait_for(condition, what, timeout_s=20):
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"no {what} within {timeout_s} s"
        threading.Event().wait(0.02)
