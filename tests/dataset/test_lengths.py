"""What datasets know of the lengths of their samples, without reading them."""

from fractions import Fraction

import numpy as np
import pytest

from headrace import DocumentStorage, PosixPreadIO, StreamStorage
from headrace.formats import DocumentNumpyFormat, StreamArrayFormat
from headrace.store import MemoryStore

LENGTHS = [3, 0, 5, 1, 0, 7, 2]


@pytest.fixture(params=["mapped", "by position", "in memory"])
def documents(request, tmp_path):
    place = MemoryStore() if request.param == "in memory" else tmp_path / "d"
    interface = PosixPreadIO() if request.param == "by position" else None
    storage = DocumentStorage(place, DocumentNumpyFormat(np.uint16), read_interface=interface)
    with storage.sync_writer() as writer:
        for number, length in enumerate(LENGTHS):
            writer.append(number // 3, np.arange(length, dtype=np.uint16))
    return storage.dataset()


def test_lengths_at_are_those_of_the_items_asked_for_in_any_order(documents):
    items = np.array([6, 0, 5, 5, 1, 4])
    assert documents.lengths_at(items).tolist() == [LENGTHS[item] for item in items]
    assert documents.lengths_at([]).tolist() == []
    assert documents.lengths.tolist() == LENGTHS


@pytest.mark.parametrize("item", [7, -1, 1 << 40])
def test_lengths_at_refuses_an_item_outside(documents, item):
    with pytest.raises(IndexError, match=str(item)):
        documents.lengths_at(np.array([0, item]))


def test_the_mean_length_is_exact(documents):
    assert documents.mean_length == Fraction(sum(LENGTHS), len(LENGTHS))


def test_windows_all_have_one_length_and_it_takes_no_memory(tmp_path):
    storage = StreamStorage(tmp_path / "s", StreamArrayFormat(np.uint16))
    with storage.sync_writer() as writer:
        writer.append(0, np.arange(100, dtype=np.uint16))
    windows = storage.dataset(10, extra=1)
    assert windows.lengths.tolist() == [len(window) for window in windows] == [11] * len(windows)
    assert windows.lengths.strides == (0,)
    assert windows.lengths_at(np.array([3, 1])).tolist() == [11, 11]
    assert windows.mean_length == 11
