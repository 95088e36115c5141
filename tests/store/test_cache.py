import gc
import os
import pickle
import shutil
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from cache_scenes import NAMES, bind, content, describe, fetches, kept, on_their_way, remote_store
from headrace import CachedStore, MemoryStore
from headrace.errors import (
    AccessDeniedError,
    DamagedObjectError,
    NotFoundError,
    ObjectChangedError,
    OptionError,
    StoreError,
)
from headrace.store import FolderStore
from headrace.testing import Flip, Refuse, Rule, Run, StoreContract
from headrace.testing.fault_store import Cut

FIRST = NAMES[0]


class TestCachedStore(StoreContract):
    """What is no dataset's file passes through, so the store behind is as good as without a cache."""

    def make_store(self, tmp_path):
        return CachedStore(MemoryStore(flat=True), tmp_path / "cache")


class TestCacheOverAStoreWithRenames(StoreContract):
    def make_store(self, tmp_path):
        return CachedStore(MemoryStore(), tmp_path / "cache")


# Fetching


def test_a_file_is_fetched_once_and_then_mapped_from_the_directory(tmp_path):
    remote = remote_store()
    dataset = bind(remote, tmp_path)
    for _ in range(3):
        assert [bytes(dataset.view(name)) for name in NAMES] == [content(name) for name in NAMES]
    assert fetches(remote) == len(NAMES)
    again = bind(remote, tmp_path)
    assert again.get(FIRST) == content(FIRST)
    assert b"".join(again.pieces(FIRST, 300)) == content(FIRST)
    assert fetches(remote) == len(NAMES)


def test_the_directory_then_holds_the_files_and_nothing_on_its_way(tmp_path):
    dataset = bind(remote_store(), tmp_path)
    for name in NAMES:
        dataset.view(name)
    assert {name: path.read_bytes() for name, path in kept(tmp_path).items()} == {n: content(n) for n in NAMES}
    assert on_their_way(tmp_path) == []


def test_nothing_is_created_before_the_first_use(tmp_path):
    dataset = bind(remote_store(), tmp_path / "cache")
    repr(dataset)
    assert not dataset.is_cached(FIRST)
    assert not (tmp_path / "cache").exists()


def test_ranges_of_a_file_that_is_not_there_are_asked_from_the_store_and_kept_nowhere(tmp_path):
    remote = remote_store()
    dataset = bind(remote, tmp_path)
    starts, lengths = np.array([10, 990]), np.array([5, 10])
    expected = [content(FIRST)[10:15], content(FIRST)[990:]]
    assert list(map(bytes, dataset.get_ranges(FIRST, starts, lengths))) == expected
    assert remote.count("get_ranges", FIRST) == 1
    assert kept(tmp_path) == {}
    found = remote.head(FIRST)
    assert list(map(bytes, dataset.get_ranges_of(found, starts, lengths))) == expected
    dataset.view(FIRST)
    calls = len(remote.calls)
    assert list(map(bytes, dataset.get_ranges(FIRST, starts, lengths))) == expected
    assert list(map(bytes, dataset.get_ranges_of(found, starts, lengths))) == expected
    assert len(remote.calls) == calls


def test_ranges_past_the_end_of_a_copy_are_refused_as_any_store_does(tmp_path):
    dataset = bind(remote_store(), tmp_path)
    dataset.view(FIRST)
    with pytest.raises(StoreError, match=r"1000 bytes"):
        dataset.get_ranges(FIRST, np.array([995]), np.array([6]))


def test_files_that_are_none_of_the_datasets_pass_through(tmp_path):
    remote = remote_store()
    remote.put("headrace.json", b"{}")
    dataset = bind(remote, tmp_path)
    for _ in range(2):
        assert dataset.get("headrace.json") == bytes(dataset.view("headrace.json")) == b"{}"
    assert dataset.head("headrace.json") == remote.head("headrace.json")
    assert fetches(remote, "headrace.json") == 4
    assert kept(tmp_path) == {}
    with pytest.raises(NotFoundError, match="memory://nothing"):
        dataset.view("nothing")


