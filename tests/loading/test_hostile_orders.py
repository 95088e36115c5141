"""States, sizes and call patterns that nobody should come up with: refused by name, or right."""

import json

import numpy as np
import pytest

from headrace import (
    ElasticBatchSampler,
    MixedDataset,
    PackedDataset,
    ShuffledDataset,
    StatefulDataLoader,
    TokenBudgetBatches,
)
from headrace.errors import DatasetChangedError, StateError


class Documents:
    """Documents of 1 to 7 tokens, each token the document's number from `first` on."""

    def __init__(self, name="documents", number=60, first=0):
        self.settings = {"data": name, "num_samples": number}
        self.lengths = 1 + np.arange(number) * 5 % 7
        self.first = first

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, item):
        return self.__getitems__([item])[0]

    def __getitems__(self, items):
        return [np.full(self.lengths[item], self.first + int(item)) for item in items]


class Numbers(Documents):
    def __getitems__(self, items):
        return [self.first + int(item) for item in items]


def mixture(kind=Numbers, weights=(2, 1), **options):
    sources = {name: kind(name, 60 + 40 * k, 1000 * k) for k, name in enumerate("abcd"[: len(weights)])}
    return MixedDataset(sources, list(weights), seed=5, **{"epoch_size": 150, **options})


def packed(**options):
    return PackedDataset(mixture(Documents, **options), 16, window=40)


def loader(dataset, rank=0, world_size=1, size=4, **options):
    return StatefulDataLoader(dataset, global_batch_size=size, rank=rank, world_size=world_size, **options)


def through_json(state):
    return json.loads(json.dumps(state))


def nested(depth):
    outermost = innermost = []
    for _ in range(depth):
        innermost.append([])
        innermost = innermost[0]
    return outermost


KINDS = {"mixture": mixture, "packs": packed, "shuffle": lambda: ShuffledDataset(Numbers(), 1)}


@pytest.mark.parametrize("change", [None, "from_here"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "damage",
    [
        {"version": True},
        {"version": 1.0},
        {"version": np.int64(1)},
        {"epoch": (1 << 63) - 1},
        {"epoch": 1 << 62},
        {"position": (1 << 63) - 1},
        {"window": 1 << 62},
        {"row": 1 << 62},
        {"window": 2, "row": 1 << 30},
        {"position": True},
        {"position": -1},
        {"settings": None},
        {"settings": {"a": nested(100_000)}},
        {"settings": {"a": object()}},
        {"settings": {"a": "\udc80"}},
        {"settings": {1: 2, "a": 3}},
        {"plan": None},
        {"plan": np.zeros(3)},
    ],
    ids=lambda damage: ",".join(damage),
)
def test_a_damaged_record_is_a_state_error_and_changes_nothing(kind, damage, change):
    one = loader(KINDS[kind]())
    next(iter(one))
    before = one.state_dict()
    with pytest.raises(StateError):
        one.load_state_dict({**before, **damage}, change=change)
    assert one.state_dict() == before


@pytest.mark.parametrize("place", [(5, 0, 0), (3, 0, 4), (1 << 40, 1, 0)])
def test_rows_that_do_not_lead_to_their_window_are_no_place(place):
    one = loader(packed())
    with pytest.raises(StateError, match="do not lead to"):
        one.load_state_dict({**one.state_dict(), **dict(zip(("position", "window", "row"), place, strict=True))})


def test_a_rank_without_rows_gets_an_empty_batch_after_a_change_of_the_mixture_too():
    def ranks(weights):
        return [loader(mixture(weights=weights, epoch_size=149), rank, 4, drop_last=False) for rank in range(4)]

    before = loader(mixture(epoch_size=149), drop_last=False)
    for _, _batch in zip(range(5), before, strict=False):
        pass
    last = []
    for one in ranks((1, 3)):
        one.load_state_dict(through_json(before.state_dict()), change="from_here")
        last.append([batch.tolist() for batch in one][-1])
    assert list(map(len, last)) == [1, 0, 0, 0]


def test_a_rank_without_a_batch_gets_an_empty_one_after_a_change_below_token_budgets_too():
    class OneToken(Documents):
        def __init__(self, *given):
            super().__init__(*given)
            self.lengths = np.ones_like(self.lengths)

    def ranks(weights):
        budget = TokenBudgetBatches(mixture(OneToken, weights, epoch_size=3), 8, 4, window=40)
        return [loader(budget, rank, 4) for rank in range(4)]

    group = ranks((2, 1))
    assert sorted(len(batch) for one in group for batch in one) == [0, 1, 1, 1]
    later = ranks((1, 3))
    for one in later:
        one.load_state_dict(through_json(group[0].state_dict()), change="from_here")
    assert sorted(len(batch) for one in later for batch in one) == [0, 1, 1, 1]


@pytest.mark.parametrize("parts", [{}, {"shuffle": True}])
def test_a_dataset_that_grew_since_its_steps_were_counted_is_refused(parts):
    items = list(range(10))
    one, sampler = loader(items, **parts), ElasticBatchSampler(items, 4, **parts)
    assert len(list(one)) == len(list(sampler)) == 2
    items += [10, 11, 12]
    for stale in (one, sampler):
        with pytest.raises(DatasetChangedError, match="had 10 samples and has 13 now"):
            iter(stale)
