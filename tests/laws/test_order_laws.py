"""Laws 1, 3 and 10 as far as integers go: the order is a bijection an epoch, belongs to nobody, and never changes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.planning import Permutation, derive_seed, rank_positions, shuffled, steps_left
from headrace.planning.permutation import MAX_ITEMS
from planning import reference
from planning.fleet import Fleet, epoch_order, run, whole

sizes = st.integers(1, 300) | st.integers(1000, 1200)
seeds = st.integers(-(2**64), 2**64)
epochs = st.integers(0, 1000)
worlds = st.sampled_from([1, 2, 3, 4, 6, 8])


@st.composite
def places(draw):
    """A domain of any size, and some numbers of it."""
    n = draw(st.integers(1, 2000) | st.integers(1, MAX_ITEMS))
    return n, np.array(draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=8, unique=True)), np.int64)


@given(n=sizes, seed=seeds, epoch=epochs)
def test_every_item_comes_exactly_once_an_epoch(n, seed, epoch):
    items = shuffled(np.arange(epoch * n, (epoch + 1) * n), n, seed)
    assert np.sort(items).tolist() == list(range(epoch * n, (epoch + 1) * n))


@given(place=places(), seed=seeds)
def test_no_two_positions_of_any_domain_have_the_same_item_and_every_item_has_a_position(place, seed):
    n, numbers = place
    permutation = Permutation(n, seed)
    items = permutation(numbers)
    assert ((items >= 0) & (items < n)).all()
    assert len(set(items.tolist())) == len(numbers)
    assert (permutation.inverse(items) == numbers).all()
    assert (permutation(permutation.inverse(numbers)) == numbers).all()


@given(place=places(), seed=seeds)
def test_the_order_is_the_published_one_at_every_size(place, seed):
    n, numbers = place
    numbers = numbers[:2]
    assert Permutation(n, seed)(numbers).tolist() == reference.whole_or_some(n, seed, numbers.tolist())


@given(n=sizes, seed=seeds, positions=st.lists(st.integers(0, 5000), min_size=1, max_size=20))
def test_an_item_depends_on_its_position_and_on_no_other_that_was_asked_for(n, seed, positions):
    together = shuffled(np.array(positions), n, seed).tolist()
    assert together == [int(shuffled(np.array([position]), n, seed)[0]) for position in positions]
    backwards = shuffled(np.array(positions[::-1]), n, seed).tolist()
    assert together == backwards[::-1]


@given(seed=seeds, one=st.lists(st.integers() | st.text("ab:1i"), max_size=3), addend=st.integers(1, 5), epoch=epochs)
def test_neither_a_neighbouring_seed_nor_another_name_gives_the_same_seed(seed, one, addend, epoch):
    assert derive_seed(seed, *one, epoch + addend) != derive_seed(seed + addend, *one, epoch)
    assert derive_seed(seed, *one) != derive_seed(seed, *one, "")
    assert derive_seed(seed, *one, "1") != derive_seed(seed, *one, 1)


@given(n=st.integers(1, 400), size=st.integers(1, 8), world_size=worlds, drop_last=st.booleans(), epoch=epochs)
def test_the_world_size_is_invisible_in_the_global_batches(n, size, world_size, drop_last, epoch):
    size *= 24  # what every world size divides
    fleet = Fleet(n, size, world_size, seed=epoch, drop_last=drop_last)
    fleet.cursor = type(fleet.cursor)(epoch)
    order = epoch_order(n, epoch, epoch)
    expected = [[order[row] for row in batch] for batch in reference.global_batches(n, 0, size, drop_last)]
    assert fleet.steps_left == len(expected)
    assert run(fleet, len(expected)) == expected


@given(n=st.integers(1, 400), local=st.integers(1, 7), world_size=worlds, drop_last=st.booleans(), seed=seeds)
def test_all_ranks_step_equally_often_and_share_the_epoch_without_overlap(n, local, world_size, drop_last, seed):
    fleet = Fleet(n, local * world_size, world_size, seed, drop_last)
    steps = fleet.steps_left
    per_rank = [fleet.ids(rank, steps) for rank in range(world_size)]
    assert {len(batches) for batches in per_rank} == {steps}
    ids = [one for batches in per_rank for batch in batches for one in batch]
    assert len(set(ids)) == len(ids)
    assert n - len(ids) == (n % (local * world_size) if drop_last else 0)
    if drop_last:
        assert {len(batch) for batches in per_rank for batch in batches} <= {local}
    else:
        assert (
            whole([batches[-1] for batches in per_rank])
            == epoch_order(n, seed, 0)[(steps - 1) * fleet.global_batch_size :]
        )


@given(
    position=st.integers(0, 2**61),
    rows_left=st.integers(0, 2**61),
    local=st.integers(1, 5),
    world_size=st.integers(1, 10_000),
    steps=st.integers(0, 4),
    fraction=st.floats(0, 1, exclude_max=True),
)
def test_a_rank_s_rows_at_any_scale_are_every_world_size_th_of_the_epoch(
    position, rows_left, local, world_size, steps, fraction
):
    rank, num_rows, size = int(fraction * world_size), position + rows_left, local * world_size
    rows, offsets = rank_positions(
        position, steps, num_rows=num_rows, global_batch_size=size, rank=rank, world_size=world_size
    )
    expected = [position + rank + world_size * k for k in range(local * steps)]
    assert rows.tolist() == [row for row in expected if row < num_rows]
    assert np.diff(offsets).tolist() == [
        sum(row < num_rows for row in expected[local * k : local * (k + 1)]) for k in range(steps)
    ]
    assert steps_left(num_rows, position, size, drop_last=False) == -(-rows_left // size)
