"""SIGKILL at every request that changes a store without renames, until a run survives; then the same command again."""

import contextlib
import os
import signal

import numpy as np
import pytest

from flat_stores import KINDS, FlatFolder, leftovers, objects_in, spools, write
from headrace.errors import NoDatasetError, UnfinishedDatasetError
from headrace.preparation import prepare
from headrace.testing import FaultStore, Rule, Run
from interference import FORK

pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]

OLD = [range(100, 104), range(104, 109), range(109, 112)]
NEW = [range(4), range(4, 9)]  # shards as long as the old ones


CHANGES = ("put", "put_if_absent", "upload", "delete")


class EndAt:
    """Ends the process before its nth request that changes something."""

    def __init__(self, nth):
        self.left = nth

    def __call__(self, call):
        """One request."""
        self.left -= call.operation in CHANGES
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def write_new(kind):
    write(kind, NEW)


def write_and_publish(kind):
    if not kind.storage.is_published():
        write(kind, NEW)
    kind.storage.publish()


def overwrite(kind):
    write(kind, NEW, overwrite=True, publish=True)


def prepare_here(kind):
    prepare(NEW, numbers, kind.storage, workers=1, progress=False)


def prepare_over(kind):
    prepare(NEW, numbers, kind.storage, workers=1, progress=False, overwrite=True)


def numbers(split):
    yield np.array(split, np.uint16)


def write_old(kind):
    write(kind, OLD, publish=True)


def write_old_unpublished(kind):
    write(kind, OLD[:2])


COMMANDS = {
    "a writer of two shards": (write_new, None),
    "a writer of two shards, then publish()": (write_and_publish, None),
    "a writer over two unpublished shards": (write_new, write_old_unpublished),
    "overwrite=True over three published shards": (overwrite, write_old),
}
CASES = [(kind, command) for kind in KINDS for command in COMMANDS]
PREPARED = {"prepare()": (prepare_here, None), "prepare(overwrite=True)": (prepare_over, write_old)}


def killed(work, kind_name, folder, nth):
    """Whether work, in a process of its own, died before its nth request that changes something."""

    def main():
        store = FaultStore(FlatFolder(folder), [Rule(Run(EndAt(nth)))])
        try:
            work(KINDS[kind_name](store))
        finally:
            os._exit(0 if store.calls else 1)

    process = FORK.Process(target=main)
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def data_in(store):
    return {path: data for path, data in objects_in(store).items() if "/" not in path}


def contents(kind):
    """All numbers; None where the place says that it is not finished."""
    try:
        found = kind.contents()
    except (UnfinishedDatasetError, NoDatasetError):
        return None
    assert kind.storage.verify() == []
    return found


def flattened(shards):
    return [number for shard in shards for number in shard]


def die_everywhere(kind_name, work, before, tmp_path):
    expected = FlatFolder(tmp_path / "expected")
    if before is not None:
        before(KINDS[kind_name](expected))
    work(KINDS[kind_name](expected))
    whole = [flattened(NEW), *([flattened(OLD), flattened(OLD[:2])] if before else [])]
    nth = 0
    while True:
        nth += 1
        store = FlatFolder(tmp_path / str(nth))
        kind = KINDS[kind_name](store)
        if before is not None:
            before(kind)
        died = killed(work, kind_name, store.root, nth)
        found = contents(kind)
        assert found is None or found in whole, (nth, found)
        work(kind)
        assert data_in(store) == data_in(expected), nth
        assert leftovers(store) == [], nth
        if not died:
            return nth


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    yield
    assert spools(folder) == []


@pytest.mark.parametrize(("kind", "command"), CASES)
def test_a_run_killed_at_any_request_leaves_nothing_half_done(kind, command, tmp_path, record_property):
    requests = die_everywhere(kind, *COMMANDS[command], tmp_path)
    assert requests > 5
    record_property(
        "crash points", {"of": f"{kind}, {command}, in an object store", "kinds": {"request": requests - 1}}
    )


@pytest.mark.parametrize("command", PREPARED)
def test_a_preparation_killed_at_any_request_leaves_nothing_half_done(command, tmp_path, record_property):
    requests = die_everywhere("stream", *PREPARED[command], tmp_path)
    record_property("crash points", {"of": f"{command} in an object store", "kinds": {"request": requests - 1}})


def test_a_run_killed_again_and_again_while_it_goes_on_leaves_nothing_half_done(tmp_path):
    for kind_name in KINDS:
        for first in (2, 5, 8, 11):
            store = FlatFolder(tmp_path / f"{kind_name}-{first}")
            kind = KINDS[kind_name](store)
            write_old(kind)
            for nth in (first, 3, 6, 9, 12):
                killed(overwrite, kind_name, store.root, nth)
                assert contents(kind) in (None, flattened(OLD), flattened(NEW))
            overwrite(kind)
            assert kind.contents() == flattened(NEW)
            assert leftovers(store) == []


def test_recover_removes_what_a_killed_writer_left(tmp_path):
    store = FlatFolder(tmp_path / "data")
    assert killed(write_new, "stream", store.root, 6)
    assert leftovers(store)
    with contextlib.suppress(UnfinishedDatasetError):
        KINDS["stream"](store).storage.recover()
    assert leftovers(store) == []
