"""StreamingDataLoader and StreamingDataset in Lightning, accelerate and Hugging Face's Trainer: stopped and resumed.

With several ranks: tests/distributed/test_streaming_loops.py.
"""

import json
from pathlib import Path

import pytest
import torch

from distributed.loops_job import Model, only_ids
from headrace import StreamingDataLoader, StreamingDataset
from headrace.errors import OrderError
from streaming_dataset.scenes import ids, numbers

pytestmark = [
    pytest.mark.slow,  # the imports alone take seconds
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return numbers(tmp_path_factory.mktemp("numbers") / "data", 64)


@pytest.fixture(scope="module")
def three_epochs(place):
    """The batches of three epochs, sixteen each."""
    loader = StreamingDataLoader(StreamingDataset(local=place, shuffle=True), 4)
    return [batch for _ in range(3) for batch in ids(loader)]


def dataset(place, **options):
    return StreamingDataset(local=place, shuffle=True, batch_size=4, **options)


# ---- Lightning


@pytest.fixture(scope="module")
def lightning():
    return pytest.importorskip("lightning")


def fit(lightning, folder, loader, *, checkpoint=None, **options):
    """The batches that the model saw; a checkpoint is kept behind every fourth step."""
    seen = []

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch, index):
            seen.append(batch["id"].tolist())
            return self.layer(batch["id"][:, None] / 100).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 1e-3)

    keep = lightning.pytorch.callbacks.ModelCheckpoint(
        folder, every_n_train_steps=4, save_top_k=-1, filename="{step}", auto_insert_metric_name=False
    )
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=3,
        callbacks=[keep],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    trainer.fit(Model(), loader, ckpt_path=checkpoint and folder / f"{checkpoint}.ckpt", weights_only=False)
    return seen


@pytest.mark.parametrize("workers", [0, 2])
def test_lightning_goes_on_from_any_of_its_checkpoints(workers, place, three_epochs, lightning, tmp_path):
    def loader():
        return StreamingDataLoader(dataset(place), num_workers=workers, persistent_workers=workers > 0)

    assert fit(lightning, tmp_path, loader(), max_steps=34) == three_epochs[:34]
    for checkpoint in (4, 16, 20, 32):  # in mid epoch, and at its end
        assert fit(lightning, tmp_path, loader(), checkpoint=checkpoint) == three_epochs[checkpoint:]


@pytest.mark.parametrize("is_watched", [False, True])
def test_lightning_makes_an_equal_loader_from_one(is_watched, place, lightning):
    from lightning.fabric.utilities.data import _replace_dunder_methods, _update_dataloader

    def made():
        return StreamingDataLoader(dataset(place), num_workers=1, pad=True, prefetch_factor=3, collate_fn=list)

    if is_watched:
        with _replace_dunder_methods(torch.utils.data.DataLoader, "dataset"):
            loader = made()
    else:
        loader = made()
    again = _update_dataloader(loader, None)
    assert type(again) is StreamingDataLoader
    assert again is not loader
    for name in ("dataset", "batch_size", "num_workers", "pad", "prefetch_factor", "collate_fn"):
        assert getattr(again, name) == getattr(loader, name)


# ---- accelerate


@pytest.fixture
def accelerate():
    module = pytest.importorskip("accelerate")
    forget(module)
    yield module
    forget(module)


def forget(module):
    """What accelerate knows of this process: it must not be known to the tests behind these."""
    module.state.AcceleratorState._reset_state(reset_partial_state=True)
    module.state.GradientState._reset_state()


def test_accelerate_leaves_the_loader_as_it_is_and_keeps_its_state(place, three_epochs, accelerate, tmp_path):
    accelerator = accelerate.Accelerator(cpu=True)
    ours = StreamingDataLoader(dataset(place))
    _, prepared = accelerator.prepare(torch.nn.Linear(1, 1), ours)
    assert prepared is ours
    assert ids(prepared, 3) == three_epochs[:3]
    accelerator.save_state(tmp_path / "state")
    forget(accelerate)
    accelerator = accelerate.Accelerator(cpu=True)
    _, prepared = accelerator.prepare(torch.nn.Linear(1, 1), StreamingDataLoader(dataset(place)))
    accelerator.load_state(tmp_path / "state")
    assert ids(prepared) + ids(prepared) == three_epochs[3:32]


