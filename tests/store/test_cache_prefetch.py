import gc
import os
import threading
import time

import pytest

from cache_scenes import NAMES, LoggedRemote, bind, content, fetches, kept, remote_store, usage
from headrace.errors import StoreError
from headrace.store.cache_files import CacheFolder
from headrace.store.eviction import cached_data
from headrace.testing import Delay, Refuse, Rule, Run

FIRST = NAMES[0]


def wait_until(condition, seconds=20):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.002)


def prefetch_threads():
    return [thread for thread in threading.enumerate() if thread.name == "headrace prefetch"]


@pytest.fixture(autouse=True)
def _no_thread_stays():
    yield
    gc.collect()
    wait_until(lambda: not prefetch_threads())


def test_files_are_fetched_ahead_in_the_order_of_need_and_the_call_returns_at_once(tmp_path):
    remote = remote_store()
    go_on = threading.Event()
    remote.rules.append(Rule(Run(lambda call: go_on.wait(20)), operation="pieces"))
    dataset = bind(remote, tmp_path)
    order = NAMES[5:] + NAMES[:5]
    dataset.prefetch(order, 10_000)
    wait_until(lambda: remote.count("pieces") == 4)
    assert kept(tmp_path) == {}
    go_on.set()
    wait_until(lambda: len(kept(tmp_path)) == 10)
    fetched = [call.path for call in remote.calls if call.operation == "pieces"]
    assert sorted(fetched) == NAMES
    assert set(fetched[:4]) == set(order[:4])  # four at a time
    assert [bytes(dataset.view(name)) for name in NAMES] == [content(name) for name in NAMES]
    assert fetches(remote) == 10


def test_no_more_is_fetched_ahead_of_use_than_the_budget(tmp_path):
    remote = remote_store()
    dataset = bind(remote, tmp_path)
    dataset.prefetch(NAMES, 3500)
    for used in range(8):
        wait_until(lambda used=used: sorted(kept(tmp_path)) == NAMES[: min(10, used + 3)])
        time.sleep(0.02)
        assert len(kept(tmp_path)) <= used + 3
        dataset.view(NAMES[used])


def test_a_budget_of_nothing_fetches_nothing_and_a_file_above_it_is_left_out(tmp_path):
    remote = remote_store()
    remote.put("large", content("large", size=5000))
    dataset = bind(remote, tmp_path)
    dataset.prefetch(NAMES, 0)
    dataset.prefetch(NAMES, 999)
    wait_until(lambda: not prefetch_threads())
    assert fetches(remote) == 0


def test_what_still_arrives_after_a_hint_that_expects_nothing_is_not_held(tmp_path):
    remote = remote_store()
    go_on = threading.Event()
    remote.rules.append(Rule(Run(lambda call: go_on.wait(20)), operation="pieces"))
    dataset = bind(remote, tmp_path)
    dataset.prefetch(NAMES, 10_000)
    wait_until(lambda: remote.count("pieces") == 4)
    dataset.prefetch([], 0)
    go_on.set()
    wait_until(lambda: not prefetch_threads())
    assert len(kept(tmp_path)) == 4
    assert [data.num_pinned for data in cached_data(CacheFolder(tmp_path))] == [0]


def test_a_new_hint_takes_the_place_of_the_old_one(tmp_path):
    remote = remote_store()
    dataset = bind(remote, tmp_path)
    dataset.prefetch(NAMES[:5], 1000)
    wait_until(lambda: kept(tmp_path))
    dataset.prefetch(NAMES[5:], 2000)
    wait_until(lambda: sorted(kept(tmp_path)) == [FIRST, *NAMES[5:7]])
    dataset.close()
    time.sleep(0.05)
    assert sorted(kept(tmp_path)) == [FIRST, *NAMES[5:7]]


def test_what_will_be_needed_next_is_not_evicted_for_what_is_needed_later(tmp_path):
    remote = remote_store()
    dataset = bind(remote, tmp_path, limit=3000)
    for name in NAMES[:3]:
        dataset.view(name)
    dataset.prefetch(NAMES, 10_000)  # the first three are there already, longest unused
    time.sleep(0.1)
    assert sorted(kept(tmp_path)) == NAMES[:3]
    for place, name in enumerate(NAMES):
        assert bytes(dataset.view(name)) == content(name)
        wait_until(lambda place=place: NAMES[min(9, place + 2)] in kept(tmp_path))
        assert usage(tmp_path)[0] <= 3000
    assert fetches(remote) == 10


