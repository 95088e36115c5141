"""The demo's verdict: what it must notice, since a comparison that cannot fail would show nothing."""

import json
import math

import pytest


@pytest.fixture(scope="module")
def records(load):
    return load("demo/records.py")


@pytest.fixture
def whole(records):
    """Four steps of three samples, by one rank."""
    return [records.Step(1, 1, step, (step * 10, step * 10 + 1, step * 10 + 2), 8.0 / step) for step in range(1, 5)]


def test_equal_runs_have_no_problem_and_redone_steps_are_named(records, whole):
    again = [*whole[:3], *(step._replace(attempt=2, ranks=3) for step in whole[2:])]
    result = records.compare(whole, again, 4, 1e-4)
    assert result == records.Comparison((), redone=(3,), num_ids=12, max_loss_difference=0.0)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda step: step._replace(ids=(31, 30, 32)), "step 3 (attempt 1, 1 ranks) trained on"),
        (lambda step: step._replace(ids=(30, 31)), "trained on"),
        (lambda step: step._replace(loss=step.loss + 2e-4), "has loss"),
        (lambda step: step._replace(loss=math.nan), "has loss nan"),
        (lambda step: step._replace(step=2), "never finished the steps [3]"),
        (lambda step: step._replace(step=5), "trained on"),
    ],
)
def test_a_difference_in_one_step_is_noticed(change, problem, records, whole):
    broken = [*whole[:2], change(whole[2]), whole[3]]
    assert any(problem in found for found in records.compare(whole, broken, 4, 1e-4).problems)


def test_a_redone_step_that_differs_is_noticed_though_the_other_occurrence_agrees(records, whole):
    broken = [*whole[:2], whole[2]._replace(ids=(0, 31, 32)), *(step._replace(attempt=2) for step in whole[2:])]
    assert len(records.compare(whole, broken, 4, 1e-4).problems) == 1


def test_a_sample_trained_on_twice_is_noticed_in_the_uninterrupted_run(records, whole):
    twice = [*whole[:3], whole[3]._replace(ids=(10, 41, 42))]
    assert records.compare(twice, twice, 4, 1e-4).problems == ("a sample was trained on twice within one epoch",)


def test_a_step_counts_when_all_its_ranks_recorded_it_whole(records, tmp_path):
    lines = [json.dumps({"step": step, "ids": [step, -step], "loss": 1.0}) + "\n" for step in (1, 2, 3)]
    (tmp_path / "attempt-1-rank-0-of-2.jsonl").write_text("".join(lines))
    (tmp_path / "attempt-1-rank-1-of-2.jsonl").write_text("".join(lines)[:-5])  # killed within its third line
    steps = records.read_steps(tmp_path)
    assert [step.step for step in steps] == [1, 2]
    assert steps[0].ids == (1, 1, -1, -1)  # dealt in turns
    assert records.last_step(tmp_path, 1) == 3
    assert records.last_step(tmp_path, 2) == 0


def test_a_launch_that_skips_or_repeats_a_step_is_refused(records, tmp_path):
    for steps in ([1, 3], [1, 1], [2, 1]):
        text = "".join(json.dumps({"step": step, "ids": [1], "loss": 1.0}) + "\n" for step in steps)
        (tmp_path / "attempt-1-rank-0-of-1.jsonl").write_text(text)
        with pytest.raises(SystemExit, match="do not follow one another"):
            records.read_steps(tmp_path)
