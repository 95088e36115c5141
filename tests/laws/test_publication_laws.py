"""Laws 7 and 8: absent or complete at every instant, and the same bytes however often and by however many."""

import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.datasets import StreamStorage
from headrace.errors import NoDatasetError, UnfinishedDatasetError
from headrace.formats import StreamArrayFormat
from headrace.preparation import prepare
from headrace.store import LocalStore
from headrace.testing import FaultStore, Rule, Run

DIED = 9
few = settings(max_examples=min(settings.default.max_examples, 400))  # each example is several processes
TOKENS = st.lists(st.integers(0, 65_535), max_size=12)
SHARDS = st.lists(st.lists(TOKENS, min_size=1, max_size=3), min_size=1, max_size=4)  # shard -> its records


@contextmanager
def folder():
    path = Path(tempfile.mkdtemp())
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def storage_in(path, *rules):
    return StreamStorage(FaultStore(LocalStore(path, fsync=False), rules), StreamArrayFormat("<u2"))


def write_and_publish(storage, shards):
    with storage.sync_writer(overwrite=True) as writer:
        for shard, records in enumerate(shards):
            for record in records:
                writer.append(shard, np.array(record, np.uint16))
    storage.publish()


def in_a_process(work):
    """Whether a forked process that did this work lived to its end."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, DIED), "the work failed of itself"
    return code == 0


def dies_at(nth):
    return Rule(Run(lambda call: os._exit(DIED)), nth=nth)


def content(path):
    """shard lengths and all elements, or None where nothing opens."""
    try:
        with storage_in(path).sync_reader() as reader:
            lengths = [reader.length(shard) for shard in range(reader.num_shards)]
            return lengths, reader.read(0, reader.total_length).tolist() if reader.total_length else []
    except (UnfinishedDatasetError, NoDatasetError):
        return None


def whole(shards):
    parts = [[token for record in records for token in record] for records in shards]
    return [len(part) for part in parts], [token for part in parts for token in part]


def files(path):
    found = {}
    for file in path.rglob("*"):
        name = str(file.relative_to(path))
        if file.is_file() and not name.startswith(".headrace/"):
            found[name] = file.read_bytes()
    return found


def leftovers(path):
    private = path / ".headrace"
    return [
        str(file.relative_to(path))
        for file in path.rglob("*")
        if ".tmp" in file.name or file.suffix == ".lease" or file.parent == private / "attempts"
    ]


@few
@given(old=st.none() | SHARDS, new=SHARDS, nth=st.integers(1, 160))
def test_a_dataset_is_the_old_one_the_new_one_or_absent_whenever_its_writer_dies(old, new, nth):
    with folder() as path:
        if old is not None:
            write_and_publish(storage_in(path), old)
        lived = in_a_process(lambda: write_and_publish(storage_in(path, dies_at(nth)), new))
        seen = content(path)
        possible = [whole(new)] if lived else [None, whole(new), *([whole(old)] if old is not None else [])]
        assert seen in possible
        assert in_a_process(lambda: write_and_publish(storage_in(path), new))
        assert content(path) == whole(new)
        assert leftovers(path) == []


@few
@given(old=SHARDS, new=SHARDS, nth=st.integers(1, 120))
def test_a_shard_that_is_replaced_before_publication_is_the_old_or_the_new_one_whenever_its_writer_dies(old, new, nth):
    new = new[: len(old)]
    with folder() as path:
        with storage_in(path).sync_writer() as writer:
            for shard, records in enumerate(old):
                for record in records:
                    writer.append(shard, np.array(record, np.uint16))

        def replace(*rules):
            with storage_in(path, *rules).sync_writer() as again:
                for shard, records in enumerate(new):
                    for record in records:
                        again.append(shard, np.array(record, np.uint16))

        lived = in_a_process(lambda: replace(dies_at(nth)))
        replaced = whole([*new, *old[len(new) :]])
        assert content(path) in ([replaced] if lived else [None, whole(old), replaced])
        assert in_a_process(replace)
        assert content(path) == replaced
        assert leftovers(path) == []


def records_of(split):
    for record in split:
        yield np.array(record, np.uint16)


@few
@given(
    splits=SHARDS.filter(lambda shards: any(map(any, shards))),
    threads=st.integers(1, 4),
    nth=st.integers(1, 200),
)
def test_preparing_gives_the_same_bytes_once_twice_in_parallel_and_after_a_death(splits, threads, nth):
    with folder() as path:

        def run(name, *rules, threads=1, **options):
            storage = storage_in(path / name, *rules)
            with ThreadPoolExecutor(threads) as executor:
                prepare(splits, records_of, storage, executor=executor, progress=False, **options)

        run("once")
        expected = files(path / "once")
        run("once")
        run("again", resume=False)
        run("parallel", threads=threads)
        in_a_process(lambda: run("killed", dies_at(nth), threads=threads))
        assert content(path / "killed") in (None, whole(splits))
        run("killed", threads=threads)
        for name in ("once", "again", "parallel", "killed"):
            assert files(path / name) == expected
            assert leftovers(path / name) == []
