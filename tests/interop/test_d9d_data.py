"""d9d's data classes and Headrace's are given the same, in the cases for which they mean the same."""

import itertools

import numpy as np
import pytest
import torch

import headrace
from interop.d9d_job import Keyed, numbers

pytestmark = pytest.mark.interop
LENGTHS = np.array([1, 4, 6, 3])
SHARDED = [
    {"n": n, "shards": shards, "mode": mode, "pad": pad}
    for n in (1, 2, 5, 8, 13, 64)
    for shards in (1, 2, 3, 7)
    for mode in ("sequential", "chunked")
    for pad in (True, False)
    if pad or mode == "sequential" or n % shards == 0  # else d9d's chunks are not what they should be
]
BUFFERS = [
    {"keys": numbers(n), "buffer_size": buffer, "pack_size": pack}
    for n in (1, 7, 16, 50, 200)
    for buffer in (1, 5, 16, 64)
    for pack in (1, 4, 5, 100)
]
PACKED = [
    {"n": n, "per_step": k, "drop_last": drop} for n in (0, 1, 4, 9, 12) for k in (1, 3, 4) for drop in (True, False)
]
PADDED = [
    {"rows": [list(range(1, n + 1)) for n in lengths], "side": side, "multiple": multiple}
    for lengths in ([3], [1, 2], [0, 5, 2], [9, 9, 9, 1])
    for side in (None, "left", "right")
    for multiple in (None, 1, 4, 8)
]
POOLED = [
    {"mask": (np.arange(6) < LENGTHS[:, None]).astype(int).tolist(), "type": kind} for kind in ("first", "last", "all")
]
TREE = {"b": [1, {"z": 2, "a": [3, None]}], "a": {"10": 4, "9": []}, "c": "text"}


@pytest.fixture(scope="module")
def seen(d9d):
    """What d9d makes of all that, in one process."""
    return d9d.see(
        {
            "sharded": SHARDED,
            "buffer_sorted": BUFFERS,
            "packed": PACKED,
            "padded": PADDED,
            "pooled": POOLED,
            "leaves": TREE,
            "protocols": None,
            "mixed_stacks": None,
        }
    )


def test_shards_hold_what_d9d_s_hold(seen):
    for case, shards in zip(SHARDED, seen["sharded"], strict=True):
        base, mode = list(range(case["n"])), headrace.ShardIndexingMode(case["mode"])
        ours = [
            list(headrace.ShardedDataset(base, case["shards"], rank, mode, case["pad"]))
            for rank in range(case["shards"])
        ]
        assert ours == shards, case


def test_buffers_and_packs_hold_the_samples_that_d9d_s_hold(seen):
    for case, order in zip(BUFFERS, seen["buffer_sorted"], strict=True):
        view = headrace.BufferSortedDataset(Keyed(case["keys"]), case["buffer_size"], case["pack_size"], init_seed=1)
        assert packs_of(list(view), case) == packs_of(order, case), case


def packs_of(order, case):
    """For each buffer its samples by key, cut into packs; and how often the order goes from one pack to another."""
    size, buffers = case["buffer_size"], []
    for start in range(0, len(order), size):
        served = order[start : start + size]
        ranked = sorted(served, key=case["keys"].__getitem__)
        pack_of = {item: place // case["pack_size"] for place, item in enumerate(ranked)}
        buffers.append((ranked, sum(pack_of[a] != pack_of[b] for a, b in itertools.pairwise(served))))
    return buffers


def test_packs_and_their_number_are_d9d_s(seen):
    for case, (total, packs) in zip(PACKED, seen["packed"], strict=True):
        loader = torch.utils.data.DataLoader(range(case["n"]), batch_size=1, collate_fn=list)
        packer = headrace.FixedCountMicrobatchPacker(loader, case["per_step"], drop_last=case["drop_last"])
        assert (packer.total_steps, [list(pack) for pack in packer]) == (total, packs), case


def test_rows_are_padded_as_d9d_pads_them(seen):
    for case, rows in zip(PADDED, seen["padded"], strict=True):
        side = {} if case["side"] is None else {"padding_side": headrace.PaddingSide1D(case["side"])}
        given = [torch.tensor(row, dtype=torch.int64) for row in case["rows"]]
        assert headrace.pad_stack_1d(given, 0, pad_to_multiple_of=case["multiple"], **side).tolist() == rows, case


def test_pooled_tokens_are_d9d_s(seen):
    for case, pooled in zip(POOLED, seen["pooled"], strict=True):
        kind = headrace.TokenPoolingType(case["type"])
        given = torch.tensor(case["mask"])
        assert headrace.token_pooling_mask_from_attention_mask(given, kind).tolist() == pooled, case


def test_leaves_and_their_paths_are_d9d_s(seen):
    leaves = [[list(path), leaf] for path, leaf in headrace.tree_leaves_with_path(TREE)]
    assert leaves == seen["leaves"]


def test_what_headrace_has_is_what_d9d_asks_for(seen):
    assert seen["protocols"] == {"loader": True, "packer": True, "pinned": True}


def test_layers_of_both_stand_on_one_another_and_go_on_exactly(seen):
    for name, (packs, rest) in seen["mixed_stacks"].items():
        rows = [row for pack in packs for microbatch in pack for row in microbatch]
        assert len(rows) == len(set(rows)) == 24, name
        assert rest == packs[3:], name
