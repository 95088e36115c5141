"""Workers that are killed, raise or lose their parent: always a clear end, and no child behind it."""

import os
import signal
import threading
import time

import pytest

from headrace.errors import UnfinishedDatasetError
from headrace.preparation import prepare
from preparation import work
from preparation.processes import alive, start, wait_for
from preparation.work import data_of, files_of, leftovers, read_all, storage_at

SPLITS = [(0, 5), (5, 10), (10, 15), (15, 20)]
SCRIPT = """
    import sys, time
    from concurrent.futures import ThreadPoolExecutor
    from preparation import work
    from preparation.processes import alive
    from headrace.errors import HeadraceError
    from headrace.preparation import prepare
    import os

    if __name__ == "__main__":
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(abs, range(100)))
        started = time.monotonic()
        try:
            report = prepare({splits}, work.{function}, work.storage_at(sys.argv[0] + ".out"), workers={workers})
            print(report.done, report.skipped)
        except HeadraceError as error:
            print(type(error).__name__, error, "|", type(error.__cause__).__name__, error.__cause__)
        print(f"{{time.monotonic() - started:.1f}} s, alive: {{alive(os.getpid())}}")
"""


def run(tmp_path, function, splits=SPLITS, workers=4):
    process = start(tmp_path, SCRIPT.format(function=function, splits=splits, workers=workers))
    output, errors = process.communicate(timeout=60)
    first, last = output.splitlines()
    assert last.endswith("alive: []"), last
    assert alive(process.pid) == []
    return first, float(last.split()[0]), errors, tmp_path / "script.py.out"


def test_a_killed_worker_is_named_by_its_split_and_stops_the_others(tmp_path):
    first, seconds, _, out = run(tmp_path, "killed")
    assert first.startswith("PreparationError a worker process was killed by SIGKILL")
    assert "unfinished: shard 1 (split (5, 10)) |" in first
    assert seconds < 10
    before = files_of(out)
    threading.Event().wait(0.5)
    assert files_of(out) == before
    assert not leftovers(out)
    assert not storage_at(out).is_published()


def test_a_raising_worker_is_named_by_its_split_and_stops_the_others(tmp_path):
    first, seconds, errors, out = run(tmp_path, "raising")
    assert first == (
        "PreparationError shard 1 (split (5, 10)): ValueError: five is not allowed | ValueError five is not allowed"
    )
    assert seconds < 10
    assert errors == ""
    assert not leftovers(out)
    with pytest.raises(UnfinishedDatasetError):
        read_all(out)


def test_workers_that_were_stopped_are_ended_too(tmp_path, monkeypatch):
    (tmp_path / "started").mkdir()
    monkeypatch.setenv("STARTED_DIR", str(tmp_path / "started"))
    first, seconds, _, out = run(tmp_path, "stopped")
    assert "five is not allowed" in first
    assert seconds < 10
    assert not leftovers(out)


def test_many_workers_for_many_tiny_tasks_end_and_leave_no_child(tmp_path):
    splits = [(i, i + 1) for i in range(200)]
    first, _, errors, out = run(tmp_path, "numbers", splits, workers=3 * (os.cpu_count() or 1))
    assert first == "200 0"
    assert errors == ""
    assert read_all(out) == list(range(200))


def test_a_script_without_a_main_guard_gets_one_clear_error(tmp_path):
    process = start(
        tmp_path,
        """
        from preparation import work
        from headrace.preparation import prepare

        prepare([(0, 5), (5, 10)], work.numbers, work.storage_at(__file__ + ".out"), workers=2)
        """,
    )
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "PreparationError: the main script has no main guard; put what starts" in errors
    assert errors.count("Traceback") <= 3, errors  # the chain of one error, and none from the workers
    assert alive(process.pid) == []
    assert not storage_at(tmp_path / "script.py.out").is_published()


def test_no_worker_outlives_a_parent_that_was_killed_and_the_next_run_goes_on(tmp_path):
    started = tmp_path / "started"
    started.mkdir()
    process = start(
        tmp_path, SCRIPT.format(function="slow_unless_done", splits=SPLITS, workers=2), STARTED_DIR=str(started)
    )
    out = tmp_path / "script.py.out"
    wait_for(lambda: len(list(started.iterdir())) == 4, "all four tasks")
    assert len(alive(process.pid)) == 2
    process.kill()
    process.communicate()
    wait_for(lambda: alive(process.pid) == [], "end of the workers", 5)
    before = files_of(out)
    threading.Event().wait(0.5)
    assert files_of(out) == before
    with pytest.raises(UnfinishedDatasetError):
        read_all(out)

    (started / "go").touch()
    again = start(
        tmp_path, SCRIPT.format(function="slow_unless_done", splits=SPLITS, workers=2), STARTED_DIR=str(started)
    )
    output, _ = again.communicate(timeout=30)
    assert output.startswith("2 2\n")
    assert not leftovers(out)
    assert {path.name: path.read_text() for path in started.glob("call-*")} == {
        "call-0": "x",
        "call-5": "x",
        "call-10": "xx",
        "call-15": "xx",
    }
    prepare(SPLITS, work.numbers, storage_at(tmp_path / "whole"), workers=1)
    assert data_of(out) == data_of(tmp_path / "whole")


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_ends_quickly_and_leaves_no_child_and_no_temporary_file(tmp_path, workers):
    started = tmp_path / "started"
    started.mkdir()
    process = start(
        tmp_path, SCRIPT.format(function="endless", splits=SPLITS, workers=workers), STARTED_DIR=str(started)
    )
    wait_for(lambda: len(list(started.iterdir())) == workers, "task in each worker")
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to parent and workers
    _, errors = process.communicate(timeout=20)
    assert time.monotonic() - began < 10
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert "SpawnProcess" not in errors
    assert alive(process.pid) == []
    assert not leftovers(tmp_path / "script.py.out")
