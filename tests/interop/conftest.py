"""The other sides: GuideLoom, mosaicml-streaming, d9d and Spark, each in an interpreter of its own."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import ClassVar

import pytest

TESTS = Path(__file__).parents[1]
GUIDELOOM = os.environ.get("HEADRACE_GUIDELOOM_PYTHON", "")
STREAMING = os.environ.get("HEADRACE_STREAMING_PYTHON", "")
D9D = os.environ.get("HEADRACE_D9D_PYTHON", "")
SPARK = os.environ.get("HEADRACE_SPARK_PYTHON", "")


def run(python, module, *arguments, **environment):
    """What the module of this folder printed there."""
    return run_module(python, f"interop.{module}", *arguments, **environment)


def run_module(python, module, *arguments, **environment):
    """What the module printed there. Asked to end when it takes too long: torchrun then takes its ranks along."""
    command = [python, "-m", module, *map(str, arguments)]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=TESTS, env=os.environ | environment, **options) as process:
        try:
            printed, errors = process.communicate(timeout=200)
        except subprocess.TimeoutExpired:
            process.terminate()
            raise
    assert process.returncode == 0, errors
    return printed


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


class D9d:
    """d9d_trainer.py and d9d_side.py, each in a process of its own, or in several."""

    def see(self, requests):
        """What d9d makes of each request; the names are functions of d9d_side.py."""
        return json.loads(run(D9D, "d9d_on_cpu", "interop.d9d_side", json.dumps(requests)))

    def train(self, root, jobs, module="d9d_trainer"):
        """Train in d9d's loop (d9d_guest: in Headrace's), one job after another, in as many processes as the first has
        ranks. A job's "out" is a folder below root. Microbatches by rank, and the losses, by name of the job."""
        ranks = jobs[0].get("ranks", 1)
        jobs = [{**job, "out": str(root / job["out"])} for job in jobs]
        for job in jobs:
            Path(job["out"]).mkdir(exist_ok=True)
        alone = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        program = ["interop.d9d_on_cpu", f"interop.{module}", json.dumps(jobs)]
        if ranks > 1:
            torchrun = ["--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={ranks}", "-m"]
            program = ["torch.distributed.run", *torchrun, *program]
        run_module(D9D, *program, **alone)
        left = {
            job["name"]: [
                json.loads((Path(job["out"]) / f"{job['name']}-{rank}.json").read_text()) for rank in range(ranks)
            ]
            for job in jobs
        }
        return {name: ([one["microbatches"] for one in ones], ones[0]["losses"]) for name, ones in left.items()}


class Spark:
    """spark_side.py: Spark on this machine, with Headrace in its workers."""

    _environment: ClassVar = {"PYSPARK_PYTHON": SPARK, "SPARK_LOCAL_IP": "127.0.0.1"}

    def write(self, directory):
        """Write every case; what Spark raised, by case."""
        printed = run(SPARK, "spark_side", directory, **self._environment)
        return json.loads(printed.splitlines()[-1])

    def run(self, program, directory):
        """Run a program in this directory; it fails as the program does."""
        environment = os.environ | self._environment
        command = [SPARK, "-c", program]
        done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="session")
def spark():
    """Spark; `make interop` makes its interpreter and names it."""
    if not is_there(SPARK):
        pytest.skip("no interpreter with PySpark: `make interop` makes one")
    if shutil.which("java") is None:
        pytest.skip("no Java, which Spark runs on")
    return Spark()


@pytest.fixture(scope="session")
def d9d():
    """d9d; `make interop` makes its interpreter and names it."""
    if not is_there(D9D):
        pytest.skip("no interpreter with d9d: `make interop` makes one")
    return D9d()


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
