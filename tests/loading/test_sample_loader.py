"""Samples under the loader: every sample once, in one order, whatever reads them, and on from where it stopped."""

import numpy as np
import pytest

from headrace import MDSWriter, SampleDataset, ShuffledDataset, StatefulDataLoader
from headrace.errors import StateMismatchError

COUNT, BATCH = 60, 8


@pytest.fixture(scope="module", params=[None, "zstd"])
def folder(request, tmp_path_factory):
    """Shards of a few samples each, raw or compressed."""
    out = tmp_path_factory.mktemp("samples") / "data"
    columns = {"id": "int", "tokens": "ndarray:uint16:4", "text": "str"}
    with MDSWriter(columns=columns, out=out, size_limit=400, compression=request.param) as writer:
        for number in range(COUNT):
            writer.write({"id": number, "tokens": np.full(4, number, np.uint16), "text": f"text {number}"})
    return out


def loader(folder, **options):
    return StatefulDataLoader(
        SampleDataset(folder), local_batch_size=BATCH, shuffle=True, shuffle_seed=5, drop_last=False, **options
    )


def ids(batches):
    return [batch["id"].tolist() for batch in batches]


def test_columns_come_as_tensors_and_text_as_a_list(folder):
    batch = next(iter(loader(folder)))
    numbers = batch["id"].tolist()
    assert batch["tokens"].tolist() == [[number] * 4 for number in numbers]
    assert batch["text"] == [f"text {number}" for number in numbers]


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 2},
        {"num_workers": 2, "parallel_method": "process", "multiprocessing_context": "fork"},
        {"num_workers": 2, "parallel_method": "process", "multiprocessing_context": "spawn"},
    ],
    ids=["threads", "forked", "spawned"],
)
def test_every_sample_comes_once_in_the_same_order_whatever_reads_them(options, folder):
    expected = ids(loader(folder))
    order = [number for batch in expected for number in batch]
    assert sorted(order) == list(range(COUNT))
    assert order == [sample["id"] for sample in ShuffledDataset(SampleDataset(folder), 5)[:]]
    with loader(folder, **options) as found:
        assert ids(found) == expected


def test_a_run_goes_on_where_it_stopped_and_only_with_the_same_samples_and_columns(folder):
    whole = ids(loader(folder))
    first = loader(folder)
    batches = iter(first)
    seen = [next(batches)["id"].tolist() for _ in range(3)]
    second = loader(folder)
    second.load_state_dict(first.state_dict())
    assert seen + ids(second) == whole
    other = StatefulDataLoader(
        SampleDataset(folder, columns=["id"]), local_batch_size=BATCH, shuffle=True, shuffle_seed=5, drop_last=False
    )
    with pytest.raises(StateMismatchError, match="columns"):
        other.load_state_dict(first.state_dict())