def test_empty_files_are_cached_too(tmp_path):
    remote = remote_store(size=0)
    dataset = bind(remote, tmp_path, size=0)
    assert bytes(dataset.view(FIRST)) == bytes(dataset.view(FIRST)) == b""
    assert fetches(remote) == 1


@pytest.mark.parametrize("raw", [True, False])
def test_a_compressed_file_is_decompressed_once(tmp_path, raw):
    remote = remote_store(compressed=True, raw=raw)
    dataset = bind(remote, tmp_path, compressed=True)
    for _ in range(2):
        assert [bytes(dataset.view(name)) for name in NAMES] == [content(name) for name in NAMES]
    assert fetches(remote, "*.zz") == len(NAMES)
    assert fetches(remote) == len(NAMES)
    assert sorted(kept(tmp_path)) == NAMES


def test_ranges_of_a_file_that_is_stored_compressed_take_the_whole_file(tmp_path):
    remote = remote_store(compressed=True, raw=False)
    dataset = bind(remote, tmp_path, compressed=True)
    assert bytes(dataset.get_ranges(FIRST, np.array([3]), np.array([4]))[0]) == content(FIRST)[3:7]
    assert dataset.is_cached(FIRST)


def test_where_only_the_file_itself_is_left_that_is_fetched(tmp_path):
    dataset = bind(remote_store(), tmp_path, compressed=True)
    assert bytes(dataset.view(FIRST)) == content(FIRST)


def test_a_compressed_file_that_decompresses_to_something_else_is_refused(tmp_path):
    remote = remote_store(compressed=True, raw=False)
    remote.put(FIRST + ".zz", zlib.compress(content("another")))
    dataset = bind(remote, tmp_path, compressed=True, verify=False)
    with pytest.raises(DamagedObjectError, match=rf"{FIRST}\.zz: .*bytes arrived"):
        dataset.view(FIRST)
    remote.put(FIRST + ".zz", b"\0" * len(zlib.compress(content(FIRST))))
    with pytest.raises(DamagedObjectError, match=rf"{FIRST}\.zz: it cannot be decompressed"):
        dataset.view(FIRST)
    assert kept(tmp_path) == {}


def test_a_file_is_fetched_in_pieces_so_that_memory_stays_bounded(tmp_path):
    remote = remote_store([FIRST], size=20 << 20)
    seen = []
    remote.rules.append(Rule(Run(lambda call: seen.append(call.operation))))
    assert bytes(bind(remote, tmp_path, names=[FIRST], size=20 << 20).view(FIRST)) == content(FIRST, size=20 << 20)
    assert seen == ["pieces"]


# Datasets kept apart


def test_two_datasets_with_equal_names_and_sizes_never_mix(tmp_path):
    stores = {seed: remote_store(seed=seed) for seed in ("a", "b")}
    datasets = {seed: bind(stores[seed], tmp_path, seed, seed=seed) for seed in stores}
    for _ in range(2):
        for seed, dataset in datasets.items():
            assert [bytes(dataset.view(name)) for name in NAMES] == [content(name, seed) for name in NAMES]
    assert [fetches(store) for store in stores.values()] == [len(NAMES)] * 2


def test_one_dataset_in_two_places_is_fetched_once(tmp_path):
    first, second = remote_store(), remote_store()
    assert bytes(bind(first, tmp_path).view(FIRST)) == bytes(bind(second, tmp_path).view(FIRST))
    assert (fetches(first), fetches(second)) == (1, 0)


def test_a_cache_inside_another_ones_directory_is_a_cache_of_its_own(tmp_path):
    outer, inner = remote_store(seed="a"), remote_store(seed="b")
    assert bytes(bind(outer, tmp_path, seed="a").view(FIRST)) == content(FIRST, "a")
    assert bytes(bind(inner, tmp_path / "headrace-cache", seed="b").view(FIRST)) == content(FIRST, "b")
    assert bytes(bind(outer, tmp_path, seed="a").view(FIRST)) == content(FIRST, "a")


