"""Writers of samples in every setting: where they write, what lies there afterwards, and what a reader sees."""

import threading

from headrace.datasets import CSVWriter, JSONWriter, MDSWriter, SampleDataset
from headrace.datasets.samples.index import stored_files
from headrace.datasets.samples.shard_index import read_index
from headrace.errors import NoDatasetError, UnfinishedDatasetError
from headrace.store import LocalStore, MemoryStore, Store

COLUMNS = {"id": "int", "text": "str"}
FORMATS = {"mds": MDSWriter, "json": JSONWriter, "csv": CSVWriter}


def sample(number):
    return {"id": number, "text": f"text {number}"}


def write(out, ids, *, writer=MDSWriter, a_shard=10, **options):
    """A dataset of these ids, so many a shard."""
    with writer(columns=COLUMNS, out=out, **options) as writing:
        fill(writing, ids, a_shard)
    return writing


def fill(writing, ids, a_shard=10):
    for count, number in enumerate(ids):
        if count and count % a_shard == 0:
            writing.flush_shard()
        writing.write(sample(number))


def ids_in(place, **options):
    """The ids that a reader sees, checked in every way; None where there is no whole dataset."""
    try:
        with SampleDataset(place, **options) as dataset:
            found = dataset[:]
            assert dataset.verify() == []
    except (UnfinishedDatasetError, NoDatasetError):
        return None
    assert found == [sample(one["id"]) for one in found]
    return [one["id"] for one in found]


def files_in(place):
    """Path -> bytes of everything there."""
    store = place if isinstance(place, Store) else LocalStore(place)
    found = {}
    for info in store.list():
        try:
            found[info.path] = store.get(info.path)
        except FileNotFoundError:  # a writer goes on meanwhile
            continue
    return found


def everything_in(folder):
    """Every path below a directory, hidden ones and folders included."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


class ObjectStore(MemoryStore):
    """Objects alone: no folders that stay, no renames, no maps."""

    def __init__(self):
        super().__init__()
        self.location = "objects://bucket"
        self.capabilities = self.capabilities._replace(rename=False, view=False)

    def folders(self, folder=""):
        """Only those in which something lies."""
        prefix = f"{folder}/" if folder else ""
        rests = [info.path[len(prefix) :] for info in self.list(folder)]
        return sorted({rest.partition("/")[0] for rest in rests if "/" in rest})


class Watching(threading.Thread):
    """Looks at a store again and again, whether an index is there that names a file that is not."""

    def __init__(self, store):
        super().__init__()
        self.store, self.looks, self.wrong, self.done = store, 0, [], threading.Event()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        self.join()

    def run(self):
        while not self.done.wait(0.001):
            self.looks += 1
            files = files_in(self.store)
            if "index.json" in files and (missing := missing_files(files)):
                self.wrong.append(missing)


def missing_files(files):
    """Which of the files that the index names are not there, or not whole."""
    entries = read_index(files["index.json"], "index.json")
    wanted = [(packed or raw) for entry in entries for raw, packed in stored_files(entry)]
    return [file.basename for file in wanted if len(files.get(file.basename, b"")) != file.bytes]
