"""The loop of one process: what it saves, where it goes on, and what it says when it cannot."""

import copy
import dataclasses
import json
import logging

import numpy as np
import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader as TorchdataLoader

from headrace import (
    AutoDataConfig,
    AutoDataProvider,
    BuildForwardInputsResult,
    ComputeLossResult,
    DataPrefetchConfig,
    FixedCountMicrobatchPacker,
    GarbageCollectionConfig,
    GradientManagerConfig,
    InitializeModelStageResult,
    JobLoggerConfig,
    ModelProvider,
    RunConfig,
    StateMismatchError,
    TimeoutConfig,
    TrainerConfig,
    TrainTask,
    WithLengths,
    pad_stack_1d,
)
from headrace.errors import OptionError, WorkerError
from interop.d9d_job import Samples, collate
from training.linear_job import Linear, Task, checkpoints_of, configurator, data, lines_of, run


def losses(out):
    return [line["loss"] for line in lines_of(out / "steps.jsonl")]


def test_a_checkpoint_is_whole_or_has_another_name_and_the_oldest_go_first(tmp_path):
    found = run(tmp_path, {"period": 2}, keep=2)
    assert found.checkpoints == ["save-6", "save-8"]
    assert (tmp_path / "job" / "save-8" / ".metadata").exists()


@pytest.mark.parametrize(("period", "saved"), [("last_step", ["save-8"]), ("disable", []), (5, ["save-5", "save-8"])])
def test_checkpoints_come_with_their_period_and_the_last_step(period, saved, tmp_path):
    (tmp_path / "job").mkdir()
    assert run(tmp_path, {"period": period}).checkpoints == saved


def test_a_half_written_checkpoint_is_never_loaded_and_is_removed(tmp_path):
    run(tmp_path, {"total": 3})
    (tmp_path / "job" / "save-3").rename(tmp_path / "job" / ".save-7.partial")
    for own in ("save-notes", "save-007"):  # somebody's
        (tmp_path / "job" / own).mkdir()
    found = run(tmp_path, {"total": 3})
    assert [step for step, *_ in found.steps] == [0, 1, 2]
    assert sorted(path.name for path in (tmp_path / "job").iterdir()) == ["save-007", "save-3", "save-notes"]


def test_the_newest_checkpoint_stays_when_a_new_one_cannot_be_written(tmp_path, monkeypatch):
    run(tmp_path, {"total": 3}, keep=1)

    class Unsaved(Task):
        def state_dict(self):
            return {"file": (tmp_path / "steps.jsonl").open()}  # nothing that can be saved

    job, _ = configurator(tmp_path, keep=1, replace={"task_provider": lambda _: Unsaved()})
    trainer = job.configure()
    with pytest.raises(TypeError, match="pickle"):
        trainer.train()
    assert checkpoints_of(tmp_path) == ["save-3"]
    assert run(tmp_path, {}, keep=1).checkpoints == ["save-8"]


def test_without_checkpoints_a_job_begins_anew(tmp_path):
    job, task = configurator(tmp_path)
    job = dataclasses.replace(job, parameters=TrainerConfig(run=RunConfig(name="job")))
    for _ in range(2):
        job.configure().train()
    assert len(task.seen) == 64
    assert not (tmp_path / "job").exists()


def test_a_complete_job_says_so_and_trains_nothing(tmp_path, caplog):
    run(tmp_path, {})
    job, task = configurator(tmp_path)
    with caplog.at_level(logging.INFO, logger="headrace"):
        job.configure().train()
    assert "job is complete: 8 steps are done" in caplog.text
    assert task.seen == []
    assert task.finalized == 0


def test_the_task_is_finalized_once_behind_the_last_step(tmp_path):
    job, task = configurator(tmp_path)
    job.configure().train()
    assert task.finalized == 1


