import pickle
import threading
import time

import numpy as np
import pytest

from headrace.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    NotFoundError,
    ObjectChangedError,
    StoreError,
    TemporaryStoreError,
    TruncatedReadError,
)
from headrace.store import DatasetFile, LocalStore, MemoryStore
from headrace.testing import (
    Break,
    Call,
    Cut,
    Delay,
    Expire,
    FaultStore,
    Flip,
    Forget,
    Refuse,
    Rule,
    Run,
    Stall,
    Status,
    StoreContract,
)


class TestFaultStoreOverMemory(StoreContract):
    def make_store(self, tmp_path):
        return FaultStore(MemoryStore())


class TestFaultStoreOverLocal(StoreContract):
    def make_store(self, tmp_path):
        return FaultStore(LocalStore(tmp_path / "data", fsync=False), [Rule(Flip(3), path="no such path")])


class TestFaultStoreOverFlatMemory(StoreContract):
    def make_store(self, tmp_path):
        return FaultStore(MemoryStore(flat=True))


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


def test_rules_that_replace_others_count_anew(inner):
    store = FaultStore(inner)
    for _ in range(50):  # a new rule may lie where an older one lay
        store.rules[:] = [Rule(Cut(0), operation="get", times=1)]
        assert (store.get("a/object"), store.get("a/object")) == (b"", b"0123456789")


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


def one_range(store, start, length):
    return bytes(store.get_ranges_of(store.store.head("a/object"), np.array([start]), np.array([length]))[0])


def test_ranges_of_one_version_pieces_uploads_and_hints_are_logged(inner, tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    store = FaultStore(inner)
    one_range(store, 2, 3)
    assert [bytes(piece) for piece in store.pieces("a/object", 4)] == [b"0123", b"4567", b"89"]
    store.upload("b", tmp_path / "file")
    store.prefetch(["a/object", "b"], 1000)
    assert store.calls == [
        Call("get_ranges_of", "a/object", 3),
        Call("pieces", "a/object", 10),
        Call("upload", "b", 5),
        Call("prefetch", "a/object", 0),
        Call("prefetch", "b", 0),
    ]


def test_ranges_of_an_object_that_was_replaced_are_refused_through_the_rules_too(inner):
    store = FaultStore(inner, [Rule(Run(lambda call: inner.put("a/object", b"9876543210")), "get_ranges_of")])
    with pytest.raises(ObjectChangedError, match="a/object"):
        one_range(store, 0, 3)


def test_pieces_are_cut_damaged_and_broken_where_the_rule_says(inner):
    def pieces(*actions):
        return [bytes(piece) for piece in FaultStore(inner, map(Rule, actions)).pieces("a/object", 4)]

    assert pieces(Cut(6)) == [b"0123", b"45"]
    assert pieces(Cut(4)) == [b"0123"]
    assert pieces(Flip(5)) == [b"0123", bytes([ord("4"), ord("5") ^ 0xFF]) + b"67", b"89"]
    assert pieces(Break(10)) == [b"0123", b"4567", b"89"]
    for after, expected in [(6, [b"0123", b"45"]), (4, [b"0123"]), (0, [])]:
        broken = FaultStore(inner, [Rule(Break(after))]).pieces("a/object", 4)
        assert [bytes(next(broken)) for _ in expected] == expected
        with pytest.raises(TemporaryStoreError, match=f"after {after} bytes"):
            next(broken)


def test_a_broken_read_fails_only_where_it_needs_what_is_behind(inner):
    store = FaultStore(inner, [Rule(Break(6))])
    assert ranges(store, (0, 6), (1, 2)) == [b"012345", b"12"]
    assert one_range(store, 3, 3) == b"345"
    for read in (lambda: store.get("a/object"), lambda: ranges(store, (0, 7)), lambda: one_range(store, 6, 1)):
        with pytest.raises(TemporaryStoreError, match=r"a/object.*after 6 bytes"):
            read()


def test_a_file_that_goes_up_is_cut_damaged_forgotten_or_refused(inner, tmp_path):
    (tmp_path / "file").write_bytes(b"0123456789")
    checks = []
    for action, kept in [(Cut(4), b"0123"), (Flip(-1), b"012345678\xc6"), (Forget(), None), (Break(4), None)]:
        inner.delete("b")
        store = FaultStore(inner, [Rule(action, "upload")])
        if isinstance(action, Break):
            with pytest.raises(TemporaryStoreError):
                store.upload("b", tmp_path / "file")
        else:
            store.upload("b", tmp_path / "file", check=lambda: checks.append(1))
        assert [entry.path for entry in inner.list()] == ["a/object"] + ["b"] * (kept is not None)
        assert kept is None or inner.get("b") == kept
    assert len(checks) == 2


@pytest.mark.parametrize("action", [Status(503, performed=True), Break(performed=True)])
def test_a_write_whose_answer_is_lost_is_done_nevertheless(inner, tmp_path, action):
    (tmp_path / "file").write_bytes(b"up")
    store = FaultStore(inner, [Rule(action)])
    writes = [
        lambda: store.put("put", b"1"),
        lambda: store.put_if_absent("created", b"2"),
        lambda: store.upload("uploaded", tmp_path / "file"),
        lambda: store.delete("a/object"),
    ]
    for write in writes:
        with pytest.raises(TemporaryStoreError):
            write()
    assert [entry.path for entry in inner.list()] == ["created", "put", "uploaded"]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (404, NotFoundError),
        (403, AccessDeniedError),
        (401, AccessDeniedError),
        (412, AlreadyExistsError),
        (429, TemporaryStoreError),
        (503, TemporaryStoreError),
        (418, StoreError),
    ],
)
def test_a_status_raises_what_a_store_over_http_would(inner, code, kind):
    store = FaultStore(inner, [Rule(Status(code, retry_after_s=7))])
    for request in (lambda: store.get("a/object"), lambda: store.head("a/object"), lambda: store.put("b", b"")):
        with pytest.raises(StoreError) as caught:
            request()
        assert type(caught.value) is kind
        assert kind is not TemporaryStoreError or caught.value.retry_after_s == 7
    assert inner.folders() == ["a"]
    assert [entry.path for entry in inner.list()] == ["a/object"]


