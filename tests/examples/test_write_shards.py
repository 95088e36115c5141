"""The example of writing shards from several processes, under both start methods."""

import subprocess
import sys
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parents[1] / "golden" / "guideloom" / "stream_tokens" / "data"  # as GuideLoom wrote them
START = """
import multiprocessing, sys
if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[1])
    sys.path.insert(0, sys.argv[2])
    import write_shards
    write_shards.main()
"""


def assert_four_shards(folder):
    for shard in range(4):
        name = f"{shard:07d}.in_band.bin"
        assert (folder / name).read_bytes() == (GOLDEN / name).read_bytes()
    assert len(list(folder.glob("*.bin"))) == 4


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_the_example_writes_the_same_four_files_under_either_start_method(method, examples, tmp_path):
    subprocess.run([sys.executable, "-c", START, method, examples], cwd=tmp_path, check=True, timeout=100)
    assert_four_shards(tmp_path / "data" / "sharded-tokens")


def test_the_example_runs_as_a_script_and_says_what_it_did(examples, tmp_path):
    command = [sys.executable, examples / "write_shards.py"]
    result = subprocess.run(command, cwd=tmp_path, check=True, timeout=100, capture_output=True, text=True)
    assert result.stdout == "Finished 4 shards in data/sharded-tokens\n"
    assert_four_shards(tmp_path / "data" / "sharded-tokens")
