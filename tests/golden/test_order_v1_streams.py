"""Law 10 for streams: a published order never changes. Do not touch order_v1_streams.json."""

import json

import numpy as np

from headrace.planning import Cursor, StreamOrder, StreamShards, decode_state, encode_state
from planning import golden_order, golden_streams
from planning.composed_streams import real


def made(streams):
    order = real(streams)
    assert order.epoch_size == streams.epoch_size
    return lambda positions: order.ids(np.array(positions)).tolist(), dict(order.settings)


def test_streams_give_the_golden_orders_and_settings():
    golden = json.loads(golden_streams.FILE.read_text(encoding="utf-8"))
    assert json.loads(json.dumps(golden_streams.document(made))) == golden


def test_the_reference_gives_the_golden_orders_of_streams_byte_for_byte():
    assert golden_order.text_of(golden_streams.from_reference()) == golden_streams.FILE.read_text(encoding="utf-8")


def test_a_saved_state_of_a_thousand_streams_loads_for_good():
    streams = [StreamShards((9,) * (s % 3 + 1), s % 7) for s in range(1000)]
    settings = {
        "shuffle": "off",
        "seed": 7,
        "order_version": 1,
        "sampling": "balanced",
        "batching": "random",
        "sizes": "1000:e63b3c9e7a800e4df74fe3178d6382f9",
        "chosen": "1000:34dd51ad93dac88570a553876e695be6",
    }
    order = StreamOrder(streams, shuffle=None, seed=7)
    assert decode_state(encode_state(Cursor(3, 5), settings), order.settings) == Cursor(3, 5)
