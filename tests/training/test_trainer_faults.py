"""What a trainer does behind an error or a stop in the same process, and with what does not fit its checkpoint."""

import os
import signal
import threading

import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader as TorchdataLoader

from headrace import (
    AutoDataConfig,
    AutoDataProvider,
    BuildForwardInputsResult,
    ComputeLossResult,
    FixedCountMicrobatchPacker,
    InitializeModelStageResult,
    TrainTask,
)
from headrace.errors import OptionError, StateMismatchError
from interop.d9d_job import Samples, collate
from training.linear_job import Failing, Linear, Models, checkpoints_of, configurator, data, lines_of, run


class Raising(Samples):
    """Does something once, when sample 26 is read: of step 4."""

    def __init__(self, what):
        super().__init__()
        self.what = what

    def __getitem__(self, index):
        if index == 26 and self.what is not None:
            what, self.what = self.what, None
            what()
        return super().__getitem__(index)


def fail():
    raise ArithmeticError("once")


def stop():
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.skipif(not hasattr(signal, "SIGCHLD"), reason="needs POSIX signals")
@pytest.mark.parametrize("prefetch", [0, 1, 3])
@pytest.mark.parametrize(("what", "error"), [(stop, SystemExit), (fail, ArithmeticError)])
def test_a_trainer_that_was_stopped_or_whose_data_failed_goes_on_behind_its_last_step(what, error, prefetch, tmp_path):
    samples = Raising(what)
    config = AutoDataConfig(global_batch_size=8, microbatch_size=2)
    job, task = configurator(tmp_path, AutoDataProvider(lambda _: samples, collate, config), prefetch=prefetch)
    trainer = job.configure()
    with pytest.raises(error):
        trainer.train()
    done = trainer.schedule.current_step
    assert done <= 3
    trainer.train()
    whole = run(tmp_path / "whole", {})
    assert task.seen == whole.microbatches
    assert [line["loss"] for line in lines_of(tmp_path / "steps.jsonl")] == [loss for _, loss, _ in whole.steps]


@pytest.mark.parametrize("place", ["loss", "step_done"])
def test_nobody_goes_on_from_half_a_step(place, tmp_path):
    trainer = configurator(tmp_path, replace={"task_provider": lambda _: Failing(place, fail)})[0].configure()
    with pytest.raises(ArithmeticError):
        trainer.train()
    with pytest.raises(RuntimeError, match=r"step 4 was broken off, .* configure\(\) another"):
        trainer.train()
    found = run(tmp_path, {})
    assert found.microbatches == run(tmp_path / "whole", {}).microbatches[12:]


def test_data_that_ended_too_early_is_not_read_from_its_beginning(tmp_path):
    class Short:
        def __init__(self, inner):
            self.inner = inner

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def __iter__(self):
            for number, pack in enumerate(self.inner):
                if number == 5:
                    return
                yield pack

    provider = data()
    trainer = configurator(tmp_path, lambda context: Short(provider(context)))[0].configure()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="the data ended"):
            trainer.train()
    assert trainer.schedule.current_step == 5


def test_a_last_checkpoint_that_failed_is_made_by_another_call(tmp_path, monkeypatch):
    trainer = configurator(tmp_path, period=100)[0].configure()
    with monkeypatch.context() as patch:
        patch.setattr("torch.distributed.checkpoint.state_dict_saver.save", lambda *_, **__: fail())
        with pytest.raises(ArithmeticError):
            trainer.train()
    assert "save-8" not in checkpoints_of(tmp_path)
    trainer.train()
    assert checkpoints_of(tmp_path) == ["save-8"]


def test_a_trainer_works_in_another_thread(tmp_path):
    trainer = configurator(tmp_path, data(workers=2), prefetch=1)[0].configure()
    thread = threading.Thread(target=trainer.train)
    thread.start()
    thread.join(60)
    assert checkpoints_of(tmp_path) == ["save-3", "save-6", "save-8"]


