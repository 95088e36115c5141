"""Roots with parts, and what a merged index says of them."""

import json

from headrace.datasets.samples.writer import MDSWriter
from headrace.store import FolderStore

COLUMNS = {"id": "int", "text": "str"}


def samples_of(ids):
    return [{"id": number, "text": f"text {number}"} for number in ids]


def write_part(root, folder, ids, *, writer=MDSWriter, columns=COLUMNS, samples=None, **options):
    """A part of samples in a folder of the store ("": in the store itself), three samples a shard."""
    with writer(columns=columns, out=FolderStore(root, folder), **options) as out:
        for number, sample in enumerate(samples_of(ids) if samples is None else samples):
            if number and number % 3 == 0:
                out.flush_shard()
            out.write(sample)


def fill(root, parts, **options):
    """Parts, given as folder -> ids; what lies further up first, since a writer wants an empty folder."""
    for folder, ids in sorted(parts.items()):
        write_part(root, folder, ids, **options)


def entries(root, folder=""):
    return json.loads(FolderStore(root, folder).get("index.json"))["shards"]


def paths(root, folder=""):
    """The raw data files that the index lists, in its order."""
    return [entry["raw_data"]["basename"] for entry in entries(root, folder)]


def parts(root):
    """The folders of the shards that the root's index lists, in its order."""
    return list(dict.fromkeys(path.rpartition("/")[0] for path in paths(root)))


def contents(root):
    return {info.path: (info.version, root.get(info.path)) for info in root.list()}
