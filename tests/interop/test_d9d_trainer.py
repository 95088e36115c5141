"""d9d's own Trainer on the CPU, fed by d9d's provider and by Headrace's."""

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.interop
GOLDEN = Path(__file__).parents[1] / "golden" / "d9d"


@pytest.fixture(scope="module")
def golden():
    """What d9d recorded of the job: losses of the fresh run with its defaults."""
    runs = json.loads((GOLDEN / "trainer.json").read_text())["runs"]
    return next(one for one in runs if one["run"] == "fresh" and one["config"] == {})


def test_d9d_itself_trains_here_as_it_was_recorded(d9d, golden, tmp_path):
    microbatches, losses = d9d.train(tmp_path, "d9d")
    assert microbatches == [golden["microbatches"]]
    assert losses == pytest.approx([loss for _, loss, _ in golden["steps"]], abs=1e-6)
