"""SIGKILL at every call that changes the directory, in turn, until a run survives; then the same command again.

After each kill the directory is opened: it is unfinished, or it is one whole version. After the second run it is, byte
for byte, what an undisturbed run gives, and nothing else lies in it.
"""

import collections
import os
import random
import shutil
from pathlib import Path

import pytest

from crash import workloads
from headrace.errors import NoDatasetError, UnfinishedDatasetError

pytestmark = [pytest.mark.crash, pytest.mark.timeout(1200)]

PARTS = 4  # each test case dies at every PARTS-th point, so that processes can share the work
STRIDE = int(os.environ.get("HEADRACE_CRASH_STRIDE", "1"))  # 3: only every third point, for a quick look
NO_OLD = None


def data_of(folder):
    """Name -> bytes of what readers read."""
    return {path.name: path.read_bytes() for path in sorted(Path(folder).glob("*")) if path.is_file()}


def leftovers(folder):
    """What no finished run may leave: files in flight, attempts, leases."""
    private = Path(folder) / ".headrace"
    found = [path for path in Path(folder).rglob("*") if path.name.endswith(".tmp")]
    for name in ("attempts", "leases"):
        below = (private / name).rglob("*")
        found += [path for path in below if path.is_file() or name == "attempts"]
    return [str(path.relative_to(folder)) for path in found]


def contents_of(folder, kind):
    """All samples, or None where the directory says that it is not finished."""
    storage = kind.storage_at(folder)
    try:
        contents = kind.contents(storage)
    except (UnfinishedDatasetError, NoDatasetError):
        return None
    assert storage.verify() == []
    return contents


class Scene:
    """A directory before the crash, a command that dies in it, and a command that must put it right."""

    def __init__(self, runner, tmp_path, kind, work, *, before=(), again=None):
        self.runner, self.kind, self.work, self.again = runner, getattr(workloads, kind), work, again or work
        self.name = kind
        self.template, self.folder = tmp_path / "template", tmp_path / "data"
        for earlier in before:
            outcome = self.run(earlier, self.template)
            assert outcome["code"] == 0, outcome["error"]
        self.reset()
        outcome = self.run(self.again, self.folder)
        assert outcome["code"] == 0, outcome["error"]
        self.num_calls = sum(outcome["kinds"].values())
        self.expected = data_of(self.folder)
        old, whole = self.kind.old, self.kind.whole
        self.whole = [whole(self.kind.new), *([whole(old), whole(old[:2])] if before else [])]
        assert contents_of(self.folder, self.kind) == self.whole[0]

    def run(self, work, folder, nth=0, **how):
        return self.runner.run(f"{self.name}.{work}", folder, nth, **how)

    def reset(self):
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.template.exists():
            shutil.copytree(self.template, self.folder)

    def die_everywhere(self, part, step=PARTS * STRIDE, **how):
        kinds = collections.Counter()
        nth = 1 + part * STRIDE
        while True:
            self.reset()
            outcome = self.run(self.work, self.folder, nth, **how)
            if outcome["fired"] is None:
                assert outcome["code"] == 0, outcome["error"]
                assert data_of(self.folder) == self.expected
                assert leftovers(self.folder) == []
                return kinds
            kinds[outcome["fired"]] += 1
            self.check(nth, outcome)
            nth += step

    def check(self, nth, outcome):
        place = f"killed at call {nth}, {outcome['fired']}"
        seen = contents_of(self.folder, self.kind)
        assert seen is None or seen in self.whole, f"{place}: a reader sees {seen}"
        outcome = self.run(self.again, self.folder)
        assert outcome["code"] == 0, f"{place}, and then the next run failed:\n{outcome['error']}"
        assert data_of(self.folder) == self.expected, place
        assert leftovers(self.folder) == [], place


def record(record_property, name, kinds):
    assert kinds.total() > 0
    record_property("crash points", {"of": name, "kinds": dict(kinds)})


