"""Headrace's own loop under torchrun: killed, asked to stop, gone on with by other ranks; and ranks that fail."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest

from distributed.conftest import alive_with, launcher
from training import linear_job

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
STEP = Path(__file__).with_name("trainer_step.py")
GOLDEN = Path(__file__).parents[1] / "golden" / "d9d" / "trainer_dp.json"
STEPS, STEPS_PER_EPOCH, NUM_SAMPLES = 52, 26, 301
MICROBATCH_SIZE = {1: 4, 2: 3, 3: 2, 4: 3}  # what 12 rows, dealt to so many ranks, can be cut into
LIMIT_S = 240


class Run:
    """A job that is launched again and again in one folder."""

    def __init__(self, out):
        self.out = out
        self.attempts = 0
        out.mkdir()

    @property
    def checkpoints(self):
        """Whole ones, by their steps."""
        return sorted(int(path.name.removeprefix("save-")) for path in (self.out / "job").glob("save-*"))

    def command(self, ranks, options):
        self.attempts += 1
        self.mark = f"HEADRACE_TEST_JOB={uuid.uuid4()}"  # every process of this launch inherits it
        given = {"out": self.out, "attempt": self.attempts, "microbatch-size": MICROBATCH_SIZE[ranks], **options}
        program = [str(STEP), *(f"--{name}={value}" for name, value in given.items() if value is not True)]
        program += [f"--{name}" for name, value in given.items() if value is True]
        return ["env", self.mark, *launcher.torchrun(ranks, program)]

    def finish(self, ranks, **options):
        """Launch it to the end."""
        assert not launcher.run_until(self.command(ranks, options), self.log)
        assert (self.out / f"complete-{self.attempts}").exists()
        assert alive_with(self.mark) == []

    def kill(self, ranks, step, **options):
        """Launch it, and SIGKILL all of its processes in this step."""
        command = self.command(ranks, {**options, "hold-at": step})
        assert launcher.run_until(command, self.log, lambda: self.is_at(step, ranks))
        assert alive_with(self.mark) == []

    def interrupt(self, ranks, step, number, who=lambda pids: pids[:1], **options):
        """Launch it, and send a signal to some of its processes (by default torchrun's own, which passes it on) once
        every rank is at this step. The log comes back."""
        command = self.command(ranks, {**options, "pause-s": 0.02})
        environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        with self.log.open("wb") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=environment
            )
            try:
                wait_until(lambda: self.is_at(step, ranks) or process.poll() is not None)
                assert process.poll() is None, self.log.read_text()[-4000:]
                pids = [process.pid, *launcher.descendants(process.pid)]
                for pid in who(pids):
                    os.kill(pid, number)
                process.wait(LIMIT_S)
            finally:
                if process.poll() is None:
                    launcher.kill_tree(process.pid)
                    process.wait()
        wait_until(lambda: alive_with(self.mark) == [])
        assert not (self.out / f"complete-{self.attempts}").exists()
        return self.log.read_text()

    def fail(self, ranks, **options):
        """Launch it, and let it fail; what it printed comes back."""
        environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        done = subprocess.run(
            self.command(ranks, options), capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environment
        )
        assert done.returncode != 0
        return done.stdout + done.stderr

    @property
    def log(self):
        return self.out / f"attempt-{self.attempts}.log"

    def is_at(self, step, ranks):
        """Whether all ranks of this attempt have begun the step."""
        begun = [{step for step, _ in microbatches} for *_, microbatches in self.records(self.attempts)]
        return len(begun) == ranks and all(max(steps, default=0) >= step for steps in begun)

    def records(self, attempt=None):
        """(attempt, rank, ranks, [(step, ids of a microbatch)]) of each rank."""
        for path in sorted(self.out.glob(f"attempt-{attempt or '*'}-rank-*.jsonl")):
            number, rank, ranks = map(int, re.findall(r"\d+", path.name))
            whole, _, _ = path.read_text().rpartition("\n")
            lines = map(json.loads, whole.splitlines())
            yield number, rank, ranks, [(line["step"], line["ids"]) for line in lines]

    def losses(self):
        """[(attempt, step, loss)], in the order in which the main process wrote them."""
        found = []
        for attempt in range(1, self.attempts + 1):
            for line in linear_job.lines_of(self.out / f"losses-{attempt}.jsonl"):
                found.append((attempt, line["step"], line["loss"]))
        return found


def wait_until(condition):
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.02)


class Reference:
    """An undisturbed run of one rank."""

    def __init__(self, run):
        run.finish(1)
        (_, _, _, microbatches), *_ = run.records()
        self.ids = {step: [] for step in range(1, STEPS + 1)}
        for step, ids in microbatches:
            self.ids[step] += ids
        self.losses = {step: loss for _, step, loss in run.losses()}

    def assert_same(self, run, complete=True):
        """Each rank had the samples that arithmetic deals to it, at every step of every attempt; each loss is equal to
        1e-5; no step is missing."""
        for _, rank, ranks, microbatches in run.records():
            steps = {step: [] for step, _ in microbatches}
            for step, ids in microbatches:
                steps[step] += ids
            for step, ids in list(steps.items())[:-1]:  # the last may be cut by a kill
                assert ids == self.ids[step][rank::ranks]
        for _, step, loss in run.losses():
            assert loss == pytest.approx(self.losses[step], abs=1e-5)
        done = [step for _, step, _ in run.losses()]
        assert sorted(set(done)) == list(range(1, max(done) + 1))
        if complete:
            assert max(done) == STEPS


@pytest.fixture(scope="module")
def make_run(tmp_path_factory):
    if not sys.platform.startswith("linux"):
        pytest.skip("killing whole process trees needs /proc")
    return lambda: Run(tmp_path_factory.mktemp("trainer") / "run")


@pytest.fixture(scope="module")
def reference(make_run):
    return Reference(make_run())


def redone(run):
    """The steps that were trained more than once."""
    steps = [step for _, step, _ in run.losses()]
    return {step for step in steps if steps.count(step) > 1}


def test_an_undisturbed_run_sees_every_sample_once_an_epoch(reference):
    for first in (1, STEPS_PER_EPOCH + 1):
        seen = [number for step in range(first, first + STEPS_PER_EPOCH) for number in reference.ids[step]]
        assert sorted(seen) == list(range(NUM_SAMPLES))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_job_that_is_killed_and_stopped_goes_on_with_other_ranks_as_if_nothing_had_happened(
    workers, make_run, reference
):
    run = make_run()
    run.kill(4, 13, workers=workers)  # from the checkpoint at 10
    assert run.checkpoints == [5, 10]
    log = run.interrupt(2, 17, signal.SIGTERM, workers=workers, prefetch=0, wrap=True)
    assert log.count("stopped by SIGTERM") == 2
    (stopped_at,) = set(re.findall(r"behind step (\d+)", log))
    assert run.checkpoints[-1] == int(stopped_at) >= 17
    run.kill(3, 33, workers=workers)  # in the second epoch, behind a step in which two ranks had no row
    run.finish(1, workers=workers)
    reference.assert_same(run)
    assert run.checkpoints == [50, 52]
    # A kill loses what came behind the last checkpoint; a request to stop loses nothing.
    assert redone(run) <= {11, 12, 13, 31, 32, 33}
    assert {11, 12, 31, 32} <= redone(run)


def test_a_job_goes_on_at_once_whatever_signal_ended_it(make_run, reference):
    run = make_run()
    every = list
    ranks_alone = lambda pids: [pid for pid in pids if is_rank(pid)][:1]  # noqa: E731
    for step, number, who in [
        (3, signal.SIGTERM, every),  # the workers and torchrun, too
        (9, signal.SIGKILL, ranks_alone),  # the others are told by their connection
        (14, signal.SIGINT, ranks_alone),  # one rank alone was asked: all stop
    ]:
        log = run.interrupt(2, step, number, who, workers=2)
        if number != signal.SIGKILL:
            assert 'Traceback (most recent call last):\n  File "' + str(STEP) not in log
            assert run.checkpoints[-1] == max(step for attempt, step, _ in run.losses() if attempt == run.attempts)
    run.finish(2, workers=2)
    reference.assert_same(run)


def is_rank(pid):
    """Whether torchrun started this process."""
    parts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    command = Path(f"/proc/{pid}/cmdline").read_bytes()
    parent = Path(f"/proc/{parts[1]}/cmdline").read_bytes()
    return str(STEP).encode() in command and b"torch.distributed.run" in parent


def test_a_rank_that_fails_in_a_step_fails_all_of_them_and_they_say_which(make_run):
    printed = make_run().fail(3, **{"fail-at": 4, "fail-rank": 1})
    assert "ArithmeticError: this rank cannot go on" in printed
    assert printed.count("RankFailedError: rank 1 failed in step 4: ArithmeticError: this rank cannot go on") == 2


def test_a_rank_whose_data_fails_fails_all_of_them_and_they_say_which(make_run, reference):
    run = make_run()
    step, broken = next((step, ids[1]) for step, ids in reference.ids.items() if step == 4)  # row 1 is rank 1's
    printed = run.fail(2, **{"broken-sample": broken, "fail-rank": 1})
    assert f"RankFailedError: rank 1 failed in the data of step {step}" in printed
    assert {step for _, step, _ in run.losses()} == {1, 2, 3}


def test_a_rank_whose_data_ends_early_ends_all_of_them_and_they_say_which(make_run):
    printed = make_run().fail(2, **{"short": 3, "fail-rank": 1})
    assert "RuntimeError: the data ended at step 3, before total_steps=52" in printed
    assert "RankFailedError: rank 1 failed in the data of step 4: RuntimeError: the data ended at step 3" in printed


def test_a_sharded_model_refuses_ranks_with_unequally_many_microbatches(make_run, reference):
    run = make_run()
    printed = run.fail(2, shard=True)  # the last step of the epoch has one row, for one of the ranks
    assert printed.count("a sharded model needs equally many microbatches on every rank") >= 2
    assert "of step 26" in printed
    reference.assert_same(run, complete=False)
    assert run.checkpoints == [20, 25]
    run.kill(4, 28, wrap=True)  # the same checkpoint, by ranks that have the whole model each; 3 have no row in step 26
    run.finish(1)
    reference.assert_same(run)


RECORDED = json.loads(GOLDEN.read_text())["runs"]


@pytest.mark.parametrize(
    ("recorded", "parallelism"),
    [(RECORDED[0], "ddp"), (RECORDED[1], "ddp"), (RECORDED[0], "fsdp2")],
    ids=["2 ranks", "4 ranks", "2 ranks, sharded"],
)
def test_several_ranks_have_the_losses_and_microbatches_that_d9d_recorded(recorded, parallelism, tmp_path):
    ranks = recorded["dp"]
    config = {**recorded["config"], "ranks": ranks, "parallelism": parallelism}
    if ranks == 4 and config["gbs"] // ranks < config["mb"]:
        config["mb"] = config["gbs"] // ranks
    program = ["-m", "training.linear_job", str(tmp_path), json.dumps(config)]
    command = ["env", f"PYTHONPATH={ROOT / 'tests'}", *launcher.torchrun(ranks, program)]
    launcher.run_until(command, tmp_path / "log")
    for rank in range(ranks):
        found = json.loads((tmp_path / f"rank-{rank}.json").read_text())
        assert found["microbatches"] == recorded["microbatches_by_rank"][rank]
        assert found["total_steps"] == recorded["total_steps"]
    for line, theirs in zip(linear_job.lines_of(tmp_path / "steps.jsonl"), recorded["steps"], strict=True):
        assert [line["step"] - 1, line["loss"], line["grad_norm"]] == pytest.approx(theirs, abs=1e-5)
