"""What a document may be, and what it comes back as: the same value, or an error before anything is written."""

import array
import pickle
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.datasets import DocumentStorage
from headrace.errors import FieldError, UnsafeDataError
from headrace.formats.documents import (
    DocumentBytesFormat,
    DocumentFormat,
    DocumentJsonFormat,
    DocumentNumpyFormat,
    DocumentPickleFormat,
    item_bytes,
    payload_bytes,
)
from headrace.store import MemoryStore
from headrace.testing.samples import same_value

JSON = DocumentJsonFormat()
U2 = DocumentNumpyFormat("<u2")


def returned(storage_format, data, shard=0):
    """What data comes back as, without files."""
    return storage_format.unpack(memoryview(bytearray(payload_bytes(storage_format.pack(data)))), shard)


class Returns:
    """A format whose pack() returns its record."""

    def pack(self, data):
        return data

    def unpack(self, encoded_data, shard):
        return bytes(encoded_data)


# Payloads

BUFFERS = {
    "bytes": b"\0\1",
    "bytearray": bytearray(b"\0\1"),
    "memoryview": memoryview(b"\0\1\2")[1:],
    "words": memoryview(array.array("i", [1, -2, 3])),
    "doubles": memoryview(array.array("d", [0.5])),
    "signed bytes": memoryview(array.array("b", [-1])),
    "chars": memoryview(b"ab").cast("c"),
    "matrix": np.arange(6, dtype="<i2").reshape(2, 3).data,
    "swapped": np.arange(3, dtype=">u4").data,
    "halves": np.arange(3, dtype="<f2").data,
    "complex": np.arange(3, dtype="<c8").data,
    "wide chars": np.array(["a\u00e9"]).data,
    "flags": np.array([True, False]).data,
    "records": np.zeros(2, [("a", "<u2"), ("b", "<f8", (2,))]).data,
    "one number": np.array(5, "<i4").data,
    "read-only": np.frombuffer(b"abcd", "<u2").data,
}


@pytest.mark.parametrize("name", BUFFERS)
def test_any_contiguous_buffer_is_a_payload_byte_for_byte(name):
    payload = payload_bytes(BUFFERS[name])
    assert bytes(payload) == bytes(BUFFERS[name])
    assert len(payload) == memoryview(BUFFERS[name]).nbytes  # the index counts bytes by len()
    assert returned(DocumentBytesFormat(), BUFFERS[name]) == bytes(BUFFERS[name])


EMPTY = [
    b"",
    bytearray(),
    memoryview(b""),
    np.zeros(0, ">u4").data,
    np.zeros((0, 3)).data,
    np.zeros((3, 0), "<u2").data,
]


@pytest.mark.parametrize(
    "payload", EMPTY, ids=[f"{type(payload).__name__} {number}" for number, payload in enumerate(EMPTY)]
)
def test_an_empty_buffer_of_any_shape_is_an_empty_payload(payload):
    assert len(payload_bytes(payload)) == 0
    assert returned(DocumentBytesFormat(), payload) == b""


@pytest.mark.parametrize(
    "payload",
    [memoryview(b"abcd")[::2], memoryview(b"abc")[::-1], np.asfortranarray(np.eye(3)).data, np.eye(3)[:, 0].data],
)
def test_a_buffer_with_gaps_is_refused_and_says_how_to_close_them(payload):
    with pytest.raises(FieldError, match=r"not contiguous; copy it with \.tobytes\(\)"):
        payload_bytes(payload)


@pytest.mark.parametrize("payload", ["text", None, 5, [1, 2], np.zeros(3, "u1"), array.array("b"), torch.zeros(2)])
def test_what_is_no_buffer_is_refused_by_its_type(payload):
    with pytest.raises(FieldError, match=f"field 'document': pack.. returned {type(payload).__name__}, not bytes"):
        payload_bytes(payload)
    with pytest.raises(FieldError, match="field 'payloads'"):
        payload_bytes(payload, "payloads")


def test_a_memoryview_of_wide_items_shifts_no_neighbour():
    """GuideLoom counts its items instead of its bytes, and every later document is read from a wrong place."""
    storage = DocumentStorage(MemoryStore(), Returns())
    words = np.arange(3, dtype="<u4").data
    assert len(words) == 3
    with storage.sync_writer() as writer:
        for payload in (words, b"hello", words[1:], b""):
            writer.append(0, payload)
    assert storage.dataset()[:] == [words.tobytes(), b"hello", words[1:].tobytes(), b""]
    assert storage.dataset().lengths.tolist() == [12, 5, 8, 0]


