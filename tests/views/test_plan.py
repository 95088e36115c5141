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
    MixedDataset,
    PackedDataset,
    SelectedDataset,
    ShardedDataset,
    ShuffledDataset,
    TokenBudgetBatches,
    View,
)
from headrace.views.plan import Origins, Plan

some = settings(max_examples=max(10, settings.default.max_examples // 2))


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


class Numbered(View):
    """A view of someone else's, whose epochs are of another length than its base, and that names items from 0."""

    def __len__(self):
        return 7

    def locate(self, positions):
        return self.checked(positions) * 3 % len(self.base)

    own_settings = {"numbered": True}  # noqa: RUF012


@st.composite
def bases(draw, depth=3):
    if draw(st.integers(0, 3)):
        number = draw(st.integers(1, 30))
        return Unread(number, [number // 2, 0, number - number // 2])
    names = draw(st.lists(st.sampled_from(["a", "b", "x/y"]), min_size=1, max_size=3, unique=True))
    sources = {name: draw(views(depth=depth - 2 if name != "a" else 0)) for name in names}
    sources = {name: source if len(source) else Unread(3) for name, source in sources.items()}
    weights = draw(st.none() | st.lists(st.integers(0, 4), min_size=len(names), max_size=len(names)).filter(any))
    return MixedDataset(sources, weights, draw(st.integers(0, 3)), epoch_size=draw(st.none() | st.integers(1, 40)))


@st.composite
def views(draw, depth=3):
    base = draw(bases(depth))
    for _ in range(draw(st.integers(0, max(0, depth)))):
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


def samples(dataset):
    """Every (source, item) below a dataset."""
    if hasattr(dataset, "base"):
        return samples(dataset.base)
    if hasattr(dataset, "sources"):
        below = [(name, pair) for name, source in dataset.sources.items() for pair in samples(source)]
        return [(f"{name}/{inner}" if inner else name, item) for name, (inner, item) in below]
    return [("", item) for item in range(len(dataset))]


def origin(dataset, position):
    """(source, item) at one endless position."""
    if hasattr(dataset, "locate"):
        return origin(dataset.base, int(dataset.locate(np.array([position]))[0]))
    if hasattr(dataset, "draws"):
        (number,), (draw,) = dataset.draws(np.array([position]))
        name = dataset.names[number]
        inner, item = origin(dataset.asked(name), int(draw))
        return (f"{name}/{inner}" if inner else name), item
    return "", position % len(dataset)


def located(dataset, positions):
    known = {position: origin(dataset, position) for position in set(np.asarray(positions).tolist())}
    return [known[position] for position in np.asarray(positions).tolist()]


@given(views(depth=4))
@some
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
@some
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
            assert ranks == [step[rank::world_size] for rank in range(world_size)]
            for sample in step:
                seen.setdefault(sample, set()).add((epoch, number))
        with pytest.raises(IndexError, match="outside epoch"):
            plan.samples_of_step(len(steps), epoch)
    for source, item in samples(view):
        assert plan.when_seen(source or None, item, epochs=(0, 1, 3)) == sorted(seen.get((source, item), ()))


def rows_of(dataset, epoch):
    """The samples of each row of an epoch, window by window."""
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
@some
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
            expected = [step[rank::world_size] for rank in range(world_size)]
            assert plan.samples_of_step(number, epoch) == expected
            for row in step:
                for sample in row:
                    seen.setdefault(sample, set()).add((epoch, number))
        with pytest.raises(IndexError, match="outside epoch"):
            plan.samples_of_step(len(steps), epoch)
    for source, item in samples(view):
        assert plan.when_seen(source, item, epochs=(0, 2)) == sorted(seen.get((source, item), ()))


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


@pytest.mark.parametrize("num_items", [5, 7, 10])
def test_a_view_that_names_items_of_any_epoch_from_0_is_walked_through(num_items):
    plan = Plan(Numbered(Unread(num_items)), 2, drop_last=False)
    for item in range(num_items):
        seen = [
            (epoch, step)
            for epoch in range(4)
            for step in range(plan.steps_in_epoch(epoch))
            if item in plan.samples_of_step(step, epoch)[0].items
        ]
        assert plan.when_seen(None, item, range(4)) == seen


def test_a_step_in_the_middle_of_a_trillion_samples_is_found_at_once_and_back():
    view = ShuffledDataset(SelectedDataset(ShuffledDataset(Unread(10**12), 1), exclude=[5, 10**11]), 7)
    plan = Plan(view, 1024, 8)
    step = plan.steps_in_epoch() // 2
    ranks = plan.samples_of_step(step, epoch=3)
    assert [len(rank) for rank in ranks] == [128] * 8
    assert plan.when_seen(None, ranks[5][17][1], epochs=[3]) == [(3, step)]


def test_sources_of_mixtures_of_mixtures_are_named_by_their_paths():
    inner = MixedDataset({"web": Unread(30), "code": Unread(10)}, [1, 1], seed=3)
    mixed = MixedDataset({"text": inner, "books": Unread(20)}, {"text": 3, "books": 1}, seed=4, epoch_size=200)
    plan = Plan(mixed, 8, 2)
    (epoch, step), *_ = plan.when_seen("text/code", 7)
    assert ("text/code", 7) in [pair for rank in plan.samples_of_step(step, epoch) for pair in rank]
    assert {source for source, _ in plan.samples_of_step(0)[0]} <= {"text/web", "text/code", "books"}
    for wrong in ("text/pictures", "code", "", "books/web"):
        with pytest.raises(OptionError, match="source"):
            plan.when_seen(wrong, 3)


def test_a_source_without_a_weight_is_never_seen_and_never_opened():
    class Unopened:
        def __len__(self):
            raise AssertionError("opened")

        __getitem__ = __len__

    plan = Plan(MixedDataset({"a": Unread(10), "b": Unopened()}, {"a": 1, "b": 0}), 2)
    assert plan.when_seen("b", 3, epochs=range(3)) == []
    assert plan.when_seen("a", 3)


def test_a_mixture_that_was_changed_in_an_epoch_is_planned_from_there():
    mixed = MixedDataset({"a": Unread(50), "b": Unread(30)}, [1, 1], epoch_size=80)
    later = mixed.continued(100, mixed.draws_before(100))
    plan, before = Plan(later, 10), Plan(mixed, 10)
    seen = plan.when_seen("a", 7, epochs=[1, 2])
    assert all(epoch > 1 or step >= 2 for epoch, step in seen)
    for epoch, step in seen:
        assert ("a", 7) in plan.samples_of_step(step, epoch)[0]
    assert before.when_seen("a", 7, epochs=[0, 1, 2])
    with pytest.raises(OrderError, match="changed"):
        plan.samples_of_step(1, 1)


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
