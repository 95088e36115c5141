"""What is killed: methods of a kind of dataset, run in processes that the preloaded library counts.

stream, documents and annotated have the same methods, each of which is given a directory. `old` is the version that
lies there before, three shards, and `new` the one that takes its place, two.
"""

import os

import numpy as np

from headrace.datasets import DocumentStorage, StreamStorage, StreamWithMetaStorage, attempts
from headrace.datasets.samples.merge import merge_index
from headrace.formats.annotated import SpanNumpyFormat
from headrace.formats.documents import DocumentBytesFormat
from headrace.formats.stream import StreamNumpyFormat
from headrace.preparation import prepare


class Kind:
    """A kind of dataset: storage_at(folder), append(writer, shard, data), files_of(data), contents(storage)."""

    buffer_bytes = attempts.BUFFER_BYTES

    def whole(self, shards):
        """What contents() gives of these shards."""
        return [item for shard in shards for item in shard]

    def write_shards(self, folder, shards, **options):
        attempts.BUFFER_BYTES = self.buffer_bytes
        with self.storage_at(folder).sync_writer(**options) as writer:
            for shard, data in enumerate(shards):
                writer.start(shard)
                self.append(writer, shard, data)

    def write(self, folder):
        """A plain writer of two shards."""
        self.write_shards(folder, self.new)

    def write_and_publish(self, folder):
        """The same, published, as a script does it that may be run again."""
        if not self.storage_at(folder).is_published():
            self.write_shards(folder, self.new)
        self.storage_at(folder).publish()

    def overwrite(self, folder):
        """The same in place of whatever is there."""
        self.write_shards(folder, self.new, overwrite=True)
        self.storage_at(folder).publish()

    def publish(self, folder):
        """Publication alone."""
        self.storage_at(folder).publish(metadata={"made": "here"})

    def write_old(self, folder):
        """The older version, published."""
        self.write_shards(folder, self.old)
        self.storage_at(folder).publish()

    def write_old_foreign(self, folder):
        """The older version as GuideLoom leaves it: files alone."""
        os.mkdir(folder)
        for shard, data in enumerate(self.old):
            for suffix, raw in self.files_of(data).items():
                with open(f"{folder}/{shard:07d}.{suffix}", "wb") as file:
                    file.write(raw)

    def write_old_unpublished(self, folder):
        """The older version with receipts only, and of two shards."""
        self.write_shards(folder, self.old[:2])

    def prepare_in_two_processes(self, folder):
        """prepare() with two spawned workers."""
        prepare([0, 1], self.records, self.storage_at(folder), workers=2, progress=False)

    def prepare_over_in_two_processes(self, folder):
        """The same in place of whatever is there."""
        prepare([0, 1], self.records, self.storage_at(folder), workers=2, progress=False, overwrite=True)

    def prepare_in_one_process(self, folder):
        """The same in this process: what a second run may well do."""
        prepare([0, 1], self.records, self.storage_at(folder), workers=1, progress=False)

    def prepare_over_in_one_process(self, folder):
        """The same, in this process."""
        prepare([0, 1], self.records, self.storage_at(folder), workers=1, progress=False, overwrite=True)


class Stream(Kind):
    """Tokens."""

    old = (list(range(1000, 1010)), list(range(1010, 1021)), list(range(1021, 1030)))
    new = (list(range(0, 14)), list(range(14, 30)))

    def storage_at(self, folder):
        return StreamStorage(folder, StreamNumpyFormat(np.dtype([("tokens", "<u2")])))

    def append(self, writer, shard, data):
        for record in halves(data):
            writer.append(shard, record)

    def files_of(self, data):
        return {"in_band.bin": np.array(data, "<u2").tobytes()}

    def contents(self, storage):
        with storage.sync_reader() as reader:
            return reader.read(0, reader.total_length)["tokens"].tolist()

    def records(self, shard):
        """What prepare() puts into a shard."""
        yield from halves(self.new[shard])


def halves(tokens):
    middle = len(tokens) // 2
    yield {"tokens": tokens[:middle]}
    yield {"tokens": tokens[middle:]}


class Documents(Kind):
    """Documents, of which the shards have two files each; small buffers let data and index grow by turns."""

    old = ([b"old 0", b"", b"old, the second"], [b"old 3" * 20], [b"old 4", b"old 5"])
    new = ([b"new 0", b"", b"n" * 70, b"new 3"], [b"new 4, longer than any buffer" * 3, b"new 5", b""])
    buffer_bytes = 40

    def storage_at(self, folder):
        return DocumentStorage(folder, DocumentBytesFormat())

    def append(self, writer, shard, data):
        for document in data:
            writer.append(shard, document)

    def files_of(self, data):
        index = np.cumsum([0, *map(len, data)])
        return {"out_of_band.bin": b"".join(data), "out_of_band.index": index.astype("<i8").tobytes()}

    def contents(self, storage):
        dataset = storage.dataset()
        whole = dataset[:]
        assert dataset.lengths.tolist() == list(map(len, whole))
        assert [dataset[place] for place in range(len(dataset))] == whole
        return whole

    def records(self, shard):
        """What prepare() puts into a shard."""
        yield from self.new[shard]


class Annotated(Kind):
    """Spans (tokens, payload), of which a shard has three files, or one while it is empty.

    Replacing the old version by the new one gives shard 0 files that it had not, and takes two from shard 1.
    """

    old = ([], [([1000, 1001], b"old 0"), ([1002] * 5, b"old 1" * 9)], [([1007], b"old 2")])
    new = ([([1, 2, 3], b"new 0"), ([4], b""), ([5] * 9, b"new 2" * 11), ([14, 15], b"new 3")], [])
    buffer_bytes = 40

    def storage_at(self, folder):
        return StreamWithMetaStorage(folder, SpanNumpyFormat("<u2"))

    def append(self, writer, shard, data):
        for record in self._records(data):
            writer.append(shard, record)

    def _records(self, data):
        for spans in filter(None, [data[:2], data[2:3], data[3:]]):
            yield {
                "tokens": [token for tokens, _ in spans for token in tokens],
                "span_lengths": [len(tokens) for tokens, _ in spans],
                "payloads": [payload for _, payload in spans],
            }

    def files_of(self, data):
        elements = [(number, token) for number, (tokens, _) in enumerate(data) for token in tokens]
        in_band = np.array(elements, [("index", "<i4"), ("user", "<u2")]).tobytes()
        return {"in_band.bin": in_band, **(documents.files_of([payload for _, payload in data]) if data else {})}

    def contents(self, storage):
        with storage.sync_reader() as reader:
            sample = reader.read(0, reader.total_length)
        ends = np.cumsum(sample["span_lengths"])[:-1]
        return [
            (tokens.tolist(), bytes(payload))
            for tokens, payload in zip(np.split(sample["tokens"], ends), sample["payloads"], strict=True)
        ]

    def records(self, shard):
        """What prepare() puts into a shard."""
        yield from self._records(self.new[shard])


stream, documents, annotated = Stream(), Documents(), Annotated()


def merge(folder):
    """The index of all parts in the directory."""
    merge_index(folder)
