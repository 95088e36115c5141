"""Batches for the training loop: the room where torch begins.

loader.py    StatefulDataLoader                    sampler.py   the same order for a stock DataLoader
world.py     which rank of how many                order.py     what decides the order, and states of it
steps.py     cursor -> items of each step          window_steps.py  the same, of rows that are planned by window
batches.py   items -> one batch                    collate.py   samples -> tensors
segments.py  windows with spans and packed rows -> tensors in which documents stay apart
parallel.py  who makes the batches                 prefetch.py  threads            workers.py   processes
epoch.py     the iterator, and what it counts      device.py    tensors -> device
"""

from headrace.loading.collate import Stack, stack
from headrace.loading.device import DeviceMover, map_tensors
from headrace.loading.loader import StatefulDataLoader
from headrace.loading.order import continued
from headrace.loading.sampler import ElasticBatchSampler
from headrace.loading.segments import StackSegments, stack_segments
from headrace.loading.world import World, resolve_world

__all__ = [
    "DeviceMover",
    "ElasticBatchSampler",
    "Stack",
    "StackSegments",
    "StatefulDataLoader",
    "World",
    "continued",
    "map_tensors",
    "resolve_world",
    "stack",
    "stack_segments",
]
