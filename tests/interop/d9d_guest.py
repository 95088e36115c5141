"""The same small job in Headrace's Trainer, fed by d9d's provider or Headrace's; runs in d9d's interpreter.

python -m interop.d9d_on_cpu interop.d9d_guest REQUESTS          as d9d_trainer.py, and leaves the same
"""

import json
import os
import sys
from pathlib import Path

import torch

import headrace
from interop.d9d_trainer import PROVIDERS, Linear, Request


class Models(headrace.ModelProvider):
    """The model, made anew."""

    def initialize_model_stage(self, context):
        model = Linear()
        model.reset_parameters()
        return headrace.InitializeModelStageResult(model=model)


class Task(headrace.TrainTask):
    """As in d9d_trainer.py."""

    def __init__(self):
        self.seen = []

    def build_forward_inputs(self, ctx):
        self.seen.append(ctx.batch.ids.tolist())
        return headrace.BuildForwardInputsResult(input=ctx.batch.inputs, shared=None, state=ctx.batch.labels)

    def compute_loss(self, ctx):
        return headrace.ComputeLossResult(loss=((ctx.pipeline_results - ctx.state) ** 2).mean())


def parameters(request):
    """Headrace's configuration of that job."""
    out = Path(request.out)
    return headrace.TrainerConfig.model_validate(
        {
            "run": {"name": "job"},
            "schedule": {"total_steps": request.total_steps},
            "data_prefetch": {"prefetch_factor": request.prefetch},
            "logging": {"period_steps": 1, "path": str(out / "log.jsonl")},
            "checkpointing": {"save_dir": str(out / "checkpoints"), "period_steps": request.period},
        }
    )


def train(request):
    """Train; leaves this rank's microbatches and, from rank 0, all losses so far in the folder."""
    task = Task()
    headrace.TrainingConfigurator(
        mesh=headrace.DeviceMeshParameters(data_parallel_replicate=request.ranks),
        parameters=parameters(request),
        task_provider=lambda _: task,
        model_provider=Models(),
        data_provider=PROVIDERS[request.provider](request),
        optimizer_provider=lambda context: torch.optim.SGD(context.model.parameters(), lr=0.5),
        lr_scheduler_provider=lambda context: torch.optim.lr_scheduler.ConstantLR(context.optimizer, 1.0),
    ).configure().train()
    rank = os.environ.get("RANK", "0")
    losses = [json.loads(line)["loss"] for line in (Path(request.out) / "log.jsonl").read_text().splitlines()]
    (Path(request.out) / f"{request.name}-{rank}.json").write_text(
        json.dumps({"microbatches": task.seen, "losses": losses})
    )


if __name__ == "__main__":
    for job in json.loads(sys.argv[1]):
        train(Request(**job))
