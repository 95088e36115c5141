"""Every format of Headrace's own, and formats as users write them, keep what FormatContract asks."""

import json
from dataclasses import dataclass

import numpy as np
import torch

from headrace.errors import FieldError
from headrace.formats.annotated import SpanNumpyFormat
from headrace.formats.documents import (
    DocumentBytesFormat,
    DocumentJsonFormat,
    DocumentNumpyFormat,
    DocumentPickleFormat,
)
from headrace.formats.stream import StreamArrayFormat, StreamNumpyFormat
from headrace.testing import FormatContract

# Streams


class TestStreamNumpyFormat(FormatContract):
    def make_format(self):
        return StreamNumpyFormat([("tokens", "<u2"), ("vec", "<f4", (2,)), ("mask", "u1")])

    def records(self):
        return [
            {"tokens": [1, 65_535], "vec": [[0.5, 1], [2, 3]], "mask": [0, 255]},
            {"tokens": [], "vec": np.zeros((0, 2)), "mask": []},
            {"tokens": np.array([7], ">i8"), "vec": [[float("nan"), float("-inf")]], "mask": [True]},
            {"tokens": range(5), "vec": np.arange(20).reshape(5, 4)[:, ::2], "mask": [1] * 5},
        ]

    def refused(self):
        fine = {"tokens": [1], "vec": [[1, 2]], "mask": [1]}
        return [
            ({**fine, "tokens": [65_536]}, "value 65536 at position 0"),
            ({**fine, "tokens": [-1]}, "value -1 at position 0"),
            ({**fine, "mask": [2.9]}, "float64"),
            ({**fine, "mask": [1, 1]}, "columns must match"),
            ({**fine, "vec": [1, 2]}, "nothing is broadcast"),
            ({"tokens": [1], "mask": [1]}, "'vec': is missing"),
        ]


class TestStreamNumpyFormatOfOneField(FormatContract):
    def make_format(self):
        return StreamNumpyFormat([("tokens", ">i4")])

    def records(self):
        return [{"tokens": [-1, 2]}, {"tokens": []}, {"tokens": [2**31 - 1]}]

    def refused(self):
        return [({"tokens": [2**31]}, "value 2147483648")]


class TestStreamArrayFormat(FormatContract):
    def make_format(self):
        return StreamArrayFormat("<u2")

    def records(self):
        return [[1, 2, 3], np.arange(10, dtype=">u4")[::3], [], torch.tensor([65_535])]

    def refused(self):
        return [
            ([1, 70_000], "value 70000 at position 1"),
            ([[1], [2, 3]], "not rectangular"),
            ([0.5], "float64"),
            ([[1]], "one dimension"),
        ]


class WithoutRows:
    """A stream format as GuideLoom's documentation has them: no unpack_rows."""

    stream_dtype = np.dtype("<i8")

    def pack(self, data):
        return np.array(data, np.int64)

    def unpack(self, stream, shard_lengths, shards):
        return torch.from_numpy(stream)


class TestStreamFormatWithoutRows(FormatContract):
    def make_format(self):
        return WithoutRows()

    def records(self):
        return [[1, 2, 3], [-(2**63)], []]

    def refused(self):
        return [([[1]], "must have one dimension"), (5, "shape ()")]


# Documents


class TestDocumentBytesFormat(FormatContract):
    def make_format(self):
        return DocumentBytesFormat()

    def records(self):
        return [
            b"one",
            b"",
            bytearray(b"two"),
            memoryview(b"three")[1:],
            np.arange(3, dtype=">u4").data,
            b"\0" * 70_000,
        ]

    def refused(self):
        strided = memoryview(b"abcd")[::2]
        return [("text", "returned str"), (None, "NoneType"), (5, "int"), ([1], "list"), (strided, "not contiguous")]


