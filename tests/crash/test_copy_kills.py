"""SIGKILL at every call of a copy that changes the directory: the copy is none or whole, and the next one ends it."""

import collections
import shutil
from pathlib import Path

import pytest

from headrace.datasets import SampleDataset, open_storage
from headrace.errors import NoDatasetError, UnfinishedDatasetError

pytestmark = [pytest.mark.crash, pytest.mark.timeout(1200)]

KINDS = ("stream", "receipts", "documents", "foreign", "samples", "parts")


def tree(folder):
    """Path -> bytes of everything there, hidden files and folders (None) included."""
    paths = Path(folder).rglob("*")
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in paths}


def is_whole(folder, kind):
    """Whether it opens, and then all is well."""
    try:
        if kind in ("samples", "parts"):
            with SampleDataset(folder) as dataset:
                assert dataset.verify() == []
        else:
            assert open_storage(folder).verify() == []
    except (UnfinishedDatasetError, NoDatasetError):
        return False
    return True


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_killed_anywhere_is_none_or_whole_and_the_next_leaves_nothing_else(
    kind, half, runner, quick_path, record_property
):
    folder = quick_path / "data"
    target = folder / "target"

    def run(work, nth=0, **how):
        return runner.run(f"{kind}.{work}", folder, nth, module="copy_workloads", **how)

    folder.mkdir()
    assert run("write")["code"] == 0
    assert run("copy")["code"] == 0
    expected = tree(target)
    assert is_whole(target, kind)
    kinds = collections.Counter()
    while True:
        shutil.rmtree(target)
        nth = kinds.total() + 1
        outcome = run("copy", nth, half=half)
        if outcome["fired"] is None:
            break
        kinds[outcome["fired"]] += 1
        place = f"killed at call {nth}, {outcome['fired']}"
        is_whole(target, kind)
        again = run("copy")
        assert again["code"] == 0, f"{place}, and then the next copy failed:\n{again['error']}"
        assert tree(target) == expected, place
    assert outcome["code"] == 0, outcome["error"]
    assert kinds.total() > (3 if half else 20)
    record_property("crash points", {"of": f"{kind}, copied" + ", half a write" * half, "kinds": dict(kinds)})
