"""The first sample of d9d's page on data loading, with nothing but its imports changed.

What it leaves open comes from pretrain_pieces.py; `python -m examples.pretrain auto` runs it.
"""

import dataclasses

import datasets
import torch

from examples.pretrain_pieces import (
    LanguageModelProvider,
    build_lr_scheduler,
    build_optimizer,
    build_task,
    mesh,
    parameters,
)
from headrace import AutoDataConfig, AutoDataProvider, TrainingConfigurator


def build_dataset(dist_context):
    # Rank 0 downloads and processes the data first. The other ranks load from its cache.
    # Return the dataset unsharded: AutoDataProvider shards it across data-parallel ranks.
    with dist_context.main_process_first():
        return datasets.load_dataset("my/dataset", split="train")


@dataclasses.dataclass
class Batch:
    input_ids: torch.Tensor
    labels: torch.Tensor


# The rows of a Hugging Face dataset are dicts.
def collate(samples: list[dict]) -> Batch:
    return Batch(
        input_ids=torch.stack([s["input_ids"] for s in samples]),
        labels=torch.stack([s["labels"] for s in samples]),
    )


provider = AutoDataProvider(
    dataset_factory=build_dataset,
    collator=collate,
    config=AutoDataConfig(
        global_batch_size=256,  # Effective batch across all DP replicas and accumulation
        microbatch_size=4,  # Samples per microbatch on a single rank
        num_workers=4,
        shuffle=True,
    ),
)

# Hand it to the loop alongside the other providers.
trainer = TrainingConfigurator(
    mesh=mesh,
    parameters=parameters("auto"),
    model_provider=LanguageModelProvider(),
    task_provider=build_task,
    data_provider=provider,
    optimizer_provider=build_optimizer,
    lr_scheduler_provider=build_lr_scheduler,
).configure()
