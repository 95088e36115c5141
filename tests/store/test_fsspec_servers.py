"""Google's store, as fake-gcs-server plays it: what is special to gcsfs; tests/servers has the contract and faults."""

import multiprocessing

import numpy as np
import pytest

from headrace.errors import AccessDeniedError, NotFoundError, ObjectChangedError, TemporaryStoreError
from headrace.store.fsspec_store import BOUNDARY, ONE_REQUEST_BYTES, FsspecStore
from servers.faulty_http import HttpServer, Rule, Run, Status

pytestmark = pytest.mark.servers


@pytest.fixture
def proxy(gcs_options):
    with HttpServer(gcs_options["endpoint_url"]) as server:
        yield server


@pytest.fixture
def store(gcs_url, gcs_options, proxy):
    with FsspecStore(gcs_url, **gcs_options | {"endpoint_url": proxy.url}) as opened:
        yield opened


def test_the_names_of_options_that_all_stores_share_are_understood(gcs_url, gcs_options):
    store = FsspecStore(gcs_url, endpoint=gcs_options["endpoint_url"], anonymous=True, request_timeout_s=5, project="p")
    store.put("object", b"data")
    assert store.get("object") == b"data"


def test_data_that_looks_like_the_border_of_an_upload_is_kept(store):
    for data in (BOUNDARY, b"before\n" + BOUNDARY + b"--\nafter", b"\r\n" + BOUNDARY + b"\r\n" + bytes(1000)):
        store.put("object", data)
        assert store.get("object") == data
        store.delete("object")
        store.put_if_absent("object", data)
        assert store.get("object") == data


def test_each_read_is_one_request(store, proxy):
    store.put("object", bytes(1000))
    [found] = store.list()  # head() is gcsfs's info(), which may end some of its requests late
    one = np.array([10])
    for read in (
        lambda: store.get("object"),
        lambda: store.get_ranges("object", one, one),
        lambda: store.get_ranges("object", np.array([0, 500]), np.array([10, 10])),
        lambda: store.get_ranges_of(found, one, one),
    ):
        before = len(proxy.requests)
        read()
        assert len(proxy.requests) == before + 1


def test_a_request_is_tried_once_here(store, proxy):
    store.put("object", b"data")
    proxy.rules.append(Rule(Status(503)))
    for request in (lambda: store.get("object"), lambda: store.put("object", b"other")):
        before = len(proxy.requests)
        with pytest.raises(TemporaryStoreError, match="503"):
            request()
        assert len(proxy.requests) == before + 1


@pytest.mark.parametrize("status", [401, 403])
def test_a_denial_names_the_object_and_what_to_do(store, proxy, status):
    proxy.rules.append(Rule(Status(status)))
    with pytest.raises(AccessDeniedError, match=r"gs://.*object.*anonymous=True"):
        store.get("object")


def test_pieces_are_of_the_generation_that_was_found(store, proxy, gcs_url, gcs_options):
    other = FsspecStore(gcs_url, **gcs_options)
    store.put("object", b"a" * 10_000)
    pieces = store.pieces("object", 4000)
    assert next(pieces) == b"a" * 4000
    other.put("object", b"b" * 10_000)
    with pytest.raises(ObjectChangedError, match="object"):
        next(pieces)
    proxy.rules.append(Rule(Run(lambda request: other.delete("object")), path="/download/*", times=1))
    with pytest.raises(NotFoundError, match="object"):
        list(store.pieces("object", 4000))


def test_a_large_file_takes_little_memory_and_many_requests(store, proxy, tmp_path):
    with (tmp_path / "file").open("wb") as file:
        file.truncate(ONE_REQUEST_BYTES + 5)
    before = len(proxy.requests)
    store.upload("object", tmp_path / "file")
    assert len(proxy.requests) - before >= 5
    assert store.head("object").size_bytes == ONE_REQUEST_BYTES + 5


def read(store, answers):
    answers.put(store.get("folder/object"))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_store_that_was_used_works_in_processes_that_follow(gcs_url, gcs_options, method):
    store = FsspecStore(gcs_url, **gcs_options)
    store.put("folder/object", b"data")
    assert store.get("folder/object") == b"data"
    context = multiprocessing.get_context(method)
    answers = context.Queue()
    children = [context.Process(target=read, args=(store, answers)) for _ in range(3 if method == "fork" else 1)]
    for child in children:
        child.start()
    assert all(answers.get(timeout=60) == b"data" for _ in children)
    for child in children:
        child.join(30)
        assert child.exitcode == 0
    assert store.get("folder/object") == b"data"
