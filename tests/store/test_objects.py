import email.utils
import hashlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from headrace.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    NotFoundError,
    ObjectChangedError,
    PathOutsideRootError,
    StoreError,
    TemporaryStoreError,
    TruncatedReadError,
    UnsupportedOperationError,
)
from headrace.store.object_ranges import Span, merged, sliced
from headrace.store.objects import ObjectStore
from headrace.store.open import open_store
from headrace.store.retrying import RetryingStore, RetryPolicy
from servers.faulty_http import Cut, Delay, HttpServer, Reset, Rule, Run, Stall, Status, Whole

DATA = bytes(range(256)) * 40  # 10,240 bytes
QUICK = RetryPolicy(tries=4, first_wait_s=0.01)
KEYS = {"access_key_id": "AKIDEXAMPLE", "secret_access_key": "do-not-show"}


@pytest.fixture
def web(http_url, http_folder) -> RetryingStore:
    (http_folder / "object").write_bytes(DATA)
    return open_store(http_url, retry=QUICK)


@pytest.fixture
def bucket(http_url, http_folder) -> ObjectStore:
    """An S3 client that talks to the HTTP server, which can only read; each request once."""
    (http_folder / "bucket" / "data").mkdir(parents=True)
    (http_folder / "bucket" / "data" / "object").write_bytes(DATA)
    return ObjectStore("s3://bucket/data", endpoint=http_url, region="us-east-1", credentials=KEYS)


