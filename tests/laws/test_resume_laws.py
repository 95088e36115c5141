"""Law 4 as far as integers go: stop anywhere, go on with any world size, again and again; the sequence continues.

tests/loading and tests/distributed say the same of loaders and of real processes.
"""

import itertools
import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.errors import OrderError, StateMismatchError
from headrace.planning import Cursor
from planning import reference
from planning.fleet import Fleet, epoch_order, run

WORLDS = [1, 2, 3, 4, 6, 8]


def endless_batches(num_items, global_batch_size, drop_last, seed=7, epoch=0):
    """The global batches of an uninterrupted run, from the beginning of an epoch on."""
    rows = reference.global_batches(num_items, 0, global_batch_size, drop_last)
    for number in itertools.count(epoch):
        order = epoch_order(num_items, seed, number)
        for batch in rows:
            yield [order[row] for row in batch]


stops = st.lists(st.tuples(st.sampled_from(WORLDS), st.integers(0, 5)), min_size=20, max_size=20)


@given(num_items=st.integers(24, 260), drop_last=st.booleans(), seed=st.integers(0, 99) | st.none(), stops=stops)
def test_twenty_stops_with_changing_world_sizes_continue_one_sequence(num_items, drop_last, seed, stops):
    size = 24
    expected = endless_batches(num_items, size, drop_last, seed)
    text = Fleet(num_items, size, 1, seed, drop_last).state()
    for world_size, steps in stops:
        fleet = Fleet(num_items, size, world_size, seed, drop_last).load(text)
        assert run(fleet, steps) == list(itertools.islice(expected, steps))
        text = fleet.state()


@given(
    num_items=st.integers(24, 200),
    drop_last=st.booleans(),
    epoch=st.integers(0, 50),
    worlds=st.tuples(st.sampled_from(WORLDS), st.sampled_from(WORLDS)),
    data=st.data(),
)
def test_the_state_of_every_rank_at_every_moment_is_the_same_and_leads_on(num_items, drop_last, epoch, worlds, data):
    size, (before, after) = 24, worlds
    in_an_epoch = len(reference.global_batches(num_items, 0, size, drop_last))
    # Before the first batch, between, at the last, after exhaustion, and in the next epoch.
    done = data.draw(st.sampled_from([0, 1, in_an_epoch - 1, in_an_epoch, in_an_epoch + 1]))
    fleets = [Fleet(num_items, size, world, 7, drop_last, Cursor(epoch)) for world in (before, after)]
    for fleet in fleets:
        run(fleet, done)
    assert fleets[0].state() == fleets[1].state()
    fleet = Fleet(num_items, size, after, 7, drop_last).load(fleets[0].state())
    expected = itertools.islice(endless_batches(num_items, size, drop_last, epoch=epoch), done, done + 3)
    assert run(fleet, 3) == list(expected)


@given(
    num_items=st.integers(1, 400),
    sizes=st.lists(st.integers(1, 60), min_size=2, max_size=6),
    steps=st.lists(st.integers(0, 4), min_size=6, max_size=6),
)
def test_a_global_batch_of_another_size_goes_on_from_the_position_and_loses_nothing(num_items, sizes, steps):
    text = Fleet(num_items, sizes[0], 1, drop_last=False).state()
    ids, epoch = [], 0
    for size, count in zip(sizes, steps, strict=False):
        fleet = Fleet(num_items, size, 1, drop_last=False).load(text)
        for _ in range(count):
            ids += run(fleet, 1)[0]
        text, epoch = fleet.state(), fleet.cursor.epoch
    expected = [one for number in range(epoch + 1) for one in epoch_order(num_items, 7, number)]
    assert ids == expected[: len(ids)]
    assert len(ids) == epoch * num_items + fleet.cursor.position


@given(num_items=st.integers(1, 400), sizes=st.tuples(st.integers(1, 60), st.integers(1, 60)), steps=st.integers(1, 9))
def test_with_dropping_a_larger_batch_misses_less_than_itself_and_never_repeats_the_epoch(num_items, sizes, steps):
    assume(max(sizes) <= num_items)
    first = Fleet(num_items, sizes[0], 1)
    taken = [one for batch in run(first, min(steps, first.steps_left)) for one in batch]
    second = Fleet(num_items, sizes[1], 1).load(first.state())
    if first.cursor.epoch == 0 and second.cursor.epoch == 0:
        taken += [one for batch in run(second, second.steps_left) for one in batch]
    order = epoch_order(num_items, 7, 0)
    assert taken == order[: len(taken)]
    assert num_items - len(taken) < max(sizes)
    assert second.cursor == Cursor(1)
    assert run(second, 1) == [epoch_order(num_items, 7, 1)[: sizes[1]]]


