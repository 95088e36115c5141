"""What GuideLoom 1.1.0's loader gave to each rank, without shuffling: Headrace's gives the same."""

import json
from pathlib import Path

import numpy as np
import pytest

from headrace import StatefulDataLoader, StreamNumpyFormat, StreamStorage

GUIDELOOM = Path(__file__).parent / "guideloom"
EXPECTED = json.loads((GUIDELOOM / "loader" / "expected.json").read_text())
WORKERS = {"alone": {}, "threads": {"num_workers": 2, "prefetch": 3}}


def loaders(run, workers):
    storage = StreamStorage(GUIDELOOM / EXPECTED["dataset"], StreamNumpyFormat(np.dtype([("tokens", "<i4")])))

    def windows(samples):
        return [int(sample["tokens"][0]) // run["sequence_length"] for sample in samples]

    return [
        StatefulDataLoader.from_storage(
            storage,
            windows,
            sequence_length=run["sequence_length"],
            device="cpu",
            local_batch_size=run["local_batch_size"],
            rank=rank,
            world_size=run["world_size"],
            drop_last=run["drop_last"],
            **WORKERS[workers],
        )
        for rank in range(run["world_size"])
    ]


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("run", EXPECTED["runs"], ids=lambda run: f"{run['world_size']}x{run['local_batch_size']}")
def test_every_rank_gets_the_batches_and_counts_the_rows_that_it_did_there(run, workers):
    for loader, epochs in zip(loaders(run, workers), run["ranks"], strict=True):
        assert len(loader) == run["len"]
        got, places = [], []
        for _ in epochs:
            got.append([])
            for batch in loader:
                got[-1].append(batch)
                state = loader.state_dict()
                places.append([state["epoch"], state["position"]])
        assert got == epochs
        # Where GuideLoom says "at the end of this epoch", Headrace says "at the start of the next": one state for both.
        size = run["world_size"] * run["local_batch_size"]
        ends = [[epoch, size * run["len"]] for epoch, _ in enumerate(epochs)]
        assert places == [[place[0] + 1, 0] if place in ends else place for place in run["offsets_after_each_batch"]]
        loader.close()
