"""Real torchrun jobs, SIGKILLed and continued with other numbers of ranks, against an undisturbed single rank."""

import pytest

pytestmark = pytest.mark.distributed

NUM_WINDOWS = 301
STEPS_PER_EPOCH = 26


def assert_same_run(job, reference, num_steps):
    """Each line of each rank is what arithmetic deals to it, and no step is missing, whatever was trained twice."""
    lines = job.lines()
    for line in lines:
        expected = reference[line.step]
        assert line.ids == expected.ids[line.rank :: line.world_size], line
        assert line.weight == expected.weight, line
    finished = {
        step
        for attempt in {line.attempt for line in lines}
        for step in range(1, num_steps + 1)
        if (ranks := [line for line in lines if (line.attempt, line.step) == (attempt, step)])
        and len(ranks) == ranks[0].world_size
    }
    assert finished == set(range(1, num_steps + 1))


def redone_steps(job):
    """The steps that rank 0 recorded more than once."""
    steps = [line.step for line in job.lines() if line.rank == 0]
    return {step for step in steps if steps.count(step) > 1}


def test_a_single_undisturbed_rank_sees_every_window_once_an_epoch_in_another_order_each(reference):
    assert sorted(reference) == list(range(1, 61))
    epochs = [
        [number for step in range(first + 1, first + STEPS_PER_EPOCH + 1) for number in reference[step].ids]
        for first in (0, STEPS_PER_EPOCH)
    ]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(NUM_WINDOWS))
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("workers", ["thread", "fork", "spawn"])
def test_a_job_killed_twice_goes_on_with_other_ranks_as_if_nothing_had_happened(workers, make_job, reference):
    job = make_job(workers, steps=60)
    job.launch(ranks=4, kill_at=13)  # from the checkpoint at step 10
    job.launch(ranks=2, kill_at=33)  # across the epoch's end at 26, from the checkpoint at 30
    job.launch(ranks=3)  # across the next at 52
    assert_same_run(job, reference, 60)
    assert {11, 12, 13, 31, 32, 33} <= redone_steps(job)


def test_a_job_killed_before_its_first_checkpoint_starts_over(make_job, reference):
    job = make_job("thread", steps=8)
    job.launch(ranks=2, kill_at=3)
    job.launch(ranks=3)
    assert_same_run(job, reference, 8)
    assert {1, 2, 3} <= redone_steps(job)


def test_a_distributed_checkpoint_of_two_ranks_holds_the_loader_for_three(make_job, reference):
    job = make_job("thread", steps=32, checkpoint="dcp")
    job.launch(ranks=2, kill_at=28)  # from the checkpoint at 25, one step before the epoch's end
    job.launch(ranks=3)
    assert_same_run(job, reference, 32)
    assert {26, 27, 28} <= redone_steps(job)
