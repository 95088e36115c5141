"""Documents to pack, and what one token at a time makes of them."""

import numpy as np

from headrace import DocumentNumpyFormat, DocumentStorage, MemoryStore, WithLengths
from planning import packing_reference, reference


def documents_of(lengths, dtype=np.uint16):
    """Document k holds the numbers 100 * k + 0, 1, 2, ... + 1."""
    return [(np.arange(length) + 100 * number + 1).astype(dtype) for number, length in enumerate(lengths)]


def with_lengths(lengths, dtype=np.uint16):
    return WithLengths(documents_of(lengths, dtype), lengths)


def stored(lengths, dtype="<u2"):
    storage = DocumentStorage(MemoryStore(), DocumentNumpyFormat(dtype))
    with storage.sync_writer() as writer:
        for number, document in enumerate(documents_of(lengths)):
            writer.append(number // 3, document)
    return storage.dataset()


def slow_row(pieces, documents, capacity, pad_id=0):
    """A sample of (document, start, stop), one token after another."""
    sample = {"input_ids": [], "position_ids": [], "segment_ids": [], "cu_seqlens": [0], "document_ids": []}
    for segment, (document, start, stop) in enumerate(pieces, 1):
        for place in range(start, stop):
            sample["input_ids"].append(int(documents[document][place]))
            sample["position_ids"].append(place - start)
            sample["segment_ids"].append(segment)
        sample["cu_seqlens"].append(len(sample["input_ids"]))
        sample["document_ids"].append(document)
    for place in range(capacity - len(sample["input_ids"])):
        sample["input_ids"].append(pad_id)
        sample["position_ids"].append(place)
        sample["segment_ids"].append(0)
    if sample["cu_seqlens"][-1] < capacity:
        sample["cu_seqlens"].append(capacity)
    return sample


def slow_epoch(order, documents, capacity, window, *, epoch=0, pad_id=0, seed=0, **options):
    """All rows of an epoch whose documents come in this order."""
    num_windows = max(1, len(order) // window) if order else 0
    rows = []
    for number in range(num_windows):
        here = order[number * window :] if number == num_windows - 1 else order[number * window : (number + 1) * window]
        lengths = [len(documents[item]) for item in here]
        seed_here = reference.derive_seed(seed, "pack", epoch, number)
        planned, _ = packing_reference.packed(lengths, capacity, seed=seed_here, **options)
        rows += [
            slow_row([(here[index], start, stop) for index, start, stop in row], documents, capacity, pad_id)
            for row in planned
        ]
    return rows


def lists(sample):
    return {name: array.tolist() for name, array in sample.items()}


class Listed:
    """A dataset of these documents, as they are."""

    def __init__(self, documents, lengths=None):
        self.documents = documents
        self.lengths = np.array([len(document) for document in documents] if lengths is None else lengths)

    def __len__(self):
        return len(self.documents)

    def __getitem__(self, index):
        return self.documents[index]


class Damaged(Listed):
    """Documents 3 and 8 cannot be read."""

    def __getitem__(self, index):
        if index in (3, 8):
            raise ValueError(f"document {index} is damaged")
        return self.documents[index]
