"""A dataset in a remote store, and a cache before it: what the tests of the cache have in common."""

import contextlib
import os
import time
import zlib
from pathlib import Path

import xxhash

from headrace import CachedStore, LocalStore, MemoryStore
from headrace.store import DatasetFile, StoredForm
from headrace.store.store import PIECE_BYTES
from headrace.testing import FaultStore

NAMES = [f"shard_{number:02}.bin" for number in range(10)]


def content(name, seed="", size=1000):
    """size bytes that only this name and seed have."""
    block = xxhash.xxh3_128_digest(f"{seed}/{name}".encode())
    return (block * (size // len(block) + 1))[:size]


def remote_store(names=NAMES, seed="", size=1000, *, compressed=False, raw=True):
    store = MemoryStore(flat=True)
    for name in names:
        if raw:
            store.put(name, content(name, seed, size))
        if compressed:
            store.put(name + ".zz", zlib.compress(content(name, seed, size)))
    return FaultStore(store)


def decoded(data):
    try:
        return zlib.decompress(data)
    except zlib.error as error:
        raise ValueError(str(error)) from None


def describe(names=NAMES, seed="", size=1000, *, digests=True, compressed=False, unchanged=None):
    """What a dataset says of its files, as of_dataset() takes it."""

    def told(data, stored=None):
        digest, new_digest = (xxhash.xxh3_128_hexdigest(data), xxhash.xxh3_128) if digests else ("", None)
        return DatasetFile(len(data), digest, new_digest, stored, unchanged)

    def file(name):
        if name not in names:
            raise KeyError(name)
        data = content(name, seed, size)
        if not compressed:
            return told(data)
        return told(data, StoredForm(name + ".zz", told(zlib.compress(data)), decoded))

    return file


def bind(remote, directory, fingerprint="fp", *, limit=None, verify=True, takeover_s=60.0, **described):
    cached = CachedStore(remote, directory, limit, verify, takeover_s=takeover_s)
    return cached.of_dataset(fingerprint, describe(**described))


def kept(directory):
    """The cache's own files: name without tag -> path."""
    found = Path(directory, "headrace-cache/1/files").rglob("*.*")
    return {path.name.rpartition(".")[0]: path for path in found if path.is_file()}


def on_their_way(directory):
    return sorted(path.name for path in Path(directory, "headrace-cache/1/downloads").glob("*"))


def fetches(remote, path="*"):
    """How many times files were read whole from the store."""
    return remote.count("pieces", path) + remote.count("get", path) + remote.count("get_ranges_of", path)


class LoggedRemote(LocalStore):
    """A directory that stands for a remote store among processes: slow if wished, and it notes who reads what."""

    def __init__(self, root, log, *, pause_s=0.0, piece_bytes=1 << 14):
        super().__init__(root, fsync=False)
        self.capabilities = self.capabilities._replace(view=False, rename=False, remote=True)
        self.log, self.pause_s, self.piece_bytes = str(log), pause_s, piece_bytes

    def pieces(self, path, piece_bytes=PIECE_BYTES):
        descriptor = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{os.getpid()} {path}\n".encode())  # one write: lines of processes never mix
        os.close(descriptor)
        for piece in super().pieces(path, self.piece_bytes):
            if self.pause_s:
                time.sleep(self.pause_s)
            yield piece

    def fetched(self):
        """The (pid, path) of each whole read, in order."""
        lines = Path(self.log).read_text().splitlines() if Path(self.log).exists() else []
        return [(int(line.split(" ")[0]), line.split(" ", 1)[1]) for line in lines]


def usage(directory):
    """Bytes of the kept files, and of those on their way."""
    total, way = 0, 0
    top = Path(directory, "headrace-cache/1")
    for path in top.rglob("*"):
        with contextlib.suppress(OSError):
            if path.is_file() and path.parent.name == "downloads":
                way += path.stat().st_size
            elif path.is_file() and "files" in path.parts:
                total += path.stat().st_size
    return total, way
