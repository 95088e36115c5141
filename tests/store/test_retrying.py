import pickle
import time
from collections.abc import Callable

import numpy as np
import pytest

from headrace.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    NotFoundError,
    OptionError,
    StoreError,
    TemporaryStoreError,
    TruncatedReadError,
)
from headrace.store import MemoryStore, Store
from headrace.store.retrying import RetryingStore, RetryPolicy
from headrace.testing import FaultStore, Refuse, Rule
from headrace.testing.store_contract import StoreContract

QUICK = RetryPolicy(tries=3, first_wait_s=0.001)


class TestRetryingStore(StoreContract):
    def make_store(self, tmp_path) -> Store:
        return RetryingStore(MemoryStore(), QUICK)


class TestRetryingFlatStore(StoreContract):
    def make_store(self, tmp_path) -> Store:
        return RetryingStore(MemoryStore(flat=True), QUICK)


def store_with(*rules: Rule, policy: RetryPolicy = QUICK) -> tuple[RetryingStore, FaultStore]:
    memory = MemoryStore(flat=True)
    memory.put("object", b"0123456789")
    faults = FaultStore(memory, rules)
    return RetryingStore(faults, policy), faults


CALLS: dict[str, Callable[[Store], object]] = {
    "head": lambda store: store.head("object"),
    "get": lambda store: store.get("object"),
    "get_ranges": lambda store: store.get_ranges("object", np.array([1]), np.array([2])),
    "get_ranges_of": lambda store: store.get_ranges_of(
        MemoryStore.head(store.store.store, "object"), np.array([1]), np.array([2])
    ),
    "pieces": lambda store: list(store.pieces("object", 3)),
    "put": lambda store: store.put("other", b"data"),
    "put_if_absent": lambda store: store.put_if_absent("other", b"data"),
    "upload": lambda store: store.upload("other", __file__),
    "delete": lambda store: store.delete("object"),
    "folders": lambda store: store.folders(),
    "list": lambda store: store.list(),
}


@pytest.mark.parametrize("call", CALLS)
def test_every_operation_is_tried_again_after_a_temporary_failure(call):
    expected_store, _ = store_with()
    expected = CALLS[call](expected_store)
    store, faults = store_with(Rule(Refuse(TemporaryStoreError("overload")), times=2))
    found = CALLS[call](store)
    if call == "list":
        assert [entry.path for entry in found] == [entry.path for entry in expected]
    elif call != "head":
        assert found == expected
    assert len(faults.calls) >= 3


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    "error",
    [
        NotFoundError("not there"),
        AccessDeniedError("not allowed"),
        TruncatedReadError("object", 1, 2, 3),
        StoreError("broken"),
        KeyboardInterrupt(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_would_fail_again_is_raised_at_once(call, error):
    store, faults = store_with(Rule(Refuse(error)))
    with pytest.raises(type(error)) as caught:
        CALLS[call](store)
    assert caught.value is error
    assert len(faults.calls) == 1


@pytest.mark.parametrize("tries", [1, 2, 4])
def test_the_last_error_keeps_the_first_cause_and_says_how_often_it_was_tried(tries):
    first, later = TemporaryStoreError("object: reset"), TemporaryStoreError("object: 503")
    store, faults = store_with(
        Rule(Refuse(first), times=1), Rule(Refuse(later), nth=1), policy=RetryPolicy(tries=tries, first_wait_s=0.001)
    )
    with pytest.raises(TemporaryStoreError) as caught:
        store.get("object")
    assert len(faults.calls) == tries
    if tries == 1:
        assert caught.value is first
    else:
        assert caught.value.__cause__ is first
        assert str(caught.value).startswith(
            f"object: reset; gave up after {tries} tries in 0.0 s; the last one: object: 503"
        )


def test_waits_grow_and_differ_by_process_and_name():
    policy = RetryPolicy(first_wait_s=1.0, longest_wait_s=10.0)
    waits = [policy.wait_s("object", tried) for tried in range(1, 8)]
    full = [1, 2, 4, 8, 10, 10, 10]
    assert all(0.5 * most <= wait <= most for wait, most in zip(waits, full, strict=True))
    assert len({policy.wait_s(f"object {number}", 1) for number in range(50)}) == 50
    assert policy.wait_s("object", 1) == waits[0]


def test_a_wait_that_the_store_asks_for_is_kept():
    store, _ = store_with(Rule(Refuse(TemporaryStoreError("slow down", retry_after_s=0.3)), times=1))
    began_s = time.monotonic()
    store.get("object")
    assert 0.3 <= time.monotonic() - began_s < 5


def test_the_total_time_is_bounded_and_a_wait_beyond_it_is_not_begun():
    policy = RetryPolicy(tries=100, first_wait_s=0.05, longest_wait_s=0.05, total_s=0.4)
    store, faults = store_with(Rule(Refuse(TemporaryStoreError("overload"))), policy=policy)
    began_s = time.monotonic()
    with pytest.raises(TemporaryStoreError, match="gave up after"):
        store.get("object")
    assert time.monotonic() - began_s < 5
    assert 2 <= len(faults.calls) <= 17
    store, faults = store_with(Rule(Refuse(TemporaryStoreError("come back tomorrow", retry_after_s=86400.0))))
    with pytest.raises(TemporaryStoreError, match="tomorrow"):
        store.get("object")
    assert len(faults.calls) == 1


def test_a_create_whose_answer_was_lost_is_a_success_and_anothers_object_is_not():
    store, faults = store_with()
    memory = faults.store

    def performed_but_lost(path: str, data: bytes) -> None:
        MemoryStore.put_if_absent(memory, path, data)
        raise TemporaryStoreError(f"{path}: reset")

    memory.put_if_absent = performed_but_lost
    store.put_if_absent("new", b"mine")
    assert store.get("new") == b"mine"
    with pytest.raises(AlreadyExistsError):
        store.put_if_absent("new", b"yours")
    memory.get = memory.head = lambda path: MemoryStore.get(memory, "absent")
    with pytest.raises(AlreadyExistsError):
        store.put_if_absent("new", b"mine")  # gone before it could be looked at
    del memory.put_if_absent, memory.get, memory.head
    with pytest.raises(AlreadyExistsError):
        store.put_if_absent("new", b"mine")  # nothing failed: equal bytes are another caller's


def test_upload_asks_its_check_again_before_each_try(tmp_path):
    (tmp_path / "file").write_bytes(b"data")
    store, _ = store_with(Rule(Refuse(TemporaryStoreError("reset")), times=1))
    asked = []
    store.upload("other", tmp_path / "file", check=lambda: asked.append(1))
    assert store.get("other") == b"data"
    assert asked


@pytest.mark.parametrize(
    "options",
    [
        {"tries": 0},
        {"tries": True},
        {"tries": 1.5},
        {"first_wait_s": -1},
        {"total_s": float("nan")},
        {"longest_wait_s": "5"},
    ],
    ids=repr,
)
def test_a_policy_that_means_nothing_is_refused_by_name(options):
    with pytest.raises(OptionError, match=next(iter(options))):
        RetryPolicy(**options)


def test_a_retrying_store_is_bound_pickled_and_named_as_the_store_it_holds():
    store, faults = store_with()
    assert store.of_dataset("f" * 32, {}.__getitem__) is store or isinstance(store, RetryingStore)
    assert (store.location, store.capabilities) == (faults.location, faults.capabilities)
    copied = pickle.loads(pickle.dumps(store))
    assert copied.get("object") == b"0123456789"
    assert copied.policy == store.policy
