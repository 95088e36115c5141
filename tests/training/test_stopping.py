"""SIGTERM and Ctrl-C end a run behind a whole step, whatever else the signal hit."""

import multiprocessing
import os
import signal

import pytest

from headrace.errors import WorkerError
from training.linear_job import Task, checkpoints_of, configurator, data, lines_of, run

if not hasattr(signal, "SIGCHLD"):
    pytest.skip("needs POSIX signals", allow_module_level=True)


class Signalled(Task):
    """Sends signals in the middle of a step: behind its second microbatch."""

    def __init__(self, at_step, send):
        super().__init__()
        self.at_step, self.send = at_step, send

    def compute_loss(self, ctx):
        result = super().compute_loss(ctx)
        if ctx.schedule.current_step + 1 == self.at_step and len(self.seen) % 4 == 0 and self.send is not None:
            send, self.send = self.send, None
            send()
        return result


def to_self(*numbers):
    return lambda: [os.kill(os.getpid(), number) for number in numbers]


def to_workers(number):
    workers = multiprocessing.active_children()
    assert workers
    for worker in workers:
        os.kill(worker.pid, number)
    for worker in workers:
        worker.join(10)


def trainer(out, send, provider=None, at_step=4, **more):
    job, _ = configurator(out, provider, replace={"task_provider": lambda _: Signalled(at_step, send)}, **more)
    return job.configure()


def assert_goes_on(out):
    """What comes behind the stop is what an undisturbed run does."""
    found = run(out, {})
    whole = run(out / "whole", {})
    assert found.microbatches == whole.microbatches[-len(found.microbatches) :]
    assert found.weight == whole.weight


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_step_is_finished_and_saved_and_the_exit_is_clean(number, prefetch, tmp_path, caplog):
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as stop:
        trainer(tmp_path, to_self(number), prefetch=prefetch).train()
    assert stop.value.code == 0
    assert checkpoints_of(tmp_path) == ["save-3", "save-4"]
    assert [line["step"] for line in lines_of(tmp_path / "steps.jsonl")] == [1, 2, 3, 4]
    assert f"stopped by {signal.Signals(number).name} behind step 4" in caplog.text
    assert signal.getsignal(number) is before
    assert_goes_on(tmp_path)


def test_a_second_ctrl_c_interrupts_at_once(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        trainer(tmp_path, to_self(signal.SIGINT, signal.SIGINT)).train()
    assert checkpoints_of(tmp_path) == ["save-3"]


def test_a_request_during_the_last_step_lets_the_job_be_complete(tmp_path):
    trainer(tmp_path, to_self(signal.SIGTERM), at_step=8).train()
    assert checkpoints_of(tmp_path) == ["save-3", "save-6", "save-8"]


def test_a_request_at_a_saved_step_saves_nothing_twice(tmp_path):
    with pytest.raises(SystemExit):
        trainer(tmp_path, to_self(signal.SIGTERM), at_step=3).train()
    assert checkpoints_of(tmp_path) == ["save-3"]


@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("first", ["workers", "main process"])
def test_worker_processes_that_got_the_signal_too_do_not_spoil_the_stop(first, prefetch, tmp_path):
    def send():
        if first == "main process":
            os.kill(os.getpid(), signal.SIGTERM)
        to_workers(signal.SIGTERM)
        if first == "workers":
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit) as stop:
        trainer(tmp_path, send, data(workers=2, gbs=8), prefetch=prefetch).train()
    assert stop.value.code == 0
    assert checkpoints_of(tmp_path) == ["save-3", "save-4"]
    assert multiprocessing.active_children() == []
    assert_goes_on(tmp_path)


@pytest.mark.slow  # torch looks for dead workers every five seconds
def test_a_worker_that_is_killed_does_not_break_a_step_in_the_middle(tmp_path):
    with pytest.raises(WorkerError):
        trainer(tmp_path, lambda: to_workers(signal.SIGKILL), data(workers=2), 2, prefetch=0, period=1).train()
    assert "save-2" in checkpoints_of(tmp_path)  # the step at which it died is whole
    assert_goes_on(tmp_path)


def test_what_the_death_of_a_child_calls_is_as_before(tmp_path):
    before = signal.getsignal(signal.SIGCHLD)
    run(tmp_path, {})
    assert signal.getsignal(signal.SIGCHLD) is before
