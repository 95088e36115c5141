"""Leases with real processes: who wins, who is refused, and what a killed or stopped holder leaves."""

import contextlib
import itertools
import json
import multiprocessing
import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from flat_stores import FlatFolder
from headrace.errors import LeaseLostError, NotFoundError, ShardOwnedError, StoreError, TemporaryStoreError
from headrace.store import LocalStore, MemoryStore, acquire, attempt_id, is_dead, is_here, open_leases, process_identity
from headrace.store.lease import _lease_path
from headrace.testing import FaultStore, Refuse, Rule, Run, Status

fork = multiprocessing.get_context("fork")


def take(store, name="00003", *, fenced=None, **options):
    fenced = [] if fenced is None else fenced
    return acquire(store, "leases", name, what="shard 3", attempt=attempt_id(), on_takeover=fenced.append, **options)


@pytest.fixture(params=["a directory", "objects"])
def store(tmp_path, request):
    return FlatFolder(tmp_path / "data") if request.param == "objects" else LocalStore(tmp_path / "data", fsync=False)


@contextlib.contextmanager
def holder_process(store, name="00003"):
    """A process that holds the lease until it is killed: (pid, attempt)."""
    ours, theirs = fork.Pipe()

    def hold():
        lease = take(store, name)
        theirs.send(json.loads(lease._content)["attempt"])
        signal.pause()

    process = fork.Process(target=hold)
    process.start()
    try:
        assert ours.poll(20)
        yield process.pid, ours.recv()
    finally:
        process.kill()
        process.join()


def kill(pid):
    os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # dead, and still a zombie


def other_host(**changes):
    attempt = f"{'0' * 8}-{'1' * 8}-77-123456-5"
    return json.dumps(
        {"host": "elsewhere", "boot": "1" * 8, "pid": 77, "started": 123456, "attempt": attempt, "acquired_at": 1.0}
        | changes
    ).encode()


def plant(store, content, token=1):
    """Put a token where acquire() looks for it; returns its path without "<token>.lease"."""
    path = _lease_path("leases", "00003")
    store.put(f"{path}.{token}.lease", content)
    return path


def names(store):
    return [entry.path.rpartition("/")[2] for entry in store.list()]


# One holder


def test_a_lease_is_held_until_it_is_released(store):
    lease = take(store)
    lease.check()
    assert names(store) == ["00003.1.lease"]
    with pytest.raises(ShardOwnedError) as caught:
        take(store)  # the same process is refused like any other
    error = caught.value
    assert (error.where, error.what) == (store.location, "shard 3")
    assert error.holder["pid"] == os.getpid()
    assert error.holder["host"] == os.uname().nodename
    assert 0 <= error.age_s < 60
    assert f"shard 3 is being written by process {os.getpid()} on host {os.uname().nodename} since 0 s" in str(error)
    lease.release()
    lease.release()
    assert names(store) == []
    take(store).check()


def test_a_released_lease_no_longer_passes_the_check(store):
    lease = take(store)
    lease.release()
    with pytest.raises(LeaseLostError, match="shard 3"):
        lease.check()


def test_leases_of_other_names_do_not_matter(store):
    held = [take(store, name) for name in ("1", "11", "1.1", "1.lease", "01")]
    assert set(open_leases(store, "leases")) == {"1", "11", "1.1", "1.lease", "01"}
    for lease in held:
        lease.check()
        lease.release()
    assert open_leases(store, "leases") == {}


def test_open_leases_tell_the_holder_of_each(store):
    assert open_leases(store, "leases") == {}
    take(store, "a")
    with holder_process(store, "b") as (pid, attempt):
        holders = open_leases(store, "leases")
        assert {name: holder["pid"] for name, holder in holders.items()} == {"a": os.getpid(), "b": pid}
        assert holders["b"]["attempt"] == attempt
        assert attempt.startswith(
            f"{holders['b']['attempt'][:8]}-{holders['b']['boot']}-{pid}-{holders['b']['started']}-"
        )


def test_leases_in_the_root_work_too(store):
    lease = acquire(store, "", "x", what="x", attempt=attempt_id(), on_takeover=print)
    lease.check()
    assert list(open_leases(store, "")) == ["x"]
    lease.release()


def test_a_lease_costs_the_same_however_many_are_held():
    store = MemoryStore()
    held = [take(store, f"{number:05d}") for number in range(300)]
    calls = FaultStore(store)
    take(calls, "12345")
    listed = max(len(store.list(call.path, recursive=False)) for call in calls.calls if call.operation == "list")
    assert listed < 20  # of 301
    for lease in held:
        lease.release()


# Two contenders


