"""One rank of a job in Headrace's own loop, whose samples and losses are written down at every step.

Samples have lengths and are in buckets, shuffled, in two epochs whose last step is short: ranks have unequally many
microbatches in it, or none. A microbatch weighs its rows.
"""

import argparse
import itertools
import json
import os
import signal
import threading
from pathlib import Path

import torch

from headrace import (
    AutoDataConfig,
    AutoDataProvider,
    BuildForwardInputsResult,
    CheckpointingConfig,
    ComputeLossResult,
    DataPrefetchConfig,
    DeviceMeshParameters,
    GradientClippingConfig,
    InitializeModelStageResult,
    JobLoggerConfig,
    ModelProvider,
    RunConfig,
    TrainerConfig,
    TrainingConfigurator,
    TrainTask,
)

NUM_SAMPLES = 301
GLOBAL_BATCH_SIZE = 12
EPOCHS = 2
CHECKPOINT_EVERY = 5


class Samples:
    """Sample i is i, with a length that buckets go by; one may be broken."""

    def __init__(self, broken=None):
        self.broken = broken

    def __len__(self):
        return NUM_SAMPLES

    def sort_key(self, index):
        return index * 37 % 50

    def __getitem__(self, index):
        if index == self.broken:
            raise ArithmeticError("this sample cannot be read")
        return index


def collate(samples):
    ids = torch.tensor(samples)
    angles = ids[:, None] * torch.arange(1, 5) / 7
    return {"ids": ids, "inputs": angles.sin(), "labels": (ids[:, None] / 50).cos()}


class Models(ModelProvider):
    """Two layers, shared among ranks as the loop does it, or wrapped as torch does it."""

    def __init__(self, wrap):
        self.wrap = wrap

    def parallelize_model_stage(self, context):
        if self.wrap:
            return torch.nn.parallel.DistributedDataParallel(context.model)
        return super().parallelize_model_stage(context)

    def initialize_model_stage(self, context):
        layers = (torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
        return InitializeModelStageResult(model=torch.nn.Sequential(*layers))


class Task(TrainTask):
    """Squared errors, one line a microbatch in the rank's record."""

    def __init__(self, options, context):
        self.options = options
        self.rank = int(os.environ.get("RANK", "0"))
        world_size = os.environ.get("WORLD_SIZE", "1")
        path = options.out / f"attempt-{options.attempt}-rank-{self.rank}-of-{world_size}.jsonl"
        self.file = path.open("w")

    def build_forward_inputs(self, ctx):
        return BuildForwardInputsResult(input=ctx.batch["inputs"], state=ctx.batch)

    def compute_loss(self, ctx):
        step, ids = ctx.schedule.current_step + 1, ctx.state["ids"].tolist()
        self.file.write(json.dumps({"step": step, "ids": ids}) + "\n")
        self.file.flush()
        if self.options.pause_s:
            threading.Event().wait(self.options.pause_s)
        if step == self.options.hold_at and self.rank == 0:
            signal.pause()  # until the kill; the others wait for this rank
        if step == self.options.fail_at and self.rank == self.options.fail_rank:
            raise ArithmeticError("this rank cannot go on")
        errors = (ctx.pipeline_results - ctx.state["labels"]) ** 2
        return ComputeLossResult(loss=errors.mean(), loss_weight=len(ids))


class Short:
    """A stream that ends too soon."""

    def __init__(self, inner, packs):
        self.inner, self.packs = inner, packs

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def __iter__(self):
        return itertools.islice(iter(self.inner), self.packs)


def provider(options):
    """Of the data: broken, or too short, on the one rank that is to fail."""
    data = AutoDataConfig(
        global_batch_size=GLOBAL_BATCH_SIZE,
        microbatch_size=options.microbatch_size,
        shuffle=True,
        seed=11,
        buffer_size=60,
        pack_size=12,
        epochs=EPOCHS,
        drop_last=False,
        num_workers=options.workers,
    )
    fails = options.fail_rank == int(os.environ.get("RANK", "0"))
    samples = Samples(options.broken_sample if fails else None)
    whole = AutoDataProvider(lambda _: samples, collate, data)
    return (lambda context: Short(whole(context), options.short)) if fails and options.short else whole


def configurator(options):
    """The job."""
    torch.set_num_threads(1)
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    mesh = {"data_parallel_shard" if options.shard else "data_parallel_replicate": world_size}
    return TrainingConfigurator(
        mesh=DeviceMeshParameters(**mesh),
        parameters=TrainerConfig(
            run=RunConfig(name="job"),
            data_prefetch=DataPrefetchConfig(prefetch_factor=options.prefetch),
            checkpointing=CheckpointingConfig(
                save_dir=options.out, period_steps=CHECKPOINT_EVERY, num_to_keep=options.keep
            ),
            gradient_clipping=GradientClippingConfig(max_norm=0.5),
            logging=JobLoggerConfig(path=options.out / f"losses-{options.attempt}.jsonl"),
        ),
        task_provider=lambda context: Task(options, context),
        model_provider=Models(options.wrap),
        data_provider=provider(options),
        optimizer_provider=lambda context: torch.optim.AdamW(context.model.parameters(), lr=0.01),
        lr_scheduler_provider=lambda context: torch.optim.lr_scheduler.CosineAnnealingLR(
            context.optimizer, context.total_steps
        ),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--attempt", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--prefetch", type=int, default=1)
    parser.add_argument("--microbatch-size", type=int, default=1)
    parser.add_argument("--keep", type=int, default=2)
    parser.add_argument("--pause-s", type=float, default=0.0)
    parser.add_argument("--hold-at", type=int)
    parser.add_argument("--fail-at", type=int)
    parser.add_argument("--broken-sample", type=int)
    parser.add_argument("--short", type=int)
    parser.add_argument("--fail-rank", type=int, default=0)
    parser.add_argument("--shard", action="store_true")
    parser.add_argument("--wrap", action="store_true")
    options = parser.parse_args()
    configurator(options).configure().train()
    (options.out / f"complete-{options.attempt}").touch()


if __name__ == "__main__":
    main()
