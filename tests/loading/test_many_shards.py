"""100,000 shards and eight workers: start-up, pickles and memory stay small."""

import gc
import os
import pickle
import time

import numpy as np
import pytest

from headrace import StatefulDataLoader, StreamArrayFormat, StreamDataset, StreamStorage
from headrace.manifest import FileRecord, Manifest, ShardRecord, dtype_to_json

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
NUM_SHARDS = 100_000
MIB = 1 << 20


def own_bytes():
    """What this process alone holds in memory: not shared, not from files."""
    with open("/proc/self/smaps_rollup") as file:
        sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in file if ":" in line and "kB" in line}
    return sizes["Private_Dirty"]


class Watched:
    """The windows, and in place of each sample what its worker weighs."""

    def __init__(self, windows):
        self.windows = windows
        self.process = None

    def __len__(self):
        return len(self.windows)

    def __getitems__(self, items):
        self.windows.__getitems__(items)
        if self.process != os.getpid():
            # A collection writes to every object inherited from the tests before: that is no growth of ours.
            self.process = os.getpid()
            gc.collect()
        descriptors = len(os.listdir("/proc/self/fd"))
        return [(os.getpid(), own_bytes(), descriptors)] * len(items)


def collate(samples):
    return samples[0]


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    folder = tmp_path_factory.mktemp("many")
    tokens = np.arange(8, dtype="<u2")
    names = [folder / f"{shard:07d}.in_band.bin" for shard in range(NUM_SHARDS)]
    for shard, name in enumerate(names):
        first = names[shard // 50_000 * 50_000]  # few files under many names, as many as a file may have
        if name is first:
            name.write_bytes(tokens.tobytes())
        else:
            os.link(first, name)
    records = [ShardRecord(8, (FileRecord(f"{k:07d}.in_band.bin", 16, "0" * 32),)) for k in range(NUM_SHARDS)]
    manifest = Manifest.of("stream", dtype_to_json(tokens.dtype), records)
    (folder / "headrace.json").write_bytes(manifest.to_json())
    return StreamDataset(StreamStorage(folder, StreamArrayFormat("<u2")), 8)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_over_100000_shards_start_soon_and_do_not_grow_from_epoch_to_epoch(many, method):
    assert len(pickle.dumps(many)) < 1_000_000
    loader = StatefulDataLoader(
        Watched(many),
        collate,
        device="cpu",
        local_batch_size=250,
        shuffle=True,
        num_workers=8,
        parallel_method="process",
        multiprocessing_context=method,
        persistent_workers=True,
    )
    started_s = time.monotonic()
    weights = []
    with loader:
        for epoch in range(3):
            seen = {}
            for number, (pid, weight, descriptors) in enumerate(loader):
                if epoch == 0 and number == 0:
                    assert time.monotonic() - started_s < 15 * 4  # 15 s, and this machine may be busy
                seen[pid] = weight
                assert descriptors < 1024 + 50  # so many maps, and what a worker has anyway
            weights.append(seen)
    assert len(weights[0]) == 8
    assert weights[0].keys() == weights[2].keys()
    growth = [weights[2][pid] - weights[0][pid] for pid in weights[0]]
    assert max(growth) < 50 * MIB
