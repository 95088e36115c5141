"""SpanNumpyFormat: columns by value, payloads of any document format, samples that are views."""

import numpy as np
import pytest

from headrace.datasets import StreamWithMetaStorage
from headrace.errors import FieldError, UnsafeDataError
from headrace.formats.annotated import SpanNumpyFormat, packed_spans
from headrace.formats.documents import (
    DocumentBytesFormat,
    DocumentJsonFormat,
    DocumentNumpyFormat,
    DocumentPickleFormat,
)
from headrace.store import MemoryStore

TOKENS = {"tokens": [1, 2, 3], "span_lengths": [1, 2], "payloads": [b"A", b"B"]}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"tokens": [1, 2, 65_536]}, "value 65536 at position 2 does not fit uint16"),
        ({"tokens": [1, -1, 3]}, "value -1 at position 1"),
        ({"tokens": [1.0, 2.0, 3.0]}, "float64"),
        ({"tokens": [[1], [2], [3]]}, "must have one dimension"),
        ({"tokens": [1]}, "add up to 3, but the stream has 1"),
        ({"payloads": [b"A", "B"]}, "returned str"),
        ({"payloads": []}, "there are 0 for 2 spans"),
        ({"span_lengths": [[1], [1, 1]]}, "'span_lengths': is not rectangular"),
        ({"span_lengths": 3}, "'span_lengths': must be a list of integers"),
    ],
)
def test_plain_elements_are_stored_by_value_or_refused(change, problem):
    """GuideLoom's ready format casts them."""
    with pytest.raises(FieldError, match=problem):
        packed_spans(SpanNumpyFormat("<u2"), {**TOKENS, **change})


@pytest.mark.parametrize("mask", [[1], [1, 1], [2.9, 1, 1], [256, 0, 0], [-1, 0, 0]])
def test_columns_are_never_cast_nor_spread(mask):
    """GuideLoom's ready format does both: ids 65536 become 0, and one flag stands for all tokens."""
    storage_format = SpanNumpyFormat([("tokens", "<u2"), ("mask", "u1")])
    with pytest.raises(FieldError, match="field 'mask'"):
        packed_spans(storage_format, {**TOKENS, "mask": mask})
    fine = packed_spans(storage_format, {**TOKENS, "mask": [0, 255, True], "other": "ignored"})
    assert fine.stream.tolist() == [(1, 0), (2, 255), (3, 1)]


@pytest.mark.parametrize("missing", ["tokens", "span_lengths", "payloads", "mask"])
def test_a_missing_entry_is_named_with_those_that_are_there(missing):
    record = {**TOKENS, "mask": [0, 0, 0]}
    del record[missing]
    with pytest.raises(FieldError, match=f"field '{missing}': is missing; the record has '"):
        packed_spans(SpanNumpyFormat([("tokens", "<u2"), ("mask", "u1")]), record)
    with pytest.raises(FieldError, match="no fields"):
        packed_spans(SpanNumpyFormat("<u2"), {})


def test_a_payload_that_its_format_refuses_is_named_by_number():
    for payload, bad, problem in [
        (DocumentJsonFormat(), (1, 2), "would come back different"),
        (DocumentNumpyFormat("u1"), [256], "value 256 at position 0"),
        (DocumentPickleFormat(), lambda: None, "cannot be pickled"),
    ]:
        storage = StreamWithMetaStorage(MemoryStore(), SpanNumpyFormat("<u2", payload))
        with storage.sync_writer() as writer, pytest.raises(FieldError) as caught:
            writer.append(4, {**TOKENS, "payloads": [[1], bad]})
        assert "the record after 0 elements of shard 4, payload 1, field 'payloads'" in str(caught.value)
        assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("payload", "given_", "decoded"),
    [
        (None, [bytearray(b"A"), b""], [b"A", b""]),
        (DocumentBytesFormat(), [b"A", memoryview(b"B")], [b"A", b"B"]),
        (DocumentJsonFormat(), [{"id": 1}, None], [{"id": 1}, None]),
        (DocumentNumpyFormat(">i4"), [[-1, 2**31 - 1], []], [[-1, 2**31 - 1], []]),
        (DocumentPickleFormat(allow_pickle=True), [(1,), {2}], [(1,), {2}]),
    ],
)
def test_payloads_are_documents_of_any_format(payload, given_, decoded):
    storage_format = SpanNumpyFormat("<u2", payload)
    spans = packed_spans(storage_format, {**TOKENS, "payloads": given_})
    sample = storage_format.unpack_spans(
        spans.stream, spans.lengths, [memoryview(bytearray(p)) for p in spans.payloads]
    )
    assert list(sample) == ["tokens", "span_lengths", "payloads"]
    assert sample["tokens"].tolist() == [1, 2, 3]
    assert sample["span_lengths"].tolist() == [1, 2]
    assert [p.tolist() if isinstance(p, np.ndarray) else p for p in sample["payloads"]] == decoded


def test_a_pickled_payload_is_not_read_without_the_caller_s_word():
    with pytest.raises(UnsafeDataError):
        SpanNumpyFormat("<u2", DocumentPickleFormat()).unpack_spans(
            np.array([1], "<u2"), np.array([1]), [memoryview(b"N.")]
        )


def test_samples_are_views_of_the_window():
    window = np.zeros(4, [("tokens", "<u2"), ("mask", "u1")])
    lengths = np.array([4])
    sample = SpanNumpyFormat(window.dtype).unpack_spans(window, lengths, [memoryview(b"")])
    sample["mask"][2] = 9
    assert window["mask"].tolist() == [0, 0, 9, 0]
    assert list(sample) == ["tokens", "mask", "span_lengths", "payloads"]
    assert SpanNumpyFormat("<u2").unpack_spans(np.array([1, 2], "<u2"), lengths, [])["tokens"].tolist() == [1, 2]


def test_what_cannot_be_a_format_is_refused_at_construction():
    for dtype in ("O", [("tokens", "<u2"), ("name", "O")]):
        with pytest.raises(ValueError, match="Python objects"):
            SpanNumpyFormat(dtype)
    with pytest.raises(ValueError, match="no bytes"):
        SpanNumpyFormat("S0")
    for name in ("span_lengths", "payloads"):
        with pytest.raises(ValueError, match=f"field '{name}' has the name of what samples have beside it"):
            SpanNumpyFormat([("tokens", "<u2"), (name, "<u2")])
    for payload in ("<i4", object(), DocumentJsonFormat):
        with pytest.raises(TypeError, match="payload must be a format of documents"):
            SpanNumpyFormat("<u2", payload)


@pytest.mark.parametrize(
    "text",
    [
        "SpanNumpyFormat('<u2', payload=DocumentBytesFormat())",
        "SpanNumpyFormat([('tokens', '<u2'), ('mask', '|u1')], payload=DocumentNumpyFormat('<i4'))",
    ],
)
def test_a_format_shows_how_it_was_made(text):
    assert repr(eval(text)) == text