COMMANDS = {
    "a writer of two shards": {"work": "write"},
    "a writer of two shards, then publish()": {"work": "write_and_publish"},
    "a writer over two unpublished shards": {"work": "write", "before": ["write_old_unpublished"]},
    "overwrite=True over three published shards": {"work": "overwrite", "before": ["write_old"]},
    "overwrite=True over three files of GuideLoom's": {"work": "overwrite", "before": ["write_old_foreign"]},
    "publish()": {"work": "publish", "before": ["write"]},
}
# How a dataset is published does not depend on its kind; how many files its shards have, and had, does.
OF_SHARDS = [command for command in COMMANDS if "publish()" not in command]
CASES = [
    *(("stream", command) for command in COMMANDS),
    *(("documents", command) for command in OF_SHARDS),
    *(("annotated", command) for command in OF_SHARDS),
]


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize(("kind", "command"), CASES)
def test_a_run_killed_at_any_call_leaves_nothing_half_done(kind, command, part, runner, tmp_path, record_property):
    scene = Scene(runner, tmp_path, kind, **COMMANDS[command])
    record(record_property, f"{kind}, {command}", scene.die_everywhere(part))


@pytest.mark.parametrize(("kind", "command"), CASES)
def test_a_run_killed_in_the_middle_of_any_write_leaves_nothing_half_done(
    kind, command, runner, tmp_path, record_property
):
    scene = Scene(runner, tmp_path, kind, **COMMANDS[command])
    kinds = sum((scene.die_everywhere(part, half=True) for part in range(PARTS)), collections.Counter())
    record(record_property, f"{kind}, {command}, half a write", kinds)


@pytest.mark.parametrize(("kind", "command"), CASES)
def test_a_run_killed_and_killed_again_while_it_goes_on_leaves_nothing_half_done(
    kind, command, runner, tmp_path, record_property
):
    scene = Scene(runner, tmp_path, kind, **COMMANDS[command])
    draw, kinds = random.Random(f"{kind}, {command}"), collections.Counter()
    for _ in range(max(4, (40 if kind == "stream" else 20) // STRIDE)):
        scene.reset()
        places = []
        while True:  # until a run survives
            outcome = scene.run(scene.work, scene.folder, draw.randint(1, 2 * scene.num_calls))
            if outcome["fired"] is None:
                break
            places.append(f"{outcome['fired']} {sum(outcome['kinds'].values())}")
            kinds[outcome["fired"]] += 1
            seen = contents_of(scene.folder, scene.kind)
            assert seen is None or seen in scene.whole, f"killed at {places}: a reader sees {seen}"
        assert outcome["code"] == 0, f"killed at {places}, and then the next run failed:\n{outcome['error']}"
        assert data_of(scene.folder) == scene.expected, places
        assert leftovers(scene.folder) == [], places
    record(record_property, f"{kind}, {command}, again and again", kinds)


PREPARATIONS = {
    "prepare() with two processes": {
        "work": "prepare_in_two_processes",
        "again": "prepare_in_one_process",
    },
    "prepare(overwrite=True) with two processes": {
        "work": "prepare_over_in_two_processes",
        "again": "prepare_over_in_one_process",
        "before": ["write_old"],
    },
}


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("target", ["parent", "child"])
@pytest.mark.parametrize("command", PREPARATIONS)
def test_prepare_killed_at_any_call_of_parent_or_child_goes_on(
    command, target, part, runner, tmp_path, record_property
):
    scene = Scene(runner, tmp_path, "stream", **PREPARATIONS[command])
    record(record_property, f"stream, {command}, {target}", scene.die_everywhere(part, target=target))


@pytest.mark.parametrize("kind", ["documents", "annotated"])
def test_prepare_of_every_kind_killed_at_calls_of_its_children_goes_on(kind, runner, tmp_path, record_property):
    """Every 8th call only: starting two processes is what costs."""
    command = "prepare(overwrite=True) with two processes"
    scene = Scene(runner, tmp_path, kind, **PREPARATIONS[command])
    kinds = scene.die_everywhere(2, target="child", step=2 * PARTS * STRIDE)
    record(record_property, f"{kind}, {command}, child", kinds)
