"""Datasets with damaged samples, and loaders over them. At module level, so that other processes find what is here."""

from headrace import DocumentJsonFormat, DocumentStorage, MDSWriter, SampleDataset, StatefulDataLoader
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
