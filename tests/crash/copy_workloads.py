"""What is killed: copies of datasets of each kind, from `source` to `target` in the directory that each is given."""

import workloads

from headrace.datasets import MDSWriter, merge_index
from headrace.datasets.copying import copy_dataset


class Copied:
    """A dataset that write() makes, and copy() copies, with one thread, so that calls come in the same order."""

    def __init__(self, write):
        self._write = write

    def write(self, folder):
        """The source."""
        self._write(f"{folder}/source")

    def copy(self, folder):
        """The command that dies."""
        copy_dataset(f"{folder}/source", f"{folder}/target", workers=1)


def write_samples(folder):
    """Three shards of samples."""
    with MDSWriter(columns={"id": "int"}, out=folder, hashes=["xxh64"]) as out:
        for number in range(7):
            if number % 3 == 0:
                out.flush_shard()
            out.write({"id": number})


def write_parts(folder):
    """The same in each of two folders, with an index of all."""
    for part in ("a", "deep/b"):
        write_samples(f"{folder}/{part}")
    merge_index(folder)


stream = Copied(workloads.stream.write_old)
receipts = Copied(workloads.stream.write)
documents = Copied(workloads.documents.write_old)
foreign = Copied(workloads.stream.write_old_foreign)
samples = Copied(write_samples)
parts = Copied(write_parts)
