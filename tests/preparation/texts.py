"""Texts, and tokenizers trained on them."""

import json

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SAYING = "the quick brown fox jumps over a lazy dog while water turns the old mill wheel and never spills"
WORDS = SAYING.split()


def sentences(count, start=0):
    """count different short texts with letters, digits, punctuation, accents and line breaks."""
    for i in range(start, start + count):
        words = [WORDS[(i * 7 + j * j) % len(WORDS)] for j in range(3 + i % 11)]
        yield f"{' '.join(words).capitalize()} {i}.\n  Café {i * 31 % 97}, ça va?\n" + "\n" * (i % 3)


def train(path, vocab_size=400, special=("<|endoftext|>",), **byte_level):
    """A byte-level BPE at path."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(**{"add_prefix_space": False, **byte_level})
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences(300), trainer)
    tokenizer.save(str(path))
    return path


def write_jsonl(path, texts):
    path.write_text("".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(texts)))
    return path


TIKTOKEN_PLUGIN = r"""
def tiny_bytes():
    ranks = {bytes([i]): i for i in range(256)} | {b"th": 256, b"the": 257, b" a": 258}
    return {
        "name": "tiny_bytes",
        "pat_str": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        "mergeable_ranks": ranks,
        "special_tokens": {"<|endoftext|>": 259},
    }


ENCODING_CONSTRUCTORS = {"tiny_bytes": tiny_bytes}
"""


def write_tiktoken_plugin(folder):
    """The folder, for sys.path, with a tiktoken encoding named tiny_bytes in it, found offline as any plugin is."""
    (folder / "tiktoken_ext").mkdir()
    (folder / "tiktoken_ext" / "tiny.py").write_text(TIKTOKEN_PLUGIN)
    return folder
