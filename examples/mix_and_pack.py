"""From text files to packed training batches of a mixture, and on with other ranks after a stop, in one minute.

    text files --> DocumentStorage --> MixedDataset --> PackedDataset --> StatefulDataLoader
    paragraphs     one a corpus        by tokens        rows of 512       global batches of 12 rows

Corpora are this project's own files: its guides, its source and its tests. A document is a paragraph, a token a byte.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headrace import (
    DocumentNumpyFormat,
    DocumentStorage,
    MixedDataset,
    PackedDataset,
    StatefulDataLoader,
    stack_segments,
)

PROJECT = Path(__file__).resolve().parents[1]
DIRECTORY = Path("data/mix-and-pack")
CORPORA = {"guides": "docs/**/*.md", "source": "src/**/*.py", "tests": "tests/views/*.py"}
SHARES = {"guides": 0.5, "source": 0.3, "tests": 0.2}  # of all tokens
SEQUENCE_LENGTH = 512
GLOBAL_BATCH_SIZE = 12  # rows a step for all ranks together


def paragraphs(pattern: str) -> Iterator[np.ndarray[Any, np.dtype[np.uint16]]]:
    """Every paragraph of the files as tokens: bytes, plus 1, so that 0 is for padding."""
    for path in sorted(PROJECT.glob(pattern)):
        for text in path.read_bytes().split(b"\n\n"):
            if text.strip():
                yield np.frombuffer(text, np.uint8).astype(np.uint16) + np.uint16(1)


def write(name: str) -> None:
    """A corpus on disk, published; one that is there already stays as it is."""
    directory = DIRECTORY / name
    if (directory / "headrace.json").exists():
        return
    storage = DocumentStorage(directory, DocumentNumpyFormat("<u2"))
    with storage.sync_writer() as writer:
        for number, tokens in enumerate(paragraphs(CORPORA[name])):
            writer.append(number // 1000, tokens)  # shards of 1,000 documents
    storage.publish()


def packed() -> tuple[MixedDataset, PackedDataset]:
    """The mixture, and the rows that are made of it; every process of a run makes the same."""
    corpora = {name: DocumentStorage(DIRECTORY / name, DocumentNumpyFormat("<u2")).dataset() for name in CORPORA}
    for name, corpus in corpora.items():
        print(f"  {name:8}{len(corpus):6,} documents {int(corpus.lengths.sum()):10,} tokens")
    mixed = MixedDataset(corpora, SHARES, seed=7, unit="tokens")
    return mixed, PackedDataset(mixed, SEQUENCE_LENGTH, seed=7)


def ranks(rows: PackedDataset, world_size: int) -> list[StatefulDataLoader]:
    """The loader of each rank. A real run has one a process, and knows rank and world size from torchrun."""
    collate = stack_segments(dtype=torch.int64, labels=True)
    return [
        StatefulDataLoader(
            rows, collate, device="cpu", global_batch_size=GLOBAL_BATCH_SIZE, rank=rank, world_size=world_size
        )
        for rank in range(world_size)
    ]


def global_batches(loaders: list[StatefulDataLoader], steps: int) -> list[torch.Tensor]:
    """What all ranks together get in each step: row i of a global batch is rank i mod world_size's."""
    iterators = [iter(loader) for loader in loaders]
    batches = []
    for _ in range(steps):
        parts = [next(iterator) for iterator in iterators]
        batches.append(torch.stack([part["input_ids"] for part in parts], dim=1).flatten(0, 1))
    return batches


def main() -> None:
    """Write, mix, pack and load; then stop on four ranks and go on with two and with three."""
    for name in CORPORA:
        write(name)
    print(f"Corpora in {DIRECTORY}:")
    mixed, rows = packed()
    print("\nWhat the first epoch draws:")
    print(mixed.report(len(mixed)))
    report = rows.report()
    print(f"\n{report['rows']} rows of {SEQUENCE_LENGTH} tokens hold {report['documents']} documents", end="")
    print(f" ({report['split_documents']} of them cut) and are {report['utilisation']:.2%} full")

    (whole,) = ranks(rows, 1)
    batch = next(iter(whole))
    print("\nThe first batch:")
    for field, tensor in batch.items():
        shown = f" = {tensor.item()}" if tensor.ndim == 0 else ""
        print(f"  {field:16}{tuple(tensor.shape)!s:10} {tensor.dtype}{shown}")

    expected = global_batches(ranks(rows, 1), 20)
    four = ranks(rows, 4)
    begun = global_batches(four, 8)
    state = json.dumps(four[0].state_dict())  # the same on every rank: one file of a checkpoint
    print(f"\nFour ranks stop after 8 steps, with a state of {len(state)} bytes.")
    for world_size in (2, 3):
        resumed = ranks(rows, world_size)
        for loader in resumed:
            loader.load_state_dict(json.loads(state))
        got = begun + global_batches(resumed, 12)
        same = all(map(torch.equal, got, expected))
        print(f"{world_size} ranks go on for 12: the 20 global batches are those of one rank: {same}")


if __name__ == "__main__":
    main()
