"""Small datasets of samples in every shard format, and their files."""

import json
from pathlib import Path

from headrace.datasets.samples.dataset import SampleDataset
from headrace.datasets.samples.writer import CSVWriter, JSONWriter, MDSWriter, TSVWriter, XSVWriter
from headrace.store import LocalStore, MemoryStore

COLUMNS = {"id": "int", "text": "str"}
WRITERS = {"mds": MDSWriter, "json": JSONWriter, "csv": CSVWriter, "tsv": TSVWriter, "xsv": XSVWriter}
CODECS = ("br", "bz2", "gz", "snappy", "zstd")
PLACES = {"mapped": LocalStore, "not mapped": lambda folder: LocalStore(folder, mapped=False)}


def sample_of(number):
    """Samples of different sizes, about 1,000 bytes each."""
    return {"id": number, "text": f"{number:03d} " * (240 + number % 7)}


def write(place, shards=(10, 10, 10, 10, 10), shard_format="mds", *, sample=sample_of, columns=COLUMNS, **options):
    """Consecutive samples, in shards of these many; a store or a folder."""
    store = LocalStore(place, fsync=False) if isinstance(place, Path) else place
    if shard_format == "xsv":
        options = {"separator": ";;", **options}
    begin = 0
    with WRITERS[shard_format](columns=columns, out=store, **options) as writer:
        for length in shards:
            for number in range(begin, begin + length):
                writer.write(sample(number))
            writer.flush_shard()
            begin += length
    return place


def samples(count, start=0):
    return [sample_of(number) for number in range(start, start + count)]


def index_of(folder):
    return json.loads((folder / "index.json").read_bytes())


def put_index(folder, index):
    (folder / "index.json").write_text(json.dumps(index))


def in_memory(folder):
    """A MemoryStore with a copy of the folder's files."""
    store = MemoryStore()
    for path in Path(folder).rglob("*"):
        if path.is_file():
            store.put(str(path.relative_to(folder)), path.read_bytes())
    return store


def stored(store):
    """Path -> bytes of everything in the store."""
    return {info.path: store.get(info.path) for info in store.list()}


def reader(folder, place="mapped", **options):
    return SampleDataset(PLACES[place](folder), **options)