def ranges(*pairs: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    starts, lengths = np.array(pairs, np.int64).T
    return starts, lengths


def error_page(code: str, message: str = "Something about it.") -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()


# Reading


def test_a_web_folder_reads_as_a_store(web, http_folder):
    found = web.head("object")
    assert (found.path, found.size_bytes) == ("object", len(DATA))
    assert found.modified_s == int((http_folder / "object").stat().st_mtime)
    assert web.get("object") == DATA
    views = web.get_ranges("object", *ranges((3, 5), (10_000, 240), (0, 0), (10_240, 0), (4, 2)))
    assert [bytes(view) for view in views] == [DATA[3:8], DATA[10_000:], b"", b"", DATA[4:6]]
    assert b"".join(web.pieces("object", 999)) == DATA
    assert web.get_ranges("object", np.zeros(0, np.int64), np.zeros(0, np.int64)) == []


@pytest.mark.parametrize(
    "name", ["with blank", "a#b", "a%20b", "a?b&c=d", "café", "cafe\u0301", "star*[0]", "+", "n" * 200]
)
def test_names_with_odd_characters_are_found_over_http(web, http_folder, name):
    (http_folder / name).write_bytes(name.encode())
    assert web.get(name) == name.encode()
    assert web.head(name).path == name
    assert bytes(web.get_ranges(name, *ranges((0, 1)))[0]) == name.encode()[:1]


def test_a_folder_of_a_url_may_be_quoted_and_end_in_a_slash(http_server, http_folder):
    (http_folder / "my folder").mkdir()
    (http_folder / "my folder" / "object").write_bytes(b"data")
    store = open_store(f"{http_server.url}/my%20folder/")
    assert store.get("object") == b"data"
    assert store.location == f"{http_server.url}/my folder"


def test_redirects_are_followed_as_hubs_use_them(web, http_server, http_folder):
    (http_folder / "elsewhere").write_bytes(b"0123456789")
    http_server.rules.append(Rule(Status(302, {"Location": "/elsewhere"}), path="/resolve/main/object"))
    assert web.get("resolve/main/object") == b"0123456789"
    assert bytes(web.get_ranges("resolve/main/object", *ranges((2, 3)))[0]) == b"234"


def test_an_empty_object_is_empty_in_every_way(web, http_folder):
    (http_folder / "empty").write_bytes(b"")
    assert web.get("empty") == b""
    assert list(web.pieces("empty")) == []
    assert [bytes(view) for view in web.get_ranges("empty", *ranges((0, 0)))] == [b""]


def test_a_store_that_can_only_be_read_refuses_the_rest_by_name(web, tmp_path):
    (tmp_path / "file").write_bytes(b"data")
    for call in (
        lambda: web.put("object", b""),
        lambda: web.put_if_absent("object", b""),
        lambda: web.upload("object", tmp_path / "file"),
        lambda: web.delete("object"),
        lambda: web.list(),
        lambda: web.folders(),
    ):
        with pytest.raises(UnsupportedOperationError, match=web.location):
            call()
    assert web.get("object") == DATA


@pytest.mark.parametrize("path", ["../x", "/x", "a//b", "a/", "./a", "", ".", ".."])
def test_no_path_leaves_the_root(web, http_server, path):
    for call in (
        web.head,
        web.get,
        lambda path: web.get_ranges(path, *ranges((0, 1))),
        lambda path: [*web.pieces(path)],
    ):
        with pytest.raises(PathOutsideRootError):
            call(path)
    assert http_server.requests == []


# Ranges


def test_near_ranges_share_a_request_and_far_ones_do_not(web, http_server, http_folder):
    (http_folder / "big").write_bytes(bytes(3_000_000))
    found = web.head("big")
    http_server.requests.clear()
    web.get_ranges_of(found, *ranges((0, 10), (100_000, 10), (2_000_000, 10), (5, 1)))
    assert sorted(each.headers["range"] for each in http_server.requests) == ["bytes=0-100009", "bytes=2000000-2000009"]


@pytest.mark.parametrize("count", [1, 2, 5, 60, 700])
def test_many_ranges_come_in_order_however_they_are_asked_for(web, http_folder, monkeypatch, count):
    monkeypatch.setattr("headrace.store.objects.GAP_BYTES", 4)
    (http_folder / "big").write_bytes(data := (DATA * 3)[: count * 40])
    starts = np.arange(count - 1, -1, -1) * 40
    found = web.head("big")
    for views in (
        web.get_ranges("big", starts, np.full(count, 30)),
        web.get_ranges_of(found, starts, np.full(count, 30)),
    ):
        assert [bytes(view) for view in views] == [data[at : at + 30] for at in starts]
        assert all(view.readonly for view in views)


def test_merged_spans_cover_every_range_over_a_small_domain():
    spans = [(start, length) for start in range(0, 12, 3) for length in range(4)]
    for first in spans:
        for second in spans:
            for third in spans:
                wanted = [first, second, third]
                found = merged(wanted, gap_bytes=2, span_bytes=6)
                data = memoryview(bytes(range(20)))
                views = sliced(wanted, found, [data[span.start : span.stop] for span in found])
                assert [bytes(view) for view in views] == [bytes(data[at : at + n]) for at, n in wanted]
                assert all(span.stop - span.start <= 6 for span in found)


def test_a_range_longer_than_a_span_comes_in_one_piece():
    assert merged([(0, 100), (90, 10), (3, 0)], gap_bytes=5, span_bytes=20) == [Span(0, 100, [0, 1])]


def test_ranges_of_a_known_object_cost_no_other_request(web, http_server):
    found = web.head("object")
    http_server.requests.clear()
    assert bytes(web.get_ranges_of(found, *ranges((7, 3)))[0]) == DATA[7:10]
    assert bytes(web.get_ranges("object", *ranges((7, 3)))[0]) == DATA[7:10]
    assert [each.method for each in http_server.requests] == ["GET", "GET"]


@pytest.mark.parametrize("count", [0, 1, 30])
def test_ranges_of_an_object_that_was_replaced_are_refused(web, http_folder, monkeypatch, count):
    monkeypatch.setattr("headrace.store.objects.GAP_BYTES", 4)
    (http_folder / "big").write_bytes(bytes(count * 40 + 10))
    found = web.head("big")
    (http_folder / "new").write_bytes(b"x" * (count * 40 + 10))  # of the same size
    os.utime(http_folder / "new", (1, 1))
    (http_folder / "new").rename(http_folder / "big")
    with pytest.raises(ObjectChangedError, match="big was replaced"):
        web.get_ranges_of(found, np.arange(max(count, 1)) * 40, np.full(max(count, 1), min(count, 10)))
    (http_folder / "big").unlink()
    with pytest.raises(NotFoundError, match="big"):
        web.get_ranges_of(found, *ranges((0, 1)))


def test_ranges_never_mix_two_versions(web, http_folder, http_server):
    (http_folder / "big").write_bytes(bytes(2_000_000))

    def replace(_request: object) -> None:
        (http_folder / "new").write_bytes(b"x" * 2_000_000)
        os.utime(http_folder / "new", (1, 1))
        (http_folder / "new").rename(http_folder / "big")

    http_server.rules += [Rule(Run(replace), path="/big", nth=2, times=1), Rule(Delay(0.2), path="/big", nth=2)]
    with pytest.raises(ObjectChangedError):
        web.get_ranges("big", *ranges((0, 10), (1_000_000, 10)))


@pytest.mark.parametrize("pairs", [[(10_239, 2)], [(10_241, 0)], [(20_000, 5)], [(0, 5), (2**62, 3)]])
def test_ranges_past_the_end_are_refused_with_the_numbers(web, pairs):
    for read in (
        lambda: web.get_ranges("object", *ranges(*pairs)),
        lambda: web.get_ranges_of(web.head("object"), *ranges(*pairs)),
    ):
        with pytest.raises(TruncatedReadError, match=r"object.*has 10240 bytes"):
            read()


def test_an_object_that_grew_after_it_was_said_to_be_short_is_read_again(web, http_server):
    http_server.rules.append(Rule(Status(416), method="GET", times=1))
    assert bytes(web.get_ranges("object", *ranges((10, 5)))[0]) == DATA[10:15]
    http_server._seen.clear()
    assert bytes(web.get_ranges_of(web.head("object"), *ranges((10, 5)))[0]) == DATA[10:15]


def test_a_server_that_ignores_ranges_is_named(web, http_server):
    http_server.rules.append(Rule(Whole()))
    with pytest.raises(UnsupportedOperationError, match=r"object.*ranges.*whole files"):
        web.get_ranges("object", *ranges((1, 2)))
    assert web.get("object") == DATA
    assert b"".join(web.pieces("object", 100)) == DATA


# What is tried again


@pytest.mark.parametrize(
    "action",
    [
        Status(503),
        Status(500),
        Status(429, {"Retry-After": "0"}),
        Status(408),
        Status(522),
        Reset(),
        Reset(5000),
        Cut(5000),
        Stall(5000, 5.0),
        Stall(0, 5.0),
    ],
    ids=repr,
)
def test_failures_that_may_pass_are_tried_again(web, http_url, http_server, action):
    if isinstance(action, Stall):
        web = open_store(http_url, retry=QUICK, request_timeout_s=0.5)
    http_server.rules.append(Rule(action, method="GET", times=1 if isinstance(action, Stall) else 2))
    for read in (
        lambda: web.get("object") == DATA,
        lambda: bytes(web.get_ranges("object", *ranges((0, 9000)))[0]) == DATA[:9000],
        lambda: b"".join(web.pieces("object", 1000)) == DATA,
    ):
        http_server.requests.clear()
        http_server._seen.clear()
        assert read()
        assert 2 <= http_server.count("GET") <= 3


@pytest.mark.parametrize("name", ["redirects/one", "kind: Redirect", "NotPartial", "BadScheme"])
def test_a_name_is_not_taken_for_what_became_of_the_request(web, http_server, http_folder, name):
    (http_folder / name).parent.mkdir(exist_ok=True)
    (http_folder / name).write_bytes(DATA)
    http_server.rules.append(Rule(Reset(), times=1))
    assert web.get(name) == DATA


@pytest.mark.parametrize("status", [401, 403, 404, 410])
def test_refusals_are_raised_at_once_with_the_url_and_a_hint(web, http_server, status):
    http_server.rules.append(Rule(Status(status)))
    kind = NotFoundError if status in (404, 410) else AccessDeniedError
    for read in (
        web.head,
        web.get,
        lambda path: web.get_ranges(path, *ranges((0, 1))),
        lambda path: [*web.pieces(path)],
    ):
        began_s = time.monotonic()
        http_server.requests.clear()
        with pytest.raises(kind, match=r"check") as caught:
            read("object")
        assert f"{http_server.url}/object" in str(caught.value)
        assert len(http_server.requests) == 1
        assert time.monotonic() - began_s < 1


def test_an_unknown_answer_is_an_error_that_says_it(web, http_server):
    http_server.rules.append(Rule(Status(418)))
    with pytest.raises(StoreError, match="418") as caught:
        web.get("object")
    assert not isinstance(caught.value, TemporaryStoreError)
    assert len(http_server.requests) == 1


def test_a_stall_ends_after_the_request_time_out(http_url, http_folder, http_server):
    (http_folder / "object").write_bytes(DATA)
    store = ObjectStore(http_url, request_timeout_s=0.3)
    http_server.rules.append(Rule(Stall(100)))
    began_s = time.monotonic()
    with pytest.raises(TemporaryStoreError, match="time-out"):
        store.get("object")
    assert 0.2 < time.monotonic() - began_s < 3


@pytest.mark.parametrize(
    "read",
    ["get('object')", "head('object')", "list()", "get_ranges('object', *ranges)", "pieces('object').__next__()"],
)
def test_ctrl_c_ends_a_read_that_waits_for_the_server(http_url, http_folder, http_server, read):
    http_server.rules.append(Rule(Delay(60.0)))
    code = f"""
import numpy as np
from headrace import open_store
ranges = np.arange(40) * 10**6, np.full(40, 5)
store = open_store("s3://bucket", endpoint={http_url!r}, region="us-east-1", anonymous=True, request_timeout_s=4)
try:
    store.{read}
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        while not http_server.requests:
            time.sleep(0.01)
        began_s = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        assert time.monotonic() - began_s < 2
        process.kill()


def test_a_store_is_read_while_the_interpreter_ends(http_url, http_folder):
    (http_folder / "object").write_bytes(b"data")
    code = f"""
import atexit
from headrace import open_store
store = open_store({http_url!r})
atexit.register(lambda: print(store.get("object")))
store.head("object")
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert (ended.stdout, ended.stderr) == ("b'data'\n", "")


def test_a_slow_body_is_no_stall(http_url, http_folder, http_server):
    (http_folder / "object").write_bytes(DATA)
    http_server.rules += [Rule(Stall(after, 0.3)) for after in (100, 200, 300, 400)]
    assert ObjectStore(http_url, request_timeout_s=0.6).get("object") == DATA


def test_a_server_may_be_silent_for_longer_while_much_is_sent(http_url, http_server):
    store = ObjectStore("s3://bucket", endpoint=http_url, region="us-east-1", anonymous=True, request_timeout_s=0.5)
    http_server.rules += [Rule(Delay(1.0)), Rule(Status(200, {"ETag": '"e"'}))]
    store.put("object", bytes(2 << 20))
    with pytest.raises(TemporaryStoreError, match="time-out"):
        store.put("object", bytes(1 << 20))


def test_nobody_listening_is_temporary_and_says_so():
    with pytest.raises(TemporaryStoreError, match=r"http://127\.0\.0\.1:9/object: no connection"):
        ObjectStore("http://127.0.0.1:9").get("object")


def test_a_broken_stream_goes_on_where_it_broke(web, http_server):
    http_server.rules += [Rule(Cut(4000), times=1), Rule(Cut(3000), nth=2, times=1)]
    assert b"".join(web.pieces("object", 500)) == DATA
    assert "range" not in http_server.requests[0].headers
    begun = [int(each.headers["range"].removeprefix("bytes=").rstrip("-")) for each in http_server.requests[1:]]
    assert len(begun) == 2
    assert 0 < begun[0] < begun[1]


def test_a_stream_does_not_go_on_with_another_object(web, http_folder, http_server):
    http_server.rules.append(Rule(Cut(4000), times=1))
    pieces = web.pieces("object", 500)
    next(pieces)
    (http_folder / "new").write_bytes(b"x" * len(DATA))
    os.utime(http_folder / "new", (1, 1))
    (http_folder / "new").rename(http_folder / "object")
    with pytest.raises(ObjectChangedError):
        list(pieces)


def test_only_the_ranges_that_failed_are_asked_for_again(web, http_folder, http_server):
    (http_folder / "big").write_bytes(bytes(5_000_000))
    http_server.rules.append(Rule(Status(502), nth=3, times=2))
    web.get_ranges("big", *ranges(*((at, 10) for at in range(0, 5_000_000, 600_000))))
    assert len(http_server.requests) == 9 + 2


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("asked", ["1", "date"])
def test_a_wait_that_the_server_asks_for_is_waited(web, http_server, status, asked):
    headers = {"Retry-After": email.utils.formatdate(time.time() + 2, usegmt=True) if asked == "date" else asked}
    refusing = Rule(Status(status, headers))
    http_server.rules.append(refusing)
    timer = threading.Timer(0.3, http_server.rules.remove, [refusing])
    timer.start()
    began_s = time.monotonic()
    assert web.get("object") == DATA
    assert 0.9 < time.monotonic() - began_s < 10
    assert http_server.count("GET") == 2
    timer.join()


def test_a_redirect_to_another_server_takes_no_authorization_along(http_url, http_server, tmp_path):
    (tmp_path / "object").write_bytes(DATA)
    with HttpServer(tmp_path, [Rule(Status(429), times=1)]) as elsewhere:
        http_server.rules.append(Rule(Status(302, {"Location": f"{elsewhere.url}/object"})))
        store = open_store(http_url, retry=QUICK, headers={"Authorization": "do-not-show"})
        assert store.get("object") == DATA
        assert {request.headers.get("authorization") for request in http_server.requests} == {"do-not-show"}
        assert {request.headers.get("authorization") for request in elsewhere.requests} == {None}


def test_a_wait_that_s3_asks_for_is_waited_and_a_503_of_s3_is_not_asked_about(bucket, http_server):
    http_server.rules += [Rule(Status(429, {"Retry-After": "7"}), times=2), Rule(Status(503), nth=1, times=1)]
    with pytest.raises(TemporaryStoreError, match="429") as caught:
        bucket.get("object")
    assert caught.value.retry_after_s == 7.0
    assert [each.method for each in http_server.requests] == ["GET", "HEAD"]
    http_server.rules[:] = [Rule(Status(503, {"Retry-After": "7"}))]
    http_server.requests.clear()
    with pytest.raises(TemporaryStoreError, match="503"):
        bucket.get("object")
    assert [each.method for each in http_server.requests] == ["GET"]


# S3's own answers


def test_what_goes_to_s3_is_signed_with_its_digest_so_that_other_bytes_are_refused_there(bucket, http_server):
    http_server.rules.append(Rule(Status(200, {"ETag": '"tag"'}), method="PUT"))
    bucket.put("object", DATA)
    bucket.put_if_absent("object", DATA)
    found = [request.headers["x-amz-content-sha256"] for request in http_server.requests if request.method == "PUT"]
    assert found == [hashlib.sha256(DATA).hexdigest()] * 2


def test_an_s3_object_is_read_and_signed(bucket, http_server):
    assert bucket.get("object") == DATA
    assert "AKIDEXAMPLE" in http_server.requests[0].headers["authorization"]


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (403, "InvalidAccessKeyId", AccessDeniedError),
        (403, "SignatureDoesNotMatch", AccessDeniedError),
        (403, "ExpiredToken", AccessDeniedError),
        (404, "NoSuchBucket", NotFoundError),
        (404, "NoSuchKey", NotFoundError),
        (400, "RequestTimeout", TemporaryStoreError),
        (503, "SlowDown", TemporaryStoreError),
        (400, "ExpiredToken", AccessDeniedError),
        (409, "ConditionalRequestConflict", TemporaryStoreError),
        (409, "ContainerBeingDeleted", TemporaryStoreError),
    ],
)
def test_what_s3_says_is_passed_on_by_its_meaning(bucket, http_server, status, code, kind):
    http_server.rules.append(Rule(Status(status, body=error_page(code))))
    with pytest.raises(kind, match="s3://bucket/data/object") as caught:
        bucket.get("object")
    assert code == "NoSuchKey" or code in str(caught.value)


