"""What the shard formats of samples have in common: a table of offsets, then samples of any size.

    u32 n | u32 offset[n+1] | JSON config        in front of the samples (MDS), or in a .meta file beside them
    sample i = data[offset[i] : offset[i+1]]     and offset[n] is where the data file ends

Offsets are 32 bits wide, so a data file has less than 4 GiB.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "LARGEST_OFFSET",
    "Decode",
    "Offsets",
    "SampleShards",
    "ShardOptions",
    "config_problem",
    "config_text",
    "offset_table",
    "offsets_in",
]

LARGEST_OFFSET = (1 << 32) - 1  # bytes; the largest data file that has offsets for its samples

Offsets = NDArray[np.uint32]  # (num_samples + 1,) bytes
Decode = Callable[[memoryview, int, int], dict[str, Any]]  # (data file, begin, end) -> sample; ValueError if damaged


class ShardOptions(NamedTuple):
    """What a writer was asked for; it is repeated in each shard, and says nothing about the samples."""

    compression: str | None = None
    hashes: tuple[str, ...] = ()
    size_limit: int | None = None  # bytes of a data file before compression


NO_OPTIONS = ShardOptions()


class SampleShards(Protocol):
    """One shard format with its columns: samples to bytes and back."""

    format: str  # and the suffix of the data file
    has_meta: bool  # whether the offsets are in a file of their own
    bytes_ahead: int  # what the rule of size_limit counts before the first sample
    bytes_a_sample: int  # and with each sample
    bytes_unseen: int  # what it does not count, although offsets run over it

    def schema(self) -> dict[str, Any]:
        """The format's own keys of an index entry."""
        ...

    def encode(self, sample: Mapping[str, Any], number: int) -> bytes:
        """The sample's bytes; FieldError with its number and column where it does not fit."""
        ...

    def head(self, sizes: NDArray[np.int64]) -> bytes:
        """What stands in the data file before samples of these sizes."""
        ...

    def meta(self, sizes: NDArray[np.int64]) -> bytes | None:
        """The whole file of offsets; None for a format without one."""
        ...

    def offsets(
        self, data: memoryview, meta: memoryview | None, num_samples: int, data_bytes: int | None = None
    ) -> Offsets:
        """Where each sample begins and the last one ends, checked; ValueError where they make no sense.

        Of a data file of data_bytes bytes, data may be the bytes before the first sample, or more of it.
        """
        ...

    def decoder(self, columns: Sequence[str] | None = None) -> Decode:
        """What makes samples of bytes: all columns, or these."""
        ...


def offset_table(first: int, sizes: NDArray[np.int64]) -> bytes:
    """The number of samples and their offsets, where the first begins at `first`."""
    offsets = np.full(len(sizes) + 2, first, np.int64)
    offsets[0] = len(sizes)
    np.cumsum(sizes, out=offsets[2:])
    offsets[2:] += first
    assert offsets[-1] <= LARGEST_OFFSET  # the writer begins another shard before
    return offsets.astype("<u4").tobytes()


def offsets_in(table: memoryview, num_samples: int, data_bytes: int) -> Offsets:
    """The offsets of num_samples samples; ValueError unless they rise to the end of the data."""
    need = 4 * (num_samples + 2)
    if len(table) < need:
        raise ValueError(f"its offsets need {need} bytes, but it has {len(table)}")
    found = int.from_bytes(table[:4], "little")
    if found != num_samples:
        raise ValueError(f"it says that it has {found} samples, but the index says {num_samples}")
    offsets = np.frombuffer(table, "<u4", num_samples + 1, 4)
    if int(offsets[-1]) != data_bytes:
        raise ValueError(f"its last sample ends at byte {offsets[-1]}, but the file has {data_bytes} bytes")
    falls = offsets[1:] < offsets[:-1]
    if falls.any():
        sample = int(falls.argmax())
        raise ValueError(f"its sample {sample} begins at byte {offsets[sample]} and ends at {offsets[sample + 1]}")
    return offsets


def config_text(shards: SampleShards, options: ShardOptions) -> bytes:
    """The JSON that repeats in each shard what the index says of all."""
    config = {
        "version": 2,
        "format": shards.format,
        "compression": options.compression,
        "hashes": options.hashes,
        "size_limit": options.size_limit,
        **shards.schema(),
    }
    return json.dumps(config, sort_keys=True).encode()


def config_problem(shards: SampleShards, config: memoryview) -> str:
    """Why the config in a shard is not that of these shards; "" where it is, or says nothing of columns.

    What it repeats of the writer's options is not compared: whoever unpacks shards has no need to rewrite them.
    """
    try:
        found = json.loads(config.tobytes())
    except (ValueError, RecursionError):
        return ""
    for name, expected in shards.schema().items():
        expected = list(expected) if isinstance(expected, tuple) else expected
        if isinstance(found, dict) and found.get(name, expected) != expected:
            return f"its {name} are {found[name]!r}, but the index says {expected!r}"
    return ""
