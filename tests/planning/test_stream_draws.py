"""Which item each draw of a stream is: everything once a pass, and without a shuffle in stored order."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from headrace.errors import OptionError
from headrace.planning import Shuffle, StreamOrder, StreamShards, shuffled
from headrace.planning.permutation import derive_seed
from headrace.planning.pools import PooledShuffle
from headrace.planning.stream_draws import stored_order
from planning.stream_reference import stored_pass

SHUFFLES = [None, Shuffle("global"), Shuffle("pooled", 4, 2)]


def one(shards, chosen, shuffle, sampling="balanced", seed=7):
    return StreamOrder([StreamShards(shards, chosen)], shuffle=shuffle, seed=seed, sampling=sampling)


def stored(n, chosen, draws, seed=7):
    return stored_order(np.asarray(draws, np.int64), n, chosen, seed).tolist()


@pytest.mark.parametrize("n", range(1, 14))
def test_stored_orders_of_all_small_sizes_are_the_reference_and_have_everything_once_a_pass(n):
    for chosen in range(1, 2 * n + 2):
        draws = stored(n, chosen, range(3 * n))
        assert draws == [item for number in range(3) for item in stored_pass(n, chosen, 7, number)]
        assert all(sorted(draws[begin : begin + n]) == list(range(n)) for begin in range(0, 3 * n, n))


@pytest.mark.parametrize("n", range(1, 40))
def test_an_epoch_of_a_stored_order_rises_and_begins_anew_twice_at_most(n):
    for chosen in range(1, n + 1):
        draws = stored(n, chosen, range(4 * n * chosen))
        for begin in range(0, len(draws), chosen):
            epoch = draws[begin : begin + chosen]
            falls = sum(b < a for a, b in pairwise(epoch))
            assert falls <= (0 if begin == 0 or n % chosen == 0 else 2)
            if begin == 0 or n % chosen == 0:
                assert [item // n if chosen == 1 else _row(item, n, chosen) for item in epoch] == list(range(chosen))


def _row(item, n, chosen):
    """Which of the rows of neighbours an item is in: they are as long as one another to within one."""
    return next(row for row in range(chosen) if row * n // chosen <= item < (row + 1) * n // chosen)


def test_all_items_or_whole_rounds_of_them_are_the_stored_order_again_and_again():
    for chosen in (7, 14, 9, 700):
        assert stored(7, chosen, range(30)) == [draw % 7 for draw in range(30)]


@pytest.mark.parametrize("width", [2, 3, 5, 8])
def test_each_neighbour_is_as_likely_as_the_others_in_every_column_and_pass(width):
    rows = 40_000
    for number in (0, 3):
        columns = np.array(stored(rows * width, rows, number * rows * width + np.arange(rows * width)))
        for column in columns.reshape(width, rows) % width:
            counts = np.bincount(column, minlength=width)
            assert ((counts - rows / width) ** 2 / (rows / width)).sum() < width + 4 * (2 * width) ** 0.5 + 4


def test_passes_seeds_and_streams_have_columns_of_their_own():
    firsts = {tuple(stored(60, 20, 60 * number + np.arange(20), seed)) for number in range(5) for seed in range(5)}
    assert len(firsts) == 25
    order = StreamOrder([StreamShards((60,), 20)] * 2, shuffle=None, seed=7)
    ids = order.ids(np.arange(40))
    assert (ids[:20] != ids[20:] - 60).any()


@pytest.mark.parametrize("chosen", [3 * 10**11 + 7, 10**12 - 1, 5 * 10**11, 10**11])
def test_stored_orders_of_numbers_that_leave_64_bits_are_right(chosen):
    n = 10**12
    first = stored(n, chosen, range(1000))
    assert [_starts(item, n, chosen) for item in first] == list(range(1000))
    middle = n // 2 // chosen * chosen  # a column begins there
    assert [_starts(item, n, chosen) for item in stored(n, chosen, range(middle, middle + 1000))] == list(range(1000))
    last = stored(n, chosen, range(n - 1000, n))
    assert last == sorted(last)
    if n % chosen:
        short = n // chosen * chosen
        rows = [_starts(item, n, chosen) for item in stored(n, chosen, range(short, min(n, short + 1000)))]
        longer = n % chosen  # rows have one item more
        assert [row * longer // chosen for row in rows] == list(range(len(rows)))
        assert [(row + 1) * longer // chosen for row in rows] == list(range(1, len(rows) + 1))


def _starts(item, n, chosen):
    row = item * chosen // n
    while (row + 1) * n // chosen <= item:
        row += 1
    return row


def test_shuffled_streams_are_the_shuffles_of_views():
    draws = np.arange(50)
    seed = derive_seed(7, "stream", 0)
    assert (one((5, 5, 10), 20, Shuffle("global")).ids(draws) == shuffled(draws, 20, seed) % 20).all()
    pooled = PooledShuffle(np.array([5, 5, 10]), 8, 3, seed)
    assert (one((5, 5, 10), 20, Shuffle("pooled", 8, 3)).ids(draws) == pooled(draws) % 20).all()


def test_a_stream_that_fits_into_a_pool_is_shuffled_globally():
    draws = np.arange(50)
    everything = one((5, 5, 10), 20, Shuffle("global")).ids(draws)
    assert (one((5, 5, 10), 20, Shuffle("pooled", 20, 3)).ids(draws) == everything).all()
    assert (one((5, 5, 10), 20, Shuffle("pooled", 19, 3)).ids(draws) != everything).any()


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("chosen", [1, 4, 7, 10, 13, 20, 25])
def test_fixed_epochs_have_the_rows_of_the_first_balanced_one(shuffle, chosen):
    shards = (3, 4, 0, 3)
    rows = Counter(one(shards, chosen, shuffle).ids(np.arange(chosen)).tolist())
    epochs = one(shards, chosen, shuffle, "fixed").ids(np.arange(6 * chosen)).reshape(6, chosen).tolist()
    assert all(Counter(epoch) == rows for epoch in epochs)
    assert max(rows.values()) - (min(rows.values()) if len(rows) == 10 else 0) <= 1
    if shuffle is None:
        assert len(set(map(tuple, epochs))) == 1
        assert chosen > 10 or epochs[0] == sorted(epochs[0])
    elif chosen >= 7:
        assert len(set(map(tuple, epochs))) > 1


def test_fixed_pools_stay_together():
    shards, chosen = (10,) * 100, 400
    order = one(shards, chosen, Shuffle("pooled", 50, 2), "fixed")
    for epoch in range(3):
        homes = order.ids(epoch * chosen + np.arange(chosen)) // 10
        assert [len(set(part.tolist())) <= 14 for part in homes.reshape(4, 100)] == [True] * 4


def test_streams_pooled_and_global_stand_side_by_side():
    streams = [StreamShards((3, 3), 6), StreamShards((9, 8, 9), 26), StreamShards((2,), 4), StreamShards((9, 9), 18)]
    order = StreamOrder(streams, shuffle=Shuffle("pooled", 8, 2), seed=7)
    positions = np.arange(5 * order.epoch_size)
    origins = np.stack(order.origins(positions), axis=1).tolist()
    alone = [
        StreamOrder([StreamShards((0,), 0)] * s + [stream], shuffle=Shuffle("pooled", 8, 2), seed=7)
        for s, stream in enumerate(streams)
    ]
    starts = [0, 6, 32, 34]
    expected = [starts[stream] + int(alone[stream].ids(np.array([draw]))[0]) for stream, draw in origins]
    assert order.ids(positions).tolist() == expected


def test_shuffles_that_are_none_are_refused():
    for given, named in ((("py1e",), "shuffle='py1e'"), (("pooled", 0), "pool_items=0"), (("pooled", 1, 0), "lanes=0")):
        with pytest.raises(OptionError, match=named):
            Shuffle(*given)
    for given in (("pooled", 1.5), ("pooled", True), ("pooled", 1, "2")):
        with pytest.raises(TypeError, match="whole number"):
            Shuffle(*given)
