"""Samples written to, merged and prepared in, and copied to and from real object stores."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from headrace import merge_index, prepare
from headrace.datasets import MDSWriter, SampleDataset, SampleStorage
from headrace.datasets.copying import copy_dataset, transfer
from headrace.datasets.samples import delivery, pending, sample_writer
from headrace.errors import AccessDeniedError, ExistingOutputError, OutputError, ShardOwnedError
from headrace.store import FolderStore
from headrace.store.open import open_store
from headrace.store.retrying import RetryPolicy
from servers.faulty_http import Cut, Reset, Rule, Run, Status
from writing_scenes import COLUMNS, Watching, files_in, fill, ids_in, sample, write

pytestmark = pytest.mark.servers
QUICK = RetryPolicy(tries=4, first_wait_s=0.01, longest_wait_s=0.05)
KINDS = ["s3", "azure", "gcs"]


@pytest.fixture(params=KINDS)
def store(request):
    """A place in each kind of store."""
    url, options = (request.getfixturevalue(f"{request.param}_{name}") for name in ("url", "options"))
    return open_store(url, **options)


@pytest.fixture
def proxied(s3_url, s3_options, s3_proxy):
    """S3 behind a server that fails as its rules say."""
    return open_store(s3_url, **{**s3_options, "endpoint": s3_proxy.url}, retry=QUICK)


def records(split):
    for number in range(split * 10, split * 10 + 10):
        yield sample(number)


def test_samples_are_written_replaced_and_gone_on_with(store, tmp_path):
    write(tmp_path, range(45), hashes=["sha1"])
    write(store, range(45), hashes=["sha1"])
    assert files_in(store) == files_in(tmp_path)
    assert ids_in(store) == list(range(45))
    with pytest.raises(ExistingOutputError, match="holds a dataset already"):
        write(store, range(5))
    write(store, range(100, 125), exist_ok=True)
    assert ids_in(store) == list(range(100, 125))
    assert len(files_in(store)) == 4

    writing = MDSWriter(columns=COLUMNS, out=store, exist_ok=True)
    fill(writing, range(25))
    with pytest.raises(ShardOwnedError):
        write(store, range(5), exist_ok=True)
    writing.flush_shard()
    writing._background.drain()
    writing.__exit__(KeyError, KeyError(), None)
    assert ids_in(store) is None
    with MDSWriter(columns=COLUMNS, out=store, resume=True) as writing:
        assert writing.num_safe_samples == 25
        fill(writing, range(25, 40))
    assert ids_in(store) == list(range(40))


def test_a_shard_without_a_limit_goes_up_in_parts(store, monkeypatch):
    for module in (pending, sample_writer):
        monkeypatch.setattr(module, "SPILL_BYTES", 4 << 20)
    columns = {"id": "int", "data": "bytes"}
    with MDSWriter(columns=columns, out=store, size_limit=None, hashes=["xxh3_64"]) as writing:
        for number in range(400):
            writing.write({"id": number, "data": bytes([number % 251]) * 100_000})
    with SampleDataset(store) as dataset:
        assert dataset.verify() == []
        assert dataset[399]["data"] == bytes([399 % 251]) * 100_000
    assert sorted(files_in(store)) == ["index.json", "shard.00000.mds"]


def test_parts_are_merged_and_a_root_is_prepared(store, tmp_path):
    for root in (store, tmp_path / "local"):
        place = root if root is store else open_store(root)
        for part in range(3):
            write(FolderStore(place, f"part-{part}"), range(part * 10, part * 10 + 10))
        merge_index(root)
    assert store.get("index.json") == (tmp_path / "local/index.json").read_bytes()
    store.delete("index.json")
    merge_index([f"{store.location}/part-{part}/index.json" for part in range(3)], store)
    assert store.get("index.json") == (tmp_path / "local/index.json").read_bytes()

    root = FolderStore(store, "prepared")
    assert prepare([0, 1, 2], records, SampleStorage(root, COLUMNS), workers=2, progress=False).done == 3
    assert ids_in(root) == list(range(30))
    assert prepare([0, 1, 2], records, SampleStorage(root, COLUMNS), workers=2, progress=False).skipped == 3


def test_a_dataset_is_copied_there_and_back(store, tmp_path, monkeypatch):
    monkeypatch.setattr(transfer, "_IN_MEMORY_BYTES", 1000)
    write(tmp_path / "a", range(95), hashes=["md5"])
    report = copy_dataset(tmp_path / "a", store)
    assert report.copied_files == 10
    assert files_in(store) == files_in(tmp_path / "a")
    assert copy_dataset(tmp_path / "a", store).skipped_files == 10
    copy_dataset(store, tmp_path / "b")
    assert files_in(tmp_path / "b") == files_in(tmp_path / "a")
    other = FolderStore(store, "other/place")
    with pytest.raises(Exception, match="destination="):
        copy_dataset(store, other)


def test_a_url_is_a_place_wherever_a_directory_is(s3_url, s3_options, tmp_path):
    """What the environment says counts, so it takes a process."""
    program = f"""
import os
from headrace import MDSWriter, SampleDataset, merge_index, prepare, SampleStorage
from headrace.cli import main
url = {s3_url!r}
for part in (2, 10):
    with MDSWriter(columns={{"id": "int"}}, out=f"{{url}}/root/{{part}}") as writing:
        writing.write({{"id": part}})
