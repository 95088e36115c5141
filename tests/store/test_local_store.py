"""What is special about a directory: its path, its descriptors, its durability, its links and its failures."""

import contextlib
import errno
import multiprocessing
import os
import pickle
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest

from headrace.errors import NotFoundError, ObjectChangedError, StoreError, TruncatedReadError
from headrace.store import LocalStore, descriptors, files
from headrace.store.descriptors import Descriptors, open_to_read
from headrace.store.identity import attempt_id

fork = multiprocessing.get_context("fork")


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path / "data", fsync=False)


def one(store, path, start=0, length=1):
    return bytes(store.get_ranges(path, np.array([start]), np.array([length]))[0])


def everything(folder):
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*"))


# The root


def test_every_way_to_write_the_root_names_the_same_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    full = str(tmp_path / "my data")
    roots = ["~/my data", "my data", "./my data", "my data/", "my data///", Path("my data"), full, full + "/"]
    roots += [f"file://{tmp_path}/my%20data", f"file://localhost{tmp_path}/my%20data", f"file:{tmp_path}/my%20data"]
    for number, root in enumerate(roots):
        store = LocalStore(root)
        assert store.location == full
        store.put(f"object {number}", b"data")
    assert everything(tmp_path) == sorted(["my data"] + [f"my data/object {number}" for number in range(len(roots))])


def test_a_later_change_of_the_current_directory_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = LocalStore("data")
    copied = pickle.loads(pickle.dumps(store))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    store.put("object", b"data")
    assert copied.get("object") == b"data"
    assert everything(tmp_path) == ["data", "data/object", "elsewhere"]


@pytest.mark.parametrize("form", ["blank s", "a#b", "100%20", "caf\u00e9", "cafe\u0301", "n" * 200, "-", "a:b"])
def test_odd_roots_work(tmp_path, form):
    store = LocalStore(tmp_path / form)
    store.put("object", b"data")
    assert LocalStore(str(tmp_path / form) + "/").get("object") == b"data"
    assert os.listdir(tmp_path) == [form]


@pytest.mark.parametrize(
    "root",
    [
        "s3://bucket/data",
        Path("s3://bucket/data"),
        "gs://b",
        "https://host/x",
        "hf+x://y",
        "file://host/data",
        "file:///a#b",
    ],
)
def test_a_url_is_refused_and_no_folder_with_a_colon_appears(tmp_path, monkeypatch, root):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="URL"):
        LocalStore(root)
    assert everything(tmp_path) == []


@pytest.mark.parametrize("root", ["", "a\0b", "~no-such-user-here/x"])
def test_a_root_that_names_no_directory_is_refused(root):
    with pytest.raises(ValueError, match="root="):
        LocalStore(root)


def test_the_constructor_touches_nothing(tmp_path):
    store = LocalStore(tmp_path / "absent")
    assert store.list() == store.folders() == []
    store.delete("object")
    store.remove_orphans()
    assert repr(store) == f"LocalStore({str(tmp_path / 'absent')!r})"
    assert everything(tmp_path) == []


def test_max_open_files_must_be_positive(tmp_path):
    with pytest.raises(ValueError, match="max_open_files=0"):
        LocalStore(tmp_path, max_open_files=0)


