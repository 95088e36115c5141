"""Views over datasets that change, lie, or are of odd kinds: right, or refused by name; never other samples."""

import pytest

from headrace import MixedDataset, SelectedDataset, ShuffledDataset
from headrace.errors import DatasetChangedError, OrderError


@pytest.mark.parametrize("change", [lambda items: items.append(10), lambda items: items.pop()])
def test_a_part_of_a_dataset_that_changed_its_length_is_refused(change):
    items = list(range(10))
    part = SelectedDataset(ShuffledDataset(items, 1), [2, 7, 8])
    assert len(set(part[:])) == 3
    change(items)
    with pytest.raises(DatasetChangedError, match="it had 10 samples and has"):
        part[0]


@pytest.mark.parametrize("ordered", [False, True])
def test_a_mixture_of_a_source_that_changed_its_length_is_refused(ordered):
    items = list(range(10))
    mixed = MixedDataset({"a": ShuffledDataset(items, 1) if ordered else items, "b": [100]})
    assert len(mixed[:]) == 11
    items.append(11)
    with pytest.raises(DatasetChangedError, match="it had 10 samples and has 11 now"):
        mixed[:]


def test_a_source_whose_weight_is_next_to_nothing_never_comes_and_an_epoch_does_not_wait_for_it():
    sources = {"a": range(100), "b": range(100, 150)}
    for weights in ([1e300, 1e-300], [1, 1e-200]):
        mixed = MixedDataset(sources, weights, max_epochs=1)
        assert sorted(mixed[:]) == list(range(100))

        with pytest.raises(OrderError, match="'b' is never drawn through once"):
            MixedDataset(sources, weights, exhausted="stop_all")
