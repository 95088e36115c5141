"""d9d's weaknesses 26 and 28, ranks that wait in vain: what Headrace does in their place."""

import json
import os
import socket
import subprocess
import sys
import textwrap
import time

import pytest

pytestmark = pytest.mark.distributed

FAILS = """
from headrace import DeviceMeshParameters
context = DeviceMeshParameters(data_parallel_replicate=2).build()
begin = time.monotonic()
try:
    with context.main_process_first():
        if context.is_main_process:
            raise OSError("the dataset is not there")
except Exception as error:
    told(kind=type(error).__name__, text=str(error), seconds=time.monotonic() - begin)
"""

ENDS = """
from headrace import FixedCountMicrobatchPacker, ShardedDataset
from headrace.training import data_parallel_world
from interop.d9d_job import Samples, collate
from torch.utils.data import IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader
from training.linear_job import configurator

class Rows(IterableDataset):
    def __init__(self, rows):
        self.rows = rows
    def __iter__(self):
        return iter(self.rows)

def provider(sized):
    def made(context):
        rank, ranks = data_parallel_world(context.dist_context)
        shard = ShardedDataset(Samples(), 3, rank, "sequential", False)  # of 64: 22 samples, and 21
        rows = shard if sized else Rows(shard)
        return FixedCountMicrobatchPacker(StatefulDataLoader(rows, batch_size=1, collate_fn=collate), 1)
    return made

found = []
for sized, total in ((True, None), (True, 22), (False, 22)):
    step = None
    try:
        trainer = configurator(Path(out) / str(len(found)), provider(sized), ranks=2, total=total)[0].configure()
        step = 0
        trainer.train()
    except Exception as error:
        step = step if step is None else trainer.schedule.current_step
        found.append([type(error).__name__, str(error), step])
told(found=found)
"""

BEGIN = """
import json, sys, time
from pathlib import Path
out, rank = sys.argv[1:]

def told(**facts):
    Path(out, f"told-{rank}.json").write_text(json.dumps(facts))
"""


def two_ranks(program, out, tests):
    """What each of two ranks tells."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = str(bound.getsockname()[1])
    place = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    place |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(tests)}
    text = textwrap.dedent(BEGIN + program)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", text, str(out), str(rank)],
            env=os.environ | place | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    deadline = time.monotonic() + 90
    try:
        errors = [rank.communicate(timeout=max(1, deadline - time.monotonic()))[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    found = [out / f"told-{rank}.json" for rank in range(2)]
    assert all(path.exists() for path in found), errors
    return [json.loads(path.read_text()) for path in found]


@pytest.fixture
def tests(request):
    """The folder of the tests."""
    return request.config.rootpath / "tests"


def test_26_an_error_of_the_main_process_is_raised_on_every_rank_at_once_and_names_it(tmp_path, tests):
    main, other = two_ranks(FAILS, tmp_path, tests)
    assert (main["kind"], main["text"]) == ("OSError", "the dataset is not there")
    assert other["kind"] == "RankFailedError"
    assert "rank 0" in other["text"]
    assert "OSError: the dataset is not there" in other["text"]
    assert max(main["seconds"], other["seconds"]) < 10


def test_28_ranks_with_different_data_are_refused_or_all_stop_where_the_first_of_them_ends(tmp_path, tests):
    long, short = (rank["found"] for rank in two_ranks(ENDS, tmp_path, tests))
    # Nobody said how long the job is: known before the first step.
    for own, (kind, text, step) in ((22, long[0]), (21, short[0])):
        assert (kind, step) == ("OrderError", None)
        assert f"different numbers of steps: 21 to 22, and {own} on rank" in text
    # It is said, and too much for one of them.
    assert (long[1][0], short[1][0]) == ("RankFailedError", "OptionError")
    assert "total_steps=22 is not valid; expected at most 21" in long[1][1]
    # Their lengths are known by nobody.
    assert (long[2][0], short[2][0]) == ("RankFailedError", "RuntimeError")
    assert long[2][2] == short[2][2] == 21
    assert "rank 1 failed in the data of step 22: RuntimeError: the data ended at step 21" in long[2][1]
