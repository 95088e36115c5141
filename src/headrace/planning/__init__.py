"""INTEGERS: which item stands at which position, for whom, and where a run is. Knows no bytes, files or tensors.

    permutation.py      seeds from names; a bijection of range(n) that answers any position alone
    shuffle.py          endless positions in shuffled epochs
    blocks.py           the same inside blocks, which no item leaves
    pools.py            shuffled epochs that read few shards at a time
    selection.py        a part of the items: the k-th of them, and how many come before an item
    buckets.py          samples of like length beside one another, inside one window
    mixture.py          which source stands at which position
    runs.py             mixtures of which so many positions in a row are of one source
    splits.py           draws in exact proportions: a tree of splits in two
    proportions.py      weights as they were written -> whole shares
    schedule.py         weights by position
    legs.py             the stretches in which shares stay the same
    recipe.py           what decides a mixture, also as text that a state can carry
    packing.py          documents into rows of at most so many tokens
    first_fit.py        the first of many rows that has room, a piece at a time
    segments.py         position ids, segment ids and cumulative lengths of documents in rows
    token_batches.py    batches of at most so many tokens, in steps of equal cost
    stream_portions.py  how many rows of each stream an epoch has
    stream_batching.py  which stream stands at which position, and which streams share a batch
    stream_draws.py     which item each draw of a stream is
    stream_order.py     these as one order of streams
    partition.py        rows of a global batch to ranks: the only place where rank and world size appear
    cursor.py           how far the consumer is, and the record that says so

Everything is a pure function of its arguments, in NumPy arrays of int64. What was published as ORDER_VERSION 1 never
changes: tests/golden/order_v1.json freezes it.
"""

from headrace.planning.buckets import window_order
from headrace.planning.cursor import STATE_VERSION, Cursor, decode_state, encode_state, plan_fingerprint
from headrace.planning.packing import PackedRows, pack
from headrace.planning.partition import (
    check_division,
    padding_of,
    rank_positions,
    shard_length,
    shard_positions,
    steps_left,
)
from headrace.planning.permutation import Permutation, derive_seed
from headrace.planning.segments import Segments, segment_arrays
from headrace.planning.selection import Selection
from headrace.planning.shuffle import ORDER_VERSION, shuffled
from headrace.planning.stream_batching import Batching, BatchingMethod
from headrace.planning.stream_draws import Shuffle, StreamShards
from headrace.planning.stream_order import StreamOrder
from headrace.planning.stream_portions import Portion, samples_an_epoch
from headrace.planning.token_batches import MAX_WINDOW, BatchBudget, TokenBatches, plan_token_batches

__all__ = [
    "MAX_WINDOW",
    "ORDER_VERSION",
    "STATE_VERSION",
    "BatchBudget",
    "Batching",
    "BatchingMethod",
    "Cursor",
    "PackedRows",
    "Permutation",
    "Portion",
    "Segments",
    "Selection",
    "Shuffle",
    "StreamOrder",
    "StreamShards",
    "TokenBatches",
    "check_division",
    "decode_state",
    "derive_seed",
    "encode_state",
    "pack",
    "padding_of",
    "plan_fingerprint",
    "plan_token_batches",
    "rank_positions",
    "samples_an_epoch",
    "segment_arrays",
    "shard_length",
    "shard_positions",
    "shuffled",
    "steps_left",
    "window_order",
]
