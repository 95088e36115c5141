"""How the samples lie in shards is invisible in the batches."""

import itertools

import numpy as np
import pytest

from headrace import StreamNumpyFormat, StreamStorage
from loading.samples import WORKERS, epoch, make, together

LENGTH = 4
LAYOUTS = {
    "one shard": [70],
    "one sample a shard": [1] * 70,
    "skewed": [10, 10, 50],
    "with empty shards": [0, 35, 0, 0, 34, 1, 0],
    "samples across shards": [17.25, 0.25, 30.75, 21.75],
}


@pytest.fixture(scope="module")
def storages(tmp_path_factory):
    storages = {}
    for name, shards in LAYOUTS.items():
        storage = StreamStorage(tmp_path_factory.mktemp("layout"), StreamNumpyFormat([("tokens", "<i4")]))
        begin = 0
        with storage.sync_writer() as writer:
            for shard, samples in enumerate(shards):
                count = int(samples * LENGTH)
                writer.start(shard)
                writer.append(shard, {"tokens": np.arange(begin, begin + count)})
                begin += count
        assert begin == 70 * LENGTH
        storages[name] = storage
    return storages


def ids(batch):
    """The number of each window, whose content must be whole."""
    rows = batch["tokens"].tolist()
    assert all(row == list(range(row[0], row[0] + LENGTH)) for row in rows)
    return [row[0] // LENGTH for row in rows]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("shuffle", [False, True])
def test_however_samples_lie_in_shards_the_epoch_is_that_of_the_numbers_in_order(storages, layout, workers, shuffle):
    for world_size, local, drop_last in itertools.product([1, 3], [1, 4, 7], [True, False]):
        options = {"local_batch_size": local, "shuffle": shuffle, "drop_last": drop_last, "world_size": world_size}
        if workers == "fork" and (local != 4 or drop_last):
            continue  # starting processes is slow, and the rest is the same for all
        got, expected = [], []
        for rank in range(world_size):
            with make(storages[layout].dataset(LENGTH), rank=rank, **options, **WORKERS[workers]) as loader:
                got.append([ids(batch) for batch in loader])
                assert len(loader) == len(got[-1])
            expected.append(epoch(make(70, rank=rank, **options)))
        assert together(got) == together(expected)
        seen = [one for batch in together(got) for one in batch]
        assert len(set(seen)) == len(seen) > 70 - (world_size * local if drop_last else 1)
