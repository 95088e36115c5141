"""A tokenizer, and texts in every kind of file."""

import gzip

import pytest
import zstandard

from cli.commands import TEXTS
from preparation.texts import train, write_jsonl


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    return train(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


@pytest.fixture
def corpus(tmp_path):
    """Four inputs of four kinds, with TEXTS in order, the last one as a text file."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    write_jsonl(folder / "a.jsonl", TEXTS[:200])
    write_jsonl(folder / "b.jsonl", TEXTS[200:300])
    (folder / "b.jsonl.gz").write_bytes(gzip.compress((folder / "b.jsonl").read_bytes()))
    (folder / "b.jsonl").unlink()
    write_jsonl(folder / "c.jsonl", TEXTS[300:399])
    (folder / "c.jsonl.zst").write_bytes(zstandard.compress((folder / "c.jsonl").read_bytes()))
    (folder / "c.jsonl").unlink()
    (folder / "d.txt").write_text(TEXTS[399])
    return folder