def test_a_stall_lasts_and_then_the_client_gives_up(inner):
    store = FaultStore(inner, [Rule(Stall(0.05), times=1)])
    begin = time.perf_counter()
    with pytest.raises(TemporaryStoreError, match=r"0\.05 s"):
        store.get("a/object")
    assert time.perf_counter() - begin >= 0.05
    assert store.get("a/object") == b"0123456789"


def test_an_expired_token_may_be_renewed_or_not(inner):
    store = FaultStore(inner, [Rule(Expire(), nth=2, times=1), Rule(Expire(renewable=False), nth=4)])
    store.get("a/object")
    with pytest.raises(TemporaryStoreError, match="expired"):
        store.get("a/object")
    store.get("a/object")
    with pytest.raises(AccessDeniedError, match="expired"):
        store.get("a/object")


class Binding(MemoryStore):
    """Gives another store for a dataset, as a cache does."""

    def of_dataset(self, fingerprint, file):
        bound = MemoryStore()
        bound.put("a/object", fingerprint.encode())
        return bound


def test_what_a_store_gives_for_a_dataset_stands_behind_the_same_rules_and_log(inner):
    store = FaultStore(inner)
    assert store.of_dataset("f", lambda name: DatasetFile(10)) is store
    store = FaultStore(Binding(), [Rule(Cut(2), "get", nth=2)])
    bound = store.of_dataset("f1f1", lambda name: DatasetFile(4))
    assert (bound.get("a/object"), bound.get("a/object")) == (b"f1f1", b"f1")
    assert store.count("get") == 2
    store.rules.clear()
    assert bound.get("a/object") == b"f1f1"