def test_of_two_processes_that_race_exactly_one_wins_fifty_times(store):
    def contend(pipe):
        while (order := pipe.recv()) is not None:
            name, delay_s = order
            time.sleep(delay_s)
            try:
                lease = take(store, name)
            except ShardOwnedError as error:
                pipe.send(("refused", error.holder["pid"], error.holder["host"], error.age_s))
                continue
            pipe.send(("won", os.getpid()))
            pipe.recv()
            lease.check()
            lease.release()
            pipe.send("released")

    offsets = random.Random(0)
    pipes, processes = [], []
    for _ in range(2):
        ours, theirs = fork.Pipe()
        processes.append(fork.Process(target=contend, args=(theirs,)))
        processes[-1].start()
        pipes.append(ours)
    try:
        for turn in range(50):
            for pipe in pipes:
                pipe.send((f"{turn:05d}", offsets.uniform(0, 0.02)))
            answers = [pipe.recv() for pipe in pipes]
            winner = next(index for index, answer in enumerate(answers) if answer[0] == "won")
            outcome, pid, host, age_s = answers[1 - winner]
            assert (outcome, pid, host) == ("refused", processes[winner].pid, os.uname().nodename)
            assert 0 <= age_s < 30
            pipes[winner].send("go on")
            assert pipes[winner].recv() == "released"
    finally:
        for pipe, process in zip(pipes, processes, strict=True):
            pipe.send(None)
            process.join(10)
            process.kill()
    assert names(store) == []


@pytest.mark.parametrize("turn", range(5))
def test_of_six_processes_that_race_for_a_dead_ones_lease_exactly_one_wins(store, turn):
    with holder_process(store) as (pid, dead_attempt):
        kill(pid)
        ours, theirs = fork.Pipe(duplex=False)
        start = fork.Barrier(6)
        end = fork.Barrier(7)
        lock = fork.Lock()

        def contend():
            fenced = []
            start.wait(20)
            try:
                lease = take(store, fenced=fenced)
                lease.check()
                answer = ("won", fenced)
            except ShardOwnedError:
                answer = ("refused", fenced)
            with lock:
                theirs.send(answer)
            end.wait(20)  # nobody leaves before all have tried, so the winner stays alive

        processes = [fork.Process(target=contend) for _ in range(6)]
        for process in processes:
            process.start()
        answers = [ours.recv() for _ in processes]
        end.wait(20)
        for process in processes:
            process.join(20)
    assert sorted(outcome for outcome, _ in answers) == ["refused"] * 5 + ["won"]
    assert [fenced for outcome, fenced in answers if outcome == "won"] == [[dead_attempt]]
    assert len(names(store)) == 1


# Dead, stopped, forked, far away


def test_a_killed_holder_is_succeeded_even_while_it_is_a_zombie(store):
    fenced = []
    with holder_process(store) as (pid, attempt):
        with pytest.raises(ShardOwnedError):
            take(store)
        kill(pid)
        lease = take(store, fenced=fenced)
    assert fenced == [attempt]
    assert names(store) == ["00003.2.lease"]
    lease.check()
    lease.release()
    assert names(store) == []


def test_a_stopped_holder_is_alive_and_only_force_takes_over(store):
    fenced = []
    with holder_process(store) as (pid, attempt):
        os.kill(pid, signal.SIGSTOP)
        os.waitpid(pid, os.WUNTRACED)
        with pytest.raises(ShardOwnedError, match=f"process {pid}"):
            take(store, fenced=fenced)
        assert fenced == []
        take(store, fenced=fenced, force=True).check()
        assert fenced == [attempt]


def test_a_woken_holder_learns_that_it_lost(store):
    lost = take(store)
    winner = take(store, force=True)
    with pytest.raises(LeaseLostError):
        lost.check()
    lost.release()
    winner.check()
    winner.release()
    newcomer = take(store)  # has the token number that the lost lease had
    with pytest.raises(LeaseLostError):
        lost.check()
    lost.release()
    newcomer.check()


def test_a_lost_lease_leaves_the_successor_alone_when_it_is_released_late(store):
    lost = take(store)
    take(store, force=True).release()
    newcomer = take(store)
    assert newcomer.token == lost.token
    lost.release()
    newcomer.check()


def test_a_forked_child_is_another_process(store):
    lease = take(store)
    ours, theirs = fork.Pipe(duplex=False)

    def in_child():
        seen = []
        for action in (lease.check, lambda: take(store)):
            try:
                action()
            except (LeaseLostError, ShardOwnedError) as error:
                seen.append(type(error).__name__)
        lease.release()  # the parent's; the child has no say
        theirs.send((seen, process_identity(), attempt_id()))

    child = fork.Process(target=in_child)
    child.start()
    seen, identity, attempt = ours.recv()
    child.join()
    assert seen == ["LeaseLostError", "ShardOwnedError"]
    assert identity != process_identity()
    assert attempt.startswith(identity)
    assert is_dead(identity)
    lease.check()