# The scenarios, with the numbers that they were reported with.


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_three_epochs_of_a_hundred_are_three_orders_that_two_runs_share(seed):
    runs = [run(Fleet(100, 4, 2, seed), 75) for _ in range(2)]
    assert runs[0] == runs[1]
    orders = [[one for batch in runs[0][25 * e : 25 * (e + 1)] for one in batch] for e in range(3)]
    assert all(sorted(order) == list(range(100)) for order in orders)
    assert len(set(map(tuple, orders))) == (1 if seed is None else 3)


def test_another_seed_is_another_order_in_every_epoch():
    one, two = (run(Fleet(100, 100, 2, seed), 3) for seed in (1, 2))
    assert all(a != b for a in one for b in two)


def test_a_state_after_each_batch_of_an_uneven_epoch_leads_to_the_same_two_epochs():
    expected = list(itertools.islice(endless_batches(103, 8, True), 24))
    fleet = Fleet(103, 8, 2)
    for done in range(24):
        assert run(Fleet(103, 8, 2).load(fleet.state()), 24 - done) == expected[done:]
        run(fleet, 1)


def test_a_chain_of_saves_with_nothing_between_two_of_them_changes_nothing():
    fleet, got = Fleet(103, 8, 2), []
    for steps in (3, 2, 0, 4):
        got += run(fleet, steps)
        fleet = Fleet(103, 8, 2).load(fleet.state())
    assert got + run(fleet, 3) == list(itertools.islice(endless_batches(103, 8, True), 12))


@pytest.mark.parametrize("done", [0, 63, 64, 66])
def test_around_the_end_of_an_epoch_no_epoch_is_skipped_or_repeated(done):
    fleet = Fleet(512, 8, 2)
    run(fleet, done)
    fleet = Fleet(512, 8, 4).load(fleet.state())
    expected = list(itertools.islice(endless_batches(512, 8, True), 4 * 64))
    assert run(fleet, 4 * 64 - done) == expected[done:]
    assert fleet.cursor == Cursor(4)


def test_the_end_of_an_epoch_and_the_start_of_the_next_are_one_state():
    fleet = Fleet(512, 8, 2)
    run(fleet, 64)
    assert fleet.state() == Fleet(512, 8, 1, cursor=Cursor(1)).state()


def test_four_then_two_then_eight_ranks_continue_one_run_and_three_are_refused_before_the_first_batch():
    expected = endless_batches(96, 8, True)
    text = Fleet(96, 8, 4).state()
    for world_size, steps in ((4, 5), (2, 3), (8, 4)):
        fleet = Fleet(96, 8, world_size).load(text)
        assert run(fleet, steps) == list(itertools.islice(expected, steps))
        text = fleet.state()
    assert fleet.cursor == Cursor(1)
    with pytest.raises(OrderError, match="global_batch_size=8 is not a multiple of world_size=3; 6 and 9"):
        Fleet(96, 8, 3).load(text).step()
    # Another global batch goes on from the position, with three ranks too.
    assert run(Fleet(96, 12, 3).load(text), 1) == [epoch_order(96, 7, 1)[:12]]


@pytest.mark.parametrize(
    ("other", "name"),
    [
        ({"seed": 8}, "seed"),
        ({"seed": None}, "shuffle"),
        ({"num_items": 97}, "num_samples"),
        ({"drop_last": False}, "drop_last"),
    ],
)
def test_a_state_of_another_order_or_other_data_is_refused_by_the_name_of_what_differs(other, name):
    plan = {"num_items": 96, "global_batch_size": 8, "world_size": 2}
    text = Fleet(**plan).state()
    with pytest.raises(StateMismatchError) as refused:
        Fleet(**{**plan, **other}).load(text)
    assert name in refused.value.differences


def test_a_state_names_no_rank_no_worker_and_no_batch_size():
    record = json.loads(Fleet(96, 8, 4).state())
    words = {*record, *record["settings"]}
    assert words == {
        *("version", "epoch", "position", "window", "row", "plan", "settings"),
        *("data", "num_samples", "shuffle", "seed", "order_version", "drop_last"),
    }
