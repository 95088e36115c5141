"""Loaders over documents and windows with spans. At module level, so that workers can unpickle what is here."""

import numpy as np
import torch

from dataset.payload_scenes import spans_at
from headrace.formats.annotated import SpanNumpyFormat
from headrace.formats.documents import DocumentNumpyFormat

PROCESSES = {
    method: {"num_workers": 2, "parallel_method": "process", "multiprocessing_context": method}
    for method in ("fork", "spawn")
}


def document(number):
    """Document `number` is its number, so often that its length tells it too."""
    return [number] * (1 + number * 7 % 11)


TOKENS = DocumentNumpyFormat("<u2")
SHARDS = (13, 0, 1, 30, 0, 17)  # documents of each
COUNT = sum(SHARDS)


def document_shards():
    numbers = iter(range(COUNT))
    return [[document(next(numbers)) for _ in range(count)] for count in SHARDS]


def pad(samples):
    """A ragged batch: tokens padded with 65535, and the length of each; documents must be whole."""
    lengths = [len(sample) for sample in samples]
    tokens = np.full((len(samples), max(lengths, default=0)), 65535, np.uint16)
    for row, sample in enumerate(samples):
        tokens[row, : len(sample)] = sample
        assert sample.tolist() == document(int(sample[0]))
    return {
        "id": torch.tensor([int(sample[0]) for sample in samples], dtype=torch.int64),
        "tokens": torch.from_numpy(tokens),
        "lengths": torch.tensor(lengths, dtype=torch.int64),
    }


def first_tokens(samples):
    """The number of each window of length 5, whose spans must be those of numbered_spans()."""
    numbers = []
    for sample in samples:
        start = int(sample["tokens"][0])
        assert sample["tokens"].tolist() == list(range(start, start + 5))
        assert int(sum(sample["span_lengths"])) == 5
        payloads = np.repeat([int(bytes(payload)) for payload in sample["payloads"]], sample["span_lengths"])
        assert payloads.tolist() == [token // 3 for token in range(start, start + 5)]
        numbers.append(start // 5)
    return torch.tensor(numbers, dtype=torch.int64)


def numbered_spans(place, shards=(20, 0, 3, 41, 36)):
    """Tokens count from 0 over the shards; the span of token t has the payload t // 3 (in each shard anew)."""
    first, records = 0, []
    for count in shards:
        tokens = np.arange(first, first + count)
        owners, lengths = np.unique(tokens // 3, return_counts=True)
        record = {"tokens": tokens, "span_lengths": lengths, "payloads": [b"%d" % owner for owner in owners]}
        records.append([record] if count else [])
        first += count
    return spans_at(place, records, SpanNumpyFormat("<u2"))
