"""Runs a module with d9d 0.24 on a machine without a GPU, in d9d's own interpreter.

python -m interop.d9d_on_cpu MODULE ARGUMENTS...

d9d is written for CUDA alone. What it does there that has no meaning here is replaced by nothing, and "cuda" by "cpu":
streams and events, the device of its context, meshes and metrics, pinning. Everything else is d9d's own.
"""

import contextlib
import os
import runpy
import sys
from pathlib import Path
from unittest.mock import MagicMock

import torch
import torch._dynamo  # before anything is replaced: it lists what torch has
from torch.utils._triton import has_triton_package

STUBS = Path(__file__).parent / "d9d_stubs"


@contextlib.contextmanager
def stubs():
    """Stand-ins for what d9d imports and never uses here. Gone again afterwards, for torch would take them as real."""
    has_triton_package()  # torch asks once, and keeps the answer
    sys.path.insert(0, str(STUBS))
    try:
        yield
    finally:
        sys.path.remove(str(STUBS))
        for name in [name for name in sys.modules if name.split(".")[0] == "triton"]:
            del sys.modules[name]


def nothing(*arguments, **options):
    """What a replaced call does."""


def itself(tensor, *arguments, **options):
    """What a replaced method of tensors gives."""
    return tensor


def local_world_size():
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


for name in ("set_device", "synchronize", "empty_cache"):
    setattr(torch.cuda, name, nothing)
for name in ("Stream", "Event", "current_stream"):
    setattr(torch.cuda, name, MagicMock)
torch.cuda.device_count = local_world_size
torch.cuda.current_device = lambda: 0
torch.cuda.stream = contextlib.nullcontext
torch.Tensor.pin_memory = itself
torch.Tensor.record_stream = nothing

with stubs():
    import d9d.core.dist_context.configured as configured
    import d9d.core.dist_context.device_mesh_domains as domains
    import d9d.loop.auto
    import d9d.loop.run
    import d9d.metric.component.accumulator as accumulator
    import d9d.module.parallelism.api  # noqa: F401 - it imports kernels

mesh_of = domains.init_device_mesh
domains.init_device_mesh = lambda device_type, **options: mesh_of("cpu", **options)
accumulator.MetricAccumulator.to = nothing


class DistributedContext(configured.DistributedContext):
    """d9d's own, with the CPU as its device."""

    current_device = property(lambda self: torch.device("cpu"))

    def wait_world(self):
        if self.mesh_params.is_distributed:
            torch.distributed.barrier()

    def set_timeout(self, timeout_seconds):
        """Of torch 2.14, which d9d asks for and this does not need."""


import d9d.core.dist_context.params as params  # noqa: E402 - it takes the context from where it was replaced

params.DistributedContext = DistributedContext

if __name__ == "__main__":
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
