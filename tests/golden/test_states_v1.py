"""Law 10 for checkpoints: states that were saved load for good. states_v1.json holds those of version 1.

A failure here means that a run which was saved under a released version cannot go on, or goes on elsewhere. Do not
touch the file: states of another kind get the next version number, and these stay readable.
"""

import json
from itertools import islice

import pytest

from loading import golden_states
from loading.golden_states import CHANGES, NEXT, VIEWS, endless, loader_over, view_of

COUNTS = ("epoch", "position", "window", "row")


@pytest.fixture(scope="module")
def golden():
    content = json.loads(golden_states.FILE.read_text(encoding="utf-8"))
    return {entry["name"]: entry for entry in content["states"]}


@pytest.mark.parametrize("name", [*VIEWS, *CHANGES])
def test_a_golden_state_loads_and_the_golden_batches_come_next(golden, name):
    entry = golden[name]
    loader = loader_over(view_of(name))
    loader.load_state_dict(entry["state"])
    assert [loader.state_dict()[count] for count in COUNTS] == [entry["state"][count] for count in COUNTS]
    assert list(islice(endless(loader), NEXT)) == entry["next"]


@pytest.mark.parametrize("name", CHANGES)
def test_a_golden_state_goes_on_under_another_mixture(golden, name):
    before = golden[CHANGES[name][0]]
    loader = loader_over(view_of(name))
    loader.load_state_dict(before["state"], change="from_here")
    assert list(islice(endless(loader), 1, 1 + NEXT)) == golden[name]["next"]


def test_the_states_that_are_written_are_the_golden_ones(golden):
    content = json.loads(json.dumps(golden_states.document()))
    assert content["state_version"] == 1
    assert {entry["name"]: entry for entry in content["states"]} == golden


def test_golden_states_are_small(golden):
    for entry in golden.values():
        assert len(json.dumps(entry["state"])) < 4096
