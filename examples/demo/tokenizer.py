"""A byte-level BPE, trained on a sample of the corpus."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

__all__ = ["END_OF_DOCUMENT", "VOCABULARY_SIZE", "train_tokenizer"]

VOCABULARY_SIZE = 4096
END_OF_DOCUMENT = "<|endoftext|>"
SAMPLE_CHARS = 4_000_000
PIECE_CHARS = 20_000  # short pieces of many documents say more about the corpus than a few whole ones


def train_tokenizer(files: Sequence[Path], target: Path) -> int:
    """How many characters it was trained on; target becomes a `tokenizer.json` of 4,096 tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=[END_OF_DOCUMENT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),  # every byte has a token, so no text is unknown
        show_progress=False,
    )
    sample = [text for file in files for text in _pieces(file, SAMPLE_CHARS // len(files))]
    tokenizer.train_from_iterator(sample, trainer)
    tokenizer.save(str(target))
    return sum(map(len, sample))


def _pieces(file: Path, limit_chars: int) -> Iterator[str]:
    """The beginnings of documents spread over the whole file, about limit_chars in all."""
    with file.open(encoding="utf-8") as lines:
        texts = [json.loads(line)["text"][:PIECE_CHARS] for line in lines]
    stride = max(1, round(sum(map(len, texts)) / limit_chars))
    yield from texts[::stride]
