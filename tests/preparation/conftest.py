"""Tiny tokenizers, of both libraries."""

import sys

import pytest
from tokenizers import Tokenizer

from preparation.texts import train, write_tiktoken_plugin


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
    """A folder for sys.path with the encoding tiny_bytes."""
    return write_tiktoken_plugin(tmp_path_factory.mktemp("plugin"))


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
