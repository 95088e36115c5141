"""Packed documents in packs, here or in a process of its own."""

from functools import partial
from itertools import islice

import numpy as np

from headrace import (
    BufferSortedDataset,
    FixedCountMicrobatchPacker,
    PackedDataset,
    StatefulDataLoader,
    WithLengths,
    stack_segments,
)
from loading import jobs


class Documents:
    """Documents of 1 to 20 tokens, which tell the document and the place in it."""

    def __init__(self, count):
        self.lengths = np.random.default_rng(46).integers(1, 21, count).tolist()

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        return np.arange(self.lengths[index], dtype=np.int64) + 100 * index

    def sort_key(self, index):
        return self.lengths[index]


def packer_of(buckets, workers):
    documents = Documents(200)
    base = WithLengths(documents, documents.lengths)
    if buckets:
        base = BufferSortedDataset(base, 64, 16, 7)
    loader = StatefulDataLoader(
        PackedDataset(base, 16, window=70, strategy="concat"),  # rows of 16, whose documents go on in the next one
        stack_segments(labels=True),
        local_batch_size=2,
        rank=0,
        world_size=1,
        device="cpu",
        num_workers=workers,
        parallel_method="process",
    )
    return FixedCountMicrobatchPacker(loader, 3)


def content(pack):
    return [{name: tensor.tolist() for name, tensor in microbatch.items()} for microbatch in pack]


def run(buckets, workers, steps, state=None):
    """The next packs, and the state behind each."""
    packer = packer_of(buckets, workers)
    if state is not None:
        packer.load_state_dict(state)
    found = [(content(pack), packer.state_dict()) for pack in islice(packer, steps)]
    packer.close()
    return found


in_a_new_process = partial(jobs.in_a_new_process, "loading.pack_scenes")
