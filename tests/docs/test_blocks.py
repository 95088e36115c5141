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
REMOTE = [ROOT / "docs" / "object-stores.md"]  # their s3:// is a server of the tests, which `make remote` has
SPARK = [ROOT / "docs" / "recipes" / "spark.md"]  # tests/interop/test_spark.py runs them, where Spark is
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")
ANCHOR = re.compile(r"\]\((?!https?://)([^)#]*)#([^)]+)\)")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


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


def run(program, folder, more):
    """Run it as a newcomer would, in this folder."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, **more}
    for name in ("RANK", "WORLD_SIZE"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=environment, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "page", [page for page in PAGES if runnable(page) and page not in (*REMOTE, *SPARK)], ids=lambda page: page.name
)
def test_every_block_of_the_page_runs(page, given):
    run(script(runnable(page)), given, {})


@pytest.mark.servers
@pytest.mark.parametrize("page", REMOTE, ids=lambda page: page.name)
def test_every_block_of_the_page_runs_against_a_real_store(page, given, s3_url, s3_options):
    program = script(runnable(page)).replace("s3://my-bucket", s3_url)
    keys = s3_options["credentials"]
    environment = {
        "AWS_ENDPOINT_URL": s3_options["endpoint"],
        "AWS_REGION": s3_options["region"],
        "AWS_ACCESS_KEY_ID": keys["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": keys["secret_access_key"],
        "AWS_ALLOW_HTTP": "true",
    }
    run(program, given, environment)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_file_leads_somewhere(page):
    missing = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if not (page.parent / link).exists()]
    assert missing == []


def headings(page):
    """The names by which its headings are linked to."""
    found = HEADING.findall(FENCED.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_heading_leads_to_one(page):
    links = ANCHOR.findall(page.read_text(encoding="utf-8"))
    missing = [f"{to}#{name}" for to, name in links if name not in headings(page.parent / to if to else page)]
    assert missing == []