def test_another_region_is_guessed_from_a_redirect_to_nowhere(bucket, http_server):
    http_server.rules.append(Rule(Status(301, body=error_page("PermanentRedirect"))))
    with pytest.raises(StoreError, match="region"):
        bucket.get("object")


def listing(*entries: tuple[str, int]) -> bytes:
    dated = "<LastModified>2026-01-01T00:00:00.000Z</LastModified>"
    contents = (
        f"<Contents><Key>{key}</Key>{dated}<ETag>e</ETag><Size>{size}</Size></Contents>" for key, size in entries
    )
    return f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(contents)}</ListBucketResult>".encode()


def test_the_empty_objects_that_stand_for_folders_are_not_listed(bucket, http_server, http_folder):
    data = http_folder / "bucket" / "data"
    (data / "sub").mkdir()
    (data / "empty").touch()
    below = [("data/", 0), ("data/empty", 0), ("data/object", 9), ("data/sub/", 0), ("data/sub/x", 1), ("data/both", 5)]
    page = listing(*below, ("data/both/", 0))
    (data / "both").write_bytes(b"12345")
    http_server.rules.append(Rule(Status(200, body=page), query="list-type*prefix=data%2F*"))
    listed = [(info.path, info.size_bytes) for info in bucket.list()]
    assert listed == [("both", 5), ("empty", 0), ("object", 9), ("sub/x", 1)]
    assert http_server.count("HEAD") == 3  # for what is empty
    http_server.rules[:] = [Rule(Status(200, body=listing(("data/sub/", 0), ("data/sub/x", 1))), query="*delimiter*")]
    assert [info.path for info in bucket.list("sub", recursive=False)] == ["sub/x"]


