import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

import cache_rounds
from cache_scenes import NAMES, LoggedRemote, bind, content, describe, kept, on_their_way, remote_store
from headrace import CachedStore
from headrace.errors import AccessDeniedError
from headrace.store.eviction import pin_name
from headrace.testing import Rule, Run

FIRST = NAMES[0]


def rounds(folder, first, last, timeout):
    done = subprocess.run(
        [sys.executable, cache_rounds.__file__, str(folder), str(first), str(last)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_eight_processes_on_a_cold_cache_fetch_each_file_once_and_three_of_them_may_be_killed(tmp_path):
    untroubled, compressed, killed = rounds(tmp_path, 0, 3, 60)
    assert untroubled["fetches"] == compressed["fetches"] == len(NAMES)
    assert killed["fetches"] <= len(NAMES) + 3


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_fifty_rounds_of_eight_processes_killed_stopped_short_of_room_and_overwritten(tmp_path):
    results = rounds(tmp_path, 0, 50, 280)
    assert len(results) == 50
    assert all(result["fetches"] == len(NAMES) for result in results if not result["plan"])


def remote_in(folder, *, pause_s=0.0, names=NAMES):
    remote = LoggedRemote(folder / "remote", folder / "log", pause_s=pause_s, piece_bytes=100)
    for name in names:
        remote.put(name, content(name))
    return remote


def forked(function):
    pid = os.fork()
    if pid == 0:
        try:
            function()
            os._exit(0)
        finally:
            os._exit(1)
    return pid


def wait_until(condition, seconds=20):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.002)


def test_a_downloader_that_is_killed_leaves_its_place_at_once_although_its_children_live_on(tmp_path):
    remote = remote_in(tmp_path, pause_s=0.5)
    gate, hold = os.pipe()

    def downloader():
        dataset = bind(remote, tmp_path / "cache")
        threading.Thread(target=dataset.view, args=(FIRST,)).start()
        wait_until(lambda: on_their_way(tmp_path / "cache"))
        child = forked(lambda: (os.close(hold), os.read(gate, 1)))  # ends with the test, whatever comes
        (tmp_path / "child").write_text(str(child))
        threading.Event().wait(60)

    pid = forked(downloader)
    wait_until((tmp_path / "child").exists)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    begin = time.monotonic()
    assert bytes(bind(remote_in(tmp_path), tmp_path / "cache").view(FIRST)) == content(FIRST)
    assert time.monotonic() - begin < 10  # takeover_s is a minute
    assert on_their_way(tmp_path / "cache") == []
    os.write(hold, b"x")


def test_what_dead_processes_had_on_their_way_is_gone_when_the_next_one_opens_a_dataset(tmp_path):
    remote = remote_in(tmp_path, pause_s=0.5)
    for name in NAMES[:5]:
        pid = forked(lambda name=name: bind(remote, tmp_path / "cache").view(name))
        wait_until(lambda name=name: on_their_way(tmp_path / "cache"))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        bind(remote, tmp_path / "cache")
        assert on_their_way(tmp_path / "cache") == []
    assert kept(tmp_path / "cache") == {}


def test_a_stopped_downloader_is_passed_over_and_wakes_without_harm(tmp_path):
    remote = remote_in(tmp_path, pause_s=0.05)
    pid = forked(lambda: bind(remote, tmp_path / "cache").view(FIRST))
    wait_until(lambda: on_their_way(tmp_path / "cache"))
    os.kill(pid, signal.SIGSTOP)
    quick = LoggedRemote(tmp_path / "remote", tmp_path / "log")
    view = bind(quick, tmp_path / "cache", takeover_s=0.3).view(FIRST)
    assert bytes(view) == content(FIRST)
    os.kill(pid, signal.SIGCONT)
    assert os.waitpid(pid, 0)[1] == 0
    assert on_their_way(tmp_path / "cache") == []
    assert kept(tmp_path / "cache")[FIRST].read_bytes() == content(FIRST)
    assert len(quick.fetched()) == 2


def test_a_slow_download_is_not_passed_over(tmp_path):
    remote = remote_in(tmp_path, pause_s=0.1)  # a second in all
    pid = forked(lambda: bind(remote, tmp_path / "cache").view(FIRST))
    wait_until(lambda: on_their_way(tmp_path / "cache"))
    assert bytes(bind(remote, tmp_path / "cache", takeover_s=0.5).view(FIRST)) == content(FIRST)
    assert os.waitpid(pid, 0)[1] == 0
    assert len(remote.fetched()) == 1


def test_one_that_is_stopped_while_it_makes_room_stops_nobody_else(tmp_path):
    remote = remote_in(tmp_path)
    dataset = bind(remote, tmp_path / "cache", limit=3000)
    for name in NAMES[:3]:
        dataset.view(name)
    stopped = bind(remote, tmp_path / "cache", limit=3000)._copies.folder.locks
    assert stopped.take("room")
    assert stopped.take(pin_name(dataset._known[FIRST].entry.name))
    begin = time.monotonic()
    for name in NAMES:
        assert bytes(dataset.view(name)) == content(name)
    assert time.monotonic() - begin < 20
    assert FIRST in kept(tmp_path / "cache")


def test_a_reader_that_is_killed_keeps_nothing_pinned(tmp_path):
    remote = remote_in(tmp_path)
    gate, hold = os.pipe()

    def reader():
        view = bind(remote, tmp_path / "cache", limit=1000).view(FIRST)
        (tmp_path / "pinned").touch()
        os.read(gate, 1)
        assert len(view)

    pid = forked(reader)
    wait_until((tmp_path / "pinned").exists)
    dataset = bind(remote, tmp_path / "cache", limit=1000)
    dataset.view(NAMES[1])
    assert sorted(kept(tmp_path / "cache")) == [FIRST]
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    dataset.view(NAMES[1])
    assert sorted(kept(tmp_path / "cache")) == [NAMES[1]]
    os.write(hold, b"x")


def _spawned(cached, described, name, queue):
    queue.put(bytes(cached.of_dataset("fp", described).view(name)))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_cache_that_was_used_goes_on_in_a_child_of_any_start_method(tmp_path, method):
    remote = remote_in(tmp_path)
    cached = CachedStore(remote, tmp_path / "cache")
    held = cached.of_dataset("fp", describe()).view(FIRST)
    context = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    for name in NAMES[:2]:
        args = (cached, describe() if method == "fork" else Described(), name, queue)
        child = context.Process(target=_spawned, args=args)
        child.start()
        assert queue.get() == content(name)
        child.join(30)
        assert child.exitcode == 0
    assert [path for _, path in remote.fetched()] == NAMES[:2]
    assert bytes(held) == content(FIRST)


class Described:
    def __call__(self, name):
        return describe()(name)


def test_a_child_that_ends_does_not_unpin_what_its_parent_has_mapped(tmp_path):
    remote = remote_in(tmp_path)
    dataset = bind(remote, tmp_path / "cache", limit=1000)
    view = dataset.view(FIRST)

    def child():
        nonlocal view
        view = None
        dataset.view(NAMES[1])

    assert os.waitpid(forked(child), 0)[1] == 0
    assert sorted(kept(tmp_path / "cache")) == [FIRST]
    assert bytes(view) == content(FIRST)


def test_processes_that_wait_get_the_error_of_the_one_that_tried(tmp_path):
    remote = remote_in(tmp_path)
    faulty = remote_store()
    faulty.location = remote.location

    def refuse(call):
        time.sleep(0.7)
        raise AccessDeniedError("s3://b/x: no right to read it")

    faulty.rules.append(Rule(Run(refuse), operation="pieces"))

    def downloader():
        with contextlib.suppress(AccessDeniedError):
            bind(faulty, tmp_path / "cache").view(FIRST)

    pid = forked(downloader)
    wait_until(lambda: on_their_way(tmp_path / "cache"))
    with pytest.raises(AccessDeniedError, match="no right to read it"):
        bind(remote, tmp_path / "cache").view(FIRST)
    assert os.waitpid(pid, 0)[1] == 0
    assert remote.fetched() == []
    assert bytes(bind(remote, tmp_path / "cache").view(FIRST)) == content(FIRST)
