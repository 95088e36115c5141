"""Random numbers of the process: reading takes none, and those drawn in workers are neither repeated nor lost."""

import random

import numpy as np
import pytest
import torch

from loading.samples import WORKERS, Numbers, make, take


class Noisy(Numbers):
    """Draws a random number for each sample, as an augmentation would."""

    def __getitem__(self, index):
        return {"id": index, "noise": torch.rand(1).item()}


def next_numbers():
    return torch.rand(1).item(), float(np.random.rand()), random.random()


def seed_all():
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("workers", WORKERS)
def test_what_a_model_draws_does_not_depend_on_who_made_its_batches(workers, keep):
    seed_all()
    expected = next_numbers()
    seed_all()
    with make(20, shuffle=True, persistent_workers=keep, **WORKERS[workers]) as loader:
        take(loader, 25)
        assert next_numbers() == expected


def noise(seed, rank=0, epochs=1, state=None):
    torch.manual_seed(seed)
    with make(Noisy(40), local_batch_size=2, rank=rank, world_size=2, **WORKERS["fork"]) as loader:
        if state is not None:
            loader.load_state_dict(state)
        return [batch["noise"].tolist() for _ in range(epochs) for batch in loader]


def test_workers_draw_other_numbers_on_each_rank_in_each_epoch_and_after_a_resume_and_the_same_in_another_run():
    first, second = noise(5, epochs=2)[:10], noise(5, epochs=2)[10:]
    assert (first, second) == (noise(5), noise(5, epochs=2)[10:])
    with make(Noisy(40), local_batch_size=2, world_size=2) as loader:
        take(loader, 5)
        resumed = noise(5, state=loader.state_dict())
    runs = [first, second, noise(5, rank=1), noise(6), resumed]
    drawn = [number for run in runs for batch in run for number in batch]
    assert len(set(drawn)) == len(drawn)
