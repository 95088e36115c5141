"""skip_corrupt under compositions: mixtures, packed rows and token budgets keep their promises with damaged samples."""

import json
import subprocess
import sys

import numpy as np
import pytest

from headrace import MixedDataset, SelectedDataset, StatefulDataLoader
from headrace.planning import Permutation, derive_seed
from headrace.views.leaves import leaves_at
from loading.corrupt_data import COMPOSED, WORKERS, Documents, Raising, composed
from loading.jobs import TESTS
from loading.samples import together
from loading.scenarios import as_rows


def content(leaf, item):
    """What is read for this item, one at a time by the rule: itself, or the first that can be and is no longer."""
    if not leaf.is_damaged(item):
        return leaf[item].tolist()
    for candidate in Permutation(len(leaf), derive_seed(0, "substitute", item))(np.arange(len(leaf))).tolist():
        if candidate != item and leaf.lengths[candidate] <= leaf.lengths[item] and not leaf.is_damaged(candidate):
            return leaf[candidate].tolist()
    raise AssertionError("there is none")


def expected_rows(packed, epoch):
    """The tokens of each row of an epoch, and the pieces in it, from the plan and one document at a time."""
    for window in range(packed.num_windows):
        plan = packed.window_plan(epoch, window)
        positions, offsets = packed.row_positions(epoch, window)
        for row in range(plan.num_rows):
            pieces = []
            for piece in range(offsets[row], offsets[row + 1]):
                (leaf,) = leaves_at(packed.base, positions[piece : piece + 1])
                document = content(leaf.dataset, int(leaf.items[0]))
                pieces.append(document[plan.starts[piece] : plan.stops[piece]])
            yield pieces


@pytest.mark.parametrize("name", ["best fit", "end to end", "packed mixture"])
def test_packed_rows_keep_their_places_and_what_a_shorter_substitute_leaves_is_padding(name):
    packed = COMPOSED[name]()
    one = composed(name)
    shorter = 0
    for epoch in range(2):
        rows = [row for batch in one for row in batch]
        expected = list(expected_rows(packed, epoch))
        assert len(rows) == len(expected) == packed.rows_in_epoch(epoch)
        for row, pieces in zip(rows, expected, strict=True):
            tokens = [token for piece in pieces for token in piece]
            padding = packed.sequence_length - len(tokens)
            assert row["input_ids"] == tokens + [0] * padding
            ids = [number for number, piece in enumerate(pieces, 1) for _ in piece]
            assert row["segment_ids"] == ids + [0] * padding
            assert len(row["document_ids"]) == len(pieces)
            shorter += padding > 0
    assert shorter
    assert len(one.skipped) > 5


