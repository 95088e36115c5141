"""Ranks that fail at one place or another of the loop, and what every rank has in common whatever happens."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from distributed.conftest import ROOT, launcher

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]

STEP = Path(__file__).with_name("fault_step.py")
PLACES = {
    "optimizer": "the end of step 1",
    "schedule": "the end of step 4",
    "step_done": "the end of step 4",
    "state": "the states of step 3",
    "load": "loading model, optimizer, schedule and task",
}


def launched(out, kind):
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": str(ROOT / "tests"),
    }
    done = subprocess.run(
        launcher.torchrun(2, [str(STEP), str(out), kind]),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads((out / f"rank-{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return launched(tmp_path_factory.mktemp("faults"), "all")


@pytest.mark.parametrize("place", PLACES)
def test_an_error_on_one_rank_is_raised_on_all_wherever_in_the_loop_it_is(place, found):
    first, second = (rank["raised"][place] for rank in found)
    assert second == ["ArithmeticError", "this rank cannot go on"]
    assert first[0] == "RankFailedError"
    assert first[1].startswith(f"rank 1 failed in {PLACES[place]}: ArithmeticError: this rank cannot go on")


def test_a_model_that_is_another_on_one_rank_is_refused_on_all(found):
    first, second = (rank["raised"]["parameters"] for rank in found)
    assert second[0] == "OrderError"
    assert "rank 1 has other parameters than rank 0" in second[1]
    assert first[0] == "RankFailedError"


def test_a_model_of_which_a_part_is_sharded_is_refused(found):
    assert all("1 parameters that are not spread, such as factor" in rank["half"] for rank in found)


@pytest.mark.parametrize("job", ["normed", "normed, sharded", "thawed"])
def test_ranks_have_one_model_with_running_means_and_with_layers_that_are_thawed(job, found):
    first, second = (rank[job] for rank in found)
    assert first == second
    assert any(number for values in first.values() for number in (values if isinstance(values, list) else [values]))


def test_a_rank_that_fails_within_a_sharded_model_ends_though_others_wait_for_it(tmp_path):
    first, second = launched(tmp_path, "sharded")
    assert second == ["ArithmeticError", "this rank cannot go on"]
    assert first is not None