def test_a_linked_root_linked_folders_and_linked_files_are_followed(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/object").write_bytes(b"far")
    (tmp_path / "root").symlink_to("real")
    (tmp_path / "real/folder").symlink_to(tmp_path / "outside")
    (tmp_path / "real/file").symlink_to(tmp_path / "outside/object")
    (tmp_path / "real/broken").symlink_to("nowhere")
    (tmp_path / "real/itself").symlink_to("itself")
    (tmp_path / "outside/up").symlink_to(tmp_path / "outside")
    store = LocalStore(tmp_path / "root")
    (tmp_path / "real/round").symlink_to(tmp_path / "real")
    assert [entry.path for entry in store.list()] == ["file", "folder/object"]  # and no loop
    assert store.folders() == ["folder", "round"]
    assert store.get("file") == store.view("folder/object") == b"far"
    assert store.head("file").size_bytes == 3
    store.put("file", b"near")  # replaces the link, not what it leads to
    assert (tmp_path / "outside/object").read_bytes() == b"far"


def test_removing_a_folder_removes_links_and_not_what_they_lead_to(tmp_path, store):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/object").write_bytes(b"far")
    store.put("folder/deep/object", b"data")
    (tmp_path / "data/folder/link").symlink_to(tmp_path / "outside")
    (tmp_path / "data/link").symlink_to(tmp_path / "outside")
    store.remove_folder("folder")
    store.remove_folder("link")
    assert everything(tmp_path) == ["data", "outside", "outside/object"]


def test_what_is_no_regular_file_is_no_object_and_does_not_block(tmp_path, store):
    store.put("object", b"data")
    os.mkfifo(tmp_path / "data/pipe")
    assert [entry.path for entry in store.list()] == ["object"]
    for read in (store.get, store.head, store.view, lambda path: one(store, path)):
        with pytest.raises(NotFoundError, match="pipe"):
            read("pipe")


def test_a_name_that_cannot_be_addressed_is_not_listed(tmp_path, store):
    store.put("object", b"data")
    (tmp_path / "data/back\\slash").write_bytes(b"data")
    assert [entry.path for entry in store.list()] == ["object"]


@pytest.mark.parametrize("name", ["n" * 255, "\u00e9" * 127, "n" * 210])
def test_the_longest_names_the_file_system_takes_can_be_written(store, name):
    store.put(name, b"data")
    store.put_if_absent(f"folder/{name}", b"data")
    assert store.get(name) == store.get(f"folder/{name}") == b"data"
    with pytest.raises(StoreError, match="shorter name"):
        store.put(name + "n" * 46, b"data")


# Files in flight


def test_writing_leaves_no_temporary_file(tmp_path, store):
    store.put("a", b"data")
    store.put_if_absent("b", b"data")
    with pytest.raises(StoreError):
        store.put_if_absent("b", b"data")
    (tmp_path / "data/folder").mkdir()
    with pytest.raises(StoreError, match="data/folder"):
        store.put("folder", b"data")
    with pytest.raises(StoreError, match="exists"):
        store.put_if_absent("folder", b"data")
    assert everything(tmp_path / "data") == ["a", "b", "folder"]


@pytest.mark.parametrize("operation", ["put", "put_if_absent"])
@pytest.mark.parametrize("step", ["os.write", "os.fsync", "os.replace", "os.link"])
def test_a_failure_at_any_step_leaves_the_older_object_and_no_temporary_file(tmp_path, monkeypatch, operation, step):
    store = LocalStore(tmp_path / "data")
    store.put("other", b"old")

    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(step, full)
        path = "other" if operation == "put" else "new"
        if (operation, step) in (("put", "os.link"), ("put_if_absent", "os.replace")):
            getattr(store, operation)(path, b"data")
            return
        with pytest.raises(
            StoreError, match=rf"{tmp_path}/data/{path}: cannot .*No space left.*free some space"
        ) as caught:
            getattr(store, operation)(path, b"data")
    assert caught.value.errno == errno.ENOSPC
    assert [(entry.path, entry.size_bytes) for entry in store.list()] == [("other", 3)]
    assert everything(tmp_path / "data") == ["other"]


def test_a_disk_that_takes_a_part_only_fails_the_write_and_the_put(tmp_path):
    script = f"""
import resource, signal
from headrace.errors import StoreError
from headrace.store import LocalStore
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = LocalStore({str(tmp_path / "data")!r})
store.put("fits", bytes(100_000))
for action in (lambda: store.put("large", bytes(100_001)), lambda: store.open_writer("stream").write(bytes(200_000))):
    try:
        action()
    except StoreError as error:
        print(error)
print([(entry.path, entry.size_bytes) for entry in store.list()])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"{tmp_path}/data/large: cannot write: File too large")
    assert lines[1].startswith(f"{tmp_path}/data/stream: cannot write: File too large")
    assert lines[2] == "[('fits', 100000), ('stream', 100000)]"
    assert everything(tmp_path / "data") == ["fits", "stream"]


def test_files_in_flight_are_not_listed_and_orphans_are_removed(tmp_path, store):
    store.put("folder/object", b"data")
    ready, theirs = fork.Pipe()

    def stall():
        real = os.replace

        def replace(source, target):
            theirs.send(source)
            signal.pause()
            real(source, target)

        os.replace = replace
        store.put("folder/object", b"new data")

    writer = fork.Process(target=stall)
    writer.start()
    in_flight = Path(ready.recv())
    foreign = tmp_path / "data/folder/.object.12345678-12345678-9-9-9.tmp"
    unnamed = tmp_path / "data/folder/.object.tmp"
    own = tmp_path / f"data/folder/.object.{attempt_id()}.tmp"
    for path in (foreign, unnamed, own):
        path.write_bytes(b"part")
    assert [entry.path for entry in store.list()] == ["folder/object"]
    store.remove_orphans("folder")
    assert in_flight.exists()  # its process lives
    writer.kill()
    writer.join()
    store.remove_orphans()  # another folder
    assert in_flight.exists()
    store.remove_orphans("folder")
    assert not in_flight.exists()
    assert all(path.exists() for path in (foreign, unnamed, own))
    assert store.get("folder/object") == b"data"


def test_a_listing_never_fails_on_what_vanishes_meanwhile(store):
    stop = threading.Event()

    def churn(number):
        while not stop.is_set():
            store.put(f"churn/{number}/object", b"data")
            store.delete(f"churn/{number}/object")
            with contextlib.suppress(StoreError):  # two threads meet in it
                store.remove_folder(f"churn/{number % 2}")

    threads = [threading.Thread(target=churn, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(300):
            assert {entry.size_bytes for entry in store.list()} <= {4}
            store.folders("churn")
    finally:
        stop.set()
        for thread in threads:
            thread.join()


# Durability


@pytest.fixture
def steps(monkeypatch):
    """The names of the steps that change or sync the disk, as they happen."""
    seen = []

    def logged(name):
        real = getattr(os, name)

        def step(target, *rest, **options):
            if name == "fsync":
                where = os.readlink(f"/proc/self/fd/{target}")
                seen.append(f"fsync {'folder ' if os.path.isdir(where) else ''}{os.path.basename(where)}")
            elif name != "write":
                seen.append(f"{name} {os.path.basename(rest[0] if rest and isinstance(rest[0], str) else target)}")
            else:
                seen.append("write")
            return real(target, *rest, **options)

        monkeypatch.setattr(os, name, step)

    for name in ("write", "fsync", "replace", "rename", "link", "unlink", "mkdir", "rmdir"):
        logged(name)

    def take():
        taken = [step.partition(".object.")[0] + ("TMP" if ".object." in step else "") for step in seen]
        seen.clear()
        return taken

    return take


def test_a_put_is_written_synced_renamed_and_its_folder_synced(tmp_path, steps):
    store = LocalStore(tmp_path)
    store.put("object", b"data")
    tail = f"fsync folder {tmp_path.name}"
    assert steps() == ["write", "fsync TMP", "replace object", tail]
    store.put("a/b/object", b"data")
    assert steps() == [
        "mkdir a", tail, "mkdir b", "fsync folder a", "write", "fsync TMP", "replace object", "fsync folder b"
    ]  # fmt: skip
    store.put_if_absent("a/object", b"data")
    assert steps() == ["write", "fsync TMP", "link object", "unlink TMP", "fsync folder a"]
    store.delete("object")
    assert steps() == ["unlink object", tail]
    store.delete("object")
    assert steps() == ["unlink object"]


def test_renames_and_folders_are_synced_on_both_sides(tmp_path, steps):
    store = LocalStore(tmp_path)
    store.make_folder("a")
    store.make_folder("a")
    store.make_folder("b")
    tail = f"fsync folder {tmp_path.name}"
    assert steps() == ["mkdir a", tail, "mkdir b", tail]
    writer = store.open_writer("a/object")
    writer.write(b"data")
    writer.sync()
    writer.close()
    store.rename("a/object", "b/object")
    assert steps() == ["write", "fsync object", "rename object", "fsync folder a", "fsync folder b"]
    store.rename("b/object", "b/other")
    assert steps() == ["rename other", "fsync folder b"]
    store.remove_folder("b")
    assert steps() == ["unlink other", "rmdir b", tail]


def test_without_fsync_nothing_is_synced_and_durability_not_claimed(tmp_path, steps):
    store = LocalStore(tmp_path, fsync=False)
    assert not store.capabilities.durable
    assert LocalStore(tmp_path).capabilities.durable
    store.put("a/object", b"data")
    store.put_if_absent("a/other", b"data")
    store.rename("a/other", "a/third")
    store.delete("a/third")
    writer = store.open_writer("a/object")
    writer.write(b"data")
    writer.sync()
    writer.close()
    store.remove_folder("a")
    assert [step for step in steps() if step.startswith("fsync")] == []


def test_a_file_system_that_cannot_sync_folders_is_put_up_with(tmp_path, monkeypatch):
    real = os.fsync

    def fsync(descriptor):
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EINVAL, "Invalid argument")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    LocalStore(tmp_path).put("object", b"data")


# Short writes and reads


def test_short_writes_and_short_reads_are_completed(store, monkeypatch):
    data = bytes(range(256)) * 5
    real_write, real_pread, real_preadv = os.write, os.pread, os.preadv
    monkeypatch.setattr(os, "write", lambda fd, view: real_write(fd, view[:100]))
    monkeypatch.setattr(os, "pread", lambda fd, length, start: real_pread(fd, min(length, 90), start))
    monkeypatch.setattr(os, "preadv", lambda fd, views, start: real_preadv(fd, [views[0][:70]], start))
    store.put("object", data)
    writer = store.open_writer("written")
    writer.write(data)
    writer.close()
    assert store.get("object") == store.get("written") == data
    views = store.get_ranges("object", np.array([0, 1000]), np.array([1280, 200]))
    assert [bytes(view) for view in views] == [data, data[1000:1200]]
    assert all(view.readonly for view in views)


def test_a_file_cut_while_it_is_read_is_truncated_never_padded(store, monkeypatch):
    store.put("object", bytes(1000))
    real = os.pread

    def pread(descriptor, length, start):
        os.truncate(f"{store.location}/object", 600)
        return real(descriptor, length, start)

    monkeypatch.setattr(os, "pread", pread)
    with pytest.raises(TruncatedReadError, match="has 600 bytes"):
        one(store, "object", 100, 900)


@pytest.mark.slow
def test_a_range_of_more_than_two_gib_comes_whole(store):
    size = (1 << 31) + 10_000
    store.put("object", b"")
    with open(f"{store.location}/object", "r+b") as file:
        file.truncate(size)
        file.seek(size - 3)
        file.write(b"end")
    view = store.get_ranges("object", np.array([0]), np.array([size]))[0]
    assert (len(view), bytes(view[-4:])) == (size, b"\0end")
    assert store.view("object")[-3:] == b"end"


# Descriptors


def descriptors_below(folder):
    links = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            links.append(os.readlink(f"/proc/self/fd/{name}"))
    return sum(link.startswith(str(folder)) for link in links)


def maps_below(folder):
    with open("/proc/self/maps", encoding="utf-8") as file:
        return sum(str(folder) in line for line in file)


def test_ranges_keep_at_most_max_open_files_open(tmp_path, monkeypatch):
    store = LocalStore(tmp_path, fsync=False, max_open_files=5)
    for number in range(40):
        store.put(str(number), bytes([number]))
    counts = []

    def counted(full_path):
        number = open_to_read(full_path)
        counts.append(descriptors_below(tmp_path))
        return number

    monkeypatch.setattr(descriptors, "open_to_read", counted)
    for number in [*range(40), *range(40)]:
        assert one(store, str(number)) == bytes([number])
        assert one(store, str(number)) == bytes([number])
    assert len(counts) == 80
    assert max(counts) == 5  # not even for a moment more
    store.close()
    assert descriptors_below(tmp_path) == 0
    assert store.max_views == 5


def test_the_default_limit_is_a_quarter_of_the_soft_limit_read_late(tmp_path):
    store = LocalStore(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        assert store._file_limit() == 64
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
        assert store._file_limit() == 1024
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_stores_of_a_process_share_the_descriptors_it_may_have(tmp_path):
    script = f"""
import os
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
import numpy as np
from headrace.store import LocalStore
stores = [LocalStore(os.path.join({str(tmp_path)!r}, str(number)), fsync=False) for number in range(20)]
for store in stores:
    for number in range(70):
        store.put(str(number), number.to_bytes(2, "little"))
for turn in range(2):
    for number in range(70):
        for store in stores:  # streams that are mixed
            (view,) = store.get_ranges(str(number), np.array([0]), np.array([2]))
            assert view == number.to_bytes(2, "little")
assert len(os.listdir("/proc/self/fd")) < 120
del stores[1:], store
for number in range(70):  # what others let go can be had again
    stores[0].get_ranges(str(number), np.array([0]), np.array([2]))
assert len(os.listdir("/proc/self/fd")) > 64
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_more_files_than_the_process_may_open_are_read_with_the_defaults(tmp_path):
    script = f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
import numpy as np
from headrace.store import LocalStore
store = LocalStore({str(tmp_path)!r}, fsync=False)
for number in range(300):
    store.put(str(number), number.to_bytes(2, "little"))
for _ in range(2):
    for number in range(300):
        (view,) = store.get_ranges(str(number), np.array([0]), np.array([2]))
        assert view == number.to_bytes(2, "little")
views = [store.view(str(number)) for number in range(300)]
assert [bytes(view) for view in views] == [number.to_bytes(2, "little") for number in range(300)]
print("read all")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout == "read all\n", done.stderr


def test_a_view_holds_no_descriptor_and_is_unmapped_with_its_last_reader(tmp_path):
    store = LocalStore(tmp_path, fsync=False)
    store.put("object", b"data")
    views = [store.view("object") for _ in range(10)]
    part = views[3][1:3]
    assert descriptors_below(tmp_path) == 0
    assert views[3] == b"data"
    assert all(view.readonly and view.format == "B" for view in views)
    assert maps_below(tmp_path) == 10
    del views
    assert part == b"at"
    assert maps_below(tmp_path) == 1
    del part
    assert maps_below(tmp_path) == 0


def test_a_descriptor_in_use_is_not_closed_by_others(tmp_path):
    for name in "abc":
        (tmp_path / name).write_bytes(name.encode())
    pool = Descriptors(1)
    with pool.opened(str(tmp_path / "a")) as first:
        with pool.opened(str(tmp_path / "b")) as second, pool.opened(str(tmp_path / "c")) as third:
            pool.forget(str(tmp_path / "b"))
            pool.close()
            assert [os.pread(number, 9, 0) for number in (first, second, third)] == [b"a", b"b", b"c"]
        assert os.pread(first, 9, 0) == b"a"
        assert descriptors_below(tmp_path) == 1
    assert descriptors_below(tmp_path) == 0


def test_a_descriptor_opened_while_its_file_is_replaced_serves_one_use_only(tmp_path, monkeypatch):
    path = str(tmp_path / "object")
    Path(path).write_bytes(b"old")
    pool = Descriptors(4)

    def slow_open(full_path):
        number = open_to_read(full_path)
        Path(path + ".new").write_bytes(b"new")
        os.replace(path + ".new", path)
        pool.forget(path)
        return number

    with monkeypatch.context() as patch:
        patch.setattr(descriptors, "open_to_read", slow_open)
        with pool.opened(path) as number:
            assert os.pread(number, 9, 0) == b"old"
    with pool.opened(path) as number:
        assert os.pread(number, 9, 0) == b"new"
    pool.close()
    assert descriptors_below(tmp_path) == 0


def test_threads_share_few_descriptors_while_files_are_replaced(tmp_path):
    store = LocalStore(tmp_path, fsync=False, max_open_files=3)
    for number in range(10):
        store.put(str(number), bytes([number]) * 1000)
    failures = []

    def read(seed):
        for turn in range(300):
            number = (turn * 7 + seed) % 10
            if turn % 50 == seed:
                store.put(str(number), bytes([number]) * 1000)
            if one(store, str(number), 990, 10) != bytes([number]) * 10:
                failures.append(number)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert descriptors_below(tmp_path) <= 3


def test_a_forked_child_makes_its_own_descriptors(tmp_path):
    store = LocalStore(tmp_path, fsync=False)
    for name in "abc":
        store.put(name, name.encode())
    for name in "ab":
        one(store, name)
    assert descriptors_below(tmp_path) == 2
    ours, theirs = fork.Pipe(duplex=False)
    own = store._own_descriptors()

    def in_child():
        value = one(store, "c")
        theirs.send((value, descriptors_below(tmp_path)))
        store.close()
        theirs.send(descriptors_below(tmp_path))

    own._lock.acquire()  # as if another thread of the parent were inside
    child = fork.Process(target=in_child)
    child.start()
    own._lock.release()
    assert ours.poll(20), "the child waits for a lock that nobody will release"
    assert ours.recv() == (b"c", 1)
    assert ours.recv() == 0
    child.join()
    assert one(store, "a") == b"a"
    assert descriptors_below(tmp_path) == 2


def test_a_pickle_holds_the_configuration_only(tmp_path):
    store = LocalStore(tmp_path, fsync=False, max_open_files=7)
    store.put("object", b"data" * 1000)
    before = len(pickle.dumps(store))
    one(store, "object")
    assert len(pickle.dumps(store)) == before < 1000
    copied = pickle.loads(pickle.dumps(store))
    assert repr(copied) == repr(store) == f"LocalStore({str(tmp_path)!r}, fsync=False, max_open_files=7)"


# Versions and permissions


def test_the_version_tells_a_replacement_by_another_process(tmp_path, store):
    store.put("object", b"data")
    first = store.head("object").version
    inode, _, size = first.split("-")
    assert (int(inode), int(size)) == (os.stat(tmp_path / "data/object").st_ino, 4)
    shutil.copy(tmp_path / "data/object", tmp_path / "data/new")
    os.replace(tmp_path / "data/new", tmp_path / "data/object")
    assert store.head("object").version != first


@contextlib.contextmanager
def unprivileged():
    """A world-readable directory, and no right to override permissions."""
    folder = Path(tempfile.mkdtemp())
    user = os.geteuid()
    try:
        folder.chmod(0o755)
        if user == 0:
            os.chown(folder, 65534, 65534)
            os.seteuid(65534)
        yield folder
    finally:
        os.seteuid(user)
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o755)
        shutil.rmtree(folder)


