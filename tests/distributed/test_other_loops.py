"""Lightning and Hugging Face's Trainer under torchrun: killed with two ranks, and on with three."""

import importlib.util
from pathlib import Path

import pytest

from distributed.conftest import launcher

pytestmark = pytest.mark.distributed

EXAMPLES = Path(__file__).parents[2] / "examples"


def same_steps(folder, reference):
    spec = importlib.util.spec_from_file_location("numbered_tokens", EXAMPLES / "numbered_tokens.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.same_steps(folder, reference)


@pytest.mark.parametrize("loop", ["lightning", "huggingface"])
def test_a_run_of_two_ranks_that_was_killed_goes_on_with_three_as_one_rank_would(loop, tmp_path, monkeypatch):
    monkeypatch.chdir(EXAMPLES.parent)
    runs = {name: tmp_path / name for name in ("whole", "killed")}

    def command(name, ranks, *options):
        return launcher.torchrun(ranks, ["-m", f"examples.{loop}_resume", "--out", str(runs[name]), *options])

    launcher.run_until(command("whole", 1), tmp_path / "whole.log")
    with pytest.raises(SystemExit, match="Signal 9"):  # every rank dies behind its step 13
        launcher.run_until(command("killed", 2, "--kill-at", "13"), tmp_path / "killed.log")
    launcher.run_until(command("killed", 3), tmp_path / "resumed.log")
    assert same_steps(runs["killed"], runs["whole"]) == 40
