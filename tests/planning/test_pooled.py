"""A pooled shuffle: each item once an epoch, few shards at a time, any position alone."""

import pickle
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import OptionError
from headrace.planning.pools import PooledShuffle
from planning import reference

LAYOUTS = [
    [1],
    [7],
    [10, 10, 10],
    [3, 0, 5, 0, 0, 2],
    [10, 10, 50],
    [1] * 30,
    [1200, 1300, 1100],  # pools that are networks, and lanes that are
]


@st.composite
def shuffles(draw):
    shards = draw(st.lists(st.integers(0, 12), min_size=1, max_size=9).filter(sum))
    return shards, draw(st.integers(1, 40)), draw(st.integers(1, 9)), draw(st.integers(-(2**70), 2**70))


@given(shuffles(), st.integers(0, 2**40))
def test_each_epoch_has_every_item_once_is_undone_and_equals_the_reference(shuffle, epoch):
    shards, pool_items, lanes, seed = shuffle
    made = PooledShuffle(np.array(shards), pool_items, lanes, seed)
    total = sum(shards)
    positions = epoch * total + np.arange(total)
    items = made(positions)
    assert np.sort(items).tolist() == positions.tolist()
    assert (made.inverse(items) == positions).all()
    assert (items - epoch * total).tolist() == list(
        reference.pooled_epoch(tuple(shards), pool_items, lanes, seed, epoch)
    )


@pytest.mark.parametrize("shards", LAYOUTS)
@pytest.mark.parametrize(("pool_items", "lanes"), [(1, 1), (4, 1), (4, 2), (1000, 1), (1500, 2), (25, 4), (25, 200)])
def test_any_positions_of_any_epochs_are_as_the_reference_has_them_alone_and_among_others(shards, pool_items, lanes):
    made = PooledShuffle(np.array(shards), pool_items, lanes, 7)
    positions = np.random.default_rng(3).integers(0, 6 * sum(shards), 40)
    expected = [reference.pooled(position, shards, pool_items, lanes, 7) for position in positions.tolist()]
    assert made(positions).tolist() == expected
    assert [int(made(np.array([position]))[0]) for position in positions.tolist()] == expected
    assert made.inverse(np.array(expected)).tolist() == positions.tolist()
    assert made(positions.reshape(8, 5)).tolist() == np.array(expected).reshape(8, 5).tolist()


def test_epochs_seeds_and_lanes_have_orders_of_their_own():
    shards = np.full(10, 10)
    orders = {
        tuple((PooledShuffle(shards, 30, lanes, seed)(np.arange(100) + e * 100) % 100).tolist())
        for seed in range(3)
        for e in range(3)
        for lanes in (1, 2, 4)
    }
    assert len(orders) == 27


