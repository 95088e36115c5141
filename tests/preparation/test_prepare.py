import dataclasses
import functools
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest

from headrace.errors import PreparationError, PublishedError
from headrace.preparation import prepare
from preparation import work
from preparation.work import data_of, files_of, leftovers, read_all, storage_at

SPLITS = [(0, 5), (5, 10), (10, 15), (15, 15), (15, 20)]


def count_calls(calls, split):
    calls.append(split)
    yield from work.numbers(split)


@pytest.fixture
def counted():
    """(make_records, calls): numbers, by a function whose name does not depend on the calls."""
    calls = []

    class Counted:
        def identity(self):
            return "counted"

        def __call__(self, split):
            return count_calls(calls, split)

    return Counted(), calls


def test_shard_k_is_made_from_split_k_and_an_empty_split_gives_an_empty_shard(tmp_path):
    report = prepare(SPLITS, work.numbers, storage_at(tmp_path), workers=1)
    assert (report.done, report.skipped, report.num_records) == (5, 0, 10)
    assert report.totals == {"num_shards": 5, "total_length": 20, "total_bytes": 40}
    assert read_all(tmp_path) == list(range(20))
    with storage_at(tmp_path).sync_reader() as reader:
        assert [reader.length(shard) for shard in range(5)] == [5, 5, 5, 0, 5]
    assert storage_at(tmp_path).is_published()


def test_the_number_of_workers_and_the_executor_are_invisible_in_the_files(tmp_path):
    context = multiprocessing.get_context("spawn")
    prepare(SPLITS, work.numbers, storage_at(tmp_path / "one"), workers=1)
    prepare(SPLITS, work.numbers, storage_at(tmp_path / "two"), workers=2)
    with ThreadPoolExecutor(3) as threads, ProcessPoolExecutor(2, mp_context=context) as processes:
        prepare(SPLITS, work.numbers, storage_at(tmp_path / "threads"), executor=threads)
        prepare(SPLITS, work.numbers, storage_at(tmp_path / "processes"), executor=processes)
        assert threads.submit(int, 3).result() == 3  # the caller's executor stays open
    expected = data_of(tmp_path / "one")
    assert len(expected) == 6
    for name in ("two", "threads", "processes"):
        assert data_of(tmp_path / name) == expected
        assert not leftovers(tmp_path / name)


def test_a_second_run_has_nothing_to_do_and_changes_nothing(tmp_path, counted):
    make_records, calls = counted
    prepare(SPLITS, make_records, storage_at(tmp_path), workers=1)
    before = files_of(tmp_path)
    for overwrite in (False, True):
        report = prepare(SPLITS, make_records, storage_at(tmp_path), workers=1, overwrite=overwrite)
        assert (report.done, report.skipped, report.totals["total_length"]) == (0, 5, 20)
    assert len(calls) == 5
    assert files_of(tmp_path) == before


def test_finished_tasks_are_skipped_after_a_failure(tmp_path, counted):
    make_records, calls = counted
    bad = [*SPLITS[:3], (16, "x"), SPLITS[4]]
    with pytest.raises(PreparationError, match=r"shard 3 \(split \(16, 'x'\)\): TypeError") as caught:
        prepare(bad, make_records, storage_at(tmp_path), workers=1)
    assert isinstance(caught.value.__cause__, TypeError)
    assert not storage_at(tmp_path).is_published()
    assert not leftovers(tmp_path)
    calls.clear()
    report = prepare(SPLITS, make_records, storage_at(tmp_path), workers=1)
    assert (report.done, report.skipped) == (2, 3)
    assert calls == SPLITS[3:]
    assert read_all(tmp_path) == list(range(20))


