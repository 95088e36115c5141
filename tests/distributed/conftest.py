"""Data small enough to read in a glance, and real torchrun jobs that can be killed whole."""

import importlib.util
import json
import sys
import uuid
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from distributed import corpora
from headrace import StreamNumpyFormat, StreamStorage

ROOT = Path(__file__).parents[2]
STEP = Path(__file__).with_name("step.py")
NUM_WINDOWS = 301  # 26 steps an epoch, the last of them one row: with several ranks most get an empty batch
SEQUENCE_LENGTH = 16


def _launch_module():
    """The demo's launcher, by path: `examples` need not be importable here."""
    spec = importlib.util.spec_from_file_location("demo_launch", ROOT / "examples" / "demo" / "launch.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


launcher = _launch_module()


@pytest.fixture(scope="session")
def tokens(tmp_path_factory):
    """A published stream in which element i is i, so that a row's content is its number; shards cut windows."""
    folder = tmp_path_factory.mktemp("data") / "tokens"
    storage = StreamStorage(folder, StreamNumpyFormat(np.dtype([("tokens", "<u2")])))
    elements = np.arange(NUM_WINDOWS * SEQUENCE_LENGTH + 5, dtype=np.uint16)
    with storage.sync_writer() as writer:
        for shard, part in enumerate(np.split(elements, [1000, 1001, 3333])):
            writer.append(shard, {"tokens": part})
    storage.publish()
    return folder


class Line(NamedTuple):
    """What one rank recorded of one step."""

    attempt: int
    rank: int
    world_size: int
    step: int
    ids: tuple[object, ...]  # numbers of windows; of other rows the pieces of documents
    weight: int


class Job:
    """A training job that is launched, killed and launched again in one folder."""

    def __init__(self, data, out, steps, workers, checkpoint="json", order="windows"):
        self.data, self.out, self.steps, self.order = data, out, steps, order
        self.workers, self.checkpoint = workers, checkpoint
        self.attempts = 0
        out.mkdir()

    def launch(self, ranks, kill_at=None, workers=None):
        """Run to the end, or until every rank recorded step kill_at: then SIGKILL, and see that no process is left."""
        self.attempts += 1
        attempt = self.attempts
        mark = f"HEADRACE_TEST_JOB={uuid.uuid4()}"  # every process of this launch inherits it
        program = [STEP, "--data", self.data, "--out", self.out, "--steps", self.steps, "--attempt", attempt]
        program += ["--order", self.order, "--workers", workers or self.workers, "--checkpoint", self.checkpoint]
        if kill_at is not None:
            program += ["--hold-at", kill_at]
        command = ["env", mark, *launcher.torchrun(ranks, [str(part) for part in program])]

        def reached():
            lines = [line.step for line in self.lines() if line.attempt == attempt]
            return kill_at is not None and lines.count(kill_at) == ranks

        killed = launcher.run_until(command, self.out / f"attempt-{attempt}.log", reached)
        assert killed == (kill_at is not None), f"attempt {attempt} ended before it was killed"
        assert alive_with(mark) == []

    def lines(self):
        """Every whole line of every rank of every attempt."""
        found = []
        for path in sorted(self.out.glob("attempt-*.jsonl")):
            _, attempt, _, rank, _, world_size = path.stem.split("-")
            whole, _, _ = path.read_text().rpartition("\n")
            for line in map(json.loads, whole.splitlines()):
                place = (int(attempt), int(rank), int(world_size))
                found.append(Line(*place, line["step"], tuple(line["ids"]), line["weight"]))
        return found


def alive_with(mark):
    """The processes whose environment has the mark; those that are dead and not yet reaped have none."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            environment = path.read_bytes()
        except OSError:
            continue
        if mark.encode() in environment.split(b"\0"):
            found.append(int(path.parent.name))
    return found


@pytest.fixture(scope="session")
def documents(tmp_path_factory):
    """The folder of three published corpora."""
    folder = tmp_path_factory.mktemp("corpora")
    corpora.write(folder)
    return folder


@pytest.fixture(scope="session")
def make_job(tokens, documents, tmp_path_factory):
    """make_job(workers, steps, checkpoint="json", order="windows") -> Job, in a folder of its own."""
    if not sys.platform.startswith("linux"):
        pytest.skip("killing whole process trees needs /proc")

    def make(workers, steps, checkpoint="json", order="windows"):
        out = tmp_path_factory.mktemp(f"{order}-{workers}-{checkpoint}") / "run"
        return Job(tokens if order == "windows" else documents, out, steps, workers, checkpoint, order)

    return make


@pytest.fixture(scope="session")
def reference(make_job):
    """Step to line of an uninterrupted run of one rank without workers: 60 steps, more than two epochs."""
    job = make_job("none", steps=60)
    job.launch(ranks=1)
    return {line.step: line for line in job.lines()}
