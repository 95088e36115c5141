"""What is tried again and what is not, with the real clients: an HTTP server, or a real object store behind a proxy.

O48 of the scenarios. Each test runs against all of them.
"""

import time
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np
import pytest

from headrace.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    NotFoundError,
    ObjectChangedError,
    StoreError,
    TemporaryStoreError,
)
from headrace.store.open import open_store
from headrace.store.retrying import RetryPolicy
from servers.faulty_http import Cut, HttpServer, Length, Reset, Rule, Stall, Status, Whole

DATA = bytes(range(256)) * 400
QUICK = RetryPolicy(tries=3, first_wait_s=0.1, total_s=30)
REAL = [pytest.param(kind, marks=pytest.mark.servers) for kind in ("s3", "azure", "gcs")]


class Served(NamedTuple):
    kind: str
    server: HttpServer  # what the store under test speaks with
    open: Callable[..., Any]  # a store behind it, with more options
    put: Callable[[str, bytes], None]  # past it
    reads: tuple[str, str]  # method and path of what reads the object called "object"
    writes: str  # method of what writes


@pytest.fixture
def served(request, tmp_path):
    kind = request.param
    if kind == "http":
        server, folder = (request.getfixturevalue(name) for name in ("http_server", "http_folder"))

        def put(path, data):
            (folder / "new").write_bytes(data)
            (folder / "new").replace(folder / path)

        def opened(retry=QUICK, **more):
            return open_store(server.url, retry=retry, **more)

        yield Served(kind, server, opened, put, ("GET", "*/object"), "PUT")
        return
    url, options = (request.getfixturevalue(f"{kind}_{name}") for name in ("url", "options"))
    name = "endpoint_url" if kind == "gcs" else "endpoint"
    base, account = (options[name].removesuffix("/devstoreaccount1"), "/devstoreaccount1" * (kind == "azure"))
    with HttpServer(base) as proxy:

        def opened(retry=QUICK, **more):
            return open_store(url, retry=retry, **options | {name: proxy.url + account} | more)

        reads = ("GET", "/download/*object") if kind == "gcs" else ("GET", "*/object")
        direct = open_store(url, **options)
        yield Served(kind, proxy, opened, direct.put, reads, "POST" if kind == "gcs" else "PUT")


everywhere = pytest.mark.parametrize("served", ["http", *REAL], indirect=True)
writable = pytest.mark.parametrize("served", REAL, indirect=True)


def reading_rule(served, action, **more):
    method, path = served.reads
    served.server.rules.append(Rule(action, method=method, path=path, **more))


def ways_to_read(store):
    """Each reads something of the object, and says what it should be."""
    found = store.head("object")
    starts, lengths = np.array([5, 90_000]), np.array([1000, 2000])
    expected = [DATA[5:1005], DATA[90_000:92_000]]
    return [
        (lambda: [store.get("object")], [DATA]),
        (lambda: [bytes(view) for view in store.get_ranges("object", starts[:1], lengths[:1])], expected[:1]),
        (lambda: [bytes(view) for view in store.get_ranges("object", starts, lengths)], expected),
        (lambda: [bytes(view) for view in store.get_ranges_of(found, starts[:1], lengths[:1])], expected[:1]),
        (lambda: [b"".join(store.pieces("object", 50_000))], [DATA]),
    ]


@everywhere
def test_overload_twice_is_waited_out_longer_each_time(served):
    served.put("object", DATA)
    with served.open() as store:
        for read, expected in ways_to_read(store)[:2]:
            served.server.rules.clear()
            reading_rule(served, Status(503, {"Retry-After": "0"}), times=1)
            reading_rule(served, Status(429, {"Retry-After": "0"}), nth=2, times=1)
            before = len(served.server.requests)
            assert read() == expected
            method, path = served.reads
            seen = served.server.requests[before:]
            asked = [each.at_s for each in seen if each.method == method and fnmatchcase(each.path, path)]
            assert len(asked) == 3, [each[:3] for each in seen]
            assert asked[1] - asked[0] > 0.04  # half of the first wait, and of the second, with some tolerance
            assert asked[2] - asked[1] > 0.09


@everywhere
@pytest.mark.parametrize("action", [Reset(), Reset(500), Cut(500), Cut(0), Length(100), Status(500), Status(504)])
def test_what_broke_once_is_read_again_and_right(served, action):
    served.put("object", DATA)
    with served.open() as store:
        ways = ways_to_read(store)
        if isinstance(action, Length):
            ways.pop()  # a stream takes the object's size from its first answer, and fails where that is wrong
        for read, expected in ways:
            served.server.rules.clear()
            reading_rule(served, action, times=1)
            assert read() == expected


@everywhere
def test_a_body_that_stalls_ends_by_time_out_and_is_read_again(served):
    served.put("object", DATA)
    with served.open(request_timeout_s=0.5) as store:
        for read, expected in ways_to_read(store)[:2]:
            served.server.rules.clear()
            reading_rule(served, Stall(500), times=1)
            begin = time.monotonic()
            assert read() == expected
            assert 0.4 < time.monotonic() - begin < 20


@everywhere
def test_a_range_is_exact_whatever_the_server_sends(served):
    served.put("object", DATA)
    with served.open() as store:
        store.head("object")
        for action in (Whole(), Length(-10)):
            served.server.rules.clear()
            reading_rule(served, action)
            try:
                views = store.get_ranges("object", np.array([5]), np.array([1000]))
            except StoreError as error:
                assert "object" in str(error)  # noqa: PT017 - both outcomes are right
            else:
                assert bytes(views[0]) == DATA[5:1005]


