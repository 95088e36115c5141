"""The cache before real requests: what a server does to them is healed or told, and children are forked at any time."""

import os
import pickle

import numpy as np
import pytest

from cache_scenes import NAMES, content, describe, kept, on_their_way
from headrace import CachedStore
from headrace.errors import DamagedObjectError
from headrace.store.open import open_store
from servers.faulty_http import Cut, Flip, Rule, Status

SIZE = 300_000
FIRST = NAMES[0]


@pytest.fixture
def remote(http_folder, http_url):
    for name in NAMES:
        (http_folder / name).write_bytes(content(name, size=SIZE))
    return open_store(http_url)


def gets(server, name=FIRST):
    return server.count("GET", f"*{name}")


def bound(store, directory, **options):
    return CachedStore(store, directory, **options).of_dataset("fp", describe(size=SIZE))


def test_files_come_over_http_once(remote, http_server, tmp_path):
    dataset = bound(remote, tmp_path)
    for _ in range(2):
        assert [bytes(dataset.view(name)) for name in NAMES] == [content(name, size=SIZE) for name in NAMES]
    assert [gets(http_server, name) for name in NAMES] == [1] * len(NAMES)


@pytest.mark.parametrize("fault", [Flip(1000), Cut(1000), Status(503)])
def test_what_goes_wrong_once_is_healed(remote, http_server, tmp_path, fault):
    http_server.rules.append(Rule(fault, method="GET", path=f"*{FIRST}", times=1))
    assert bytes(bound(remote, tmp_path).view(FIRST)) == content(FIRST, size=SIZE)
    assert on_their_way(tmp_path) == []


def test_what_always_comes_damaged_is_an_error_with_the_address_and_nothing_stays(
    remote, http_server, http_url, tmp_path
):
    http_server.rules.append(Rule(Flip(1000), method="GET", path=f"*{FIRST}"))
    with pytest.raises(DamagedObjectError) as caught:
        bound(remote, tmp_path).view(FIRST)
    assert f"{http_url.rstrip('/')}/{FIRST}: its digest is" in str(caught.value)
    assert kept(tmp_path) == {}


def test_forked_readers_share_what_each_fetches_although_the_parent_used_the_store(remote, http_server, tmp_path):
    dataset = bound(remote, tmp_path)
    assert bytes(dataset.view(FIRST)) == content(FIRST, size=SIZE)
    pids = []
    for reader in range(4):
        pids.append(os.fork())
        if not pids[-1]:
            try:
                names = NAMES[reader:] + NAMES[:reader]
                good = [bytes(dataset.view(name)) == content(name, size=SIZE) for name in names]
                os._exit(0 if all(good) else 2)
            finally:
                os._exit(1)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 4
    assert [gets(http_server, name) for name in NAMES] == [1] * len(NAMES)


def test_a_pickled_cache_over_http_works(remote, tmp_path):
    again = pickle.loads(pickle.dumps(CachedStore(remote, tmp_path)))
    assert bytes(again.of_dataset("fp", describe(size=SIZE)).view(FIRST)) == content(FIRST, size=SIZE)


def test_a_range_of_a_file_that_is_not_there_is_a_range_request(remote, http_server, tmp_path):
    (found,) = bound(remote, tmp_path).get_ranges(FIRST, np.array([7]), np.array([9]))
    assert bytes(found) == content(FIRST, size=SIZE)[7:16]
    assert kept(tmp_path) == {}


@pytest.mark.servers
@pytest.mark.parametrize("kind", ["s3", "azure", "gcs"])
def test_eight_forked_readers_on_a_cold_cache_over_a_real_store(kind, request, tmp_path):
    store = open_store(request.getfixturevalue(f"{kind}_url"), **request.getfixturevalue(f"{kind}_options"))
    for name in NAMES:
        store.put(name, content(name, size=SIZE))
    dataset = bound(store, tmp_path)
    pids = []
    for reader in range(8):
        pids.append(os.fork())
        if not pids[-1]:
            try:
                names = NAMES[reader:] + NAMES[:reader]
                good = [bytes(dataset.view(name)) == content(name, size=SIZE) for name in names]
                os._exit(0 if all(good) else 2)
            finally:
                os._exit(1)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 8
    assert sorted(kept(tmp_path)) == NAMES
