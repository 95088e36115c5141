"""What d9d 0.24 recorded: shards are the same where d9d's are sound, and buckets follow the same rule."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from headrace.views import BufferSortedDataset, ShardedDataset

HERE = Path(__file__).parent / "d9d"


def cases(name):
    return json.loads((HERE / name).read_text(encoding="utf-8"))["cases"]


def shards_of(case, items):
    return [ShardedDataset(items, case["shards"], rank, case["mode"], case["pad"]) for rank in range(case["shards"])]


def is_defect(case):
    return not case["pad"] and (not case["covers_all"] or case["duplicates"] > 0)


def test_shards_are_d9d_s_in_every_case_where_d9d_s_are_sound():
    sound = [case for case in cases("sharded.json") if not is_defect(case)]
    assert len(sound) == 768 - 54
    for case in sound:
        shards = shards_of(case, range(case["n"]))
        assert [{"len": len(shard), "items": list(shard)} for shard in shards] == case["ranks"], case


def test_where_d9d_loses_or_repeats_samples_shards_cover_each_once():
    defects = [case for case in cases("sharded.json") if is_defect(case)]
    assert len(defects) == 54
    for case in defects:
        shards = shards_of(case, range(case["n"]))
        assert [item for shard in shards for item in shard] == list(range(case["n"])), case
        assert [len(shard) for shard in shards] == [len(list(shard)) for shard in shards]


def test_padding_is_as_often_as_d9d_repeats_the_last_sample_and_is_marked():
    for case in cases("sharded.json"):
        shards = shards_of(case, range(case["n"]))
        assert sum(shard.padding for shard in shards) == (case["duplicates"] if case["pad"] else 0), case
        kept = [item for shard in shards for index, item in enumerate(shard) if not shard.is_padding(index)]
        assert sorted(kept) == list(range(case["n"]))


class Keyed:
    def __init__(self, keys):
        self.keys = keys

    def __len__(self):
        return len(self.keys)

    def sort_key(self, index):
        return self.keys[index]

    def __getitem__(self, index):
        return index


def is_made_of_packs(keys, pack_size):
    """Whether these keys can be cut into packs, one of them short, that are the runs of the sorted keys."""
    runs = [sorted(keys)[begin : begin + pack_size] for begin in range(0, len(keys), pack_size)]
    for short in range(len(runs)):
        sizes = [pack_size] * (len(runs) - 1)
        sizes.insert(short, len(keys) - pack_size * (len(runs) - 1))
        ends = np.cumsum([0, *sizes]).tolist()
        if sorted(sorted(keys[begin:end]) for begin, end in pairwise(ends)) == sorted(runs):
            return True
    return not keys


@pytest.mark.parametrize("whose", ["d9d's", "ours"])
def test_each_buffer_is_made_of_packs_that_are_runs_of_its_sorted_keys(whose):
    for case in cases("buffer_sorted.json"):
        keys, size = case["keys"], case["buffer_size"]
        if whose == "ours":
            order = list(BufferSortedDataset(Keyed(keys), size, case["pack_size"], case["seed"]))
        else:
            order = case["order"]
        for begin in range(0, len(keys), size):
            window = order[begin : begin + size]
            assert sorted(window) == list(range(begin, min(begin + size, len(keys)))), case
            assert is_made_of_packs([keys[item] for item in window], case["pack_size"]), case


def test_a_second_pass_has_the_order_of_the_first():
    for case in cases("buffer_sorted.json"):
        dataset = BufferSortedDataset(Keyed(case["keys"]), case["buffer_size"], case["pack_size"], case["seed"])
        assert list(dataset) == list(dataset)