@pytest.mark.parametrize(
    "name", ["a/b/c.bin", "with blanks #%20?", "caf\u00e9", "cafe\u0301", "n" * 200, "d/" * 90 + "x", "n" * 200 + "2"]
)
def test_any_name_has_a_place_of_its_own(tmp_path, name):
    names = [name, "a/b/c.bin.x", "a", "a%2Fb", "n" * 199]
    dataset = bind(remote_store(names), tmp_path, names=names)
    for _ in range(2):
        assert [bytes(dataset.view(each)) for each in names] == [content(each) for each in names]


def test_a_folder_of_a_cached_store_is_cached_as_well(tmp_path):
    remote = remote_store([f"part/{name}" for name in NAMES])
    files = describe([f"part/{name}" for name in NAMES])
    below = FolderStore(CachedStore(remote, tmp_path), "part")
    dataset = below.of_dataset("fp", lambda name: files(f"part/{name}"))
    assert dataset.capabilities.view
    for _ in range(2):
        assert bytes(dataset.view(FIRST)) == content(f"part/{FIRST}")
    assert fetches(remote) == 1


# Damage and failure


def test_a_flipped_byte_is_healed_by_the_next_download(tmp_path):
    remote = remote_store()
    remote.rules.append(Rule(Flip(500), operation="pieces", path=FIRST, times=1))
    assert bytes(bind(remote, tmp_path).view(FIRST)) == content(FIRST)
    assert fetches(remote, FIRST) == 2


def test_a_connection_that_breaks_off_leaves_nothing_that_looks_complete(tmp_path):
    remote = remote_store()
    seen = []
    remote.rules += [
        Rule(Cut(300), operation="pieces", path=FIRST, times=1),
        Rule(Run(lambda call: seen.append(sorted(kept(tmp_path)))), operation="pieces", path=FIRST),
    ]
    assert bytes(bind(remote, tmp_path).view(FIRST)) == content(FIRST)
    assert seen == [[], []]


def test_what_always_arrives_damaged_is_an_error_with_file_and_both_digests(tmp_path):
    remote = remote_store()
    remote.rules.append(Rule(Flip(500), operation="pieces", path=FIRST))
    expected = describe()(FIRST).digest
    with pytest.raises(DamagedObjectError, match=rf"memory://{FIRST}: its digest is [0-9a-f]{{32}}, but .*{expected}"):
        bind(remote, tmp_path).view(FIRST)
    assert 1 < fetches(remote, FIRST) <= 3
    assert kept(tmp_path) == {}
    assert on_their_way(tmp_path) == []


@pytest.mark.parametrize(("size", "told"), [(900, "900 bytes arrived, .* 1000"), (1100, "more than the 1000 bytes")])
def test_a_file_of_another_size_is_an_error_with_both_sizes_even_without_verify(tmp_path, size, told):
    remote = remote_store()
    remote.put(FIRST, content(FIRST, size=size))
    with pytest.raises(DamagedObjectError, match=rf"{FIRST}: {told}"):
        bind(remote, tmp_path, verify=False, digests=False).view(FIRST)
    assert kept(tmp_path) == {}


def test_without_verify_digests_are_not_compared_and_a_verifying_reader_does_not_rely_on_that(tmp_path):
    remote = remote_store()
    remote.rules.append(Rule(Flip(500), operation="pieces", path=FIRST, times=1))
    assert bytes(bind(remote, tmp_path, verify=False).view(FIRST)) != content(FIRST)
    assert bytes(bind(remote, tmp_path).view(FIRST)) == content(FIRST)
    assert fetches(remote) == 2


