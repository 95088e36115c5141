"""Object stores against real servers: what only they can show."""

import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from headrace.errors import AlreadyExistsError, NotFoundError, ObjectChangedError, TemporaryStoreError, WriteError
from headrace.store.open import open_store
from headrace.store.retrying import RetryPolicy
from servers.faulty_http import Delay, Reset, Rule, Run, Status

pytestmark = pytest.mark.servers

QUICK = RetryPolicy(tries=4, first_wait_s=0.02)
MIB = 1 << 20


@pytest.fixture(params=["s3", "azure"])
def store(request):
    """A store on each server that can be written."""
    return open_store(
        request.getfixturevalue(f"{request.param}_url"), **request.getfixturevalue(f"{request.param}_options")
    )


@pytest.fixture
def proxied(s3_url, s3_options, s3_proxy):
    """An S3 store behind the proxy that makes requests fail."""
    return open_store(s3_url, **s3_options | {"endpoint": s3_proxy.url}, retry=QUICK, request_timeout_s=3.0)


@pytest.fixture
def big(tmp_path):
    """A file that goes up in four parts."""
    path = tmp_path / "big file"
    path.write_bytes(np.arange(56 * MIB // 4, dtype="<u4").tobytes())
    return path


def starts_and_lengths(*pairs):
    starts, lengths = np.array(pairs, np.int64).T
    return starts, lengths


def test_a_file_goes_up_whole_in_one_request_or_in_parts(store, big, tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "small").write_bytes(b"data")
    checked = []
    for name in ("empty", "small", "big file"):
        store.upload(f"folder/{name}", tmp_path / name, check=lambda: checked.append(1))
        assert store.head(f"folder/{name}").size_bytes == (tmp_path / name).stat().st_size
        assert store.get(f"folder/{name}") == (tmp_path / name).read_bytes()
    assert len(checked) == 3


def test_an_upload_in_parts_needs_little_memory(store, tmp_path):
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(200 * MIB)
    tracemalloc.start()
    try:
        store.upload("object", path)
        assert tracemalloc.get_traced_memory()[1] < 120 * MIB
    finally:
        tracemalloc.stop()
    assert store.head("object").size_bytes == 200 * MIB


@pytest.mark.parametrize("size", ["small", "big"])
def test_what_the_check_raises_leaves_the_object_as_it_was(store, big, tmp_path, size):
    path = big
    if size == "small":
        path = tmp_path / "small"
        path.write_bytes(b"new")
    store.put("object", b"old")

    def lost() -> None:
        raise WriteError("the lease is lost")

    with pytest.raises(WriteError, match="the lease is lost"):
        store.upload("object", path, check=lost)
    with pytest.raises(WriteError):
        store.upload("other", path, check=lost)
    assert store.get("object") == b"old"
    assert [entry.path for entry in store.list()] == ["object"]


def test_an_upload_that_is_given_up_takes_its_parts_back(proxied, s3_proxy, big):
    def lost() -> None:
        raise WriteError("the lease is lost")

    with pytest.raises(WriteError):
        proxied.upload("object", big, check=lost)
    begun = [each for each in s3_proxy.requests if each.method == "POST" and "uploads" in each.query]
    ended = [each for each in s3_proxy.requests if each.method == "DELETE" and "uploadId" in each.query]
    completed = [each for each in s3_proxy.requests if each.method == "POST" and "uploadId" in each.query]
    assert (len(begun), len(ended), len(completed)) == (1, 1, 0)


@pytest.mark.parametrize("fault", [Status(503), Reset(), Reset(performed=True)], ids=repr)
def test_a_part_that_fails_has_the_file_go_up_again(proxied, s3_proxy, big, fault):
    s3_proxy.rules.append(Rule(fault, method="PUT", query="*partNumber*", nth=2, times=1))
    proxied.upload("object", big)
    assert proxied.get("object") == big.read_bytes()
    begun = [each for each in s3_proxy.requests if each.method == "POST" and "uploads" in each.query]
    ended = [each for each in s3_proxy.requests if each.method == "DELETE" and "uploadId" in each.query]
    assert (len(begun), len(ended)) == (2, 1)


@pytest.mark.parametrize(
    "fault",
    [Status(503), Status(429), Reset(), Reset(performed=True), Status(500, performed=True), Delay(60.0)],
    ids=repr,
)
def test_writes_that_meet_a_fault_are_repeated(proxied, s3_proxy, fault):
    times = 1 if isinstance(fault, Delay) else 2
    s3_proxy.rules.append(Rule(fault, method="PUT", times=times))
    proxied.put("object", b"data")
    assert s3_proxy.count("PUT") == times + 1
    assert proxied.get("object") == b"data"


@pytest.mark.parametrize("fault", [Reset(performed=True), Status(500, performed=True)], ids=repr)
def test_a_create_whose_answer_is_lost_is_a_success_and_one_that_lost_the_race_is_not(proxied, s3_proxy, fault):
    s3_proxy.rules.append(Rule(fault, method="PUT", times=1))
    proxied.put_if_absent("object", b"mine")
    assert proxied.get("object") == b"mine"
    s3_proxy.rules[:] = [Rule(fault, method="PUT", times=1)]
    with pytest.raises(AlreadyExistsError):
        proxied.put_if_absent("object", b"yours")
    assert proxied.get("object") == b"mine"


def test_one_of_many_creators_wins_though_answers_are_lost(proxied, s3_proxy):
    s3_proxy.rules += [Rule(Reset(performed=True), method="PUT", nth=nth, times=1) for nth in (2, 5, 9, 14)]
    start = threading.Barrier(8)

    def create(number: int, turn: int) -> bool:
        start.wait()
        try:
            proxied.put_if_absent(f"turn {turn}", bytes([number]) * 100)
        except AlreadyExistsError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        for turn in range(4):
            won = list(pool.map(create, range(8), [turn] * 8))
            assert won.count(True) == 1
            assert proxied.get(f"turn {turn}") == bytes([won.index(True)]) * 100


def test_deletes_and_listings_that_meet_a_fault_are_repeated(proxied, s3_proxy):
    for name in ("a", "b/c"):
        proxied.put(name, b"data")
    s3_proxy.rules += [Rule(Status(503), method="DELETE", times=2), Rule(Status(503), query="*list-type*", times=2)]
    proxied.delete("a")
    assert [entry.path for entry in proxied.list()] == ["b/c"]
    assert proxied.folders() == ["b"]


def test_a_listing_of_several_pages_is_whole_and_sorted(store):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: store.put(f"many/{number % 7}/{number:04}", b""), range(1100)))
    listed = store.list("many")
    assert [entry.path for entry in listed] == sorted(f"many/{number % 7}/{number:04}" for number in range(1100))
    assert store.folders("many") == [str(number) for number in range(7)]
    assert store.list("many", recursive=False) == []


