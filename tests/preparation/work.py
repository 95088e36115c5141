"""make_records functions that worker processes can import, and a look at a dataset directory."""

import os
import signal
import threading
from pathlib import Path

import numpy as np

from headrace.datasets import StreamStorage
from headrace.formats.stream import StreamNumpyFormat

FORMAT = np.dtype([("tokens", "<u2")])


def storage_at(path):
    return StreamStorage(str(path), StreamNumpyFormat(FORMAT))


def read_all(path):
    """All tokens of the dataset, shard after shard."""
    storage = storage_at(path)
    with storage.sync_reader() as reader:
        return reader.read(0, reader.total_length)["tokens"].tolist() if reader.total_length else []


def files_of(path):
    """Relative path -> bytes, of everything below."""
    return {str(p.relative_to(path)): p.read_bytes() for p in sorted(Path(path).rglob("*")) if p.is_file()}


def data_of(path):
    """Relative path -> bytes of what readers read: the shards and the manifest."""
    return {name: data for name, data in files_of(path).items() if not name.startswith(".headrace")}


def leftovers(path):
    """What no finished or stopped run may leave."""
    return [str(p) for p in Path(path).rglob("*") if p.name.endswith((".tmp", ".lease")) or p.parent.name == "attempts"]


def numbers(split):
    """A range (start, stop), in two records where it has two numbers."""
    start, stop = split
    yield {"tokens": np.arange(start, (start + stop) // 2, dtype=np.uint16)}
    yield {"tokens": np.arange((start + stop) // 2, stop, dtype=np.uint16)}


def nothing(split):
    return iter(())


def pid_of(split):
    yield {"tokens": np.array([os.getpid() % 65_536], np.uint16)}


class OddError(Exception):
    """Does not survive pickling: its constructor takes other arguments than its args."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


def raising(split):
    """Raises at the split that begins at 5; the others are slow."""
    yield from numbers(split)
    if split[0] == 5:
        raise ValueError("five is not allowed")
    threading.Event().wait(30)


def raising_oddly(split):
    yield from numbers(split)
    raise OddError("this", "that")


def killed(split):
    """Is SIGKILLed at the split that begins at 5; the others are slow."""
    yield from numbers(split)
    if split[0] == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait(30)


def stopped(split):
    """Stops itself with SIGSTOP, except at the split that begins at 5, which raises when the others have stopped."""
    yield from numbers(split)
    if split[0] != 5:
        Path(os.environ["STARTED_DIR"], str(split[0])).touch()
        os.kill(os.getpid(), signal.SIGSTOP)
    while len(list(Path(os.environ["STARTED_DIR"]).iterdir())) < 3:
        threading.Event().wait(0.02)
    raise ValueError("five is not allowed")


def endless(split):
    """Appends for ever, and says so."""
    Path(os.environ["STARTED_DIR"], str(os.getpid())).touch()
    while True:
        yield {"tokens": np.zeros(1000, np.uint16)}
        threading.Event().wait(0.01)


def slow_unless_done(split):
    """As numbers, but waits before it ends until a file exists; leaves a mark at each call."""
    folder = Path(os.environ["STARTED_DIR"])
    with (folder / f"call-{split[0]}").open("a") as file:
        file.write("x")
    yield from numbers(split)
    if split[0] >= 10:
        while not (folder / "go").exists():
            threading.Event().wait(0.02)