def test_a_missing_file_and_a_forbidden_one_fail_at_once_and_leave_nothing(tmp_path):
    remote = remote_store()
    remote.delete(FIRST)
    remote.rules.append(Rule(Refuse(AccessDeniedError("memory://: no")), operation="pieces", path=NAMES[1]))
    dataset = bind(remote, tmp_path)
    for name, kind in ((FIRST, NotFoundError), (NAMES[1], AccessDeniedError)):
        with pytest.raises(kind):
            dataset.view(name)
        assert fetches(remote, name) == 1
    assert (kept(tmp_path), on_their_way(tmp_path)) == ({}, [])


def test_an_error_of_the_store_is_gone_with_the_next_try(tmp_path):
    remote = remote_store()
    remote.rules.append(Rule(Refuse(StoreError("memory://: broken")), operation="pieces", times=1))
    dataset = bind(remote, tmp_path)
    with pytest.raises(StoreError, match="broken"):
        dataset.view(FIRST)
    assert bytes(dataset.view(FIRST)) == content(FIRST)
    assert list(Path(tmp_path, "headrace-cache/1/failures").iterdir()) == []


@pytest.mark.parametrize("digests", [True, False])
@pytest.mark.parametrize("harm", ["flip", "cut", "grow", "empty"])
def test_a_file_damaged_in_the_cache_between_runs_is_fetched_again(tmp_path, harm, digests):
    remote = remote_store()
    bind(remote, tmp_path, digests=digests).view(FIRST)
    path = kept(tmp_path)[FIRST]
    data = bytearray(path.read_bytes())
    if harm == "flip":
        data[500] ^= 1
    path.write_bytes({"flip": data, "cut": data[:-1], "grow": data + b"x", "empty": b""}[harm])
    again = bind(remote, tmp_path, digests=digests)
    assert not again.is_cached(FIRST)
    assert bytes(again.view(FIRST)) == content(FIRST)
    assert fetches(remote) == 2
    assert path.read_bytes() == content(FIRST)


def test_a_damaged_file_that_cannot_be_fetched_again_does_not_stay(tmp_path):
    remote = remote_store()
    bind(remote, tmp_path).view(FIRST)
    path = kept(tmp_path)[FIRST]
    path.write_bytes(b"x" * 1000)
    remote.rules.append(Rule(Refuse(StoreError("memory://: broken")), operation="pieces"))
    with pytest.raises(StoreError, match="broken"):
        bind(remote, tmp_path).view(FIRST)
    assert not path.exists()


def test_after_a_restart_of_the_machine_digests_are_computed_again_and_only_once(tmp_path, monkeypatch):
    remote = remote_store()
    computed = []

    def counted(files):
        def file(name):
            told = files(name)
            return told._replace(new_digest=lambda: computed.append(name) or told.new_digest())

        return file

    files = counted(describe())
    cached = CachedStore(remote, tmp_path)
    cached.of_dataset("fp", files).view(FIRST)
    assert computed == [FIRST]
    cached.of_dataset("fp", files).view(FIRST)
    assert computed == [FIRST]
    monkeypatch.setattr("headrace.store.cache_files.process_identity", lambda: "00000001-00000002-3-4")
    for _ in range(2):
        assert bytes(CachedStore(remote, tmp_path).of_dataset("fp", files).view(FIRST)) == content(FIRST)
    assert computed == [FIRST] * 2
    assert fetches(remote) == 1


@pytest.mark.parametrize("lost", [True, False])
def test_after_a_restart_files_without_digests_are_compared_with_what_arrived(tmp_path, monkeypatch, lost):
    remote = remote_store(compressed=True)
    for compressed in (False, True):
        bind(remote, tmp_path, str(compressed), digests=False, compressed=compressed).view(FIRST)
    if lost:  # what the disk did not get before the power was cut reads as zeros, and the time is the old one
        for path in Path(tmp_path, "headrace-cache/1/files").rglob(f"{FIRST}.*"):
            status = path.stat()
            path.write_bytes(content(FIRST)[:512] + bytes(488))
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    monkeypatch.setattr("headrace.store.cache_files.process_identity", lambda: "00000001-00000002-3-4")
    for compressed in (False, True):
        dataset = bind(remote, tmp_path, str(compressed), digests=False, compressed=compressed)
        assert not dataset.is_cached(FIRST)
        assert bytes(dataset.view(FIRST)) == content(FIRST)
        assert dataset.is_cached(FIRST)
    assert fetches(remote) == (4 if lost else 2)


