"""One rank of a job that trains with Lightning or Trainer on a StreamingDataset, and writes down what it saw.

loops_job.py MODE FOLDER OUT
"""

import json
import os
import sys
from pathlib import Path

import torch

from headrace import StreamingDataLoader, StreamingDataset

BATCH = 4
EPOCHS = 2


class Model(torch.nn.Module):
    """As Trainer wants it; it keeps what it saw."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = []

    def forward(self, id):
        self.seen.append(id.tolist())
        return {"loss": self.layer(id[:, None] / 100).square().mean()}


def only_ids(samples):
    return {"id": torch.tensor([sample["id"] for sample in samples])}


def trainer(mode, folder, out):
    """Trainer with its own loader, over a whole dataset or a rank's, or with ours, which accelerate prepares or not."""
    from transformers import Trainer, TrainingArguments

    class OurLoader(Trainer):
        def get_train_dataloader(self):
            loader = StreamingDataLoader(self.train_dataset, collate_fn=self.data_collator)
            return self.accelerator.prepare(loader) if mode == "prepared" else loader

    whole = {"rank": 0, "world_size": 1} if mode.startswith("whole") else {}
    dataset = StreamingDataset(local=folder, shuffle=True, batch_size=BATCH, **whole)
    arguments = TrainingArguments(
        out,
        per_device_train_batch_size=BATCH,
        num_train_epochs=EPOCHS,
        use_cpu=True,
        report_to=[],
        remove_unused_columns=False,
        disable_tqdm=True,
        logging_strategy="no",
        save_strategy="no",
        accelerator_config={"dispatch_batches": not mode.endswith("read by each")},
    )
    model = Model()
    kind = OurLoader if mode in ("ours", "prepared") else Trainer
    kind(model, arguments, train_dataset=dataset, data_collator=only_ids).train()
    return model.seen


def lightning(mode, folder, out):
    """Lightning's ddp over a loader that was made, and asked for its length, before there was a process group."""
    import lightning

    class Bare(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Model()

        def training_step(self, batch, index):
            return self.model(batch["id"])["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 1e-3)

    loader = StreamingDataLoader(StreamingDataset(local=folder, shuffle=True), BATCH, num_workers=1)
    assert len(loader)
    model = Bare()
    lightning.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=int(os.environ["WORLD_SIZE"]),
        max_epochs=EPOCHS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(model, loader)
    return model.model.seen


if __name__ == "__main__":
    mode, folder, out = sys.argv[1:]
    seen = (lightning if mode == "lightning" else trainer)(mode, folder, out)
    Path(out, f"rank-{os.environ['RANK']}.json").write_text(json.dumps(seen))
    if (
        torch.distributed.is_initialized()
    ):  # Trainer leaves it, and gloo's threads may abort a process that ends with it
        torch.distributed.destroy_process_group()
