import errno
import gc
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cache_scenes import NAMES, bind, content, fetches, kept, on_their_way, remote_store, usage
from headrace.errors import StoreError
from headrace.store.cache_files import CacheFolder
from headrace.testing import Rule, Run

FIRST = NAMES[0]


def read_all(dataset, names=NAMES):
    assert [bytes(dataset.view(name)) for name in names] == [content(name) for name in names]


@pytest.mark.parametrize("limit", [0, 1, 999, 1000, 1001, 2500, 10_000, "1mb", None])
def test_any_limit_works_and_holds_while_a_reader_keeps_nothing(tmp_path, limit):
    remote = remote_store()
    dataset = bind(remote, tmp_path, limit=limit)
    seen = []
    remote.rules.append(Rule(Run(lambda call: seen.append(usage(tmp_path)))))
    for _ in range(2):
        read_all(dataset)
    most = {None: 10_000, "1mb": 10_000}.get(limit, limit)
    assert max(total + way for total, way in seen) <= most + 1000
    assert usage(tmp_path) == (min(most // 1000, 10) * 1000, 0)
    assert fetches(remote) == (10 if most >= 10_000 else 20)


@pytest.mark.parametrize("limit", [0, 999, 1000, 2500])
def test_a_reader_that_keeps_all_views_makes_the_cache_no_larger_than_the_limit(tmp_path, limit):
    dataset = bind(remote_store(), tmp_path, limit=limit)
    views = [dataset.view(name) for name in NAMES]
    assert [bytes(view) for view in views] == [content(name) for name in NAMES]
    assert usage(tmp_path) == (limit // 1000 * 1000, 0)
    unlinked = [line for line in Path("/proc/self/maps").read_text().splitlines() if f"{tmp_path}/" in line]
    assert sum("deleted" in line for line in unlinked) <= 1  # what passes is on the disk while it is mapped
    assert dataset.max_views < 10
    del views
    gc.collect()
    read_all(dataset)
    assert sum(usage(tmp_path)) <= limit


def test_what_was_used_longest_ago_goes_first_whichever_process_used_it(tmp_path):
    remote = remote_store()
    dataset = bind(remote, tmp_path, limit=3000)
    for name in NAMES[:3]:
        dataset.view(name)
    bind(remote, tmp_path, limit=3000).view(FIRST)
    dataset.view(NAMES[3])
    assert sorted(kept(tmp_path)) == [FIRST, NAMES[2], NAMES[3]]
    dataset.view(NAMES[4])
    assert sorted(kept(tmp_path)) == [FIRST, NAMES[3], NAMES[4]]


def test_what_a_reader_has_mapped_stays_until_the_last_view_of_it_is_gone(tmp_path):
    dataset = bind(remote_store(), tmp_path, limit=2000)
    view = dataset.view(FIRST)
    part = view[100:200]
    del view
    for name in NAMES[1:5]:
        dataset.view(name)
    assert sorted(kept(tmp_path)) == [FIRST, NAMES[4]]
    assert bytes(part) == content(FIRST)[100:200]
    del part
    dataset.view(NAMES[5])
    assert sorted(kept(tmp_path)) == [NAMES[4], NAMES[5]]


def test_a_file_that_is_mapped_twice_is_pinned_until_both_views_are_gone(tmp_path):
    remote = remote_store()
    one, two = bind(remote, tmp_path, limit=1000), bind(remote, tmp_path, limit=1000)
    views = [one.view(FIRST), one.view(FIRST), two.view(FIRST)]
    while views:
        one.view(NAMES[1])
        assert sorted(kept(tmp_path)) == [FIRST]
        views.pop()
    one.view(NAMES[1])
    assert sorted(kept(tmp_path)) == [NAMES[1]]


def test_nothing_is_evicted_where_that_would_not_make_enough_room(tmp_path):
    remote = remote_store()
    dataset = bind(remote, tmp_path, limit=3000)
    held = dataset.view(FIRST)
    for name in NAMES[1:3]:
        dataset.view(name)
    remote.put("large", content("large", size=2500))
    large = bind(remote, tmp_path, "other", limit=3000, names=["large"], size=2500)
    assert bytes(large.view("large")) == content("large", size=2500)
    assert sorted(kept(tmp_path)) == NAMES[:3]
    del held


def test_a_cache_that_was_larger_shrinks_with_the_next_download(tmp_path):
    remote = remote_store()
    read_all(bind(remote, tmp_path), NAMES[:8])
    bind(remote, tmp_path, limit=4000).view(NAMES[8])
    assert sorted(kept(tmp_path)) == NAMES[5:9]


def test_no_file_that_the_cache_did_not_download_is_ever_deleted(tmp_path):
    remote = remote_store()
    read_all(bind(remote, tmp_path))
    mine = [folder / "mine" for folder in [tmp_path, *tmp_path.rglob("*")] if folder.is_dir()]
    mine += [
        path.with_name(path.name[:-1] + ("0" if path.name[-1] != "0" else "1")) for path in kept(tmp_path).values()
    ]
    mine += [tmp_path / "headrace-cache/1/downloads/0123456789abcdef01234567.kept", tmp_path / FIRST]
    for path in mine:
        path.write_bytes(b"mine")
    (tmp_path / "headrace-cache/1/files" / "my folder").mkdir()
    (tmp_path / "headrace-cache/1/files" / "my folder" / "file").write_bytes(b"mine")
    dataset = bind(remote, tmp_path, limit=0)
    read_all(dataset)
    bind(remote, tmp_path, limit=1000, fingerprint="other").view(FIRST)
    assert all(path.read_bytes() == b"mine" for path in mine)
    assert (tmp_path / "headrace-cache/1/files" / "my folder" / "file").read_bytes() == b"mine"


def test_a_file_that_cannot_be_kept_is_fetched_by_several_at_a_time(tmp_path):
    remote = remote_store()
    begun, go_on = threading.Event(), threading.Event()
    remote.rules.append(Rule(Run(lambda call: (begun.set(), go_on.wait(20))), operation="pieces", times=1))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(bind(remote, tmp_path, limit=0).view, FIRST)
        assert begun.wait(20)
        assert bytes(bind(remote, tmp_path, limit=0).view(FIRST)) == content(FIRST)
        assert not first.done()
        go_on.set()
        assert bytes(first.result(20)) == content(FIRST)


def test_threads_under_a_small_limit_read_right_and_keep_within_it(tmp_path):
    remote = remote_store(size=20_000)
    over = []
    ended = threading.Event()

    def watch():
        while not ended.wait(0.002):
            over.append(sum(usage(tmp_path)))

    with ThreadPoolExecutor(5) as pool:
        watching = pool.submit(watch)
        datasets = [bind(remote, tmp_path, limit=50_000, size=20_000) for _ in range(4)]

        def read(number):
            names = NAMES[number:] + NAMES[:number]
            return [bytes(datasets[number].view(name)) == content(name, size=20_000) for name in names * 5]

        assert all(map(all, pool.map(read, range(4))))
        ended.set()
        watching.result()
    assert max(over) <= 50_000 + 4 * 20_000
    assert sum(usage(tmp_path)) <= 50_000


def test_a_file_that_arrives_while_another_looks_for_room_is_counted(tmp_path, monkeypatch):
    remote = remote_store()
    begun, go_on = threading.Event(), threading.Event()
    remote.rules.append(Rule(Run(lambda call: (begun.set(), go_on.wait(20))), operation="pieces", path=FIRST))
    real = CacheFolder.reserved_bytes
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(bind(remote, tmp_path, limit=1500).view, FIRST)
        assert begun.wait(20)

        def reserved_bytes(folder):
            go_on.set()
            first.result(20)  # and its view keeps it pinned
            return real(folder)

        monkeypatch.setattr(CacheFolder, "reserved_bytes", reserved_bytes)
        assert bytes(bind(remote, tmp_path, limit=1500).view(NAMES[1])) == content(NAMES[1])
    assert sorted(kept(tmp_path)) == [FIRST]


# The disk


def test_a_full_disk_makes_the_cache_remove_what_nobody_uses(tmp_path, monkeypatch):
    remote = remote_store()
    dataset = bind(remote, tmp_path)
    read_all(dataset, NAMES[:4])
    write_all = _full_at(monkeypatch, lambda: sum(usage(tmp_path)) > 4000)
    assert bytes(dataset.view(NAMES[4])) == content(NAMES[4])
    assert sorted(kept(tmp_path)) == NAMES[1:5]
    assert write_all


def test_a_full_disk_with_nothing_to_remove_is_an_error_that_says_so_and_leaves_nothing(tmp_path, monkeypatch):
    remote = remote_store()
    dataset = bind(remote, tmp_path)
    held = dataset.view(FIRST)
    with monkeypatch.context() as patch:
        _full_at(patch, lambda: True)
        with pytest.raises(StoreError, match=rf"No space left on device.*{NAMES[1]} needs 1,000 bytes") as caught:
            dataset.view(NAMES[1])
    assert caught.value.errno == errno.ENOSPC
    assert (sorted(kept(tmp_path)), on_their_way(tmp_path)) == ([FIRST], [])
    assert bytes(held) == content(FIRST)
    assert bytes(dataset.view(NAMES[1])) == content(NAMES[1])


def _full_at(monkeypatch, is_full):
    from headrace.store import files

    real, met = files.write_all, []

    def write_all(descriptor, data):
        if is_full():
            met.append(len(data))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor, data)

    monkeypatch.setattr("headrace.store.arrivals.files.write_all", write_all)
    return met


NAMESPACE = ["unshare", "-rm", "sh", "-c"]


def _in_own_mounts(mount, directory, script):
    """Runs the Python script with mount(8) done on directory, in a mount namespace of its own."""
    done = subprocess.run(
        [*NAMESPACE, f'{mount} && exec "$0" -c "$1" "$2"', sys.executable, script, str(directory)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip("mounts are not allowed here")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_on_a_small_disk_the_cache_takes_what_there_is(tmp_path):
    script = """
import sys
from cache_scenes import *
remote = remote_store(size=300_000)
dataset = bind(remote, sys.argv[1], size=300_000)
for name in NAMES * 2:
    assert bytes(dataset.view(name)) == content(name, size=300_000)
print(len(kept(sys.argv[1])), on_their_way(sys.argv[1]))
"""
    told = _in_own_mounts(f"mount -t tmpfs -o size=1m tmpfs {tmp_path}", tmp_path, script)
    assert told in ("2 []\n", "3 []\n")


def test_the_disk_itself_holds_no_more_than_the_limit_and_a_file_a_reader(tmp_path):
    script = """
import sys
from cache_scenes import *
size, limit, readers = 200_000, 450_000, 4
used = lambda: (lambda s: (s.f_blocks - s.f_bfree) * s.f_frsize)(os.statvfs(sys.argv[1]))
pids = []
for reader in range(readers):
    pids.append(os.fork())
    if not pids[-1]:
        dataset = bind(remote_store(size=size), sys.argv[1], limit=limit, size=size)
        views = []
        for name in (NAMES[reader:] + NAMES[:reader]) * 3:
            views = [*views, dataset.view(name)][-2:]
            assert bytes(views[-1]) == content(name, size=size)
        os._exit(0)
most = 0
while pids:
    most = max(most, used())
    if os.waitpid(pids[0], os.WNOHANG)[0]:
        pids.pop(0)
print(most <= limit + readers * size + 100_000, used() <= limit + 100_000, most, used())
"""
    told = _in_own_mounts(f"mount -t tmpfs -o size=16m tmpfs {tmp_path}", tmp_path, script)
    assert told.startswith("True True"), told


def test_a_directory_that_cannot_be_written_serves_what_it_has_and_says_what_it_lacks(tmp_path):
    remote = remote_store()
    read_all(bind(remote, tmp_path), NAMES[:3])
    script = """
import sys
from cache_scenes import *
from headrace.errors import StoreError
from headrace.store.cache_files import CacheFolder
remote = remote_store()
for limit in (None, 0):
    dataset = bind(remote, sys.argv[1], limit=limit)
    for name in NAMES[:3] * 2:
        assert bytes(dataset.view(name)) == content(name)
assert fetches(remote) == 0
try:
    dataset.view(NAMES[3])
except StoreError as error:
    print(error)
"""
    told = _in_own_mounts(f"mount --bind -o ro {tmp_path} {tmp_path}", tmp_path, script)
    assert "cannot be written" in told
    assert f"no copy of memory://{NAMES[3]}" in told


def test_an_empty_directory_that_cannot_be_written_says_so(tmp_path):
    script = """
import sys
from cache_scenes import *
from headrace.errors import StoreError
from headrace.store.cache_files import CacheFolder
try:
    bind(remote_store(), sys.argv[1] + "/cache").view(NAMES[3])
except StoreError as error:
    print(error)
"""
    assert "cannot be written" in _in_own_mounts(f"mount --bind -o ro {tmp_path} {tmp_path}", tmp_path, script)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL])
def test_a_file_system_without_locks_is_refused_at_first_use(tmp_path, monkeypatch, number):
    def fcntl(descriptor, command, argument):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("headrace.store.file_locks.fcntl.fcntl", fcntl)
    remote = remote_store()
    with pytest.raises(StoreError, match=r"this file system has no locks .*put the cache on a local disk"):
        bind(remote, tmp_path).view(FIRST)
    assert fetches(remote) == 0


def test_looking_for_room_lists_only_the_folders_that_changed(tmp_path, monkeypatch):
    names = [f"{number}.bin" for number in range(200)]
    dataset = bind(remote_store(names), tmp_path, names=names, limit=150_000)
    for name in names:
        dataset.view(name)
    time.sleep(0.1)  # a folder's time moves in steps
    listing = dataset._copies.folder.listing
    listing.parts()
    listed = []
    real = type(listing)._files
    monkeypatch.setattr(
        type(listing), "_files", lambda self, folder, path: listed.append(folder) or real(self, folder, path)
    )
    dataset.view(names[0])
    assert len(listed) <= 1
    assert len(kept(tmp_path)) == 150
    assert {name for name in names if name not in kept(tmp_path)} == set(names[1:51])
