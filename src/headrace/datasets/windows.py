"""Windows of a stream, of whichever kind: StreamReader reads anywhere, StreamDataset is windows of one length."""

import operator
from collections.abc import Sequence
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from headrace.datasets.handles import OpenShards, ReadableStorage, ShardDataset, ShardReader
from headrace.datasets.item_numbers import item_numbers
from headrace.datasets.row_gather import RowGather

__all__ = ["OpenStream", "StreamDataset", "StreamReader"]


class OpenStream(OpenShards, Protocol):
    """An opened directory of elements, plain or annotated."""

    def gather(self, stride: int, row_elements: int) -> RowGather:
        """The windows of row_elements elements, one every stride elements."""
        ...

    def window(self, start: int, num_elements: int) -> Any:
        """The sample of these elements, running over shard ends and from the last into the first."""
        ...

    def windows(self, gather: RowGather, numbers: NDArray[np.int64]) -> Sequence[Any]:
        """The samples of these windows of gather(), negative numbers from the end; IndexError outside."""
        ...


class StreamReader(ShardReader[OpenStream]):
    """The elements of all shards, one after another. Opens at open() or in a `with` block.

    Lengths are fixed when it opens. Safe to use from several threads.
    """

    def read(self, global_index: int, global_length: int) -> Any:
        """The sample made of global_length elements from global_index on.

        Runs on over shard ends, and from the last element to the first, as often as needed. Length 0 gives an empty
        sample. IndexError for an index outside the stream or a negative length.
        """
        opened = self._required
        index, length = operator.index(global_index), operator.index(global_length)
        if not 0 <= index < opened.total_length:
            raise IndexError(f"element {index} is outside a stream of {opened.total_length} elements")
        if length < 0:
            raise IndexError(f"a window cannot have {length} elements")
        return opened.window(index, length)


class StreamDataset(ShardDataset[OpenStream]):
    """Windows of sequence_length + extra elements, one every stride elements (default: sequence_length).

    Item i begins at element i * stride; what does not fill a window at the end is not served. extra=1 lets windows
    overlap by one element, for next-token targets. Opens at first use; pickles as its configuration.
    """

    def __init__(
        self, storage: ReadableStorage[OpenStream], sequence_length: int, stride: int | None = None, extra: int = 0
    ) -> None:
        if getattr(storage, "kind", None) == "documents":
            raise TypeError(f"{type(storage).__name__} holds documents, which have no windows; use DocumentDataset")
        super().__init__(storage)
        self.sequence_length = _checked("sequence_length", sequence_length, 1)
        self.stride = self.sequence_length if stride is None else _checked("stride", stride, 1)
        self.extra = _checked("extra", extra, 0)
        self._cut: tuple[RowGather, OpenStream] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_cut": None}

    def __repr__(self) -> str:
        return (
            f"StreamDataset({self.storage!r}, sequence_length={self.sequence_length}, stride={self.stride}, "
            f"extra={self.extra})"
        )

    def open(self) -> None:
        """Open the directory now rather than at first use."""
        self._ready()

    def close(self) -> None:
        """Release the maps. It opens again at the next use, and then sees what is there by then."""
        self._cut = None
        super().close()

    def sync_reader(self) -> Self:
        """The same dataset with handles of its own; use it as a context manager."""
        return type(self)(self.storage, self.sequence_length, self.stride, self.extra)

    def __len__(self) -> int:
        return self._ready()[0].num_rows

    def __getitem__(self, index: int | slice) -> Any:
        """Sample index, negative from the end; a slice gives a sequence of samples. IndexError outside."""
        if isinstance(index, slice):
            return self.__getitems__(np.arange(*index.indices(len(self)), dtype=np.int64))
        gather, opened = self._ready()
        return opened.window(gather.start(operator.index(index)), gather.row_elements)

    def __getitems__(self, items: Sequence[int] | NDArray[np.int64]) -> Sequence[Any]:
        """The samples of a batch, in request order, repeats allowed; one gather however many shards they are in."""
        gather, opened = self._ready()
        return opened.windows(gather, item_numbers(items, "window"))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The elements of each window, shape (len,), read-only and all the same: it takes no memory."""
        gather, _ = self._ready()
        return np.broadcast_to(np.int64(gather.row_elements), (gather.num_rows,))

    def lengths_at(self, items: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """The elements of these windows, shape (len(items),)."""
        return np.full(len(items), self.mean_length, np.int64)

    @property
    def mean_length(self) -> int:
        """The elements of a window."""
        return self.sequence_length + self.extra

    @property
    def shard_items(self) -> NDArray[np.int64]:
        """How many windows begin in each shard, shape (num_shards,); together len(self)."""
        ends = np.minimum(-(-self.shard_lengths.cumsum() // self.stride), len(self))
        items: NDArray[np.int64] = np.diff(ends, prepend=0)
        return items

    @property
    def settings(self) -> dict[str, int | str]:
        """What decides sample i: data and windows."""
        return {
            **super().settings,
            "sequence_length": self.sequence_length,
            "stride": self.stride,
            "extra": self.extra,
        }

    def _shards_of(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        starts = items * self.stride
        ends = self.shard_lengths.cumsum()
        firsts = ends.searchsorted(starts, "right")
        lasts = ends.searchsorted(starts + self.mean_length - 1, "right")  # of long windows those between are left out
        return np.stack([firsts, lasts], axis=1).reshape(-1)

    def describe(self) -> dict[str, Any]:
        """What the directory holds and how far it can be trusted, plus this dataset's windows."""
        return {**super().describe(), "sequence_length": self.sequence_length}

    def _ready(self) -> tuple[RowGather, OpenStream]:
        if self._cut is None:
            opened = self._required
            self._cut = opened.gather(self.stride, self.sequence_length + self.extra), opened
        return self._cut


def _checked(name: str, value: int, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an integer, not {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name}={value} must be at least {least}")
    return int(value)
