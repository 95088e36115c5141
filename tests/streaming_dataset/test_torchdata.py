"""StreamingDataset under torchdata's StatefulDataLoader, which keeps the state of each worker's iterator."""

import json

import pytest
from torchdata.stateful_dataloader import StatefulDataLoader as TorchdataLoader

from headrace import StreamingDataset
from streaming_dataset.written import numbers_of, write_numbers

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_numbers(tmp_path_factory.mktemp("numbers") / "all", range(103))


def loader_of(folder, num_workers, **options):
    dataset = StreamingDataset(local=folder, shuffle=True, batch_size=8, rank=1, world_size=2)
    return TorchdataLoader(dataset, batch_size=8, num_workers=num_workers, **options)


@pytest.mark.parametrize("num_workers", [0, 1, 2, 3])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_run_goes_on_after_any_number_of_batches(folder, num_workers, persistent):
    if persistent and not num_workers:
        return
    options = {"persistent_workers": persistent} if persistent else {}
    reference = loader_of(folder, num_workers, **options)
    epochs = [[numbers_of([batch]) for batch in reference] for _ in range(3)]
    assert len(epochs[0]) == 7
    for epoch, taken in ((0, 0), (0, 1), (0, 4), (0, 6), (1, 3)):
        loader = loader_of(folder, num_workers, **options)
        for _ in range(epoch):
            list(loader)
        batches = iter(loader)
        for _ in range(taken):
            next(batches)
        state = json.loads(json.dumps(loader.state_dict()))
        resumed = loader_of(folder, num_workers, **options)
        resumed.load_state_dict(state)
        assert [numbers_of([batch]) for batch in resumed] == epochs[epoch][taken:]
        assert [numbers_of([batch]) for batch in resumed] == epochs[epoch + 1]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_state_from_the_end_of_an_epoch_goes_on_with_the_next(folder, num_workers):
    reference = loader_of(folder, num_workers)
    epochs = [[numbers_of([batch]) for batch in reference] for _ in range(3)]
    loader = loader_of(folder, num_workers)
    list(loader)
    resumed = loader_of(folder, num_workers)
    resumed.load_state_dict(loader.state_dict())
    assert [numbers_of([batch]) for batch in resumed] == epochs[1]
    assert [numbers_of([batch]) for batch in resumed] == epochs[2]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_state_behind_the_last_batch_is_one_of_the_next_epoch(folder, num_workers):
    reference = loader_of(folder, num_workers)
    epochs = [[numbers_of([batch]) for batch in reference] for _ in range(2)]
    loader = loader_of(folder, num_workers)
    batches = iter(loader)
    for _ in range(7):
        next(batches)
    resumed = loader_of(folder, num_workers)
    resumed.load_state_dict(loader.state_dict())
    rest = [numbers_of([batch]) for batch in resumed]
    assert rest in ([], epochs[1])  # torchdata itself begins with an empty rest here, with any dataset
    if not rest:
        assert [numbers_of([batch]) for batch in resumed] == epochs[1]
