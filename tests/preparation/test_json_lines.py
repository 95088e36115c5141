"""One file of JSON lines: whole or not there, whatever happens on the way, and known by the tasks that made it."""

import multiprocessing
import os
import pickle
import shutil
from pathlib import Path

import pytest

from headrace.errors import CorruptShardError, PreparationError, PublishedError, UnfinishedDatasetError
from headrace.preparation import prepare
from headrace.preparation.json_lines import JsonLinesFile
from headrace.store import LocalStore
from headrace.store.files import temporary_name

SPLITS = [(0, 3), (3, 3), (3, 7)]
EXPECTED = b"".join(b'{"i":%d}\n' % i for i in range(7))


def lines(split):
    for number in range(*split):
        yield b'{"i":%d}\n' % number


def others(split):
    yield b"[]\n"


class Interrupted(BaseException):
    pass


def interrupt(*args, **options):
    raise Interrupted


def run(path, make=lines, splits=SPLITS, **options):
    return prepare(splits, make, JsonLinesFile(path), workers=1, progress=False, **options)


def hidden(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_the_parts_are_joined_in_order_and_only_the_record_stays_beside_the_file(tmp_path):
    report = run(tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").read_bytes() == EXPECTED
    assert report.totals == {"num_shards": 1, "total_length": 7, "total_bytes": len(EXPECTED)}
    assert hidden(tmp_path) == [".out.jsonl.headrace/done.json", "out.jsonl"]


def test_the_same_preparation_finds_its_file_and_another_one_does_not(tmp_path):
    path = tmp_path / "out.jsonl"
    run(path)
    stat = path.stat()
    report = run(path)
    assert (report.done, report.skipped) == (0, 3)
    assert path.stat() == stat
    with pytest.raises(PublishedError, match=r"out\.jsonl is there already"):
        run(path, others)
    assert path.read_bytes() == EXPECTED
    run(path, others, overwrite=True)
    assert path.read_bytes() == b"[]\n" * 3


@pytest.mark.parametrize("change", ["touched", "replaced", "foreign"])
def test_a_file_that_is_not_the_one_that_was_made_is_kept(tmp_path, change):
    path = tmp_path / "out.jsonl"
    if change != "foreign":
        run(path)
    if change == "touched":
        os.utime(path, ns=(1, 1))
    else:
        path.write_bytes(b"mine\n")
    before = path.read_bytes()
    with pytest.raises(PublishedError):
        run(path)
    assert path.read_bytes() == before
    run(path, overwrite=True)
    assert path.read_bytes() == EXPECTED


def test_a_file_that_was_removed_is_made_again(tmp_path):
    run(tmp_path / "out.jsonl")
    (tmp_path / "out.jsonl").unlink()
    assert run(tmp_path / "out.jsonl").done == 3
    assert (tmp_path / "out.jsonl").read_bytes() == EXPECTED


def test_finished_parts_are_kept_after_a_failure(tmp_path):
    path = tmp_path / "out.jsonl"
    with pytest.raises(PreparationError):
        run(path, splits=[*SPLITS[:2], (3, "x")])
    assert not path.exists()
    report = run(path)
    assert (report.done, report.skipped) == (1, 2)
    assert path.read_bytes() == EXPECTED


@pytest.mark.parametrize("step", ["fsync", "replace", "record", "remove"])
@pytest.mark.parametrize("old", [None, b"old\n"])
def test_stopped_anywhere_the_file_is_whole_old_or_absent_and_the_next_run_ends_it(tmp_path, monkeypatch, step, old):
    path = tmp_path / "out.jsonl"
    if old:
        path.write_bytes(old)
    target = JsonLinesFile(path)
    target.record_plan(["a", "b"], overwrite=True)
    for shard, task in enumerate(["a", "b"]):
        with target.sync_writer(tasks={shard: task}) as writer:
            writer.append(shard, b"%d\n" % shard)
    with monkeypatch.context() as patch:
        match step:
            case "fsync":
                patch.setattr("headrace.preparation.json_lines.os.fsync", interrupt)
            case "replace":
                patch.setattr("headrace.preparation.json_lines.os.replace", interrupt)
            case "record":
                patch.setattr(LocalStore, "put", interrupt)
            case _:
                patch.setattr(LocalStore, "remove_folder", interrupt)
        with pytest.raises(Interrupted):
            target.publish()
    whole = b"0\n1\n"
    if step == "remove":
        assert path.read_bytes() == whole
        assert target.planned_tasks() == ["a", "b"]
    else:
        assert (path.read_bytes() if old else path.exists()) == (old or False)
        assert target.planned_tasks() is None
        assert target.finished_tasks() == {0: "a", 1: "b"}
    target.recover()
    target.publish()
    assert path.read_bytes() == whole
    assert target.planned_tasks() == ["a", "b"]
    target.publish()
    assert hidden(tmp_path) == [".out.jsonl.headrace/done.json", "out.jsonl"]


def test_what_a_killed_run_left_in_flight_is_removed(tmp_path):
    target = JsonLinesFile(tmp_path / "out.jsonl")
    target.record_plan(["a"])
    private = tmp_path / ".out.jsonl.headrace"
    before = hidden(tmp_path)
    (private / "joined-99.tmp").write_bytes(b"half")
    dead = multiprocessing.get_context("fork").Process(
        target=lambda: Path(temporary_name(str(private / "done.json"))).write_bytes(b"half")
    )
    dead.start()
    dead.join()
    assert len(hidden(tmp_path)) == len(before) + 2
    target.recover()
    assert hidden(tmp_path) == before


def test_nothing_is_joined_before_every_part_is_there_and_well(tmp_path):
    target = JsonLinesFile(tmp_path / "out.jsonl")
    target.record_plan(["a", "b"])
    with target.sync_writer(tasks={0: "a"}) as writer:
        writer.append(0, b"0\n")
    with pytest.raises(UnfinishedDatasetError):
        target.publish()
    with target.sync_writer(tasks={1: "b"}) as writer:
        writer.append(1, b"1\n")
    (tmp_path / ".out.jsonl.headrace" / "parts" / "0000000.out_of_band.bin").write_bytes(b"7\n")
    with pytest.raises(CorruptShardError, match=r"0000000\.out_of_band\.bin"):
        target.publish()
    assert not (tmp_path / "out.jsonl").exists()


def test_it_pickles_as_its_path(tmp_path):
    target = pickle.loads(pickle.dumps(JsonLinesFile(tmp_path / "out.jsonl")))
    assert target.path == tmp_path / "out.jsonl"
    assert hidden(tmp_path) == []


def test_the_record_alone_says_nothing(tmp_path):
    (tmp_path / "a").mkdir()
    run(tmp_path / "a" / "out.jsonl")
    shutil.copytree(tmp_path / "a" / ".out.jsonl.headrace", tmp_path / ".out.jsonl.headrace")
    assert JsonLinesFile(tmp_path / "out.jsonl").planned_tasks() is None
    (tmp_path / ".out.jsonl.headrace" / "done.json").write_bytes(b"{")
    assert JsonLinesFile(tmp_path / "out.jsonl").planned_tasks() is None
