# Streaming's guide to parallel conversion, its first pattern, with nothing but imports and notebook magic changed: data
# is fetched in parallel and written by one writer.

import os
import shutil
from multiprocessing import Pool

from headrace import MDSWriter, StreamingDataset  # was: from streaming import MDSWriter, StreamingDataset

out_root = "./data"
# This could be a list of URLs needs to download
dataset = [i for i in range(25)]
columns = {"number": "int"}


def get_data(number):
    print(f"\nWorker PID: {os.getpid()}\tnumber: {number}", flush=True, end="")
    # Add code here to downloads the data from URL.
    return {"number": number}


# Initialize the worker process
def init_worker():
    # Get the pid for the current worker process
    pid = os.getpid()
    print(f"\nInitialize Worker PID: {pid}", flush=True, end="")


if __name__ == "__main__":
    # clean up root directory
    shutil.rmtree(out_root, ignore_errors=True)

    with Pool(initializer=init_worker, processes=4) as pool:
        with MDSWriter(out=out_root, columns=columns) as out:
            for sample in pool.imap(get_data, dataset):
                out.write(sample)

    # read the sample
    dataset = StreamingDataset(
        local=out_root,
        remote=None,
        shuffle=False,
    )
    print()
    for sample in dataset:
        print(sample["number"])
