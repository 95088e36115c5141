"""Two ranks that train by Lightning or Trainer on a StreamingDataset: who deals the rows, and that all are seen."""

import json
from pathlib import Path

import pytest

from distributed.conftest import launcher
from headrace import StreamingDataLoader, StreamingDataset
from streaming_dataset.scenes import ids, numbers

pytestmark = pytest.mark.distributed

JOB = Path(__file__).with_name("loops_job.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return numbers(tmp_path_factory.mktemp("numbers") / "data", 64)


def run(mode, folder, out):
    """What each of two ranks saw: [rank][step] -> ids."""
    launcher.run_until(launcher.torchrun(2, [str(JOB), mode, folder, str(out)]), out / "log")
    return [json.loads((out / f"rank-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("mode", ["lightning", "ours", "prepared"])
def test_each_rank_gets_its_rows_of_the_global_batches(mode, folder, tmp_path):
    loaders = [
        StreamingDataLoader(StreamingDataset(local=folder, shuffle=True, rank=rank, world_size=2), 4)
        for rank in range(2)
    ]
    assert run(mode, folder, tmp_path) == [ids(loader) + ids(loader) for loader in loaders]


@pytest.mark.parametrize("mode", ["whole, dealt by rank 0", "whole, read by each"])
def test_a_dataset_that_leaves_dealing_to_accelerate_is_seen_once_in_its_order(mode, folder, tmp_path):
    one = StreamingDataLoader(StreamingDataset(local=folder, shuffle=True), 8)
    steps = zip(*run(mode, folder, tmp_path), strict=True)
    assert [first + second for first, second in steps] == ids(one) + ids(one)


@pytest.mark.parametrize("mode", ["ranks, dealt by rank 0", "ranks, read by each"])
def test_what_would_be_dealt_twice_is_refused_on_every_rank(mode, folder, tmp_path):
    with pytest.raises(SystemExit):
        run(mode, folder, tmp_path)
    log = (tmp_path / "log").read_text()
    assert "rank=0, world_size=1" in log
    assert not list(tmp_path.glob("rank-*.json"))
