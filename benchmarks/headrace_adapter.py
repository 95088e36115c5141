"""Headrace in a harness that runs several libraries side by side; the harness loads this file by its path.

`loader` is StatefulDataLoader over a global shuffle, `loader_t2` the same with two threads. `dataset` is a shuffled
view asked for a batch at a time, so that it works out the order for 8 rows where the loader does it for thousands.
Writing is without fsync, as the peers write, with digests and receipts, which they have not; publishing is part of it.
"""

# mypy: ignore-errors
# ruff: noqa: TID252 - this module becomes part of the harness's own package

from __future__ import annotations

import numpy as np
import torch
from common import Source, split

from headrace import (
    LocalStore,
    ShuffledDataset,
    StatefulDataLoader,
    StreamArrayFormat,
    StreamDataset,
    StreamStorage,
    stack,
)
from headrace.planning import shuffled

from .base import Adapter, Loader, package_versions, run_parts

SHARD_BYTES = 64 << 20


def _storage(out: str) -> StreamStorage:
    return StreamStorage(LocalStore(out, fsync=False), StreamArrayFormat("<u2"))


def _write(source: Source, out: str, first_shard: int, shards: int, begin: int, end: int) -> None:
    windows = source.windows()
    with _storage(out).sync_writer() as writer:
        for shard, (low, high) in enumerate(split(end - begin, shards)):
            writer.start(first_shard + shard)
            for window in range(begin + low, begin + high):
                writer.append(first_shard + shard, np.asarray(windows[window]))


class ByLoader(Loader):
    """The loader, its state and its order."""

    def __init__(self, dataset: StreamDataset, batch: int, seed: int, threads: int) -> None:
        self._loader = StatefulDataLoader(
            dataset,
            stack(dtype=torch.int64),
            device="cpu",
            local_batch_size=batch,
            shuffle=True,
            shuffle_seed=seed,
            drop_last=False,
            num_workers=threads,
        )

    def __iter__(self):
        return iter(self._loader)

    def state(self):
        return self._loader.state_dict()

    def restore(self, state) -> None:
        self._loader.load_state_dict(state)

    def close(self) -> None:
        self._loader.close()


class ByHand(Loader):
    """A shuffled view, asked for a batch at a time."""

    def __init__(self, dataset: StreamDataset, batch: int, seed: int) -> None:
        self._view = ShuffledDataset(dataset, seed)
        self._batch = batch

    def __iter__(self):
        view, collate = self._view, stack(dtype=torch.int64)
        for begin in range(0, len(view), self._batch):
            yield collate(view.__getitems__(np.arange(begin, min(begin + self._batch, len(view)))))


class A(Adapter):
    """What the harness asks for."""

    name = "headrace"
    variants = {"tokens": ["loader", "loader_t2", "dataset"]}  # noqa: RUF012 - the harness's interface
    writes = ("tokens",)
    shuffles = ["headrace"]  # noqa: RUF012
    notes = {"tokens": "writing includes digests, receipts and publishing; no fsync"}  # noqa: RUF012

    def versions(self):
        return package_versions("headrace", "torch", "numpy")

    def write(self, kind, source, out, *, nproc=1, shards=None, limit=None) -> None:
        num_windows = limit or source.spec.n(kind)
        if shards is None:
            shards = max(nproc, round(source.nbytes(kind, num_windows) / SHARD_BYTES))
        each = max(1, shards // nproc)
        ranges = split(num_windows, nproc)
        run_parts(_write, [(source, out, part * each, each, begin, end) for part, (begin, end) in enumerate(ranges)])
        _storage(out).publish()

    def loader(self, kind, source, out, *, batch, variant, workers=0, decode=False, seed=0):
        dataset = StreamDataset(StreamStorage(out), source.spec.seq_len)
        if variant == "dataset":
            return ByHand(dataset, batch, seed)
        return ByLoader(dataset, batch, seed, 2 if variant == "loader_t2" else workers)

    def first_indices(self, shuffle, n, batch):
        return shuffled(np.arange(batch, dtype=np.int64), n, 0).tolist()