def test_resume_false_makes_every_shard_again(tmp_path, counted):
    make_records, calls = counted
    with pytest.raises(PreparationError):
        prepare([*SPLITS[:4], (1, "x")], make_records, storage_at(tmp_path), workers=1)
    calls.clear()
    report = prepare(SPLITS, make_records, storage_at(tmp_path), workers=1, resume=False)
    assert (report.done, report.skipped, len(calls)) == (5, 0, 5)
    with pytest.raises(PublishedError):
        prepare(SPLITS, make_records, storage_at(tmp_path), workers=1, resume=False)
    assert prepare(SPLITS, make_records, storage_at(tmp_path), workers=1, resume=False, overwrite=True).done == 5
    assert read_all(tmp_path) == list(range(20))


def test_another_plan_for_a_published_directory_is_refused_or_replaces_it_whole(tmp_path):
    prepare(SPLITS, work.numbers, storage_at(tmp_path), workers=1)
    before = files_of(tmp_path)
    with pytest.raises(PublishedError):
        prepare([(0, 7)], work.numbers, storage_at(tmp_path), workers=1)
    assert files_of(tmp_path) == before
    prepare([(0, 7)], work.numbers, storage_at(tmp_path), workers=1, overwrite=True)
    assert read_all(tmp_path) == list(range(7))
    assert sorted(data_of(tmp_path)) == ["0000000.in_band.bin", "headrace.json"]


def test_two_preparations_in_one_process_do_not_meet(tmp_path):
    prepare([(0, 20)], work.numbers, storage_at(tmp_path / "train"), workers=2)
    prepare([(0, 5)], work.numbers, storage_at(tmp_path / "val"), workers=2)
    assert (len(read_all(tmp_path / "train")), len(read_all(tmp_path / "val"))) == (20, 5)


def test_an_unfinished_directory_of_another_plan_keeps_nothing_of_it(tmp_path):
    with pytest.raises(PreparationError):
        prepare([(50, 60), (60, 70), (70, 80), (1, "x")], work.numbers, storage_at(tmp_path), workers=1)
    report = prepare([(50, 60), (0, 5)], work.numbers, storage_at(tmp_path), workers=1)
    assert (report.done, report.skipped) == (1, 1)
    assert read_all(tmp_path) == [*range(50, 60), *range(5)]
    assert sorted(data_of(tmp_path)) == ["0000000.in_band.bin", "0000001.in_band.bin", "headrace.json"]


@dataclasses.dataclass(frozen=True)
class Scaled:
    factor: int

    def __call__(self, split):
        yield {"tokens": np.arange(*split) * self.factor}


def test_finished_work_is_known_by_split_settings_and_what_makes_the_records(tmp_path):
    def changed(splits, make_records, settings=None):
        with pytest.raises(PublishedError):
            prepare(splits, make_records, storage_at(tmp_path), workers=1, settings=settings)

    prepare([(0, 3)], Scaled(2), storage_at(tmp_path), workers=1, settings={"version": 1})
    assert prepare([(0, 3)], Scaled(2), storage_at(tmp_path), workers=1, settings={"version": 1}).skipped == 1
    changed([(0, 4)], Scaled(2), {"version": 1})
    changed([(0, 3)], Scaled(3), {"version": 1})
    changed([(0, 3)], Scaled(2), {"version": 2})
    changed([(0, 3)], Scaled(2))
    changed([("0", "3")], Scaled(2), {"version": 1})
    changed([(0, 3)], functools.partial(count_calls, []), {"version": 1})


def test_a_range_is_a_split_that_is_known_again_by_all_its_numbers(tmp_path):
    def records(split):
        yield {"tokens": [*split]}

    prepare([range(3), range(3, 9, 2)], records, storage_at(tmp_path), workers=1)
    assert read_all(tmp_path) == [0, 1, 2, 3, 5, 7]
    assert prepare([range(0, 3, 1), range(3, 9, 2)], records, storage_at(tmp_path), workers=1).skipped == 2
    for other in (range(3, 9), range(3, 8), range(2, 9, 2)):
        with pytest.raises(PublishedError):
            prepare([range(3), other], records, storage_at(tmp_path), workers=1)


