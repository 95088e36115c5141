"""Lightning and Hugging Face's Trainer: killed in mid epoch, and on with the same samples and losses."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headrace import StateMismatchError, StreamNumpyFormat, StreamStorage

ROOT = Path(__file__).parents[2]
LOOPS = ["lightning", "huggingface"]
# Killed right behind a checkpoint at the end of an epoch, and in the middle of one.
KILLS = [18, 23]


def start(loop, out, *options):
    command = [sys.executable, "-m", f"examples.{loop}_resume", "--out", str(out), *map(str, options)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)


@pytest.fixture(scope="module", params=LOOPS)
def whole(request, tmp_path_factory):
    """The loop's name, and the folder of an undisturbed run."""
    out = tmp_path_factory.mktemp(request.param) / "whole"
    done = start(request.param, out)
    assert done.returncode == 0, done.stderr
    return request.param, out


@pytest.mark.slow
def test_a_killed_run_goes_on_with_other_workers_as_if_nothing_had_happened(whole, same_steps):
    loop, reference = whole
    killed = reference.parent / "killed"
    for kill_at, workers in zip(KILLS, (0, 2), strict=True):
        done = start(loop, killed, "--kill-at", kill_at, "--workers", workers)
        assert done.returncode == -9, done.stderr
    done = start(loop, killed)
    assert done.returncode == 0, done.stderr
    assert same_steps(killed, reference) == 40
    steps = [json.loads(line)["step"] for line in (killed / "rank-0.jsonl").read_text().splitlines()]
    assert steps == [*range(1, 19), *range(17, 24), *range(21, 41)], "each began behind the last checkpoint"


@pytest.mark.slow
def test_a_checkpoint_is_refused_for_other_data(whole):
    loop, reference = whole
    out = reference.parent / "other" / "run"
    out.parent.mkdir()
    shutil.copytree(reference, out)
    storage = StreamStorage(out.parent / "tokens", StreamNumpyFormat([("tokens", "<u2"), ("window", "<u2")]))
    with storage.sync_writer() as writer:
        writer.append(0, {"tokens": [1] * 3200, "window": [2] * 3200})
    storage.publish()
    done = start(loop, out)
    assert done.returncode != 0
    assert StateMismatchError.__name__ in done.stderr
