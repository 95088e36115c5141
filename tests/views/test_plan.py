"""What a step holds and when a sample is seen, against a run that reads everything."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import OptionError, OrderError
from headrace.loading import StatefulDataLoader
from headrace.views import (
    BufferSortedDataset,
    PackedDataset,
    SelectedDataset,
    ShardedDataset,
    ShuffledDataset,
    TokenBudgetBatches,
    View,
)
from headrace.views.plan import Origins, Plan


class Unread:
    """Items that must not be read; their lengths and shards are known."""

    def __init__(self, num_items, shard_lengths=None):
        self.num_items = num_items
        self.shard_lengths = np.array([num_items] if shard_lengths is None else shard_lengths, np.int64)
        self.settings = {"data": "unread", "num_samples": num_items}

    def __len__(self):
        return self.num_items

    def __getitem__(self, index):
        raise AssertionError("read")

    __getitems__ = __getitem__

    def lengths_at(self, items):
        return np.asarray(items) * 7 % 11

    @property
    def lengths(self):
        return self.lengths_at(np.arange(self.num_items))


class Reversed(View):
    """A view of someone else's, that cannot say where an item stands."""

    def __len__(self):
        return len(self.base)

    def locate(self, positions):
        epochs, indices = np.divmod(self.checked(positions), len(self))
        return epochs * len(self) + len(self) - 1 - indices

    own_settings = {"reversed": True}  # noqa: RUF012


