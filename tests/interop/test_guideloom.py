"""GuideLoom itself reads what Headrace wrote and published, and Headrace reads what GuideLoom wrote."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from cases import CASES, READS, records

from headrace import StreamDataset, StreamNumpyFormat, StreamStorage

pytestmark = pytest.mark.interop
HERE = Path(__file__).parent
PYTHON = os.environ.get("HEADRACE_GUIDELOOM_PYTHON", "")


@pytest.fixture(scope="module")
def guideloom():
    """Runs the other side in its own interpreter; `make interop` makes one and names it."""
    if not PYTHON or shutil.which(PYTHON) is None:
        pytest.skip("no interpreter with GuideLoom: `make interop` makes one where there is a Python 3.13")

    def run(*arguments):
        command = [PYTHON, str(HERE / "guideloom_side.py"), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def ours(root, name):
    return StreamStorage(root / name, StreamNumpyFormat(np.dtype(CASES[name])))


def written_by_us(root):
    for name in CASES:
        with ours(root, name).sync_writer() as writer:
            for shard, record in records(name):
                writer.append(shard, record)
        ours(root, name).publish({"by": "headrace"})


def seen_by_us(root):
    seen = {}
    for name in CASES:
        with ours(root, name).sync_reader() as reader:
            lengths = [reader.length(shard) for shard in range(reader.num_shards)]
            reads = [
                {field: values.tolist() for field, values in reader.read(start, length).items()}
                for start, length in READS
            ]
        windows = StreamDataset(ours(root, name), 5)
        items = [{field: values.tolist() for field, values in sample.items()} for sample in windows[:]]
        seen[name] = {"lengths": lengths, "reads": reads, "windows": items}
    return seen


def data_files(root):
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*.in_band.bin")}


def test_guideloom_reads_what_headrace_wrote_and_published(guideloom, tmp_path):
    written_by_us(tmp_path)
    assert json.loads(guideloom("read", tmp_path)) == seen_by_us(tmp_path)


def test_headrace_reads_what_guideloom_wrote(guideloom, tmp_path):
    guideloom("write", tmp_path)
    assert seen_by_us(tmp_path) == json.loads(guideloom("read", tmp_path))


def test_both_write_the_same_bytes(guideloom, tmp_path):
    guideloom("write", tmp_path / "theirs")
    written_by_us(tmp_path / "ours")
    assert data_files(tmp_path / "ours") == data_files(tmp_path / "theirs")
    assert len(data_files(tmp_path / "ours")) == 6 * len(CASES)
