"""The digest that Azure has of a blob is asked for by a signed HEAD request, for which nobody has to run Azure here."""

import base64
import hashlib
import pickle
import time
from email.utils import formatdate

import pytest

from headrace.errors import NotFoundError, TemporaryStoreError
from headrace.store.objects import ObjectStore
from servers.faulty_http import Reset, Rule, Status

DATA = b"data of a blob"
MD5 = hashlib.md5(DATA, usedforsecurity=False)
KEY = base64.b64encode(b"a key that nobody may see").decode()
SIGNED = "*sig=*"


@pytest.fixture
def blobs(http_folder, http_url):
    """Makes an Azure client of the HTTP server, which can only read."""
    (http_folder / "c/data").mkdir(parents=True)
    (http_folder / "c/data/object").write_bytes(DATA)

    def opened(*, anonymous=False, **credentials):
        named = {"account_name": "account", **({} if anonymous else credentials or {"account_key": KEY})}
        options = {"endpoint": http_url, "allow_http": True, "anonymous": anonymous}
        return ObjectStore("az://c/data", credentials=named, **options)

    return opened


def told(**headers):
    named = {"Content-Length": str(len(DATA)), "Last-Modified": formatdate(0, usegmt=True), "ETag": '"a tag"'}
    return Rule(Status(200, {**named, **headers}), method="HEAD", query=SIGNED)


def test_one_request_tells_the_digest_and_all_that_head_does(blobs, http_server):
    http_server.rules.append(told(**{"Content-MD5": base64.b64encode(MD5.digest()).decode()}))
    stored = blobs().stored("object")
    assert stored.md5 == MD5.hexdigest()
    assert stored.found == ("object", len(DATA), "a tag", 0.0)
    (request,) = http_server.requests
    assert (request.method, request.path) == ("HEAD", "/c/data/object")
    assert "sp=r&" in f"{request.query}&"


def test_a_blob_of_which_no_digest_is_kept_has_none(blobs, http_server):
    http_server.rules.append(told())
    assert blobs().stored("object").md5 == ""
    assert http_server.count() == 1


def test_other_kinds_of_stores_are_asked_by_head_alone(http_server, http_folder, http_url):
    (http_folder / "object").write_bytes(DATA)
    store = ObjectStore(http_url)
    assert store.stored("object") == (store.head("object"), "")
    assert [request.query for request in http_server.requests] == ["", ""]


def test_a_clock_that_is_a_little_ahead_of_the_stores_keeps_no_digest_away(blobs, http_server):
    """The signature counts from now on, by the clock of this machine."""
    said = formatdate(time.time() - 1, usegmt=True)
    http_server.rules.append(Rule(Status(403, {"Date": said}), method="HEAD", query=SIGNED, times=1))
    http_server.rules.append(told(**{"Content-MD5": base64.b64encode(MD5.digest()).decode()}))
    assert blobs().stored("object").md5 == MD5.hexdigest()
    first, second = http_server.requests
    assert second.at_s - first.at_s >= 0.9
    http_server.rules[:] = [Rule(Status(403, {"Date": formatdate(0, usegmt=True)}), method="HEAD", query=SIGNED)]
    assert blobs().stored("object").md5 == ""  # nobody waits for so long


@pytest.mark.parametrize(
    "headers", [{"Last-Modified": "yesterday"}, {"Content-Length": "many"}, {"Content-MD5": "no digest"}], ids=repr
)
def test_an_answer_that_makes_no_sense_is_none(blobs, http_server, headers):
    http_server.rules.append(told(**headers))
    store = blobs()
    for _ in range(2):
        assert store.stored("object") == (store.head("object"), "")
    assert [bool("sig=" in request.query) for request in http_server.requests] == [True, *[False] * 4]


@pytest.mark.parametrize("action", [Status(403), Status(401), Status(400), Reset()], ids=repr)
def test_where_it_is_refused_or_does_not_get_through_head_has_to_do(blobs, http_server, action):
    http_server.rules.append(Rule(action, method="HEAD", query=SIGNED))
    store = blobs()
    for _ in range(2):
        assert store.stored("object") == (store.head("object"), "")
    asked = [request for request in http_server.requests if "sig=" in request.query]
    assert len(asked) == (2 if isinstance(action, Reset) else 1)  # what is refused would be so again
    assert pickle.loads(pickle.dumps(store)).stored("object").md5 == ""


def test_who_has_no_key_cannot_ask(blobs, http_server):
    for number, store in enumerate((blobs(sas_key="sv=2020&sp=r&sig=secret"), blobs(anonymous=True)), 1):
        assert store.stored("object").md5 == ""
        assert len(http_server.requests) == number


@pytest.mark.parametrize("status", [429, 503])
def test_overload_is_not_taken_for_a_missing_digest(blobs, http_server, status):
    http_server.rules.append(Rule(Status(status), method="HEAD", query=SIGNED))
    with pytest.raises(TemporaryStoreError, match=rf"az://c/data/object: {status} when its digest was asked") as caught:
        blobs().stored("object")
    assert "sig" not in str(caught.value)


def test_a_blob_that_is_not_there_is_said_to_be_absent(blobs):
    with pytest.raises(NotFoundError, match="az://c/data/absent"):
        blobs().stored("absent")
