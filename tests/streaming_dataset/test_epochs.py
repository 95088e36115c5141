"""Which epoch an iteration is of: agreed by the workers of a loader, counted by each process for itself."""

import contextlib
import gc
import multiprocessing
import os

import pytest
import torch.utils.data

from headrace.planning import Cursor
from headrace.streaming.epochs import EpochRecord

# Each new process imports torch, which takes seconds.
METHODS = ["fork", "spawn", pytest.param("forkserver", marks=pytest.mark.slow)]
NEW_LOADERS = [
    pytest.param(method, persistent, marks=pytest.mark.slow)
    for method in ("spawn", "forkserver")
    for persistent in (False, True)
]


def test_each_token_is_the_next_epoch_and_the_same_token_the_same_one():
    record = EpochRecord()
    assert record.join((5, 1), 1) == Cursor(0)
    assert record.join((5, 1), 0) == Cursor(0)
    assert record.join((6, 1)) == Cursor(1)
    assert record.join((6, 2)) == Cursor(2)
    assert record.next == Cursor(3)


def test_a_worker_that_comes_again_with_a_token_begins_the_next_epoch():
    record = EpochRecord()
    epochs = [record.join((5, 1), worker).epoch for worker in (0, 2, 1, 1, 0, 2, 2, 300, 1, 0)]
    assert epochs == [0, 0, 0, 1, 1, 1, 2, 2, 2, 2]


def test_a_worker_that_starts_late_takes_part_in_its_own_iteration():
    record = EpochRecord()
    assert [record.join((seed, 1), 0).epoch for seed in (5, 6, 7)] == [0, 1, 2]
    record.begin_at(Cursor(9, 4))
    assert [record.join((seed, 1), 1).epoch for seed in (7, 5, 6)] == [2, 0, 1]
    assert record.join((8, 1)) == Cursor(9, 4)
    assert record.next == Cursor(10)


def test_what_it_keeps_does_not_grow():
    record = EpochRecord()
    for epoch in range(100):
        assert record.join((epoch, 1)) == Cursor(epoch)
    assert os.fstat(record._file).st_size < 2000


def test_a_resumed_run_begins_where_it_was_told_once():
    record = EpochRecord()
    record.join((1, 1))
    record.begin_at(Cursor(4, 100))
    assert record.current == record.next == Cursor(4, 100)
    assert record.join((1, 1)) == Cursor(4, 100)  # a token of before it is none any more
    assert record.join((2, 1)) == Cursor(5)


def _joined(record, token, queue):
    queue.put(record.join(token))


@pytest.mark.parametrize("method", METHODS)
def test_each_child_process_counts_its_own_epochs_from_where_its_parent_is(method):
    record = EpochRecord()
    record.begin_at(Cursor(3))
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    children = [context.Process(target=_joined, args=(record, (rank, 1), queue)) for rank in range(3)]
    for child in children:
        child.start()
    assert [queue.get(timeout=60) for _ in children] == [Cursor(3)] * 3
    for child in children:
        child.join()
    assert record.next == Cursor(3)


class _Epochs(torch.utils.data.IterableDataset):
    def __init__(self):
        self.record = EpochRecord()
        self.begun = 0

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        self.begun += 1
        yield self.record.join((info.seed - info.id, self.begun), info.id).epoch


@pytest.mark.parametrize(("method", "persistent"), [("fork", False), ("fork", True), *NEW_LOADERS])
def test_the_workers_of_a_loader_agree_on_the_epoch(method, persistent):
    loader = torch.utils.data.DataLoader(
        _Epochs(), batch_size=None, num_workers=3, multiprocessing_context=method, persistent_workers=persistent
    )
    assert [list(loader) for _ in range(3)] == [[0] * 3, [1] * 3, [2] * 3]
    assert loader.dataset.record.next == Cursor(3)


def _is_open(file):
    """Whether the file with these marks is open in this process, by whatever descriptor."""
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # that of the listing itself is gone
            if os.path.samestat(os.fstat(number), file):
                return True
    return False


def test_no_file_stays_and_no_descriptor():
    records = [EpochRecord() for _ in range(20)]
    files = [os.fstat(record._file) for record in records]
    assert [file.st_nlink for file in files] == [0] * 20
    assert all(map(_is_open, files))
    del records
    gc.collect()
    assert not any(map(_is_open, files))
