"""A second opinion on kill_at.c: strace, outside the process, kills at each rename and unlink that the kernel sees."""

import shutil
import subprocess
import sys

import pytest

from crash import workloads
from crash.conftest import HERE
from crash.test_kill_everywhere import contents_of, data_of, leftovers

pytestmark = [pytest.mark.crash, pytest.mark.timeout(1200)]

CALLS = {"rename": "rename,renameat,renameat2", "unlink": "unlink,unlinkat,rmdir", "link": "link,linkat"}
SCRIPT = "import sys, workloads; workloads.stream.write_and_publish(sys.argv[1])"


def run(folder, calls, nth):
    command = [
        "strace",
        "-f",
        "-o",
        "/dev/null",
        "-e",
        f"trace={calls}",
        "-e",
        f"inject={calls}:signal=KILL:when={nth}",
    ]
    command += [sys.executable, "-B", "-c", SCRIPT, folder]
    return subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=100)


@pytest.fixture(scope="module")
def strace():
    if shutil.which("strace") is None:
        pytest.skip("needs strace (Debian: apt-get install strace)")
    probe = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, text=True)
    if probe.returncode:
        pytest.skip(f"strace may not trace here: {probe.stderr.strip()[-200:]}")


@pytest.mark.parametrize("kind", CALLS)
def test_a_writer_killed_by_strace_leaves_nothing_half_done(kind, strace, tmp_path, record_property):
    whole = tmp_path / "whole"
    workloads.stream.write_and_publish(whole)
    nth = 0
    while True:
        nth += 1
        folder = tmp_path / str(nth)
        result = run(folder, CALLS[kind], nth)
        killed = result.returncode in (-9, 137)
        assert killed or result.returncode == 0, result.stderr
        seen = contents_of(folder, workloads.stream)
        assert seen is None or seen == workloads.stream.whole(workloads.stream.new)
        if killed:
            workloads.stream.write_and_publish(folder)
        assert data_of(folder) == data_of(whole)
        assert leftovers(folder) == []
        if not killed:
            break
    assert nth > 3
    record_property(
        "crash points", {"of": "a writer of two shards, then publish(), by strace", "kinds": {kind: nth - 1}}
    )
