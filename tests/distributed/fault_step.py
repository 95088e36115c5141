"""One rank of several small jobs, one after another: the last rank fails in each, at another place. What every rank
raised is written down; then what ranks have after jobs whose ranks would differ."""

import json
import os
import sys
from pathlib import Path

import torch
from torch.distributed.fsdp import fully_shard

from headrace import DeviceMeshParameters
from headrace.training import trainer
from training.linear_job import Failing, Linear, Models, Task, configurator, data

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
PLACES = ("optimizer", "schedule", "step_done", "state", "load", "parameters")


def fail():
    if RANK == RANKS - 1:
        raise ArithmeticError("this rank cannot go on")


class Optimizer(torch.optim.SGD):
    fails = False

    def step(self, closure=None):
        if self.fails:
            fail()
        return super().step(closure)


class Schedule(torch.optim.lr_scheduler.ConstantLR):
    fails = False

    def step(self, *arguments):
        if self.fails and self.last_epoch == 3:
            fail()
        super().step(*arguments)


class Shared(Models):
    """Of another model, which ranks share in a way of its own."""

    def __init__(self, make, share):
        super().__init__(make)
        self.share = share

    def parallelize_model_stage(self, context):
        return self.share(context)


def optimizer(fails):
    def provide(context):
        made = Optimizer(context.model.parameters(), lr=0.5)
        made.fails = fails
        return made

    return provide


def schedule(fails):
    def provide(context):
        made = Schedule(context.optimizer, 1.0)
        made.fails = fails
        return made

    return provide


def raised(out, place):
    """What this rank raises in the job that fails there."""
    out.mkdir(exist_ok=True)
    task = Failing("loss" if place == "sharded" else place, fail)
    replace = {
        "task_provider": lambda _: task,
        "optimizer_provider": optimizer(place == "optimizer"),
        "lr_scheduler_provider": schedule(place == "schedule"),
    }
    if place == "parameters":
        replace["model_provider"] = Models(Narrow if RANK == RANKS - 1 else Linear)
    if place == "sharded":
        replace["mesh"] = DeviceMeshParameters(data_parallel_shard=RANKS)
    try:
        configurator(out, data(mb=1), ranks=RANKS, replace=replace)[0].configure().train()
    except BaseException as error:
        return [type(error).__name__, str(error)]
    return None


class Narrow(Linear):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 1, bias=False)


class Normed(torch.nn.Module):
    """A layer whose running means are of each rank's own rows; the first weights are each rank's own, too."""

    def __init__(self, layout=torch.channels_last):
        super().__init__()
        torch.manual_seed(RANK)
        self.conv = torch.nn.Conv2d(2, 4, 3, padding=1).to(memory_format=layout)
        self.norm = torch.nn.BatchNorm2d(4)
        self.out = torch.nn.Linear(4, 1)

    def forward(self, inputs):
        images = inputs[:, :, None, None].expand(-1, -1, 4, 4)
        return self.out(self.norm(self.conv(images)).mean((2, 3)))


class Thawing(Task):
    """Trains the bias from step 3 on only."""

    def step_done(self, ctx):
        super().step_done(ctx)
        if ctx.schedule.current_step == 2:
            self.linear.bias.requires_grad_(True)


def state_of(out, mesh, model, task=None):
    """The model's state behind a job, as this rank has it."""
    out.mkdir(exist_ok=True)
    task = Task() if task is None else task
    replace = {"mesh": mesh, "model_provider": Models(model), "task_provider": lambda _: task}
    job = configurator(out, data(mb=2), replace=replace)[0].configure()
    job.train()
    state = job.model.state_dict()
    return {name: getattr(one, "full_tensor", lambda one=one: one)().tolist() for name, one in state.items()}


def thawed(task):
    def make():
        model = Linear()
        model.linear.bias.requires_grad_(False)
        task.linear = model.linear
        return model

    return make


def half_sharded(out):
    out.mkdir(exist_ok=True)

    def share(context):
        fully_shard(context.model.linear, mesh=context.dist_context.mesh_for("batch")["dp"])

    class Half(Linear):
        def __init__(self):
            super().__init__()
            self.factor = torch.nn.Parameter(torch.ones(1))

    try:
        configurator(out, data(mb=1), ranks=RANKS, replace={"model_provider": Shared(Half, share)})[0].configure()
    except ValueError as error:
        return str(error)
    return None


def main():
    torch.set_num_threads(1)
    out = Path(sys.argv[1])
    if sys.argv[2] == "sharded":
        trainer.PATIENCE_S = 1.0
        found = raised(out, "sharded")
    else:
        shard = DeviceMeshParameters(data_parallel_shard=RANKS)
        replicate = DeviceMeshParameters(data_parallel_replicate=RANKS)
        found = {"raised": {}}
        raised(out / "load", "nowhere")
        if RANK == 0:
            (out / "load" / "job" / "save-8").rename(out / "load" / "save-8")
        for place in PLACES:
            found["raised"][place] = raised(out / place, place)
        found["half"] = half_sharded(out / "half")
        found["normed"] = state_of(out / "normed", replicate, Normed)
        task = Thawing()
        found["thawed"] = state_of(out / "thawed", replicate, thawed(task), task)
        found["normed, sharded"] = state_of(out / "shard", shard, lambda: Normed(torch.contiguous_format))
    (out / f"rank-{RANK}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
