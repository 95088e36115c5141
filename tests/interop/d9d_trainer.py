"""A small job in d9d's own Trainer, fed by d9d's provider or one of Headrace's; runs in d9d's interpreter.

python -m interop.d9d_on_cpu interop.d9d_trainer REQUESTS    also under torchrun

Each rank leaves its microbatches in the request's folder, rank 0 its losses, too.

REQUESTS is a JSON list, and done in turn, for imports are slow here. A request has name (of the file it leaves), out (a
folder, where checkpoints are), provider (one of PROVIDERS), and what the job shall be, by default that of trainer.json:
global_batch_size, microbatch_size, num_workers, shuffle, epochs, prefetch, period, total_steps, ranks.
"""

import json
import logging
import sys
from pathlib import Path
from typing import NamedTuple

import d9d.dataset
import torch
from d9d.core.dist_context import DeviceMeshParameters
from d9d.loop.auto import AutoDataConfig, AutoDataProvider
from d9d.loop.config import TrainerConfig
from d9d.loop.control import (
    BuildForwardInputsResult,
    ComputeLossResult,
    InitializeModelStageResult,
    ModelProvider,
    TrainTask,
)
from d9d.loop.run import TrainingConfigurator
from d9d.model_state.mapper.adapters import identity_mapper_from_module
from d9d.module.parallelism.api import parallelize_replicate

import headrace
from headrace.training.context import data_parallel_world
from interop.d9d_job import Samples, collate, document_lengths


class Request(NamedTuple):
    """A job."""

    name: str
    out: str
    provider: str
    global_batch_size: int = 8
    microbatch_size: int = 2
    num_workers: int = 0
    shuffle: bool = False
    epochs: int = 1
    prefetch: int = 0
    period: int = 3
    total_steps: int | None = None
    ranks: int = 1


class Linear(torch.nn.Module):
    """Two weights and a bias, zeros at first."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 1)

    def reset_parameters(self):
        torch.nn.init.zeros_(self.linear.weight)
        torch.nn.init.zeros_(self.linear.bias)

    def forward(self, inputs, shared):
        return self.linear(inputs)


class Models(ModelProvider):
    """That model, replicated on every rank."""

    def initialize_model_stage(self, context):
        model = Linear()
        return InitializeModelStageResult(model=model, state_mapper=identity_mapper_from_module(model))

    def parallelize_model_stage(self, context):
        parallelize_replicate(context.model, context.dist_context.mesh_for("regular")["dp_replicate"])


class Task(TrainTask):
    """Mean squared error a microbatch; it keeps the ids of what it was given."""

    def __init__(self):
        self.seen = []

    def build_forward_inputs(self, ctx):
        self.seen.append(ctx.batch.ids.tolist())
        return BuildForwardInputsResult(input=ctx.batch.inputs, shared=None, state=ctx.batch.labels)

    def compute_loss(self, ctx):
        return ComputeLossResult(loss=((ctx.pipeline_results - ctx.state) ** 2).mean(), loss_weight=None)


class Losses(logging.Handler):
    """What d9d's log tracker wrote."""

    def __init__(self):
        super().__init__()
        self.losses = []

    def emit(self, record):
        line = record.getMessage()
        if line.startswith("step ") and "loss=" in line:
            self.losses.append(float(line.rpartition("=")[2]))


def theirs(request):
    """d9d's own, as the golden job had it."""
    config = AutoDataConfig(
        global_batch_size=request.global_batch_size,
        microbatch_size=request.microbatch_size,
        num_workers=request.num_workers,
        shuffle=request.shuffle,
        pin_memory=False,
    )
    return AutoDataProvider(lambda _: Samples(), collate, config)


def ours(request):
    """Headrace's, with the same arguments; pinning is left to its default."""
    config = headrace.AutoDataConfig(
        global_batch_size=request.global_batch_size,
        microbatch_size=request.microbatch_size,
        num_workers=request.num_workers,
        shuffle=request.shuffle,
        epochs=request.epochs,
    )
    return headrace.AutoDataProvider(lambda _: Samples(), collate, config)


def our_packer(request):
    """A provider of the user's own: Headrace's loader and packer under d9d's context."""

    def provide(context):
        dp = data_parallel_world(context.dist_context)
        loader = headrace.StatefulDataLoader(
            Samples(),
            collate,
            local_batch_size=request.microbatch_size,
            rank=dp.rank,
            world_size=dp.world_size,
            shuffle=request.shuffle,
        )
        k = headrace.num_microbatches_for_global_batch(
            context.dist_context, request.global_batch_size, request.microbatch_size
        )
        return headrace.PinMemoryMicrobatchPackStream(headrace.FixedCountMicrobatchPacker(loader, k))

    return provide


def our_loader_their_packer(request):
    """Headrace's loader is what d9d calls a data loader."""

    def provide(context):
        loader = headrace.StatefulDataLoader(Samples(), collate, local_batch_size=request.microbatch_size)
        k = request.global_batch_size // request.microbatch_size
        return d9d.dataset.FixedCountMicrobatchPacker(loader, microbatches_per_step=k)

    return provide


def our_token_budget(request):
    """Packs of microbatches of at most so many tokens: global_batch_size of them a step, over all ranks."""

    def provide(context):
        dp = data_parallel_world(context.dist_context)
        batches = headrace.TokenBudgetBatches(
            headrace.WithLengths(Samples(), document_lengths()),
            max_tokens=32,
            batches_per_step=request.global_batch_size,
            seed=3,
        )
        loader = headrace.StatefulDataLoader(batches, collate, rank=dp.rank, world_size=dp.world_size)
        return headrace.TokenBudgetMicrobatchPacker(loader)

    return provide


PROVIDERS = {
    "d9d": theirs,
    "headrace": ours,
    "headrace's packer": our_packer,
    "headrace's loader": our_loader_their_packer,
    "headrace's token budget": our_token_budget,
}


def parameters(request):
    """d9d's configuration of that job."""
    return TrainerConfig.model_validate(
        {
            "run": {"name": "job"},
            "schedule": {"total_steps": request.total_steps},
            "data_prefetch": {"prefetch_factor": request.prefetch},
            "logging": {"period_steps": 1, "tracker": {"provider": "log"}},
            "determinism": {"base_seed": 0},
            "gc": {"period_steps": "disable"},
            "checkpointing": {"save_dir": str(Path(request.out) / "checkpoints"), "period_steps": request.period},
            "gradient_clipping": {"max_norm": None},
        }
    )


def train(request):
    """Train; leaves this rank's microbatches and, from rank 0, the losses in the folder."""
    task, losses = Task(), Losses()

    def provide_task(context):
        context.dist_context.logger.addHandler(losses)
        return task

    TrainingConfigurator(
        mesh=DeviceMeshParameters(data_parallel_replicate=request.ranks),
        parameters=parameters(request),
        task_provider=provide_task,
        model_provider=Models(),
        data_provider=PROVIDERS[request.provider](request),
        optimizer_provider=lambda context: torch.optim.SGD(context.model.parameters(), lr=0.5),
        lr_scheduler_provider=lambda context: torch.optim.lr_scheduler.ConstantLR(context.optimizer, 1.0),
    ).configure().train()
    rank = torch.distributed.get_rank() if request.ranks > 1 else 0
    if request.ranks > 1:
        torch.distributed.destroy_process_group()
    left = {"microbatches": task.seen, "losses": losses.losses}
    (Path(request.out) / f"{request.name}-{rank}.json").write_text(json.dumps(left))


if __name__ == "__main__":
    for job in json.loads(sys.argv[1]):
        train(Request(**job))
