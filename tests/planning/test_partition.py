"""Dealing: every row of a global batch to one rank, the same number of steps for all, whatever the sizes; shards."""

import itertools

import numpy as np
import pytest

from headrace.errors import OrderError
from headrace.planning import Cursor, check_division, rank_positions, shard_length, shard_positions, steps_left
from planning import reference
from planning.fleet import Fleet, epoch_order, run, whole

SIZES = [1, 7, 8, 9, 64, 100, 101]
WORLDS = [1, 2, 3, 4, 8]
LOCAL_BATCHES = [1, 4, 7]


def dealt(position, num_steps, world_size, *, num_rows, global_batch_size):
    """What each rank gets, a list of rows a step, by the library."""
    ranks = []
    for rank in range(world_size):
        rows, offsets = rank_positions(
            position,
            num_steps,
            num_rows=num_rows,
            global_batch_size=global_batch_size,
            rank=rank,
            world_size=world_size,
        )
        assert rows.dtype == offsets.dtype == np.int64
        assert offsets.shape == (num_steps + 1,)
        assert offsets[0] == 0
        assert offsets[-1] == len(rows)
        ranks.append([rows[offsets[k] : offsets[k + 1]].tolist() for k in range(num_steps)])
    return ranks


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("num_rows", SIZES)
def test_every_grid_cell_is_dealt_as_the_reference_deals_it(num_rows, drop_last):
    for world_size, local in itertools.product(WORLDS, LOCAL_BATCHES):
        size = world_size * local
        for position in {0, min(size, num_rows), num_rows // 2, num_rows - 1, num_rows}:
            batches = reference.global_batches(num_rows, position, size, drop_last)
            assert steps_left(num_rows, position, size, drop_last) == len(batches)
            ranks = dealt(position, len(batches), world_size, num_rows=num_rows, global_batch_size=size)
            for step, batch in enumerate(batches):
                assert [ranks[rank][step] for rank in range(world_size)] == reference.dealt(batch, world_size)


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("num_rows", SIZES)
def test_without_dropping_every_id_comes_once_and_all_ranks_step_together(num_rows, seed):
    for world_size, local in itertools.product(WORLDS, LOCAL_BATCHES):
        fleet = Fleet(num_rows, world_size * local, world_size, seed, drop_last=False)
        steps = fleet.steps_left
        per_rank = [fleet.ids(rank, steps) for rank in range(world_size)]
        assert all(len(batches) == steps for batches in per_rank)
        ids = [one for batches in per_rank for batch in batches for one in batch]
        assert sorted(ids) == list(range(num_rows))
        assert all(len(batch) == local for batches in per_rank for batch in batches[:-1])
        shares = [len(batches[-1]) for batches in per_rank]
        assert sum(shares) == num_rows - (steps - 1) * world_size * local
        assert sorted(shares, reverse=True) == shares, "the last rows are dealt from rank 0 on"
        assert shares[0] - shares[-1] <= 1


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("num_rows", SIZES)
def test_with_dropping_all_batches_are_full_and_fewer_ids_than_one_global_batch_are_missing(num_rows, seed):
    for world_size, local in itertools.product(WORLDS, LOCAL_BATCHES):
        fleet = Fleet(num_rows, world_size * local, world_size, seed, drop_last=True)
        steps = fleet.steps_left
        per_rank = [fleet.ids(rank, steps) for rank in range(world_size)]
        assert all(len(batch) == local for batches in per_rank for batch in batches)
        ids = [one for batches in per_rank for batch in batches for one in batch]
        assert len(set(ids)) == len(ids) == steps * world_size * local
        assert 0 <= num_rows - len(ids) < world_size * local


def test_the_number_of_steps_is_a_quotient_rounded_down_or_up():
    assert steps_left(100, 0, 4, drop_last=True) == 25
    assert steps_left(50, 0, 8, drop_last=False) == 7
    assert steps_left(50, 0, 8, drop_last=True) == 6
    assert steps_left(50, 48, 8, drop_last=True) == 0
    assert steps_left(50, 48, 8, drop_last=False) == 1
    assert steps_left(50, 56, 8, drop_last=False) == 0  # behind the end, as after a short last batch
    assert steps_left(50, 500, 8, drop_last=False) == steps_left(50, 500, 8, drop_last=True) == 0
    assert steps_left(0, 0, 8, drop_last=False) == 0
    assert steps_left(2**62, 0, 1, drop_last=True) == 2**62


def test_a_rank_without_rows_in_a_short_last_batch_gets_an_empty_one():
    assert dealt(8, 1, 4, num_rows=10, global_batch_size=8) == [[[8]], [[9]], [[]], [[]]]


def test_steps_behind_the_end_are_empty_and_none_are_none():
    assert dealt(0, 4, 2, num_rows=5, global_batch_size=4) == [[[0, 2], [4], [], []], [[1, 3], [], [], []]]
    assert dealt(0, 0, 2, num_rows=5, global_batch_size=4) == [[], []]


def test_one_call_for_many_steps_is_the_same_as_a_call_for_each():
    many = dealt(12, 9, 3, num_rows=70, global_batch_size=6)
    single = [dealt(12 + 6 * k, 1, 3, num_rows=70, global_batch_size=6) for k in range(9)]
    assert many == [[single[k][rank][0] for k in range(9)] for rank in range(3)]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 6, 8])
