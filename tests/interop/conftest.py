"""The other side: GuideLoom in an interpreter of its own."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PYTHON = os.environ.get("HEADRACE_GUIDELOOM_PYTHON", "")


class GuideLoom:
    """guideloom_side.py, run for one kind of dataset."""

    def __init__(self, kind):
        self._kind = kind

    def write(self, directory):
        """Write every case with GuideLoom."""
        self._run("write", directory)
        return directory

    def read(self, *directories):
        """What GuideLoom sees in each directory, by case."""
        return json.loads(self._run("read", *directories))

    def _run(self, *arguments):
        command = [PYTHON, "-m", "interop.guideloom_side", self._kind, *map(str, arguments)]
        done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def guideloom(request):
    """GuideLoom for the test module's KIND; `make interop` makes its interpreter and names it."""
    if not PYTHON or shutil.which(PYTHON) is None:
        pytest.skip("no interpreter with GuideLoom: `make interop` makes one where there is a Python 3.13")
    return GuideLoom(request.module.KIND)


@pytest.fixture(scope="module")
def theirs(guideloom, tmp_path_factory):
    """A directory with every case as GuideLoom wrote it."""
    return guideloom.write(tmp_path_factory.mktemp("theirs"))


@pytest.fixture(scope="module")
def seen_in_theirs(guideloom, theirs):
    """What GuideLoom sees in its own directory."""
    return guideloom.read(theirs)[0]
