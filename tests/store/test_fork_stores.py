"""Remote stores in forked, spawned and threaded processes, after the parent used them."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from headrace.store import obstore_client as client_module
from headrace.store.open import open_store
from headrace.store.retrying import RetryingStore, RetryPolicy

DATA = bytes(range(256)) * 100
WAIT_S = 60.0
QUIET = ("-W", "ignore::DeprecationWarning")  # Python 3.12 warns of forking beside threads, which is what is tested


@pytest.fixture
def store(http_url, http_folder) -> RetryingStore:
    """A store that this process has used."""
    (http_folder / "object").write_bytes(DATA)
    opened = open_store(http_url, retry=RetryPolicy(tries=3, first_wait_s=0.01))
    assert opened.get("object") == DATA
    return opened


def reads_all(store: RetryingStore) -> bool:
    found = store.head("object")
    starts = np.arange(40) * 600
    views = store.get_ranges_of(found, starts, np.full(40, 100))
    return (
        store.get("object") == DATA
        and b"".join(store.pieces("object", 1000)) == DATA
        and [bytes(view) for view in views] == [DATA[at : at + 100] for at in starts]
    )


def forked(work, wait_s: float = WAIT_S) -> int:
    """The exit status of work() in a forked child; -SIGKILL where it hangs."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if work() else 2
        finally:
            os._exit(status)
    return waited(child, wait_s)


def waited(child: int, wait_s: float = WAIT_S) -> int:
    deadline_s = time.monotonic() + wait_s
    while time.monotonic() < deadline_s:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        threading.Event().wait(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -signal.SIGKILL


def test_a_forked_child_reads_what_the_parent_reads(store):
    assert forked(lambda: reads_all(store)) == 0
    assert reads_all(store)


def test_a_fork_of_a_fork_of_a_fork_reads_whether_or_not_its_parent_did(store):
    def child(depth: int, used: tuple[bool, ...]) -> bool:
        read = reads_all(store) if used[depth] else True
        return read and (depth + 1 == len(used) or forked(lambda: child(depth + 1, used)) == 0)

    for used in ((True, True, True, True), (False, True, False, True), (True, False, True, False)):
        assert forked(lambda used=used: child(0, used)) == 0
    assert reads_all(store)


def test_many_forked_children_at_once_share_one_copy_of_the_client(store):
    children = []
    for _ in range(16):
        child = os.fork()
        if child == 0:
            os._exit(0 if reads_all(store) and reads_all(store) else 1)
        children.append(child)
    assert [waited(child) for child in children] == [0] * 16
    assert reads_all(store)
    spares = [name for name in os.listdir("/proc/self/fd") if "headrace-obstore" in _target(name)]
    assert len(spares) <= 1


def _target(name: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{name}")
    except OSError:
        return ""


def test_forking_leaves_no_file_behind(store, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert forked(lambda: reads_all(store)) == 0
    assert os.listdir(tmp_path) == ["served over http"]


@pytest.mark.parametrize("how", ["no memory file", "closed by the child", "no spare"])
def test_a_child_makes_its_own_copy_where_the_shared_one_is_gone(store, monkeypatch, how):
    if how == "no memory file":
        monkeypatch.setattr(client_module._loaded, "spare", None)
        monkeypatch.delattr(os, "memfd_create")
    if how == "no spare":
        monkeypatch.setattr(client_module, "_before_fork", lambda: None)

    def child() -> bool:
        spare = client_module._loaded.spare
        if how == "closed by the child" and spare is not None:
            os.close(spare.descriptor)
            os.dup2(os.open(os.devnull, os.O_RDONLY), spare.descriptor)
        if how == "no spare":
            client_module._loaded.spare = None
        return reads_all(store)

    assert forked(child) == 0


def test_children_of_a_busy_parent_read(store):
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            store.get("object")

    threads = [threading.Thread(target=busy) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        assert [forked(lambda: reads_all(store)) for _ in range(8)] == [0] * 8
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_threads_of_a_child_start_the_client_together(store):
    def child() -> bool:
        with ThreadPoolExecutor(8) as pool:
            return all(pool.map(lambda _: reads_all(store), range(16)))

    assert forked(child) == 0


def test_a_child_that_throws_the_store_away_disturbs_nobody(http_url, http_folder):
    (http_folder / "object").write_bytes(DATA)
    mine = open_store(http_url)
    mine.get("object")
    holder = [mine]
    stream = mine.pieces("object", 100)
    next(stream)

    def child() -> bool:
        holder.clear()
        mine.close()
        stream.close()
        return True

    assert forked(child) == 0
    assert b"".join(stream) == DATA[100:]
    assert mine.get("object") == DATA


def _in_worker(store: RetryingStore, results) -> None:
    results.put(reads_all(store))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_every_start_method_gives_readers(store, method):
    context = multiprocessing.get_context(method)
    results = context.Queue()
    workers = [context.Process(target=_in_worker, args=(store, results)) for _ in range(2)]
    for worker in workers:
        worker.start()
    assert [results.get(timeout=WAIT_S) for _ in workers] == [True, True]
    for worker in workers:
        worker.join(WAIT_S)
        assert worker.exitcode == 0


def test_obstore_imported_and_used_before_headrace_in_a_parent_does_no_harm(http_url, http_folder):
    (http_folder / "object").write_bytes(DATA)
    code = f"""
import os, sys
import obstore
from obstore.store import HTTPStore
theirs = HTTPStore({http_url!r}, client_options={{"allow_http": True}})
assert len(obstore.get(theirs, "object").bytes()) == {len(DATA)}
if os.fork() == 0:
    from headrace.store.open import open_store
    assert len(open_store({http_url!r}).get("object")) == {len(DATA)}
    assert sys.modules["obstore"] is obstore
    os._exit(0)
assert os.wait()[1] == 0
from headrace.store.open import open_store
assert len(open_store({http_url!r}).get("object")) == {len(DATA)}
assert len(obstore.get(theirs, "object").bytes()) == {len(DATA)}
"""
    found = subprocess.run([sys.executable, *QUIET, "-c", code], capture_output=True, text=True, timeout=WAIT_S)
    assert (found.returncode, found.stderr) == (0, "")


def test_a_child_that_exits_by_running_to_its_end_ends(http_url, http_folder, tmp_path):
    (http_folder / "object").write_bytes(DATA)
    script = tmp_path / "program.py"
    script.write_text(
        f"""
import os
from headrace.store.open import open_store
store = open_store({http_url!r})
assert len(store.get("object")) == {len(DATA)}
child = os.fork()
assert len(store.get("object")) == {len(DATA)}
if child:
    assert os.waitpid(child, 0)[1] == 0
"""
    )
    found = subprocess.run([sys.executable, *QUIET, script], capture_output=True, text=True, timeout=WAIT_S)
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.slow
def test_a_data_loader_with_forked_workers_reads_a_store_that_its_parent_used(store):
    torch_data = pytest.importorskip("torch.utils.data")

    class Objects(torch_data.Dataset):
        def __len__(self) -> int:
            return 64

        def __getitem__(self, index: int) -> int:
            return len(store.get("object")) + index

    loader = torch_data.DataLoader(Objects(), batch_size=4, num_workers=4, multiprocessing_context="fork")
    for _ in range(2):
        seen = [value - len(DATA) for batch in loader for value in batch.tolist()]
        assert seen == list(range(64))


def test_a_client_that_outlives_the_modules_is_freed_without_a_word():
    program = """
import json, sys
from headrace.store import obstore_client
json.held = obstore_client.Held(object())
sys.kept = (json, obstore_client)  # modules end in the order opposite to their imports, sys last
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
