"""Token-budget batches as a dataset: every sample once an epoch, over any order and under any number of ranks."""

import itertools
import json
import pickle

import numpy as np
import pytest

from headrace import StatefulDataLoader
from headrace.errors import OptionError, OrderError, StateMismatchError
from headrace.views import SelectedDataset, ShuffledDataset, TokenBudgetBatches, dataset_settings, is_windowed
from planning import token_batches_reference as reference
from planning.reference import derive_seed, shuffled


class Documents:
    """Document i has lengths[i] tokens, all of them i. reads counts the calls."""

    def __init__(self, lengths):
        self.settings = {"data": "documents"}
        self.lengths = np.asarray(lengths)
        self.reads = 0

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, item):
        return np.full(self.lengths[item], item)

    def __getitems__(self, items):
        self.reads += 1
        return [self[int(item)] for item in items]


def documents(count, seed=0, longest=60):
    return Documents(np.random.default_rng(seed).integers(1, longest + 1, count))


def numbers(batch):
    return [int(document[0]) for document in batch]


def collate(batch):
    return numbers(batch)


def rows_of(view, epoch):
    """The batches of an epoch, as loaders ask for them."""
    return [
        numbers(batch)
        for window in range(view.num_windows)
        for batch in view.__getitems__(view.addresses(epoch, window))
    ]


@pytest.mark.parametrize("padded", [True, False])
def test_every_window_of_every_epoch_is_planned_alone_as_the_reference_plans_it(padded):
    base = documents(230)
    view = TokenBudgetBatches(ShuffledDataset(base, 7), 100, 4, padded, (1, 0.25), window=50, seed=3)
    assert view.num_windows == 4  # the last one has 80
    for epoch in (0, 1, 2):
        order = [shuffled(position, 230, 7) % 230 for position in range(230 * epoch, 230 * (epoch + 1))]
        expected = []
        for window, (begin, end) in enumerate(itertools.pairwise([0, 50, 100, 150, 230])):
            items = order[begin:end]
            lengths = base.lengths[items].tolist()
            seed = derive_seed(3, "window", epoch, window)
            planned = reference.planned(lengths, 100, 4, padded=padded, cost=(1, 0.25), seed=seed)
            expected += [[items[one] for one in batch] for batch in planned]
        assert rows_of(view, epoch) == expected
        assert sorted(itertools.chain(*expected)) == list(range(230))


def test_batches_are_indexed_in_epoch_0_and_counted_by_len():
    view = TokenBudgetBatches(documents(100), 100, 4, window=30)
    rows = rows_of(view, 0)
    assert len(view) == view.rows_in_epoch() == len(rows)
    assert [numbers(batch) for batch in view[:]] == rows
    assert numbers(view[-1]) == rows[-1]
    with pytest.raises(IndexError):
        view[len(rows)]
    with pytest.raises(IndexError):
        view.__getitems__([view.addresses(0, 0)[-1] + 1])


def test_planning_reads_no_sample_and_a_batch_is_read_in_one_call():
    base = documents(200)
    view = TokenBudgetBatches(base, 200, 2, window=100)
    report = view.report()
    assert base.reads == 0
    view.__getitems__(view.addresses(0, 1)[:3])
    assert base.reads == 3
    assert report["batches"] == len(view)


def test_a_base_that_gives_whole_batches_has_them_handed_on():
    class Batch(list):
        def stacked(self):
            return np.array([document[0] for document in self])

    class Whole(Documents):
        def __getitems__(self, items):
            return Batch(super().__getitems__(items))

    view = TokenBudgetBatches(Whole([3, 4, 5, 6]), 12, 1)
    assert all(isinstance(batch, Batch) for batch in view[:])


