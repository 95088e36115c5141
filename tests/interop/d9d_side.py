"""Runs in d9d's own interpreter, which has Headrace, too: what d9d's data classes make of cases, as JSON.

python -m interop.d9d_on_cpu interop.d9d_side REQUESTS          {function of this module: what it is given}
"""

import json
import sys

import d9d.core.protocol as protocol
import d9d.core.pytree as their_trees
import d9d.dataset as theirs
import d9d.loop.component as component
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

import headrace
from interop.d9d_job import Keyed, Samples, collate, numbers


def sharded(cases):
    """The items of every shard, by case."""
    return [
        [
            items_of(
                theirs.ShardedDataset(
                    list(range(case["n"])), case["shards"], rank, theirs.ShardIndexingMode(case["mode"]), case["pad"]
                )
            )
            for rank in range(case["shards"])
        ]
        for case in cases
    ]


def items_of(shard):
    """All of it; iterating d9d's would never end."""
    return [shard[i] for i in range(len(shard))]


def buffer_sorted(cases):
    """The order of every case: base numbers as they come."""
    orders = []
    for case in cases:
        view = theirs.BufferSortedDataset(Keyed(case["keys"]), case["buffer_size"], case["pack_size"], init_seed=1)
        orders.append([view[i] for i in range(len(view))])
    return orders


def packed(cases):
    """total_steps and packs of every case."""
    found = []
    for case in cases:
        loader = StatefulDataLoader(range(case["n"]), batch_size=1, collate_fn=list)
        packer = theirs.FixedCountMicrobatchPacker(loader, case["per_step"], drop_last=case["drop_last"])
        found.append([packer.total_steps, list(packer)])
    return found


def padded(cases):
    """Rows padded and stacked; the default side where a case names none."""
    found = []
    for case in cases:
        side = {} if case["side"] is None else {"padding_side": theirs.PaddingSide1D(case["side"])}
        rows = [torch.tensor(row, dtype=torch.int64) for row in case["rows"]]
        found.append(theirs.pad_stack_1d(rows, 0, pad_to_multiple_of=case["multiple"], **side).tolist())
    return found


def pooled(cases):
    """Masks of the tokens that are pooled."""
    return [
        theirs.token_pooling_mask_from_attention_mask(
            torch.tensor(case["mask"]), theirs.TokenPoolingType(case["type"])
        ).tolist()
        for case in cases
    ]


def leaves(tree):
    """Leaves of a tree of JSON, with their paths."""
    return their_trees.tree_leaves_with_path(tree)


def protocols(_):
    """Whether what Headrace has is what d9d asks for."""
    loader = headrace.StatefulDataLoader(Samples(), collate, local_batch_size=2)
    packer = headrace.FixedCountMicrobatchPacker(loader, 4)
    return {
        "loader": isinstance(loader, protocol.DataLoaderProtocol),
        "packer": isinstance(packer, protocol.MicrobatchPackStream),
        "pinned": isinstance(headrace.PinMemoryMicrobatchPackStream(packer), protocol.MicrobatchPackStream),
    }


def mixed_stacks(_):
    """One stack after another in which each second layer is the other's: the ids of all packs, and of the rest behind
    the third pack's state."""

    def their_layers():
        """Headrace's order, d9d's shard; torchdata; Headrace's packer; d9d's wrappers around it."""
        order = headrace.BufferSortedDataset(Keyed(numbers(50)), buffer_size=16, pack_size=4)
        shard = theirs.ShardedDataset(order, 2, 1, theirs.ShardIndexingMode.sequential, True)
        packer = headrace.FixedCountMicrobatchPacker(StatefulDataLoader(shard, batch_size=2, collate_fn=list), 2)
        return component.build_device_pack_stream(theirs.PinMemoryMicrobatchPackStream(packer), torch.device("cpu"), 2)

    def our_layers():
        """d9d's order over Headrace's shard; torchdata; d9d's packer; Headrace's wrappers around it. (d9d's order has a
        state, which Headrace's shard would not pass on: it must be on top.)"""
        shard = headrace.ShardedDataset(Keyed(numbers(50)), 2, 1, headrace.ShardIndexingMode.sequential, True)
        shard.sort_key = lambda index: numbers(50)[shard[index]]
        order = theirs.BufferSortedDataset(shard, buffer_size=16, pack_size=4, init_seed=1)
        packer = theirs.FixedCountMicrobatchPacker(StatefulDataLoader(order, batch_size=2, collate_fn=list), 2)
        return headrace.build_device_pack_stream(headrace.PinMemoryMicrobatchPackStream(packer), torch.device("cpu"), 2)

    found = {}
    for stack in (their_layers, our_layers):
        whole, cut = stack(), stack()
        packs = list(whole)
        ahead = iter(cut)
        for _ in range(3):
            next(ahead)
        state = json.loads(json.dumps(cut.state_dict(), default=repr)) if stack is their_layers else cut.state_dict()
        ahead.close()
        resumed = stack()
        resumed.load_state_dict(state)
        found[stack.__name__] = [packs, list(resumed)]
    return found


if __name__ == "__main__":
    print(json.dumps({part: globals()[part](request) for part, request in json.loads(sys.argv[1]).items()}))
