"""`headrace cp` as users run it."""

import signal
import subprocess
import time

import pytest

from cli.commands import HEADRACE, headrace, headrace_here, one_error_line
from headrace.datasets import SampleDataset
from headrace.store import LocalStore
from writing_scenes import files_in, ids_in, write


@pytest.fixture
def samples(tmp_path):
    write(LocalStore(tmp_path / "a", fsync=False), range(45))
    return tmp_path / "a"


def test_a_dataset_is_copied_and_the_report_says_what_was_done(samples, tmp_path):
    done = headrace("cp", samples, tmp_path / "b")
    assert done.returncode == 0, done.stderr
    with SampleDataset(samples) as dataset:
        fingerprint = dataset.fingerprint
    assert f"{tmp_path / 'b'}: 5 files, " in done.stdout
    assert f"0 were there already, fingerprint {fingerprint}" in done.stdout
    assert done.stderr == ""
    assert files_in(tmp_path / "b") == files_in(samples)
    again = headrace_here("cp", samples, tmp_path / "b", "--workers", 2)
    assert "0 files, " in again.stdout
    assert "5 were there already" in again.stdout
    assert headrace_here("cp", samples, tmp_path / "c", "-q").stdout == ""
    assert ids_in(tmp_path / "c") == list(range(45))


def test_what_is_refused_is_one_line_and_nothing_is_changed(samples, tmp_path):
    write(LocalStore(tmp_path / "other", fsync=False), range(5))
    before = files_in(tmp_path / "other")
    one_error_line(headrace_here("cp", samples, tmp_path / "other"), "other", "holds another dataset")
    assert files_in(tmp_path / "other") == before
    one_error_line(headrace_here("cp", tmp_path / "absent", tmp_path / "b"), "absent")
    one_error_line(headrace_here("cp", samples, samples / "b"), "destination=")
    one_error_line(headrace_here("cp", samples, "nosuch://bucket/b"), "nosuch://bucket/b")
    assert not (tmp_path / "b").exists()
    assert headrace_here("cp", samples, tmp_path / "b", "--workers", 0).returncode == 2
    assert headrace_here("cp", samples).returncode == 2


def test_after_ctrl_c_the_same_command_goes_on(tmp_path):
    source, target = tmp_path / "a", tmp_path / "b"
    source.mkdir()
    for shard in range(40):  # as another program writes them
        (source / f"{shard:07d}.in_band.bin").write_bytes(bytes(2 << 20))
    command = [*HEADRACE, "cp", source, target, "--workers", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not list(target.glob("*.bin")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=30)
    assert (process.returncode, output) == (130, "")
    assert errors == f"interrupted: {target} is unfinished; run the same command again to go on where it stopped\n"
    there = len(list(target.glob("*.bin")))
    assert there < 40
    done = headrace("cp", source, target)
    assert done.returncode == 0, done.stderr
    assert f"{40 - there} files" in done.stdout
    assert f"{there} were there already" in done.stdout
    assert sorted(path.name for path in target.iterdir()) == sorted(path.name for path in source.iterdir())
    assert all(path.stat().st_size == 2 << 20 for path in target.iterdir())


def test_the_help_has_an_example():
    shown = headrace_here("cp", "--help").stdout
    assert "headrace cp tokens s3://bucket/tokens" in shown
