"""The data of the golden trainer job, which d9d's loop and Headrace's are given."""

import dataclasses

import numpy as np
import torch

NUM_SAMPLES = 64


@dataclasses.dataclass
class Batch:
    """A microbatch of it."""

    inputs: torch.Tensor
    labels: torch.Tensor
    ids: torch.Tensor


class Samples(torch.utils.data.Dataset):
    """Sample i is (i, input, label)."""

    def __len__(self):
        return NUM_SAMPLES

    def __getitem__(self, index):
        if not 0 <= index < NUM_SAMPLES:
            raise IndexError(index)
        x, y = index / NUM_SAMPLES, index % 8 / 8
        return index, [x, y], 2 * x - y


def collate(samples):
    """Rows side by side."""
    ids, inputs, labels = zip(*samples, strict=True)
    return Batch(inputs=torch.tensor(inputs), labels=torch.tensor(labels).unsqueeze(1), ids=torch.tensor(ids))


def document_lengths():
    """Lengths that these samples are said to have, where lengths matter: 1 to 16 tokens."""
    return np.arange(NUM_SAMPLES) * 7 % 16 + 1


def numbers(n):
    """n different numbers without an order to the eye."""
    return [(7919 * i + 13) % 104_729 for i in range(n)]


class Keyed(torch.utils.data.Dataset):
    """Sample i is i itself, its key what was given."""

    def __init__(self, keys):
        self.keys = keys

    def __len__(self):
        return len(self.keys)

    def __getitem__(self, index):
        if not 0 <= index < len(self.keys):
            raise IndexError(index)
        return index

    def sort_key(self, index):
        return self.keys[index]
