"""Writing to stores of which one call fails, and the order of the calls that a power cut could part."""

import numpy as np
import pytest

from dataset.scenes import U2, leftovers, ranges, storage_at, tokens_of, write
from headrace.datasets import StreamStorage
from headrace.errors import HeadraceError, NoDatasetError, UnfinishedDatasetError
from headrace.store import LocalStore
from headrace.testing import FaultStore, Refuse, Rule


def test_a_full_disk_commits_nothing(tmp_path):
    inner = LocalStore(tmp_path, fsync=False)
    for operation in ("write", "sync", "rename"):
        full = FaultStore(inner, [Rule(Refuse(OSError(28, "No space left on device")), operation=operation)])
        with pytest.raises(OSError, match="No space left"):
            write(StreamStorage(full, U2), ranges(5, 5))
        assert leftovers(tmp_path) == []
        with pytest.raises(UnfinishedDatasetError, match="no shard has been committed"):
            tokens_of(storage_at(tmp_path))
    assert tokens_of(write(storage_at(tmp_path), ranges(5, 5))) == list(range(10))


@pytest.mark.parametrize("operation", ["write", "put", "rename", "sync", "put_if_absent", "make_folder"])
def test_a_shard_is_whole_or_absent_whichever_call_fails_once_and_however_the_user_goes_on(operation, tmp_path):
    expected = np.arange(530_000, dtype=np.uint64).astype(np.uint16)  # more than one buffer
    for nth in range(1, 8):
        folder = tmp_path / str(nth)
        rule = Rule(Refuse(OSError(28, "No space left on device")), operation=operation, nth=nth, times=1)
        store = FaultStore(LocalStore(folder, fsync=False), [rule])
        storage, failed = StreamStorage(store, U2), False
        try:
            with storage.sync_writer() as writer:
                for part in np.array_split(expected, 5):
                    try:
                        writer.append(0, part)
                    except OSError:  # a stubborn user
                        failed = True
                writer.append(1, [1])
        except (HeadraceError, OSError):
            failed = True
        try:
            tokens = tokens_of(storage_at(folder))
        except (UnfinishedDatasetError, NoDatasetError):
            assert failed
        else:
            assert storage_at(folder).verify() == []
            assert failed or tokens == [*expected.tolist(), 1]


def test_data_and_receipt_are_synced_before_they_get_their_names(tmp_path):
    store = FaultStore(LocalStore(tmp_path))
    write(StreamStorage(store, U2), ranges(5, 6))
    unsynced = set()
    renamed = 0
    for call in store.calls:
        if call.operation == "write":
            unsynced.add(call.path)
        elif call.operation == "sync":
            unsynced.discard(call.path)
        elif call.operation == "rename" and not call.path.endswith("replaced"):
            assert call.path not in unsynced
            renamed += 1
    assert renamed == 4
