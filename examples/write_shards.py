from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from headrace import StreamNumpyFormat, StreamStorage


DIRECTORY = Path("data/sharded-tokens")


def write_shard(shard):
    storage = StreamStorage(DIRECTORY, StreamNumpyFormat(np.dtype([("tokens", "<i4")])))
    with storage.sync_writer() as writer:
        # Replace this loop with preprocessing for this shard's input records.
        for record in range(2):
            start = shard * 16 + record * 8
            writer.append(shard, {"tokens": np.arange(start, start + 8, dtype=np.int32)})
    return shard


def main():
    DIRECTORY.mkdir(parents=True, exist_ok=False)
    with ProcessPoolExecutor(max_workers=2) as pool:
        completed = list(pool.map(write_shard, range(4)))
    assert completed == [0, 1, 2, 3]
    print(f"Finished {len(completed)} shards in {DIRECTORY}")


if __name__ == "__main__":
    main()
