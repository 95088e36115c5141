"""SIGKILL at every request of a writer, a preparation and a merge to an object store, and what comes after it."""

import multiprocessing
import os
import shutil
import signal

import pytest

from headrace import merge_index, prepare
from headrace.datasets import MDSWriter, SampleStorage
from headrace.store import FolderStore
from headrace.testing import FaultStore, Rule, Run
from remote_scenes import FlatFolder
from writing_scenes import COLUMNS, files_in, fill, ids_in, sample, write

FORK = multiprocessing.get_context("fork")
OLD, NEW = list(range(100, 125)), list(range(30))


def records(split):
    for number in range(split * 15, split * 15 + 15):
        yield sample(number)


def plain(store):
    write(store, NEW, max_workers=1)


def overwriting(store):
    write(store, NEW, max_workers=1, exist_ok=True)


def resuming(store):
    with MDSWriter(columns=COLUMNS, out=store, resume=True, max_workers=1) as writing:
        done = writing.num_safe_samples
        if done < len(NEW):
            fill(writing, NEW[done:])


def preparing(store):
    prepare([0, 1], records, SampleStorage(store, COLUMNS), workers=1, progress=False, overwrite=True)


def merging(store):
    merge_index(store)


COMMANDS = {
    "plain": (plain, None, overwriting),
    "plain, then resumed": (plain, None, resuming),
    "overwriting": (overwriting, OLD, overwriting),
    "preparing": (preparing, None, preparing),
    "preparing over another": (preparing, OLD, preparing),
    "merging": (merging, None, merging),
}


def start(folder, command, before):
    """What is there before the command."""
    shutil.rmtree(folder, ignore_errors=True)
    store = FlatFolder(folder)
    if before is not None:
        write(store, before)
    if command is merging:
        for part in (0, 1):
            write(FolderStore(store, f"part-{part}"), NEW[part * 15 : part * 15 + 15])
    return store


def die(store, command, nth):
    """Run the command in a process that is killed at its nth request; whether it was."""
    rules = [Rule(Run(lambda _: os.kill(os.getpid(), signal.SIGKILL)), nth=nth)]
    process = FORK.Process(target=command, args=(FaultStore(store, rules),))
    process.start()
    process.join(30)
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def check_every(folder, name, stride):
    command, before, again = COMMANDS[name]
    undisturbed = start(folder, command, before)
    command(undisturbed)
    expected = files_in(undisturbed)
    nth = 1
    while True:
        store = start(folder, command, before)
        killed = die(store, command, nth)
        assert ids_in(store) in (None, before, NEW)
        again(store)
        assert ids_in(store) == NEW
        assert files_in(store) == expected
        if not killed:
            return nth
        nth += stride


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_is_killed_at_some_requests_ends_well_when_it_runs_again(name, tmp_path):
    assert check_every(tmp_path / "bucket", name, 17) > 1


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_is_killed_at_any_request_ends_well_when_it_runs_again(name, tmp_path):
    assert check_every(tmp_path / "bucket", name, 1) > 5
