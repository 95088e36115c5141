"""Streams with metadata that GuideLoom 1.1.0 wrote: what went in, and what any window of them must be.

Everything here comes from expected.json, expected.npz and cuts of the payload files: nothing is read with Headrace.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from golden.recorded import GUIDELOOM, data_of, expected_of

DTYPES = {"stream_meta": np.dtype("<i4"), "stream_meta_struct": np.dtype([("tokens", "<u2"), ("loss_mask", "u1")])}


class Window(NamedTuple):
    """What GuideLoom gives to unpack()."""

    stream: np.ndarray
    shards: list[int]  # one an entry
    index: list[int]  # one an element
    payloads: list[bytes]  # one an entry

    @property
    def span_lengths(self):
        """Elements of each entry, (num_entries,) int64."""
        return np.bincount(np.array(self.index, np.int64), minlength=len(self.shards)).astype(np.int64)


class GuideLoomFormat:
    """GuideLoom's protocol: a key and a payload for each element; samples are all that unpack() is given."""

    def __init__(self, dtype):
        self.stream_dtype = np.dtype(dtype)

    def size(self, data):
        return len(data["stream"])

    def pack(self, data):
        for chunk, (length, payload) in enumerate(zip(data["spans"], data["payloads"], strict=True)):
            for element in range(length):
                yield (data["document_id"], chunk), None if element else payload
        return data["stream"]

    def unpack(self, stream_data, document_shard, document_index, document_data):
        return stream_data, document_shard, document_index, document_data


class SpansFormat:
    """The same records by pack_spans(); samples are all that unpack_spans() is given."""

    def __init__(self, dtype):
        self.stream_dtype = np.dtype(dtype)

    def pack_spans(self, data):
        return data["spans"], data["payloads"], data["stream"]

    def unpack_spans(self, stream, span_lengths, payloads):
        return stream, span_lengths, payloads


class Recorded:
    """One recorded dataset."""

    def __init__(self, name):
        self.name = name
        self.dtype = DTYPES[name]
        self.expected = expected_of(name)
        self.arrays = np.load(GUIDELOOM / name / "expected.npz")
        self.total = self.expected["total_length"]
        self.lengths = self.expected["shard_lengths"]
        self.begins = {sum(self.lengths[:shard]) for shard in range(len(self.lengths))}
        self.owners = [
            (int(shard), number) for shard, column in self.expected["stored_index_column"].items() for number in column
        ]
        self.payloads = {}
        for shard, offsets in self.expected["payload_offsets"].items():
            data = (data_of(name) / f"{int(shard):07d}.out_of_band.bin").read_bytes()
            for number, (begin, end) in enumerate(pairwise(offsets)):
                self.payloads[int(shard), number] = data[begin:end]
        places = [(read["global_index"], read["global_length"]) for read in self.expected["reads"]]
        self.stream = self.stream_of(places.index((0, self.total)))

    def stream_of(self, read):
        """The elements that GuideLoom returned for a read, in one array."""
        if self.dtype.names is None:
            return self.arrays[f"r{read:03d}.stream"]
        fields = [self.arrays[f"r{read:03d}.stream.{field}"] for field in self.dtype.names]
        stream = np.empty(len(fields[0]), self.dtype)
        for field, values in zip(self.dtype.names, fields, strict=True):
            stream[field] = values
        return stream

    def window(self, start, length):
        """Walked element by element: an entry more at the start, at each shard's first element, at each new number."""
        shards, index, payloads = [], [], []
        for step in range(length):
            place = (start + step) % self.total
            if step == 0 or place in self.begins or self.owners[place] != self.owners[place - 1]:
                shards.append(self.owners[place][0])
                payloads.append(self.payloads[self.owners[place]])
            index.append(len(shards) - 1)
        stream = self.stream[np.arange(start, start + length) % self.total]
        return Window(stream, shards, index, payloads)

    def records(self):
        """(shard, record) as they were appended."""
        place, used = 0, dict.fromkeys(range(len(self.lengths)), 0)
        for record in self.expected["records"]:
            shard, length = record["shard"], sum(record["spans"])
            numbers = range(used[shard], used[shard] + len(record["spans"]))
            used[shard] += len(numbers)
            payloads = [self.payloads[shard, number] for number in numbers]
            yield shard, {**record, "payloads": payloads, "stream": self.stream[place : place + length]}
            place += length

    def records_in_turn(self):
        """The same, one of each shard after another: the order within a shard is what counts."""
        waiting = {}
        for shard, record in self.records():
            waiting.setdefault(shard, []).append(record)
        while waiting := {shard: records for shard, records in waiting.items() if records}:
            for shard, records in waiting.items():
                yield shard, records.pop(0)
