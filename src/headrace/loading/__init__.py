"""Batches for the training loop: the room where torch begins.

loader.py    StatefulDataLoader                    sampler.py   the same order for a stock DataLoader
world.py     which rank of how many                order.py     what decides the order, and states of it
steps.py     cursor -> items of each step          window_steps.py  the same, of rows that are planned by window
batches.py   items -> one batch                    collate.py   samples -> tensors
segments.py  windows with spans and packed rows -> tensors in which documents stay apart
announcing.py  items that caches fetch ahead
parallel.py  who makes the batches                 prefetch.py  threads            workers.py   processes
parcels.py   batches on their way from a process   device.py    tensors -> device
epoch.py     the iterator, and what it counts
pack_protocols.py  what packs are                  packs.py     microbatches -> packs, one a step
pinning.py   packs -> pinned memory                padding.py   unequal sequences -> tensors
pytree.py    batches of any shape as trees         targets.py   what a microbatch weighs in the loss
device_stream.py   packs -> device, some ahead     data_metrics.py   what was fed, and waited for
pack_runs.py       one pass over a stream
"""

from headrace.loading.collate import Stack, stack
from headrace.loading.data_metrics import DataMetrics, count_tokens
from headrace.loading.device import DeviceMover, map_tensors
from headrace.loading.device_stream import DevicePackStream, build_device_pack_stream
from headrace.loading.loader import StatefulDataLoader
from headrace.loading.order import continued
from headrace.loading.pack_protocols import (
    CollateFn,
    DataLoaderProtocol,
    MicrobatchPack,
    MicrobatchPackStream,
    PyTree,
    ScalarTree,
    TensorTree,
)
from headrace.loading.packs import (
    FixedCountMicrobatchPacker,
    TokenBudgetMicrobatchPacker,
    TokenPack,
    num_microbatches_for_global_batch,
)
from headrace.loading.padding import (
    PaddingSide1D,
    TokenPoolingType,
    pad_stack_1d,
    token_pooling_mask_from_attention_mask,
)
from headrace.loading.pinning import PinMemoryMicrobatchPackStream
from headrace.loading.pytree import (
    PyTreeSpec,
    tree_flatten,
    tree_leaves,
    tree_leaves_with_path,
    tree_map,
    tree_map_only,
    tree_unflatten,
)
from headrace.loading.sampler import ElasticBatchSampler
from headrace.loading.segments import StackSegments, stack_segments
from headrace.loading.targets import count_targets
from headrace.loading.world import World, resolve_world

__all__ = [
    "CollateFn",
    "DataLoaderProtocol",
    "DataMetrics",
    "DeviceMover",
    "DevicePackStream",
    "ElasticBatchSampler",
    "FixedCountMicrobatchPacker",
    "MicrobatchPack",
    "MicrobatchPackStream",
    "PaddingSide1D",
    "PinMemoryMicrobatchPackStream",
    "PyTree",
    "PyTreeSpec",
    "ScalarTree",
    "Stack",
    "StackSegments",
    "StatefulDataLoader",
    "TensorTree",
    "TokenBudgetMicrobatchPacker",
    "TokenPack",
    "TokenPoolingType",
    "World",
    "build_device_pack_stream",
    "continued",
    "count_targets",
    "count_tokens",
    "map_tensors",
    "num_microbatches_for_global_batch",
    "pad_stack_1d",
    "resolve_world",
    "stack",
    "stack_segments",
    "token_pooling_mask_from_attention_mask",
    "tree_flatten",
    "tree_leaves",
    "tree_leaves_with_path",
    "tree_map",
    "tree_map_only",
    "tree_unflatten",
]
