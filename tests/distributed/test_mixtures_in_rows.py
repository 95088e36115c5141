"""A mixture of corpora on disk, shuffled, in packed rows and in batches, over real jobs of 4, then 2, then 3 ranks."""

import itertools
import json
import zlib

import pytest

from distributed import corpora
from headrace import StatefulDataLoader

pytestmark = pytest.mark.distributed

MODULUS = 2**31 - 1
NUM_STEPS = 40


def one_process(order, documents):
    """Every step of a run of one rank without workers, (rows, weight), until there are enough; and an epoch's rows."""
    dataset, collate, rows_a_batch = corpora.rows(order, documents)
    micro_batches = corpora.ROWS_A_STEP if rows_a_batch is None else 1
    options = {"device": "cpu", "rank": 0, "world_size": 1, "global_batch_size": rows_a_batch, "drop_last": False}
    steps, epochs, weight = [], [], 0
    with StatefulDataLoader(dataset, collate, **options) as loader:
        while len(steps) < NUM_STEPS:
            batches = [corpora.documents_of(batch) or [[]] for batch in loader]
            epochs.append(list(itertools.chain(*batches)))
            for begin in range(0, len(batches), micro_batches):
                rows = list(itertools.chain(*batches[begin : begin + micro_batches]))
                numbers = [zlib.crc32(json.dumps(row).encode()) % 65536 for row in rows]
                weight = (weight * 31 + sum((number + 1) ** 2 * (len(steps) + 1) for number in numbers)) % MODULUS
                steps.append((rows, weight))
    return dataset, steps, epochs


@pytest.fixture(scope="module", params=["packed", "batches"])
def run(request, documents):
    """The order, and what one process makes of it."""
    return request.param, *one_process(request.param, documents)


def test_one_process_sees_what_the_views_say_and_every_token_once(run):
    _, dataset, _, epochs = run
    names = list(corpora.SIZES)
    for epoch, rows in enumerate(epochs):
        located = []
        for window in range(dataset.num_windows):
            positions, offsets = dataset.row_positions(epoch, window)
            found = [[0, 0]] * len(positions)
            for part in dataset.base.base.drawn(dataset.base.locate(positions)):
                items = part.positions % corpora.SIZES[part.name]
                for place, item in zip(part.places.tolist(), items.tolist(), strict=True):
                    found[place] = [names.index(part.name), item]
            located += [found[begin:end] for begin, end in itertools.pairwise(offsets.tolist())]
        assert [[piece[:2] for piece in row] for row in rows] == located
        tokens = sum(stop - start for _, _, start, stop in itertools.chain(*rows))
        assert tokens == dataset.report(epoch)["tokens"]
    assert 8 < len(epochs[0]) // corpora.ROWS_A_STEP < 30, "jobs are killed within the first epoch and after it"


def test_a_job_killed_twice_goes_on_with_other_ranks_and_workers_as_one_process_would(run, make_job):
    order, _, steps, _ = run
    job = make_job("thread", steps=NUM_STEPS, order=order)
    job.launch(ranks=4, kill_at=8)  # from the checkpoint at step 5, within a window
    job.launch(ranks=2, kill_at=33, workers="fork")  # across the epoch's end, from the checkpoint at 30
    job.launch(ranks=3, workers="none")
    lines = job.lines()
    for line in lines:
        rows, weight = steps[line.step - 1]
        assert list(line.ids) == rows[line.rank :: line.world_size], line
        assert line.weight == weight, line
    for attempt, ranks, seen in [(1, 4, range(1, 9)), (2, 2, range(6, 34)), (3, 3, range(31, NUM_STEPS + 1))]:
        for rank in range(ranks):
            here = [line.step for line in lines if (line.attempt, line.rank) == (attempt, rank)]
            assert here[: len(seen)] == list(seen)
