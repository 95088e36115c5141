"""Datasets with damaged samples, and loaders over them. At module level, so that other processes find what is here."""

import numpy as np

from headrace import (
    BufferSortedDataset,
    DocumentJsonFormat,
    DocumentStorage,
    MDSWriter,
    MixedDataset,
    PackedDataset,
    SampleDataset,
    SelectedDataset,
    ShuffledDataset,
    StatefulDataLoader,
    TokenBudgetBatches,
)
from headrace.errors import CorruptShardError
from loading.samples import Numbers
from loading.scenarios import as_rows

PROCESSES = {"num_workers": 2, "parallel_method": "process"}
WORKERS = {
    "alone": {},
    "threads": {"num_workers": 2, "prefetch": 3},
    "fork": {**PROCESSES, "multiprocessing_context": "fork"},
    "kept": {**PROCESSES, "multiprocessing_context": "fork", "persistent_workers": True},
    "spawn": {**PROCESSES, "multiprocessing_context": "spawn"},
}
COUNT = 60


class Raising(Numbers):
    """Every ninth sample raises."""

    def __init__(self, length, error=ValueError):
        super().__init__(length)
        self.error = error

    def __getitem__(self, index):
        if index % 9 == 4:
            raise self.error(f"sample {index} is damaged")
        return super().__getitem__(index)


def raising(_):
    return Raising(COUNT)


def flipped_samples(folder):
    """MDS shards with digests, in one of which a byte is flipped."""
    if not folder.exists():
        with MDSWriter(columns={"id": "int"}, out=folder, size_limit=250, hashes=["xxh64"]) as writer:
            for number in range(COUNT):
                writer.write({"id": number})
        path = folder / "shard.00001.mds"
        raw = bytearray(path.read_bytes())
        raw[-2] ^= 4
        path.write_bytes(raw)
    return SampleDataset(folder, verify=True)


def cut_documents(folder):
    """JSON documents, some of which lack their end."""
    if not folder.exists():
        storage = DocumentStorage(folder, DocumentJsonFormat())
        with storage.sync_writer() as writer:
            for number in range(COUNT):
                writer.append(number // 25, {"id": number, "text": "a" * (number % 7)})
        path = folder / "0000001.out_of_band.bin"
        raw = path.read_bytes()
        for number in (28, 29, 41):
            start = raw.index(b'{"id":%d,' % number)
            end = raw.index(b"}", start)
            raw = raw[:end] + b" " + raw[end + 1 :]  # the brace is gone, and all else is where it was
        path.write_bytes(raw)
    return DocumentStorage(folder, DocumentJsonFormat()).dataset()


class Documents:
    """Document i is its number, counted from first, 1 to 30 times; every seventh but for the shortest raises."""

    def __init__(self, length, first=0):
        self.length = length
        self.first = first
        self.lengths = 1 + np.arange(length) * 17 % 30

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if self.is_damaged(index):
            raise ValueError(f"document {index} is damaged")
        return np.full(self.lengths[index], self.first + index, np.int32)

    def is_damaged(self, index):
        return index % 7 == 2 and self.lengths[index] > 2


class Sealed(Documents):
    """A source that nobody may open."""

    def __init__(self):
        super().__init__(0)

    def __len__(self):
        raise AssertionError("it was opened")


def mixture():
    inner = MixedDataset({"a": ShuffledDataset(Documents(80, 1000), 4), "b": Documents(50, 2000)}, [2, 1], seed=1)
    sources = {"inner": inner, "c": SelectedDataset(Documents(90, 3000), exclude=[5, 9, 80]), "none": Sealed()}
    return MixedDataset(sources, [0.7, 0.3, 0], seed=2, epoch_size=200)


COMPOSED = {
    "mixed": mixture,
    "sorted": lambda: BufferSortedDataset(ShuffledDataset(Documents(150), 3), 40, 4),
    "best fit": lambda: PackedDataset(ShuffledDataset(Documents(150), 3), 16, window=40),
    "end to end": lambda: PackedDataset(Documents(150), 16, window=40, strategy="concat"),
    "packed mixture": lambda: PackedDataset(mixture(), 24, window=60, strategy="first_fit", long="drop"),
    "token budget": lambda: TokenBudgetBatches(ShuffledDataset(Documents(150), 3), 64, 4, window=50),
}


def composed(name, workers="alone", **options):
    options = {"rank": 0, "world_size": 1, "drop_last": False, "skip_corrupt": True} | options
    if name != "token budget":
        options.setdefault("global_batch_size", 8)
    return StatefulDataLoader(COMPOSED[name](), as_rows, device="cpu", **WORKERS[workers], **options)


DATA = {"raising": raising, "flipped samples": flipped_samples, "cut documents": cut_documents}
DAMAGED = {
    "raising": [number for number in range(COUNT) if number % 9 == 4],
    "cut documents": [28, 29, 41],
}


def damaged(data, folder):
    """The items that cannot be read."""
    dataset, found = DATA[data](folder), []
    for number in range(COUNT):
        try:
            dataset[number]
        except (ValueError, CorruptShardError):
            found.append(number)
    return found


def loader(data, folder, workers="alone", **options):
    options.setdefault("skip_corrupt", True)
    options = {"global_batch_size": 12, "shuffle": True, "shuffle_seed": 3, "rank": 0, "world_size": 1} | options
    return StatefulDataLoader(DATA[data](folder), as_rows, device="cpu", **WORKERS[workers], **options)


def ids(batches):
    return [[row["id"] for row in batch] for batch in batches]


def two_epochs(one):
    with one:
        return ids(one) + ids(one)
