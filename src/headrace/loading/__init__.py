"""Batches for the training loop: the room where torch begins.

loader.py    StatefulDataLoader                    sampler.py   the same order for a stock DataLoader
steps.py     cursor -> items of each step          world.py     which rank of how many
prefetch.py  batches by threads                    workers.py   batches by processes
collate.py   samples -> tensors                    device.py    tensors -> device
"""

from headrace.loading.collate import Stack, stack
from headrace.loading.device import DeviceMover, map_tensors
from headrace.loading.loader import StatefulDataLoader
from headrace.loading.sampler import ElasticBatchSampler
from headrace.loading.world import World, resolve_world

__all__ = [
    "DeviceMover",
    "ElasticBatchSampler",
    "Stack",
    "StatefulDataLoader",
    "World",
    "map_tensors",
    "resolve_world",
    "stack",
]
