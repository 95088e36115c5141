"""Parts of documents, against slices of whole ones."""

import numpy as np
import pytest

from headrace import DocumentStorage, PosixPreadIO
from headrace.formats import DocumentJsonFormat, DocumentNumpyFormat
from headrace.store import MemoryStore

LENGTHS = [3, 0, 5, 1, 0, 7, 2]
RECORDS = [("tokens", "<u4"), ("mask", "u1")]


@pytest.fixture(params=["mapped", "by position", "in memory"])
def storage(request, tmp_path):
    place = MemoryStore() if request.param == "in memory" else tmp_path / "d"
    interface = PosixPreadIO() if request.param == "by position" else None
    return lambda storage_format: DocumentStorage(place, storage_format, read_interface=interface)


def filled(storage, make):
    with storage.sync_writer() as writer:
        for number, length in enumerate(LENGTHS):
            writer.append(number // 3, make(number, length))
    return storage.dataset()


@pytest.mark.parametrize("dtype", ["<u2", "<i8", RECORDS])
def test_every_part_of_every_document_is_a_slice_of_it(storage, dtype):
    documents = filled(
        storage(DocumentNumpyFormat(dtype)), lambda number, length: (np.arange(length) + 10 * number).astype(dtype)
    )
    assert documents.reads_slices
    asked = np.array(
        [(item, start, stop) for item in range(len(LENGTHS)) for start in range(9) for stop in range(9)], np.int64
    )
    asked = np.random.default_rng(0).permutation(asked)
    parts = documents.read_slices(*asked.T)
    for (item, start, stop), part in zip(asked.tolist(), parts, strict=True):
        assert np.array_equal(part, documents[item][start:stop])
        assert part.dtype == np.dtype(dtype)
        assert part.flags.writeable
    assert documents.read_slices(*np.empty((3, 0), np.int64)) == []


def test_an_item_or_a_place_outside_is_refused(storage):
    documents = filled(storage(DocumentNumpyFormat("<u2")), lambda _, length: range(length))
    for item in (-1, 7, 2**40):
        with pytest.raises(IndexError, match=f"document {item} is outside a dataset of 7"):
            documents.read_slices(np.array([0, item]), np.array([0, 0]), np.array([1, 1]))
    for start, stop in ((-1, 2), (0, -1)):
        with pytest.raises(IndexError, match="begin and end at 0 or later"):
            documents.read_slices(np.array([0]), np.array([start]), np.array([stop]))


class Doubled(DocumentNumpyFormat):
    def unpack(self, encoded_data, shard):
        return super().unpack(encoded_data, shard).repeat(2)


def test_documents_that_are_no_arrays_have_no_slices(storage):
    documents = filled(storage(DocumentJsonFormat()), lambda _, length: list(range(length)))
    assert not documents.reads_slices
    with pytest.raises(TypeError, match="are no arrays that parts can be read of"):
        documents.read_slices(np.array([0]), np.array([0]), np.array([1]))


def test_a_format_with_an_unpack_of_its_own_has_no_slices(storage):
    documents = filled(storage(Doubled("<u2")), lambda _, length: range(length))
    assert not documents.reads_slices
