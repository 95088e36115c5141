"""Train a small GPT on token windows, and stop or go on anywhere, with any number of ranks.

    torchrun --standalone --nproc-per-node 2 -m examples.demo.train --data TOKENS --out RUN --steps 60

`trainer` puts the job together: the data, the model, and how one becomes the loss of the other. The loop is Headrace's.
Which rows a step trains on follows from the data, the seed and the global batch size, never from the number of ranks: a
checkpoint of 2 ranks goes on with 1 or 4.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from examples.demo.model import GPT, Shape
from headrace import (
    AutoDataConfig,
    AutoDataProvider,
    BuildForwardInputsContext,
    BuildForwardInputsResult,
    CheckpointingConfig,
    ComputeLossContext,
    ComputeLossResult,
    DataPrefetchConfig,
    DeterminismConfig,
    DeviceMeshParameters,
    GradientClippingConfig,
    GradientManagerConfig,
    InitializeLRSchedulerContext,
    InitializeModelStageContext,
    InitializeModelStageResult,
    InitializeOptimizerStageContext,
    JobScheduleConfig,
    ModelProvider,
    RunConfig,
    StepDoneContext,
    StreamDataset,
    StreamStorage,
    Trainer,
    TrainerConfig,
    TrainingConfigurator,
    TrainTask,
)

__all__ = ["CHECKPOINT_EVERY", "GLOBAL_BATCH_SIZE", "SEED", "NumberedWindows", "numbered_windows"]

GLOBAL_BATCH_SIZE = 12  # rows of 128 tokens, a step; 1, 2, 3, 4, 6 or 12 ranks divide it
CHECKPOINT_EVERY = 10  # steps
WARMUP_STEPS = 5
LEARNING_RATE = 1e-3
SEED = 7
SHAPE = Shape()
Sample = Mapping[str, Any]


class NumberedWindows:
    """A map-style dataset whose samples carry their own number, so that a training step can write down what it saw."""

    def __init__(self, windows: StreamDataset) -> None:
        self.windows = windows

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, item: int) -> Sample:
        return {"id": item, "tokens": self.windows[item]["tokens"]}

    def __getitems__(self, items: Sequence[int]) -> list[Sample]:
        """The samples of a whole batch, in order: the windows are gathered at once."""
        windows = self.windows.__getitems__(items)
        return [{"id": int(item), "tokens": window["tokens"]} for item, window in zip(items, windows, strict=True)]

    @property
    def settings(self) -> Mapping[str, Any]:
        """What identifies the data: a checkpoint is refused where this differs."""
        return self.windows.settings


def numbered_windows(directory: Path) -> NumberedWindows:
    """Windows of 128 tokens and the one that follows them, the last target."""
    return NumberedWindows(StreamDataset(StreamStorage(directory), sequence_length=SHAPE.context, extra=1))


class Batch(NamedTuple):
    """One microbatch."""

    ids: Tensor  # int64 (rows,)
    windows: Tensor  # int64 (rows, context + 1)


def collate(samples: Sequence[Sample]) -> Batch:
    """The samples as tensors, cast once a batch."""
    windows = np.stack([sample["tokens"] for sample in samples]).astype(np.int64)
    return Batch(torch.tensor([sample["id"] for sample in samples]), torch.from_numpy(windows))


class NextToken(TrainTask[Batch, Tensor, None, Tensor, Tensor]):
    """Predict the next token; and write down, at every step, which samples this rank trained on, and the loss."""

    def __init__(self, log: TextIO) -> None:
        self.log = log
        self.ids: list[int] = []  # of the step that is being made

    def build_forward_inputs(self, ctx: BuildForwardInputsContext[Batch]) -> BuildForwardInputsResult[Any, None, Any]:
        """The windows but for their last tokens, and the tokens that follow."""
        self.ids += ctx.batch.ids.tolist()
        return BuildForwardInputsResult(input=ctx.batch.windows[:, :-1], state=ctx.batch.windows[:, 1:])

    def compute_loss(self, ctx: ComputeLossContext[Tensor, Tensor]) -> ComputeLossResult:
        """The mean over the microbatch's tokens, which weighs as many."""
        loss = F.cross_entropy(ctx.pipeline_results.flatten(0, 1), ctx.state.flatten())
        return ComputeLossResult(loss=loss, loss_weight=ctx.state.numel())

    def step_done(self, ctx: StepDoneContext) -> None:
        """One write a line, so that a kill leaves whole lines."""
        step, loss = ctx.schedule.current_step, ctx.loss.item()
        self.log.write(json.dumps({"step": step, "ids": self.ids, "loss": loss}) + "\n")
        self.log.flush()
        self.ids = []


class SmallGPT(ModelProvider[GPT]):
    """The model, with the same first weights in every run."""

    def initialize_model_stage(self, context: InitializeModelStageContext) -> InitializeModelStageResult[GPT]:
        """A GPT of about a million parameters."""
        return InitializeModelStageResult(model=GPT(SHAPE))


def optimizer(context: InitializeOptimizerStageContext) -> torch.optim.Optimizer:
    """AdamW."""
    parameters = context.model.parameters()
    return torch.optim.AdamW(parameters, lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.1)


def warm_up(context: InitializeLRSchedulerContext) -> torch.optim.lr_scheduler.LRScheduler:
    """The learning rate rises in the first steps."""
    return torch.optim.lr_scheduler.LambdaLR(context.optimizer, lambda done: min(1.0, (done + 1) / WARMUP_STEPS))


def trainer(data: Path, out: Path, steps: int, log: TextIO) -> Trainer:
    """The job, ready to go on where its newest checkpoint in out stands."""
    return TrainingConfigurator(
        mesh=DeviceMeshParameters(data_parallel_replicate=dist.get_world_size()),
        parameters=TrainerConfig(
            run=RunConfig(name="checkpoints"),
            schedule=JobScheduleConfig(total_steps=steps),
            data_prefetch=DataPrefetchConfig(prefetch_factor=4),
            determinism=DeterminismConfig(base_seed=SEED),
            checkpointing=CheckpointingConfig(save_dir=out, period_steps=CHECKPOINT_EVERY),
            gradient_clipping=GradientClippingConfig(max_norm=1.0),
            # Row by row, and added up in float64: rounded to float32, such a sum is the same however the rows were
            # dealt to ranks. Microbatches of several rows would be faster and, after 60 steps, agree to about four
            # digits.
            gradient_manager=GradientManagerConfig(grad_dtype="float64"),
        ),
        task_provider=lambda context: NextToken(log),
        model_provider=SmallGPT(),
        data_provider=AutoDataProvider(
            dataset_factory=lambda context: numbered_windows(data),
            collator=collate,
            config=AutoDataConfig(
                global_batch_size=GLOBAL_BATCH_SIZE, microbatch_size=1, shuffle=True, seed=SEED, epochs=None
            ),
        ),
        optimizer_provider=optimizer,
        lr_scheduler_provider=warm_up,
    ).configure()


def main() -> None:
    """Entry point of one rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--attempt", type=int, default=1, help="names this launch's records")
    options = parser.parse_args()
    torch.set_num_threads(1)  # as many processes as cores or more
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("gloo")
    options.out.mkdir(parents=True, exist_ok=True)
    records = options.out / f"attempt-{options.attempt}-rank-{dist.get_rank()}-of-{dist.get_world_size()}.jsonl"
    with records.open("a", encoding="utf-8") as log:
        trainer(options.data, options.out, options.steps, log).train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
