"""A rank of a job that reads samples over HTTP through a cache: python cached_job.py URL CACHE RANK LIMIT.

Prints "ready SECONDS" with its first batch, the ids of each batch, and "done" at the end of two epochs.
"""

import sys
import time

import numpy as np

from headrace import CachedStore, SampleDataset, StatefulDataLoader, open_store


def ids(samples):
    return np.array([sample["id"] for sample in samples])


def main():
    began_s = time.monotonic()
    url, cache, rank, limit = sys.argv[1:]
    dataset = SampleDataset(CachedStore(open_store(url), cache, limit_bytes=int(limit) or None))
    with StatefulDataLoader(
        dataset,
        ids,
        rank=int(rank),
        world_size=2,
        local_batch_size=2,
        shuffle=True,
        shuffle_seed=7,
        num_workers=2,
        parallel_method="process",
        timeout_s=60,
    ) as loader:
        for epoch in range(2):
            for number, batch in enumerate(loader):
                if epoch == number == 0:
                    print("ready", time.monotonic() - began_s, flush=True)
                print("batch", epoch, *batch.tolist(), flush=True)
                time.sleep(0.05)
    print("done", flush=True)


if __name__ == "__main__":
    main()
