"""The same samples for every side of benchmarks.streaming_dataset: windows of tokens and texts, as MDS shards and
as what others write their files from."""

from pathlib import Path

import numpy as np

from benchmarks.both_sides import checksum
from benchmarks.measure import WINDOW, make_tokens
from headrace import LocalStore, MDSWriter, SampleDataset

__all__ = ["COLUMNS", "TITLES", "checksum_of", "write_texts", "write_thousand", "write_tokens"]

COLUMNS = {"tokens": {"tokens": f"ndarray:uint16:{WINDOW}"}, "texts": {"text": "str"}}
TITLES = {"tokens": f"windows of {WINDOW:,} uint16", "texts": "documents of 1,000 to 2,000 bytes"}
_LONGEST = 2000


def write_tokens(folder: Path, count: int) -> None:
    """count windows as MDS shards in folder / "tokens"."""
    with MDSWriter(out=LocalStore(folder / "tokens", fsync=False), columns=COLUMNS["tokens"]) as writer:
        for row in make_tokens(count).reshape(-1, WINDOW):
            writer.write({"tokens": row})


def write_texts(folder: Path, count: int) -> None:
    """count documents as MDS shards in folder / "texts"; letters.txt and texts.npy (begin and end in it) beside it."""
    generator = np.random.default_rng(5)
    letters = generator.choice(np.frombuffer(b"etaoin shrdlu ", np.uint8), 1 << 20).tobytes().decode()
    lengths = generator.integers(1000, _LONGEST, count, endpoint=True)
    starts = generator.integers(0, len(letters) - _LONGEST, count)
    places = np.stack((starts, starts + lengths), axis=1)
    (folder / "letters.txt").write_text(letters)
    np.save(folder / "texts.npy", places)
    with MDSWriter(out=LocalStore(folder / "texts", fsync=False), columns=COLUMNS["texts"]) as writer:
        for begin, end in places.tolist():
            writer.write({"text": letters[begin:end]})


def write_thousand(folder: Path) -> int:
    """A dataset of some more than a thousand shards of ten documents in folder; returns how many shards."""
    with MDSWriter(out=LocalStore(folder, fsync=False), columns=COLUMNS["texts"], size_limit=5_500) as writer:
        for number in range(10_000):
            writer.write({"text": f"{number:500}"})
    with SampleDataset(folder) as dataset:
        return len(dataset.shard_lengths)


def checksum_of(folder: Path, column: str) -> list[int]:
    """How many samples there are, and a sum over them that no order changes: both sides must read the same."""
    with SampleDataset(folder) as dataset:
        return checksum(sample[column] for sample in dataset)
