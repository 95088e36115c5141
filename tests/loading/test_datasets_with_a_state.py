"""Datasets whose items depend on what was read before: a number is not always the same sample."""

import copy
import pickle

import pytest
from torchdata.stateful_dataloader import StatefulDataLoader as TorchDataLoader

import headrace
from headrace import (
    BufferSortedDataset,
    MixedDataset,
    PackedDataset,
    ShardedDataset,
    ShardIndexingMode,
    ShuffledDataset,
    StatefulDataLoader,
    TokenBudgetBatches,
)


class Counting:
    """Gives how many items were read so far: it has an order of its own, and a state."""

    def __init__(self):
        self.read = 0

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if not 0 <= index < 12:
            raise IndexError(index)
        self.read += 1
        return self.read

    def state_dict(self):
        return {"read": self.read}

    def load_state_dict(self, state):
        self.read = state["read"]


def sharded(dataset):
    return ShardedDataset(dataset, 1, 0, ShardIndexingMode.sequential, False)


@pytest.mark.parametrize(
    "above", [lambda dataset: dataset, sharded, lambda dataset: ShuffledDataset(sharded(dataset), 1)]
)
def test_a_loader_that_would_lose_the_state_refuses_the_dataset(above):
    with pytest.raises(headrace.HeadraceError, match=r"Counting has a state .* StatefulDataLoader .* would read other"):
        StatefulDataLoader(above(Counting()), local_batch_size=2)


@pytest.mark.parametrize(
    "make",
    [
        lambda dataset: MixedDataset({"plain": list(range(12)), "counting": dataset}),
        lambda dataset: PackedDataset(sharded(dataset), 8),
        lambda dataset: TokenBudgetBatches(dataset, 8, 1),
    ],
)
def test_what_draws_and_packs_refuses_it_too(make):
    with pytest.raises(headrace.HeadraceError, match="Counting has a state"):
        make(Counting())


def test_a_source_without_a_weight_may_have_a_state():
    mixed = MixedDataset({"plain": list(range(12)), "counting": Counting()}, [1, 0])
    assert len(StatefulDataLoader(mixed, local_batch_size=2, device="cpu")) == 6


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("above", [sharded, lambda dataset: BufferSortedDataset(WithKeys(dataset), 4, 2)])
def test_torchdata_keeps_the_state_of_a_dataset_below_a_view(workers, above):
    def loader():
        return TorchDataLoader(above(Counting()), batch_size=2, num_workers=workers, collate_fn=list)

    whole = list(loader())
    first = loader()
    batches = iter(first)
    head = [next(batches) for _ in range(3)]
    state = first.state_dict()
    del batches
    second = loader()
    second.load_state_dict(state)
    assert head + list(second) == whole


class WithKeys:
    """A dataset with sort keys, whose state is its base's."""

    def __init__(self, base):
        self.base = base
        self.state_dict = base.state_dict
        self.load_state_dict = base.load_state_dict

    def __len__(self):
        return len(self.base)

    def __getitem__(self, index):
        return self.base[index]

    def sort_key(self, index):
        return index


def test_a_view_has_no_state_where_its_base_has_none_and_is_copied_and_pickled_as_ever():
    view = sharded(list(range(5)))
    assert not hasattr(view, "state_dict")
    assert [*copy.copy(view)] == [*pickle.loads(pickle.dumps(view))] == [*range(5)]
    with pytest.raises(AttributeError, match="'ShardedDataset' object has no attribute 'nothing'"):
        _ = view.nothing
