"""Tiny tokenizers, of both libraries."""

import sys
import textwrap

import pytest
from tokenizers import Tokenizer

from preparation.texts import train


@pytest.fixture(scope="session")
def tokenizer_json(tmp_path_factory):
    return train(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


@pytest.fixture
def reference(tokenizer_json):
    """Texts -> ids, by the library's plain call."""
    tokenizer = Tokenizer.from_file(str(tokenizer_json))
    end = tokenizer.token_to_id("<|endoftext|>")

    def ids(texts):
        return [i for text in texts for i in [*tokenizer.encode(text, add_special_tokens=False).ids, end]]

    return ids


@pytest.fixture(scope="session")
def tiktoken_plugin(tmp_path_factory):
    """A folder for sys.path with a tiktoken encoding named tiny_bytes, found offline as any plugin is."""
    folder = tmp_path_factory.mktemp("plugin")
    (folder / "tiktoken_ext").mkdir()
    (folder / "tiktoken_ext" / "tiny.py").write_text(
        textwrap.dedent(r"""
        def tiny_bytes():
            ranks = {bytes([i]): i for i in range(256)} | {b"th": 256, b"the": 257, b" a": 258}
            return {
                "name": "tiny_bytes",
                "pat_str": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
                "mergeable_ranks": ranks,
                "special_tokens": {"<|endoftext|>": 259},
            }


        ENCODING_CONSTRUCTORS = {"tiny_bytes": tiny_bytes}
        """)
    )
    return folder


@pytest.fixture
def tiny_bytes(tiktoken_plugin, monkeypatch):
    """The name of a tiktoken encoding that this process can load."""
    import tiktoken.registry

    monkeypatch.syspath_prepend(str(tiktoken_plugin))
    monkeypatch.setattr(tiktoken.registry, "ENCODING_CONSTRUCTORS", None)
    for module in [name for name in sys.modules if name.startswith("tiktoken_ext")]:
        monkeypatch.delitem(sys.modules, module)
    tiktoken.registry._available_plugin_modules.cache_clear()
    yield "tiny_bytes"
    tiktoken.registry.ENCODINGS.pop("tiny_bytes", None)
    tiktoken.registry._available_plugin_modules.cache_clear()