class TestDocumentJsonFormat(FormatContract):
    def make_format(self):
        return DocumentJsonFormat()

    def records(self):
        return [
            {
                "text": "caf\u00e9 \U0001f600 \0",
                "labels": [1, -1, 2**64 - 1],
                "score": -0.0,
                "nested": {"": [None, True]},
            },
            [],
            {},
            None,
            "",
            1.5,
            [[1, 1.0, True], {"a": []}],
        ]

    def refused(self):
        return [
            ((1, 2), "would come back different"),
            ({"a": {1: 2}}, "would come back different"),
            ([float("nan")], "would come back different"),
            (b"bytes", "would come back different"),
            ("\ud800", "surrogates not allowed"),
            ([np.int64(3)], "numpy.int64"),
            (object(), "is not JSON"),
        ]


class TestDocumentNumpyFormat(FormatContract):
    def make_format(self):
        return DocumentNumpyFormat("<u2")

    def records(self):
        return [[1, 65_535], [], np.arange(9, dtype=">i8")[::2], torch.tensor([5]), range(3)]

    def refused(self):
        return [
            ([1, 65_536], "value 65536 at position 1"),
            ([-1], "value -1 at position 0"),
            ([1.0], "float64"),
            ([[1, 2]], "one dimension"),
            (5, "one dimension"),
            ("text", "cannot be stored"),
            (None, "cannot be stored"),
        ]


class TestDocumentNumpyFormatOfRecords(FormatContract):
    dtype = np.dtype([("id", "<u4"), ("flag", "?"), ("vec", "<f8", (2,))], align=True)

    def make_format(self):
        return DocumentNumpyFormat(self.dtype)

    def records(self):
        return [np.array([(1, True, [0.5, 2]), (2, False, [3, 4])], self.dtype), np.zeros(0, self.dtype)]

    def refused(self):
        return [([1, 2], "cannot be stored"), (np.zeros((1, 1), self.dtype), "one dimension")]


class TestDocumentPickleFormat(FormatContract):
    def make_format(self):
        return DocumentPickleFormat(allow_pickle=True)

    def records(self):
        return [{"a": (1, 2), 3: {4}}, b"", None, np.arange(5), [1.5, float("inf")]]

    def refused(self):
        return [(lambda: None, "cannot be pickled"), ([iter_of_nothing()], "cannot be pickled")]


def iter_of_nothing():
    yield


@dataclass
class Page:
    title: str
    lines: list


class PageFormat:
    """A document format written by hand: samples are objects of one's own."""

    def pack(self, data):
        if not isinstance(data, Page):
            raise FieldError("page", f"is a {type(data).__name__}")
        return bytearray(json.dumps([data.title, data.lines]).encode())

    def unpack(self, encoded_data, shard):
        return Page(*json.loads(bytes(encoded_data)))


class TestDocumentFormatWrittenByHand(FormatContract):
    def make_format(self):
        return PageFormat()

    def records(self):
        return [Page("one", ["a", "b"]), Page("", []), Page("three", ["c" * 9000])]

    def refused(self):
        return [("text", "'page': is a str")]


