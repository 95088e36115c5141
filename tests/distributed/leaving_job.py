"""One rank of a job that ends without a word to its context; or, with "close", asks something of a closed one."""

import sys

from headrace import DeviceMeshParameters
from headrace.errors import ClosedError
from headrace.training.agreement import together

context = DeviceMeshParameters(data_parallel_replicate=2).build()
for _ in range(20):
    with together("a step"):
        pass
context.wait_world()
if sys.argv[1:] == ["close"]:
    context.close()
    for ask in (context.wait_world, lambda: context.mesh_for("batch"), lambda: context.set_timeout(1)):
        try:
            ask()
        except ClosedError:
            continue
        raise SystemExit("a closed context answers")