def test_a_bytearray_that_pack_returns_is_stored():
    """GuideLoom's type alias allows it, and its writer does not."""
    storage = DocumentStorage(MemoryStore(), Returns())
    buffer = bytearray(b"one")
    with storage.sync_writer() as writer:
        writer.append(0, buffer)
        buffer[:] = b"TWO more"
        writer.append(0, buffer)
    assert storage.dataset()[:] == [b"one", b"TWO more"]


def test_an_object_with_pack_and_unpack_is_a_format():
    assert isinstance(Returns(), DocumentFormat)
    assert not isinstance(object(), DocumentFormat)
    for storage_format in (DocumentBytesFormat(), JSON, U2, DocumentPickleFormat()):
        assert isinstance(storage_format, DocumentFormat)


def test_lengths_count_elements_where_there_is_a_dtype_and_bytes_elsewhere():
    assert item_bytes(DocumentNumpyFormat("<f8")) == 8
    assert item_bytes(DocumentNumpyFormat([("a", "<u2"), ("b", "u1")])) == 3
    assert [item_bytes(storage_format) for storage_format in (DocumentBytesFormat(), JSON, Returns())] == [1, 1, 1]


def test_a_payload_that_is_no_whole_number_of_the_declared_elements_is_refused():
    class Half(Returns):
        dtype = np.dtype("<u4")

    storage = DocumentStorage(MemoryStore(), Half())
    with storage.sync_writer() as writer:
        with pytest.raises(FieldError, match=r"shard 0.* 6 bytes, .*no whole number of 4-byte elements"):
            writer.append(0, b"123456")
        writer.append(0, b"12345678")
    assert storage.dataset().lengths.tolist() == [2]


@pytest.mark.parametrize(
    ("storage_format", "text"),
    [
        (DocumentBytesFormat(), "DocumentBytesFormat()"),
        (JSON, "DocumentJsonFormat()"),
        (U2, "DocumentNumpyFormat('<u2')"),
        (DocumentNumpyFormat([("a", ">i4")]), "DocumentNumpyFormat([('a', '<i4')])"),
        (DocumentPickleFormat(True), "DocumentPickleFormat(allow_pickle=True)"),
    ],
)
def test_a_format_shows_how_it_was_made(storage_format, text):
    assert repr(storage_format) == text
    assert repr(eval(text)) == text


# Arrays


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ([1, 65_536], "value 65536 at position 1 does not fit uint16"),
        ([-1], "value -1 at position 0"),
        (np.array([5, 2**40]), "value 1099511627776 at position 1"),
        ([2**64], "cannot be stored in uint16 by value"),
        ([1.0], "elements of float64"),
        (torch.tensor([0.5]), "elements of float32"),
        ([[1, 2]], r"has shape \(1, 2\); a document is an array of one dimension"),
        (np.zeros((2, 0)), r"has shape \(2, 0\)"),
        (5, r"has shape \(\)"),
        ("text", "cannot be stored"),
        (b"bytes", "cannot be stored"),
        ([None], "cannot be stored"),
        ({"tokens": [1]}, "cannot be stored"),
    ],
)
def test_an_array_that_does_not_fit_its_type_is_refused_with_value_and_place(values, problem):
    with pytest.raises(FieldError, match=problem):
        U2.pack(values)


@pytest.mark.parametrize(
    "values",
    [
        [0, 65_535],
        (7,),
        range(4),
        np.arange(6, dtype=">u4")[::2],
        np.arange(3)[::-1],
        torch.arange(3),
        [True, False],
        [],
        np.zeros(0, "<i8"),
        torch.zeros(0, dtype=torch.int32),
    ],
    ids=repr,
)
def test_an_array_comes_back_by_value_whatever_its_memory_looks_like(values):
    sample = returned(U2, values)
    assert sample.dtype == np.dtype("<u2")
    assert sample.tolist() == [int(value) for value in values]
    assert U2.pack(values).tobytes() == np.array(sample.tolist(), "<u2").tobytes()


def test_a_sample_is_writable_and_lies_in_the_payload_it_was_given():
    payload = bytearray(b"\1\0\2\0")
    U2.unpack(memoryview(payload), 0)[1] = 9
    assert payload == b"\1\0\x09\0"


