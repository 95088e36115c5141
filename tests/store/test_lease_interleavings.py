"""Leases under every interleaving: a scheduler lets one contender at a time take one step on the store.

Contenders are threads that stop before each request. A run follows a schedule and then goes on without switching;
every place where it could have switched starts another run, up to a bound on the switches (most protocol faults
need two or three).
"""

import threading

import pytest

from headrace.errors import ShardOwnedError
from headrace.store import MemoryStore, acquire
from headrace.store.lease import _encoded, _lease_path, _token_path
from headrace.testing import FaultStore, Rule, Run

PATH = _lease_path("leases", "x")


class Stepped:
    """A function that runs one store request at a time."""

    def __init__(self, function):
        self.finished = False
        self.abandoned = False
        self._go = threading.Semaphore(0)
        self._stopped = threading.Semaphore(0)
        self._function = function
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._stopped.acquire()

    def pause(self, _call=None):
        self._stopped.release()
        self._go.acquire()
        if self.abandoned:
            raise SystemExit

    def step(self):
        self._go.release()
        self._stopped.acquire()

    def abandon(self):
        self.abandoned = True
        while not self.finished:
            self.step()
        self._thread.join()

    def _run(self):
        try:
            self.pause()
            self._function(self.pause)
        except SystemExit:
            pass
        finally:
            self.finished = True
            self._stopped.release()


class World:
    """One store, what happened on it, and who is dead."""

    def __init__(self, *, dead_tokens=()):
        self.store = MemoryStore()
        self.dead = set()
        self.fenced = []
        self.holding = []
        self.outcomes = {}
        self.faults = []
        for token in dead_tokens:
            self.dead.add(f"dead{token}")
            self.store.put(_token_path(PATH, token), _encoded(f"dead{token}"))
        self.contenders = []

    def add(self, name, *, rounds=1, release=False):
        def run(pause):
            store = FaultStore(self.store, [Rule(Run(pause))])
            for turn in range(rounds):
                self.hold(store, f"{name}{turn or ''}", pause, release=release or turn < rounds - 1)

        self.contenders.append(Stepped(run))

    def hold(self, store, name, pause, *, release):
        try:
            lease = acquire(
                store, "leases", "x", what=name, attempt=name, on_takeover=lambda who: self.fence(name, who)
            )
        except ShardOwnedError as error:
            self.outcomes[name] = f"refused by {error.holder['attempt']}"
            return
        self.outcomes[name] = "won"
        self.holding.append(name)
        if len(self.holding) > 1:
            self.faults.append(f"{self.holding} hold at once")
        if release:
            pause()
            self.holding.remove(name)
            lease.release()

    def fence(self, name, who):
        if who in self.holding:
            self.faults.append(f"{name} fenced {who}, which holds the lease")
        self.fenced.append((name, who))


@pytest.fixture(autouse=True)
def world_of(monkeypatch):
    """Make the lease code ask the world who is dead."""
    current = []
    monkeypatch.setattr("headrace.store.lease.is_dead", lambda attempt: attempt in current[-1].dead)
    monkeypatch.setattr("headrace.store.lease.is_here", lambda attempt: True)
    return current


def worlds(build, current, *, switches):
    """Every world that the schedules with at most so many switches lead to."""
    schedules = [([], 0)]
    while schedules:
        schedule, used = schedules.pop()
        world = build()
        current.append(world)
        trace = []
        running = None
        while runnable := [index for index, contender in enumerate(world.contenders) if not contender.finished]:
            if len(trace) < len(schedule):
                choice = schedule[len(trace)]
            else:
                choice = running if running in runnable else runnable[0]
                cost = 1 if running in runnable else 0
                if used + cost <= switches:
                    schedules += [([*trace, other], used + cost) for other in runnable if other != choice]
            world.contenders[choice].step()
            trace.append(choice)
            running = choice
        assert world.faults == [], trace
        yield world
        current.pop()


@pytest.mark.parametrize("dead_tokens", [(), (1,), (3,), (1, 2)])
def test_exactly_one_of_two_contenders_wins_in_every_interleaving(world_of, dead_tokens):
    def build():
        world = World(dead_tokens=dead_tokens)
        world.add("a")
        world.add("b")
        return world

    seen = set()
    for world in worlds(build, world_of, switches=4):
        assert sorted(world.outcomes.values()) in (["refused by a", "won"], ["refused by b", "won"])
        winner = world.holding[0]
        assert world.fenced == [(winner, f"dead{token}") for token in dead_tokens]
        assert len(world.store.list()) == 1
        seen.add(winner)
    assert seen == {"a", "b"}


def test_three_contenders_over_a_dead_holder_have_one_winner(world_of):
    def build():
        world = World(dead_tokens=(1,))
        for name in "abc":
            world.add(name)
        return world

    for world in worlds(build, world_of, switches=2):
        assert sorted(outcome[:3] for outcome in world.outcomes.values()) == ["ref", "ref", "won"]


@pytest.mark.parametrize("dead_tokens", [(), (1,)])
def test_two_never_hold_at_once_though_they_come_and_go(world_of, dead_tokens):
    # One that comes back holds a token of the number that the other may have judged dead: only its version differs.
    def build():
        world = World(dead_tokens=dead_tokens)
        world.add("a", release=True)
        world.add("b", rounds=2, release=True)
        return world

    for world in worlds(build, world_of, switches=3):
        assert set(world.outcomes) == {"a", "b", "b1"}
        assert world.holding == []
        assert world.store.list() == []


def test_a_contender_that_dies_anywhere_does_not_stop_the_other(world_of):
    for steps in range(1, 30):
        for head_start in range(4):
            world = World(dead_tokens=(1,))
            world_of.append(world)
            world.add("a")
            world.add("b")
            first, second = world.contenders
            for _ in range(head_start):
                second.step()
            for _ in range(steps):
                if not first.finished:
                    first.step()
            survived = first.finished
            if not survived:
                world.dead.add("a")
                world.holding.clear()
            while not second.finished:
                second.step()
            assert world.faults == []
            if survived:
                assert sorted(outcome[:3] for outcome in world.outcomes.values()) == ["ref", "won"]
            else:
                if world.outcomes["b"] != "won":  # it looked while "a" was alive: looking again is enough
                    world.add("c")
                    while not world.contenders[2].finished:
                        world.contenders[2].step()
                assert "won" in (world.outcomes["b"], world.outcomes.get("c"))
                assert len(world.store.list()) == 1
                frozen = dict(world.store._objects)
                first.abandon()
                world.store._objects = frozen
            world_of.pop()
