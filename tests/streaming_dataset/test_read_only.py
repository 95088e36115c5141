"""Directories that may be read and not written, as a user who has no right to override that."""

import os
import shutil
import stat
import tempfile
from pathlib import Path

import pytest

from headrace import StreamingDataLoader, StreamingDataset
from headrace.errors import StoreError
from sample_scenes import write
from streaming_dataset.processes import forked, joined

SHARDS = (5, 6, 5)
COUNT = sum(SHARDS)


@pytest.fixture
def place():
    """A folder that everybody can read."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o700)
    shutil.rmtree(folder)


def closed(folder):
    """The folder, in which nobody may write."""
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    return folder


def as_nobody(function):
    """Calls it in a child process without a right to what the permissions deny; its assertions are this test's."""

    def child():
        if os.getuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        function()

    joined([forked(child)])


def tree(folder):
    return {path: stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}


def ids(dataset):
    return [sample["id"] for sample in dataset]


def filled(place, **options):
    """A dataset, and a cache of all of it."""
    data = write(place / "data", SHARDS, **options)
    with StreamingDataset(remote=data, local=place / "cache") as dataset:
        assert ids(dataset) == list(range(COUNT))
    return data


@pytest.mark.parametrize("split", [None, "train"])
def test_a_dataset_that_cannot_be_written_is_read_where_it_is(split, place):
    write(place / "data" / (split or ""), SHARDS)
    closed(place)
    before = tree(place)

    def reads():
        assert ids(StreamingDataset(local=place / "data", split=split)) == list(range(COUNT))
        dataset = StreamingDataset(local=place / "data", split=split, batch_size=4)
        with StreamingDataLoader(dataset) as loader:
            assert sum(len(batch["id"]) for batch in loader) == COUNT

    as_nobody(reads)
    assert tree(place) == before


@pytest.mark.parametrize("limit", [None, 0, 6000])
@pytest.mark.parametrize("options", [{}, {"hashes": ["sha1"]}, {"compression": "zstd"}])
@pytest.mark.parametrize("booted", [False, True])
def test_a_full_cache_that_cannot_be_written_serves_what_it_has(booted, options, limit, place):
    data = filled(place, **options)
    if booted:  # so the copies were checked during an earlier run of the machine
        for path in (place / "cache/headrace-cache/1/files").rglob("*.mds*"):
            os.utime(path, ns=(0, path.stat().st_mtime_ns - 7 * 10**9))
    (data / "shard.00001.mds").unlink(missing_ok=True)
    closed(place)
    before = tree(place)

    def reads():
        dataset = StreamingDataset(remote=data, local=place / "cache", cache_limit=limit)
        for _ in range(2):
            assert ids(dataset) == list(range(COUNT))

    as_nobody(reads)
    assert tree(place) == before


def test_what_a_cache_lacks_that_cannot_be_written_is_an_error_in_its_turn(place):
    data = write(place / "data", SHARDS)
    with StreamingDataset(remote=data, local=place / "cache", predownload=0) as dataset:
        assert dataset[0]["id"] == 0
    (place / "empty").mkdir()
    closed(place)

    def reads():
        dataset = StreamingDataset(remote=data, local=place / "cache", batch_size=1)
        rows = iter(dataset)
        assert [next(rows)["id"] for _ in range(SHARDS[0])] == list(range(SHARDS[0]))
        with pytest.raises(StoreError, match=rf"{place}/cache cannot be written.*{data}/shard\.00001"):
            next(rows)
        with StreamingDataLoader(dataset) as loader, pytest.raises(StoreError, match="cannot be written"):
            list(loader)
        for local in (place / "empty", place / "empty/below", place / "absent"):
            with pytest.raises(StoreError, match=f"{local} cannot be written, and it has no copy of {data}"):
                ids(StreamingDataset(remote=data, local=local))

    as_nobody(reads)
    assert list((place / "empty").iterdir()) == []


def test_what_may_not_be_read_is_an_error_with_its_path_and_none_says_that_nothing_is_there(place):
    write(place / "data", SHARDS)
    write(place / "closed/data", SHARDS)
    (place / "data/shard.00001.mds").chmod(0)
    (place / "closed").chmod(0)
    (place / "free").mkdir()
    (place / "free").chmod(0o777)

    def reads():
        for options in ({"local": place / "closed/data"}, {"remote": place / "closed/data", "local": place / "free"}):
            with pytest.raises(StoreError, match=f"{place}/closed/data/index.json: cannot look up: Permission denied"):
                len(StreamingDataset(**options))
        for options in ({"local": place / "data"}, {"remote": place / "data", "local": place / "free"}):
            with pytest.raises(StoreError, match=rf"{place}/data/shard\.00001.*Permission denied"):
                ids(StreamingDataset(**options))
        with pytest.raises(StoreError, match=f"{place}/closed/cache.*Permission denied"):
            ids(StreamingDataset(remote=place / "data", local=place / "closed/cache"))

    as_nobody(reads)
