"""What the samples of d9d's page leave open: a dataset, a model, a task, and the sizes of a job that takes seconds."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn

from headrace import (
    BuildForwardInputsContext,
    BuildForwardInputsResult,
    CheckpointingConfig,
    ComputeLossContext,
    ComputeLossResult,
    DeviceMeshParameters,
    InitializeLRSchedulerContext,
    InitializeModelStageContext,
    InitializeModelStageResult,
    InitializeOptimizerStageContext,
    JobLoggerConfig,
    ModelProvider,
    PaddingSide1D,
    RunConfig,
    TrainerConfig,
    TrainTask,
    TrainTaskProviderContext,
    pad_stack_1d,
)

VOCABULARY = 2048
IGNORED = -100  # a label that is not learnt
RUNS = Path("runs")

mesh = DeviceMeshParameters(data_parallel_replicate=int(os.environ.get("WORLD_SIZE", "1")))  # as torchrun says


def make_data(num_samples: int = 1100) -> None:
    """A Hugging Face dataset in my/dataset, its rows lists as ever, and a tokenizer; nothing where they are already.

    The first token of a sample is its number, by which a run can tell what it saw.
    """
    if Path("my/tokenizer.json").exists():
        return
    rows = []
    for number in range(num_samples):
        words = [number, *(number * place % VOCABULARY for place in range(1, 4 + number % 61))]
        ids = [number, *(number * place % VOCABULARY for place in range(1, 16))]
        row = {"input_ids": ids, "labels": [*ids[1:], IGNORED]}
        rows.append({**row, "text": " ".join(map(str, words)), "token_counts": len(words)})
    folder = Path("my/dataset")
    folder.mkdir(parents=True, exist_ok=True)
    datasets.Dataset.from_list(rows).to_parquet(folder / "train.parquet")
    tokenizer = Tokenizer(models.WordLevel({str(number): number for number in range(VOCABULARY)}))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save("my/tokenizer.json")


def tokenized(row: dict[str, Any], tokenizer: Tokenizer) -> dict[str, Tensor]:
    """The tokens of a row's text."""
    return {"input_ids": torch.tensor(tokenizer.encode(row["text"]).ids)}


def padded(batch: Sequence[Any]) -> dict[str, Tensor]:
    """A microbatch of samples of different lengths: tokens, and the next ones as labels."""
    inputs = [sample["input_ids"] for sample in batch]
    labels = [torch.cat([tokens[1:], torch.tensor([IGNORED])]) for tokens in inputs]
    side = PaddingSide1D.right
    return {"input_ids": pad_stack_1d(inputs, 0, side), "labels": pad_stack_1d(labels, IGNORED, side)}


def parameters(name: str) -> TrainerConfig:
    """A checkpoint every two steps, and a line of JSON for every step."""
    return TrainerConfig(
        run=RunConfig(name=name),
        checkpointing=CheckpointingConfig(save_dir=RUNS, period_steps=2, num_to_keep=2),
        logging=JobLoggerConfig(path=RUNS / name / "log.jsonl"),
    )


class Language(nn.Module):
    """Predicts a token from the one before it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(VOCABULARY, 16), nn.Linear(16, VOCABULARY))

    def forward(self, inputs: Tensor) -> Tensor:
        """Scores of shape (rows, tokens, vocabulary)."""
        scores: Tensor = self.layers(inputs)
        return scores


class LanguageModelProvider(ModelProvider[Language]):
    """Makes the model; how ranks share it is the loop's default."""

    def initialize_model_stage(self, context: InitializeModelStageContext) -> InitializeModelStageResult[Language]:
        """The model, with the same weights on every rank."""
        return InitializeModelStageResult(model=Language())


class LanguageTask(TrainTask[Any, Tensor, Any, Tensor, Tensor]):
    """The next token's cross-entropy, weighted by how many tokens are predicted. Writes down which samples it saw."""

    def __init__(self, seen: Path) -> None:
        self._seen = seen

    def build_forward_inputs(
        self, ctx: BuildForwardInputsContext[Any]
    ) -> BuildForwardInputsResult[Tensor, Any, Tensor]:
        """Tokens for the model; labels for the loss."""
        with self._seen.open("a", encoding="utf-8") as file:
            file.write(json.dumps(ctx.batch.input_ids[:, 0].tolist()) + "\n")
        return BuildForwardInputsResult(input=ctx.batch.input_ids, state=ctx.batch.labels)

    def compute_loss(self, ctx: ComputeLossContext[Tensor, Tensor]) -> ComputeLossResult:
        """The mean over a microbatch's predicted tokens, and their number."""
        scores, labels = ctx.pipeline_results.flatten(0, 1), ctx.state.flatten()
        loss = nn.functional.cross_entropy(scores, labels, ignore_index=IGNORED)
        return ComputeLossResult(loss=loss, loss_weight=(labels != IGNORED).sum())


def build_task(context: TrainTaskProviderContext) -> LanguageTask:
    """The task of this rank."""
    RUNS.mkdir(exist_ok=True)
    return LanguageTask(RUNS / f"seen-by-rank-{context.dist_context.rank}.jsonl")


def build_optimizer(context: InitializeOptimizerStageContext) -> torch.optim.Optimizer:
    """One over all parameters."""
    return torch.optim.AdamW(context.model.parameters(), lr=1e-2)


def build_lr_scheduler(context: InitializeLRSchedulerContext) -> torch.optim.lr_scheduler.LRScheduler:
    """Down to zero at the last step."""
    return torch.optim.lr_scheduler.LinearLR(context.optimizer, 1.0, 0.01, context.total_steps)
