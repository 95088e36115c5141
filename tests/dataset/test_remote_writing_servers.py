"""Shards written to real servers: what the promise rests on there, rivals and kills included."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from flat_stores import KINDS, Stream, leftovers, objects_in, write
from headrace.datasets import open_storage
from headrace.errors import (
    CorruptShardError,
    HeadraceError,
    LeaseLostError,
    PublishedError,
    ShardOwnedError,
    UnfinishedDatasetError,
)
from headrace.preparation import prepare
from headrace.store import MemoryStore
from headrace.store.open import open_store

pytestmark = [pytest.mark.servers, pytest.mark.timeout(300)]

SERVERS = ["s3", "azure", "gcs"]


@pytest.fixture(params=SERVERS)
def place(request):
    """A URL and options: a fresh place on each server."""
    return request.getfixturevalue(f"{request.param}_url"), request.getfixturevalue(f"{request.param}_options")


@pytest.fixture
def store(place):
    with open_store(place[0], **place[1]) as opened:
        yield opened


@pytest.mark.parametrize("kind", KINDS)
def test_data_and_manifest_are_those_of_any_other_store(kind, store):
    expected = MemoryStore(flat=True)
    for target in (store, expected):
        write(KINDS[kind](target), [range(10), [], range(10, 25)], publish=True)
    here, there = objects_in(store), objects_in(expected)
    assert {path: data for path, data in here.items() if "/" not in path} == {
        path: data for path, data in there.items() if "/" not in path
    }
    assert KINDS[kind](store).contents() == list(range(25))
    assert KINDS[kind](store).storage.verify() == []
    assert leftovers(store) == []


def test_a_dataset_is_overwritten_and_only_when_asked(store):
    here = Stream(store)
    write(here, [range(5), range(5, 9)], publish=True)
    with pytest.raises(PublishedError):
        write(here, [range(3)])
    write(here, [range(50, 55)], overwrite=True, publish=True)
    assert here.contents() == list(range(50, 55))
    assert sorted(objects_in(store)) == [
        ".headrace/0000000.receipt",
        ".headrace/generation",
        "0000000.in_band.bin",
        "headrace.json",
    ]


def test_shards_of_more_than_one_part_go_up_whole(store):
    here = Stream(store)
    shards = [bytes([shard + 1]) * (40 << 20) for shard in range(2)]
    with here.storage.sync_writer() as writer:
        for shard, data in enumerate(shards):
            writer.append(shard, memoryview(data).cast("H"))
    here.storage.publish()
    assert [store.get(f"000000{shard}.in_band.bin") == data for shard, data in enumerate(shards)] == [True, True]


def test_rivals_takeovers_and_late_objects(store):
    here, there = Stream(store), Stream(store)
    first = here.storage.sync_writer()
    first.open()
    first.append(0, [1, 2])
    with pytest.raises(ShardOwnedError), there.storage.sync_writer() as second:
        second.append(0, [3])
    write(there, [[3, 4]], force=True)
    with pytest.raises(LeaseLostError):
        first.close()
    assert there.contents() == [3, 4]
    store.put("0000000.in_band.bin", bytes([1, 0, 2, 0]))  # as an upload that comes too late
    with pytest.raises(CorruptShardError, match="another object"):
        there.contents()


KILLED = """
    import os, signal, sys
    from flat_stores import Stream, write
    from headrace.store.open import open_store
    from headrace.testing import FaultStore, Rule, Run

    class EndAt:
        def __init__(self, nth):
            self.left = nth
        def __call__(self, call):
            self.left -= call.operation in ("put", "put_if_absent", "upload", "delete")
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    store = FaultStore(open_store({url!r}, **{options!r}), [Rule(Run(EndAt({nth})))])
    write(Stream(store), [range(4), range(4, 9)], overwrite=True, publish=True)
"""


def test_a_writer_that_is_killed_leaves_a_dataset_or_none_and_the_next_one_needs_no_help(place, store):
    here = Stream(store)
    write(here, [range(100, 104), range(104, 109), [7]], publish=True)
    old = here.contents()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    for nth in (1, 3, 5, 7, 9, 12, 15, 18):
        script = textwrap.dedent(KILLED).format(url=place[0], options=place[1], nth=nth)
        ended = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, check=False)
        assert ended.returncode in (0, -signal.SIGKILL), ended.stderr.decode()
        try:
            assert here.contents() in (old, list(range(9)))
        except UnfinishedDatasetError:
            with contextlib.suppress(HeadraceError):
                here.storage.recover()
    write(here, [range(4), range(4, 9)], overwrite=True, publish=True)
    assert here.contents() == list(range(9))
    assert leftovers(store) == []


def rows(split):
    """A range in one record."""
    yield list(range(*split))


def test_a_preparation_in_several_processes(place, store):
    target = type(Stream(store).storage)(store, Stream(store).storage.storage_format)
    report = prepare([(0, 5), (5, 5), (5, 30)], rows, target, workers=2, progress=False)
    assert report.done == 3
    assert Stream(store).contents() == list(range(30))
    assert prepare([(0, 5), (5, 5), (5, 30)], rows, target, workers=2, progress=False).skipped == 3


def test_headrace_tokenize_writes_to_a_url(s3_url, s3_options, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("one two three\n" * 1000)
    tokenizer = tmp_path / "tokenizer.json"
    vocabulary = {"<|endoftext|>": 0, "one": 1, "two": 2, "three": 3, "[UNK]": 4}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"}
    tokenizer.write_text(json.dumps({"version": "1.0", "model": model, "pre_tokenizer": {"type": "Whitespace"}}))
    environment = {
        **os.environ,
        "AWS_ACCESS_KEY_ID": s3_options["credentials"]["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": s3_options["credentials"]["secret_access_key"],
        "AWS_ENDPOINT_URL": s3_options["endpoint"],
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }
    command = [sys.executable, "-m", "headrace", "tokenize", str(text), "--tokenizer", str(tokenizer), "--out", s3_url]
    for told in ("1 written", "0 written"):  # the second run finds all there
        ended = subprocess.run(
            [*command, "--shards", "1", "--workers", "2"], env=environment, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stderr
        assert told in ended.stdout
    storage = open_storage(open_store(s3_url, **s3_options))
    assert storage.verify() == []
    assert storage.describe()["total_length"] == 3001