def test_the_task_is_told_of_every_step_and_its_loss(tmp_path):
    job, task = configurator(tmp_path)
    job.configure().train()
    assert task.losses == list(enumerate(losses(tmp_path), start=1))


def test_a_line_is_logged_every_period_and_behind_the_last_step(tmp_path):
    run(tmp_path, {"replace": {}})
    job, _ = configurator(tmp_path, keep=1)
    path = tmp_path / "below" / "log.jsonl"
    parameters = job.parameters.model_copy(
        update={"run": RunConfig(name="other"), "logging": JobLoggerConfig(period_steps=3, path=path)}
    )
    dataclasses.replace(job, parameters=parameters).configure().train()
    lines = lines_of(path)
    assert [line["step"] for line in lines] == [3, 6, 8]
    assert set(lines[0]) == {"step", "loss", "grad_norm", "tokens_per_s", "data_wait_share"}
    assert [line["loss"] for line in lines] == [losses(tmp_path)[step - 1] for step in (3, 6, 8)]


class Dropped(torch.nn.Module):
    """A model that draws random numbers at every step; its forward takes one argument."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))

    def forward(self, inputs):
        return self.layers(inputs)


class DroppedModels(ModelProvider):
    def initialize_model_stage(self, context):
        return InitializeModelStageResult(model=Dropped())


def test_a_model_that_draws_random_numbers_goes_on_with_the_same_ones(tmp_path):
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    adam = {"optimizer_provider": lambda context: torch.optim.AdamW(context.model.parameters(), lr=0.1)}
    replace = {"model_provider": DroppedModels(), **adam}
    configurator(whole, replace=replace)[0].configure().train()
    for total in (3, None):
        configurator(halves, total=total, replace=replace)[0].configure().train()
    assert losses(halves) == losses(whole)


class OnMeta(ModelProvider):
    def initialize_model_stage(self, context):
        with torch.device("meta"):
            model = torch.nn.Linear(2, 1)
        return InitializeModelStageResult(model=model)


def test_a_model_on_the_meta_device_gets_memory_and_its_first_weights(tmp_path):
    job, _ = configurator(tmp_path, replace={"model_provider": OnMeta()})
    trainer = job.configure()
    assert trainer.model.weight.device.type == "cpu"
    trainer.train()
    assert all(map(torch.isfinite, map(torch.tensor, losses(tmp_path))))


class Momentum:
    """An optimizer that is none of torch's, with a state that torch knows nothing of."""

    def __init__(self, parameters):
        self.parameters = list(parameters)
        self.velocity = {}

    def step(self):
        for place, parameter in enumerate(self.parameters):
            self.velocity[place] = 0.5 * self.velocity.get(place, 0) + parameter.grad
            with torch.no_grad():
                parameter -= 0.1 * self.velocity[place]

    def zero_grad(self):
        for parameter in self.parameters:
            parameter.grad = None

    def state_dict(self):
        return {"velocity": self.velocity}

    def load_state_dict(self, state):
        self.velocity = state["velocity"]


class Schedule:
    """A schedule of the learning rate that is none of torch's."""

    def __init__(self):
        self.calls = 0

    def step(self):
        self.calls += 1

    def state_dict(self):
        return {"calls": self.calls}

    def load_state_dict(self, state):
        self.calls = state["calls"]


def test_an_optimizer_and_a_schedule_of_ones_own_go_on(tmp_path):
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    schedules = []

    def scheduled(context):
        assert context.total_steps in (3, 8)
        schedules.append(Schedule())
        return schedules[-1]

    replace = {"optimizer_provider": lambda context: Momentum(context.model.parameters())}
    replace["lr_scheduler_provider"] = scheduled
    configurator(whole, replace=replace)[0].configure().train()
    for total in (3, None):
        configurator(halves, total=total, replace=replace)[0].configure().train()
    assert losses(halves) == losses(whole)
    assert [schedule.calls for schedule in schedules] == [8, 3, 8]


