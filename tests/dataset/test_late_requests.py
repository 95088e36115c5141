"""A writer to an object store that slept, and whose next request arrives after all that others did meanwhile."""

import contextlib

import pytest

from flat_stores import KINDS, write
from headrace.errors import CorruptShardError, HeadraceError, StoreError, TemporaryStoreError, UnfinishedDatasetError
from headrace.store import MemoryStore, Store, acquire
from headrace.store.retrying import RetryingStore, RetryPolicy
from headrace.testing import FaultStore, Refuse, Rule, Run, Status


class LateUploads(FaultStore):
    """One whose uploads can be held up between the check and the object: there nothing stops who sleeps."""

    def upload(self, path, file, *, check=None):
        """As a put()."""
        Store.upload(self, path, file, check=check)


STEPS = 40  # more requests than a writer of one shard makes
MINE, THEIRS = [0, 1, 2, 3], [100, 101, 102, 103]  # equally long


OLD = [50, 51, 52, 53]


def woken(kind, nth, take_over, *, old=False):
    """How a writer ended that slept before its nth request, until somebody else had done all he wanted."""
    inner = MemoryStore(flat=True)
    successor = KINDS[kind](inner)
    if old:
        write(successor, [OLD])
    store = LateUploads(inner, [Rule(Run(lambda call: take_over(successor)), nth=nth, times=1)])
    try:
        write(KINDS[kind](store), [MINE])
    except HeadraceError as error:
        return successor, type(error).__name__
    return successor, None


def seen(kind):
    """What a reader sees, checked in every way; None where it is told that something is wrong."""
    try:
        found = kind.contents()
    except (CorruptShardError, UnfinishedDatasetError, StoreError):
        return None
    assert kind.storage.verify() == []
    return found


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_writer_woken_after_its_successor_published_changes_nothing_that_a_reader_would_not_notice(kind, old):
    outcomes = set()
    for nth in range(1, STEPS):
        successor, error = woken(kind, nth, lambda taker: write(taker, [THEIRS], force=True, publish=True), old=old)
        found = seen(successor)
        assert found in (THEIRS, None) or (error is None and found == MINE), nth
        outcomes.add((error, found is None))
    # An upload that came late: its owner took it away again, and readers miss it.
    assert {("LeaseLostError", False), ("LeaseLostError", True), ("PublishedError", False)} <= outcomes


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_writer_woken_after_its_successor_committed_leaves_no_mix_and_nothing_to_clean_up(kind, old):
    for nth in range(1, STEPS):
        successor, _ = woken(kind, nth, lambda taker: write(taker, [THEIRS], force=True), old=old)
        assert seen(successor) in (MINE, THEIRS, None), nth
        write(successor, [range(200, 204)], publish=True)
        assert seen(successor) == [200, 201, 202, 203], nth


@pytest.mark.parametrize("part", range(3))
@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_writer_woken_after_its_successor_died_in_any_of_its_steps_leaves_no_mix(kind, old, part):
    for nth in range(12 + part, STEPS, 3):
        for died in range(1 + part, STEPS, 3):

            def take_over(taker, died=died):
                dying = FaultStore(taker.storage.store, [Rule(Refuse(TemporaryStoreError("dead")), nth=died)])
                with contextlib.suppress(HeadraceError):
                    write(KINDS[kind](dying), [THEIRS], force=True)

            successor, _ = woken(kind, nth, take_over, old=old)
            successor.storage.recover()
            assert seen(successor) in (MINE, THEIRS, None, *([OLD] if old else [])), (nth, died)


@pytest.fixture
def expiring(monkeypatch):
    """As if everybody were on a host of his own and slept for more than an hour: every lease has expired."""
    monkeypatch.setattr("headrace.store.lease.is_here", lambda attempt: False)
    monkeypatch.setitem(acquire.__kwdefaults__, "expires_s", -1.0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_late_upload_whose_answer_is_lost_is_taken_away_again_too(kind):
    policy = RetryPolicy(tries=3, first_wait_s=0.001, longest_wait_s=0.002)
    for nth in range(1, STEPS):
        inner = MemoryStore(flat=True)
        successor = KINDS[kind](inner)

        def take_over(_, successor=successor):
            write(successor, [THEIRS], force=True, publish=True)

        late = [Rule(Run(take_over), nth=nth, times=1), Rule(Status(503, performed=True), nth=nth, times=1)]
        error = None
        try:
            write(KINDS[kind](RetryingStore(LateUploads(inner, late), policy)), [MINE])
        except HeadraceError as caught:
            error = caught
        found = seen(successor)
        assert found in (THEIRS, None) or (error is None and found == MINE), nth


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flat", [True, False])
def test_a_publisher_woken_after_a_shard_was_written_again_publishes_what_is_there_or_nothing(kind, flat, expiring):
    for nth in range(1, STEPS):
        inner = MemoryStore(flat=flat)
        here = KINDS[kind](inner)
        write(here, [MINE])
        late = FaultStore(inner, [Rule(Run(lambda call, here=here: write(here, [THEIRS])), nth=nth, times=1)])
        with contextlib.suppress(HeadraceError):
            KINDS[kind](late).storage.publish()
        assert seen(here) in (MINE, THEIRS, None), nth
        here.storage.publish()
        assert seen(here) in (MINE, THEIRS), nth
