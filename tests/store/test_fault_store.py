import pickle
import threading
import time

import numpy as np
import pytest

from headrace.errors import StoreError, TruncatedReadError
from headrace.store import LocalStore, MemoryStore
from headrace.testing import Call, Cut, Delay, FaultStore, Flip, Forget, Refuse, Rule, Run, StoreContract


class TestFaultStoreOverMemory(StoreContract):
    def make_store(self, tmp_path):
        return FaultStore(MemoryStore())


class TestFaultStoreOverLocal(StoreContract):
    def make_store(self, tmp_path):
        return FaultStore(LocalStore(tmp_path / "data", fsync=False), [Rule(Flip(3), path="no such path")])


@pytest.fixture(params=["memory", "local"])
def inner(request, tmp_path):
    store = MemoryStore() if request.param == "memory" else LocalStore(tmp_path / "data", fsync=False)
    store.put("a/object", b"0123456789")
    return store


def ranges(store, *spans):
    starts, lengths = np.array(spans, np.int64).T
    return [bytes(view) for view in store.get_ranges("a/object", starts, lengths)]


def test_every_call_is_logged_with_its_bytes(inner):
    store = FaultStore(inner)
    store.get("a/object")
    store.view("a/object")
    ranges(store, (0, 3), (2, 4))
    store.put("b", b"12")
    store.list("a")
    store.rename("b", "c")
    writer = store.open_writer("d")
    writer.write(b"xyz")
    writer.sync()
    writer.close()
    assert store.calls == [
        Call("get", "a/object", 10),
        Call("view", "a/object", 10),
        Call("get_ranges", "a/object", 7),
        Call("put", "b", 2),
        Call("list", "a", 0),
        Call("rename", "b", 0),
        Call("open_writer", "d", 0),
        Call("write", "d", 3),
        Call("sync", "d", 0),
        Call("close_writer", "d", 0),
    ]
    assert store.count() == 10
    assert store.count("get") == 1
    assert store.count(path="a*") == 4


def test_a_cut_object_ends_early_for_every_reader(inner):
    store = FaultStore(inner, [Rule(Cut(4))])
    assert store.get("a/object") == b"0123"
    assert store.view("a/object") == b"0123"
    assert ranges(store, (0, 4), (1, 2)) == [b"0123", b"12"]
    with pytest.raises(TruncatedReadError, match="has 4 bytes"):
        ranges(store, (2, 3))
    assert inner.get("a/object") == b"0123456789"


def test_a_cut_write_keeps_fewer_bytes_and_says_nothing(inner):
    store = FaultStore(inner, [Rule(Cut(4), path="w*")])
    store.put("w1", b"abcdefgh")
    store.put_if_absent("w2", b"abcdefgh")
    writer = store.open_writer("w3")
    for part in (b"abc", b"def", b"ghi"):
        writer.write(part)
    writer.close()
    appended = store.open_writer("w3", append=True)
    appended.write(b"past the cut")
    appended.close()
    assert inner.get("w1") == inner.get("w2") == inner.get("w3") == b"abcd"


def test_a_flipped_byte_is_the_same_byte_for_every_reader_and_writer(inner):
    damaged = b"01234" + bytes([ord("5") ^ 0xFF]) + b"6789"
    store = FaultStore(inner, [Rule(Flip(5))])
    assert store.get("a/object") == store.view("a/object") == damaged
    assert ranges(store, (4, 3), (6, 2), (5, 1), (0, 5)) == [damaged[4:7], b"67", damaged[5:6], b"01234"]
    store.put("b", b"0123456789")
    writer = store.open_writer("c")
    for part in (b"012", b"3456", b"789"):
        writer.write(part)
    writer.close()
    assert inner.get("b") == inner.get("c") == damaged
    assert FaultStore(inner, [Rule(Flip(-5))]).get("a/object") == damaged
    assert FaultStore(inner, [Rule(Flip(10))]).get("a/object") == b"0123456789"


def test_what_is_forgotten_was_acknowledged_and_not_kept(inner):
    store = FaultStore(inner, [Rule(Forget())])
    store.put("b", b"data")
    store.put_if_absent("c", b"data")
    store.delete("a/object")
    store.rename("a/object", "d")
    store.make_folder("folder")
    store.remove_folder("a")
    writer = store.open_writer("e")
    writer.write(b"data")
    writer.close()
    assert [(entry.path, entry.size_bytes) for entry in inner.list()] == [("a/object", 10), ("e", 0)]
    assert inner.folders() == ["a"]


def test_a_refused_request_raises_and_keeps_nothing(inner):
    store = FaultStore(
        inner, [Rule(Refuse(StoreError("disk full")), operation="put"), Rule(Refuse(OSError("gone")), "write")]
    )
    with pytest.raises(StoreError, match="disk full"):
        store.put("b", b"data")
    writer = store.open_writer("c")
    with pytest.raises(OSError, match="gone"):
        writer.write(b"data")
    writer.close()
    assert inner.get("c") == b""
    assert store.get("a/object") == b"0123456789"


@pytest.mark.parametrize(
    ("nth", "times", "expected"),
    [(1, None, "xxxxx"), (1, 2, "xx..."), (3, 1, "..x.."), (3, None, "..xxx"), (6, None, ".....")],
)
def test_a_rule_acts_from_its_nth_request_for_so_many_times(inner, nth, times, expected):
    store = FaultStore(inner, [Rule(Cut(0), operation="get", path="a/*", nth=nth, times=times)])
    seen = ""
    for _ in range(5):
        store.head("a/object")  # other requests do not count
        seen += "." if store.get("a/object") else "x"
    assert seen == expected


def test_rules_count_apart_and_act_in_their_order(inner):
    store = FaultStore(inner, [Rule(Cut(3)), Rule(Flip(-1), times=1)])
    assert store.get("a/object") == b"01" + bytes([ord("2") ^ 0xFF])
    assert store.get("a/object") == b"012"


def test_a_delay_comes_before_the_request(inner):
    store = FaultStore(inner, [Rule(Delay(0.05), operation="get")])
    start = time.perf_counter()
    store.get("a/object")
    assert time.perf_counter() - start >= 0.05


def test_a_rule_of_a_rename_may_name_either_end(inner):
    store = FaultStore(inner, [Rule(Refuse(StoreError("no")), "rename", path="target")])
    with pytest.raises(StoreError, match="no"):
        store.rename("a/object", "target")


def test_a_run_rule_sees_the_call_and_may_use_the_store(inner):
    seen = []

    def look(call):
        seen.append((call, store.store.get("a/object")))

    store = FaultStore(inner, [Rule(Run(look), operation="put")])
    store.put("a/object", b"new")
    assert seen == [(Call("put", "a/object", 3), b"0123456789")]


def test_threads_share_one_count(inner):
    store = FaultStore(inner, [Rule(Cut(0), operation="get", times=25)])
    got = []
    threads = [threading.Thread(target=lambda: got.extend(store.get("a/object") for _ in range(20))) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got.count(b"") == 25
    assert store.count("get") == 100


def test_a_pickled_fault_store_keeps_its_rules_and_counts_anew():
    store = FaultStore(MemoryStore(), [Rule(Cut(1), times=1)])
    store.put("b", b"12")
    copied = pickle.loads(pickle.dumps(store))
    assert copied.calls == []
    assert copied.rules == store.rules
    assert copied.get("b") == b"1"
