"""Batches that GuideLoom 1.1.0's loader gave each rank, and what it gave after a resume with other ranks and batches.

Its shuffle is another one than ours. But position p of an epoch is dealt alike, so its shuffled runs are compared by
the positions of their samples in its own order.
"""

import json
from itertools import chain, islice
from pathlib import Path

import pytest

from headrace import StatefulDataLoader, StreamNumpyFormat, StreamStorage
from loading.samples import WORKERS

GUIDELOOM = Path(__file__).parent / "guideloom"
EXPECTED = json.loads((GUIDELOOM / "loader" / "expected.json").read_text())
RUNS, RESUMES = EXPECTED["runs"], EXPECTED["resumes"]


def name_of(run):
    """What a run is called in the test's id."""
    size, rows = run["world_size"], run["local_batch_size"]
    order = "shuffled" if run["shuffle"] else "in-order"
    return f"{order}-{size}x{rows}-of-{run['sequence_length']}-{'drop' if run['drop_last'] else 'keep'}"


def loader_of(rank, shape, run, **options):
    storage = StreamStorage(GUIDELOOM / EXPECTED["dataset"], StreamNumpyFormat([("tokens", "<i4")]))
    return StatefulDataLoader.from_storage(
        storage,
        sequence_length=run["sequence_length"],
        device="cpu",
        rank=rank,
        world_size=shape["world_size"],
        local_batch_size=shape["local_batch_size"],
        drop_last=run["drop_last"],
        **options,
    )


def windows(batch, run):
    """The numbers of a batch's windows; their content must be whole."""
    length = run["sequence_length"]
    rows = batch["tokens"].tolist()
    assert all(row == list(range(row[0], row[0] + length)) for row in rows)
    return [row[0] // length for row in rows]


def epoch_of(loader, run):
    return [windows(batch, run) for batch in loader]


def order_of(run, epoch):
    """GuideLoom's order of all windows, from a recorded run that dropped none of them."""
    count = 64 // run["sequence_length"]
    for whole in RUNS:
        if any(whole[name] != run[name] for name in ("shuffle", "seed", "sequence_length")):
            continue
        order = [None] * count
        for rank, epochs in enumerate(whole["ranks"]):
            for place, window in enumerate(chain.from_iterable(epochs[epoch])):
                order[rank + place * whole["world_size"]] = window
        if None not in order:
            return order
    raise AssertionError("no recorded run serves all windows")


def as_positions(batches, order):
    return [[order.index(window) for window in batch] for batch in batches]


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("run", [run for run in RUNS if not run["shuffle"]], ids=name_of)
def test_without_shuffling_every_rank_gets_guidelooms_batches_in_both_epochs(run, workers):
    for rank, epochs in enumerate(run["ranks"]):
        with loader_of(rank, run, run, **WORKERS[workers]) as loader:
            assert len(loader) == run["len"]
            assert [epoch_of(loader, run), epoch_of(loader, run)] == epochs


@pytest.mark.parametrize("run", [run for run in RUNS if run["shuffle"]], ids=name_of)
def test_shuffled_runs_deal_the_positions_of_their_order_as_guideloom_does(run):
    for rank, epochs in enumerate(run["ranks"]):
        loader = loader_of(rank, run, run)
        for epoch, batches in enumerate(epochs):
            assert epoch_of(loader, run) == as_positions(batches, order_of(run, epoch))


@pytest.mark.parametrize("run", [run for run in RUNS if not run["shuffle"]], ids=name_of)
def test_the_state_counts_as_guidelooms_offset_does_until_the_end_of_an_epoch(run):
    loader = loader_of(0, run, run)
    steps = run["len"]
    for number, (epoch, offset) in enumerate(run["offsets_after_each_batch"]):
        if number % steps == 0:
            batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        # GuideLoom waits for the exhaustion before it calls the end of an epoch the start of the next.
        expected = (epoch + 1, 0) if number % steps == steps - 1 else (epoch, offset)
        assert (state["epoch"], state["position"]) == expected
        if number % steps == steps - 1:
            assert next(batches, None) is None


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("resume", RESUMES, ids=range(len(RESUMES)))
def test_a_resume_with_other_ranks_and_batches_deals_the_rest_as_guideloom_does(resume, workers):
    order = order_of({**resume, "shuffle": True}, 0)
    before, after = resume["before"], resume["after"]
    states = []
    for rank, batches in enumerate(before["ranks"]):
        with loader_of(rank, before, resume, **WORKERS[workers]) as loader:
            got = [windows(batch, resume) for batch in islice(loader, before["batches"])]
            assert got == as_positions(batches, order)
            states.append(loader.state_dict())
    assert all(state == states[0] for state in states)
    assert states[0]["position"] == resume["state_dict"]["observation_offset"]
    for rank, batches in enumerate(after["ranks"]):
        with loader_of(rank, after, resume, **WORKERS[workers]) as loader:
            loader.load_state_dict(states[0])
            assert epoch_of(loader, resume) == as_positions(batches, order)
