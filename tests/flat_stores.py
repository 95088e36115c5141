"""Stores without folders and renames, as object stores are, for tests that want no server."""

import os

from headrace.datasets import DocumentStorage, StreamStorage, StreamWithMetaStorage
from headrace.formats.annotated import SpanNumpyFormat
from headrace.formats.documents import DocumentBytesFormat
from headrace.formats.stream import StreamArrayFormat
from headrace.store import LocalStore, Store

U2 = StreamArrayFormat("<u2")


class FlatFolder(LocalStore):
    """An object store whose objects lie in a directory, so that processes share them and they outlive processes."""

    def __init__(self, root, **options):
        super().__init__(root, fsync=False, **options)
        self.capabilities = self.capabilities._replace(view=False, rename=False, durable=False, remote=True)

    def __reduce__(self):
        return FlatFolder, (self.root,)

    def view(self, path):
        """Refused."""
        return Store.view(self, path)

    def open_writer(self, path, *, append=False):
        """Refused."""
        return Store.open_writer(self, path, append=append)

    def rename(self, source, target):
        """Refused."""
        Store.rename(self, source, target)

    def make_folder(self, folder):
        """Refused."""
        Store.make_folder(self, folder)

    def remove_folder(self, folder):
        """Refused."""
        Store.remove_folder(self, folder)

    def remove_orphans(self, folder="", *, of=""):
        """There are none."""

    def folders(self, folder=""):
        """Those in which something lies."""
        names = super().folders(folder)
        return [name for name in names if self.list(f"{folder}/{name}" if folder else name)]


class Stream:
    """A stream of numbers."""

    def __init__(self, place):
        self.storage = StreamStorage(place, U2)

    def append(self, writer, shard, numbers):
        """Numbers as one record."""
        writer.append(shard, numbers)

    def contents(self):
        """All numbers."""
        with self.storage.sync_reader() as reader:
            return reader.read(0, reader.total_length).tolist()


class Documents(Stream):
    """A document a number."""

    def __init__(self, place):
        self.storage = DocumentStorage(place, DocumentBytesFormat())

    def append(self, writer, shard, numbers):
        """Each number as the text of it."""
        for number in numbers:
            writer.append(shard, b"%05d" % number)

    def contents(self):
        """All numbers."""
        with self.storage.sync_reader() as reader:
            return [int(found) for found in reader.read_many(range(reader.total_length))]


class Annotated(Stream):
    """A stream with a span a number, whose payload repeats it."""

    def __init__(self, place):
        self.storage = StreamWithMetaStorage(place, SpanNumpyFormat([("tokens", "<u2")], DocumentBytesFormat()))

    def append(self, writer, shard, numbers):
        """Each number as a span of one element."""
        payloads = [b"%05d" % number for number in numbers]
        writer.append(shard, {"tokens": numbers, "span_lengths": [1] * len(payloads), "payloads": payloads})

    def contents(self):
        """All numbers; elements and payloads agree."""
        with self.storage.sync_reader() as reader:
            found = reader.read(0, reader.total_length)
        numbers = found["tokens"].tolist()
        assert [int(bytes(one)) for one in found["payloads"]] == numbers
        return numbers


KINDS = {"stream": Stream, "documents": Documents, "annotated": Annotated}


def write(kind, shards, *, publish=False, **options):
    """Each shard's numbers in two records."""
    with kind.storage.sync_writer(**options) as writer:
        for shard, numbers in enumerate(shards):
            writer.start(shard)
            half = len(numbers) // 2
            for part in (numbers[:half], numbers[half:]):
                if len(part):
                    kind.append(writer, shard, part)
    return kind.storage.publish() if publish else None


def objects_in(store):
    """Path -> bytes of everything there."""
    return {info.path: store.get(info.path) for info in store.list()}


def leftovers(store):
    """What no finished run may leave in the store."""
    return [info.path for info in store.list() if info.path.startswith((".headrace/leases/", ".headrace/attempts/"))]


def spools(folder):
    """What lies in a directory for temporary files."""
    return sorted(name for name in os.listdir(folder) if name.startswith("headrace-"))
