"""The rows that each rank and worker reads in one iteration, against dealing cards by hand."""

from itertools import chain

import numpy as np
import pytest

from headrace.errors import ClosedError, StateError
from headrace.loading.world import World
from headrace.planning import Cursor
from headrace.streaming.iteration import Reading, RowIterator, Share


def share(num_rows, batch, rank=0, ranks=1, worker=0, workers=1):
    return Share(num_rows, batch, World(rank, ranks), worker, workers)


def identity(positions):
    return positions


def rows_of(a_share, start=None, *, state=None):
    iterator = RowIterator(a_share, start or Cursor(), Reading(identity, lambda numbers: numbers.tolist()))
    if state is not None:
        iterator.load_state_dict(state)
    return list(iterator)


def dealt(num_rows, batch, ranks, position=0):
    """For each rank its batches, dealt one card at a time; the first rows fill up what the last deal lacks."""
    cards = list(range(position, num_rows))
    while len(cards) % ranks:
        cards.append((len(cards) + position) % num_rows)
    hands = [[[]] for _ in range(ranks)]
    for number, card in enumerate(cards):
        batches = hands[number % ranks]
        if len(batches[-1]) == batch:
            batches.append([])
        batches[-1].append(card)
    return [batches if cards else [] for batches in hands]


@pytest.mark.parametrize("num_rows", [0, 1, 2, 3, 7, 8, 9, 49, 64, 101])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_workers_that_take_turns_give_each_rank_the_batches_it_was_dealt(num_rows, ranks):
    for batch in (1, 2, 3, 4, 7):
        for workers in (1, 2, 3):
            for rank, batches in enumerate(dealt(num_rows, batch, ranks)):
                for worker in range(workers):
                    mine = [row for hand in batches[worker::workers] for row in hand]
                    assert rows_of(share(num_rows, batch, rank, ranks, worker, workers)) == mine


def test_every_rank_has_as_many_rows_and_says_which_are_repeats():
    for num_rows in range(1, 60):
        for ranks in (1, 2, 3, 5, 8):
            shares = [share(num_rows, 3, rank, ranks) for rank in range(ranks)]
            rows = [rows_of(one) for one in shares]
            assert {len(some) for some in rows} == {-(-num_rows // ranks)}
            assert sum(map(len, rows)) - num_rows == sum(one.padding(0) for one in shares)
            unpadded = [some[: len(some) - one.padding(0)] for some, one in zip(rows, shares, strict=True)]
            assert sorted(chain.from_iterable(unpadded)) == list(range(num_rows))


def test_an_iteration_from_within_an_epoch_has_the_rest_of_it():
    for position in (0, 6, 12, 20, 23, 24):
        for rank, batches in enumerate(dealt(24, 2, 3, position)):
            assert rows_of(share(24, 2, rank, 3), Cursor(0, position)) == list(chain.from_iterable(batches))


def test_positions_of_later_epochs_are_endless():
    assert rows_of(share(10, 4), Cursor(3)) == list(range(30, 40))


@pytest.mark.parametrize("workers", [1, 3])
def test_an_iterator_goes_on_from_its_state_after_any_number_of_samples(workers):
    a_share = share(50, 4, 1, 2, workers - 1, workers)
    everything = rows_of(a_share, Cursor(1, 8))
    iterator = RowIterator(a_share, Cursor(1, 8), Reading(identity, lambda numbers: numbers.tolist()))
    for count in range(len(everything) + 1):
        assert rows_of(a_share, state=iterator.state_dict()) == everything[count:]
        next(iterator, None)


@pytest.mark.parametrize(
    "other", [share(50, 4, 0, 2), share(50, 4, 1, 2, 0, 2), share(50, 5, 1, 2), share(51, 4, 1, 2)]
)
def test_a_state_of_another_share_is_refused(other):
    state = RowIterator(share(50, 4, 1, 2), Cursor(), Reading(identity, list)).state_dict()
    with pytest.raises(StateError, match="same worker of as many"):
        rows_of(other, state=state)


@pytest.mark.parametrize("damage", [{"handed_out": -1}, {"epoch": "1"}, {"position": None}])
def test_a_damaged_state_is_refused(damage):
    a_share = share(50, 4)
    state = RowIterator(a_share, Cursor(), Reading(identity, list)).state_dict() | damage
    with pytest.raises(StateError, match="damaged"):
        rows_of(a_share, state=state)


def test_after_an_error_an_iterator_does_not_look_ended():
    def read(numbers):
        if 12 in numbers:
            raise ValueError("row 12")
        return numbers.tolist()

    iterator = RowIterator(share(40, 4), Cursor(), Reading(identity, read))
    assert [next(iterator) for _ in range(12)] == list(range(12))
    with pytest.raises(ValueError, match="row 12"):
        next(iterator)
    for _ in range(2):
        with pytest.raises(ClosedError, match="an error ended"):
            next(iterator)


def test_an_error_comes_in_its_turn_behind_all_rows_before_it():
    def read(numbers):
        if 300 in numbers:
            raise ValueError("row 300")
        return numbers.tolist()

    iterator = RowIterator(share(1000, 1), Cursor(), Reading(identity, read))
    assert [next(iterator) for _ in range(300)] == list(range(300))
    with pytest.raises(ValueError, match="row 300"):
        next(iterator)


def test_what_a_rank_has_handed_out_tells_how_far_all_are():
    iterator = RowIterator(share(23, 3, 1, 2), Cursor(0, 2), Reading(identity, lambda numbers: numbers.tolist()))
    seen = []
    for _ in iterator:
        seen.append(iterator.position)
    assert seen == [4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 23]


def test_little_is_read_before_the_first_sample_is_asked_for():
    asked = []

    def read(numbers):
        asked.append(len(numbers))
        return numbers.tolist()

    iterator = RowIterator(share(10**9, 1), Cursor(), Reading(identity, read))
    assert asked == []
    next(iterator)
    assert asked == [1]
    for _ in range(500):
        next(iterator)
    assert max(asked) == 64


def test_a_place_far_inside_an_epoch_is_reached_at_once():
    far = 10**12
    iterator = RowIterator(share(2 * far, 8, 5, 64), Cursor(7, far), Reading(identity, np.ndarray.tolist))
    assert next(iterator) == 7 * 2 * far + far + 5