@pytest.mark.parametrize("status", [409, 412])
def test_an_object_that_is_there_already_is_not_replaced(bucket, http_server, status):
    http_server.rules.append(Rule(Status(status, body=error_page("PreconditionFailed")), method="PUT"))
    with pytest.raises(AlreadyExistsError, match="s3://bucket/data/object"):
        bucket.put_if_absent("object", b"")
    assert http_server.requests[-1].headers["if-none-match"] == "*"


def test_a_lost_answer_to_a_create_is_this_callers_own_success(bucket, http_server, http_folder):
    http_server.rules += [
        Rule(Status(503), method="PUT", times=1),
        Rule(Status(412, body=error_page("PreconditionFailed")), method="PUT"),
    ]
    store = RetryingStore(bucket, QUICK)
    store.put_if_absent("object", DATA)
    http_server._seen.clear()
    with pytest.raises(AlreadyExistsError):
        store.put_if_absent("object", b"other")
    del http_server.rules[0]
    with pytest.raises(AlreadyExistsError):  # no try failed before: equal bytes are somebody else's
        store.put_if_absent("object", DATA)


def test_headers_and_requester_pays_go_with_every_request(http_url, http_folder, http_server):
    (http_folder / "bucket").mkdir()
    (http_folder / "bucket" / "object").write_bytes(DATA)
    store = ObjectStore(
        "s3://bucket", endpoint=http_url, credentials=KEYS, headers={"x-extra": "yes"}, requester_pays=True
    )
    store.get("object")
    store.head("object")
    assert [each.headers["x-extra"] for each in http_server.requests] == ["yes", "yes"]
    assert [each.headers["x-amz-request-payer"] for each in http_server.requests] == ["requester", "requester"]


