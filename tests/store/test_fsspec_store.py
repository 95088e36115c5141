"""Any scheme of fsspec's, with the file systems that need no network: memory (written) and local files (read)."""

import pickle
import subprocess
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace

import fsspec
import numpy as np
import pytest

from headrace.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    NotFoundError,
    OptionError,
    StoreError,
    TemporaryStoreError,
    UnsupportedOperationError,
)
from headrace.store.fsspec_backends import file_info, shown, store_error
from headrace.store.fsspec_store import NEAR_BYTES, SPAN_BYTES, FsspecStore, _spans
from headrace.testing import StoreContract


class TestFsspecMemory(StoreContract):
    def make_store(self, tmp_path):
        return FsspecStore(f"memory://{tmp_path.name}-{id(self)}/data")


class TestFsspecFiles(StoreContract):
    """Read only, as most schemes: fsspec does not say how its files are replaced."""

    def make_store(self, tmp_path):
        self.folder = tmp_path / "data"
        return FsspecStore(f"file://{self.folder}")

    def make_object(self, store, path, data):
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        (self.folder.parent / "new").write_bytes(data)
        (self.folder.parent / "new").replace(target)


@pytest.mark.parametrize("url", ["nonsense://bucket", "s4://bucket/x", "gcss://b"])
def test_a_scheme_that_nobody_knows_is_refused_at_once(url):
    with pytest.raises(OptionError, match="s3, gs, az, http"):
        FsspecStore(url)


def test_a_path_is_no_url():
    with pytest.raises(OptionError, match="SCHEME://PLACE"):
        FsspecStore("/tmp/data")


def test_a_url_that_went_through_pathlib_is_understood():
    assert FsspecStore(str(Path("gs://bucket/prefix"))).location == "gs://bucket/prefix"
    assert FsspecStore("file:///tmp/data").location == "file:///tmp/data"


@pytest.mark.parametrize(
    ("url", "options", "named"),
    [
        ("gs://bucket", {"anonymus": True}, "anonymus.*anonymous"),
        ("gs://bucket", {"token": "anon", "headers": {}}, "headers"),
        ("hf://datasets/owner/name", {"tokn": "secret"}, "tokn.*token"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused_by_name(url, options, named):
    with pytest.raises(OptionError, match=named) as caught:
        FsspecStore(url, **options).get("object")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("gs://bucket/prefix/", "gs://bucket/prefix"),
        ("sftp://user:secret@host/path", "sftp://host/path"),
        ("sftp://user:se@cret@host/path@here", "sftp://host/path@here"),
        ("sftp://user@host/path", "sftp://user@host/path"),
        ("webhdfs://host/path?token=secret", "webhdfs://host/path"),
        ("hf://datasets/owner/name@main/folder", "hf://datasets/owner/name@main/folder"),
    ],
)
def test_what_is_shown_of_a_url_has_no_secrets(url, expected):
    assert shown(url) == expected


def test_nothing_of_the_options_is_shown():
    store = FsspecStore("gs://bucket/prefix", token="my-secret-token", project="p")
    assert repr(store) == "FsspecStore('gs://bucket/prefix')"
    copied = pickle.loads(pickle.dumps(store))
    assert repr(copied) == repr(store)
    assert copied._options == {"token": "my-secret-token", "project": "p"}


def test_making_a_store_of_google_imports_none_of_its_clients():
    program = (
        "import sys\n"
        "from headrace.store.fsspec_store import FsspecStore\n"
        "store = FsspecStore('gs://bucket/prefix', token='anon')\n"
        "print(store.capabilities.conditional, 'gcsfs' in sys.modules, 'aiohttp' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["True", "False", "False"]


@pytest.mark.parametrize(
    ("absent", "url", "extra"),
    [
        ("fsspec", "gs://bucket", "headrace[gcs]"),
        ("fsspec", "sftp://host/path", "headrace[fsspec]"),
        ("gcsfs", "gs://bucket", "headrace[gcs]"),
        ("huggingface_hub", "hf://datasets/a/b", "headrace[hf]"),
    ],
)
def test_a_package_that_is_not_there_is_named_with_what_to_install(absent, url, extra):
    program = (
        f"import sys; sys.modules[{absent!r}] = None\n"
        "from headrace.store.fsspec_store import FsspecStore\n"
        f"try:\n    FsspecStore({url!r}).get('object')\n"
        "except ImportError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert f"pip install '{extra}'" in done.stdout


def test_what_is_read_only_says_where_to_write_instead(tmp_path):
    store = FsspecStore(f"file://{tmp_path}")
    for write in (lambda: store.put("a", b""), lambda: store.put_if_absent("a", b""), lambda: store.delete("a")):
        with pytest.raises(UnsupportedOperationError, match="local directory or to s3, gs or az"):
            write()


def test_listings_are_never_of_yesterday(tmp_path):
    store = FsspecStore(f"file://{tmp_path}")
    assert store.list() == []
    (tmp_path / "a").write_bytes(b"1")
    assert [entry.path for entry in store.list()] == ["a"]
    (tmp_path / "b").mkdir()
    assert store.folders() == ["b"]


def named(name, **fields):
    return type(name, (Exception,), fields)


class Answer:
    def __init__(self, status_code, headers=()):
        self.status_code, self.headers = status_code, dict(headers)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FileNotFoundError("x"), NotFoundError),
        (IsADirectoryError("x"), NotFoundError),
        (FileExistsError("x"), AlreadyExistsError),
        (PermissionError("x"), AccessDeniedError),
        (OSError("Forbidden: b/o"), AccessDeniedError),
        (named("HttpError", code=401, __module__="gcsfs.retry")(), AccessDeniedError),
        (named("HttpError", code="429", __module__="gcsfs.retry")(), TemporaryStoreError),
        (named("HttpError", code=503)(), TemporaryStoreError),
        (named("HttpError", code=400, __module__="gcsfs.retry")(), StoreError),
        (named("HfHubHTTPError", response=Answer(404))(), NotFoundError),
        (named("HfHubHTTPError", response=Answer(429, {"Retry-After": "3"}))(), TemporaryStoreError),
        (named("ClientPayloadError", __module__="aiohttp.client_exceptions")(), TemporaryStoreError),
        (named("ReadTimeout", __module__="httpx")(), TemporaryStoreError),
        (named("RefreshError", __module__="google.auth.exceptions", retryable=False)(), AccessDeniedError),
        (named("RefreshError", __module__="google.auth.exceptions", retryable=True)(), TemporaryStoreError),
        (named("ChecksumError", __module__="gcsfs.retry")(), TemporaryStoreError),
        (TimeoutError(), TemporaryStoreError),
        (ConnectionResetError(), TemporaryStoreError),
        (OSError(5, "input/output error"), StoreError),
    ],
)
def test_errors_are_told_by_their_cause(error, kind):
    known = store_error(error, "gs://bucket/object")
    assert type(known) is kind
    assert "gs://bucket/object" in str(known)
    if "Retry-After" in getattr(getattr(error, "response", None), "headers", {}):
        assert known.retry_after_s == 3


