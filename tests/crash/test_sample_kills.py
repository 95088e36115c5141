"""SIGKILL at every call of a writer of samples that changes the directory; then commands that must put it right.

After each kill a reader finds the dataset unfinished, or one whole version. The same command again, a writer that
resumes, and a plain one each end with exactly the files of an undisturbed run, or are refused because a whole dataset
is there; nothing else is left.
"""

import collections
import os
import random
import shutil
from pathlib import Path

import pytest

from crash import sample_workloads
from headrace.datasets import SampleDataset
from headrace.errors import NoDatasetError, UnfinishedDatasetError

pytestmark = [pytest.mark.crash, pytest.mark.timeout(1200)]

PARTS = 2  # each test case dies at every PARTS-th point, so that processes can share the work
STRIDE = int(os.environ.get("HEADRACE_CRASH_STRIDE", "1"))  # 3: only every third point, for a quick look
NEW, OLD = list(sample_workloads.NEW), list(sample_workloads.OLD)


def tree(folder):
    """Path -> bytes of everything there, hidden files and folders (None) included."""
    paths = Path(folder).rglob("*")
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in paths}


def visible(files):
    """What of them is no writer's note or file in flight."""
    return {path: data for path, data in files.items() if ".headrace" not in path and not path.endswith(".tmp")}


def ids_in(folder):
    """The ids that a reader finds, or None where the directory says that it is not finished."""
    try:
        with SampleDataset(folder, verify=False) as dataset:
            found = dataset[:]
            assert dataset.verify() == []
    except (UnfinishedDatasetError, NoDatasetError):
        return None
    assert found == [sample_workloads.sample(one["id"]) for one in found]
    return [one["id"] for one in found]


class Scene:
    """A directory before the crash, a command that dies in it, and what it must come to."""

    def __init__(self, runner, path, kind, work):
        self.runner, self.name, self.work = runner, kind, work
        self.kind = getattr(sample_workloads, kind)
        self.template, self.folder, self.copy = (path / name for name in ("template", "data", "copy"))
        self.template.mkdir()
        if work == "overwrite":
            self.run("write_old", self.template, code=0)
        self.reset(self.template, self.folder)
        outcome = self.die(0)
        assert outcome["code"] == 0, outcome["error"]
        self.num_calls, self.expected = sum(outcome["kinds"].values()), tree(self.folder)
        assert self.seen(self.folder) == [NEW] * len(self.kind.places(""))

    def reset(self, source, target):
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)

    def run(self, work, folder, *, code):
        """The files after an undisturbed run, which ends with this code; 1 means that it was refused."""
        outcome = self.runner.run(f"{self.name}.{work}", folder, module="sample_workloads")
        assert outcome["code"] == code, outcome["error"]
        assert code == 0 or "ExistingOutputError" in outcome["error"], outcome["error"]
        return tree(folder)

    def die(self, nth, **how):
        """Run the command until its nth call; 0 is to its end."""
        return self.runner.run(f"{self.name}.{self.work}", self.folder, nth, module="sample_workloads", **how)

    def seen(self, folder):
        return [ids_in(place) for place in self.kind.places(folder)]

    def die_everywhere(self, part, **how):
        kinds = collections.Counter()
        nth = 1 + part * STRIDE
        while True:
            self.reset(self.template, self.folder)
            outcome = self.die(nth, **how)
            if outcome["fired"] is None:
                assert outcome["code"] == 0, outcome["error"]
                assert tree(self.folder) == self.expected
                return kinds
            kinds[outcome["fired"]] += 1
            self.check(f"killed at call {nth}, {outcome['fired']}")
            nth += PARTS * STRIDE

    def check(self, place):
        """Readers first, then each of the commands, on what the killed one left."""
        seen = self.seen(self.folder)
        assert all(ids in (None, NEW, OLD if self.work == "overwrite" else NEW) for ids in seen), f"{place}: {seen}"
        for command in dict.fromkeys([self.work, *self.kind.others]):
            self.reset(self.folder, self.copy)
            if command == "overwrite" or seen[-1] is None or not self.kind.refuses_whole:
                assert self.run(command, self.copy, code=0) == self.expected, (place, command)
                continue
            # A whole dataset is where it counts: what is there stays as it is, here and in a pair's local directory.
            after = self.run(command, self.copy, code=0 if command == "resume" else 1)
            assert visible(after) == visible(tree(self.folder)), (place, command)
            assert self.seen(self.copy) == seen, (place, command)
            if command == "resume" and None not in seen:
                assert after == visible(after), (place, command)


def record(record_property, name, kinds):
    assert kinds.total() > 0
    record_property("crash points", {"of": name, "kinds": dict(kinds)})


CASES = [
    *((kind, "write") for kind in ("mds", "mds_zstd", "mds_spilled", "mds_pair", "json", "json_zstd", "json_workers")),
    *((kind, "overwrite") for kind in ("mds_zstd", "mds_pair", "json", "json_pair")),
    ("prepared", "write"),
    ("prepared", "overwrite"),
]


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize(("kind", "command"), CASES)
def test_a_writer_killed_at_any_call_leaves_nothing_half_done(kind, command, part, runner, quick_path, record_property):
    scene = Scene(runner, quick_path, kind, command)
    record(record_property, f"{kind}, {command}", scene.die_everywhere(part))


@pytest.mark.parametrize(("kind", "command"), [("mds", "write"), ("mds_spilled", "write"), ("json", "overwrite")])
def test_a_writer_killed_in_the_middle_of_any_write_leaves_nothing_half_done(
    kind, command, runner, quick_path, record_property
):
    scene = Scene(runner, quick_path, kind, command)
    kinds = sum((scene.die_everywhere(part, half=True) for part in range(PARTS)), collections.Counter())
    record(record_property, f"{kind}, {command}, half a write", kinds)


@pytest.mark.parametrize(("kind", "command"), [("mds", "resume"), ("json_pair", "resume"), ("json_zstd", "overwrite")])
def test_a_writer_killed_and_killed_again_while_it_goes_on_leaves_nothing_half_done(
    kind, command, runner, quick_path, record_property
):
    scene = Scene(runner, quick_path, kind, command)
    draw, kinds = random.Random(f"{kind}, {command}"), collections.Counter()
    for _ in range(max(4, 30 // STRIDE)):
        scene.reset(scene.template, scene.folder)
        places = []
        while True:  # until a run survives
            outcome = scene.die(draw.randint(1, 2 * scene.num_calls))
            if outcome["fired"] is None:
                break
            places.append(f"{outcome['fired']} {sum(outcome['kinds'].values())}")
            kinds[outcome["fired"]] += 1
            seen = scene.seen(scene.folder)
            assert all(ids in (None, NEW, OLD) for ids in seen), f"killed at {places}: {seen}"
        assert outcome["code"] == 0, f"killed at {places}, and then the next run failed:\n{outcome['error']}"
        assert tree(scene.folder) == scene.expected, places
    record(record_property, f"{kind}, {command}, again and again", kinds)