@everywhere
@pytest.mark.parametrize(("status", "kind"), [(403, AccessDeniedError), (401, AccessDeniedError), (404, NotFoundError)])
def test_what_the_store_decided_is_not_tried_again(served, status, kind):
    served.put("object", DATA)
    with served.open(RetryPolicy(tries=5, first_wait_s=10)) as store:
        store.head("object")
        reading_rule(served, Status(status))
        before, begin = served.server.count(*served.reads), time.monotonic()
        with pytest.raises(kind) as caught:
            store.get("object")
        assert time.monotonic() - begin < 4  # less than the first wait
        assert served.server.count(*served.reads) - before == 1
        assert f"{store.location}/object" in str(caught.value)
        if kind is AccessDeniedError:
            assert "credentials" in str(caught.value) or "headers" in str(caught.value)


@everywhere
def test_the_last_error_tells_of_the_first_cause_and_of_the_tries(served):
    served.put("object", DATA)
    with served.open() as store:
        store.head("object")
        reading_rule(served, Status(503), times=1)
        reading_rule(served, Cut(500), nth=2)
        before = served.server.count(*served.reads)
        with pytest.raises(TemporaryStoreError, match=r"503.*3 tries") as caught:
            store.get("object")
        assert served.server.count(*served.reads) - before == 3
        assert isinstance(caught.value.__cause__, TemporaryStoreError)


@everywhere
def test_trying_ends_after_the_time_that_it_may_take(served):
    served.put("object", DATA)
    with served.open(RetryPolicy(tries=1000, first_wait_s=0.1, longest_wait_s=0.1, total_s=0.6)) as store:
        store.head("object")
        reading_rule(served, Status(503))
        begin = time.monotonic()
        with pytest.raises(TemporaryStoreError, match="tries"):
            store.get("object")
        assert time.monotonic() - begin < 15


@everywhere
def test_a_server_that_is_gone_is_said_to_be(served):
    served.put("object", DATA)
    with served.open() as store:
        served.server.close()
        with pytest.raises(TemporaryStoreError, match=r"object.*tries"):
            store.get("object")


@everywhere
def test_an_object_that_is_replaced_while_it_is_read_again_is_noticed(served):
    served.put("object", DATA)
    with served.open() as store:
        found = store.head("object")
        reading_rule(served, Reset(500), times=1)
        served.put("object", DATA[::-1])
        with pytest.raises(ObjectChangedError, match="object"):
            store.get_ranges_of(found, np.array([5]), np.array([1000]))


@writable
@pytest.mark.parametrize("action", [Status(503), Reset(), Reset(performed=True), Status(500, performed=True)])
def test_a_put_that_failed_once_is_repeated(served, action):
    with served.open() as store:
        served.server.rules.append(Rule(action, method=served.writes, times=1))
        store.put("object", DATA)
        assert store.get("object") == DATA


@writable
@pytest.mark.parametrize("action", [Status(503), Reset(performed=True), Status(500, performed=True)])
def test_a_creation_whose_answer_is_lost_is_ones_own(served, action):
    with served.open() as store:
        served.server.rules.append(Rule(action, method=served.writes, times=1))
        store.put_if_absent("object", DATA)
        assert served.server.count(served.writes) == 2
        assert store.get("object") == DATA
        with pytest.raises(AlreadyExistsError):
            store.put_if_absent("object", DATA)


@writable
def test_a_creation_that_another_won_is_lost_after_a_failed_try_too(served):
    with served.open() as store:
        served.server.rules.append(Rule(Status(503), method=served.writes, times=1))
        served.put("object", b"of another")
        with pytest.raises(AlreadyExistsError, match="object"):
            store.put_if_absent("object", DATA)
        assert store.get("object") == b"of another"


@pytest.fixture
def large_file(tmp_path):
    with (tmp_path / "large").open("wb") as file:
        for begin in range(0, 18 << 20, 1 << 16):  # 72 MiB and a bit: up to 64 MiB may go up in one request
            file.write(np.arange(begin, begin + (1 << 16), dtype="<u4").tobytes())
        file.write(b"end")
    return tmp_path / "large"


@writable
def test_a_large_file_goes_up_though_requests_of_it_fail(served, large_file):
    with served.open(RetryPolicy(tries=5, first_wait_s=0.1)) as store:
        served.server.rules += [
            Rule(Status(503), method="PUT", nth=1, times=1),
            Rule(Reset(), method="PUT", nth=4, times=1),
            Rule(Status(500), method="POST", nth=3, times=1),
        ]
        store.upload("object", large_file)
        assert store.head("object").size_bytes == large_file.stat().st_size
        with large_file.open("rb") as file:
            assert all(piece == file.read(len(piece)) for piece in store.pieces("object"))


@writable
def test_a_large_file_that_cannot_go_up_leaves_nothing(served, large_file):
    with served.open() as store:
        served.put("object", b"old")
        served.server.rules += [Rule(Status(503), method=served.writes, nth=3)]
        with pytest.raises(TemporaryStoreError, match=r"object.*3 tries"):
            store.upload("object", large_file)
        served.server.rules.clear()
        assert store.get("object") == b"old"
        if served.kind == "s3":
            begun = [
                each for each in served.server.requests if each.method == "POST" and each.query.startswith("uploads")
            ]
            ended = [each for each in served.server.requests if each.method == "DELETE" and "uploadId" in each.query]
            assert len(begun) == len(ended) > 0, [each[:3] for each in served.server.requests]
