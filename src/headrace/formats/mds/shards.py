"""The MDS shard: offsets, what the index says once more, and the samples, in one file.

u32 n | u32 offset[n+1] | header | sample 0 | sample 1 | ...
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.formats.mds.samples import SampleColumns
from headrace.formats.sample_shards import (
    NO_OPTIONS,
    Decode,
    Offsets,
    ShardOptions,
    config_text,
    offset_table,
    offsets_in,
)

__all__ = ["MdsShards"]


class MdsShards:
    """MDS shards of samples with these columns."""

    format = "mds"
    has_meta = False
    bytes_a_sample = 4
    bytes_unseen = 0

    def __init__(self, columns: SampleColumns, options: ShardOptions = NO_OPTIONS) -> None:
        self.columns = columns
        self.encode: Callable[[Mapping[str, Any], int], bytes] = columns.encode  # no method: one call less a sample
        self._header = config_text(self, options)
        self.bytes_ahead = 8 + len(self._header)

    def schema(self) -> dict[str, Any]:
        """The columns, by name."""
        return {
            "column_names": self.columns.names,
            "column_encodings": self.columns.encodings,
            "column_sizes": self.columns.sizes,
        }

    def head(self, sizes: NDArray[np.int64]) -> bytes:
        """Offsets and header."""
        return offset_table(4 * (len(sizes) + 2) + len(self._header), sizes) + self._header

    def meta(self, sizes: NDArray[np.int64]) -> None:
        """None: the offsets stand in the data file."""
        return None

    def offsets(
        self, data: memoryview, meta: memoryview | None, num_samples: int, data_bytes: int | None = None
    ) -> Offsets:
        """The offsets at the beginning of the file, checked."""
        offsets = offsets_in(data, num_samples, len(data) if data_bytes is None else data_bytes)
        # The header between them is not read: the index says the same, and decides.
        if offsets[0] < 4 * (num_samples + 2):
            raise ValueError(f"its first sample begins at byte {offsets[0]}, inside its own offsets")
        return offsets

    def decoder(self, columns: Sequence[str] | None = None) -> Decode:
        """What makes samples of bytes: all columns, or these."""
        return self.columns.decoder(columns)
