"""Batches larger than the machine's shared memory: the error names the limit, and nothing hangs."""

import shutil
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

from headrace import StatefulDataLoader
from headrace.errors import WorkerError

SCRIPT = textwrap.dedent(
    """
    import numpy as np
    from headrace import StatefulDataLoader
    from headrace.errors import WorkerError

    class Big:
        def __len__(self):
            return 8
        def __getitem__(self, index):
            return np.full(4 << 20, index, np.int64)  # 32 MiB

    options = {"local_batch_size": 2, "num_workers": 2, "parallel_method": "process", "device": "cpu"}
    with StatefulDataLoader(Big(), **options) as loader:
        try:
            print("works", sum(1 for _ in loader))
        except WorkerError as error:
            print("refused", error)
    """
)


def in_16_mib_of_shared_memory(command):
    mounted = 'mount -t tmpfs -o size=16m tmpfs /dev/shm && exec "$@"'
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", mounted, "sh", *command], capture_output=True, text=True, timeout=100
    )


@pytest.mark.slow
def test_workers_that_run_out_of_shared_memory_say_so():
    if shutil.which("unshare") is None or in_16_mib_of_shared_memory(["true"]).returncode:
        pytest.skip("this user may not mount a small /dev/shm")
    done = in_16_mib_of_shared_memory([sys.executable, "-c", SCRIPT])
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("works 4") or ("refused" in done.stdout and "shared memory" in done.stdout)


class Unsendable:
    def __reduce__(self):
        raise TypeError("this stays at home")


def unsendable(samples):
    return {"ids": samples, "and": Unsendable()}


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_batch_that_cannot_be_sent_is_an_error_that_names_its_samples(method):
    with (
        StatefulDataLoader(
            list(range(8)),
            unsendable,
            device="cpu",
            local_batch_size=2,
            num_workers=1,
            parallel_method="process",
            multiprocessing_context=method,
        ) as loader,
        pytest.raises(WorkerError, match=r"this stays at home\nwhile loading samples 0, 1"),
    ):
        next(iter(loader))


class Wrapped:
    def __init__(self, tensor):
        self.tensor = tensor


def wrapped(samples):
    return Wrapped(torch.tensor(samples)), np.array(samples), torch.tensor(samples)[::2], torch.zeros(0)


def test_what_can_be_sent_arrives_as_it_was():
    with StatefulDataLoader(
        list(range(8)), wrapped, device="cpu", local_batch_size=4, num_workers=1, parallel_method="process"
    ) as loader:
        (first, array, strided, empty), _ = loader
    assert first.tensor.tolist() == array.tolist() == [0, 1, 2, 3]
    assert strided.tolist() == [0, 2]
    assert empty.shape == (0,)
