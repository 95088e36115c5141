"""The arithmetic of mosaicml-streaming 0.13.0 in orders that are ours: rows of streams, and what batches are made of.

Where an epoch does not divide, Streaming repeats rows until devices and canonical nodes have equally many; here nothing
is repeated. streaming_order.json was made from its plans.
"""

import json
from math import lcm
from pathlib import Path

import numpy as np
import pytest

from headrace.planning import Batching, Portion, Shuffle, StreamOrder, StreamShards, samples_an_epoch

GOLDEN = json.loads((Path(__file__).parent / "streaming_order.json").read_text(encoding="utf-8"))
CASES = [(case, plan) for case in GOLDEN["cases"] for plan in case["plans"]]


def order_of(case, devices, seed=7):
    args = case["args"]
    streams = [StreamShards((size,), rows) for size, rows in zip(case["sizes"], case["choose"], strict=True)]
    return StreamOrder(
        streams,
        shuffle=Shuffle() if args["shuffle"] else None,
        seed=seed,
        sampling=args.get("sampling_method", "balanced"),
        batching=Batching(args.get("batching_method", "random"), args["batch_size"], devices),
    )


def with_repeats(rows, devices):
    """The rows that Streaming makes of these, for so many devices and its two canonical nodes."""
    return -(-rows // lcm(2, devices)) * lcm(2, devices)


@pytest.mark.parametrize("case", GOLDEN["cases"])
def test_rows_an_epoch_are_those_of_streaming_but_for_the_rest_that_it_draws_at_random(case):
    epoch_size = case["args"].get("epoch_size")
    epoch_size = {"0.2k": 200}.get(epoch_size, epoch_size)
    chosen = samples_an_epoch(case["sizes"], [Portion(**weights) for weights in case["weights"]], epoch_size)
    assert sum(chosen) == sum(case["choose"]) == case["epoch_size"]
    if epoch_size is None:
        assert chosen == case["choose"]
    else:  # each has its share rounded down, and what is missing goes one each to some
        assert all(abs(ours - theirs) <= 1 for ours, theirs in zip(chosen, case["choose"], strict=True))


@pytest.mark.parametrize(("case", "plan"), CASES)
def test_an_epoch_has_the_rows_that_streaming_serves_but_for_its_repeats(case, plan):
    order = order_of(case, plan["devices"])
    if case["args"].get("batching_method", "random") == "random":
        assert list(order.chosen) == case["choose"]
        more = np.array(plan["streams"]) - order.chosen
        nodes = case["args"]["num_canonical_nodes"]
        assert 0 <= more.min() <= more.sum() < nodes
    streams = order.origins(np.arange(3 * order.epoch_size))[0].reshape(3, -1)
    if order.epoch_size == sum(order.chosen):
        for epoch in streams:
            assert np.bincount(epoch, minlength=len(order.chosen)).tolist() == list(order.chosen)


@pytest.mark.parametrize(("case", "plan"), [pair for pair in CASES if "batches" in pair[1]])
def test_global_batches_are_made_of_the_streams_that_streaming_makes_them_of(case, plan):
    order, devices = order_of(case, plan["devices"]), plan["devices"]
    size = case["args"]["batch_size"] * devices
    streams = order.origins(np.arange(order.epoch_size))[0].reshape(-1, size)
    ours = {}
    for batch in streams:
        made = tuple(np.bincount(batch, minlength=3).tolist())
        ours[made] = ours.get(made, 0) + 1
    theirs = {tuple(made): times for *made, times in plan["batches"]}
    assert set(ours) == set(theirs)
    for made in ours:
        pairs = [(rows, share) for rows, share in zip(case["choose"], made, strict=True) if share]
        assert ours[made] == min(rows // share for rows, share in pairs)
        assert theirs[made] == min(with_repeats(rows, devices) // share for rows, share in pairs)


@pytest.mark.parametrize(("case", "plan"), [pair for pair in CASES if "device_batches" in pair[1]])
def test_device_batches_of_each_stream_are_as_many_as_streamings_to_within_one(case, plan):
    order, size = order_of(case, plan["devices"]), case["args"]["batch_size"]
    assert [rows // size for rows in order.chosen] == [rows // size for rows in case["choose"]]
    for rows, theirs in zip(order.chosen, plan["device_batches"], strict=True):
        assert abs(rows // size - theirs) <= 1


@pytest.mark.parametrize(("shard_items", "choose", "choose_per_shard"), GOLDEN["sampling"])
def test_whole_rounds_take_every_sample_as_often_and_the_rest_takes_none_twice(shard_items, choose, choose_per_shard):
    assert sum(choose_per_shard) == choose
    total = sum(shard_items)
    for shuffle in (None, Shuffle("global"), Shuffle("pooled", 8)):
        for sampling in ("balanced", "fixed"):
            order = StreamOrder([StreamShards(shard_items, choose)], shuffle=shuffle, seed=7, sampling=sampling)
            assert order.epoch_size == choose
            times = np.bincount(order.ids(np.arange(choose)), minlength=total)
            least, most = choose // total, -(-choose // total)
            assert ((times >= least) & (times <= most)).all()
            drawn = np.add.reduceat(times, np.cumsum([0, *shard_items[:-1]]))
            for items, ours, theirs in zip(shard_items, drawn.tolist(), choose_per_shard, strict=True):
                assert least * items <= ours <= most * items
                assert least * items <= theirs <= most * items
