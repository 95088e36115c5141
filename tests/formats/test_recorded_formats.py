"""What a directory records of a format, and which format that gives back; a damaged record is refused."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ManifestError
from headrace.formats.annotated import SpanNumpyFormat, annotated_schema, span_format
from headrace.formats.documents import (
    DocumentBytesFormat,
    DocumentJsonFormat,
    DocumentNumpyFormat,
    DocumentPickleFormat,
    document_format,
    document_schema,
)

RECORD = [("id", "<u4"), ("vec", "<f2", (3,)), ("inner", [("a", "|u1"), ("b", "<i8")])]
SCHEMAS = {
    "bytes": (DocumentBytesFormat(), {"encoding": "bytes"}),
    "json": (DocumentJsonFormat(), {"encoding": "json"}),
    "pickle": (DocumentPickleFormat(), {"encoding": "pickle"}),
    "ids": (DocumentNumpyFormat("<u2"), "<u2"),
    "single bytes": (DocumentNumpyFormat("u1"), "|u1"),
    "times": (DocumentNumpyFormat("<M8[s]"), "<M8[s]"),
    "records": (
        DocumentNumpyFormat(RECORD),
        [["id", "<u4"], ["vec", "<f2", [3]], ["inner", [["a", "|u1"], ["b", "<i8"]]]],
    ),
}


def through_json(schema):
    return json.loads(json.dumps(schema))


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_ready_format_is_recorded_and_comes_back(name):
    storage_format, schema = SCHEMAS[name]
    assert document_schema(storage_format) == schema
    again = document_format(through_json(schema), "here")
    assert (type(again), repr(again)) == (type(storage_format), repr(storage_format))
    assert document_schema(again) == schema


@pytest.mark.parametrize("elements", ["<u2", RECORD])
@pytest.mark.parametrize("name", SCHEMAS)
def test_a_stream_with_metadata_records_its_elements_and_its_payloads(name, elements):
    payload, schema = SCHEMAS[name]
    storage_format = SpanNumpyFormat(elements, payload)
    recorded = annotated_schema(storage_format)
    assert recorded["payloads"] == schema
    assert recorded["elements"] == document_schema(DocumentNumpyFormat(elements))
    again = span_format(through_json(recorded), "here")
    assert repr(again) == repr(storage_format)
    assert annotated_schema(again) == recorded


def test_big_endian_types_are_recorded_as_they_are_on_disk():
    assert document_schema(DocumentNumpyFormat(">i4")) == "<i4"
    assert annotated_schema(SpanNumpyFormat([("t", ">u2")]))["elements"] == [["t", "<u2"]]


class Own:
    def pack(self, data):
        return data

    def unpack(self, encoded_data, shard):
        return bytes(encoded_data)


def test_a_format_of_ones_own_records_what_it_declares():
    own = Own()
    assert document_schema(own) is None
    assert type(document_format(None, "here")) is DocumentBytesFormat
    own.encoding = "msgpack"
    assert document_schema(own) == {"encoding": "msgpack"}
    assert type(document_format({"encoding": "msgpack"}, "here")) is DocumentBytesFormat
    own.dtype = np.dtype("<u4")  # says more than a name
    assert document_schema(own) == "<u4"


def test_a_payload_of_big_endian_elements_is_not_declared_since_nobody_would_swap_it():
    own = Own()
    for dtype in (">i4", [("a", "u1"), ("b", ">f8")]):
        own.dtype = np.dtype(dtype)
        with pytest.raises(ValueError, match=r"Own\.dtype is .*, but payloads of arrays are little endian; declare"):
            document_schema(own)
    own.dtype = np.dtype(">u1")  # has no order
    assert document_schema(own) == "|u1"


@pytest.mark.parametrize("dtype", ["O", "S0", [("a", "O")]])
def test_a_declared_type_that_cannot_be_stored_is_refused(dtype):
    own = Own()
    own.dtype = np.dtype(dtype)
    with pytest.raises(ValueError, match=r"Python objects|no bytes"):
        document_schema(own)


def test_an_annotated_format_without_a_payload_format_records_none():
    class Spans:
        stream_dtype = np.dtype(">u2")

        def pack_spans(self, data):
            return data

    spans = Spans()
    assert annotated_schema(spans) == {"elements": "<u2", "payloads": None}
    spans.payload = "something else"
    assert annotated_schema(spans) == {"elements": "<u2", "payloads": None}
    spans.payload = DocumentJsonFormat()
    assert annotated_schema(spans) == {"elements": "<u2", "payloads": {"encoding": "json"}}
    assert repr(span_format(annotated_schema(Spans()), "here")) == repr(SpanNumpyFormat("<u2"))


DAMAGED = [
    5,
    1.5,
    True,
    "",
    "nonsense",
    "<q9",
    "O",
    "|O",
    "V0",
    [],
    {},
    [["tokens"]],
    [["tokens", "O"]],
    [["tokens", "<u2", 2]],
    [["tokens", "<u2", [-1]]],
    [["tokens", "<u2", [1], 2]],
    [["tokens", "<u2"], ["tokens", "<u2"]],
    [[5, "<u2"]],
    ["ab"],
    {"ab": 1},
    {"encoding": 5},
    {"encoding": None},
    {"encoding": "json", "level": 1},
    {"Encoding": "json"},
    {"elements": "<u2", "payloads": None},
]


@pytest.mark.parametrize("schema", DAMAGED, ids=repr)
def test_a_damaged_record_of_documents_is_refused_with_the_place(schema):
    with pytest.raises(ManifestError, match=r"here/headrace\.json"):
        document_format(schema, "here/headrace.json")


@pytest.mark.parametrize(
    "schema",
    [
        None,
        "<u2",
        [],
        {},
        {"elements": "<u2"},
        {"payloads": None},
        {"elements": "<u2", "payloads": None, "kind": "spans"},
        {"elements": None, "payloads": None},
        {"elements": [["payloads", "<u2"]], "payloads": None},
        *[{"elements": damaged, "payloads": None} for damaged in DAMAGED],
        *[{"elements": "<u2", "payloads": damaged} for damaged in DAMAGED],
    ],
    ids=repr,
)
def test_a_damaged_record_of_a_stream_with_metadata_is_refused_with_the_place(schema):
    with pytest.raises(ManifestError, match=r"here/headrace\.json"):
        span_format(schema, "here/headrace.json")


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(["<u2", "<f4", "V4"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["encoding", "elements", "payloads", ""]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(JSON_VALUES)
def test_whatever_is_recorded_gives_a_format_or_a_manifest_error(schema):
    for read in (document_format, span_format):
        try:
            storage_format = read(schema, "here")
        except ManifestError:
            continue
        assert type(storage_format).__module__.startswith("headrace.formats")
