"""Data that is replaced while its order is known: refused, or read in an order of its own, never in the old one."""

import pytest
import torch.utils.data

from headrace import SampleDataset, ShuffledDataset, StatefulDataLoader, StreamingDataLoader, StreamingDataset
from headrace.errors import DatasetChangedError
from streaming_dataset.written import numbers_of, write_numbers


class Doubled(StreamingDataset):
    def __getitem__(self, at):
        return {"number": 2 * super().__getitem__(at)["number"]}


def through_a_cache(tmp_path, kind=StreamingDataset, **options):
    return kind(remote=tmp_path / "data", local=tmp_path / "cache", shuffle=True, batch_size=4, **options)


@pytest.mark.parametrize("count", [40, 26, 30])
@pytest.mark.parametrize("kind", [StreamingDataset, Doubled])
def test_a_dataset_that_was_closed_sees_what_is_there_by_then_and_orders_made_before_are_refused(tmp_path, kind, count):
    write_numbers(tmp_path / "data", range(30))
    dataset = through_a_cache(tmp_path, kind)
    view, loader, begun = dataset.as_view(), StreamingDataLoader(dataset), iter(dataset)
    next(begun)
    assert len(loader) == 8
    write_numbers(tmp_path / "data", range(100, 100 + count), exist_ok=True)
    dataset.close()
    factor = 2 if kind is Doubled else 1
    assert sorted(numbers_of(dataset)) == [factor * number for number in range(100, 100 + count)]
    for old in (view.__getitem__, lambda _: list(loader), lambda _: list(begun)):
        with pytest.raises(DatasetChangedError, match="open it again"):
            old(0)
    assert sorted(numbers_of(StreamingDataLoader(dataset))) == [factor * number for number in range(100, 100 + count)]


def test_a_dataset_that_was_closed_goes_on_where_nothing_changed(tmp_path):
    write_numbers(tmp_path / "data", range(30))
    dataset = through_a_cache(tmp_path)
    begun, loader = iter(dataset), StreamingDataLoader(dataset)
    got = [next(begun)]
    batches = iter(loader)
    got_in_batches = [next(batches)]
    dataset.close()
    assert sorted(numbers_of([*got, *begun])) == [*range(30)]
    dataset.close()
    assert sorted(numbers_of([*got_in_batches, *batches])) == [*range(30)]


@pytest.mark.slow
@pytest.mark.parametrize("loader_of", [StreamingDataLoader, torch.utils.data.DataLoader])
@pytest.mark.parametrize("count", [40, 26, 30])
def test_workers_that_are_spawned_read_what_the_main_process_has_opened_or_nothing(tmp_path, loader_of, count):
    write_numbers(tmp_path / "data", range(30))
    loader = loader_of(through_a_cache(tmp_path), batch_size=4, num_workers=1, multiprocessing_context="spawn")
    assert len(loader) == 8
    write_numbers(tmp_path / "data", range(100, 100 + count), exist_ok=True)
    with pytest.raises(Exception, match=r"DatasetChangedError: .* changed while it was open"):
        list(loader)


@pytest.mark.slow
def test_a_view_in_spawned_workers_does_not_read_other_data_either(tmp_path):
    write_numbers(tmp_path / "data", range(30))
    view = ShuffledDataset(SampleDataset(tmp_path / "data"), seed=1)
    options = {"num_workers": 1, "parallel_method": "process", "multiprocessing_context": "spawn"}
    loader = StatefulDataLoader(view, len, local_batch_size=4, **options)
    assert len(loader) == 7
    write_numbers(tmp_path / "data", range(100, 140), exist_ok=True)
    with pytest.raises(Exception, match=r"DatasetChangedError|changed while it was open"):
        list(loader)