def test_anonymous_requests_are_not_signed(http_url, http_folder, http_server):
    (http_folder / "bucket").mkdir()
    (http_folder / "bucket" / "object").write_bytes(DATA)
    assert ObjectStore("s3://bucket", endpoint=http_url, anonymous=True).get("object") == DATA
    assert "authorization" not in http_server.requests[0].headers


# Credentials


class Provider:
    """Gives keys that last so long, and counts how often it was asked."""

    def __init__(self, lasts_s: float | None = None) -> None:
        self.lasts_s = lasts_s
        self.asked = 0

    def __call__(self) -> dict[str, object]:
        self.asked += 1
        expires = None if self.lasts_s is None else datetime.now(UTC) + timedelta(seconds=self.lasts_s)
        return {
            "access_key_id": f"KEY{self.asked}",
            "secret_access_key": "do-not-show",
            "session_token": "token-do-not-show",
            "expires_at": expires,
        }


def provided(url: str, folder, provider: Provider) -> RetryingStore:
    (folder / "bucket").mkdir()
    (folder / "bucket" / "object").write_bytes(DATA)
    return open_store("s3://bucket", endpoint=url, credential_provider=provider, retry=QUICK)


def test_a_provider_is_asked_once_while_its_credentials_last(http_url, http_folder, http_server):
    provider = Provider(3600)
    store = provided(http_url, http_folder, provider)
    for _ in range(3):
        assert store.get("object") == DATA
    assert provider.asked == 1
    assert http_server.requests[0].headers["x-amz-security-token"] == "token-do-not-show"


