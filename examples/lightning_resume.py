"""Lightning stops in mid epoch and goes on as if nothing had happened; also with another number of ranks.

    python -m examples.lightning_resume                                 trains twice, once killed in between; compares
    torchrun --nproc-per-node 2 -m examples.lightning_resume --out RUN  one run; again, to go on from its checkpoint

Lightning asks loaders for `state_dict()` at every checkpoint, and gives it back. Nothing else is needed: the state
counts what the model got, and it is the same on every rank.
"""

import logging
import os
import warnings
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import Tensor

from examples.numbered_tokens import CHECKPOINT_EVERY, GLOBAL_BATCH_SIZE, SEED, STEPS, Bigram, StepLog, collate, windows
from examples.resume_twice import main
from headrace import StatefulDataLoader


class Language(lightning.LightningModule):
    """The bigram model, as Lightning wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Bigram()

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        """The loss of a batch."""
        loss: Tensor = self.model(batch["tokens"])
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimizer, whose state Lightning saves."""
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class Log(Callback):
    """Writes down what each step saw."""

    def __init__(self, log: StepLog) -> None:
        self.steps = log

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: dict[str, Tensor], batch_idx: int
    ) -> None:
        """After the optimizer's step."""
        self.steps.write(trainer.global_step, batch["window"], outputs["loss"])


def train(data: Path, out: Path, workers: int = 0, kill_at: int | None = None) -> None:
    """Train, from the newest checkpoint in out where there is one."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="lightning")
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    loader = StatefulDataLoader(
        windows(data),
        collate,
        device="cpu",  # Lightning moves batches itself
        global_batch_size=GLOBAL_BATCH_SIZE,
        shuffle=True,
        shuffle_seed=SEED,
        num_workers=workers,
        prefetch=2 * workers,
    )
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=ranks,
        strategy="ddp" if ranks > 1 else "auto",
        max_steps=STEPS,
        callbacks=[
            Log(StepLog(out, rank, ranks, kill_at)),
            ModelCheckpoint(
                out / "checkpoints", every_n_train_steps=CHECKPOINT_EVERY, save_top_k=-1, filename="{step:06d}"
            ),
        ],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    newest = max((out / "checkpoints").glob("*.ckpt"), default=None)
    trainer.fit(Language(), loader, ckpt_path=newest)


if __name__ == "__main__":
    main("lightning", train)