def test_what_has_no_stable_description_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(PreparationError, match=r"no stable description.*identity\(\)"):
        prepare([object()], work.numbers, storage_at(tmp_path / "a"), workers=1)
    with pytest.raises(PreparationError, match=r"cannot be sent to worker processes.*workers=1"):
        prepare([(0, 3)], lambda split: work.numbers(split), storage_at(tmp_path / "b"), workers=2)
    assert not (tmp_path / "a").exists()


def test_no_split_no_worker_and_no_record_are_refused_every_time(tmp_path):
    with pytest.raises(PreparationError, match="0 splits"):
        prepare([], work.numbers, storage_at(tmp_path), workers=1)
    with pytest.raises(PreparationError, match="workers=0"):
        prepare([(0, 1)], work.numbers, storage_at(tmp_path), workers=0)
    for _ in range(2):
        with pytest.raises(PreparationError, match="2 splits gave 0 records"):
            prepare([(0, 1), (1, 2)], work.nothing, storage_at(tmp_path), workers=1)
    assert not storage_at(tmp_path).is_published()


def test_more_workers_than_tasks_and_tasks_without_records_end_well(tmp_path):
    report = prepare([(0, 3), (3, 3), (3, 6)], work.numbers, storage_at(tmp_path), workers=4)
    assert report.done == 3
    assert read_all(tmp_path) == list(range(6))


def test_tasks_run_here_with_one_worker_and_elsewhere_with_two(tmp_path):
    here = os.getpid() % 65_536
    prepare([0, 1], work.pid_of, storage_at(tmp_path / "one"), workers=1)
    prepare([0], work.pid_of, storage_at(tmp_path / "two"), workers=2)
    assert set(read_all(tmp_path / "one")) == {here}
    assert here not in read_all(tmp_path / "two")


@pytest.mark.parametrize("workers", [1, 2])
def test_the_original_error_is_the_cause_even_if_it_does_not_pickle(tmp_path, workers):
    with pytest.raises(PreparationError, match=r"shard 0 \(split \(0, 5\)\): OddError: this and that") as caught:
        prepare([(0, 5)], work.raising_oddly, storage_at(tmp_path), workers=workers)
    cause = caught.value.__cause__
    assert "this and that" in str(cause)
    if workers == 2:
        assert "raising_oddly" in "".join(cause.__notes__)


def test_a_failing_thread_stops_the_others_at_their_next_record(tmp_path):
    def make_records(split):
        yield from work.numbers(split)
        if split == (5, 10):
            raise ValueError("five is not allowed")
        while True:
            yield {"tokens": np.zeros(1, np.uint16)}

    with ThreadPoolExecutor(3) as threads, pytest.raises(PreparationError, match="five is not allowed"):
        prepare(SPLITS[:3], make_records, storage_at(tmp_path), executor=threads)
    assert not leftovers(tmp_path)
    assert not storage_at(tmp_path).is_published()


def test_a_record_that_does_not_fit_fails_its_task_by_name(tmp_path):
    def make_records(split):
        yield {"tokens": np.array([65_536])}

    with pytest.raises(PreparationError, match=r"shard 0 .*65536"):
        prepare([0], make_records, storage_at(tmp_path), workers=1)


def test_a_split_that_can_be_watched_reports_its_bytes_while_it_is_read(tmp_path, monkeypatch):
    told, finished = [], []

    @dataclasses.dataclass(frozen=True)
    class Watched:
        size_bytes: int
        observer: object = dataclasses.field(default=None, compare=False)

        def observed(self, observer):
            return dataclasses.replace(self, observer=observer)

    def make_records(split):
        split.observer(split.size_bytes)
        yield {"tokens": np.zeros(1, np.uint16)}

    import contextlib
    import importlib

    module = importlib.import_module("headrace.preparation.job")
    bar = contextlib.nullcontext((lambda *news: told.append(news), finished.append))
    monkeypatch.setattr(module, "progress_bar", lambda *_: bar)
    prepare([Watched(3), Watched(4)], make_records, storage_at(tmp_path), workers=1)
    assert told == [(0, 3), (1, 4)]
    assert finished == [0, 1]