def test_a_payload_with_half_an_element_is_a_value_error():
    with pytest.raises(ValueError, match="multiple of element size"):
        U2.unpack(memoryview(b"abc"), 0)


def test_a_declared_big_endian_type_stores_values_little_endian():
    for dtype in (">u2", ">i8", ">f4", [("a", ">u2"), ("b", ">f8", (2,))]):
        storage_format = DocumentNumpyFormat(dtype)
        values = np.zeros(2, dtype)
        values.view(np.uint8)[:] = np.arange(values.nbytes)
        assert storage_format.dtype == np.dtype(dtype).newbyteorder("<")
        assert bytes(storage_format.pack(values)) == values.astype(storage_format.dtype).tobytes()
        assert same_value(returned(storage_format, values), values)


def test_floats_are_rounded_but_never_become_infinite():
    storage_format = DocumentNumpyFormat("<f4")
    assert returned(storage_format, [0.1, 1, float("inf")]).tolist() == [np.float32(0.1), 1.0, float("inf")]
    with pytest.raises(FieldError, match="value 1e\\+300 at position 0"):
        storage_format.pack([1e300])


def test_types_of_python_objects_or_without_bytes_are_refused_at_construction():
    """GuideLoom writes the addresses of the objects."""
    for dtype in ("O", [("a", "<i4"), ("b", "O")]):
        with pytest.raises(ValueError, match="Python objects"):
            DocumentNumpyFormat(dtype)
    for dtype in ("S0", "V0", []):
        with pytest.raises(ValueError, match="no bytes"):
            DocumentNumpyFormat(dtype)
    with pytest.raises(FieldError, match="elements of object"):
        U2.pack(np.array([1, 2], object))


@given(
    st.sampled_from(["i1", "<i2", "<i4", "<i8", "u1", "<u2", "<u4", "<u8"]),
    st.lists(st.integers(-(2**64), 2**65) | st.integers(-300, 300), max_size=5),
)
def test_integers_come_back_equal_or_the_one_that_does_not_fit_is_refused(dtype, values):
    storage_format = DocumentNumpyFormat(dtype)
    limits = np.iinfo(dtype)
    fits = all(limits.min <= value <= limits.max for value in values)
    try:
        sample = returned(storage_format, values)
    except FieldError:
        # NumPy makes floats or objects of integers that no single type of its own holds; those are refused, too.
        assert not fits or max(values) > 2**63 - 1
        return
    assert fits
    assert sample.tolist() == values


# Pickles


class Trap:
    """Unpickling it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.fixture
def sprung(tmp_path):
    """The file that is there once code has run."""
    return tmp_path / "sprung"


@pytest.fixture
def trapped(sprung):
    storage = DocumentStorage(MemoryStore(), DocumentPickleFormat())
    with storage.sync_writer() as writer:
        writer.append(0, Trap(sprung))
    return storage


def test_no_code_of_a_pickle_runs_without_the_caller_s_word(trapped, sprung):
    payload = pickle.dumps(Trap(sprung))
    readings = [
        lambda: trapped.dataset()[0],
        lambda: trapped.dataset().__getitems__([0]),
        lambda: DocumentStorage(trapped.store).dataset()[0],
        lambda: DocumentPickleFormat().unpack(memoryview(payload), 0),
    ]
    for read in readings:
        with pytest.raises(UnsafeDataError, match=r"pass DocumentPickleFormat\(allow_pickle=True\) only for data"):
            read()
    assert DocumentStorage(trapped.store, DocumentBytesFormat()).dataset()[0] == payload
    assert not sprung.exists()


def test_with_the_caller_s_word_it_does(trapped, sprung):
    DocumentStorage(trapped.store, DocumentPickleFormat(allow_pickle=True)).dataset()[0]
    assert sprung.exists()


def test_pickles_are_those_of_python_s_default_protocol():
    record = {"a": (1, 2.5), 3: {"b"}}
    payload = DocumentPickleFormat().pack(record)
    assert payload == pickle.dumps(record)
    assert payload[:2] == bytes([0x80, pickle.DEFAULT_PROTOCOL])
    assert returned(DocumentPickleFormat(allow_pickle=True), record) == record


@pytest.mark.parametrize("record", [lambda: None, threading.Lock(), [memoryview(b"")], (x for x in "ab")])
def test_what_cannot_be_pickled_is_refused(record):
    with pytest.raises(FieldError, match=r"field 'document': cannot be pickled \(.+\)"):
        DocumentPickleFormat().pack(record)