# A dataset that is replaced


def test_a_replaced_file_of_equal_size_never_gets_into_the_cache(tmp_path):
    remote = remote_store()
    dataset = bind(remote, tmp_path)
    dataset.view(NAMES[1])
    for name in NAMES:
        remote.put(name, content(name, "new"))
    with pytest.raises(DamagedObjectError):
        dataset.view(FIRST)
    assert bytes(dataset.view(NAMES[1])) == content(NAMES[1])
    assert sorted(kept(tmp_path)) == [NAMES[1]]


@pytest.mark.parametrize("compressed", [True, False])
def test_without_digests_a_file_counts_only_while_the_dataset_stands(tmp_path, compressed):
    remote = remote_store(seed="new", compressed=compressed)

    def unchanged():
        raise ObjectChangedError("memory://index.json")

    dataset = bind(remote, tmp_path, digests=False, compressed=compressed, unchanged=unchanged)
    with pytest.raises((ObjectChangedError, DamagedObjectError)):
        dataset.view(FIRST)
    assert kept(tmp_path) == {}


def test_with_digests_nobody_asks_whether_the_dataset_stands(tmp_path):
    asked = []
    dataset = bind(remote_store(), tmp_path, unchanged=lambda: asked.append(1))
    dataset.view(FIRST)
    assert asked == []


# Threads


def test_threads_that_want_one_file_fetch_it_once(tmp_path):
    remote = remote_store()
    dataset = bind(remote, tmp_path)
    barrier = threading.Barrier(8)

    def read(_):
        barrier.wait()
        return [bytes(dataset.view(name)) for name in NAMES]

    with ThreadPoolExecutor(8) as pool:
        assert set(map(tuple, pool.map(read, range(8)))) == {tuple(content(name) for name in NAMES)}
    assert fetches(remote) == len(NAMES)


def test_an_error_reaches_everybody_who_waited_for_the_download(tmp_path):
    remote = remote_store()
    begun, go_on = threading.Event(), threading.Event()

    def slow(call):
        begun.set()
        go_on.wait(20)
        raise AccessDeniedError("memory://shard: no right to read it")

    remote.rules.append(Rule(Run(slow), operation="pieces"))
    dataset = bind(remote, tmp_path)
    with ThreadPoolExecutor(4) as pool:
        results = [pool.submit(dataset.view, FIRST)]
        assert begun.wait(20)
        results += [pool.submit(bind(remote, tmp_path).view, FIRST) for _ in range(3)]
        threading.Event().wait(0.3)
        go_on.set()
        errors = [result.exception(20) for result in results]
    assert [type(error) for error in errors] == [AccessDeniedError] * 4
    assert {str(error) for error in errors} == {"memory://shard: no right to read it"}
    assert fetches(remote) == 1


def test_the_recorded_error_keeps_its_fields(tmp_path):
    remote = remote_store()
    dataset = bind(remote, tmp_path)
    remote.rules.append(Rule(Flip(1), operation="pieces"))
    with pytest.raises(DamagedObjectError) as caught:
        dataset.view(FIRST)
    folder = dataset._copies.folder
    again = folder.failed(folder.entry("fp", FIRST), "memory://")
    assert (type(again), str(again), vars(again)) == (DamagedObjectError, str(caught.value), vars(caught.value))


def test_a_download_that_stands_still_is_passed_over_and_does_no_harm_when_it_goes_on(tmp_path):
    remote = remote_store()
    begun, go_on = threading.Event(), threading.Event()

    def stopped(call):
        begun.set()
        go_on.wait(30)

    remote.rules.append(Rule(Run(stopped), operation="pieces", times=1))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(bind(remote, tmp_path, takeover_s=0.2).view, FIRST)
        assert begun.wait(20)
        view = bind(remote, tmp_path, takeover_s=0.2).view(FIRST)
        assert bytes(view) == content(FIRST)
        go_on.set()
        assert bytes(first.result(20)) == content(FIRST)
    assert on_their_way(tmp_path) == []
    assert bytes(bind(remote, tmp_path).view(FIRST)) == content(FIRST)
    assert fetches(remote) == 2


