"""Small datasets, and looks at their directories."""

import os
import shutil
from pathlib import Path

import numpy as np

from headrace.datasets import DocumentStorage, StreamDataset, StreamStorage, StreamWithMetaStorage
from headrace.formats.annotated import SpanNumpyFormat
from headrace.formats.documents import DocumentBytesFormat
from headrace.formats.stream import StreamArrayFormat, StreamNumpyFormat
from headrace.store import LocalStore

U2 = StreamArrayFormat("<u2")


def storage_at(place, **options):
    return StreamStorage(place, U2, **options)


def fast_storage_at(place):
    """Not durable in a power cut, which no test here has."""
    return StreamStorage(LocalStore(place, fsync=False), U2)


def write(storage, shards, *, publish=False, **options):
    """Each shard in two records."""
    with storage.sync_writer(**options) as writer:
        for shard, tokens in enumerate(shards):
            tokens = np.asarray(tokens, np.uint16)
            writer.start(shard)
            writer.append(shard, tokens[: len(tokens) // 2])
            writer.append(shard, tokens[len(tokens) // 2 :])
    if publish:
        storage.publish()
    return storage


def ranges(*lengths, start=0):
    """Consecutive numbers, cut into shards."""
    shards = []
    for length in lengths:
        shards.append(np.arange(start, start + length, dtype=np.uint16))
        start += length
    return shards


def tokens_of(storage):
    with storage.sync_reader() as reader:
        return reader.read(0, reader.total_length).tolist() if reader.total_length else []


def files_of(folder):
    """Relative path -> bytes, of everything below."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def leftovers(folder):
    """Files in flight, attempts and leases."""
    return [
        name
        for name in (str(path.relative_to(folder)) for path in Path(folder).rglob("*"))
        if name.endswith((".tmp", ".lease")) or name.startswith(".headrace/attempts/")
    ]


def open_files_below(folder):
    """How many descriptors of this process are files below the folder."""
    count = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{number}").startswith(f"{folder}/")
        except OSError:
            continue
    return count


class Padded(StreamNumpyFormat):
    """A custom format that keeps the pieces of a window; what it inherits for whole batches must not be used."""

    def __init__(self):
        super().__init__(np.dtype([("a", "u1"), ("b", "<i4")], align=True))

    def unpack(self, stream, shard_lengths, shards):
        return stream["b"].tolist(), shard_lengths.tolist(), shards.tolist()


def payload_of(number):
    """Bytes unlike those of any other number, and of another length."""
    return b"%d " % number * (200 + number)


class PayloadKind:
    """What documents and spans have in common: item n of a dataset is made of payload_of(n), n from 0 on.

    kind and files are as on disk; a shard counts item_length a payload.
    """

    def write(self, place, shards, *, publish=False, **options):
        """One list of numbers a shard."""
        storage = self.storage_at(place)
        with storage.sync_writer(**options) as writer:
            for shard, numbers in enumerate(shards):
                writer.start(shard)
                for number in numbers:
                    writer.append(shard, self.record(number))
        if publish:
            storage.publish()
        return storage

    def items_of(self, storage):
        """All items, as plain Python, read as one batch."""
        dataset = self.dataset(storage)
        return [self.plain(sample) for sample in dataset[:]]


class Documents(PayloadKind):
    """Document n is payload_of(n)."""

    kind = "documents"
    files = ("out_of_band.bin", "out_of_band.index")
    item_length = 1

    def __repr__(self):
        return "documents"

    def storage_at(self, place, read_interface=None):
        place = LocalStore(place, fsync=False) if isinstance(place, Path) else place
        return DocumentStorage(place, DocumentBytesFormat(), read_interface)

    def record(self, number):
        return payload_of(number)

    def dataset(self, storage):
        return storage.dataset()

    def item(self, number):
        return payload_of(number)

    def plain(self, sample):
        return sample


class Spans(PayloadKind):
    """Span n is 100 tokens that point at payload_of(n), and the n-th window of 100."""

    kind = "annotated"
    files = ("in_band.bin", "out_of_band.bin", "out_of_band.index")
    item_length = 100

    def __repr__(self):
        return "spans"

    def storage_at(self, place, read_interface=None):
        place = LocalStore(place, fsync=False) if isinstance(place, Path) else place
        return StreamWithMetaStorage(place, SpanNumpyFormat("<u2"), read_interface)

    def record(self, number):
        tokens = np.arange(100 * number, 100 * number + 100)
        return {"tokens": tokens, "span_lengths": [100], "payloads": [payload_of(number)]}

    def dataset(self, storage):
        return StreamDataset(storage, 100)

    def item(self, number):
        return list(range(100 * number, 100 * number + 100)), [100], [payload_of(number)]

    def plain(self, sample):
        payloads = [bytes(payload) for payload in sample["payloads"]]
        return sample["tokens"].tolist(), sample["span_lengths"].tolist(), payloads


DOCUMENTS, SPANS = Documents(), Spans()


def without_records(folder):
    """Leave the data files alone, as another program would have written them."""
    (folder / "headrace.json").unlink(missing_ok=True)
    shutil.rmtree(folder / ".headrace")


class InterruptedBytes(DocumentBytesFormat):
    """Packing is interrupted where the record says so."""

    def pack(self, data):
        if data is KeyboardInterrupt:
            raise KeyboardInterrupt
        return super().pack(data)


class InterruptedSpans(SpanNumpyFormat):
    """The same of spans."""

    def pack_spans(self, data):
        if data is KeyboardInterrupt:
            raise KeyboardInterrupt
        return super().pack_spans(data)


class Breaking:
    """Spans by generator, which breaks off after two payloads."""

    stream_dtype = np.dtype("<u2")

    def size(self, data):
        return 4

    def pack(self, data):
        yield 0, b"p0"
        yield 0, None
        yield 1, b"p1"
        if data == "raise":
            raise RuntimeError("the tokenizer broke")
        if data == "few":
            return np.arange(4)
        yield 1 if data != "back" else 0, None
        return np.arange(3 if data == "short" else 4)

    def unpack(self, stream_data, document_shard, document_index, document_data):
        return stream_data.tolist(), [bytes(data) for data in document_data]