def test_a_lease_of_another_host_counts_until_it_expires_by_the_stores_clock(store):
    path = plant(store, other_host())
    with pytest.raises(ShardOwnedError, match="process 77 on host elsewhere") as caught:
        take(store, expires_s=3600)
    assert 0 <= caught.value.age_s < 60  # by the file's time: the holder's own clock said 1970
    full = os.path.join(store.location, f"{path}.1.lease")
    os.utime(full, (time.time() - 3500,) * 2)
    with pytest.raises(ShardOwnedError, match=r"since 3[45]\d\d s"):
        take(store, expires_s=3600)
    os.utime(full, (time.time() - 3700,) * 2)
    fenced = []
    take(store, expires_s=3600, fenced=fenced)
    assert fenced == [json.loads(other_host())["attempt"]]
    assert names(store) == ["00003.2.lease"]  # the clock file is gone too


def test_a_renewed_lease_of_another_host_does_not_expire(store):
    path = plant(store, other_host())
    os.utime(os.path.join(store.location, f"{path}.1.lease"), (time.time() - 5000,) * 2)
    store.put(f"{path}.1.beat", b"")
    with pytest.raises(ShardOwnedError, match=r"since 50\d\d s"):
        take(store)
    os.utime(os.path.join(store.location, f"{path}.1.beat"), (time.time() - 4000,) * 2)
    take(store)
    assert names(store) == ["00003.2.lease"]


def test_renewing_writes_once_a_minute_and_never_revives_a_lost_lease(store, monkeypatch):
    lease = take(store)
    lease.renew()
    assert names(store) == ["00003.1.lease"]
    monkeypatch.setattr("headrace.store.lease.RENEW_EVERY_S", 0.0)
    lease.renew()
    assert names(store) == ["00003.1.beat", "00003.1.lease"]
    winner = take(store, force=True)
    assert names(store) == ["00003.2.lease"]
    with pytest.raises(LeaseLostError):
        lease.renew()
    assert names(store) == ["00003.2.lease"]
    winner.renew()
    winner.release()
    assert names(store) == []


def test_a_takeover_in_the_middle_of_a_renewal_leaves_nothing(store, monkeypatch):
    monkeypatch.setattr("headrace.store.lease.RENEW_EVERY_S", 0.0)
    winners = []
    faulty = FaultStore(store, [Rule(Run(lambda _: winners.append(take(store, force=True))), "put", path="*.beat")])
    lease = take(faulty)
    with pytest.raises(LeaseLostError):
        lease.renew()
    assert names(store) == ["00003.2.lease"]
    winners[0].check()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"pid": 3}', b"\xff"])
def test_an_unreadable_lease_can_only_expire(store, content):
    path = plant(store, content)
    with pytest.raises(ShardOwnedError, match="unknown"):
        take(store)
    assert open_leases(store, "leases")["00003"]["attempt"] == ""
    os.utime(os.path.join(store.location, f"{path}.1.lease"), (time.time() - 4000,) * 2)
    fenced = []
    take(store, fenced=fenced)
    assert fenced == []


# What a takeover does, and in which order


def dead_attempts(count):
    """Attempts of processes that ran here and are gone."""
    attempts = []
    for _ in range(count):
        ours, theirs = fork.Pipe(duplex=False)
        child = fork.Process(target=lambda pipe=theirs: pipe.send(attempt_id()))
        child.start()
        attempts.append(ours.recv())
        child.join()
    return attempts


def test_every_predecessor_is_fenced_before_any_token_goes(store):
    attempts = dead_attempts(3)
    for token, attempt in enumerate(attempts, 4):
        plant(store, token_of(attempt), token)
    seen = []

    def fence(attempt):
        seen.append((attempt, names(store)))

    acquire(store, "leases", "00003", what="shard 3", attempt=attempt_id(), on_takeover=fence)
    everything = [f"00003.{token}.lease" for token in (4, 5, 6, 7)]
    assert seen == [(attempt, everything) for attempt in attempts]
    assert names(store) == ["00003.7.lease"]


def token_of(attempt):
    host, boot, pid, started, _ = attempt.split("-")
    return json.dumps(
        {"host": host, "boot": boot, "pid": int(pid), "started": int(started), "attempt": attempt, "acquired_at": 1.0}
    ).encode()


