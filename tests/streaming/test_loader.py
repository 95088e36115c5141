"""StreamingDataLoader: torch's DataLoader by its arguments, Headrace's by what comes out of it."""

import pytest
from sample_scenes import write

from headrace.streaming.dataset import StreamingDataset
from headrace.streaming.loader import StreamingDataLoader


@pytest.fixture
def folder(tmp_path):
    return str(write(tmp_path / "data", (10, 10, 10, 3)))


def ids(loader):
    return [batch["id"].tolist() for batch in loader]


def test_each_epoch_has_every_sample_once_in_an_order_of_its_own(folder):
    with StreamingDataLoader(StreamingDataset(local=folder, shuffle=True), batch_size=4) as loader:
        first, second = ids(loader), ids(loader)
    assert [len(batch) for batch in first] == [4] * 8 + [1]
    assert sorted(sum(first, [])) == sorted(sum(second, [])) == list(range(33))
    assert first != second