class Larger(Linear):
    """With a layer more."""

    def __init__(self):
        super().__init__()
        self.more = torch.nn.Linear(1, 1)


class Wider(Linear):
    """With more outputs."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 3)


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ({}, {"model_provider": Models(Larger)}, r"model\.more\.bias: saved 'none', current \(1,\)"),
        ({"model_provider": Models(Larger)}, {}, r"model\.more\.bias: saved \(1,\), current 'none'"),
        ({}, {"model_provider": Models(Wider)}, r"model\.linear\.weight: saved \(1, 2\), current \(3, 2\)"),
        (
            {"optimizer_provider": lambda context: torch.optim.SGD(context.model.parameters(), lr=0.5, momentum=0.9)},
            {},
            r"optimizer\.state\.linear\.weight\.momentum_buffer: saved \(1, 2\), current 'none'",
        ),
    ],
)
def test_a_checkpoint_of_another_model_or_optimizer_is_refused_by_the_tensors_that_differ(
    before, after, named, tmp_path
):
    configurator(tmp_path, total=4, replace=before)[0].configure().train()
    with pytest.raises(StateMismatchError, match=named):
        configurator(tmp_path, replace=after)[0].configure().train()


def test_an_optimizer_of_what_is_not_in_the_model_is_refused(tmp_path):
    def optimizer(context):
        return torch.optim.SGD([*context.model.parameters(), torch.nn.Parameter(torch.ones(5))], lr=0.5)

    with pytest.raises(OptionError, match=r"1 of 3 that are not the model's, of shapes \[\(5,\)\]"):
        configurator(tmp_path, replace={"optimizer_provider": optimizer})[0].configure()


def test_a_folder_that_cannot_be_made_is_an_error_before_the_first_step(tmp_path):
    (tmp_path / "job").write_text("in the way")
    with pytest.raises(FileExistsError):
        configurator(tmp_path)[0].configure()


def test_a_second_job_of_the_same_name_is_refused_where_it_would_replace_a_checkpoint(tmp_path):
    first, second = (configurator(tmp_path)[0].configure() for _ in range(2))
    first.train()
    with pytest.raises(FileExistsError, match="save-3 is there already: another job saves there"):
        second.train()
    assert checkpoints_of(tmp_path) == ["save-3", "save-6", "save-8"]


def test_what_a_full_disk_says_is_what_is_raised(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("torch.distributed.checkpoint.filesystem.FileSystemWriter.write_data", full)
    with pytest.raises(OSError, match="No space left on device"):
        configurator(tmp_path)[0].configure().train()


def test_saving_makes_no_step_of_an_optimizer_without_a_state(tmp_path):
    steps = []

    def optimizer(context):
        made = torch.optim.SGD(context.model.parameters(), lr=0.5)
        made.register_step_post_hook(lambda *_: steps.append(0))
        return made

    configurator(tmp_path, period=1, replace={"optimizer_provider": optimizer})[0].configure().train()
    assert len(steps) == 8


def test_a_compiled_model_is_called_and_saved_as_it_is(tmp_path):
    class Compiled(Models):
        def initialize_model_stage(self, context):
            return InitializeModelStageResult(model=torch.compile(self.make(), backend="eager"))

    configurator(tmp_path / "plain", total=4)[0].configure().train()
    whole = run(tmp_path / "whole", {})
    trainer = configurator(tmp_path / "plain", replace={"model_provider": Compiled(Linear)})[0].configure()
    trainer.train()
    assert trainer.model.linear.weight.tolist() == whole.weight


class Dropped(torch.nn.Module):
    """A model that draws from torch's generator."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))

    def forward(self, inputs):
        return self.layers(inputs)


