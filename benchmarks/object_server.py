"""The object store that benchmarks read from: SeaweedFS on loopback, started as the tests start it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measure import Peer
from headrace import Store
from headrace.store.open import open_store

__all__ = ["Place", "seaweedfs"]


class Place(NamedTuple):
    """The server's bucket."""

    url: str
    options: dict[str, Any]

    def store(self, folder: str = "") -> Store:
        """Headrace's way to it."""
        return open_store(f"{self.url}/{folder}".rstrip("/"), **self.options)

    def peer(self, python: str) -> Peer:
        """Another interpreter's."""
        keys = self.options["credentials"]
        bucket = self.url.partition("//")[2]
        return Peer(
            python,
            "remote_peers.py",
            bucket,
            self.options["endpoint"],
            keys["access_key_id"],
            keys["secret_access_key"],
        )


@contextmanager
def seaweedfs(folder: Path) -> Iterator[Place]:
    """The server that the tests use, with its data in folder, until the block is left."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from servers import object_stores

    started = object_stores.seaweedfs(folder)
    try:
        yield Place(started.url, started.options)
    finally:
        started.process.close()
