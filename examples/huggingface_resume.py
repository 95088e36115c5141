"""Hugging Face's Trainer stops in mid epoch and goes on as if nothing had happened; also with other ranks.

    python -m examples.huggingface_resume                                 trains twice, once killed in between; compares
    torchrun --nproc-per-node 2 -m examples.huggingface_resume --out RUN  one run; again, to go on from its checkpoint

Trainer goes back to its place by itself: it asks for the epoch's lists of sample numbers, and passes over those that
were done, without reading a sample. It does not see whether data and order are still the same. So each checkpoint gets
the state of the data, and a run that would go on with something else is refused.
"""

import json
import os
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments

from examples.numbered_tokens import CHECKPOINT_EVERY, GLOBAL_BATCH_SIZE, SEED, STEPS, Bigram, StepLog, collate, windows
from examples.resume_twice import main
from headrace import ElasticBatchSampler

STATE = "data.json"


class Language(nn.Module):
    """The bigram model, as Trainer wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Bigram()

    def forward(self, tokens: Tensor, window: Tensor) -> dict[str, Tensor]:
        """The loss of a batch."""
        return {"loss": self.model(tokens)}


class EpochLoader(DataLoader[Any]):
    """Passes on to the order which epoch it is; Trainer tells a loader that can be told."""

    def set_epoch(self, epoch: int) -> None:
        """Begin the next pass in this epoch."""
        self.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr]


class OrderedTrainer(Trainer):
    """Trainer with Headrace's order. Its loader is not prepared by accelerate, which would deal it out once more."""

    def get_train_dataloader(self) -> DataLoader[Any]:
        """This rank's batches."""
        workers, data = self.args.dataloader_num_workers, self.data()
        return EpochLoader(data, batch_sampler=self.order(), collate_fn=collate, num_workers=workers)

    def data(self) -> Any:
        """What the samples are read from."""
        return self.train_dataset

    def order(self) -> ElasticBatchSampler:
        """Which samples make up which step."""
        return ElasticBatchSampler(self.data(), GLOBAL_BATCH_SIZE, shuffle=True, seed=SEED)


class KeepState(TrainerCallback):
    """The data's state in every checkpoint, as StatefulDataLoader would save it."""

    def __init__(self, order: ElasticBatchSampler) -> None:
        self.order = order

    def on_save(self, args: TrainingArguments, state: Any, control: Any, **others: Any) -> None:
        """Written beside what Trainer has just written."""
        if state.is_world_process_zero:
            epoch, batch = divmod(state.global_step * args.gradient_accumulation_steps, len(self.order))
            self.order.set_epoch(epoch)
            path = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}" / STATE
            path.write_text(json.dumps(self.order.state_dict(batches_consumed=batch)), encoding="utf-8")


class Log(TrainerCallback):
    """Writes down what each step saw."""

    def __init__(self, model: nn.Module, log: StepLog) -> None:
        self.steps = log
        model.register_forward_hook(self._seen, with_kwargs=True)

    def _seen(self, model: Any, inputs: Any, named: dict[str, Tensor], output: dict[str, Tensor]) -> None:
        self.window, self.loss = named["window"], output["loss"]

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """After the optimizer's step."""
        self.steps.write(state.global_step, self.window, self.loss)


def train(data: Path, out: Path, workers: int = 0, kill_at: int | None = None) -> None:
    """Train, from the newest checkpoint in out where there is one."""
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    model = Language()
    arguments = TrainingArguments(
        output_dir=str(out),
        per_device_train_batch_size=GLOBAL_BATCH_SIZE // ranks,
        max_steps=STEPS,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        save_steps=CHECKPOINT_EVERY,
        dataloader_num_workers=workers,
        remove_unused_columns=False,
        use_cpu=True,
        seed=SEED,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
    )
    trainer = OrderedTrainer(model, arguments, train_dataset=windows(data))
    trainer.add_callback(KeepState(trainer.order()))
    trainer.add_callback(Log(model, StepLog(out, rank, ranks, kill_at)))
    done = max((int(path.parent.name.split("-")[1]) for path in out.glob(f"checkpoint-*/{STATE}")), default=None)
    checkpoint = None if done is None else out / f"checkpoint-{done}"
    if checkpoint is not None:  # StateMismatchError where it would be other data
        trainer.order().load_state_dict(json.loads((checkpoint / STATE).read_text(encoding="utf-8")))
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))


if __name__ == "__main__":
    main("huggingface", train)
