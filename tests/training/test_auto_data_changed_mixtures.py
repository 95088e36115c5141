"""A provider's stream over a mixture that is changed within the run: it counts and ends by what the mixture is now."""

import itertools
import json

import numpy as np
import pytest

from headrace import MixedDataset, PackedDataset, StatefulDataLoader
from headrace.errors import OrderError
from training.ranks import stream_of

SIZES = {"global_batch_size": 4, "microbatch_size": 2, "epochs": 2}
BEFORE, NOW = {"a": 0.7, "b": 0.3}, {"a": 0.2, "b": 0.8}


class Documents:
    """Documents of 1 to 13 tokens, all of a document the same."""

    def __init__(self, name, number):
        self.settings = {"data": name, "num_samples": number}
        self.lengths = 1 + np.arange(number) * 7 % 13

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, item):
        return np.full(self.lengths[item], item)


def packed(weights, **options):
    sources = {"a": Documents("a", 40), "b": Documents("b", 60)}
    return PackedDataset(MixedDataset(sources, weights, seed=1, **options), 16, window=16)


def tokens(rows):
    return [row["input_ids"].tolist() for row in rows]


@pytest.mark.parametrize("steps", [1, 3, 7, 14])
@pytest.mark.parametrize("config", [{}, {"drop_last": False}, {"drop_last": False, "padding": True}])
def test_packs_of_a_changed_mixture_are_those_of_its_loader_and_are_counted(config, steps):
    config = SIZES | config
    before = stream_of(packed(BEFORE), config, collator=tokens)
    list(itertools.islice(before, steps))
    changed = stream_of(packed(NOW), config, collator=tokens)
    changed.loader.load_state_dict(json.loads(before.state_dict()["state"]), change="from_here")
    list(itertools.islice(changed, 1))
    state = changed.state_dict()

    loader = StatefulDataLoader(
        packed(NOW),
        tokens,
        global_batch_size=4,
        drop_last=config.get("drop_last", True),
        pad=config.get("padding", False),
    )
    loader.load_state_dict(json.loads(state["state"]))
    expected = []
    while loader.state_dict()["epoch"] < config["epochs"]:
        expected += [row for batch in loader for row in batch]

    later = stream_of(packed(NOW), config, collator=tokens)
    later.load_state_dict(state)
    left = later.steps_left
    if steps == 1:  # within the first window, which is finished as it was planned
        assert later.total_steps == steps + 1 + left
    else:
        assert later.total_steps is None, "windows before the change cannot be planned any more"
    assert left == changed.steps_left
    for stream in (later, changed):
        packs = list(stream)
        assert len(packs) == left
        assert [row for pack in packs for microbatch in pack for row in microbatch] == expected


def test_more_epochs_than_a_mixture_of_packed_documents_has_are_refused_when_steps_are_counted():
    stream = stream_of(packed(NOW, max_epochs=1), SIZES | {"epochs": 3, "drop_last": False}, collator=tokens)
    with pytest.raises(OrderError, match="raise max_epochs"):
        _ = stream.total_steps
