"""One rank of a job that reads a StreamingDataset until it is told to end, or killed; the same command goes on.

Each rank writes a file of its own into the folder `out`, a line of JSON for its beginning and for each step; rank 0's
lines have the state. What all ranks got in a step is compared here: nothing may be with two of them.
"""

import argparse
import json
import os
import time
from pathlib import Path

import numpy.random  # noqa: F401 - which torch's workers import late: see "other user" below
import torch.distributed as dist

from headrace import StreamingDataLoader, StreamingDataset


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--remote", required=True)
    parser.add_argument("--cache")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--steps", required=True, type=int)
    parser.add_argument("--global-batch", type=int, default=12)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--limit")
    parser.add_argument("--pause-s", type=float, default=0.02)
    parser.add_argument("--user", type=int)
    return parser.parse_args()


def saved(out):
    """The last step that rank 0 of any attempt has written, and the state behind it."""
    found = {"step": 0, "state": None}
    for path in out.glob("*-rank-0.jsonl"):
        whole, _, _ = path.read_text().rpartition("\n")
        for line in map(json.loads, whole.splitlines()):
            if line.get("step", 0) > found["step"]:
                found = line
    return found["step"], found["state"]


def main(options):
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    begin = [saved(options.out) if rank == 0 else None]
    dist.broadcast_object_list(begin)
    step, state = begin[0]
    attempt = os.environ["TORCHELASTIC_RUN_ID"]
    file = (options.out / f"{attempt}-rank-{rank}.jsonl").open("w")

    def write(**facts):
        print(json.dumps({"rank": rank, "world_size": world_size, **facts}), file=file, flush=True)

    if options.user is not None:
        # The interpreter's folder may be closed to the other user: what is imported late is imported now.
        other = StreamingDataset(remote=options.remote, local=options.out / f"other cache {rank}")
        with StreamingDataLoader(other, num_workers=1) as loader:
            next(iter(loader))
        other.close()
        os.setgroups([])
        os.setgid(options.user)
        os.setuid(options.user)
    begun_s = time.monotonic()
    write(begun=os.getpid())
    dataset = StreamingDataset(
        remote=options.remote,
        local=options.cache,
        cache_limit=options.limit,
        shuffle=True,
        shuffle_seed=options.seed,
        batch_size=options.global_batch // world_size,
    )
    with StreamingDataLoader(dataset, num_workers=2) as loader:
        if state is not None:
            loader.load_state_dict(state)
        while step < options.steps:
            for batch in loader:
                if begun_s:
                    write(first_batch_s=time.monotonic() - begun_s)
                    begun_s = 0
                ids = batch["number"].tolist()
                everybodys = [None] * world_size
                dist.all_gather_object(everybodys, ids)
                rows = [row for some in everybodys for row in some]
                assert len(set(rows)) == len(rows), f"step {step + 1}: a row is with two ranks"
                step += 1
                write(step=step, ids=ids, **({"all": everybodys, "state": loader.state_dict()} if rank == 0 else {}))
                if step == options.steps:
                    break
                time.sleep(options.pause_s)
    write(done=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(arguments())
