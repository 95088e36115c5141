"""The order of streams: positions to global ids, what it refuses, what it says of itself, and how large it gets."""

import copy
import json
import pickle
import time
import tracemalloc
from itertools import product

import numpy as np
import pytest

from headrace.errors import OptionError
from headrace.planning import Batching, Cursor, Shuffle, StreamOrder, StreamShards, encode_state
from planning.composed_streams import real
from planning.stream_reference import Streams

SHARDS = ((3, 4, 3), (5,), (2, 0, 2, 9))
SHUFFLES = [None, ("global",), ("pooled", 4, 2)]
METHODS = [("random", 1, 1), ("per_stream", 2, 2), ("device_per_stream", 2, 3), ("stratified", 3, 2)]


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("fixed", [False, True])
def test_small_orders_are_the_reference_at_every_position_near_and_far(shuffle, method, fixed):
    for chosen in product((0, 3, 12), (0, 4, 9), (5, 20)):
        streams = Streams(SHARDS, chosen, shuffle, 7, fixed, *method)
        if streams.refused:
            with pytest.raises(OptionError, match="batch_size"):
                real(streams)
            continue
        order = real(streams)
        assert (order.epoch_size, list(order.chosen)) == (streams.epoch_size, streams.kept)
        if order.epoch_size:
            for first in (0, 10**12 + 3):
                positions = first + np.arange(2 * order.epoch_size + 3)
                assert order.ids(positions).tolist() == [streams.id(position) for position in positions.tolist()]
                found = np.stack(order.origins(positions), axis=1).tolist()
                assert found == [list(streams.origin(position)) for position in positions.tolist()]


def test_ids_of_a_stream_begin_behind_those_of_the_streams_before():
    order = StreamOrder([StreamShards(shards, sum(shards)) for shards in SHARDS], shuffle=None, seed=7)
    assert order.ids(np.arange(28)).tolist() == list(range(28))


def test_positions_come_in_any_shape_and_any_order_and_as_often_as_asked():
    order = StreamOrder([StreamShards(shards, 9) for shards in SHARDS], shuffle=Shuffle("pooled", 4), seed=7)
    line = order.ids(np.arange(60))
    table = np.random.default_rng(3).integers(0, 60, (4, 5, 3))
    assert (order.ids(table) == line[table]).all()
    assert order.ids(np.array(7)).shape == ()
    assert order.ids(np.arange(9, dtype=np.uint8)).tolist() == line[:9].tolist()
    assert order.ids(np.empty((0, 3), np.int64)).shape == (0, 3)
    assert [part.shape for part in order.origins(table)] == [(4, 5, 3)] * 2
    assert (order.ids(np.arange(60)[::-3]) == line[::-3]).all()


@pytest.mark.parametrize("shuffle", [None, Shuffle("global"), Shuffle("pooled", 4, 2)])
@pytest.mark.parametrize("method", METHODS)
def test_positions_up_to_two_to_the_sixty_second_are_there_and_none_behind(shuffle, method):
    streams = [StreamShards(shards, rows) for shards, rows in zip(SHARDS, (20, 12, 9), strict=True)]
    for sampling in ("balanced", "fixed"):
        order = StreamOrder(streams, shuffle=shuffle, seed=7, sampling=sampling, batching=Batching(*method))
        last = 2**62 - 100
        ids = order.ids(np.arange(last - 50, last))
        assert ((ids >= 0) & (ids < 28)).all()
        for beyond in (2**62, 2**63 - 1):
            with pytest.raises(IndexError, match=r"2\*\*62"):
                order.ids(np.array([0, beyond]))


def test_positions_that_are_none_are_refused():
    order = StreamOrder([StreamShards((5,), 5)], shuffle=None, seed=7)
    with pytest.raises(IndexError, match="position -1 is outside"):
        order.ids(np.array([3, -1]))
    for positions in (np.array([1.5]), np.array([True])):
        with pytest.raises(TypeError, match="positions must be integers"):
            order.ids(positions)


@pytest.mark.parametrize("batching", [None, *(Batching(*method) for method in METHODS)])
@pytest.mark.parametrize("streams", [[], [StreamShards((), 0)], [StreamShards((0, 0), 0), StreamShards((5,), 0)]])
def test_an_order_without_rows_has_no_positions(batching, streams):
    for shuffle in (None, Shuffle("global"), Shuffle("pooled")):
        order = StreamOrder(streams, shuffle=shuffle, seed=7, batching=batching)
        assert (order.epoch_size, sum(order.chosen)) == (0, 0)
        assert order.ids(np.empty(0, np.int64)).tolist() == []
        with pytest.raises(IndexError, match="an order of 0 rows"):
            order.ids(np.array([0]))
        assert json.dumps(dict(order.settings))


def test_streams_that_cannot_be_are_refused_by_number():
    good = StreamShards((5,), 5)
    for bad, named in (
        (StreamShards((0,), 3), r"streams\[1\].chosen=3 .* no samples"),
        (StreamShards((5,), -1), r"streams\[1\].chosen=-1 .* at least 0"),
        (StreamShards((5, -1), 1), r"streams\[1\].shard_items"),
        (StreamShards(np.ones((2, 2), int), 1), r"streams\[1\].shard_items"),
        (StreamShards((5,), 2**61), "2\\*\\*60"),
    ):
        with pytest.raises(OptionError, match=named):
            StreamOrder([good, bad], shuffle=None, seed=7)
    with pytest.raises(OptionError, match="sampling_method='random'"):
        StreamOrder([good], shuffle=None, seed=7, sampling="random")