def test_who_waits_for_too_many_that_stand_still_is_told_their_process(tmp_path):
    remote = remote_store()
    go_on = threading.Event()
    remote.rules.append(Rule(Run(lambda call: go_on.wait(60)), operation="pieces"))
    with ThreadPoolExecutor(8) as pool:
        results = [pool.submit(bind(remote, tmp_path, takeover_s=0.1).view, FIRST) for _ in range(8)]
        errors = []
        while len(errors) < 3:
            threading.Event().wait(0.05)
            errors = [result.exception() for result in results if result.done()]
        go_on.set()
        assert all(rf"(process {os.getpid()})" in str(error) and FIRST in str(error) for error in errors)


def test_an_error_of_one_place_is_none_of_another_place_with_the_same_dataset(tmp_path):
    broken, good = remote_store(), remote_store()
    good.location = "memory://mirror"
    begun, go_on = threading.Event(), threading.Event()

    def fail(call):
        begun.set()
        go_on.wait(20)
        raise AccessDeniedError("memory://shard: no right to read it")

    broken.rules.append(Rule(Run(fail), operation="pieces"))
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(bind(broken, tmp_path).view, FIRST)
        assert begun.wait(20)
        second = pool.submit(bind(good, tmp_path).view, FIRST)
        threading.Event().wait(0.2)
        go_on.set()
        assert isinstance(first.exception(20), AccessDeniedError)
        assert bytes(second.result(20)) == content(FIRST)


def test_a_cache_that_is_removed_in_mid_download_is_made_again(tmp_path):
    remote = remote_store()
    dataset = bind(remote, tmp_path)
    held = dataset.view(NAMES[1])
    remote.rules.append(Rule(Run(lambda call: shutil.rmtree(tmp_path / "headrace-cache")), operation="pieces", times=1))
    assert bytes(dataset.view(FIRST)) == content(FIRST)
    assert sorted(kept(tmp_path)) == [FIRST]
    assert bytes(held) == content(NAMES[1])
    assert fetches(remote) == 3


def test_who_removes_the_cache_again_and_again_is_told_of(tmp_path):
    remote = remote_store()
    remote.rules.append(Rule(Run(lambda call: shutil.rmtree(tmp_path / "headrace-cache")), operation="pieces"))
    with pytest.raises(StoreError, match="something removes files there") as caught:
        bind(remote, tmp_path).view(FIRST)
    assert not isinstance(caught.value, NotFoundError)


# Options


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, None),
        (0, 0),
        ("0", 0),
        (1048576, 1 << 20),
        (np.int64(7), 7),
        ("1048576", 1 << 20),
        ("1mb", 1 << 20),
        ("1MiB", 1 << 20),
        (" 1 MB ", 1 << 20),
        ("1.5kb", 1536),
        ("2 TB", 2 << 40),
        ("100b", 100),
    ],
)
def test_a_limit_is_a_number_of_bytes_or_a_size(tmp_path, given, expected):
    assert CachedStore(MemoryStore(), tmp_path, given).limit_bytes == expected


@pytest.mark.parametrize(
    "given", ["-1", -1, "ten", "", "1 x", "1e3", "1..5", ".", "mb", 1.5, True, float("nan"), "1" * 30]
)
def test_what_is_no_size_is_refused_with_the_forms(tmp_path, given):
    with pytest.raises(OptionError, match=r"limit_bytes=.*'500mb', '20GiB'"):
        CachedStore(MemoryStore(), tmp_path, given)


