"""How long a job is, and when something periodic is due."""

import pytest

from headrace import JobSchedule, JobScheduleConfig
from headrace.errors import OptionError


class Stream:
    """As much of a stream as a schedule asks for."""

    def __init__(self, total_steps, **more):
        self.total_steps = total_steps
        vars(self).update(more)


def schedule(total=None, stream=5, current_step=0, **more):
    return JobSchedule(JobScheduleConfig(total_steps=total), Stream(stream, **more), current_step)


def test_the_total_is_the_configured_one_else_that_of_the_data():
    assert schedule(total=3).total_steps == 3
    assert schedule().total_steps == 5
    assert schedule(total=7, stream=None).total_steps == 7


def test_more_steps_than_there_is_data_for_and_no_number_at_all_are_refused():
    with pytest.raises(OptionError, match=r"total_steps=6 .* at most 5"):
        schedule(total=6)
    with pytest.raises(OptionError, match=r"total_steps=None .* no end that is known"):
        schedule(stream=None)


def test_what_is_left_of_the_data_counts_from_the_steps_that_are_done():
    assert schedule(stream=4, current_step=5, steps_left=1).total_steps == 6
    assert schedule(total=6, stream=4, current_step=5, steps_left=1).total_steps == 6
    with pytest.raises(OptionError, match="at most 6"):
        schedule(total=7, stream=4, current_step=5, steps_left=1)
    assert schedule(stream=4, current_step=2, steps_left=None).total_steps == 4


def test_periods_count_the_step_being_made_or_the_one_just_made():
    job = schedule()
    due = []
    for _ in range(5):
        before = job.should_do_action(2)
        job.step()
        assert before == job.should_do_action(2, is_post_step_action=True)
        if before:
            due.append(job.current_step)
    assert due == [2, 4]
    assert job.should_do_action(2, enable_on_last_step_if_periodic=True, is_post_step_action=True)
    assert job.should_do_action("last_step", is_post_step_action=True)
    assert not job.should_do_action("disable", True, is_post_step_action=True)


@pytest.mark.parametrize("period", [0, -1, "often"])
def test_a_period_that_means_nothing_is_refused(period):
    with pytest.raises(OptionError, match="action="):
        schedule().should_do_action(period)


def test_its_state_is_the_steps_that_are_done():
    job = schedule(current_step=3)
    other = schedule()
    other.load_state_dict(job.state_dict())
    assert other.current_step == 3
