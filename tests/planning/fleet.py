"""A fleet of ranks that trains on paper: every rank computes its own ids, from the plan alone, as a loader would."""

import json
from dataclasses import dataclass, field

import numpy as np

from headrace.planning import Cursor, decode_state, encode_state, rank_positions, steps_left
from headrace.views import ShuffledDataset, dataset_settings


@dataclass
class Fleet:
    """world_size ranks over items 0..num_items-1. step() is one step of all; batches are lists of ids a rank."""

    num_items: int
    global_batch_size: int
    world_size: int
    seed: int | None = 7
    drop_last: bool = True
    cursor: Cursor = field(default_factory=Cursor)

    def __post_init__(self):
        base = range(self.num_items)
        self.dataset = base if self.seed is None else ShuffledDataset(base, self.seed)
        self.settings = {**dataset_settings(self.dataset), "drop_last": self.drop_last}

    @property
    def deal(self):
        return {"num_rows": self.num_items, "global_batch_size": self.global_batch_size}

    @property
    def steps_left(self):
        return steps_left(self.num_items, self.cursor.position, self.global_batch_size, self.drop_last)

    def ids(self, rank, num_steps):
        """This rank's ids in the next num_steps steps, a list a step; nobody else is asked."""
        rows, offsets = rank_positions(
            self.cursor.position, num_steps, rank=rank, world_size=self.world_size, **self.deal
        )
        positions = self.cursor.epoch * self.num_items + rows
        located = positions if self.seed is None else self.dataset.locate(positions)
        ids = located % self.num_items
        return [ids[offsets[k] : offsets[k + 1]].tolist() for k in range(num_steps)]

    def step(self):
        """One step: the ids of each rank; the cursor moves on."""
        batches = [self.ids(rank, 1)[0] for rank in range(self.world_size)]
        self.cursor = self.cursor.advanced(self.global_batch_size, drop_last=self.drop_last, **self.deal)
        return batches

    def state(self):
        """The record of this run, as a file would hold it."""
        return json.dumps(encode_state(self.cursor, self.settings))

    def load(self, text):
        """Go on where the record says."""
        cursor = decode_state(json.loads(text), self.settings, self.num_items)
        self.cursor = cursor.advanced(0, drop_last=self.drop_last, **self.deal)
        return self


def whole(batches):
    """The global batch that these ranks' batches are the deal of, in order."""
    together = []
    for place in range(max(map(len, batches))):
        together += [batch[place] for batch in batches if place < len(batch)]
    return together


def run(fleet, steps):
    """The next global batches."""
    return [whole(fleet.step()) for _ in range(steps)]


def epoch_order(num_items, seed, epoch):
    """All ids of an epoch, by the view itself."""
    if seed is None:
        return list(range(num_items))
    positions = np.arange(epoch * num_items, (epoch + 1) * num_items)
    return (ShuffledDataset(range(num_items), seed).locate(positions) % num_items).tolist()