@st.composite
def views(draw, depth=3):
    number = draw(st.integers(1, 30))
    base = Unread(number, [number // 2, 0, number - number // 2])
    for _ in range(draw(st.integers(0, depth))):
        length = len(base)
        kind = draw(st.sampled_from(["global", "pooled", "selected", "sorted", "sharded", "reversed"]))
        seed = draw(st.integers(0, 5))
        if kind == "global":
            base = ShuffledDataset(base, seed)
        elif kind == "pooled" and isinstance(base, Unread):
            base = ShuffledDataset(
                base, seed, "pooled", pool_items=draw(st.integers(1, 9)), lanes=draw(st.integers(1, 3))
            )
        elif kind == "selected":
            base = SelectedDataset(
                base, np.array(draw(st.lists(st.booleans(), min_size=length, max_size=length)), bool)
            )
        elif kind == "sorted":
            base = BufferSortedDataset(base, draw(st.integers(1, 12)), draw(st.integers(1, 5)), seed)
        elif kind == "sharded":
            total = draw(st.integers(1, 3))
            mode = draw(st.sampled_from(["sequential", "chunked"]))
            base = ShardedDataset(base, total, draw(st.integers(0, total - 1)), mode, draw(st.booleans()))
        elif kind == "reversed":
            base = Reversed(base)
    return base


def leaf(dataset):
    return leaf(dataset.base) if hasattr(dataset, "base") else dataset


def located(dataset, positions):
    while hasattr(dataset, "base"):
        positions, dataset = dataset.locate(positions), dataset.base
    return (positions % len(dataset)).tolist() if len(positions) else []


@given(views(depth=4))
@settings(deadline=None, max_examples=150)
def test_a_view_finds_where_each_item_stands(view):
    if not hasattr(view, "base") or isinstance(view, Reversed) or len(view) == 0:
        return
    for epoch in (0, 2):
        positions = np.arange(epoch * len(view), (epoch + 1) * len(view))
        below = view.locate(positions)
        for item in range(epoch * len(view.base), (epoch + 1) * len(view.base)):
            assert sorted(view.positions_of(np.array([item])).tolist()) == positions[below == item].tolist()
        everything = np.arange(epoch * len(view.base), (epoch + 1) * len(view.base))
        assert sorted(view.positions_of(everything).tolist()) == positions.tolist()


@given(views(), st.sampled_from([(1, 1), (4, 2), (6, 3), (5, 1)]), st.booleans())
@settings(deadline=None, max_examples=150)
def test_steps_have_what_the_order_says_and_each_sample_is_seen_in_these_steps(view, sizes, drop_last):
    batch, world_size = sizes
    plan = Plan(view, batch, world_size, drop_last=drop_last)
    seen = {}
    for epoch in (0, 1, 3):
        items = located(view, np.arange(epoch * len(view), (epoch + 1) * len(view)))
        steps = [items[begin : begin + batch] for begin in range(0, len(items), batch)]
        steps = [step for step in steps if len(step) == batch or not drop_last]
        assert plan.steps_in_epoch(epoch) == len(steps)
        for number, step in enumerate(steps):
            ranks = plan.samples_of_step(number, epoch)
            assert ranks == [[("", item) for item in step[rank::world_size]] for rank in range(world_size)]
            for item in step:
                seen.setdefault(item, set()).add((epoch, number))
        with pytest.raises(IndexError, match="outside epoch"):
            plan.samples_of_step(len(steps), epoch)
    for item in range(len(leaf(view))):
        assert plan.when_seen(None, item, epochs=(0, 1, 3)) == sorted(seen.get(item, ()))


def rows_of(dataset, epoch):
    """The items of each row of an epoch, window by window."""
    rows = []
    for window in range(dataset.num_windows):
        positions, offsets = dataset.row_positions(epoch, window)
        items = located(dataset.base, positions)
        rows += [items[begin:end] for begin, end in itertools.pairwise(offsets)]
    return rows


@given(
    views(),
    st.integers(1, 12),
    st.sampled_from([(1, 1), (4, 2), (3, 3)]),
    st.booleans(),
    st.sampled_from(["best_fit", "concat"]),
)
@settings(deadline=None, max_examples=100)
def test_packed_rows_are_lists_of_samples_and_a_sample_is_seen_where_any_piece_of_it_is(
    view, window, sizes, drop_last, strategy
):
    batch, world_size = sizes
    packed = PackedDataset(view, 8, window, strategy)
    plan = Plan(packed, batch, world_size, drop_last=drop_last)
    seen = {}
    for epoch in (0, 2):
        rows = rows_of(packed, epoch)
        steps = [rows[begin : begin + batch] for begin in range(0, len(rows), batch)]
        steps = [step for step in steps if len(step) == batch or not drop_last]
        assert plan.rows_in_epoch(epoch) == len(rows)
        assert plan.steps_in_epoch(epoch) == len(steps)
        for number, step in enumerate(steps):
            expected = [[[("", item) for item in row] for row in step[rank::world_size]] for rank in range(world_size)]
            assert plan.samples_of_step(number, epoch) == expected
            for row in step:
                for item in row:
                    seen.setdefault(item, set()).add((epoch, number))
        with pytest.raises(IndexError, match="outside epoch"):
            plan.samples_of_step(len(steps), epoch)
    for item in range(len(leaf(view))):
        assert plan.when_seen("", item, epochs=(0, 2)) == sorted(seen.get(item, ()))


def test_a_step_of_token_budget_batches_is_a_batch_a_rank():
    batches = TokenBudgetBatches(ShuffledDataset(Unread(200), 7), 40, 4, window=50)
    plan = Plan(batches, 4, 4)
    assert plan.steps_in_epoch() == len(batches) // 4
    every = [ranks for step in range(plan.steps_in_epoch()) for ranks in plan.samples_of_step(step)]
    assert {len(rank) for rank in every} == {1}
    assert sorted(item for (batch,) in every for _, item in batch) == list(range(200))
    (epoch, step), *others = plan.when_seen(None, 17)
    assert not others
    assert 17 in [item for (batch,) in plan.samples_of_step(step, epoch) for _, item in batch]
    with pytest.raises(OptionError, match="every rank gets one a step"):
        Plan(batches, 8, 4)


class Numbers(Unread):
    def __getitem__(self, index):
        return np.int64(index)

    def __getitems__(self, items):
        return [np.int64(item) for item in items]


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_a_plan_is_what_the_loaders_of_all_ranks_serve(world_size):
    view = ShuffledDataset(SelectedDataset(Numbers(60), np.arange(60) % 3 > 0), 7)
    plan = Plan(view, 8, world_size, drop_last=False)
    for rank in range(world_size):
        loader = StatefulDataLoader(view, global_batch_size=8, rank=rank, world_size=world_size, drop_last=False)
        for epoch in range(2):
            served = [batch.tolist() for batch in loader]
            planned = [plan.samples_of_step(step, epoch)[rank].items.tolist() for step in range(len(served))]
            assert served == planned
            assert len(served) == plan.steps_in_epoch(epoch)


def test_a_step_in_the_middle_of_a_trillion_samples_is_found_at_once_and_back():
    view = ShuffledDataset(SelectedDataset(ShuffledDataset(Unread(10**12), 1), exclude=[5, 10**11]), 7)
    plan = Plan(view, 1024, 8)
    step = plan.steps_in_epoch() // 2
    ranks = plan.samples_of_step(step, epoch=3)
    assert [len(rank) for rank in ranks] == [128] * 8
    assert plan.when_seen(None, ranks[5][17][1], epochs=[3]) == [(3, step)]


def test_origins_are_a_sequence_of_pairs_and_two_arrays():
    origins = Origins.at(ShuffledDataset(Unread(20), 7), np.arange(6))
    assert len(origins) == 6
    assert origins[2:4] == [origins[2], origins[3]]
    assert list(origins) == list(zip(origins.sources.tolist(), origins.items.tolist(), strict=True))
    assert origins.items.dtype == np.int64
    assert origins != 5
    assert repr(origins[:1]) == f"Origins([('', {origins.items[0]})])"
    assert Origins.at(Unread(3), np.empty(0, np.int64)) == []


def test_what_is_not_there_is_refused():
    plan = Plan(ShuffledDataset(Unread(20), 7), 4, 2)
    with pytest.raises(IndexError, match="item 20 is outside a dataset of 20"):
        plan.when_seen(None, 20)
    with pytest.raises(IndexError, match="item -1 is outside"):
        plan.when_seen(None, -1)
    with pytest.raises(OptionError, match="no mixture"):
        plan.when_seen("books", 3)
    for step, epoch in ((-1, 0), (0, -1)):
        with pytest.raises(IndexError, match="before the first"):
            plan.samples_of_step(step, epoch)
    with pytest.raises(IndexError, match="before the first"):
        plan.when_seen(None, 3, epochs=[-1])
    with pytest.raises(IndexError, match="step 5 is outside epoch 0, which has 5 steps: 20 rows, 4 a step"):
        plan.samples_of_step(5)
    with pytest.raises(OrderError, match="not a multiple"):
        Plan(Unread(20), 5, 2)
    with pytest.raises(OptionError, match="global_batch_size"):
        Plan(Unread(20), 0)
