"""Many shards under `ulimit -n 256`: each case in a process of its own with that limit."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dataset.scenes import fast_storage_at
from headrace.manifest import VERSION, FileRecord, Receipt

LIMITED = """
import resource, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
import numpy as np
from headrace.datasets import StreamDataset, StreamStorage
from headrace.formats.stream import StreamArrayFormat

folder, num_shards = sys.argv[1], int(sys.argv[2])
storage = StreamStorage(folder, StreamArrayFormat("<u2"))
tries = []
for _ in range(3):
    dataset = StreamDataset(storage, 4)
    begin = time.process_time()
    dataset.open()
    tries.append(time.process_time() - begin)
assert len(dataset) == num_shards * 4 // 4
whole = (np.arange(num_shards * 4) % 65536).astype("<u2").reshape(-1, 4)
for items in (
    np.arange(num_shards),
    np.random.default_rng(0).permutation(num_shards)[:3000],
    np.arange(0, num_shards, max(1, num_shards // 300)),
):
    assert np.array_equal(dataset.__getitems__(items).stacked(), whole[items])
for item in range(0, num_shards, 7):
    assert np.array_equal(dataset[item], whole[item])
crossing = StreamDataset(storage, 600, stride=599)
assert np.array_equal(crossing[-1], whole.reshape(-1)[(len(crossing) - 1) * 599 :][:600])
with storage.sync_reader() as reader:
    assert np.array_equal(reader.read(2, num_shards * 4), np.roll(whole.reshape(-1), -2))
print(min(tries))
"""


def limited(folder, num_shards):
    command = [sys.executable, "-c", LIMITED, folder, str(num_shards)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stderr
    return float(result.stdout)


def write_raw(folder, num_shards):
    folder.mkdir()
    whole = (np.arange(num_shards * 4) % 65536).astype("<u2").reshape(-1, 4)
    for shard in range(num_shards):
        (folder / f"{shard:07d}.in_band.bin").write_bytes(whole[shard].tobytes())
    return whole


def add_receipts(folder, whole):
    """As a writer would have: making 10,000 shards one commit at a time would be the whole test."""
    import xxhash

    private = folder / ".headrace"
    private.mkdir()
    (private / "generation").write_bytes(b"0\n")
    for shard, row in enumerate(whole):
        digest = xxhash.xxh3_128_hexdigest(row.tobytes())
        files = (FileRecord(f"{shard:07d}.in_band.bin", 8, digest),)
        receipt = Receipt(VERSION, "stream", "<u2", shard, 4, files, "someone", 0)
        (private / f"{shard:07d}.receipt").write_bytes(receipt.to_json())


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """10,000 shards, foreign; the tests below add receipts and a manifest, in this order."""
    folder = tmp_path_factory.mktemp("many") / "data"
    return folder, write_raw(folder, 10_000)


@pytest.mark.slow
def test_ten_thousand_shards_open_in_half_a_second_and_read_everywhere_with_256_files(many):
    folder, whole = many
    seconds = {"foreign": limited(folder, 10_000)}
    add_receipts(folder, whole)
    seconds["receipts"] = limited(folder, 10_000)
    storage = fast_storage_at(folder)
    storage.publish()
    seconds["published"] = limited(folder, 10_000)
    print(seconds)
    assert storage.verify() == []
    assert seconds["published"] < 0.5, seconds
    assert seconds["foreign"] < 0.5, seconds
    assert seconds["receipts"] < 1.5, seconds  # one file a shard has to be read; DESIGN's promise is the manifest's


def test_a_batch_spread_over_300_shards_needs_fewer_than_256_files(tmp_path):
    folder = Path(tmp_path) / "data"
    whole = write_raw(folder, 300)
    limited(folder, 300)
    add_receipts(folder, whole)
    fast_storage_at(folder).publish()
    limited(folder, 300)


def test_a_writer_of_300_shards_needs_fewer_than_256_files(tmp_path):
    script = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))\n"
        "from headrace.datasets import StreamStorage\n"
        "from headrace.formats.stream import StreamArrayFormat\n"
        "from headrace.store import LocalStore\n"
        "storage = StreamStorage(LocalStore(sys.argv[1], fsync=False), StreamArrayFormat('<u2'))\n"
        "with storage.sync_writer() as writer:\n"
        "    for record in range(2):\n"
        "        for shard in range(300):\n"
        "            writer.append(shard, [4 * shard + 2 * record, 4 * shard + 2 * record + 1])\n"
        "storage.publish()\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "data"], capture_output=True, text=True, timeout=100
    )
    assert result.returncode == 0, result.stderr
    limited(tmp_path / "data", 300)
