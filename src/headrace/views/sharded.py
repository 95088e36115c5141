"""One of several equal parts of a dataset, for a reader that chooses its part itself (d9d's sharding)."""

import operator
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

import numpy as np

from headrace.errors import OptionError
from headrace.planning import shard_length, shard_positions
from headrace.views.options import whole_number
from headrace.views.protocol import Int64s, Setting
from headrace.views.view import View

__all__ = ["ShardIndexingMode", "ShardedDataset"]


class ShardIndexingMode(StrEnum):
    """Which samples a shard has: every total_shards-th (sequential), or a run of neighbours (chunked)."""

    sequential = "sequential"
    chunked = "chunked"


class ShardedDataset(View):
    """Shard current_shard of total_shards of dataset. All shards together are the dataset, each sample once.

    With pad_to_equal_size_across_shards all have ceil(len / total_shards) samples: what a shard lacks is the dataset's
    last sample again, `padding` times, and `is_padding` marks where. Without, chunks at the end may be short or empty.

    A loader deals its global batches to ranks itself, and goes on with another number of them; a shard is for readers
    that do not. OptionError for a shard number that does not exist and for a dataset without a length.
    """

    def __init__(
        self,
        dataset: Any,
        total_shards: int,
        current_shard: int,
        indexing_mode: ShardIndexingMode,
        pad_to_equal_size_across_shards: bool,
    ) -> None:
        if not hasattr(dataset, "__len__"):
            raise OptionError("dataset", type(dataset).__name__, "a dataset with a length (__len__), to be sharded")
        super().__init__(dataset)
        self.total_shards = whole_number("total_shards", total_shards, least=1)
        self.current_shard = whole_number("current_shard", current_shard, least=0, below=self.total_shards)
        if indexing_mode not in list(ShardIndexingMode):
            raise OptionError(
                "indexing_mode", indexing_mode, " or ".join(repr(mode.value) for mode in ShardIndexingMode)
            )
        self.indexing_mode = ShardIndexingMode(indexing_mode)
        if not isinstance(pad_to_equal_size_across_shards, bool | np.bool_):
            raise TypeError(f"pad_to_equal_size_across_shards must be a bool, not {pad_to_equal_size_across_shards!r}")
        self.padded = bool(pad_to_equal_size_across_shards)

    def __repr__(self) -> str:
        of = f"{self.current_shard} of {self.total_shards}, {self.indexing_mode.value}{', padded' * self.padded}"
        return f"ShardedDataset({self.base!r}, {of})"

    @property
    def dataset(self) -> Any:
        """The dataset that this is a shard of; the same as `base`."""
        return self.base

    def __len__(self) -> int:
        return self._length(self.padded)

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    @property
    def padding(self) -> int:
        """How many samples of an epoch are padding: the last ones."""
        return len(self) - self._length(False)

    def is_padding(self, index: Any) -> Any:
        """Whether the sample at this index is padding: a bool for a number, an array of them for an array.

        An index is as for `shard[index]`: negative from the end, IndexError outside.
        """
        length, own = len(self), self._length(False)
        if np.ndim(index) == 0:
            number = operator.index(index)
            if not -length <= number < length:
                raise IndexError(f"index {number} is outside a shard of {length} samples")
            return number % length >= own
        indices = np.asarray(index)
        if indices.size == 0:
            return np.zeros(indices.shape, bool)
        if indices.dtype.kind not in "iu":
            raise TypeError(f"indices must be integers, not {indices.dtype}")
        outside = (indices < -length) | (indices >= length)
        if outside.any():
            raise IndexError(f"index {indices[outside].flat[0]} is outside a shard of {length} samples")
        return indices % length >= own

    def locate(self, positions: Int64s) -> Int64s:
        """The dataset's endless positions behind these endless positions of the shard; IndexError for negative ones."""
        epochs, indices = np.divmod(self.checked(positions), max(1, len(self)))
        number = len(self.base)
        chunked = self.indexing_mode is ShardIndexingMode.chunked
        items = shard_positions(indices, number, self.total_shards, self.current_shard, chunked=chunked)
        return epochs * number + np.minimum(items, number - 1)  # past the end is padding: the last sample

    def positions_of(self, base_positions: Int64s) -> Int64s:
        """The endless positions of the shard at which these endless positions of the dataset stand, as padding too."""
        number = len(self.base)
        epochs, items = np.divmod(np.asarray(base_positions, np.int64), max(1, number))
        chunked = self.indexing_mode is ShardIndexingMode.chunked
        first = self.current_shard * -(-number // self.total_shards) if chunked else self.current_shard
        indices, rest = np.divmod(items - first, 1 if chunked else self.total_shards)
        own = (rest == 0) & (indices >= 0) & (indices < len(self) - self.padding)
        found = [epochs[own] * len(self) + indices[own]]
        if self.padding:
            padded = np.arange(len(self) - self.padding, len(self), dtype=np.int64)
            found.append((epochs[items == number - 1, None] * len(self) + padded).reshape(-1))
        return np.concatenate(found)

    def _length(self, padded: bool) -> int:
        chunked = self.indexing_mode is ShardIndexingMode.chunked
        return shard_length(len(self.base), self.total_shards, self.current_shard, chunked=chunked, padded=padded)

    @property
    def own_settings(self) -> Mapping[str, Setting]:
        """Which shard of how many, and how they are cut."""
        return {
            "shard_indexing": self.indexing_mode.value,
            "total_shards": self.total_shards,
            "current_shard": self.current_shard,
            "shards_padded": self.padded,
        }