@pytest.mark.parametrize(
    ("base", "where"),
    [
        (Documents([10, 10, 150, 10]), r"position 2 \(item 2 of Documents\)"),
        (SelectedDataset(Documents([10, 10, 150, 10]), keep=[1, 2]), r"position 1 \(item 2 of Documents\)"),
    ],
)
def test_a_sample_over_the_budget_is_named_by_position_and_item(base, where):
    view = TokenBudgetBatches(base, 100, 2)
    with pytest.raises(OrderError, match=f"{where} has 150 tokens.*max_tokens=100.*drop.*alone"):
        view.report()


def test_samples_over_the_budget_are_dropped_or_alone_and_counted():
    base = Documents([10] * 50 + [60] * 5 + [150])
    dropped = TokenBudgetBatches(ShuffledDataset(base, 1), 100, 1, long="drop", max_samples=4)
    report = dropped.report()
    assert (report["dropped"], report["dropped_tokens"], report["alone"], report["samples"]) == (1, 150, 0, 55)
    alone = TokenBudgetBatches(ShuffledDataset(base, 1), 100, 1, long="alone", max_samples=4)
    report = alone.report()
    assert (report["dropped"], report["dropped_tokens"], report["alone"], report["samples"]) == (0, 0, 1, 56)
    rows = rows_of(alone, 0)
    assert sorted(itertools.chain(*rows)) == list(range(56))
    assert [55] in rows
    assert max(map(len, rows)) == 4
    assert all(len(row) * max(base.lengths[row]) <= 100 for row in rows if row != [55])


def test_the_report_counts_what_the_batches_hold():
    base = documents(500, longest=100)
    view = TokenBudgetBatches(base, 100, 8, window=100)
    rows = rows_of(view, 0)
    report = view.report()
    padded = [len(row) * max(base.lengths[row]) if row else 0 for row in rows]
    steps = [padded[begin : begin + 8] for begin in range(0, len(rows), 8)]
    assert report["tokens"] == base.lengths.sum()
    assert report["steps"] * 8 == report["batches"] == len(rows)
    assert report["empty"] == sum(not row for row in rows)
    assert report["utilisation"] == pytest.approx(base.lengths.sum() / (100 * len(rows)))
    assert report["padding_waste"] == pytest.approx(1 - base.lengths.sum() / sum(padded))
    assert report["imbalance"] == pytest.approx(np.mean([max(step) / np.mean(step) - 1 for step in steps]))
    nothing = TokenBudgetBatches(Documents([]), 100, 8).report()
    assert set(nothing.values()) == {0}
    assert nothing.keys() == report.keys()


def test_row_positions_name_the_samples_of_every_batch_without_reading():
    base = documents(100)
    view = TokenBudgetBatches(ShuffledDataset(base, 5), 100, 4, window=40)
    for epoch, window in itertools.product(range(2), range(view.num_windows)):
        positions, offsets = view.row_positions(epoch, window)
        items = (view.base.locate(positions) % 100).tolist()
        made = [items[begin:end] for begin, end in itertools.pairwise(offsets.tolist())]
        assert made == [numbers(batch) for batch in view.__getitems__(view.addresses(epoch, window))]


def test_every_setting_that_decides_the_batches_is_in_the_settings():
    base = documents(10)
    one = {"max_tokens": 100, "batches_per_step": 2}
    variants = [
        one,
        {**one, "max_tokens": 101},
        {**one, "batches_per_step": 4},
        {**one, "padded": False},
        {**one, "cost": (1, 1)},
        {**one, "cost": (2, 1)},
        {**one, "long": "drop"},
        {**one, "long": "alone"},
        {**one, "max_samples": 3},
        {**one, "window": 5},
        {**one, "seed": 1},
    ]
    seen = [json.dumps(dataset_settings(TokenBudgetBatches(base, **options))) for options in variants]
    assert len(set(seen)) == len(variants)
    assert "documents" in seen[0]
    assert dataset_settings(TokenBudgetBatches(base, **one, cost=(1, 0))) == json.loads(seen[0])