def test_a_signature_in_the_clients_text_is_not_passed_on():
    error = store_error(OSError("Forbidden: https://host/object?sig=secret&x=1\nsecond line"), "webhdfs://host/object")
    assert "secret" not in str(error)
    assert "second line" in str(error)
    assert "\n" not in str(error)


def test_no_secret_of_the_clients_error_is_in_a_traceback(monkeypatch):
    def refuse(key: str) -> bytes:
        raise OSError(f"Forbidden: https://me:do-not-show@host/{key}?sig=do-not-show")

    store = FsspecStore("memory://bucket")
    monkeypatch.setattr(store, "_at", lambda path: (SimpleNamespace(cat_file=refuse), path))
    with pytest.raises(AccessDeniedError, match="https://host/object") as caught:
        store.get("object")
    assert "do-not-show" not in "".join(traceback.format_exception(caught.value))


def test_a_fault_of_the_program_stays_what_it_is():
    assert store_error(TypeError("x"), "gs://bucket/object") is None
    store = FsspecStore("memory://program-faults")
    with pytest.raises(TypeError):
        store.put("object", "text")


def test_versions_are_the_best_that_the_answer_has():
    assert file_info("a", {"size": 3, "generation": "17", "etag": "x", "mtime": 5}) == ("a", 3, "17", 5.0)
    assert file_info("a", {"size": 3, "ETag": '"abc"', "LastModified": "2026-01-01T00:00:00+00:00"}).version == "abc"
    assert file_info("a", {"size": "3", "blob_id": "f00"}).version == "f00"
    plain = file_info("a", {"size": 3, "mtime": 5.5})
    assert plain.version != file_info("a", {"size": 3, "mtime": 6.5}).version
    assert plain.version != file_info("a", {"size": 4, "mtime": 5.5}).version
    assert file_info("a", {"size": None, "modified": "nonsense"}).modified_s == 0.0


def test_near_ranges_are_asked_for_as_one_and_far_ones_apart():
    far = NEAR_BYTES + 1
    assert _spans([(0, 10), (10 + NEAR_BYTES, 5), (15 + NEAR_BYTES + far, 1)]) == (
        [(0, 15 + NEAR_BYTES), (15 + NEAR_BYTES + far, 16 + NEAR_BYTES + far)],
        [(0, 0), (0, 10 + NEAR_BYTES), (1, 0)],
    )
    assert _spans([(5, 0), (3, 4), (0, 10), (3, 4)]) == ([(0, 10)], [(0, 0), (0, 3), (0, 0), (0, 3)])
    assert _spans([]) == ([], [])
    whole, half = SPAN_BYTES, SPAN_BYTES // 2
    assert _spans([(0, half), (half, half), (whole, 1)])[0] == [(0, whole), (whole, whole + 1)]


def test_every_range_lies_where_its_span_says_over_a_whole_small_domain():
    data = bytes(range(7))
    ranges = [(start, stop - start) for start in range(8) for stop in range(start, 8)]
    for first in ranges:
        for second in ranges:
            spans, places = _spans([first, second])
            for (start, length), (span, offset) in zip([first, second], places, strict=True):
                if length:
                    begin, stop = spans[span]
                    assert data[begin:stop][offset : offset + length] == data[start : start + length]


def test_a_file_system_that_gives_fewer_bytes_is_not_believed(monkeypatch):
    store = FsspecStore("memory://short-answers")
    store.put("object", bytes(100))
    memory = type(fsspec.filesystem("memory"))
    whole = memory.cat_file
    monkeypatch.setattr(memory, "cat_file", lambda *args, **more: whole(*args, **more)[:-1])
    with pytest.raises(StoreError, match="fewer bytes than were asked for"):
        store.get_ranges("object", np.array([0]), np.array([10]))
    with pytest.raises(StoreError, match="fewer bytes than were asked for"):
        store.get_ranges("object", np.array([0]), np.array([100]))
