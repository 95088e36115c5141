"""Streams with metadata that both libraries write and read: the same records, without either library."""

import json

import numpy as np

MANY = [("tokens", "<u2"), ("document", "<u4"), ("weight", "<f4"), ("position", "<i8"), ("vector", "<f2", (3,))]
SPANS = (
    (0, [2, 1]),
    (0, [5]),
    (0, []),  # a record of size 0 among others leaves nothing
    (3, [300, 1, 99]),
    (0, [3, 3, 1]),
    (1, []),  # all of shard 1: its stream file, and no payload files
    (2, [1]),
    (2, [1]),
    (2, [2, 2, 2, 1]),
    (4, []),  # the last shard is empty, too, on the way round
    (4, []),
)
CASES = {  # element type, payloads, (shard, span lengths) of each record
    "bytes": ([("tokens", "<u2")], "bytes", SPANS),
    "integers": ("<i4", "integers", SPANS),
    "json": ([("tokens", "<u4"), ("loss_mask", "u1")], "json", SPANS),
    "many_columns": (MANY, "bytes", SPANS),
    "one_span": ("<u2", "bytes", ((0, [5]),)),  # the way round leads from a payload to itself
    "begins_empty": ([("tokens", "<u2")], "bytes", ((0, []), (1, [2, 2]), (2, []), (3, [1, 4]))),
    "nothing": ([("tokens", "<u2")], "bytes", ((0, []), (1, []))),
}
WINDOWS = (1, 4, 7)


def payload_value(kind, number):
    """The payload of span number, as Headrace's format of this kind takes it. Neighbours are alike; some are empty."""
    pair = number // 2
    size = (pair + 1) % 4
    match kind:
        case "bytes":
            return bytes([65 + pair]) * size
        case "json":
            return {"pair": pair, "of": "\u2603" * size} if size else None
    return np.arange(size, dtype="<i4") - pair


def payload_bytes(kind, number):
    """The same as bytes."""
    payload = payload_value(kind, number)
    match kind:
        case "bytes":
            return payload
        case "json":
            return json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode()
    return payload.tobytes()


def records(name):
    """(shard, record) in the order of writing; a record has stream, span_lengths, payloads and payload_values."""
    dtype, kind, spans = CASES[name]
    element, number = 0, 0
    for shard, lengths in spans:
        numbers = range(number, number + len(lengths))
        yield (
            shard,
            {
                "stream": _elements(np.dtype(dtype), element, sum(lengths)),
                "span_lengths": lengths,
                "payloads": [payload_bytes(kind, one) for one in numbers],
                "payload_values": [payload_value(kind, one) for one in numbers],
            },
        )
        element += sum(lengths)
        number += len(lengths)


def _elements(dtype, first, length):
    stream = np.zeros(length, dtype)
    for place, field in enumerate(dtype.names or [...]):
        column = stream[field]
        size = int(np.prod(column.shape[1:], dtype=int))
        values = (np.arange(first, first + length)[:, None] * 31 + np.arange(size) * 7 + place) % 251
        column[...] = values.reshape(column.shape)
    return stream


def columns(record):
    """The record as SpanNumpyFormat takes it."""
    stream = record["stream"]
    named = {"tokens": stream} if stream.dtype.names is None else {name: stream[name] for name in stream.dtype.names}
    return {**named, "span_lengths": record["span_lengths"], "payloads": record["payload_values"]}


class AnnotatedFormat:
    """GuideLoom's protocol, for either library; samples are plain, all that unpack() is given."""

    def __init__(self, name):
        self.stream_dtype = np.dtype(CASES[name][0])

    def size(self, data):
        return len(data["stream"])

    def pack(self, data):
        for key, (length, payload) in enumerate(zip(data["span_lengths"], data["payloads"], strict=True)):
            for element in range(length):
                yield f"span {key}", None if element else payload
        return data["stream"]

    def unpack(self, stream_data, document_shard, document_index, document_data):
        return {
            "types": [stream_data.dtype.str, document_shard.dtype.str, document_index.dtype.str],
            "stream": stream_data.tobytes().hex(),
            "shards": document_shard.tolist(),
            "index": document_index.tolist(),
            "payloads": [bytes(payload).hex() for payload in document_data],
        }


def reads(total):
    """(start, length): nothing, inside, over borders, to the end, round, and round several times."""
    if total == 0:
        return []
    lengths = sorted({0, 1, 2, 9, total, total + 1, 3 * total + 4})
    return [
        (start, length) for start in sorted({0, 2, 5, total // 2, total - 1}) if start < total for length in lengths
    ]


def seen_by(reader, datasets):
    """What an opened reader and opened datasets of WINDOWS give, of either library."""
    return {
        "lengths": [reader.length(shard) for shard in range(reader.num_shards)],
        "reads": [reader.read(*place) for place in reads(reader.total_length)],
        "windows": [[dataset[number] for number in range(len(dataset))] for dataset in datasets],
    }