@pytest.mark.parametrize("count", [1, 16, 17, 300])
def test_scattered_ranges_are_the_bytes_asked_for(store, monkeypatch, count):
    monkeypatch.setattr("headrace.store.objects.GAP_BYTES", 100)
    data = np.random.default_rng(count).bytes(300 * 500)
    store.put("object", data)
    found = store.head("object")
    starts = np.random.default_rng(1).permutation(300)[:count] * 500
    lengths = np.full(count, 200)
    for views in (store.get_ranges("object", starts, lengths), store.get_ranges_of(found, starts, lengths)):
        assert [bytes(view) for view in views] == [data[at : at + 200] for at in starts]


def test_ranges_of_an_overwritten_object_are_refused_under_a_live_reader(store):
    store.put("object", b"a" * 100_000)
    found = store.head("object")
    stop = threading.Event()

    def overwrite() -> None:
        letter = 0
        while not stop.is_set():
            letter += 1
            store.put("object", bytes([98 + letter % 20]) * 100_000)

    writer = threading.Thread(target=overwrite)
    writer.start()
    try:
        refused = 0
        for _ in range(60):
            try:
                views = store.get_ranges_of(found, *starts_and_lengths((0, 10), (50_000, 10), (99_990, 10)))
            except ObjectChangedError:
                refused += 1
                found = store.head("object")
            else:
                assert len({bytes(view) for view in views}) == 1
        assert refused
    finally:
        stop.set()
        writer.join()


def test_a_stream_in_mid_body_is_of_one_version(proxied, s3_proxy):
    old, new = b"a" * (4 * MIB), b"b" * (4 * MIB)
    proxied.put("object", old)
    s3_proxy.rules.append(Rule(Run(lambda _request: proxied.store.put("object", new)), method="GET", nth=2, times=1))
    s3_proxy.rules.append(Rule(Reset(2 * MIB), method="GET", times=1))
    with pytest.raises(ObjectChangedError):
        b"".join(proxied.pieces("object", MIB // 4))
    assert b"".join(proxied.pieces("object", MIB)) == new


def test_a_reader_without_the_right_keys_learns_it_at_once(s3_url, s3_options, s3_proxy):
    wrong = {"access_key_id": "headrace", "secret_access_key": "do-not-show"}
    store = open_store(s3_url, **s3_options | {"endpoint": s3_proxy.url, "credentials": wrong}, retry=QUICK)
    for call in (store.get, store.head, lambda path: store.put(path, b""), lambda _path: store.list()):
        s3_proxy.requests.clear()
        with pytest.raises(PermissionError, match=r"access denied.*credentials") as caught:
            call("object")
        assert len(s3_proxy.requests) == 1
        assert s3_url in str(caught.value)
        assert "do-not-show" not in str(caught.value)


def test_no_try_is_left_when_the_server_stays_away(proxied, s3_proxy):
    s3_proxy.rules.append(Rule(Status(503, body=b"<Error><Code>SlowDown</Code></Error>")))
    with pytest.raises(TemporaryStoreError, match=r"503.*SlowDown.*gave up after 4 tries"):
        proxied.get("object")
    assert s3_proxy.count("GET") == 4


def test_an_absent_container_is_told_from_an_absent_object(azure_url, azure_options):
    with pytest.raises(NotFoundError, match="ContainerNotFound"):
        open_store("az://no-such-container/data", **azure_options).get("object")
    with pytest.raises(NotFoundError, match="no such object"):
        open_store(azure_url, **azure_options).get("object")


def test_streamings_names_for_azure_lead_to_the_same_container(azure_url, azure_options):
    with open_store(azure_url, **azure_options) as store:
        store.put("folder/object", b"data")
    for scheme in ("azure", "azure-dl", "abfs"):
        with open_store(f"{scheme}://{azure_url.partition('://')[2]}", **azure_options) as store:
            assert store.get("folder/object") == b"data"