def test_prefetching_never_takes_more_room_than_the_limit_and_readers_go_on(tmp_path):
    remote = remote_store()
    for limit in (0, 500, 1000, 2000):
        dataset = bind(remote, tmp_path / str(limit), limit=limit)
        dataset.prefetch(NAMES, 10_000)
        for name in NAMES:
            assert bytes(dataset.view(name)) == content(name)
            assert usage(tmp_path / str(limit))[0] <= limit
        dataset.close()


def test_an_error_while_fetching_ahead_is_met_by_the_reader_and_only_if_it_still_is_one(tmp_path):
    remote = remote_store()
    remote.rules += [
        Rule(Refuse(StoreError("memory://: broken")), operation="pieces", path=FIRST),
        Rule(Refuse(StoreError("memory://: broken")), operation="pieces", path=NAMES[1], times=1),
    ]
    dataset = bind(remote, tmp_path)
    dataset.prefetch(NAMES, 10_000)
    wait_until(lambda: len(kept(tmp_path)) == 8)
    with pytest.raises(StoreError, match="broken"):
        dataset.view(FIRST)
    assert bytes(dataset.view(NAMES[1])) == content(NAMES[1])


def test_a_reader_that_comes_while_its_file_is_on_the_way_waits_for_that(tmp_path):
    remote = remote_store()
    remote.rules.append(Rule(Delay(0.2), operation="pieces"))
    dataset = bind(remote, tmp_path)
    dataset.prefetch([FIRST], 10_000)
    wait_until(lambda: remote.calls)
    assert bytes(dataset.view(FIRST)) == content(FIRST)
    assert fetches(remote) == 1


class Panic(BaseException):
    """What some clients raise when they fail in a way that nobody expected."""


@pytest.mark.timeout(30)
@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("kind", [RuntimeError, Panic])
def test_no_reader_waits_for_a_thread_that_met_an_error_nobody_expected(tmp_path, kind):
    def fail(call):
        go_on.wait(20)
        raise kind("unheard of")

    remote, go_on = remote_store(), threading.Event()
    remote.rules.append(Rule(Run(fail), operation="pieces", times=4))
    dataset = bind(remote, tmp_path)
    dataset.prefetch(NAMES, 10_000)
    wait_until(lambda: remote.count("pieces") == 4)
    threading.Timer(0.1, go_on.set).start()
    assert [bytes(dataset.view(name)) for name in NAMES] == [content(name) for name in NAMES]


def test_names_that_are_none_of_the_datasets_and_repeats_are_no_harm(tmp_path):
    remote = remote_store()
    dataset = bind(remote, tmp_path)
    dataset.prefetch([FIRST, "headrace.json", FIRST, NAMES[1]], 10_000)
    wait_until(lambda: sorted(kept(tmp_path)) == NAMES[:2])
    assert fetches(remote) == 2


def test_a_dataset_that_is_dropped_ends_its_threads(tmp_path):
    dataset = bind(remote_store(), tmp_path)
    dataset.prefetch(NAMES, 1000)
    wait_until(lambda: kept(tmp_path) and prefetch_threads())
    del dataset
    gc.collect()
    wait_until(lambda: not prefetch_threads())


def test_closing_the_cached_store_ends_the_threads_of_its_datasets(tmp_path):
    from cache_scenes import describe
    from headrace import CachedStore

    cached = CachedStore(remote_store(), tmp_path)
    dataset = cached.of_dataset("fp", describe())
    dataset.prefetch(NAMES, 1000)
    wait_until(lambda: kept(tmp_path) and prefetch_threads())
    cached.close()
    wait_until(lambda: not prefetch_threads())
    assert bytes(dataset.view(FIRST)) == content(FIRST)


def test_a_forked_child_prefetches_for_itself(tmp_path):
    remote = LoggedRemote(tmp_path / "remote", tmp_path / "log")
    for name in NAMES:
        remote.put(name, content(name))
    dataset = bind(remote, tmp_path / "cache")
    dataset.prefetch(NAMES, 1000)
    wait_until(lambda: kept(tmp_path / "cache"))
    pid = os.fork()
    if pid == 0:
        try:
            dataset.prefetch(NAMES, 2000)
            wait_until(lambda: sorted(kept(tmp_path / "cache")) == NAMES[:2])
            assert [bytes(dataset.view(name)) for name in NAMES] == [content(name) for name in NAMES]
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    assert sorted(path for _, path in remote.fetched()) == NAMES
    dataset.close()