pair = ({str(tmp_path / "local")!r}, f"{{url}}/pair/")
with MDSWriter(columns={{"id": "int"}}, out=pair, keep_local=True) as writing:
    writing.write({{"id": 5}})
indexes = set()
from headrace.store.open import open_store
root = open_store(f"{{url}}/root")
from pathlib import Path
for place in (f"{{url}}/root", f"{{url}}/root/", Path(f"{{url}}/root")):
    merge_index(place)
    indexes.add(root.get("index.json"))
    root.delete("index.json")
    merge_index([f"{{url}}/root/2/index.json", f"{{url}}/root/10"], place)
    indexes.add(root.get("index.json"))
    root.delete("index.json")
assert len(indexes) == 1
merge_index(out=f"{{url}}/root")
with SampleDataset(f"{{url}}/root") as dataset:
    assert [one["id"] for one in dataset[:]] == [2, 10]
assert not os.path.exists("s3:")
main(["cp", f"{{url}}/root", {str(tmp_path / "copy")!r}])
"""
    credentials = s3_options["credentials"]
    environment = {
        **os.environ,
        "AWS_ENDPOINT": s3_options["endpoint"],
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": credentials["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": credentials["secret_access_key"],
    }
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode in (0, 1), done.stderr
    assert not done.stderr or "error" not in done.stderr, done.stderr
    with SampleDataset(tmp_path / "copy") as dataset:
        assert [one["id"] for one in dataset[:]] == [2, 10]


# Failures


@pytest.mark.parametrize("operation", ["PUT", "HEAD", "GET"])
@pytest.mark.parametrize(
    "action", [Status(503), Status(429, {"Retry-After": "0"}), Reset(), Status(500, performed=True)]
)
def test_what_fails_for_a_moment_is_repeated_and_nothing_is_lost(action, operation, proxied, s3_proxy, monkeypatch):
    monkeypatch.setattr(delivery, "_FIRST_WAIT_S", 0.001)
    for nth in (1, 4, 7):
        s3_proxy.rules[:] = [Rule(action, method=operation, nth=nth, times=2)]
        write(proxied, range(45), hashes=["sha1"], exist_ok=True, retry=0)
        s3_proxy.rules.clear()
        assert ids_in(proxied) == list(range(45))


def test_a_put_that_is_refused_for_good_is_told_with_its_name_and_there_is_no_index(proxied, s3_proxy):
    s3_proxy.rules.append(Rule(Status(429), method="PUT", path="*shard.00002*"))
    with pytest.raises(OutputError, match=r"shard\.00002\.mds.*429"):
        write(proxied, range(45), retry=0)
    s3_proxy.rules[:] = [Rule(Status(403), method="PUT", path="*shard.00002*")]
    began_s = time.monotonic()
    with pytest.raises(OutputError, match=r"shard\.00002\.mds") as caught:
        write(proxied, range(45), exist_ok=True)
    assert isinstance(caught.value.__cause__, AccessDeniedError)
    assert time.monotonic() - began_s < 5
    s3_proxy.rules[:] = [Rule(Status(500), method="PUT", path="*index.json")]
    with pytest.raises(OutputError, match=r"index\.json"):
        write(proxied, range(45), exist_ok=True, retry=0)
    s3_proxy.rules.clear()
    assert "index.json" not in files_in(proxied)
    write(proxied, range(45), exist_ok=True)
    assert ids_in(proxied) == list(range(45))


def test_an_index_whose_answer_is_lost_is_there_once(proxied, s3_proxy):
    s3_proxy.rules.append(Rule(Reset(performed=True), method="PUT", path="*index.json", times=1))
    write(proxied, range(25))
    assert ids_in(proxied) == list(range(25))


def test_no_index_is_seen_before_its_shards(proxied, s3_proxy):
    s3_proxy.rules.append(Rule(Run(lambda _: time.sleep(0.3)), method="PUT", path="*shard.00001*"))
    with Watching(proxied) as watching:
        write(proxied, range(45))
    assert watching.looks > 3
    assert watching.wrong == []


def test_a_copy_whose_bodies_break_is_whole(proxied, s3_proxy, tmp_path):
    write(proxied, range(95), hashes=["xxh3_64"])
    s3_proxy.rules += [
        Rule(Cut(50), method="GET", path="*shard.0000[135]*", times=3),
        Rule(Status(503), method="GET", path="*shard.0000[246]*", times=3),
    ]
    copy_dataset(proxied, tmp_path / "copy")
    assert files_in(tmp_path / "copy") == files_in(proxied)


def test_a_writer_that_is_killed_is_followed_by_another(s3_url, s3_options, tmp_path):
    program = f"""
import os, signal
from headrace import MDSWriter
from headrace.store.open import open_store
store = open_store({s3_url!r}, **{json.dumps(s3_options).replace("true", "True")})
with MDSWriter(columns={{"id": "int", "text": "str"}}, out=store) as writing:
    for number in range(1000):
        writing.write({{"id": number, "text": f"text {{number}}"}})
        if number % 10 == 9:
            writing.flush_shard()
        if number == 55:
            os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr
    store = open_store(s3_url, **s3_options)
    assert ids_in(store) is None
    with MDSWriter(columns=COLUMNS, out=store, resume=True) as writing:
        begin = writing.num_safe_samples
        assert begin % 10 == 0
        fill(writing, range(begin, 70))
    assert ids_in(store) == list(range(70))
