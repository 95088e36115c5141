"""Laws of streams: everything once before anything again, exact counts, and an order that positions alone decide."""

import json
from collections import Counter
from itertools import chain

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headrace.errors import OptionError
from headrace.planning import Portion, StreamOrder, StreamShards, samples_an_epoch
from planning.composed_streams import real
from planning.stream_reference import Streams

fewer = settings(max_examples=max(25, settings.default.max_examples // 4))

shard_items = st.lists(st.integers(0, 9), min_size=1, max_size=5).map(tuple)
shuffles = st.none() | st.just(("global",)) | st.tuples(st.just("pooled"), st.integers(1, 20), st.integers(1, 4))
methods = st.sampled_from(["random", "random", "per_stream", "device_per_stream", "stratified"])


@st.composite
def orders(draw, *, fixed=None, method=methods):
    """A reference and the library's order, of an epoch that has rows."""
    shards = tuple(draw(st.lists(shard_items, min_size=1, max_size=5)))
    chosen = tuple(draw(st.integers(0, 3 * sum(items))) for items in shards)
    kind = draw(method)
    batch, devices = draw(st.tuples(st.integers(1, 5), st.integers(1, 4))) if kind != "random" else (1, 1)
    again = draw(st.booleans()) if fixed is None else fixed
    streams = Streams(shards, chosen, draw(shuffles), draw(st.integers(-(2**70), 2**70)), again, kind, batch, devices)
    assume(any(chosen))
    if streams.refused:
        with pytest.raises(OptionError, match="batch_size"):
            real(streams)
        assume(False)
    return streams, real(streams)


def epochs_of(order, number, first=0):
    """(stream, draw, id) of each row, in each of so many epochs."""
    positions = (first + np.arange(number))[:, None] * order.epoch_size + np.arange(order.epoch_size)
    return [found.tolist() for found in (*order.origins(positions), order.ids(positions))]


@fewer
@given(orders(), st.integers(0, 2**40))
def test_the_order_is_the_references_at_every_position_of_any_epoch(made, epoch):
    streams, order = made
    positions = epoch * order.epoch_size + np.arange(order.epoch_size + 1)
    assert order.ids(positions).tolist() == [streams.id(position) for position in positions.tolist()]


@given(orders(), st.data())
def test_how_positions_are_asked_for_changes_nothing(made, data):
    _, order = made
    epochs = data.draw(st.integers(0, 2**30))
    line = order.ids(epochs * order.epoch_size + np.arange(2 * order.epoch_size))
    asked = np.array(data.draw(st.lists(st.integers(0, 2 * order.epoch_size - 1), min_size=1, max_size=40)))
    assert (order.ids(epochs * order.epoch_size + asked) == line[asked]).all()
    for position in asked[:3].tolist():
        assert order.ids(np.array([epochs * order.epoch_size + position])).tolist() == [line[position]]


@given(orders(fixed=False))
def test_everything_of_a_stream_is_seen_before_anything_of_it_comes_again(made):
    streams, order = made
    of_stream = {}
    rows = [zip(*columns, strict=True) for columns in zip(*epochs_of(order, 6), strict=True)]
    for epoch in rows:
        for stream, draw, number in epoch:
            assert of_stream.setdefault(stream, {}).setdefault(draw, number) == number
    starts = np.cumsum([0, *streams.sizes]).tolist()
    for stream, by_draw in of_stream.items():
        assert sorted(by_draw) == list(range(len(by_draw)))  # draws go on without a gap or a repeat
        items = [by_draw[draw] - starts[stream] for draw in sorted(by_draw)]
        size = streams.sizes[stream]
        for begin in range(0, len(items), size):
            one_pass = items[begin : begin + size]
            assert len(set(one_pass)) == len(one_pass)
            assert set(one_pass) <= set(range(size))


@given(orders())
def test_every_epoch_has_the_rows_of_each_stream_that_it_says(made):
    streams, order = made
    assert sum(order.chosen) - order.epoch_size in range(
        streams.batch * streams.devices if streams.method == "device_per_stream" else 1
    )
    if order.epoch_size == sum(order.chosen):
        for epoch in epochs_of(order, 4)[0]:
            assert Counter(epoch) == Counter({s: rows for s, rows in enumerate(order.chosen) if rows})


@given(orders(method=st.just("random")))
def test_at_every_position_a_random_order_has_drawn_each_stream_without_a_gap(made):
    _, order = made
    streams, draws, _ = epochs_of(order, 3)
    counts = Counter()
    for stream, draw in zip(chain(*streams), chain(*draws), strict=True):
        assert draw == counts[stream]
        counts[stream] += 1


@given(orders(fixed=True, method=st.sampled_from(["random", "per_stream", "stratified"])), st.integers(0, 2**30))
def test_fixed_epochs_have_the_same_rows_near_and_far(made, epoch):
    streams, order = made
    first, again = Counter(epochs_of(order, 1)[2][0]), Counter(epochs_of(order, 1, epoch)[2][0])
    assert first == again
    if streams.shuffle is None:
        assert epochs_of(order, 1)[2] == epochs_of(order, 1, epoch)[2]
    for stream, size in enumerate(streams.sizes):
        start = sum(streams.sizes[:stream])
        times = [first[start + item] for item in range(size)]
        assert all(order.chosen[stream] // size <= count <= -(-order.chosen[stream] // size) for count in times)


@given(orders(method=st.sampled_from(["per_stream", "device_per_stream", "stratified"])))
def test_batches_are_made_as_their_method_says(made):
    streams, order = made
    rows = np.array(epochs_of(order, 3)[0]).reshape(-1, streams.batch, streams.devices)
    if streams.method == "per_stream":
        assert (rows == rows[:, :1, :1]).all()
    elif streams.method == "device_per_stream":
        assert (rows == rows[:, :1]).all()  # row i of a global batch is of device i mod devices
    else:
        expected = Counter({s: share for s, share in enumerate(streams.stratum) if share})
        assert all(Counter(batch.ravel().tolist()) == expected for batch in rows)
        total = sum(streams.chosen)
        for chosen, share in zip(streams.chosen, streams.stratum, strict=True):
            assert abs(share - chosen * streams.batch * streams.devices / total) < 1


@fewer
@given(orders(), orders())
def test_orders_with_equal_settings_are_equal(one, other):
    changed = [one[0].__class__(**{**vars_of(one[0]), name: value}) for name, value in vars_of(other[0]).items()]
    for streams in changed:
        try:
            order = real(streams)
        except (OptionError, ValueError):
            continue
        if json.dumps(dict(order.settings)) == json.dumps(dict(one[1].settings)):
            assert order.epoch_size == one[1].epoch_size
            assert epochs_of(order, 2) == epochs_of(one[1], 2)


def vars_of(streams):
    return {name: getattr(streams, name) for name in streams.__dataclass_fields__}


@fewer
@given(
    sizes=st.lists(st.integers(1, 200), min_size=1, max_size=6),
    data=st.data(),
    epoch_size=st.integers(1, 500),
)
def test_proportions_are_kept_to_the_row_from_what_was_written_to_what_is_served(sizes, data, epoch_size):
    weights = data.draw(st.lists(st.integers(0, 9), min_size=len(sizes), max_size=len(sizes)).filter(any))
    chosen = samples_an_epoch(sizes, [Portion(proportion=weight) for weight in weights], epoch_size)
    streams = [StreamShards((size,), rows) for size, rows in zip(sizes, chosen, strict=True)]
    order = StreamOrder(streams, shuffle=None, seed=7)
    assert order.epoch_size == epoch_size
    ends = np.cumsum(sizes)
    for epoch in epochs_of(order, 3)[2]:
        served = np.bincount(np.searchsorted(ends, epoch, side="right"), minlength=len(sizes))
        assert served.tolist() == chosen
        for rows, weight in zip(chosen, weights, strict=True):
            assert abs(rows - epoch_size * weight / sum(weights)) < 1
