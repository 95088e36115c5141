"""d9d's weaknesses 24 to 30, robustness: what Headrace does in their place. A test a weakness.

26 and 28 need processes that wait for one another; they are in tests/distributed/test_weaknesses.py.
"""

import dataclasses
import time

import datasets
import pytest
import torch

from headrace import (
    DeviceMeshParameters,
    FixedCountMicrobatchPacker,
    PinMemoryMicrobatchPackStream,
    RunConfig,
    TrainerConfig,
    build_device_pack_stream,
    tree_leaves,
    tree_map,
)
from headrace.errors import WorkerError
from training.linear_job import configurator, data
from training.ranks import stream_of

SIZES = {"global_batch_size": 4, "microbatch_size": 2}


def test_24_a_job_with_nothing_but_defaults_trains_on_a_cpu_with_pinning_and_prefetching_asked_for(tmp_path):
    with DeviceMeshParameters().build() as context:
        assert context.current_device.type == ("cuda" if torch.cuda.is_available() else "cpu")
    provider = data(pin_memory=True)
    defaults = TrainerConfig(run=RunConfig(name="job"))
    assert defaults.data_prefetch.prefetch_factor == 1
    job, task = configurator(tmp_path, provider, replace={"parameters": defaults})
    job.configure().train()
    assert sorted(number for microbatch in task.seen for number in microbatch) == list(range(64))


@dataclasses.dataclass
class Batch:
    input_ids: torch.Tensor
    labels: torch.Tensor


def collate(samples):
    return Batch(
        input_ids=torch.stack([s["input_ids"] for s in samples]), labels=torch.stack([s["labels"] for s in samples])
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_25_the_document_s_collate_works_on_a_plain_hugging_face_dataset_and_ragged_rows_get_a_hint(workers):
    rows = {"input_ids": [[number] * 3 for number in range(8)], "labels": [[number] for number in range(8)]}
    plain = datasets.Dataset.from_dict(rows)
    assert isinstance(plain[0]["input_ids"], list)
    got = []
    for dataset in (plain, plain.with_format("torch")):
        with stream_of(dataset, SIZES | {"num_workers": workers}, collator=collate) as stream:
            got.append([(batch.input_ids.tolist(), batch.labels.tolist()) for pack in stream for batch in pack])
            assert all(batch.input_ids.dtype == torch.int64 for pack in stream for batch in pack)
    assert got[0] == got[1]
    texts = datasets.Dataset.from_dict(rows | {"labels": [["a text"]] * 8})
    hint = r"'input_ids', 'labels' are lists.*return dataset.with_format\('torch'\)"
    with pytest.raises((TypeError, WorkerError), match=hint):
        list(stream_of(texts, SIZES | {"num_workers": workers}, collator=collate))


made = []


@dataclasses.dataclass
class Counted:
    """A batch that computes a field of its own when it is made."""

    tokens: torch.Tensor
    note: str | None = None
    length: int = dataclasses.field(init=False)

    def __post_init__(self):
        self.length = len(self.tokens)
        made.append(self)


def test_27_a_batch_is_made_once_and_keeps_its_own_fields_however_often_it_is_pinned_and_moved():
    made.clear()
    batch = tree_map(lambda leaf: leaf * 2 if isinstance(leaf, torch.Tensor) else leaf, Counted(torch.ones(3)))
    assert (batch.tokens.tolist(), batch.note, batch.length) == ([2, 2, 2], None, 3)
    assert len(made) == 1
    assert [type(leaf) for leaf in tree_leaves(batch)] == [torch.Tensor, int], "None is no leaf"

    made.clear()
    inner = stream_of(range(8), SIZES, collator=lambda rows: Counted(torch.tensor(rows)))
    with build_device_pack_stream(PinMemoryMicrobatchPackStream(inner), "cpu", 1) as stream:
        packs = list(stream)
    assert [batch.length for pack in packs for batch in pack] == [2] * 4
    assert len(made) == 4


class Broken:
    """Sample 6 cannot be read."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 6:
            raise OSError("a bad sector")
        return int(index)


@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("workers", [0, 2])
def test_29_an_error_while_reading_names_the_samples_that_were_being_read(workers, prefetch):
    inner = stream_of(Broken(), SIZES | {"num_workers": workers})
    stream = build_device_pack_stream(inner, "cpu", prefetch)
    with pytest.raises((OSError, WorkerError), match="a bad sector") as caught, stream:
        list(stream)
    told = [str(caught.value), *getattr(caught.value, "__notes__", [])]
    assert any("samples 4, 5, 6, 7" in text for text in told), told


class Texts:
    """Sample i has i + 1 tokens; each takes 2 ms to read."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.ones(index + 1)


def padded(samples):
    longest = max(map(len, samples))
    mask = torch.stack([torch.arange(longest) < len(sample) for sample in samples])
    return {"input_ids": torch.zeros(len(samples), longest), "attention_mask": mask}


def test_30_the_stream_reports_waiting_padding_and_samples_and_so_does_the_job_s_log(tmp_path):
    with build_device_pack_stream(stream_of(Texts(), SIZES, collator=padded), "cpu", 0) as stream:
        assert len(list(stream)) == 2
        metrics = stream.metrics()
    assert (metrics.packs, metrics.microbatches, metrics.rows) == (2, 4, 8)
    assert metrics.tokens == sum(range(1, 9))
    assert metrics.padding_share == pytest.approx(1 - 36 / 40)
    assert metrics.wait_s > 0.016
    assert 0 < metrics.wait_share <= 1
    assert metrics.tokens_per_s > 0

    job, _ = configurator(tmp_path, data())
    job.configure().train()
    lines = (tmp_path / "steps.jsonl").read_text().splitlines()
    assert len(lines) == 8
    assert all('"data_wait_share"' in line and '"tokens_per_s"' in line for line in lines)


def test_30_a_packer_of_any_loader_reports_through_the_same_stream():
    class Loader(list):
        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            pass

    packer = FixedCountMicrobatchPacker(Loader([padded([torch.ones(2), torch.ones(4)])] * 4), 2)
    with build_device_pack_stream(packer, "cpu", 1) as stream:
        assert len(list(stream)) == 2
    assert (stream.metrics().rows, stream.metrics().tokens, stream.metrics().padded_tokens) == (8, 24, 32)