def test_a_provider_is_asked_again_when_its_credentials_have_expired(http_url, http_folder, http_server):
    provider = Provider(0.0)
    store = provided(http_url, http_folder, provider)
    store.get("object")
    store.get("object")
    assert provider.asked == 2
    assert ["KEY1" in each.headers["authorization"] for each in http_server.requests] == [True, False]


@pytest.mark.parametrize("status", [400, 403])
def test_credentials_that_the_server_says_have_expired_are_asked_for_again(http_url, http_folder, http_server, status):
    provider = Provider()
    store = provided(http_url, http_folder, provider)
    store.get("object")
    http_server.rules.append(Rule(Status(status, body=error_page("ExpiredToken")), times=1))
    assert store.get("object") == DATA
    http_server.rules.append(Rule(Status(status), method="HEAD", times=1))  # which has no body to say why
    assert store.head("object").size_bytes == len(DATA)
    assert provider.asked == 3


def test_credentials_that_stay_expired_are_asked_for_again_once(http_url, http_folder, http_server):
    provider = Provider()
    store = provided(http_url, http_folder, provider)
    http_server.rules.append(Rule(Status(403, body=error_page("ExpiredToken"))))
    with pytest.raises(AccessDeniedError, match="ExpiredToken"):
        store.get("object")
    assert provider.asked == 2
    assert len(http_server.requests) == 2


