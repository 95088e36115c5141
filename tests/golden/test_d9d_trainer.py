"""d9d's own Trainer, recorded: the same samples, losses, gradient norms, weights and checkpoints."""

import json
from pathlib import Path

import pytest

from headrace.errors import OptionError
from training import linear_job

GOLDEN = Path(__file__).with_name("d9d")
RUNS = json.loads((GOLDEN / "trainer.json").read_text())["runs"]
ERRORS = json.loads((GOLDEN / "trainer_errors.json").read_text())["cases"]
FRESH = [run for run in RUNS if run["run"] == "fresh"]
CHAIN = [run for run in RUNS if run["run"] != "fresh"]


def assert_as_recorded(found, recorded):
    assert found.total_steps == recorded["total_steps"]
    assert found.final_step == recorded["final_step"]
    assert found.microbatches == recorded["microbatches"]
    assert [step[0] for step in found.steps] == [step[0] for step in recorded["steps"]]
    for mine, theirs in zip(found.steps, recorded["steps"], strict=True):
        assert mine[1:] == pytest.approx(theirs[1:], abs=1e-5)
    assert found.weight[0] == pytest.approx(recorded["weight"][0], abs=1e-5)
    assert found.bias == pytest.approx(recorded["bias"], abs=1e-5)
    assert found.checkpoints == recorded["checkpoints"]


@pytest.mark.parametrize("recorded", FRESH, ids=[json.dumps(run["config"]) for run in FRESH])
def test_a_run_is_the_one_that_d9d_recorded(recorded, tmp_path):
    assert_as_recorded(linear_job.run(tmp_path, recorded["config"]), recorded)


def test_a_run_that_is_gone_on_with_and_started_again_is_the_one_that_d9d_recorded(tmp_path):
    for recorded in CHAIN:
        assert_as_recorded(linear_job.run(tmp_path, recorded["config"]), recorded)


@pytest.mark.parametrize(("before", "after"), [(3, 0), (0, 2), (3, 3)])
def test_a_run_goes_on_with_another_prefetch_and_other_workers(before, after, tmp_path):
    whole = FRESH[0]
    linear_job.run(tmp_path, {"total": 5, "prefetch": before, "workers": 2})
    found = linear_job.run(tmp_path, {"prefetch": after, "workers": 0 if after == 2 else 2})
    assert found.microbatches == whole["microbatches"][20:]
    for mine, theirs in zip(found.steps, whole["steps"][5:], strict=True):
        assert mine[1:] == pytest.approx(theirs[1:], abs=1e-5)


REFUSED = [case["config"] for case in ERRORS if "config" in case]


@pytest.mark.parametrize("config", REFUSED, ids=map(json.dumps, REFUSED))
def test_what_d9d_refuses_is_refused(config, tmp_path):
    with pytest.raises(ValueError):  # d9d's class; pydantic's and ours are kinds of it
        linear_job.run(tmp_path, config)


def test_more_steps_than_the_data_has_are_refused_with_both_numbers(tmp_path):
    with pytest.raises(OptionError, match=r"total_steps=9 .* at most 8"):
        linear_job.run(tmp_path, {"total": 9})


RESIZED = [(case["first"], case["second"]) for case in ERRORS if "second" in case]


@pytest.mark.parametrize(("first", "second"), RESIZED, ids=[json.dumps(pair) for pair in RESIZED])
def test_another_global_batch_size_goes_on_at_the_right_sample_and_leaves_none_out(first, second, tmp_path):
    """d9d counts steps of one size and samples of the other: it stops with 24 of 64 unseen, or runs out of data."""
    begun = linear_job.run(tmp_path, first)
    found = linear_job.run(tmp_path, {**second, "mb": 2, "period": first.get("period", 3)})
    rows = [number for microbatch in begun.microbatches + found.microbatches for number in microbatch]
    left = 64 - len(begun.microbatches) * 2
    size = second["gbs"]
    assert rows == list(range(64 - left % size))
    assert found.total_steps == found.final_step == begun.final_step + left // size
