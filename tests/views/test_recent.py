"""Arrays that are kept for a while: the last ones, within a limit, once for all threads, and safe to fork."""

import multiprocessing
import pickle
import threading

import numpy as np
import pytest

from headrace.views.recent import RecentArrays


def counted():
    """A maker of arrays of 80 bytes, and what it was asked for."""
    asked = []

    def make(key):
        asked.append(key)
        return np.full(10, key)

    return make, asked


def test_the_last_arrays_are_kept_within_the_limit_and_at_least_one():
    make, asked = counted()
    kept = RecentArrays(240)
    for key in (1, 2, 3, 1, 4, 1, 2):
        assert kept.get(key, make).tolist() == [key] * 10
    assert asked == [1, 2, 3, 4, 2]  # 2 had been used longest ago when 4 came
    make, asked = counted()
    kept = RecentArrays(0)
    for key in (1, 1, 2, 2, 1):
        kept.get(key, make)
    assert asked == [1, 2, 1]


def test_an_array_that_could_not_be_made_is_not_kept():
    kept = RecentArrays(100)

    def fails(key):
        raise ValueError(key)

    for _ in range(2):
        with pytest.raises(ValueError, match="1"):
            kept.get(1, fails)
    make, asked = counted()
    kept.get(1, make)
    assert asked == [1]


def test_a_pickled_copy_begins_with_none():
    make, asked = counted()
    kept = RecentArrays(1000)
    kept.get(1, make)
    copied = pickle.loads(pickle.dumps(kept))
    assert copied.max_bytes == 1000
    copied.get(1, make)
    assert asked == [1, 1]


def test_a_process_forked_while_a_thread_makes_an_array_does_not_wait_for_that_thread():
    kept = RecentArrays(1000)
    making, go_on = threading.Event(), threading.Event()

    def slow(key):
        making.set()
        go_on.wait(60)
        return np.zeros(1, np.int64)

    thread = threading.Thread(target=kept.get, args=(1, slow))
    thread.start()
    making.wait(60)
    child = multiprocessing.get_context("fork").Process(target=kept.get, args=(2, counted()[0]))
    child.start()
    child.join(20)
    code = child.exitcode
    child.kill()
    go_on.set()
    thread.join()
    assert code == 0
