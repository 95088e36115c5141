"""Reading imports nothing late: a process that forks while another thread imports would hang in the child."""

import subprocess
import sys

PROGRAM = """
import sys, threading
import numpy as np
from headrace import MDSWriter, SampleDataset, ShuffledDataset, StreamDataset, StreamNumpyFormat, StreamStorage

folder = sys.argv[1]
storage = StreamStorage(folder + "/stream", StreamNumpyFormat([("tokens", "<u2")]))
with storage.sync_writer() as writer:
    for shard in range(3):
        writer.append(shard, {"tokens": np.arange(100)})
storage.publish()
with MDSWriter(columns={"id": "int", "x": "ndarray:uint16:3"}, out=folder + "/samples", size_limit=200) as out:
    for number in range(50):
        out.write({"id": number, "x": np.zeros(3, np.uint16)})
datasets = [StreamDataset(StreamStorage(folder + "/stream"), sequence_length=7), SampleDataset(folder + "/samples")]
views = [ShuffledDataset(dataset, 3) for dataset in datasets]
for dataset in datasets:
    dataset.open()
known = set(sys.modules)
for dataset in [*datasets, *views]:
    dataset[0]
    dataset.__getitems__(np.array([0, 30, 13, 29]))
    dataset.__getitems__([41, -1]) if dataset in datasets else None
print(sorted(set(sys.modules) - known))
"""


def test_reading_from_open_datasets_imports_no_module(tmp_path):
    done = subprocess.run([sys.executable, "-c", PROGRAM, tmp_path], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")
