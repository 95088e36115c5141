"""The datasets that GuideLoom 1.1.0 wrote, every way to read them, and orders to ask for their items in."""

import json
import shutil
from pathlib import Path

import numpy as np

from headrace import MemoryStore, MmapIO, Permutation, PosixPreadIO, SeekIO, derive_seed

GUIDELOOM = Path(__file__).parent / "guideloom"
INTERFACES = {"default": None, "MmapIO": MmapIO(), "PosixPreadIO": PosixPreadIO(), "SeekIO": SeekIO()}
WAYS = [*INTERFACES, "MemoryStore", "read through MemoryStore"]


def expected_of(name):
    return json.loads((GUIDELOOM / name / "expected.json").read_text())


def data_of(name):
    return GUIDELOOM / name / "data"


def in_memory(directory):
    """A MemoryStore with a copy of the directory's files."""
    store = MemoryStore()
    for path in directory.iterdir():
        store.put(path.name, path.read_bytes())
    return store


def opened_by(kind, name, storage_format, way="default"):
    """The storage of this kind over a recorded dataset, read in one of WAYS."""
    directory = data_of(name)
    if way == "MemoryStore":
        return kind(in_memory(directory), storage_format)
    interface = in_memory(directory) if way == "read through MemoryStore" else INTERFACES[way]
    return kind(directory, storage_format, interface)


def copied(name, target):
    """A writable copy of a recorded dataset's files."""
    target.mkdir()
    for path in data_of(name).iterdir():
        shutil.copyfile(path, target / path.name)
    return target


def orders(num_items):
    """Lists of items to ask for: forwards, backwards, shuffled, with repeats, from the end, from either end, none."""
    items = np.arange(num_items)
    shuffled = Permutation(num_items, derive_seed(7, "orders"))(items)
    again = Permutation(num_items, derive_seed(7, "again"))(items)
    return [
        items,
        items[::-1],
        shuffled,
        np.concatenate([shuffled, again[: num_items // 2 + 1]]),
        np.repeat(again[:5], 3),
        shuffled - num_items,
        np.where(shuffled % 2, shuffled - num_items, shuffled),
        items[:0],
    ]


def visible_files(directory):
    """Name -> bytes of everything but what Headrace keeps for itself: `.headrace/` and `headrace.json`."""
    found = {str(path.relative_to(directory)): path for path in directory.rglob("*") if path.is_file()}
    return {
        name: path.read_bytes()
        for name, path in found.items()
        if not name.startswith(".headrace/") and name != "headrace.json"
    }
