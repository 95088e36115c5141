"""Builds the killing library, and prints at the end how many points were died at."""

import collections
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent


class Runner:
    """The process that runs workloads; see runner.py."""

    def __init__(self, library, scratch):
        plan = scratch / "plan"
        plan.write_bytes(bytes(4096))
        environment = {**os.environ, "LD_PRELOAD": str(library), "HEADRACE_KILL_FILE": str(plan)}
        self.process = subprocess.Popen(
            [sys.executable, HERE / "runner.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )

    def run(self, work, folder, nth=0, *, half=False, target="any", module="workloads"):
        order = {"module": module, "work": work, "folder": str(folder), "nth": nth, "half": half, "target": target}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait(20)
        self.process.stdout.close()


@pytest.fixture(scope="session")
def runner(tmp_path_factory):
    compiler = shutil.which("gcc") or shutil.which("cc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("crash tests preload a C library: they need Linux and gcc (Debian: apt-get install gcc libc6-dev)")
    scratch = tmp_path_factory.mktemp("crash")
    library = scratch / "kill_at.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", library, HERE / "kill_at.c", "-ldl"]
    built = subprocess.run(command, capture_output=True, text=True)
    if built.returncode:
        pytest.skip(f"crash tests preload a C library, which does not compile here: {built.stderr.strip()[-300:]}")
    runner = Runner(library, scratch)
    yield runner
    runner.close()


@pytest.fixture
def quick_path(tmp_path):
    """A directory in memory where there is one: what kills a process needs no disk, and syncing one takes the time."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory, prefix="headrace-crash-") as folder:
        yield Path(folder)


def pytest_terminal_summary(terminalreporter):
    points = collections.defaultdict(collections.Counter)
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        for name, value in report.user_properties:
            if name == "crash points" and report.when == "call":
                points[value["of"]].update(value["kinds"])
    for name, kinds in sorted(points.items()):
        detail = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        terminalreporter.write_line(f"killed at {kinds.total():4d} points: {name} ({detail})")
    if points:
        total = sum(kinds.total() for kinds in points.values())
        terminalreporter.write_line(f"killed at {total} points in all")
    for report in terminalreporter.getreports("skipped"):
        if "crash" in report.nodeid:
            terminalreporter.write_line(f"NOT RUN: {report.nodeid}: {report.longrepr[2]}")