def test_what_a_provider_raises_is_seen(http_url):
    def broken() -> dict[str, object]:
        raise RuntimeError("the vault is sealed")

    store = open_store("s3://bucket", endpoint=http_url, credential_provider=broken, retry=QUICK)
    with pytest.raises(StoreError, match=r"s3://bucket/object: the credential provider failed: .*the vault is sealed"):
        store.get("object")
    store = open_store("s3://bucket", endpoint=http_url, credential_provider=lambda: 5, retry=QUICK)
    with pytest.raises(StoreError, match="returned int, not a mapping"):
        store.get("object")


@pytest.mark.parametrize(
    "credentials", [{"account_key": "YWJj"}, {"account_name": "a", "account_key": "%do-not-show%"}]
)
def test_settings_that_make_no_client_are_told_with_a_hint(http_url, credentials):
    store = open_store("az://box", endpoint=http_url, credentials=credentials, retry=QUICK)
    with pytest.raises(AccessDeniedError, match=r"az://box.*credentials=") as caught:
        store.get("object")
    assert "no-show" not in str(caught.value)


def test_no_secret_is_shown_anywhere(http_folder, http_server):
    address = http_server.url.removeprefix("http://")
    web = open_store(f"http://user:do-not-show@{address}/x", headers={"Authorization": "do-not-show"}, retry=QUICK)
    keyed = open_store("s3://bucket", endpoint=http_server.url, credentials=KEYS, retry=QUICK)
    signed = open_store(
        "az://box",
        endpoint=http_server.url,
        credentials={"account_name": "a", "sas_key": "sv=2024-01-01&sig=do-not-show"},
        retry=QUICK,
    )
    for store in (web, keyed, signed):
        shown = [repr(store), str(store), store.location, repr(store.store.place), repr(vars(store.store))]
        for status in (403, 404, 418, 503):
            http_server.rules[:] = [Rule(Status(status, body=b"do-not-show"))]
            with pytest.raises(StoreError) as caught:
                store.get("object")
            error: BaseException | None = caught.value
            while error is not None:
                shown += [str(error), repr(error), repr(error.args)]
                error = error.__cause__
        assert not [text for text in shown if "do-not-show" in text]


# Processes


def test_a_pickle_is_the_configuration_and_works_elsewhere(bucket, http_server):
    bucket.get("object")
    copied = pickle.loads(pickle.dumps(RetryingStore(bucket, QUICK)))
    assert copied.get("object") == DATA
    assert (copied.location, copied.capabilities, copied.policy) == (bucket.location, bucket.capabilities, QUICK)


def test_a_provider_goes_with_the_pickle(http_url, http_folder):
    store = provided(http_url, http_folder, Provider())
    assert pickle.loads(pickle.dumps(store)).get("object") == DATA


def test_a_closed_store_connects_anew(web):
    web.get("object")
    web.close()
    web.close()
    assert web.get("object") == DATA
