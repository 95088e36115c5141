"""SIGKILL at every call of a merge that changes the directory: its index is the old one, none, or the new one."""

import shutil
from pathlib import Path

import pytest

from headrace.datasets.samples.writer import MDSWriter

pytestmark = [pytest.mark.crash, pytest.mark.timeout(1200)]


def write_part(folder, numbers):
    with MDSWriter(columns={"id": "int"}, out=folder) as out:
        for number in numbers:
            out.write({"id": number})


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("merged_before", [False, True])
def test_a_merge_killed_anywhere_leaves_a_whole_index_or_none(runner, tmp_path, merged_before, half):
    template, folder = tmp_path / "template", tmp_path / "data"
    write_part(template / "a", range(3))
    if merged_before:
        assert runner.run("merge", template)["code"] == 0
    write_part(template / "b", range(3, 6))
    before = files_of(template)
    shutil.copytree(template, folder)
    assert runner.run("merge", folder)["code"] == 0
    expected = files_of(folder)
    assert expected != before
    nth = 0
    while True:
        nth += 1
        shutil.rmtree(folder)
        shutil.copytree(template, folder)
        if runner.run("merge", folder, nth, half=half)["fired"] is None:
            break
        left = {path: data for path, data in files_of(folder).items() if not path.endswith(".tmp")}
        assert left in (before, expected)
        assert runner.run("merge", folder)["code"] == 0
        assert files_of(folder) == expected
    assert nth > (1 if half else 4)  # half a write; create, write, sync, rename, sync
