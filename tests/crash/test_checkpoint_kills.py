"""SIGKILL at every call that changes the directory of checkpoints; then the same job again.

After each kill what lies there under a whole name is whole, and from the first checkpoint on there always is one. The
job goes on from the newest, and comes to the same end with nothing else left.
"""

import collections
import json
import os
import shutil

import pytest

pytestmark = [pytest.mark.crash, pytest.mark.timeout(1200)]

PARTS = 2  # each test case dies at every PARTS-th point, so that processes can share the work
STRIDE = int(os.environ.get("HEADRACE_CRASH_STRIDE", "1"))  # 3: only every third point, for a quick look
MODULE = "training_workloads"


def checkpoints_in(folder):
    """The steps of the whole ones."""
    return sorted(int(path.name.removeprefix("save-")) for path in (folder / "job").glob("save-*"))


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("half", [False, True], ids=["", "half written"])
def test_a_job_that_is_killed_while_it_saves_goes_on_from_a_whole_checkpoint(
    half, part, runner, quick_path, record_property
):
    folder = quick_path / "run"
    result = quick_path / "result.json"
    outcome = runner.run("job.train", folder, module=MODULE)
    assert outcome["code"] == 0, outcome["error"]
    expected = json.loads(result.read_text())
    assert checkpoints_in(folder) == [6]
    kinds, seen = collections.Counter(), []
    stride = STRIDE * (3 if half else 1)
    nth = 1 + part * stride
    while True:
        shutil.rmtree(folder)
        outcome = runner.run("job.train", folder, nth, module=MODULE, half=half)
        if outcome["fired"] is None:
            assert outcome["code"] == 0, outcome["error"]
            break
        kinds[outcome["fired"]] += 1
        whole = checkpoints_in(folder)
        seen.append(max(whole, default=0))
        again = runner.run("job.train", folder, module=MODULE)
        assert again["code"] == 0, again["error"]
        found = json.loads(result.read_text())
        assert found["begun"] == max(whole, default=0)
        assert found["seen"] == expected["seen"][4 * found["begun"] :]
        assert found["weight"] == expected["weight"]
        assert [path.name for path in (folder / "job").iterdir()] == ["save-6"]
        nth += PARTS * stride
    assert seen == sorted(seen)  # a later kill never leaves an older checkpoint, or none
    assert {0, 2, 4} <= set(seen)
    record_property("crash points", {"of": "checkpoints of a training job", "kinds": dict(kinds)})