def test_over_other_datasets_accelerate_prepares_the_loader_as_any_other(accelerate):
    accelerator = accelerate.Accelerator(cpu=True)
    ours = StreamingDataLoader(range(8), 4)
    prepared = accelerator.prepare(ours)
    assert prepared is not ours
    assert [batch.tolist() for batch in prepared] == [[0, 1, 2, 3], [4, 5, 6, 7]]


# ---- Hugging Face's Trainer


def train(place, out, *, own_loader, checkpoint=None, **options):
    """The batches that the model saw, with Trainer's loader or ours; a checkpoint is kept behind every eighth step."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class OwnLoader(Trainer):
        def get_train_dataloader(self):
            arguments = self.args
            return StreamingDataLoader(
                self.train_dataset,
                arguments.per_device_train_batch_size,
                collate_fn=self.data_collator,
                num_workers=arguments.dataloader_num_workers,
            )

    class KeepData(TrainerCallback):
        def on_train_begin(self, args, state, control, train_dataloader, **_):
            if checkpoint is not None:
                train_dataloader.load_state_dict(json.loads((checkpoint / "data.json").read_text()))

        def on_save(self, args, state, control, train_dataloader, **_):
            path = Path(args.output_dir) / f"checkpoint-{state.global_step}" / "data.json"
            path.write_text(json.dumps(train_dataloader.state_dict()))

    arguments = TrainingArguments(
        str(out),
        per_device_train_batch_size=4,
        num_train_epochs=3,
        save_steps=8 // options.get("gradient_accumulation_steps", 1),
        ignore_data_skip=own_loader,
        use_cpu=True,
        report_to=[],
        remove_unused_columns=False,
        disable_tqdm=True,
        logging_strategy="no",
        **options,
    )
    model = Model()
    kind, callbacks = (OwnLoader, [KeepData()]) if own_loader else (Trainer, [])
    trainer = kind(model, arguments, train_dataset=dataset(place), data_collator=only_ids, callbacks=callbacks)
    trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
    return model.seen


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("own_loader", [False, True], ids=["by Trainer's loader", "by ours"])
def test_trainer_goes_on_from_any_of_its_checkpoints(own_loader, workers, place, three_epochs, accelerate, tmp_path):
    pytest.importorskip("transformers")
    options = {"own_loader": own_loader, "dataloader_num_workers": workers}
    assert train(place, tmp_path / "whole", **options) == three_epochs
    for step in (8, 16, 24, 40):
        checkpoint = tmp_path / "whole" / f"checkpoint-{step}"
        assert train(place, tmp_path / "resumed", checkpoint=checkpoint, **options) == three_epochs[step:]


def test_trainer_goes_on_with_our_loader_where_steps_have_several_batches(place, three_epochs, accelerate, tmp_path):
    pytest.importorskip("transformers")
    options = {"own_loader": True, "gradient_accumulation_steps": 2}
    assert train(place, tmp_path / "whole", **options) == three_epochs
    for step in (4, 8, 12):
        checkpoint = tmp_path / "whole" / f"checkpoint-{step}"
        assert train(place, tmp_path / "resumed", checkpoint=checkpoint, **options) == three_epochs[2 * step :]


def test_what_trainer_would_pass_over_in_the_wrong_epoch_is_refused(place, accelerate):
    accelerate.PartialState(cpu=True)
    loader = StreamingDataLoader(dataset(place))
    ids(loader, 1)
    for workers in (0, 1):
        loader = StreamingDataLoader(loader.dataset, num_workers=workers)
        skipping = accelerate.skip_first_batches(loader, 3)
        with pytest.raises(OrderError, match="ignore_data_skip=True"):
            next(iter(skipping))
