# Streaming's guide to parallel conversion, its second pattern, with nothing but imports and notebook magic changed:
# groups are written in parallel, each to a directory of its own, and their indexes are merged. prepare_samples.py does
# the same in a shorter form.

import os
import shutil
from multiprocessing import Pool
from typing import Iterator, Tuple

from headrace import MDSWriter, StreamingDataset, merge_index  # was: from streaming ..., from streaming.base.util ...

out_root = "./group_data"
num_groups = 4
num_process = 2


# Initialize the worker process
def init_worker():
    # Get the pid for the current worker process
    pid = os.getpid()
    print(f"\nInitialize Worker PID: {pid}", flush=True, end="")


def each_task(out_root: str, groups: int) -> Iterator[Tuple[str, int, int]]:
    """Get the sub-directory path and the sample range.

    Args:
        out_root (str): base output mds directory
        groups (int): Number of sub-directories to create

    Yields:
        Iterator[Tuple[str, int, int]]: Each argument tuple
    """
    for data_group in range(groups):
        sub_out_root = os.path.join(out_root, str(data_group))
        start_sample_idx = data_group * 10
        end_sample_idx = start_sample_idx + 9
        yield sub_out_root, start_sample_idx, end_sample_idx


def convert_to_mds(args: Iterator[Tuple[str, int, int]]) -> None:
    """Convert raw dataset into MDS format

    Args:
        args (Iterator[Tuple[str, int, int]]): All arguments, packed into a tuple because
            process pools only pass one argument.

    Yields:
        Dict: A sample
    """
    sub_out_root, start_sample_idx, end_sample_idx = args

    def get_data(start: int, end: int):
        for i in range(start, end + 1):
            yield {"number": i}

    columns = {"number": "int"}
    with MDSWriter(out=sub_out_root, columns=columns) as out:
        for sample in get_data(start_sample_idx, end_sample_idx):
            out.write(sample)


if __name__ == "__main__":
    # clean up root directory
    shutil.rmtree(out_root, ignore_errors=True)

    arg_tuples = each_task(out_root, groups=num_groups)

    # Process group of data in parallel into directories of shards.
    with Pool(initializer=init_worker, processes=num_process) as pool:
        for count in pool.imap(convert_to_mds, arg_tuples):
            pass
    print("\nFinished")
    print(sorted(os.listdir(out_root)))

    merge_index(out_root, keep_local=True)
    print(sorted(os.listdir(out_root)))

    # read the sample
    dataset = StreamingDataset(local=out_root, remote=None, shuffle=False)
    for ix, sample in enumerate(dataset):
        print(sample["number"])