def test_a_read_only_directory_is_read_and_refuses_writes_with_the_path():
    with unprivileged() as folder:
        store = LocalStore(folder / "data")
        store.put("folder/object", b"data")
        for path in (folder / "data/folder/object", folder / "data/folder", folder / "data"):
            path.chmod(0o444 if path.is_file() else 0o555)
        assert store.get("folder/object") == store.view("folder/object") == b"data"
        assert one(store, "folder/object") == b"d"
        assert [entry.path for entry in store.list()] == ["folder/object"]
        store.remove_orphans("folder")
        writes = [
            lambda: store.put("folder/object", b"new"),
            lambda: store.put_if_absent("folder/new", b"new"),
            lambda: store.put("other/object", b"new"),
            lambda: store.delete("folder/object"),
            lambda: store.rename("folder/object", "folder/new"),
            lambda: store.open_writer("folder/new"),
            lambda: store.make_folder("new"),
            lambda: store.remove_folder("folder"),
        ]
        for write in writes:
            with pytest.raises(
                StoreError, match=rf"{folder}/data/.*Permission denied; check the permissions"
            ) as caught:
                write()
            assert caught.value.errno == errno.EACCES
        assert store.get("folder/object") == b"data"


def test_an_unreadable_object_and_folder_are_errors_not_absences():
    with unprivileged() as folder:
        store = LocalStore(folder / "data")
        store.put("folder/object", b"data")
        store.put("secret", b"data")
        (folder / "data/secret").chmod(0)
        (folder / "data/folder").chmod(0)
        for read in (
            lambda: store.get("secret"),
            lambda: store.view("secret"),
            store.list,
            lambda: store.folders("folder"),
        ):
            with pytest.raises(StoreError, match="Permission denied") as caught:
                read()
            assert not isinstance(caught.value, NotFoundError)


