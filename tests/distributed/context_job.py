"""One rank of a job that goes through blocks in which something fails; what it met goes to a file, a line a scene."""

import json
import os
import signal
import sys
import time
from pathlib import Path

from headrace import AutoDataConfig, AutoDataProvider, DeviceMeshParameters, InitializeDataProviderContext
from headrace.training.agreement import check_same


def main(out, replicate, shard, scenes):
    """Go through the scenes."""
    context = DeviceMeshParameters(data_parallel_replicate=replicate, data_parallel_shard=shard).build()
    context.set_timeout(60)
    file = (Path(out) / f"rank-{context.rank}.jsonl").open("w")

    def write(scene, **facts):
        print(json.dumps({"scene": scene, "rank": context.rank, **facts}), file=file, flush=True)

    for scene in scenes:
        context.wait_world()
        begun = time.monotonic()
        found = {}
        try:
            run(context, scene, found, out)
        except BaseException as error:
            found |= {"error": type(error).__name__, "text": str(error)}
        write(scene, seconds=time.monotonic() - begun, **found)
    if scenes[-1] != "late":
        context.wait_world()
    context.close()
    context.close()


def run(context, scene, found, out):
    """One scene; what it finds goes to found."""
    marks = Path(out) / f"{scene.replace(' ', '-')}.txt"
    block = context.local_main_process_first if "local" in scene else context.main_process_first
    if scene == "places":
        dp, regular = context.mesh_for("batch")["dp"], context.mesh_for("regular")
        found["dp"] = [dp.get_local_rank(), dp.size()]
        found["group"] = dp.get_group().size()
        found["mesh"] = list(regular["dp_replicate", "dp_shard"].shape)
        found["world"] = context.mesh_for("flat")["world"].size()
        found["node"] = [context.node_rank, context.num_nodes, context.local_rank]
        found["main"] = [context.is_main_process, context.is_local_main_process]
        found["master"] = context.master_addr
    elif scene == "data":
        config = AutoDataConfig(global_batch_size=12, microbatch_size=2, shuffle=True, epochs=2)
        provider = AutoDataProvider(lambda _: range(50), list, config)
        stream = provider(InitializeDataProviderContext(dist_context=context))
        found["packs"] = list(stream)
    elif scene == "returned":
        found["value"] = returned(context)
    elif scene == "same":
        check_same("data", "as everywhere")
        check_same("data", f"seed 7, {'other' if context.rank == 1 else 'the'} data")
    elif scene == "late":
        context.set_timeout(2)
        if context.rank:
            context.wait_world()
        else:
            time.sleep(6)
    elif scene == "killed":
        with block():
            if context.rank == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            found["entered"] = True
    else:
        with block():
            found["entered"] = True
            if scene in ("order", "local order"):
                found["saw"] = marks.read_text().split() if marks.exists() else []
                with marks.open("a") as file:
                    print(context.rank, file=file)
            if scene == "main fails" and context.rank == 0:
                raise OSError("disk full")
            if scene == "another fails" and context.rank == 1:
                raise KeyError("lost")
            if scene == "local fails" and context.is_local_main_process and context.node_rank == context.num_nodes - 1:
                raise OSError("node full")
            if scene == "within":
                with context.local_main_process_first():
                    found["inner"] = True


def returned(context):
    """A value out of a block."""
    with context.main_process_first():
        return context.rank


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