def test_a_pool_of_everything_in_one_lane_is_a_shuffle_of_everything():
    items = PooledShuffle(np.full(8, 250), 2000, 1, 7)(np.arange(2000))
    first = items[:100]
    assert len(set((first // 250).tolist())) == 8


def test_items_of_a_pool_come_from_neighbouring_shards_of_the_order_and_a_shard_from_two_pools_at_most():
    shards = np.full(40, 25)
    items = PooledShuffle(shards, 100, 1, 7)(np.arange(1000))
    homes = (items // 25).reshape(10, 100)
    assert [len(set(pool.tolist())) for pool in homes] == [4] * 10
    assert len({int(shard) for pool in homes for shard in set(pool.tolist())}) == 40
    crooked = (PooledShuffle(shards, 90, 1, 7)(np.arange(1000)) // 25).tolist()
    pools = [set(crooked[begin : begin + 90]) for begin in range(0, 1000, 90)]
    assert all(len(pool) <= 5 for pool in pools)
    assert max(sum(shard in pool for pool in pools) for shard in range(40)) == 2


def test_shards_of_a_pool_are_not_neighbours_in_storage():
    items = PooledShuffle(np.full(1000, 10), 40, 1, 7)(np.arange(10_000))
    homes = (items // 10).reshape(250, 40)
    steps = [step for pool in homes for step in np.diff(sorted(set(pool.tolist()))).tolist()]
    assert np.median(steps) > 100


@pytest.mark.parametrize("shards", [[25] * 48, list(range(10, 58)), [10, 10, 500, 3, 3, 3, 90, 7]])
@pytest.mark.parametrize(("lanes", "world_size"), [(8, 8), (8, 4), (8, 2), (4, 4), (12, 3)])
def test_a_rank_reads_the_shards_of_its_own_lanes_only(shards, lanes, world_size):
    made = PooledShuffle(np.array(shards), 50, lanes, 7)
    total = sum(shards)
    ends = np.cumsum(shards)
    for epoch in (0, 1):
        homes = np.searchsorted(ends, made(np.arange(total) + epoch * total) - epoch * total, side="right")
        readers = [set(homes[rank::world_size].tolist()) for rank in range(world_size)]
        shared = sum(len(reader) for reader in readers) - len({int(home) for home in homes})
        # A shard on the border of two lanes is read by both; where lanes end with shards, each has one reader.
        assert shared <= lanes - 1
        if len(set(shards)) == 1 and len(shards) % lanes == 0:
            assert shared == 0


@pytest.mark.parametrize("lanes", [1, 3, 4])
def test_lane_by_lane_an_epoch_is_the_permuted_shards_cut_into_parts_that_differ_by_one_item_at_most(lanes):
    shards = [10, 10, 50, 1]
    order = PooledShuffle(np.array(shards), 1, lanes, 7)(np.arange(71))  # pools of one item leave it where it is
    parts = [order[lane::lanes] for lane in range(lanes)]
    assert {len(part) for part in parts} <= {71 // lanes, -(-71 // lanes)}
    queue = np.concatenate(parts)
    homes = np.searchsorted(np.cumsum(shards), queue, side="right")
    assert (np.diff(homes) != 0).sum() == len(shards) - 1
    assert (np.diff(queue)[np.diff(homes) == 0] == 1).all()


def test_no_items_have_no_positions():
    for shards in ([], [0, 0]):
        made = PooledShuffle(np.array(shards, np.int64), 5, 2, 7)
        assert made(np.empty(0, np.int64)).tolist() == []
        with pytest.raises(IndexError, match="outside an order of 0 items"):
            made(np.array([0]))


def test_positions_without_an_item_and_impossible_pools_are_refused():
    made = PooledShuffle(np.array([5, 5]), 5, 2, 7)
    for direction in (made, made.inverse):
        with pytest.raises(IndexError, match="outside an order"):
            direction(np.array([-1]))
        with pytest.raises(TypeError, match="float64"):
            direction(np.array([1.5]))
        with pytest.raises(IndexError, match="does not end below"):
            direction(np.array([2**63 - 1]))
    with pytest.raises(OptionError, match="pool_items"):
        PooledShuffle(np.array([5]), 0, 1, 7)
    with pytest.raises(OptionError, match="lanes"):
        PooledShuffle(np.array([5]), 1, 0, 7)


def test_it_pickles_as_its_configuration():
    made = PooledShuffle(np.array([5, 5, 9]), 5, 2, 7)
    positions = np.arange(57)
    expected = made(positions)
    assert (pickle.loads(pickle.dumps(made))(positions) == expected).all()


def test_a_trillion_items_in_a_hundred_thousand_shards_are_found_at_once():
    shards = np.full(10**5, 10**7)
    begin = time.process_time()
    made = PooledShuffle(shards, 4 * 10**7, 64, 7)
    positions = 3 * 10**12 + 5 * 10**11 + np.arange(4096)
    items = made(positions)
    assert time.process_time() - begin < 0.5
    assert (made.inverse(items) == positions).all()
    assert len(set((items // 10**7).tolist())) <= 64 * 5
