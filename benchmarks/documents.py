"""Batches of 32 random documents of 200 to 8,192 bytes, against GuideLoom's fastest way to read them.

    python -m benchmarks.documents [--check] [--documents N] [--guideloom PYTHON]

One process a side, warm page cache, the same files and the same documents in the same order; the sides take turns.
GuideLoom runs in its own interpreter. It has three read interfaces and two ways to read, one document a call and many a
call: all six are measured, and the one with the least processor time is what Headrace is compared with. Both deliver
`bytes`. Arrays, JSON (GuideLoom brings no format for it: json.loads) and single reads are shown for information.
"""

import argparse
import hashlib
import sys
import tempfile
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import (
    Bound,
    Peer,
    against_fastest,
    conclude,
    describe_machine,
    make_tokens,
    timed,
)
from headrace import (
    DocumentBytesFormat,
    DocumentDataset,
    DocumentJsonFormat,
    DocumentNumpyFormat,
    DocumentStorage,
    LocalStore,
)

BATCH = 32
BATCHES = 500  # a round; 16,000 documents
LEAST = 3.0
INTERFACES = ("SeekIO", "PosixPreadIO", "MmapIO")
WAYS = ("read", "read_many")


def write_arrays(folder: Path, num_documents: int, num_shards: int) -> None:
    """Documents of 100 to 4,096 uint16 tokens, lengths uniform, in so many shards of equal count."""
    tokens = make_tokens(4096)
    generator = np.random.default_rng(3)
    lengths = generator.integers(100, 4096, num_documents, endpoint=True).tolist()
    starts = generator.integers(0, len(tokens) - 4096, num_documents).tolist()
    storage = DocumentStorage(LocalStore(folder, fsync=False), DocumentNumpyFormat("<u2"))
    with storage.sync_writer() as writer:
        for number, (start, length) in enumerate(zip(starts, lengths, strict=True)):
            writer.append(number * num_shards // num_documents, tokens[start : start + length])
    storage.publish()


def write_json(folder: Path, num_documents: int) -> None:
    """Objects with an id, a text of 100 to 8,000 letters, and a few numbers."""
    lengths = np.random.default_rng(4).integers(100, 8000, num_documents).tolist()
    letters = "the quick brown fox jumps over the lazy dog " * 200
    storage = DocumentStorage(LocalStore(folder, fsync=False), DocumentJsonFormat())
    with storage.sync_writer() as writer:
        for number, length in enumerate(lengths):
            record = {"id": f"document-{number}", "text": letters[:length], "scores": [0.5, number, 1e-3]}
            writer.append(0, record)
    storage.publish()


def read(dataset: DocumentDataset, batches: np.ndarray) -> int:
    """Every batch, in one call each; returns the number of documents."""
    for batch in batches:
        dataset.__getitems__(batch)
    return int(batches.size)


def read_singly(dataset: DocumentDataset, rows: list[list[int]]) -> int:
    """Every batch, in one call a document; returns the number of documents."""
    for row in rows:
        _ = [dataset[number] for number in row]
    return len(rows) * BATCH


def digest_of(dataset: DocumentDataset, batches: np.ndarray) -> str:
    """A digest of all these documents in order."""
    digest = hashlib.sha256()
    for batch in batches:
        digest.update(b"".join(dataset.__getitems__(batch)))
    return digest.hexdigest()


def compare(folder: Path, title: str, samples: str, storage_format: Any, peer: Peer, batches: np.ndarray) -> float:
    """Times that Headrace is as fast as GuideLoom's fastest way, by processor time; prints the tables."""
    print(f"\n{title}, batches of {BATCH}")
    dataset, rows = DocumentDataset(DocumentStorage(folder, storage_format)), batches.tolist()
    request = {"directory": str(folder), "samples": samples, "batches": len(batches)}
    return against_fastest(
        {
            "Headrace, __getitems__": lambda: timed(lambda: read(dataset, batches)),
            "Headrace, [i]": lambda: timed(lambda: read_singly(dataset, rows)),
        },
        {
            f"GuideLoom, {interface}, {way}": partial(peer.seconds, io=interface, way=way, **request)
            for interface, way in product(INTERFACES, WAYS)
        },
        "document",
    )


def main() -> int:
    """Measure and print; 1 when --check is given and a bound is missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--documents", type=int, default=100_000, help="of 4.2 kB on average: 100,000 are 420 MB")
    parser.add_argument("--guideloom", metavar="PYTHON", help="an interpreter that has GuideLoom")
    options = parser.parse_args()
    print(describe_machine())
    if not options.guideloom:
        print("\nGuideLoom is left out: no interpreter was given (--guideloom), so there is nothing to compare with")
        return 0
    bounds = []
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        order = np.random.default_rng(2).permutation(options.documents)
        batches = order[: len(order) // BATCH * BATCH].reshape(-1, BATCH)[:BATCHES]
        some = batches[:200]
        np.save(root / "batches.npy", batches)
        with Peer(options.guideloom, "guideloom_documents.py", root / "batches.npy") as peer:
            for num_shards, name in ((1, "one shard"), (4, "four shards")):
                folder = root / name
                write_arrays(folder, options.documents, num_shards)
                storage = DocumentStorage(folder, DocumentBytesFormat())
                same = {digest_of(DocumentDataset(storage), batches)}
                for interface in INTERFACES:
                    request = {"directory": str(folder), "io": interface, "samples": "bytes", "batches": BATCHES}
                    same.add(peer.ask(**request, digest=True))
                assert len(same) == 1, "the two libraries read different documents"
                title = f"{options.documents:,} documents of 200 to 8,192 bytes as bytes, {name}"
                ratio = compare(folder, title, "bytes", DocumentBytesFormat(), peer, batches)
                bounds.append(Bound(f"documents, {name}, times GuideLoom's fastest way", ratio, LEAST))
            title = "for information: the same as NumPy arrays, four shards"
            compare(root / "four shards", title, "arrays", DocumentNumpyFormat("<u2"), peer, some)
            write_json(root / "json", options.documents)
            title = "for information: JSON objects of 200 to 8,100 bytes, one shard"
            compare(root / "json", title, "json", DocumentJsonFormat(), peer, some)
    return conclude(bounds, options.check)


if __name__ == "__main__":
    sys.exit(main())
