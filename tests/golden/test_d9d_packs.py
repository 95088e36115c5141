"""What d9d 0.24 recorded of packs: the same microbatches in each, from loaders of torchdata and of Headrace alike."""

import json
import random
from pathlib import Path

import pytest
from torchdata.stateful_dataloader import StatefulDataLoader as TorchdataLoader

from headrace import (
    FixedCountMicrobatchPacker,
    ShardedDataset,
    StatefulDataLoader,
    num_microbatches_for_global_batch,
)
from headrace.errors import OptionError

HERE = Path(__file__).parent / "d9d"


def cases(name):
    return json.loads((HERE / name).read_text(encoding="utf-8"))["cases"]


class Numbered:
    """A loader of so many microbatches."""

    def __init__(self, microbatches):
        self.microbatches = microbatches

    def __len__(self):
        return self.microbatches

    def __iter__(self):
        return iter(range(self.microbatches))

    def state_dict(self):
        return {}

    def load_state_dict(self, state_dict):
        pass


def test_packs_are_d9d_s():
    checked = 0
    for case in cases("packer.json"):
        if "result" in case:
            assert case["result"]["error"] == "ValueError"
            with pytest.raises(OptionError, match=r"microbatches_per_step=.*at least 1"):
                FixedCountMicrobatchPacker(Numbered(case["microbatches"]), case["per_step"])
        else:
            packer = FixedCountMicrobatchPacker(Numbered(case["microbatches"]), case["per_step"], case["drop_last"])
            assert packer.total_steps == case["total_steps"], case
            assert list(packer) == case["packs"], case
        checked += 1
    assert checked == 198


class Context:
    """What a packer asks of a context."""

    def __init__(self, ranks):
        self.ranks = ranks

    @property
    def mesh_params(self):
        return self

    @property
    def is_distributed(self):
        return self.ranks > 1

    def mesh_for(self, domain):
        assert domain == "batch"
        assert self.is_distributed, "d9d has no meshes then"
        return {"dp": self}

    def size(self):
        return self.ranks


def test_as_many_microbatches_make_a_global_batch_as_in_d9d():
    unchecked = 0
    for case in cases("num_microbatches.json"):
        sizes = (Context(case["dp"]), case["global_batch_size"], case["microbatch_size"])
        if case["global_batch_size"] < 1 or case["microbatch_size"] < 1:  # which d9d takes as they come
            with pytest.raises(OptionError, match="at least 1"):
                num_microbatches_for_global_batch(*sizes)
            unchecked += 1
        elif isinstance(case["result"], dict):
            assert case["result"]["error"] == "ValueError"
            with pytest.raises(OptionError, match=r"global_batch_size=.*a multiple of"):
                num_microbatches_for_global_batch(*sizes)
        else:
            assert num_microbatches_for_global_batch(*sizes) == case["result"], case
    assert unchecked == 34


def recorded_order(keys, buffer_size, pack_size, seed):
    """The order of d9d's buffers, by the rule that was recorded with them: Headrace's own draws otherwise."""
    generator = random.Random(seed ^ 67047)
    order = []
    for begin in range(0, len(keys), buffer_size):
        buffer = range(begin, min(begin + buffer_size, len(keys)))
        drawn = {index: generator.random() for index in buffer}
        by_key = sorted(buffer, key=lambda index: (keys[index], drawn[index]))
        packs = [by_key[at : at + pack_size] for at in range(0, len(by_key), pack_size)]
        generator.shuffle(packs)
        for pack in packs:
            generator.shuffle(pack)
            order.extend(pack)
    return order


def test_the_recorded_order_follows_from_its_rule():
    checked = 0
    for case in cases("buffer_sorted.json"):
        if case["seed"] is not None:
            assert recorded_order(case["keys"], case["buffer_size"], case["pack_size"], case["seed"]) == case["order"]
            checked += 1
    assert checked > 50


def torchdata(dataset, size):
    return TorchdataLoader(dataset, batch_size=size, collate_fn=list, drop_last=True)


def headrace(dataset, size):
    return StatefulDataLoader(dataset, list, local_batch_size=size, rank=0, world_size=1, device="cpu")


@pytest.mark.parametrize("make_loader", [torchdata, headrace])
def test_the_whole_way_from_buckets_to_packs_gives_each_rank_d9d_s_items(make_loader):
    for case in cases("pipeline.json"):
        order = recorded_order(case["keys"], case["buffer_size"], case["pack_size"], case["seed"])
        per_step = num_microbatches_for_global_batch(
            Context(case["dp"]), case["global_batch_size"], case["microbatch_size"]
        )
        for rank, expected in enumerate(case["ranks"]):
            shard = ShardedDataset(order, case["dp"], rank, case["shard_mode"], case["pad"])
            packer = FixedCountMicrobatchPacker(make_loader(shard, case["microbatch_size"]), per_step)
            assert packer.total_steps == expected["total_steps"]
            assert list(packer) == expected["packs"], (case["seed"], rank)
