"""The golden trainer job in Headrace's own loop: 64 samples, a linear model from zeros, squared errors.

python -m training.linear_job OUT '{"ranks": 2}'     also under torchrun; each rank leaves rank-<r>.json in OUT
"""

import json
import sys
from pathlib import Path
from typing import NamedTuple

import torch
from torch.distributed.tensor import DTensor

from headrace import (
    AutoDataConfig,
    AutoDataProvider,
    BuildForwardInputsResult,
    CheckpointingConfig,
    ComputeLossResult,
    DataPrefetchConfig,
    DeviceMeshParameters,
    InitializeModelStageResult,
    JobLoggerConfig,
    JobScheduleConfig,
    ModelProvider,
    RunConfig,
    TrainerConfig,
    TrainingConfigurator,
    TrainTask,
)
from interop.d9d_job import Samples, collate


class Linear(torch.nn.Module):
    """Two weights and a bias, zeros at first."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 1)
        torch.nn.init.zeros_(self.linear.weight)
        torch.nn.init.zeros_(self.linear.bias)

    def forward(self, inputs, shared):
        assert shared is None
        return self.linear(inputs)


class Models(ModelProvider):
    """That model, or what make() gives."""

    def __init__(self, make=Linear):
        self.make = make

    def initialize_model_stage(self, context):
        return InitializeModelStageResult(model=self.make(), state_mapper=None)


class Task(TrainTask):
    """Mean squared error a microbatch; it keeps the ids of what it was given."""

    def __init__(self):
        self.seen = []
        self.losses = []
        self.finalized = 0

    def build_forward_inputs(self, ctx):
        self.seen.append(ctx.batch.ids.tolist())
        return BuildForwardInputsResult(input=ctx.batch.inputs, shared=None, state=ctx.batch.labels)

    def compute_loss(self, ctx):
        return ComputeLossResult(loss=((ctx.pipeline_results - ctx.state) ** 2).mean(), loss_weight=None)

    def step_done(self, ctx):
        self.losses.append((ctx.schedule.current_step, ctx.loss.item()))

    def finalize(self, ctx):
        self.finalized += 1


class Failing(Task):
    """Calls fail() in one place: in the loss of step 4 ("loss"), behind that step ("step_done"), when it is saved
    ("state") or loaded ("load")."""

    def __init__(self, place, fail):
        super().__init__()
        self.place, self.fail = place, fail

    def compute_loss(self, ctx):
        if self.place == "loss" and ctx.schedule.current_step == 3:
            self.fail()
        return super().compute_loss(ctx)

    def step_done(self, ctx):
        super().step_done(ctx)
        if self.place == "step_done" and ctx.schedule.current_step == 4:
            self.fail()

    def state_dict(self):
        if self.place == "state":
            self.fail()
        return super().state_dict()

    def load_state_dict(self, state_dict):
        if self.place == "load":
            self.fail()


def data(gbs=8, mb=2, workers=0, **more):
    """The provider of its data."""
    config = AutoDataConfig(global_batch_size=gbs, microbatch_size=mb, num_workers=workers, **more)
    return AutoDataProvider(lambda _: Samples(), collate, config)


def configurator(out, provider=None, *, total=None, prefetch=0, period=3, ranks=1, **more):
    """The job, its checkpoints below out, its log out/steps.jsonl; more is for TrainerConfig. The task is beside it."""
    task = Task()
    replace = more.pop("replace", {})
    if "mesh" not in replace:
        replace = {"mesh": DeviceMeshParameters(data_parallel_replicate=ranks), **replace}
    parts = {
        "parameters": TrainerConfig(
            run=RunConfig(name="job"),
            schedule=JobScheduleConfig(total_steps=total),
            data_prefetch=DataPrefetchConfig(prefetch_factor=prefetch),
            checkpointing=CheckpointingConfig(save_dir=out, period_steps=period, num_to_keep=more.pop("keep", None)),
            logging=JobLoggerConfig(path=out / "steps.jsonl"),
            **more,
        ),
        "task_provider": lambda _: task,
        "model_provider": Models(),
        "data_provider": provider or data(),
        "optimizer_provider": lambda context: torch.optim.SGD(context.model.parameters(), lr=0.5),
        "lr_scheduler_provider": lambda context: torch.optim.lr_scheduler.ConstantLR(context.optimizer, 1.0),
    }
    return TrainingConfigurator(**{**parts, **replace}), task


class Record(NamedTuple):
    """What a run did."""

    total_steps: int
    final_step: int
    steps: list  # [step, loss, gradient norm], the first step being 0
    microbatches: list
    weight: list
    bias: list
    checkpoints: list


def run(out, config, **more):
    """Train as the golden config says (gbs, mb, workers, prefetch, total, period); what this launch of it did."""
    given = {"period": 3, "prefetch": 0, **config}
    provider = data(**{name: given.pop(name) for name in ("gbs", "mb", "workers") if name in given})
    log = out / "steps.jsonl"
    before = len(lines_of(log))
    job, task = configurator(out, provider, **given, **more)
    trainer = job.configure()
    trainer.train()
    steps = [[line["step"] - 1, line["loss"], line["grad_norm"]] for line in lines_of(log)[before:]]
    linear = trainer.model.linear
    return Record(
        total_steps=trainer.schedule.total_steps,
        final_step=trainer.schedule.current_step,
        steps=steps,
        microbatches=task.seen,
        weight=whole(linear.weight).tolist(),
        bias=whole(linear.bias).tolist(),
        checkpoints=checkpoints_of(out),
    )


def whole(parameter):
    """A parameter that may be spread over ranks."""
    return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter


def lines_of(log):
    """The lines of a log, none where there is none."""
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def checkpoints_of(out):
    """The names of all that lies beside the checkpoints, by steps."""
    return sorted((path.name for path in (out / "job").iterdir()), key=lambda name: (len(name), name))


def main():
    torch.set_num_threads(1)
    out, config = Path(sys.argv[1]), json.loads(sys.argv[2])
    record = run(out, config)
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    (out / f"rank-{rank}.json").write_text(json.dumps(record._asdict()))


if __name__ == "__main__":
    main()
