"""The other sides: GuideLoom and mosaicml-streaming, each in an interpreter of its own."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
GUIDELOOM = os.environ.get("HEADRACE_GUIDELOOM_PYTHON", "")
STREAMING = os.environ.get("HEADRACE_STREAMING_PYTHON", "")


def run(python, module, *arguments, **environment):
    """What the module printed there."""
    command = [python, "-m", f"interop.{module}", *map(str, arguments)]
    environment = os.environ | environment
    done = subprocess.run(command, cwd=TESTS, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout


def is_there(python):
    return bool(python) and shutil.which(python) is not None


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
        return run(GUIDELOOM, "guideloom_side", self._kind, *arguments)


class Streaming:
    """streaming_side.py. What it leaves in the temporary directory is left in one of its own."""

    def __init__(self, temporary):
        self._temporary = str(temporary)

    def knows(self):
        """Names of all its encodings, dtypes, compressions and hashes, and the releases of its codecs."""
        return json.loads(self._run("knows"))

    def write(self, directory):
        """Write every case with mosaicml-streaming."""
        self._run("write", directory)
        return directory

    def read(self, *directories):
        """What mosaicml-streaming sees in each directory, by case."""
        return json.loads(self._run("read", *directories))

    def _run(self, *arguments):
        return run(STREAMING, "streaming_side", *arguments, TMPDIR=self._temporary)


@pytest.fixture(scope="module")
def guideloom(request):
    """GuideLoom for the test module's KIND; `make interop` makes its interpreter and names it."""
    if not is_there(GUIDELOOM):
        pytest.skip("no interpreter with GuideLoom: `make interop` makes one where there is a Python 3.13")
    return GuideLoom(request.module.KIND)


@pytest.fixture(scope="session")
def streaming(tmp_path_factory):
    """mosaicml-streaming; `make interop` makes its interpreter and names it."""
    if not is_there(STREAMING):
        pytest.skip("no interpreter with mosaicml-streaming: `make interop` makes one")
    return Streaming(tmp_path_factory.mktemp("streaming"))


@pytest.fixture(scope="module")
def theirs(guideloom, tmp_path_factory):
    """A directory with every case as GuideLoom wrote it."""
    return guideloom.write(tmp_path_factory.mktemp("theirs"))


@pytest.fixture(scope="module")
def seen_in_theirs(guideloom, theirs):
    """What GuideLoom sees in its own directory."""
    return guideloom.read(theirs)[0]