@pytest.mark.parametrize("prefetch", [0, 1])
def test_a_loader_that_draws_when_it_begins_changes_nothing_of_what_a_model_draws(prefetch, tmp_path):
    def packer(context):
        return FixedCountMicrobatchPacker(TorchdataLoader(Samples(), batch_size=2, shuffle=True, collate_fn=collate), 4)

    optimizer = {"optimizer_provider": lambda context: torch.optim.SGD(context.model.parameters(), lr=0.01)}

    def made(name, total=None):
        replace = {"model_provider": Models(Dropped), **optimizer}
        job, task = configurator(tmp_path / name, packer, total=total, prefetch=prefetch, replace=replace)
        return job.configure(), task

    trainer, whole = made("whole")
    trainer.train()
    losses = []
    for total in (3, None):
        trainer, task = made("halves", total)
        trainer.train()
        losses += task.losses
    assert losses == whole.losses


class Noisy(Samples):
    """Draws from torch's generator, in the process of the loop."""

    def __init__(self):
        self.drawn = []

    def __getitem__(self, index):
        self.drawn.append(torch.rand(1).item())
        return super().__getitem__(index)


def test_the_first_packs_of_a_job_do_not_draw_the_same_numbers(tmp_path):
    samples = Noisy()
    provider = AutoDataProvider(lambda _: samples, collate, AutoDataConfig(global_batch_size=8, microbatch_size=2))
    configurator(tmp_path, provider)[0].configure().train()
    assert len(set(samples.drawn)) == len(samples.drawn) == 64


class Words:
    """Sample i has i % 7 + 1 targets."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.full((index % 7 + 1,), index)


class WithLengths(Words):
    """And says so."""

    @property
    def lengths(self):
        return [len(self[index]) for index in range(len(self))]


class Means(TrainTask):
    """The mean over a microbatch's targets of the squared score, without a weight."""

    def __init__(self, model):
        self.model = model
        self.steps = []
        self.losses = []
        self.repeats = []
        self.packs = []

    def build_forward_inputs(self, ctx):
        self.repeats.append(ctx.num_repeats)
        self.packs.append(ctx.batch)
        targets = torch.cat(list(ctx.batch["tokens"])).float() / 40
        return BuildForwardInputsResult(input=torch.stack([targets, targets.sin()], dim=-1))

    def compute_loss(self, ctx):
        return ComputeLossResult(loss=ctx.pipeline_results.square().mean())

    def step_done(self, ctx):
        self.losses.append(ctx.loss.item())


def score():
    torch.manual_seed(3)
    return torch.nn.Linear(2, 1)


def trained(tmp_path, dataset, **config):
    task = Means(None)
    provider = AutoDataProvider(
        lambda _: dataset,
        lambda rows: {"tokens": rows, "num_targets": sum(map(len, rows))},
        AutoDataConfig(**config),
    )
    replace = {"task_provider": lambda _: task, "model_provider": Models(score)}
    configurator(tmp_path, provider, replace=replace)[0].configure().train()
    return task


def test_a_mean_loss_without_a_weight_is_that_of_the_unsplit_step_under_token_budgets(tmp_path):
    task = trained(tmp_path, WithLengths(), max_tokens=24, batches_per_step=4)
    step = task.packs[:4]
    assert len({batch["num_targets"] for batch in step}) > 1
    targets = torch.cat([row for batch in step for row in batch["tokens"]]).float() / 40
    expected = score()(torch.stack([targets, targets.sin()], dim=-1)).square().mean()
    assert task.losses[0] == pytest.approx(expected.item(), abs=1e-6)


def test_a_task_sees_which_rows_are_there_a_second_time(tmp_path):
    task = trained(
        tmp_path, Words(), global_batch_size=12, microbatch_size=3, drop_last=False, padding=True, shuffle=True
    )
    assert task.repeats == [0] * 12 + [0, 2, 3, 3]
    rows = [int(row[0]) for batch in task.packs for row in batch["tokens"]]
    assert sorted(rows[:40]) == list(range(40))
    assert rows[40:] == rows[:8]
