"""Streaming's two patterns of parallel conversion with their imports changed, and Headrace's own form of them."""

import subprocess
import sys
from pathlib import Path

import pytest

from headrace import SampleDataset

START = """
import multiprocessing, runpy, sys
if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[1])
    sys.argv[0] = sys.argv[2]
    runpy.run_path(sys.argv[2], run_name="__main__")
"""


def run(script, folder):
    done = subprocess.run([sys.executable, script], cwd=folder, check=True, timeout=100, capture_output=True, text=True)
    return done.stdout


def files_of(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("again", [False, True])
def test_fetching_in_parallel_for_one_writer_gives_one_shard_in_order(again, examples, tmp_path):
    for _ in range(1 + again):  # it removes what it wrote the last time
        output = run(examples / "convert_sequential.py", tmp_path)
    lines = output.splitlines()
    assert lines[-25:] == [str(number) for number in range(25)]
    assert sum(line.startswith("Initialize Worker PID: ") for line in lines) == 4
    assert sum(line.startswith("Worker PID: ") for line in lines) == 25
    assert files_of(tmp_path / "data") == ["index.json", "shard.00000.mds"]
    assert SampleDataset(tmp_path / "data")[:] == [{"number": number} for number in range(25)]


@pytest.mark.parametrize("again", [False, True])
def test_writing_groups_in_parallel_and_merging_them_gives_one_dataset_in_order(again, examples, tmp_path):
    for _ in range(1 + again):
        output = run(examples / "convert_groups.py", tmp_path)
    lines = output.splitlines()
    assert lines[-40:] == [str(number) for number in range(40)]
    assert lines[-43:-40] == ["Finished", "['0', '1', '2', '3']", "['0', '1', '2', '3', 'index.json']"]
    parts = [f"{group}/{name}" for group in range(4) for name in ("index.json", "shard.00000.mds")]
    assert files_of(tmp_path / "group_data") == [*parts, "index.json"]
    assert SampleDataset(tmp_path / "group_data")[:] == [{"number": number} for number in range(40)]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize(
    ("script", "folder", "count"), [("convert_sequential.py", "data", 25), ("convert_groups.py", "group_data", 40)]
)
def test_both_run_under_every_start_method(script, folder, count, method, examples, tmp_path):
    starter = tmp_path / "start.py"
    starter.write_text(START)
    subprocess.run([sys.executable, starter, method, examples / script], cwd=tmp_path, check=True, timeout=100)
    assert SampleDataset(tmp_path / folder)[:] == [{"number": number} for number in range(count)]


def test_the_short_form_writes_the_same_samples_and_goes_on_where_it_was(examples, tmp_path):
    first = run(examples / "prepare_samples.py", tmp_path)
    expected = str([*range(40)])
    assert first.splitlines()[-2:] == ["4 groups written, 0 were there", expected]
    before = files_of(tmp_path / "prepared_data")
    assert len([name for name in before if Path(name).name == "shard.00000.mds.zstd"]) == 4
    assert run(examples / "prepare_samples.py", tmp_path).splitlines()[-2:] == [
        *("0 groups written, 4 were there", expected)
    ]
    assert files_of(tmp_path / "prepared_data") == before
