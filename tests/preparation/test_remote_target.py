"""prepare() and the commands around it, into places that have no renames."""

import contextlib
import signal

import numpy as np
import pytest

from flat_stores import FlatFolder, Stream, leftovers, objects_in, spools
from headrace.datasets import SampleStorage
from headrace.errors import HeadraceError, OptionError, PreparationError, PublishedError, UnfinishedDatasetError
from headrace.preparation import prepare
from headrace.preparation.conversion import Wanted, convert
from headrace.store import LocalStore, MemoryStore
from headrace.testing import FaultStore, Refuse, Rule
from interference import FORK

SPLITS = [(0, 4), (4, 4), (4, 9), (9, 12)]


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    yield
    assert spools(folder) == []


def numbers(split):
    """A range, in records of two."""
    for start in range(split[0], split[1], 2):
        yield np.arange(start, min(start + 2, split[1]), dtype=np.uint16)


def data_in(store):
    return {path: data for path, data in objects_in(store).items() if "/" not in path}


def test_a_preparation_gives_the_bytes_of_one_into_a_directory_whatever_the_number_of_workers(tmp_path):
    directory = LocalStore(tmp_path / "directory", fsync=False)
    prepare(SPLITS, numbers, Stream(directory).storage, workers=1, progress=False, metadata={"made": "here"})
    for workers in (1, 3):
        store = FlatFolder(tmp_path / f"flat{workers}")
        report = prepare(
            SPLITS, numbers, Stream(store).storage, workers=workers, progress=False, metadata={"made": "here"}
        )
        assert (report.done, report.totals["total_length"]) == (4, 12)
        assert data_in(store) == data_in(directory)
        assert leftovers(store) == []


def test_running_it_again_changes_nothing_and_another_one_is_refused(tmp_path):
    store = MemoryStore(flat=True)
    target = Stream(store).storage
    prepare(SPLITS, numbers, target, workers=1, progress=False)
    before = objects_in(store)
    assert prepare(SPLITS, numbers, target, workers=1, progress=False).skipped == 4
    with pytest.raises(PublishedError):
        prepare(SPLITS[:2], numbers, target, workers=1, progress=False)
    assert objects_in(store) == before
    prepare(SPLITS[:3], numbers, target, workers=1, progress=False, overwrite=True)
    assert Stream(store).contents() == list(range(9))


def test_finished_tasks_are_skipped_after_a_store_failed():
    store = FaultStore(MemoryStore(flat=True))
    store.rules.append(Rule(Refuse(OSError("no route")), operation="upload", path="0000002.*"))
    target = Stream(store).storage
    with pytest.raises(PreparationError, match="no route"):
        prepare(SPLITS, numbers, target, workers=1, progress=False)
    with pytest.raises(UnfinishedDatasetError):
        Stream(store).contents()
    store.rules.clear()
    report = prepare(SPLITS, numbers, target, workers=1, progress=False)
    assert (report.done, report.skipped) == (2, 2)
    assert Stream(store).contents() == list(range(12))


def test_a_shard_that_was_replaced_behind_the_back_is_made_again():
    store = FaultStore(
        MemoryStore(flat=True), [Rule(Refuse(OSError("no route")), operation="upload", path="0000003.*")]
    )
    target = Stream(store).storage
    with pytest.raises(PreparationError):
        prepare(SPLITS, numbers, target, workers=1, progress=False)
    store.rules.clear()
    store.put("0000000.in_band.bin", bytes(8))  # as long as the real one
    assert prepare(SPLITS, numbers, target, workers=1, progress=False).skipped == 2
    assert Stream(store).contents() == list(range(12))


def run(folder):
    prepare(SPLITS * 10, numbers, Stream(FlatFolder(folder)).storage, workers=2, progress=False)


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [0.8, 1.4, 1.6, 1.8, 2.0, 2.4])
def test_a_preparation_in_several_processes_that_is_killed_is_gone_on_with(tmp_path, after_s):
    process = FORK.Process(target=run, args=(tmp_path / "data",))
    process.start()
    process.join(after_s)
    process.kill()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    store = FlatFolder(tmp_path / "data")
    with contextlib.suppress(HeadraceError):
        assert len(Stream(store).contents()) == 120
    whole = FlatFolder(tmp_path / "whole")
    run(whole.root)
    run(store.root)
    assert data_in(store) == data_in(whole)
    assert leftovers(store) == []


def test_samples_are_prepared_there_too():
    store = MemoryStore(flat=True)

    def rows(split):
        return ({"id": number} for number in range(*split))

    prepare(SPLITS, rows, SampleStorage(store, {"id": "int"}), workers=1, progress=False)
    with SampleStorage(store, {"id": "int"}).dataset() as dataset:
        assert [one["id"] for one in dataset[:]] == list(range(12))


def test_a_file_of_lines_is_not_written_to_a_url(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(OptionError, match="file on this machine"):
        convert(tmp_path / "a.jsonl", "s3://bucket/b.jsonl", Wanted("jsonl"))


def test_a_file_url_is_a_directory(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"a": [1, 2]}\n')
    out = tmp_path / "out put"
    convert(tmp_path / "a.jsonl", out.as_uri(), Wanted("stream", dtype="uint16"), workers=1, progress=False)
    assert (out / "headrace.json").is_file()