class Half:
    """A document format with a dtype whose samples are not arrays of it."""

    dtype = np.dtype("<i4")

    def pack(self, data):
        return np.array([value // 2 for value in data], np.int32).data

    def unpack(self, encoded_data, shard):
        return [2 * value for value in np.frombuffer(encoded_data, self.dtype).tolist()]


class TestDocumentFormatWithADtype(FormatContract):
    def make_format(self):
        return Half()

    def records(self):
        return [[2, 4], [], [-6]]


# Streams with metadata


def spans(tokens, span_lengths, payloads):
    return {"tokens": tokens, "span_lengths": span_lengths, "payloads": payloads}


class TestSpanNumpyFormat(FormatContract):
    def make_format(self):
        return SpanNumpyFormat("<u2")

    def records(self):
        return [
            spans([1, 2, 3], [2, 1], [b"same", b"same"]),
            spans([], [], []),
            spans(np.arange(4, dtype=">i8"), np.array([4], np.uint8), [bytearray()]),
            spans([65_535] * 3, [1, 1, 1], [b"", memoryview(b"wide")[1:], np.arange(2, dtype="<u4").data]),
        ]

    def refused(self):
        return [
            (spans([65_536], [1], [b""]), "value 65536"),
            (spans([1, 2], [1], [b""]), "add up to 1, but the stream has 2"),
            (spans([1, 2], [2, 1], [b"", b""]), "add up to 3, but the stream has 2"),
            (spans([1, 2], [2, 0], [b"", b""]), "span 1 has 0 elements"),
            (spans([1, 2], [3, -1], [b"", b""]), "span 1 has -1 elements"),
            (spans([1, 2], [1.0, 1.0], [b"", b""]), "list of integers"),
            (spans([1, 2], [1, 1], [b""]), "there are 1 for 2 spans"),
            (spans([1, 2], [1, 1], [b"", "text"]), "returned str"),
            ({"tokens": [1], "payloads": [b""]}, "'span_lengths': is missing"),
        ]


class TestSpanNumpyFormatWithJson(FormatContract):
    def make_format(self):
        return SpanNumpyFormat([("tokens", "<u4"), ("mask", "?")], DocumentJsonFormat())

    def records(self):
        return [
            {**spans([1, 2, 3], [1, 2], [{"doc": 1}, None]), "mask": [True, False, True]},
            {**spans([4], [1], [{"doc": 2, "text": "\u00e9"}]), "mask": [False]},
        ]

    def refused(self):
        return [
            ({**spans([1, 2], [1, 1], [{}, (1, 2)]), "mask": [True, True]}, "payload 1"),
            ({**spans([1, 2], [1, 1], [{}, {}]), "mask": [True]}, "columns must match"),
            (spans([1], [1], [{}]), "'mask': is missing"),
        ]


class TestSpanNumpyFormatWithArrays(FormatContract):
    def make_format(self):
        return SpanNumpyFormat("<u2", DocumentNumpyFormat("<i4"))

    def records(self):
        return [spans([1, 2], [1, 1], [[1, -1], []]), spans([3], [1], [np.arange(3)])]

    def refused(self):
        return [(spans([1, 2], [1, 1], [[1], [2**31]]), "value 2147483648 at position 0")]


class TestSpanNumpyFormatWithPickles(FormatContract):
    def make_format(self):
        return SpanNumpyFormat("<u2", DocumentPickleFormat(allow_pickle=True))

    def records(self):
        return [spans([1, 2], [1, 1], [(1, 2), {3}]), spans([3], [1], [None])]


class Chunks:
    """GuideLoom's protocol: a record is a list of (name, ids), a sample a list of (name, id) with one pair an element.

    Names are written into one buffer that is used again for each.
    """

    stream_dtype = np.dtype([("id", "<i4")])

    def size(self, data):
        return sum(len(ids) for _, ids in data)

    def pack(self, data):
        buffer = bytearray(100)
        for key, (name, ids) in enumerate(data):
            buffer[: len(name)] = name.encode()
            for place in range(len(ids)):
                yield key, memoryview(buffer)[: len(name)] if place == 0 else None
        stream = np.empty(self.size(data), self.stream_dtype)
        stream["id"] = [number for _, ids in data for number in ids]
        return stream

    def unpack(self, stream_data, document_shard, document_index, document_data):
        names = [bytes(name).decode() for name in document_data]
        assert document_index.dtype == np.int32
        assert len(document_shard) == len(names)
        return [(names[k], number) for k, number in zip(document_index, stream_data["id"].tolist(), strict=True)]


class TestAnnotatedFormatOfGuideLoomsProtocol(FormatContract):
    def make_format(self):
        return Chunks()

    def records(self):
        return [[("one", [1, 2]), ("two", [3])], [], [("three", [4, 5, 6]), ("", [7])], [("one", [8])]]

    def expected(self, record):
        return [(name, number) for name, ids in record for number in ids]

    def refused(self):
        return []


class Both(Chunks):
    """The same with a fast way of packing; samples are still made by unpack()."""

    def pack_spans(self, data):
        filled = [(name, ids) for name, ids in data if ids]
        stream = np.array([(number,) for _, ids in filled for number in ids], self.stream_dtype)
        return [len(ids) for _, ids in filled], [name.encode() for name, _ in filled], stream


class TestAnnotatedFormatWithBothWaysOfPacking(TestAnnotatedFormatOfGuideLoomsProtocol):
    def make_format(self):
        return Both()