def test_the_state_of_a_task_goes_on(tmp_path):
    class Counting(Task):
        count = 0

        def compute_loss(self, ctx):
            self.count += 1
            return super().compute_loss(ctx)

        def state_dict(self):
            return {"count": self.count, "by step": {self.count: "any key"}}

        def load_state_dict(self, state):
            self.count = state["count"]

    for total in (3, None):
        task = Counting()
        configurator(tmp_path, total=total, replace={"task_provider": lambda _, task=task: task})[0].configure().train()
    assert task.count == 32


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_torchdatas_loader_under_a_packer_goes_on_where_it_was(workers, prefetch, tmp_path):
    def packer(context):
        loader = TorchdataLoader(Samples(), batch_size=2, collate_fn=collate, num_workers=workers)
        return FixedCountMicrobatchPacker(loader, 4)

    run(tmp_path / "whole", {})
    seen = []
    for total in (3, None):
        job, task = configurator(tmp_path / "halves", packer, total=total, prefetch=prefetch)
        job.configure().train()
        seen += task.seen
    assert [number for microbatch in seen for number in microbatch] == list(range(64))
    assert losses(tmp_path / "halves") == pytest.approx(losses(tmp_path / "whole"), abs=1e-6)


def test_a_state_of_each_rank_does_not_go_on_as_one_for_any_ranks(tmp_path):
    def packer(context):
        return FixedCountMicrobatchPacker(TorchdataLoader(Samples(), batch_size=2, collate_fn=collate), 4)

    configurator(tmp_path, packer, total=3)[0].configure().train()
    with pytest.raises(StateMismatchError, match="saved 'a state of 1 ranks', current 'one for any ranks'"):
        configurator(tmp_path)[0].configure()


def test_other_data_is_refused_before_the_first_step(tmp_path):
    run(tmp_path, {"total": 3})
    with pytest.raises(StateMismatchError):
        configurator(tmp_path, data(shuffle=True))[0].configure()


def test_data_that_ends_early_is_an_error_with_both_numbers(tmp_path):
    class Short:
        total_steps = 8

        def __iter__(self):
            batch = collate([Samples()[0], Samples()[1]])
            return iter([[batch]] * 5)

        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            pass

    job, _ = configurator(tmp_path, lambda _: Short())
    with pytest.raises(RuntimeError, match=r"the data ended at step 5, before total_steps=8"):
        job.configure().train()
    assert len(losses(tmp_path)) == 5


def test_a_longer_stream_is_cut_and_goes_on_later(tmp_path):
    run(tmp_path, {"total": 5, "prefetch": 2})
    found = run(tmp_path, {"total": 8, "prefetch": 2})
    assert found.microbatches[0] == [40, 41]


