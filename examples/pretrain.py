"""Trains one of the two samples of d9d's page on data loading, on a dataset that it makes.

    python -m examples.pretrain data                                     makes my/dataset, once
    python -m examples.pretrain auto                                     the first sample
    torchrun --nproc-per-node 2 -m examples.pretrain custom              the second, with two ranks

Run it again after a kill, and it goes on; the first sample also with another number of ranks.
"""

import argparse

from examples.pretrain_pieces import (
    LanguageModelProvider,
    build_lr_scheduler,
    build_optimizer,
    build_task,
    make_data,
    mesh,
    parameters,
)
from headrace import Trainer, TrainingConfigurator


def automatic() -> Trainer:
    """The first sample makes its trainer when it is imported."""
    from examples.pretrain_auto import trainer

    return trainer


def custom(num_workers: int) -> Trainer:
    """The second sample is a data provider."""
    from examples.pretrain_custom import DataConfig, ProjectDataProvider

    config = DataConfig(
        dataset="my/dataset",
        split="train",
        tokenizer="my/tokenizer.json",
        presort_buffer_size=200,
        global_batch_size=100,
        microbatch_size=10,
        num_workers=num_workers,
    )
    return TrainingConfigurator(
        mesh=mesh,
        parameters=parameters("custom"),
        model_provider=LanguageModelProvider(),
        task_provider=build_task,
        data_provider=ProjectDataProvider(config),
        optimizer_provider=build_optimizer,
        lr_scheduler_provider=build_lr_scheduler,
    ).configure()


def main() -> None:
    """Make the data, or train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["data", "auto", "custom"])
    parser.add_argument("--workers", type=int, default=2, help="of the second sample; the first one has its own say")
    options = parser.parse_args()
    if options.what == "data":
        make_data()
        return
    trainer = automatic() if options.what == "auto" else custom(options.workers)
    trainer.train()
    print(f"{trainer.schedule.current_step} steps are done")


if __name__ == "__main__":
    main()
