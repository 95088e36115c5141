"""Three corpora of documents on disk, mixed, shuffled and made into rows or batches, whose content names itself.

Token = (source * 1000 + document) * 1000 + place in the document.
"""

import numpy as np

from headrace import DocumentNumpyFormat, DocumentStorage, PackedDataset, ShuffledDataset, stack_segments
from headrace.views import MixedDataset, TokenBudgetBatches

SIZES = {"web": 400, "books": 60, "code": 150}
WEIGHTS = {"web": 0.5, "books": 0.3, "code": 0.2}
LONGEST = {"web": 40, "books": 100, "code": 60}
SEQUENCE_LENGTH = 64
ROWS_A_STEP = 12


def write(folder):
    """One published directory a corpus, in shards of 50 documents."""
    generator = np.random.default_rng(8)
    for source, name in enumerate(SIZES):
        storage = DocumentStorage(folder / name, DocumentNumpyFormat("<u4"))
        with storage.sync_writer() as writer:
            for document in range(SIZES[name]):
                tokens = np.arange(generator.integers(1, LONGEST[name] + 1))
                writer.append(document // 50, ((source * 1000 + document) * 1000 + tokens).astype(np.uint32))
        storage.publish()


def rows(order, folder):
    """(dataset, collate function, rows of a step that are one batch of the loader)."""
    sources = {name: DocumentStorage(folder / name, DocumentNumpyFormat("<u4")).dataset() for name in SIZES}
    mixed = ShuffledDataset(MixedDataset(sources, WEIGHTS, seed=3, unit="tokens"), 5)
    if order == "packed":
        return PackedDataset(mixed, SEQUENCE_LENGTH, window=100, seed=9), stack_segments(labels=True), ROWS_A_STEP
    batches = TokenBudgetBatches(mixed, 200, ROWS_A_STEP, window=150, cost=(1, 0.01), long="error", seed=9)
    return batches, list, None


def documents_of(batch):
    """For each row of a packed batch, or for a batch of documents as one row: [source, document, start, stop] a piece.

    AssertionError for a piece that is not whole, for padding that is not 0, and for ids that say something else.
    """
    if isinstance(batch, list):
        return [[_piece(tokens) for tokens in batch]] if batch else []
    found, document = [], 0
    for tokens, segments in zip(batch["input_ids"].numpy(), batch["segment_ids"].numpy(), strict=True):
        pieces = [_piece(tokens[segments == segment]) for segment in range(1, segments.max() + 1)]
        assert not tokens[segments == 0].any(), "padding has tokens"
        for source, item, _, _ in pieces:
            assert [source, item] == [batch[name][document].item() for name in ("source_ids", "document_ids")]
            document += 1
        found.append(pieces)
    assert document == len(batch["document_ids"])
    assert int(batch["num_targets"]) == sum(stop - start - 1 for row in found for _, _, start, stop in row)
    return found


def _piece(tokens):
    number, start = divmod(int(tokens[0]), 1000)
    assert (tokens == tokens[0] + np.arange(len(tokens), dtype=np.uint32)).all(), "a piece has wrong content"
    return [*divmod(number, 1000), start, start + len(tokens)]
