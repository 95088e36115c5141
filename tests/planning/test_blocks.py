"""Items permuted inside blocks: no item leaves its block, and each block of each epoch has an order of its own."""

import itertools
import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.planning.blocks import permuted_in_blocks
from headrace.planning.permutation import CHUNK, MAX_ITEMS, SMALL
from planning import reference
from planning.test_permutation_statistics import chi_square_z

SHAPES = [
    *[(total, block) for total in range(1, 14) for block in range(1, 16)],
    (100, 7),
    (1000, 1024),
    (3 * SMALL, SMALL),
    (3 * SMALL + 5, SMALL),
    (3 * (SMALL + 1) + 1024, SMALL + 1),
    (3 * (SMALL + 1) + 1, SMALL + 1),
    (2 * 2048 + 1500, 2048),  # a short last block that is a network too
    (5000, 10**6),
]


@pytest.mark.parametrize(("total", "block"), SHAPES)
def test_every_block_is_permuted_exactly_and_undone_exactly(total, block):
    numbers = np.arange(total)
    for epoch in (0, 1, 1000):
        items = permuted_in_blocks(numbers, total, block, 7, epoch)
        assert items.dtype == np.int64
        assert np.sort(items).tolist() == numbers.tolist()
        assert (items // block == numbers // block).all()
        assert permuted_in_blocks(items, total, block, 7, epoch, inverse=True).tolist() == numbers.tolist()


@pytest.mark.parametrize(("total", "block"), SHAPES)
def test_every_number_is_as_the_reference_has_it(total, block):
    some = range(0, total, 1 if total < 200 else 331)
    for epoch in (0, 3):
        expected = [reference.permuted_in_block(index, total, block, 7, epoch) for index in some]
        assert permuted_in_blocks(np.array(some), total, block, 7, epoch).tolist() == expected


@given(st.data())
def test_any_numbers_of_any_domain_equal_the_reference_alone_and_among_others(data):
    total = data.draw(st.integers(1, MAX_ITEMS))
    block = data.draw(st.integers(1, 3000) | st.integers(1, MAX_ITEMS))
    seed = data.draw(st.integers(-(2**70), 2**70))
    indices = data.draw(st.lists(st.integers(0, total - 1), min_size=1, max_size=5))
    epochs = data.draw(st.lists(st.integers(0, 2**40), min_size=len(indices), max_size=len(indices)))
    expected = [reference.permuted_in_block(i, total, block, seed, e) for i, e in zip(indices, epochs, strict=True)]
    assert permuted_in_blocks(np.array(indices), total, block, seed, np.array(epochs)).tolist() == expected
    alone = [
        int(permuted_in_blocks(np.array([i]), total, block, seed, e)[0]) for i, e in zip(indices, epochs, strict=True)
    ]
    assert alone == expected
    undone = permuted_in_blocks(np.array(expected), total, block, seed, np.array(epochs), inverse=True)
    assert undone.tolist() == indices


@pytest.mark.parametrize(("total", "block"), [(3000, 10), (5 * SMALL + 3, SMALL), (40_000, 3000), (50_000, 20_000)])
def test_numbers_in_any_order_of_many_blocks_and_epochs_are_as_each_alone(total, block):
    rng = np.random.default_rng(7)
    whole = np.stack([permuted_in_blocks(np.arange(total), total, block, 7, epoch) for epoch in range(5)])
    for count in (1, 1000, CHUNK + 5, 3 * CHUNK):
        indices, epochs = rng.integers(0, total, count), rng.integers(0, 5, count)
        for order in (np.arange(count), np.argsort(epochs, kind="stable"), np.lexsort([indices, epochs])):
            items = permuted_in_blocks(indices[order], total, block, 7, epochs[order])
            assert (items == whole[epochs[order], indices[order]]).all()
            undone = permuted_in_blocks(items, total, block, 7, epochs[order], inverse=True)
            assert (undone == indices[order]).all()


def test_tables_of_more_blocks_than_are_sorted_at_a_time_are_right():
    total, block = 10**6, 1000
    indices = np.random.default_rng(3).permutation(total)[:5000]
    items = permuted_in_blocks(indices, total, block, 7)
    assert (items == permuted_in_blocks(np.arange(total), total, block, 7)[indices]).all()
    assert (permuted_in_blocks(items, total, block, 7, inverse=True) == indices).all()


def test_arrays_of_any_shape_and_integer_type_are_taken_and_left_alone():
    numbers = np.arange(96)
    expected = permuted_in_blocks(numbers, 100, 9, 7)
    table = numbers.reshape(8, 12)
    assert (permuted_in_blocks(table.T, 100, 9, 7) == expected.reshape(8, 12).T).all()
    for dtype in ("u1", ">i4", "u8"):
        assert (permuted_in_blocks(numbers.astype(dtype), 100, 9, 7) == expected).all()
    assert (numbers == np.arange(96)).all()
    assert permuted_in_blocks(np.array([]), 100, 9, 7).dtype == np.int64
    assert permuted_in_blocks(np.empty((0, 3), np.int64), 0, 9, 7).shape == (0, 3)


def test_numbers_outside_and_impossible_blocks_are_refused():
    for outside in (-1, 100):
        with pytest.raises(IndexError, match=rf"{outside} is outside range\(100\)"):
            permuted_in_blocks(np.array([0, outside]), 100, 9, 7)
    with pytest.raises(TypeError, match="float64"):
        permuted_in_blocks(np.array([1.0]), 100, 9, 7)
    for total, block in ((10, 0), (-1, 5), (MAX_ITEMS + 1, 5)):
        with pytest.raises(ValueError, match="must be at least 1"):
            permuted_in_blocks(np.array([0]), total, block, 7)


@pytest.mark.parametrize("block", [2, 3, 4])
def test_the_blocks_of_an_epoch_and_the_epochs_of_a_block_take_all_orders_equally_often(block):
    number_of = {order: k for k, order in enumerate(itertools.permutations(range(block)))}
    each = 200
    count = each * len(number_of)
    blocks = permuted_in_blocks(np.arange(count * block), count * block, block, 7).reshape(count, block) % block
    epochs = np.repeat(np.arange(count), block)
    first = permuted_in_blocks(np.tile(np.arange(block), count), 10 * block, block, 7, epochs).reshape(count, block)
    for orders in (blocks, first):
        counts = np.bincount([number_of[tuple(order)] for order in orders.tolist()], minlength=len(number_of))
        assert abs(chi_square_z(counts, each, len(counts) - 1)) < 4


@pytest.mark.parametrize("block", [32, 1024, 1025, 2000])
def test_blocks_look_random_and_are_unrelated_to_their_neighbours_other_epochs_and_seeds(block):
    count = 400
    total = count * block
    numbers = np.arange(total)
    orders = permuted_in_blocks(numbers, total, block, 7).reshape(count, block) % block
    fixed = (orders == np.arange(block)).sum(axis=1)
    pairs = (np.diff(orders, axis=1) == 1).sum(axis=1)
    error = 4 / math.sqrt(count)
    assert abs(fixed.mean() - 1) < error
    assert abs(pairs.mean() - (block - 1) / block) < error
    coarse = np.arange(block) * 16 // block
    table = np.zeros((16, 16))
    np.add.at(table, (np.broadcast_to(coarse, orders.shape), coarse[orders]), 1)
    sizes = np.bincount(coarse)
    assert abs(chi_square_z(table, count * np.outer(sizes, sizes) / block, 225)) < 4
    variance = (block * block - 1) / 12
    others = {
        "the next block": np.roll(orders, 1, axis=0),
        "the next epoch": permuted_in_blocks(numbers, total, block, 7, 1).reshape(count, block) % block,
        "the next seed": permuted_in_blocks(numbers, total, block, 8).reshape(count, block) % block,
        "the next block of the epoch before": np.roll(
            permuted_in_blocks(numbers, total, block, 7, 1).reshape(count, block) % block, 1, axis=0
        ),
    }
    for name, other in others.items():
        correlation = ((orders - orders.mean()) * (other - other.mean())).mean() / variance
        assert abs(correlation) * math.sqrt(total) < 4.5, name


def test_no_python_step_is_taken_for_a_number_or_a_block():
    count = 1 << 15
    alone = np.random.default_rng(3).integers(0, 10**12, count)
    together = np.arange(count) + 5 * 10**11

    def seconds(indices, block):
        took = []
        for _ in range(5):
            begin = time.process_time()
            permuted_in_blocks(indices, 10**12, block, 7)
            took.append(time.process_time() - begin)
        return min(took)

    # 65 and 150 ns a number were measured where this was written.
    assert seconds(together, 2048) / count < 400e-9
    assert seconds(together, 100) / count < 600e-9
    assert seconds(alone, 2048) / count < 1000e-9
