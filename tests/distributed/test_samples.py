"""The two samples of d9d's page under torchrun: the steps of one process, whatever the number of ranks."""

import json
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

from distributed.conftest import launcher

pytestmark = pytest.mark.distributed

ROOT = Path(__file__).parents[2]
SAMPLES = 1100


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with my/dataset and my/tokenizer.json."""
    folder = tmp_path_factory.mktemp("data")
    subprocess.run(
        [sys.executable, "-m", "examples.pretrain", "data"], cwd=folder, env=environment(folder), check=True, timeout=60
    )
    return folder


def environment(folder):
    return {"PYTHONPATH": str(ROOT), "HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin"}


def trained(data, folder, what, ranks):
    """The loss of each step, and the samples that each rank saw."""
    folder.mkdir()
    (folder / "my").symlink_to(data / "my")
    given = [f"{name}={value}" for name, value in environment(folder).items()]
    command = ["env", "-C", str(folder), *given, *launcher.torchrun(ranks, ["-m", "examples.pretrain", *what])]
    launcher.run_until(command, folder / "log")
    losses = [json.loads(line)["loss"] for line in (folder / "runs" / what[0] / "log.jsonl").read_text().splitlines()]
    paths = [folder / "runs" / f"seen-by-rank-{rank}.jsonl" for rank in range(ranks)]
    return losses, [list(chain(*map(json.loads, path.read_text().splitlines()))) for path in paths]


@pytest.mark.parametrize(("what", "steps", "rows"), [(["auto"], 4, 1024), (["custom", "--workers", "2"], 11, 1100)])
def test_a_sample_trains_the_same_steps_with_one_rank_and_with_two_and_no_row_twice(what, steps, rows, data, tmp_path):
    losses, (seen,) = trained(data, tmp_path / "one", what, 1)
    assert (len(losses), len(set(seen)), len(seen)) == (steps, rows, rows)
    again, by_rank = trained(data, tmp_path / "two", what, 2)
    assert again == pytest.approx(losses, abs=1e-5)
    assert sorted(chain(*by_rank)) == sorted(seen)
    per_step = rows // steps
    for step in range(steps):
        half = slice(step * per_step // 2, (step + 1) * per_step // 2)
        assert sorted(chain(*(part[half] for part in by_rank))) == sorted(seen[step * per_step : (step + 1) * per_step])
