"""How many rows windows have is kept in a file, which may be anything, and shared by threads and processes."""

import json
import multiprocessing
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from headrace import PackedDataset, StatefulDataLoader, WithLengths, stack_segments
from headrace.errors import OptionError, OrderError
from headrace.views import MixedDataset, ShuffledDataset, TokenBudgetBatches
from views.packed_scenes import Listed, documents_of

LENGTHS = np.random.default_rng(3).integers(1, 9, 100).tolist()


def rows_over(cache, lengths=LENGTHS, **options):
    return PackedDataset(ShuffledDataset(Listed(documents_of(lengths)), 7), 16, window=20, cache=cache, **options)


def counted(dataset):
    """How many windows it plans to tell the rows of epoch 0, and the rows."""
    planned, plan = [], dataset._planned
    dataset._planned = lambda lengths, epoch, window: planned.append(window) or plan(lengths, epoch, window)
    rows = len(dataset)
    return len(planned), rows


ROWS = len(rows_over(None))


def test_a_second_process_plans_one_window_to_know_the_rows_of_an_epoch(tmp_path):
    cache = tmp_path / "rows.json"
    assert counted(rows_over(cache)) == (5, ROWS)
    assert counted(rows_over(cache)) == (1, ROWS)
    assert rows_over(cache).rows_in_epoch(3) == rows_over(None).rows_in_epoch(3)
    assert counted(rows_over(cache)) == (1, ROWS), "epochs are kept side by side"
    assert list(json.loads(cache.read_bytes())["epochs"]) == ["0", "3"]
    assert [path.name for path in tmp_path.iterdir()] == ["rows.json"]


def test_any_flipped_or_missing_byte_is_noticed_and_the_file_made_again(tmp_path):
    cache = tmp_path / "rows.json"
    len(rows_over(cache))
    whole = cache.read_bytes()
    damaged = [whole[:end] for end in range(len(whole))]
    damaged += [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(len(whole))]
    for content in damaged:
        cache.write_bytes(content)
        assert len(rows_over(cache)) == ROWS
        assert cache.read_bytes() == whole


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"null", b"\xff\xfe", b"[" * 100_000, b'{"version":1}', b'{"a":1}' * 1000, bytes(1000)]
)
def test_a_foreign_file_is_replaced(content, tmp_path):
    cache = tmp_path / "rows.json"
    cache.write_bytes(content)
    assert counted(rows_over(cache)) == (5, ROWS)
    assert counted(rows_over(cache)) == (1, ROWS)


def test_other_settings_replace_what_is_kept(tmp_path):
    cache = tmp_path / "rows.json"
    assert counted(rows_over(cache, seed=1))[0] == 5
    assert counted(rows_over(cache, seed=2))[0] == 5
    assert counted(rows_over(cache, seed=1))[0] == 5


def test_counts_of_other_data_that_cannot_be_told_apart_are_not_believed(tmp_path):
    cache = tmp_path / "rows.json"
    len(rows_over(cache))
    other = rows_over(cache, [16] * 100)
    assert other.settings == rows_over(None).settings, "lists have no fingerprint"
    assert len(other) == 100
    assert sorted(row["document_ids"].item() for row in other) == list(range(100))


def test_a_window_of_other_rows_than_were_counted_is_an_error(tmp_path):
    for cache in (None, tmp_path / "rows.json"):
        lengths = [4] * 100
        base = Listed(documents_of(lengths))
        packed = PackedDataset(base, 16, window=20, cache=cache, strategy="first_fit")
        assert len(packed) == 25
        base.lengths[3] = 14
        for window in range(4):  # so that the plans that were made are no longer kept
            packed.rows_in_epoch(window + 1)
        again = PackedDataset(base, 16, window=20, cache=cache, strategy="first_fit") if cache else packed
        assert len(again) == 25, "the last window has as many rows as ever"
        with pytest.raises(
            OrderError, match=r"window 0 of epoch 0 has \d rows, and 5 .*lengths of the samples changed"
        ):
            again[0]


