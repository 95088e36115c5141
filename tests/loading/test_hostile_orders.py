"""States, sizes and call patterns that nobody should come up with: refused by name, or right."""

import json

import numpy as np
import pytest

from headrace import (
    MixedDataset,
    PackedDataset,
    ShuffledDataset,
    StatefulDataLoader,
)
from headrace.errors import StateError


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