def test_batches_of_a_token_budget_stay_within_it():
    one = composed("token budget")
    batches = [batch for _ in range(2) for batch in one]
    assert all(len(batch) * max(map(len, batch), default=0) <= 64 for batch in batches)
    leaf = one.dataset.base.base
    expected = sorted(content(leaf, item) for item in range(150))
    assert sorted(row for batch in batches[: len(batches) // 2] for row in batch) == expected


def test_names_of_sources_say_where_and_a_source_without_weight_stays_closed():
    one = composed("mixed")
    assert len([row for batch in one for row in batch]) == 200
    assert {item.source for item in one.skipped} == {"inner/a", "inner/b", "c"}
    for item in one.skipped:
        assert item.item % 7 == 2
        assert item.substitute != item.item
        assert f"document {item.item} is damaged" in item.error
    assert len({(item.source, item.item) for item in one.skipped}) == len(one.skipped)


def both_epochs(one):
    with one:
        return [list(one), list(one)]


@pytest.mark.parametrize("workers", ["threads", "fork", "kept"])
@pytest.mark.parametrize("name", COMPOSED)
def test_threads_and_processes_give_the_same_and_list_the_same(name, workers):
    first, other = composed(name), composed(name, workers)
    assert both_epochs(other) == both_epochs(first)
    assert sorted(other.skipped, key=str) == sorted(first.skipped, key=str)


@pytest.mark.parametrize("name", COMPOSED)
def test_any_number_of_ranks_gives_the_same_rows(name):
    wrap = (lambda batch: [batch]) if name == "token budget" else list
    expected = [row for epoch in both_epochs(composed(name)) for batch in epoch for row in wrap(batch)]
    for world_size in (2, 4):
        ranks = [composed(name, rank=rank, world_size=world_size) for rank in range(world_size)]
        parts = [[wrap(batch) for epoch in both_epochs(one) for batch in epoch] for one in ranks]
        assert [row for batch in together(parts) for row in batch] == expected


REPLAY = """
import json, sys
from loading.corrupt_data import composed
found = []
for name, state in json.loads(sys.stdin.read()).items():
    one = composed(name)
    one.load_state_dict(state)
    found.append([list(one), list(one), [[item.source, item.item, item.substitute] for item in one.skipped]])
print(json.dumps(found))
"""


def test_a_replay_in_another_process_meets_the_same_and_does_the_same():
    states, expected = {}, {}
    for name in COMPOSED:
        one = composed(name)
        whole = both_epochs(one)
        expected[name] = [whole[0][2:], whole[1]], {(item.source, item.item, item.substitute) for item in one.skipped}
        other = composed(name, skip_corrupt=True)
        batches = iter(other)
        for _ in range(2):
            next(batches)
        states[name] = other.state_dict()
        fresh = composed(name, skip_corrupt=False)
        fresh.load_state_dict(states[name])
        assert fresh.state_dict() == states[name]
    ran = subprocess.run(
        [sys.executable, "-c", REPLAY], cwd=TESTS, input=json.dumps(states), capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    for name, (first, second, skipped) in zip(COMPOSED, json.loads(ran.stdout), strict=True):
        batches, noted = expected[name]
        assert [first, second] == batches, name
        assert {tuple(one) for one in skipped} <= noted
        assert skipped


def test_a_mixture_that_is_changed_on_the_way_goes_on_skipping_alike():
    before = composed("mixed")
    steps = iter(before)
    for _ in range(3):
        next(steps)
    runs = []
    for world_size, workers in ((1, "alone"), (2, "threads"), (4, "alone")):
        ranks = []
        for rank in range(world_size):
            sources = before.dataset.sources
            one = StatefulDataLoader(
                MixedDataset(sources, {"inner": 0.2, "c": 0.8, "none": 0}, seed=2, epoch_size=200),
                as_rows,
                device="cpu",
                rank=rank,
                world_size=world_size,
                global_batch_size=8,
                drop_last=False,
                skip_corrupt=True,
                **WORKERS[workers],
            )
            list(one)  # what was skipped before a state is loaded stays listed
            one.load_state_dict(before.state_dict(), change="from_here")
            with one:
                ranks.append(list(one))
            assert one.skipped
        runs.append(together(ranks))
    assert runs[0] == runs[1] == runs[2]
    assert sum(map(len, runs[0])) == 200 - 24


def test_excluding_what_was_skipped_makes_it_permanent():
    one = StatefulDataLoader(Raising(60), as_rows, device="cpu", rank=0, world_size=1, skip_corrupt=True)
    assert len(list(one)) == 60
    kept = SelectedDataset(Raising(60), exclude=[item.item for item in one.skipped])
    rows = [
        row["id"] for batch in StatefulDataLoader(kept, as_rows, rank=0, world_size=1, device="cpu") for row in batch
    ]
    assert rows == [number for number in range(60) if number % 9 != 4]


def test_the_user_s_own_composition_stays_as_it_is():
    one = composed("packed mixture")
    dataset = one.dataset
    leaf = dataset.base.sources["inner"].sources["b"]
    list(one)
    assert one.dataset is dataset
    assert dataset.base.sources["inner"].sources["b"] is leaf
    assert isinstance(leaf, Documents)
