"""Datasets of documents and of spans, stores that watch, and what plain Python says of the same data.

At module level, so that other processes can unpickle what is here.
"""

import multiprocessing

import numpy as np

from headrace.datasets import DocumentStorage, StreamWithMetaStorage
from headrace.formats.annotated import SpanNumpyFormat
from headrace.store import LocalStore, MemoryStore
from headrace.testing import FaultStore


class RangesOnly(MemoryStore):
    """A store without views, as object stores are; it remembers which ranges were asked for."""

    def __init__(self):
        super().__init__()
        self.capabilities = self.capabilities._replace(view=False)
        self.requests = []

    def view(self, path):
        raise AssertionError("this store has no views")

    def get_ranges(self, path, starts, lengths):
        self.requests.append((path, list(zip(starts.tolist(), lengths.tolist(), strict=True))))
        return super().get_ranges(path, starts, lengths)


class FewViews(MemoryStore):
    """A store of which a reader may keep only two views."""

    max_views = 2


STORES = {
    "maps": MemoryStore,
    "ranges": RangesOnly,
    "two views": FewViews,
    "faults": lambda: FaultStore(MemoryStore()),
}


def unsynced(place):
    """Not durable in a power cut, which no test here has."""
    return LocalStore(place, fsync=False)


def write(storage, shards, *, publish=False):
    """One list of records a shard."""
    with storage.sync_writer() as writer:
        for shard, records in enumerate(shards):
            writer.start(shard)
            for record in records:
                writer.append(shard, record)
    if publish:
        storage.publish()
    return storage


def documents_at(place, shards, storage_format, **options):
    return write(DocumentStorage(place, storage_format), shards, **options)


def spans_at(place, shards, storage_format, **options):
    return write(StreamWithMetaStorage(place, storage_format), shards, **options)


class Marked:
    """A format of one's own that keeps the very memory it is given, with the shard."""

    def pack(self, data):
        return data

    def unpack(self, encoded_data, shard):
        return encoded_data, shard


class Picky(Marked):
    """Cannot decode documents that begin with a "!"."""

    def unpack(self, encoded_data, shard):
        if bytes(encoded_data[:1]) == b"!":
            raise RuntimeError("cannot decode this one")
        return bytes(encoded_data)


class Generating:
    """Spans by GuideLoom's protocol; samples are (elements, shard of each entry, entry of each element, payloads)."""

    def __init__(self, dtype="<u2"):
        self.stream_dtype = np.dtype(dtype)

    def size(self, data):
        return sum(data["span_lengths"])

    def pack(self, data):
        for key, (length, payload) in enumerate(zip(data["span_lengths"], data["payloads"], strict=True)):
            for place in range(length):
                yield key, payload if place == 0 else None
        return np.asarray(data["tokens"], self.stream_dtype)

    def unpack(self, stream_data, document_shard, document_index, document_data):
        return stream_data, document_shard, document_index, document_data


def shard_spans(lengths_and_payloads, first=0):
    """A record: tokens count on from first."""
    lengths = [length for length, _ in lengths_and_payloads]
    return {
        "tokens": np.arange(first, first + sum(lengths)) % 65_536,
        "span_lengths": lengths,
        "payloads": [payload for _, payload in lengths_and_payloads],
    }


def counted_spans(shards):
    """Records (lists of (length, payload)) whose tokens count on from 0 over all shards."""
    count, made = 0, []
    for records in shards:
        made.append([])
        for record in records:
            made[-1].append(shard_spans(record, count))
            count += sum(length for length, _ in record)
    return made


class SlowSpans:
    """What windows of these shards are, one element at a time. Tokens are those of counted_spans()."""

    def __init__(self, shards):
        self.elements = []  # (shard, number of the payload in it, payload)
        for shard, records in enumerate(shards):
            spans = [span for record in records for span in record]
            for number, (length, payload) in enumerate(spans):
                self.elements += [(shard, number, payload)] * length

    def window(self, start, length):
        """(tokens, shard of each entry, entry of each element, payload of each entry); wraps around at the end."""
        tokens, shards, entries, payloads = [], [], [], []
        before = None
        for place in range(start, start + length):
            at = place % len(self.elements)
            shard, number, payload = self.elements[at]
            if before is None or before != (shard, number) or at == 0:
                shards.append(shard)
                payloads.append(payload)
            before = shard, number
            tokens.append(at % 65_536)
            entries.append(len(payloads) - 1)
        return tokens, shards, entries, payloads

    def sample(self, start, length):
        """The same as SpanNumpyFormat gives it."""
        tokens, _, entries, payloads = self.window(start, length)
        return {
            "tokens": tokens,
            "span_lengths": [entries.count(k) for k in range(len(payloads))],
            "payloads": payloads,
        }


def plain(sample):
    """A sample of Generating or of SpanNumpyFormat with lists and bytes only."""
    if isinstance(sample, dict):
        return {
            name: [bytes(payload) for payload in value] if name == "payloads" else value.tolist()
            for name, value in sample.items()
        }
    tokens, shards, entries, payloads = sample
    return tokens.tolist(), shards.tolist(), entries.tolist(), [bytes(payload) for payload in payloads]


BYTES_AND_TOKENS = SpanNumpyFormat("<u2")


def in_another_process(method, dataset, items):
    """What dataset.__getitems__(items) gives in a process started so, as a list."""
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(theirs, dataset, items))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    finally:
        process.join()


def _answer(connection, dataset, items):
    connection.send(list(dataset.__getitems__(items)))
    connection.close()