@pytest.mark.parametrize("given", ["s3://bucket/cache", "https://host/x", Path("s3://bucket/cache"), ""])
def test_a_cache_directory_that_is_no_directory_is_refused_and_none_is_made(tmp_path, monkeypatch, given):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError, match=r"directory=.*a local directory"):
        CachedStore(MemoryStore(), given)
    assert list(tmp_path.iterdir()) == []


def test_a_relative_directory_and_one_behind_a_link_are_the_directory_they_were(tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    remote = remote_store()
    cached = CachedStore(remote, "link/")
    monkeypatch.chdir(tmp_path / "elsewhere")
    cached.of_dataset("fp", describe()).view(FIRST)
    bind(remote, tmp_path / "real").view(FIRST)
    assert fetches(remote) == 1


def test_a_cached_store_pickles_as_its_configuration_after_use_as_well(tmp_path):
    inner = MemoryStore(flat=True)
    inner.put(FIRST, content(FIRST))
    cached = CachedStore(inner, tmp_path, "1mb", verify=False, takeover_s=7)
    held = cached.of_dataset("fp", describe()).view(FIRST)
    again = pickle.loads(pickle.dumps(cached))
    assert (again.directory, again.limit_bytes, again.verify, again.takeover_s) == (tmp_path, 1 << 20, False, 7)
    assert (
        repr(again)
        == repr(cached)
        == f"CachedStore(MemoryStore(1 objects), {str(tmp_path)!r}, limit_bytes=1048576, verify=False)"
    )
    assert bytes(again.of_dataset("fp", describe()).view(FIRST)) == bytes(held)


def test_close_releases_what_is_open_and_views_outlive_it(tmp_path):
    def open_below(directory):
        links = []
        for name in os.listdir("/proc/self/fd"):
            try:
                links.append(os.readlink(f"/proc/self/fd/{name}"))
            except OSError:
                continue
        return [link for link in links if str(directory) in link]

    remote = remote_store()
    cached = CachedStore(remote, tmp_path)
    dataset = cached.of_dataset("fp", describe())
    view = dataset.view(FIRST)
    cached.close()
    assert bytes(view) == content(FIRST)
    del view
    gc.collect()
    cached.close()
    assert open_below(tmp_path) == []
    assert bytes(dataset.view(FIRST)) == content(FIRST)


def test_views_hold_no_file_open(tmp_path):
    dataset = bind(remote_store(), tmp_path)
    dataset.view(FIRST)
    before = len(os.listdir("/proc/self/fd"))
    views = [dataset.view(name) for name in NAMES * 20]
    assert len(os.listdir("/proc/self/fd")) - before <= 16  # the lock files
    del views


@pytest.mark.parametrize("blocked", ["", "headrace-cache", "headrace-cache/1/files", "headrace-cache/1/locks"])
def test_a_file_where_the_cache_needs_a_folder_is_never_taken_for_a_missing_file_of_the_dataset(tmp_path, blocked):
    path = tmp_path / "cache" / blocked
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")
    with pytest.raises(StoreError, match="Not a directory") as caught:
        bind(remote_store(), tmp_path / "cache").view(FIRST)
    assert not isinstance(caught.value, NotFoundError)
    assert str(tmp_path / "cache") in str(caught.value)
    assert path.read_text() == "mine"


@pytest.mark.timeout(30)
@pytest.mark.parametrize("kind", ["link", "loop", "pipe"])
def test_links_and_pipes_in_place_of_a_copy_are_replaced_and_what_links_point_at_is_left_alone(tmp_path, kind):
    bind(remote_store(), tmp_path).view(FIRST)
    path = kept(tmp_path)[FIRST]
    path.unlink()
    mine = tmp_path / "mine"
    mine.write_bytes(content(FIRST))
    os.utime(mine, (5, 5))
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(mine if kind == "link" else path)
    remote = remote_store()
    dataset = bind(remote, tmp_path)
    assert not dataset.is_cached(FIRST)
    assert bytes(dataset.view(FIRST)) == content(FIRST)
    assert fetches(remote) == 1
    assert mine.stat().st_mtime == 5
    assert path.is_file()
    assert not path.is_symlink()
