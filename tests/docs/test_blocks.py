"""Every Python and console block of README and docs runs, in order, in a directory of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")


def runnable(page):
    return BLOCK.findall(page.read_text(encoding="utf-8"))


@pytest.fixture
def given(tmp_path):
    """What the pages take for granted: a folder of texts, and a tokenizer.json."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    texts = [f"Document {number} speaks of water, mills and the channel between them. " * 60 for number in range(40)]
    for number, text in enumerate(texts):
        (corpus / f"{number:03d}.txt").write_text(text, encoding="utf-8")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def script(blocks):
    """One Python program of all blocks; console lines become subprocesses at their place."""
    parts = ["import subprocess, sys"]
    for kind, text in blocks:
        if kind == "python":
            parts.append(text)
            continue
        for line in text.splitlines():
            command = line.removeprefix("$ ")
            if line.startswith("$ ") and not command.startswith("pip install"):  # this checkout is installed
                parts.append(f"subprocess.run({command!r}, shell=True, check=True)")
    return "\n".join(parts)


@pytest.mark.parametrize("page", [page for page in PAGES if runnable(page)], ids=lambda page: page.name)
def test_every_block_of_the_page_runs(page, given):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    for name in ("RANK", "WORLD_SIZE"):
        environment.pop(name, None)
    program = script(runnable(page))
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=given, env=environment, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_file_leads_somewhere(page):
    missing = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if not (page.parent / link).exists()]
    assert missing == []
