"""Which streams share a global batch, and in which proportions."""

from collections import Counter

import numpy as np
import pytest

from headrace.errors import OptionError
from headrace.planning import Batching, Shuffle, StreamOrder, StreamShards

GLOBAL = Shuffle("global")
BOTH = pytest.mark.parametrize("shuffle", [None, GLOBAL])


def order_of(chosen, batching=None, shuffle=GLOBAL, seed=7, sampling="balanced"):
    streams = [StreamShards((40, 60), rows) for rows in chosen]
    return StreamOrder(streams, shuffle=shuffle, seed=seed, batching=batching, sampling=sampling)


def batches_of(order, size, epochs=1):
    """The stream of each row, a row a global batch."""
    streams, _ = order.origins(np.arange(epochs * order.epoch_size))
    return streams.reshape(-1, size)


def counts(streams, number):
    return np.bincount(np.ravel(streams), minlength=number).tolist()


def check_draws_go_on(order, epochs=5):
    """Each stream's draws are 0, 1, 2, ... over all epochs, each once."""
    streams, draws = order.origins(np.arange(epochs * order.epoch_size))
    for stream in set(streams.tolist()):
        of_stream = np.sort(draws[streams == stream])
        assert of_stream.tolist() == list(range(len(of_stream)))


@BOTH
def test_a_random_epoch_has_each_streams_rows_exactly_and_draws_in_order(shuffle):
    order = order_of([50, 0, 150, 7], shuffle=shuffle)
    assert (order.epoch_size, order.chosen) == (207, (50, 0, 150, 7))
    streams, draws = order.origins(np.arange(4 * 207))
    assert [counts(epoch, 4) for epoch in streams.reshape(4, 207)] == [[50, 0, 150, 7]] * 4
    for stream in (0, 2, 3):
        assert draws[streams == stream].tolist() == list(range(4 * order.chosen[stream]))


def test_without_a_shuffle_streams_come_one_after_the_other_in_every_epoch():
    streams = order_of([3, 0, 2], shuffle=None).origins(np.arange(10))[0]
    assert streams.tolist() == [0, 0, 0, 2, 2] * 2


def test_shuffled_streams_are_mixed_all_along():
    streams = order_of([500, 500]).origins(np.arange(1000))[0]
    assert all(100 < sum(part) < 156 for part in streams[:768].reshape(3, 256))
    assert 0.4 < (np.diff(streams) != 0).mean() < 0.6


def test_a_single_stream_has_its_draws_in_order_wherever_others_give_nothing():
    for chosen in ([9], [0, 9, 0]):
        streams, draws = order_of(chosen).origins(np.arange(27))
        assert draws.tolist() == list(range(27))
        assert set(streams.tolist()) == {chosen.index(9)}