def test_global_batches_are_the_same_for_every_world_size(world_size):
    fleet = Fleet(103, 24, world_size, drop_last=False)
    order = epoch_order(103, 7, 0)
    assert run(fleet, 5) == [order[start : start + 24] for start in range(0, 103, 24)]


def test_dealing_takes_memory_for_this_rank_s_rows_only():
    rows, _ = rank_positions(0, 1, num_rows=2**62, global_batch_size=2**40, rank=2**38 - 1, world_size=2**38)
    assert rows.tolist() == [2**38 - 1, 2**39 - 1, 3 * 2**38 - 1, 2**40 - 1]


@pytest.mark.parametrize(
    ("global_batch_size", "world_size", "advice"),
    [
        (100, 8, "96 and 104 are the nearest that are"),
        (3, 8, "8 is the nearest that is"),
        (0, 8, "must both be at least 1"),
        (8, 0, "must both be at least 1"),
        (-8, 8, "must both be at least 1"),
    ],
)
def test_a_global_batch_that_the_ranks_cannot_share_is_refused_with_the_nearest_that_they_can(
    global_batch_size, world_size, advice
):
    with pytest.raises(OrderError, match=f"global_batch_size={global_batch_size}.*world_size={world_size}.*{advice}"):
        check_division(global_batch_size, world_size)


def test_a_batch_that_divides_gives_the_rows_of_each_rank():
    assert check_division(96, 8) == 12


@pytest.mark.parametrize("rank", [-1, 8, 9])
def test_a_rank_that_does_not_exist_is_refused_before_it_gets_rows_of_the_next_batch(rank):
    with pytest.raises(OrderError, match=f"rank={rank} is outside"):
        rank_positions(0, 1, num_rows=100, global_batch_size=8, rank=rank, world_size=8)


def test_putting_the_ranks_batches_together_gives_the_batch_that_was_dealt():
    for length, world_size in itertools.product(range(1, 20), WORLDS):
        assert whole(reference.dealt(list(range(length)), world_size)) == list(range(length))


def test_a_fleet_starts_where_a_cursor_says():
    assert run(Fleet(100, 4, 2, cursor=Cursor(2, 40)), 1) == [epoch_order(100, 7, 2)[40:44]]


@pytest.mark.parametrize("chunked", [False, True])
def test_shards_of_any_few_items_cover_each_once_and_with_padding_are_equally_long(chunked):
    for num_items, total in itertools.product(range(30), range(1, 35)):
        items = []
        for shard in range(total):
            length = shard_length(num_items, total, shard, chunked=chunked, padded=False)
            assert (
                shard_length(num_items, total, shard, chunked=chunked, padded=True) == -(-num_items // total) >= length
            )
            items += shard_positions(np.arange(length), num_items, total, shard, chunked=chunked).tolist()
        assert sorted(items) == list(range(num_items))


def test_shards_of_a_trillion_items_are_arithmetic():
    length = shard_length(10**12, 7, 3, chunked=True, padded=False)
    assert length == -(-(10**12) // 7)
    assert shard_positions(np.array([0, length - 1]), 10**12, 7, 3, chunked=True).tolist() == [
        3 * length,
        4 * length - 1,
    ]
    assert shard_positions(np.array([[5]]), 10**12, 7, 3, chunked=False).tolist() == [[38]]


@pytest.mark.parametrize(("total", "shard"), [(0, 0), (3, 3), (3, -1)])
def test_a_shard_that_does_not_exist_is_refused(total, shard):
    with pytest.raises(OrderError, match=f"current_shard={shard} is outside"):
        shard_length(10, total, shard, chunked=False, padded=True)