def test_epochs_make_a_longer_job(tmp_path):
    job, task = configurator(tmp_path, data(gbs=16, epochs=3, shuffle=True), prefetch=1)
    trainer = job.configure()
    trainer.train()
    assert trainer.schedule.total_steps == 12
    rows = [number for microbatch in task.seen for number in microbatch]
    epochs = [rows[begin : begin + 64] for begin in (0, 64, 128)]
    assert all(sorted(epoch) == list(range(64)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_a_short_last_step_weighs_its_rows(tmp_path):
    class Weighed(Task):
        def compute_loss(self, ctx):
            return ComputeLossResult(loss=super().compute_loss(ctx).loss, loss_weight=len(ctx.state))

    recorded = []
    for name, microbatch_size in (("whole", 12), ("cut", 3)):
        provider = data(gbs=12, mb=microbatch_size, drop_last=False)
        replace = {"task_provider": lambda _: Weighed()}
        configurator(tmp_path / name, provider, replace=replace)[0].configure().train()
        recorded.append(losses(tmp_path / name))
    assert len(recorded[0]) == 6  # 5 of 12 rows, and 4
    assert recorded[0] == pytest.approx(recorded[1], abs=1e-6)


def test_gradients_of_another_type_give_the_same_losses(tmp_path):
    for name, dtype in (("own", None), ("double", "float64")):
        more = {"gradient_manager": GradientManagerConfig(grad_dtype=dtype)}
        configurator(tmp_path / name, **more)[0].configure().train()
    assert losses(tmp_path / "double") == pytest.approx(losses(tmp_path / "own"), abs=1e-6)


def test_an_error_in_the_data_comes_with_its_sample_and_the_job_goes_on_when_it_is_mended(tmp_path):
    class Broken(Samples):
        broken = 41

        def __getitem__(self, index):
            if index == self.broken:
                raise ArithmeticError("not today")
            return super().__getitem__(index)

    def provider():
        config = AutoDataConfig(global_batch_size=8, microbatch_size=2, num_workers=2)
        return AutoDataProvider(lambda _: Broken(), collate, config)

    with pytest.raises(WorkerError, match=r"not today[\s\S]*41"):
        configurator(tmp_path, provider(), period=1)[0].configure().train()
    Broken.broken = None
    job, task = configurator(tmp_path, provider(), period=1)
    job.configure().train()
    assert task.seen[0] == [40, 41]


def test_an_error_in_a_step_is_raised_as_it_is(tmp_path):
    class Failing(Task):
        def compute_loss(self, ctx):
            raise ArithmeticError("not with me")

    job, _ = configurator(tmp_path, replace={"task_provider": lambda _: Failing()})
    with pytest.raises(ArithmeticError, match="not with me"):
        job.configure().train()


def test_collections_and_timeouts_of_d9ds_configuration_are_taken(tmp_path):
    more = {"gc": GarbageCollectionConfig(period_steps=2), "timeout": TimeoutConfig(init_timeout=100, step_timeout=10)}
    configurator(tmp_path, **more)[0].configure().train()
    assert len(losses(tmp_path)) == 8


def test_a_model_that_takes_a_shared_input_gets_it_though_it_is_none(tmp_path):
    class Shared(Linear):
        def forward(self, inputs, shared=None):
            return self.linear(inputs) * shared

    class Models(ModelProvider):
        def initialize_model_stage(self, context):
            return InitializeModelStageResult(model=Shared())

    class Scaling(TrainTask):
        def build_forward_inputs(self, ctx):
            return BuildForwardInputsResult(input=ctx.batch.inputs, shared=1.0, state=ctx.batch.labels)

        compute_loss = Task.compute_loss

    run(tmp_path / "plain", {})
    replace = {"model_provider": Models(), "task_provider": lambda _: Scaling()}
    configurator(tmp_path / "shared", replace=replace)[0].configure().train()
    assert losses(tmp_path / "shared") == losses(tmp_path / "plain")


@pytest.mark.parametrize("name", ["", "..", "a/b"])
def test_a_name_that_is_no_folder_is_refused(name):
    with pytest.raises(ValueError, match="cannot be the name of a folder"):
        RunConfig(name=name)


@pytest.mark.parametrize(
    "wrong",
    [
        {"schedule": {"total_steps": 0}},
        {"data_prefetch": {"prefetch_factor": -1}},
        {"checkpointing": {"save_dir": ".", "period_steps": 0}},
        {"checkpointing": {"save_dir": ".", "period_steps": 1, "num_to_keep": 0}},
        {"gradient_clipping": {"max_norm": 0}},
        {"gradient_manager": {"grad_dtype": "int64"}},
        {"gradient_manager": {"grad_dtype": "load"}},
        {"pipelining": {}},
        {"parallelism": "tp"},
    ],
    ids=json.dumps,
)
def test_a_configuration_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        TrainerConfig.model_validate({"run": {"name": "job"}, **wrong})


def test_a_configuration_survives_json():
    given = {"run": {"name": "job"}, "checkpointing": {"save_dir": "/x", "period_steps": "last_step"}}
    config = TrainerConfig.model_validate(given)
    assert TrainerConfig.model_validate_json(config.model_dump_json()) == config
    assert config.data_prefetch == DataPrefetchConfig(prefetch_factor=1)


def test_a_negative_prefetch_is_refused_when_it_is_given():
    with pytest.raises(ValueError, match="prefetch_factor"):
        DataPrefetchConfig(prefetch_factor=-1)


def test_a_mesh_of_more_processes_than_were_started_is_refused(tmp_path):
    with pytest.raises(OptionError, match="torchrun"):
        configurator(tmp_path, ranks=2)[0].configure()


class Tokens:
    """Sample i is as many numbers as its length says."""

    lengths = np.arange(48) * 7 % 16 + 1

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        return torch.arange(self.lengths[index]) / 16 + index / 48


class PaddedTask(TrainTask):
    """A mean a token over padded rows; it keeps what it was given."""

    def __init__(self):
        self.seen = []

    def build_forward_inputs(self, ctx):
        self.seen.append(ctx.batch)
        return BuildForwardInputsResult(input=ctx.batch["inputs"], state=ctx.batch["attention_mask"])

    def compute_loss(self, ctx):
        errors = ctx.pipeline_results.squeeze(-1).square() * ctx.state
        return ComputeLossResult(loss=errors.sum() / ctx.state.sum(), loss_weight=ctx.state.sum())


def padded(samples):
    rows = pad_stack_1d(samples, pad_value=-1.0)
    mask = (rows != -1.0).to(torch.int64)
    return {"inputs": torch.stack([rows, torch.ones_like(rows)], dim=-1), "attention_mask": mask}


class Constant(ModelProvider):
    def initialize_model_stage(self, context):
        model = torch.nn.Linear(2, 1)
        torch.nn.init.ones_(model.weight)
        return InitializeModelStageResult(model=model)


def test_a_loss_a_token_of_uneven_microbatches_is_that_of_the_unsplit_step(tmp_path):
    recorded = {}
    for name, sizes in {"budgets": {"max_tokens": 48, "batches_per_step": 4}, "rows": {"gbs": 12, "mb": 3}}.items():
        renamed = {"gbs": "global_batch_size", "mb": "microbatch_size"}
        config = AutoDataConfig(**{renamed.get(key, key): value for key, value in sizes.items()})
        provider = AutoDataProvider(lambda _: WithLengths(Tokens(), Tokens.lengths), padded, config)
        task = PaddedTask()
        replace = {"task_provider": lambda _, task=task: task, "model_provider": Constant()}
        job, _ = configurator(tmp_path / name, provider, replace=replace)
        trainer = job.configure()
        model = copy.deepcopy(trainer.model)
        trainer.train()
        step = task.seen[:4]
        total = sum((model(one["inputs"]).squeeze(-1).square() * one["attention_mask"]).sum() for one in step)
        tokens = sum(one["attention_mask"].sum() for one in step)
        assert len({int(one["attention_mask"].sum()) for one in step}) > 1
        recorded[name] = (losses(tmp_path / name)[0], (total / tokens).item())
        lines = lines_of(tmp_path / name / "steps.jsonl")
        assert all(line["tokens_per_s"] > 0 for line in lines)
    for found, expected in recorded.values():
        assert found == pytest.approx(expected, abs=1e-6)


def test_a_terminal_shows_how_far_the_job_is_and_anything_else_shows_nothing(tmp_path, monkeypatch, capfd):
    run(tmp_path / "file", {})
    assert "tokens/s" not in capfd.readouterr().err
    monkeypatch.setenv("TTY_COMPATIBLE", "1")  # rich takes it for a terminal
    monkeypatch.setenv("COLUMNS", "160")
    run(tmp_path / "terminal", {})
    shown = capfd.readouterr().err
    assert "8/8" in shown
    assert "loss 0.06475" in shown
    assert "waiting for data" in shown
