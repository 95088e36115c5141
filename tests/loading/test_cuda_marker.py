"""Tests that need CUDA are skipped where there is none, and the last lines of a run say how many."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"
TESTS = """
import pytest

@pytest.mark.cuda
@pytest.mark.parametrize("number", range({number}))
def test_on_a_gpu(number):
    raise AssertionError("there is none")

@pytest.mark.skip(reason="for another reason")
def test_another():
    pass

def test_anywhere():
    pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("processes", [0, 2])
@pytest.mark.parametrize(
    ("number", "said"), [(1, "1 test needs CUDA and was skipped"), (3, "3 tests need CUDA and were skipped")]
)
def test_the_tests_that_need_cuda_are_counted_aloud(tmp_path, monkeypatch, processes, number, said):
    shutil.copy(CONFTEST, tmp_path)
    (tmp_path / "test_some.py").write_text(TESTS.format(number=number))
    (tmp_path / "pytest.ini").write_text(
        f"[pytest]\npythonpath = {CONFTEST.parent}\nmarkers = cuda: needs a CUDA device\n"
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(processes), "-p", "no:cacheprovider", tmp_path]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert said in done.stdout.splitlines()
    assert f"1 passed, {number + 1} skipped" in done.stdout