@BOTH
@pytest.mark.parametrize(("batch", "devices"), [(4, 1), (4, 2), (2, 8)])
def test_per_stream_global_batches_are_of_one_stream_and_incomplete_ones_are_dropped(shuffle, batch, devices):
    size = batch * devices
    order = order_of([90, 60, 33, 0], Batching("per_stream", batch, devices), shuffle)
    assert order.chosen == tuple(rows // size * size for rows in (90, 60, 33, 0))
    assert order.epoch_size == sum(order.chosen)
    for epoch in range(3):
        streams = order.origins(epoch * order.epoch_size + np.arange(order.epoch_size))[0].reshape(-1, size)
        assert (streams == streams[:, :1]).all()
        assert counts(streams, 4) == list(order.chosen)
        if shuffle is None:
            assert streams[:, 0].tolist() == sorted(streams[:, 0].tolist())
        else:
            assert streams[:, 0].tolist() != sorted(streams[:, 0].tolist())
    check_draws_go_on(order)


@BOTH
@pytest.mark.parametrize(("batch", "devices"), [(4, 1), (4, 2), (2, 8), (5, 3)])
def test_device_batches_are_of_one_stream_and_leftover_ones_begin_the_next_epoch(shuffle, batch, devices):
    order = order_of([90, 60, 33, 0], Batching("device_per_stream", batch, devices), shuffle)
    assert order.chosen == tuple(rows // batch * batch for rows in (90, 60, 33, 0))
    assert 0 <= sum(order.chosen) - order.epoch_size < batch * devices
    round_rows = sum(order.chosen)  # as many of them as there are devices are whole global batches
    streams, draws = order.origins(np.arange(devices * round_rows))
    on_devices = streams.reshape(-1, batch, devices)
    assert (on_devices == on_devices[:, :1]).all()
    assert (np.diff(draws.reshape(-1, batch, devices), axis=1) == 1).all()
    assert counts(streams, 4) == [devices * rows for rows in order.chosen]
    check_draws_go_on(order, 12)


def test_device_batches_of_a_round_are_as_many_as_each_stream_has():
    order = order_of([90, 60, 33], Batching("device_per_stream", 4, 4), None)
    assert order.epoch_size == 176  # 45 device batches: one is left over
    streams = order.origins(np.arange(4 * 180))[0].reshape(-1, 4, 4)[:, 0].ravel()
    for begin in range(0, 180, 45):
        assert streams[begin : begin + 45].tolist() == [0] * 22 + [1] * 15 + [2] * 8


def test_leftover_device_batches_take_nothing_from_small_streams():
    order = order_of([20, 4, 4], Batching("device_per_stream", 4, 4))  # 5, 1 and 1: a global batch has 4
    assert order.epoch_size == 16
    runs = order.origins(np.arange(7 * 16))[0].reshape(-1, 4, 4)[:, 0]
    assert counts(runs, 3) == [20, 4, 4]


@BOTH
def test_stratified_global_batches_have_the_same_rows_of_each_stream(shuffle):
    for batch, devices, share, steps in ((4, 1, [2, 1, 1], 33), (4, 2, [4, 3, 1], 20), (4, 4, [8, 5, 3], 11)):
        order = order_of([90, 60, 33], Batching("stratified", batch, devices), shuffle)
        assert order.chosen == tuple(steps * rows for rows in share)
        assert order.epoch_size == steps * batch * devices
        rows = batches_of(order, batch * devices, 3)
        assert [counts(row, 3) for row in rows] == [share] * (3 * steps)
        in_turn = all(row.tolist() == sorted(row.tolist()) for row in rows)
        assert in_turn == (shuffle is None)
        check_draws_go_on(order)


def test_stratified_slots_are_permuted_anew_in_every_step_and_so_over_devices():
    order = order_of([60, 30, 30], Batching("stratified", 4, 4))
    rows = batches_of(order, 16, 40)
    assert len(set(map(tuple, rows.tolist()))) > 200
    firsts = Counter(rows[:, 0].tolist())
    assert firsts[0] > firsts[1] > len(rows) / 6


def test_a_stream_that_gives_nothing_is_in_no_batch():
    order = order_of([60, 0, 20], Batching("stratified", 4, 1))
    assert order.chosen == (60, 0, 20)
    assert order_of([0, 0], Batching("stratified", 4, 1)).epoch_size == 0


@pytest.mark.parametrize("devices", [1, 2, 8])
def test_a_batch_without_a_row_of_some_stream_is_refused_with_the_batch_size_that_would_do(devices):
    chosen = [900, 596, 4]
    with pytest.raises(OptionError, match=r"stream 2, which gives 4 of 1500 rows") as refused:
        order_of(chosen, Batching("stratified", 4, devices))
    enough = int(str(refused.value).split("at least ")[1].split(",")[0])
    assert enough == -(-375 // devices)
    for more in (*range(enough, enough + 30), 1500 // devices):
        assert order_of(chosen, Batching("stratified", more, devices)).epoch_size


def test_a_batch_size_that_an_epoch_cannot_fill_is_not_advised():
    with pytest.raises(OptionError, match="expected another, so that stream 2, which gives 1 of 151 rows"):
        order_of([90, 60, 1], Batching("stratified", 4, 2))


@BOTH
@pytest.mark.parametrize(("method", "rows"), [("per_stream", 12), ("device_per_stream", 4)])
def test_a_stream_that_would_never_fill_a_batch_is_refused_since_none_of_it_would_ever_come(method, rows, shuffle):
    batching = Batching(method, 4, 3)
    assert order_of([90, rows], batching, shuffle).chosen[1] == rows
    with pytest.raises(OptionError, match=rf"batch_size=4 .* stream 1, which gives {rows - 1} rows .* {rows} rows"):
        order_of([90, rows - 1], batching, shuffle)
    order_of([90, 0], batching, shuffle)


@pytest.mark.parametrize(
    ("method", "chosen"),
    [("per_stream", [5]), ("device_per_stream", [4, 7]), ("stratified", [6, 5]), ("stratified", [1])],
)
def test_an_epoch_that_would_have_no_batch_is_refused(method, chosen):
    for batch in (4, 2**62):
        with pytest.raises(OptionError, match=f"batch_size={batch}"):
            order_of(chosen, Batching(method, batch, 3))


@pytest.mark.parametrize("method", ["per_stream", "device_per_stream", "stratified"])
def test_methods_of_whole_batches_need_the_batch_size(method):
    with pytest.raises(OptionError, match=rf"batch_size=None .* batching_method='{method}'"):
        Batching(method)
    for given in ((0, 1), (1, 0), (-4, 1)):
        with pytest.raises(OptionError, match="at least 1"):
            Batching(method, *given)
    for given in ((1.5, 1), (True, 1), (4, "2")):
        with pytest.raises(TypeError, match="whole number"):
            Batching(method, *given)


def test_an_unknown_method_is_refused():
    with pytest.raises(OptionError, match=r"batching_method='mixed' .* random, per_stream, device_per_stream"):
        Batching("mixed")


@pytest.mark.parametrize("method", ["per_stream", "device_per_stream", "stratified"])
@pytest.mark.parametrize("shuffle", [None, GLOBAL])
def test_fixed_rows_of_whole_batches_are_the_same_as_often_in_every_round(method, shuffle):
    order = order_of([90, 60, 33], Batching(method, 4, 2), shuffle, sampling="fixed")
    total = sum(order.chosen)
    ids = order.ids(np.arange(8 * order.epoch_size))
    streams, draws = order.origins(np.arange(8 * order.epoch_size))
    for stream, rows in enumerate(order.chosen):
        by_draw = ids[streams == stream][np.argsort(draws[streams == stream])]
        rounds = by_draw[: len(by_draw) // rows * rows].reshape(-1, rows)
        assert len({tuple(sorted(round_.tolist())) for round_ in rounds}) == 1
    assert total - order.epoch_size < 8