def test_a_copy_in_another_process_gives_the_same_batches():
    view = TokenBudgetBatches(ShuffledDataset(documents(100), 1), 100, 4, window=40, seed=9)
    rows = rows_of(view, 1)
    copied = pickle.loads(pickle.dumps(view))
    assert rows_of(copied, 1) == rows
    assert copied.settings == view.settings
    assert repr(copied).startswith("TokenBudgetBatches(ShuffledDataset(")


def test_the_batches_come_last_and_views_above_them_are_refused():
    view = TokenBudgetBatches(documents(10), 100, 2)
    assert is_windowed(view)
    with pytest.raises(OrderError, match=r"TokenBudgetBatches.*last"):
        ShuffledDataset(view, 1)


def test_what_has_no_lengths_is_refused():
    with pytest.raises(TypeError, match="lengths"):
        TokenBudgetBatches([1, 2, 3], 100, 2).report()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"window": 0}, OptionError),
        ({"window": 1 << 24}, OptionError),
        ({"window": 1.5}, TypeError),
        ({"seed": 1.5}, TypeError),
        ({"cost": (0, 0)}, OptionError),
        ({"max_samples": -1}, OptionError),
        ({"long": "split"}, OptionError),
    ],
)
def test_bad_options_are_refused_at_once(options, error):
    with pytest.raises(error):
        TokenBudgetBatches(documents(10), 100, 2, **options)


def loaders(view, world_size, state=None, **options):
    made = [
        StatefulDataLoader(view, collate, device="cpu", rank=rank, world_size=world_size, drop_last=False, **options)
        for rank in range(world_size)
    ]
    for loader in made:
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
    return made


def steps_taken(ranks, count):
    """`count` steps of all ranks, as the rows of each dealt back; fewer where the epoch ends."""
    iterators = [iter(loader) for loader in ranks]
    rows = []
    for _ in range(count):
        step = [next(iterator, None) for iterator in iterators]
        if step[0] is None:
            assert step == [None] * len(step), "all ranks end together"
            break
        rows += step
    return rows


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_any_world_size_that_divides_the_step_gets_the_same_steps(world_size):
    view = TokenBudgetBatches(ShuffledDataset(documents(300), 1), 100, 8, window=70)
    rows = rows_of(view, 0)
    assert len(rows) % 8 == 0
    assert steps_taken(loaders(view, world_size), 10_000) == rows


def test_a_world_size_that_does_not_divide_the_step_is_refused():
    view = TokenBudgetBatches(documents(300), 100, 8)
    with pytest.raises(OrderError, match="8 batches"):
        iter(loaders(view, 3)[0])


def test_a_run_that_stops_at_whole_steps_goes_on_with_any_number_of_ranks_and_workers():
    view = TokenBudgetBatches(ShuffledDataset(documents(300), 1), 100, 8, window=70, cost=(1, 0.1))
    expected = rows_of(view, 0) + rows_of(view, 1) + rows_of(view, 2)
    got, state = [], None
    for world_size, steps, workers in [(1, 8, 0), (4, 4, 0), (8, 3, 2), (2, 4, 0), (8, 9, 0), (4, 2, 2), (1, 16, 0)]:
        ranks = loaders(view, world_size, state, num_workers=workers, parallel_method="thread")
        got += steps_taken(ranks, steps)
        states = [loader.state_dict() for loader in ranks]
        assert all(one == states[0] for one in states)
        state = states[0]
        for loader in ranks:
            loader.close()
    assert len(got) >= 8 * 12
    assert got == expected[: len(got)]


def test_a_state_of_another_budget_is_refused_by_name():
    base = documents(100)
    state = loaders(TokenBudgetBatches(base, 100, 2), 1)[0].state_dict()
    with pytest.raises(StateMismatchError, match="max_tokens: saved 100, current 120"):
        loaders(TokenBudgetBatches(base, 120, 2), 1, state)