def test_a_cache_that_cannot_be_written_is_said_once_and_does_no_harm(tmp_path, caplog, monkeypatch):
    def refused(*args):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", refused)
    packed = rows_over(tmp_path / "rows.json")
    assert len(packed) == len(packed) == ROWS
    (record,) = caplog.records
    assert record.getMessage().startswith("the rows of epoch 0 cannot be kept, and will be counted again: ")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_gone_in_another_process_does_no_harm(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    packed = rows_over(folder / "rows.json")
    folder.rmdir()
    assert len(packed) == ROWS


@pytest.mark.parametrize("cache", ["", ".", "/nowhere/rows.json"])
def test_what_is_no_path_of_a_file_is_refused_at_once(cache):
    with pytest.raises(OptionError, match="expected the path of a file, in a folder that is there"):
        rows_over(cache)
    with pytest.raises(OptionError, match="cache"):
        TokenBudgetBatches(Listed(documents_of(LENGTHS)), 16, 2, cache=cache)


def keep(cache, seed, results):
    results.put([rows_over(cache, seed=seed).rows_in_epoch(epoch) for epoch in range(8)])


def test_processes_that_count_at_once_leave_a_whole_file(tmp_path):
    cache = tmp_path / "rows.json"
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    processes = [context.Process(target=keep, args=(cache, seed, results)) for seed in (1, 1, 2, 2)]
    for process in processes:
        process.start()
    found = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    expected = [[rows_over(None, seed=seed).rows_in_epoch(epoch) for epoch in range(8)] for seed in (1, 2)]
    assert all(one in expected for one in found)
    kept = json.loads(cache.read_bytes())
    assert all(sum(kept["epochs"][str(epoch)]) == expected[0][epoch] for epoch in map(int, kept["epochs"]))
    assert [path.name for path in tmp_path.iterdir()] == ["rows.json"]


class Waiting(Listed):
    """Its lengths are told when `go` is set; `asked` is set when a thread waits for that."""

    def __init__(self, documents):
        super().__init__(documents)
        self.go, self.asked = threading.Event(), threading.Event()

    def lengths_at(self, items):
        self.asked.set()
        assert self.go.wait(60)
        return self.lengths[items]


def plan_here(packed, results):
    packed.base.go = threading.Event()
    packed.base.go.set()
    results.put(packed.window_plan(0, 0).num_rows)


def test_a_process_that_is_forked_while_a_thread_plans_does_not_wait_for_that_thread():
    packed = PackedDataset(Waiting(documents_of(LENGTHS)), 16)
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    with ThreadPoolExecutor(1) as pool:
        planned = pool.submit(packed.window_plan, 0, 0)
        assert packed.base.asked.wait(60)
        process = context.Process(target=plan_here, args=(packed, results))
        process.start()
        try:
            rows = results.get(timeout=60)
        finally:
            packed.base.go.set()
            process.join(60)
        assert rows == planned.result().num_rows
    assert process.exitcode == 0


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_worker_processes_read_rows_of_a_mixture_and_batches_as_one_process_does(context, tmp_path):
    documents = WithLengths(documents_of(LENGTHS), LENGTHS)
    mixed = MixedDataset({"one": documents, "two": ShuffledDataset(documents, 3)}, {"one": 2, "two": 1}, seed=5)
    packed = PackedDataset(mixed, 16, window=50, cache=tmp_path / "rows.json")
    batches = TokenBudgetBatches(mixed, 64, 4, window=50, cache=tmp_path / "batches.json")
    for rows, collate, size in ((packed, stack_segments(labels=True), 3), (batches, list, None)):
        options = {"device": "cpu", "local_batch_size": size, "drop_last": False}
        with StatefulDataLoader(rows, collate, **options) as loader:
            steps = len(loader)
            expected = [told(batch) for batch in loader]
            assert steps == len(expected)
        how = {"num_workers": 2, "parallel_method": "process", "multiprocessing_context": context}
        with StatefulDataLoader(rows, collate, **options, **how) as loader:
            assert [told(batch) for batch in loader] == expected


def told(batch):
    if isinstance(batch, list):
        return [document.tolist() for document in batch]
    return {name: tensor.tolist() for name, tensor in batch.items()}


def test_what_a_process_left_that_was_killed_as_it_kept_counts_goes_with_the_next(tmp_path):
    def killed(*args):
        os._exit(7)

    process = os.fork()
    if process == 0:
        os.replace = killed
        len(rows_over(tmp_path / "rows.json"))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 7
    assert [path.suffix for path in tmp_path.iterdir()] == [".tmp"]
    assert len(rows_over(tmp_path / "rows.json")) == ROWS
    assert [path.name for path in tmp_path.iterdir()] == ["rows.json"]
