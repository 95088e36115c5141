"""Stores that behave as object stores do, without a server."""

from headrace.store import LocalStore, MemoryStore


class FlatFolder(LocalStore):
    """A directory that offers what an object store does, so that processes can share it: no renames, no maps."""

    def __init__(self, root):
        super().__init__(root, fsync=False)
        self.capabilities = self.capabilities._replace(rename=False, view=False, remote=True)

    def folders(self, folder=""):
        """Only those in which something lies."""
        prefix = f"{folder}/" if folder else ""
        rests = [info.path[len(prefix) :] for info in self.list(folder)]
        return sorted({rest.partition("/")[0] for rest in rests if "/" in rest})

    def remove_orphans(self, folder="", *, of=""):
        """An object store has no files in flight."""

    def open_writer(self, path, *, append=False):
        raise AssertionError(f"{path} is written piece by piece")

    def rename(self, source, target):
        raise AssertionError(f"{source} is renamed")

    def make_folder(self, folder):
        raise AssertionError(f"the folder {folder} is made")

    def remove_folder(self, folder):
        raise AssertionError(f"the folder {folder} is removed")


class Bucket(MemoryStore):
    """A flat store that counts what goes up from files, and how large the pieces in memory were."""

    def __init__(self):
        super().__init__(flat=True)
        self.uploaded, self.largest_put = [], 0

    def put(self, path, data):
        self.largest_put = max(self.largest_put, len(data))
        super().put(path, data)

    def upload(self, path, file, *, check=None):
        if check is not None:
            check()
        with open(file, "rb") as opened:
            MemoryStore.put(self, path, opened.read())
        self.uploaded.append(path)