def test_a_living_holder_below_a_dead_claim_is_still_alive(store):
    living = take(store)
    plant(store, token_of(dead_attempts(1)[0]), 2)  # a forced taker that died before the fence
    with pytest.raises(ShardOwnedError, match=f"process {os.getpid()}"):
        take(store)
    with pytest.raises(LeaseLostError):
        living.check()
    living.release()
    take(store).check()


def test_a_failing_fence_gives_the_claim_back(store):
    plant(store, token_of(dead_attempts(1)[0]))

    def fence(attempt):
        raise NotFoundError("cannot fence")

    with pytest.raises(NotFoundError, match="cannot fence"):
        acquire(store, "leases", "00003", what="shard 3", attempt=attempt_id(), on_takeover=fence)
    assert names(store) == ["00003.1.lease"]


def test_a_lease_of_which_only_the_answer_was_lost_does_not_shut_out_its_own_process(store):
    lossy = FaultStore(store, [Rule(Status(503, performed=True), "put_if_absent", times=1)])
    with pytest.raises(TemporaryStoreError):
        take(lossy)
    assert open_leases(store, "leases") == {}
    lossy.rules.append(Rule(Status(503, performed=True), "put_if_absent"))
    lossy.rules.append(Rule(Refuse(StoreError("no answer")), "delete"))
    with pytest.raises(TemporaryStoreError, match="503"):
        take(lossy)
    assert len(open_leases(store, "leases")) == 1
    take(store).release()
    assert open_leases(store, "leases") == {}


def test_ctrl_c_right_behind_the_claim_gives_it_back(store):
    class Interrupted(FaultStore):
        def put_if_absent(self, path, data):
            super().put_if_absent(path, data)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        take(Interrupted(store))
    assert open_leases(store, "leases") == {}


def test_a_lease_whose_release_fails_does_not_shut_out_its_own_process(store):
    broken = FaultStore(store)
    lease = take(broken)
    broken.rules.append(Rule(Refuse(StoreError("no answer")), "delete"))
    with pytest.raises(StoreError, match="no answer"):
        lease.release()
    take(store).release()
    assert open_leases(store, "leases") == {}


def test_a_taker_killed_at_any_step_leaves_what_the_next_one_handles(tmp_path):
    dead = dead_attempts(1)[0]
    for step in itertools.count(1):
        store = LocalStore(tmp_path / str(step), fsync=False)
        plant(store, token_of(dead))
        ours, theirs = fork.Pipe(duplex=False)

        def taker(store=store, step=step, theirs=theirs):
            faulty = FaultStore(store, [Rule(Run(lambda _: os.kill(os.getpid(), signal.SIGKILL)), nth=step, times=1)])
            lease = take(faulty)
            lease.release()
            theirs.send("survived")

        process = fork.Process(target=taker)
        process.start()
        process.join(20)
        survived = ours.poll()
        fenced = []
        next_lease = take(store, fenced=fenced)
        next_lease.check()
        tokens = [name for name in names(store) if name.endswith(".lease")]
        assert tokens == [f"00003.{next_lease.token}.lease"]
        next_lease.release()
        assert names(store) == []
        if survived:
            break
        assert all(is_dead(attempt) for attempt in fenced)
    assert step > 8  # list, get, put, list, get, delete, and the release


# Identities


def test_an_identity_tells_the_living_from_the_dead():
    own = process_identity()
    assert own == process_identity()
    assert not is_dead(own)
    assert is_here(own)
    host, boot, pid, start = own.split("-")
    assert int(pid) == os.getpid()
    assert is_dead(f"{host}-{boot}-{pid}-{int(start) + 1}")  # the process id was used again
    assert is_dead(f"{host}-{'f' * 8}-{pid}-{start}")  # before the last boot
    assert not is_dead(f"{'f' * 8}-{boot}-{pid}-{int(start) + 1}")  # another host: who knows
    assert not is_dead(f"{host}-{'0' * 8}-{pid}-{start}")  # the boot is unknown
    assert not is_dead(f"{host}-{boot}-{pid}-0")  # the start is unknown


@pytest.mark.parametrize("text", ["", "x", "-", "a-b-c-d", "0" * 40, "12345678-12345678-0-1", "12345678-12345678--1-1"])
def test_text_that_is_no_identity_is_neither_here_nor_dead(text):
    assert not is_dead(text)
    assert not is_here(text)


def test_attempts_are_unique_among_threads_and_forks():
    with ThreadPoolExecutor(4) as pool:
        attempts = list(pool.map(lambda _: attempt_id(), range(500)))
    attempts += dead_attempts(2)
    assert len(set(attempts)) == len(attempts)
    assert all(attempt.rpartition("-")[0] == process_identity() for attempt in attempts[:500])