def test_a_file_in_the_place_of_a_folder_is_named(store):
    store.put("object", b"data")
    for write in (store.put, store.put_if_absent):
        with pytest.raises(StoreError, match="data/object/below"):
            write("object/below", b"data")
    with pytest.raises(StoreError, match="data/object"):
        store.make_folder("object")


def test_errors_other_than_the_file_systems_pass_through():
    with pytest.raises(ZeroDivisionError), files.named("/x", "read"):
        raise ZeroDivisionError


def test_a_store_that_is_dropped_without_close_leaves_no_file_open(tmp_path):
    store = LocalStore(tmp_path)
    for number in range(5):
        store.put(f"{number}.bin", b"abc")
        store.get_ranges(f"{number}.bin", np.array([0]), np.array([3]))
    assert descriptors_below(tmp_path) == 5
    del store
    assert descriptors_below(tmp_path) == 0


@pytest.mark.parametrize("mapped", [True, False])
def test_what_another_process_put_in_place_of_an_open_file_is_read_as_such(tmp_path, mapped):
    store = LocalStore(tmp_path, mapped=mapped)
    begin, length = np.array([0]), np.array([3])
    store.put("object", b"old")
    before = store.head("object")
    assert bytes(store.get_ranges_of(before, begin, length)[0]) == b"old"  # open from now on
    other = LocalStore(tmp_path)
    for data in (b"new", b"longer", b"abc"):
        other.put("object", data)
        with pytest.raises(ObjectChangedError):
            store.get_ranges_of(before, begin, length)
        found = store.head("object")
        assert bytes(store.get_ranges_of(found, begin, length)[0]) == data[:3]
        assert b"".join(store.pieces("object", 2)) == data
        before = found
    other.delete("object")
    with pytest.raises(NotFoundError):
        store.get_ranges_of(before, begin, length)
