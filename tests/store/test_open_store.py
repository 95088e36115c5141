import subprocess
import sys
from pathlib import Path

import pytest

from headrace.errors import OptionError
from headrace.store import LocalStore, MemoryStore
from headrace.store.objects import ObjectStore
from headrace.store.open import has_scheme, open_store
from headrace.store.retrying import RetryingStore, RetryPolicy


def test_a_directory_and_its_url_are_the_same_store(tmp_path):
    for place in (tmp_path, str(tmp_path), f"file://{tmp_path}", f"{tmp_path}/"):
        store = open_store(place)
        assert isinstance(store, LocalStore)
        assert store.location == str(tmp_path)
        assert not has_scheme(place)


def test_options_of_a_directory_reach_it_and_others_are_refused(tmp_path):
    assert not open_store(tmp_path, fsync=False).capabilities.durable
    with pytest.raises(OptionError, match=r"endpoint.*fsync"):
        open_store(tmp_path, endpoint="x")
    with pytest.raises(OptionError, match="endpoint"):
        open_store("memory://", endpoint="x")


def test_memory_is_new_and_flat_each_time():
    store = open_store("memory://")
    assert isinstance(store, MemoryStore)
    assert not store.capabilities.rename
    store.put("object", b"")
    assert open_store("memory://").list() == []


@pytest.mark.parametrize(
    ("url", "kind", "bucket", "prefix", "location"),
    [
        ("s3://bucket", "s3", "bucket", "", "s3://bucket"),
        ("s3://bucket/", "s3", "bucket", "", "s3://bucket"),
        ("S3://bucket/a/b/", "s3", "bucket", "a/b", "s3://bucket/a/b"),
        ("s3a://bucket/a", "s3", "bucket", "a", "s3a://bucket/a"),
        ("s3://bucket/a#b?c d%20", "s3", "bucket", "a#b?c d%20", "s3://bucket/a#b?c d%20"),
        (Path("s3://bucket/a"), "s3", "bucket", "a", "s3://bucket/a"),
        ("az://box/a", "azure", "box", "a", "az://box/a"),
        ("azure://box", "azure", "box", "", "azure://box"),
        ("azure-dl://box/a", "azure", "box", "a", "azure-dl://box/a"),
        ("abfss://box@acc.dfs.core.windows.net/a", "azure", "box", "a", "abfss://box@acc.dfs.core.windows.net/a"),
        ("https://host/a%20b/", "http", "https://host", "a b", "https://host/a b"),
        ("http://host:81", "http", "http://host:81", "", "http://host:81"),
        (Path("https://host/a"), "http", "https://host", "a", "https://host/a"),
        ("https://host/refs%2Fpr/a%20b/", "http", "https://host/refs%2Fpr/a%20b", "", "https://host/refs%2Fpr/a%20b"),
        ("https://host/%FF/a", "http", "https://host/%FF/a", "", "https://host/%FF/a"),
        ("https://me:secret@host/a", "http", "https://me:secret@host", "a", "https://host/a"),
    ],
)
def test_urls_are_taken_apart_and_nothing_is_asked(url, kind, bucket, prefix, location):
    store = open_store(url)
    assert isinstance(store, RetryingStore)
    assert isinstance(store.store, ObjectStore)
    place = store.store.place
    assert (place.kind, place.bucket, place.prefix, store.location) == (kind, bucket, prefix, location)
    assert has_scheme(url)


def test_the_account_of_an_azure_url_is_understood():
    assert open_store("abfs://box@acc.dfs.core.windows.net/a").store.place.account == "acc"


@pytest.mark.parametrize(
    ("url", "options", "named"),
    [
        ("s3://bucket", {"end_point": "x"}, "end_point.*endpoint"),
        ("s3://bucket", {"credentials": {"key": "do-not-show"}}, "key.*access_key_id"),
        ("s3://bucket", {"anonymous": True, "credentials": {"access_key_id": "do-not-show"}}, "anonymous.*credentials"),
        ("s3://bucket", {"request_timeout_s": 0}, "request_timeout_s"),
        ("s3://bucket", {"connect_timeout_s": "5"}, "connect_timeout_s"),
        ("s3://bucket", {"endpoint": "http://host", "allow_http": False}, "allow_http"),
        ("s3://", {}, "url.*BUCKET"),
        ("s3://no bucket/a", {}, "url.*BUCKET"),
        ("s3://bucket", {"endpoint": "host:80"}, "endpoint.*http"),
        ("s3://bucket", {"endpoint": "http://a host"}, "endpoint.*http"),
        ("s3://bucket", {"endpoint": "http://me:do-not-show@host"}, "endpoint.*no keys"),
        ("https://", {}, "url"),
        ("s3://bucket/a/../b", {}, "url.*empty parts"),
        ("s3://bucket/a//b", {}, "url.*empty parts"),
        ("az://box", {"region": "x"}, "region"),
        ("https://host/a", {"region": "x"}, "region.*headers"),
        ("https://host/a?sig=do-not-show", {}, "url.*without"),
        ("https://host/..%2Fa", {}, "url.*empty parts"),
        ("https://me:do-not-show/@host/a", {}, "url.*port"),
        ("s3://key:do-not-show@bucket/a", {}, "url.*@bucket/a.*BUCKET"),
        ("s3://key:do-not-show/rest@bucket/a", {}, "url.*query|url.*BUCKET"),
        ("s3://do-not-show@bucket.name/a", {}, "url.*BUCKET"),
        ("az://box/a?sv=1&sig=do-not-show", {}, "url.*az://box/a.*credentials"),
        ("s3://bucket", {"anonymous": "no"}, "anonymous.*True or False"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(url, options, named):
    with pytest.raises(OptionError, match=named) as caught:
        open_store(url, **options)
    assert "do-not-show" not in str(caught.value)


def test_a_provider_must_be_callable():
    with pytest.raises(TypeError, match="credential_provider must be callable, not str"):
        open_store("s3://bucket", credential_provider="x")

    async def provider() -> dict[str, str]:
        return {}

    with pytest.raises(TypeError, match="plain function"):
        open_store("s3://bucket", credential_provider=provider)


@pytest.mark.parametrize(
    "options",
    [
        {"retry": 5},
        {"retry": {"tries": 5}},
        {"credentials": "do-not-show"},
        {"credentials": {"access_key_id": "do-not-show", "secret_access_key": None}},
        {"headers": {"Authorization": b"do-not-show"}},
        {"region": 1},
        {"endpoint": b"do-not-show"},
    ],
    ids=repr,
)
def test_options_of_another_type_are_refused_at_once_by_name(options):
    with pytest.raises(TypeError, match=next(iter(options))) as caught:
        open_store("s3://bucket", **options)
    assert "do-not-show" not in str(caught.value)


def test_the_policy_is_the_callers():
    policy = RetryPolicy(tries=2)
    assert open_store("s3://bucket", retry=policy).policy is policy
    assert open_store("s3://bucket").policy == RetryPolicy()


def test_googles_store_goes_through_obstore_on_explicit_wish():
    store = open_store("gs://bucket/a", client="obstore", anonymous=True)
    assert store.store.place.kind == "gcs"


def test_local_data_needs_no_client_of_an_object_store(tmp_path):
    code = f"import sys; from headrace.store.open import open_store; open_store({str(tmp_path)!r}).list(); " + (
        "print([name for name in ('obstore', 'fsspec', 'gcsfs') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_opening_a_remote_store_imports_no_client_before_the_first_request():
    code = "import sys; from headrace.store.open import open_store; open_store('s3://bucket/a'); "
    code += "print('obstore' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
