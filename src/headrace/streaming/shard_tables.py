"""Which shards and samples the streams of a dataset have, under Streaming's names."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.datasets.samples.dataset import SampleDataset
from headrace.streaming.stream import Stream

__all__ = ["ShardTables"]

Int64s = NDArray[np.int64]


class ShardTables:
    """Numbers of shards and samples of all streams, one after the other. Read from the indexes at first use."""

    stored: SampleDataset
    streams: Sequence[Stream]

    @property
    def num_shards(self) -> int:
        """How many shards all streams have."""
        return len(self.samples_per_shard)

    @property
    def samples_per_shard(self) -> Int64s:
        """Samples of each shard, shape (num_shards,)."""
        return self.stored.shard_items

    @property
    def shards_per_stream(self) -> Int64s:
        """Shards of each stream, shape (num_streams,)."""
        return np.array(self.stored.shards_per_folder, np.int64)

    @property
    def num_streams(self) -> int:
        """How many streams there are."""
        return len(self.streams)

    @property
    def samples_per_stream(self) -> Int64s:
        """Samples of each stream, shape (num_streams,)."""
        return np.array([int(items.sum()) for items in self.shards_of_streams()], np.int64)

    @property
    def stream_per_shard(self) -> Int64s:
        """The stream of each shard, shape (num_shards,)."""
        return np.repeat(np.arange(self.num_streams, dtype=np.int64), self.shards_per_stream)

    @property
    def shard_offset_per_stream(self) -> Int64s:
        """The first shard of each stream, shape (num_streams,)."""
        return _before(self.shards_per_stream)

    @property
    def sample_offset_per_stream(self) -> Int64s:
        """The first sample of each stream, shape (num_streams,)."""
        return _before(self.samples_per_stream)

    @property
    def sample_offset_per_shard(self) -> Int64s:
        """The first sample of each shard, shape (num_shards,)."""
        return _before(self.samples_per_shard)

    def shards_of_streams(self) -> list[Int64s]:
        """For each stream the samples of its shards."""
        return np.split(self.samples_per_shard, np.cumsum(self.shards_per_stream)[:-1])

    def prepare_shard(self, shard_id: int, blocking: bool = True) -> None:
        """Have a shard's files fetched into the cache: now, or with blocking=False in the background, as files above
        256 MiB are in any case; these are read by ranges until they are there."""
        first = int(self.sample_offset_per_shard[shard_id])
        if self.samples_per_shard[shard_id]:
            self.stored.prefetch([first])
            if blocking:
                self.stored[first]


def _before(counts: Int64s) -> Int64s:
    return np.cumsum(counts) - counts