def variants():
    """Orders of which no two are alike."""
    for shuffle, sampling, method in product(
        (None, Shuffle("global"), Shuffle("pooled", 4), Shuffle("pooled", 4, 2), Shuffle("pooled", 3)),
        ("balanced", "fixed"),
        (*METHODS, ("per_stream", 2, 1), ("stratified", 6, 2)),
    ):
        for seed, chosen in ((7, (20, 12, 9)), (8, (20, 12, 9)), (7, (20, 13, 9))):
            streams = [StreamShards(shards, rows) for shards, rows in zip(SHARDS, chosen, strict=True)]
            yield StreamOrder(streams, shuffle=shuffle, seed=seed, sampling=sampling, batching=Batching(*method))


def test_whatever_decides_the_order_is_in_its_settings():
    seen = {}
    for order in variants():
        text = json.dumps(dict(order.settings), sort_keys=True)
        assert text not in seen
        seen[text] = order
    shards = [[(3, 4, 3)], [(4, 3, 3)], [(3, 4, 2)], [(3, 4, 3), (5,)], [(3, 4), (3, 5)]]
    orders = [
        StreamOrder([StreamShards(items, 5) for items in each], shuffle=Shuffle("pooled", 4), seed=7) for each in shards
    ]
    assert len({json.dumps(dict(order.settings)) for order in orders}) == len(shards)


def test_settings_are_readable_small_and_without_devices_where_these_do_not_matter():
    streams = [StreamShards(shards, rows) for shards, rows in zip(SHARDS, (20, 12, 9), strict=True)]
    plain = StreamOrder(streams, shuffle=None, seed=7, batching=Batching("random", 64, 8))
    assert plain.settings == {
        "shuffle": "off",
        "seed": 7,
        "order_version": 1,
        "sampling": "balanced",
        "batching": "random",
        "sizes": "10,5,13",
        "chosen": "20,12,9",
    }
    batches = Batching("stratified", 3, 2)
    pooled = StreamOrder(streams, shuffle=Shuffle("pooled", 4, 2), seed=7, sampling="fixed", batching=batches)
    named = {key: value for key, value in pooled.settings.items() if key not in plain.settings}
    assert named == {
        "pool_items": 4,
        "lanes": 2,
        "shards": "5889d4e759993db520337ff756ac0ba2",
        "global_batch_size": 6,
    }
    for method in ("stratified", "per_stream"):
        of = [StreamOrder(streams, shuffle=None, seed=7, batching=Batching(method, 6 // n, n)) for n in (1, 2, 6)]
        assert of[0].settings == of[1].settings == of[2].settings
        assert len({tuple(order.ids(np.arange(50)).tolist()) for order in of}) == 1
    on_devices = StreamOrder(streams, shuffle=None, seed=7, batching=Batching("device_per_stream", 3, 2))
    assert {"batch_size": 3, "devices": 2}.items() <= on_devices.settings.items()
    many = StreamOrder([StreamShards((10**9,) * 50, 10**9)] * 5000, shuffle=Shuffle("pooled"), seed=7)
    assert len(json.dumps(encode_state(Cursor(3, 4096), many.settings))) < 800


@pytest.mark.parametrize("shuffle", [None, Shuffle("global"), Shuffle("pooled", 4, 2)])
def test_an_order_is_copied_and_pickled_small_before_and_after_use(shuffle):
    order = StreamOrder([StreamShards(shards, 9) for shards in SHARDS], shuffle=shuffle, seed=7, sampling="fixed")
    fresh = pickle.dumps(order)
    ids = order.ids(np.arange(100))
    for twin in (pickle.loads(fresh), pickle.loads(pickle.dumps(order)), copy.deepcopy(order), copy.copy(order)):
        assert (twin.ids(np.arange(100)) == ids).all()
        assert twin.settings == order.settings
    assert len(pickle.dumps(order)) == len(fresh)
    assert "3 streams" in repr(order)


def test_whatever_shards_are_given_as_makes_one_order():
    made = [
        StreamOrder([StreamShards(kind((3, 4, 3)), 7)], shuffle=Shuffle("pooled", 4), seed=np.int64(7))
        for kind in (tuple, list, np.array, lambda items: np.array(items, np.int32))
    ]
    assert len({tuple(order.ids(np.arange(30)).tolist()) for order in made}) == 1
    assert len({json.dumps(dict(order.settings)) for order in made}) == 1


@pytest.mark.parametrize("shuffle", [None, Shuffle("global"), Shuffle("pooled", 1 << 18, 8)])
@pytest.mark.parametrize("method", ["random", "per_stream", "device_per_stream", "stratified"])
def test_a_trillion_samples_cost_no_more_than_a_thousand(shuffle, method):
    tracemalloc.start()
    start_s = time.process_time()
    streams = [StreamShards((10**9,) * 700, 5 * 10**11), StreamShards((10**9,) * 200, 3 * 10**11)]
    order = StreamOrder(streams, shuffle=shuffle, seed=7, batching=Batching(method, 8, 8))
    for first in (0, 10**12, 10**15):
        assert len(set(order.ids(first + np.arange(4096)).tolist())) == 4096
    took_s, (_, peak_bytes) = time.process_time() - start_s, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 8e6
    assert took_s < 5


def test_a_thousand_streams_are_dealt_together():
    rng = np.random.default_rng(3)
    streams = [StreamShards((1000,) * int(shards), int(shards) * 1000) for shards in rng.integers(1, 90, 1000)]
    order = StreamOrder(streams, shuffle=Shuffle("pooled"), seed=7)
    order.ids(np.arange(4096))
    best_s = 1e9
    for number in range(1, 6):
        start_s = time.process_time()
        order.ids(number * 4096 + np.arange(4096))
        best_s = min(best_s, time.process_time() - start_s)
    assert best_s < 0.1  # about 8 ms; one by one it would be 60
