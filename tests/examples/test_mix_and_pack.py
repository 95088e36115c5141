"""The example of a mixture in packed rows, as a reader would run it."""

import re
import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def output(examples, tmp_path_factory):
    """What it prints the first time, and the second, over the corpora that are there."""
    folder = tmp_path_factory.mktemp("mix")
    command = [sys.executable, examples / "mix_and_pack.py"]
    runs = [
        subprocess.run(command, cwd=folder, check=True, timeout=100, capture_output=True, text=True).stdout
        for _ in range(2)
    ]
    assert sorted(path.name for path in (folder / "data" / "mix-and-pack").iterdir()) == ["guides", "source", "tests"]
    return runs


def test_it_says_the_same_when_the_corpora_are_there(output):
    assert output[0] == output[1]


def test_shares_of_tokens_are_those_asked_for(output):
    shares = dict(re.findall(r"^(guides|source|tests) .* ([\d.]+)%$", output[0], re.MULTILINE))
    assert {name: round(float(share)) for name, share in shares.items()} == {"guides": 50, "source": 30, "tests": 20}


def test_rows_are_nearly_full_and_batches_count_their_targets(output):
    assert float(re.search(r"are ([\d.]+)% full", output[0])[1]) > 99
    assert re.search(r"num_targets +\(\) +torch.int64 = \d+", output[0])


def test_other_numbers_of_ranks_go_on_with_the_same_global_batches(output):
    assert re.findall(r"^(\d) ranks go on for 12.* (\w+)$", output[0], re.MULTILINE) == [("2", "True"), ("3", "True")]
