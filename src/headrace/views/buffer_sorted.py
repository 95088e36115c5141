"""Samples of like length beside one another, so that batches of neighbours need little padding (d9d's buffer sort)."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

import numpy as np

from headrace.errors import OrderError
from headrace.planning import window_order
from headrace.views.options import whole_number
from headrace.views.protocol import Int64s, Setting, sort_keys_at
from headrace.views.recent import RecentArrays
from headrace.views.view import View

__all__ = ["BufferSortedDataset", "DatasetImplementingSortKeyProtocol"]

BUFFER_SORT_VERSION = 1
KEPT_BYTES = 64 << 20


class DatasetImplementingSortKeyProtocol(Protocol):
    """A dataset that says what each sample is sorted by without loading it, one at a time.

    `sort_keys(indices)`, which takes an array and gives one, is asked instead where a dataset has it.
    """

    def __len__(self) -> int: ...

    def sort_key(self, index: int) -> Any:
        """Something that can be compared with the key of any other sample."""
        ...

    def __getitem__(self, index: int, /) -> Any: ...


class BufferSortedDataset(View):
    """base_dataset in buffers of buffer_size positions, each sorted, cut into packs of pack_size, and shuffled by pack.

    Samples are sorted by the base's `sort_keys(indices)`, else `sort_key(index)`, else its lengths, and equal ones are
    mixed. Packs are permuted, and the samples of a pack. A buffer never straddles an epoch. Its order is a function of
    its keys, its number in the epoch and init_seed (None is 0): the same in every process, worker and order of access.

    OptionError for a size under 1; TypeError, at the first read, for a base with nothing to sort by.
    """

    orders_anew: ClassVar[bool] = False

    def __init__(self, base_dataset: Any, buffer_size: int, pack_size: int, init_seed: int | None = None) -> None:
        super().__init__(base_dataset)
        self.buffer_size = whole_number("buffer_size", buffer_size, least=1)
        self.pack_size = whole_number("pack_size", pack_size, least=1)
        self.seed = 0 if init_seed is None else whole_number("init_seed", init_seed)
        self._orders = RecentArrays(KEPT_BYTES)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_orders": RecentArrays(KEPT_BYTES)}  # a copy may be given another base

    def __repr__(self) -> str:
        sizes = f"buffer_size={self.buffer_size}, pack_size={self.pack_size}, init_seed={self.seed}"
        return f"BufferSortedDataset({self.base!r}, {sizes})"

    def __len__(self) -> int:
        return len(self.base)

    def locate(self, positions: Int64s) -> Int64s:
        """The base's endless positions behind these endless positions; IndexError for negative ones.

        Asks for the sort keys of each buffer that a position is in, unless its order is remembered.
        """
        return self._moved(positions, lambda order: order)

    def positions_of(self, base_positions: Int64s) -> Int64s:
        """The endless positions at which these endless positions of the base stand; asks for keys as locate()."""
        return self._moved(base_positions, lambda order: np.argsort(order, kind="stable"))

    def _moved(self, positions: Int64s, by: Callable[[Int64s], Int64s]) -> Int64s:
        """Each position moved inside its buffer, by what follows from the order of the buffer."""
        positions = self.checked(positions)
        if positions.size == 0:
            return positions
        length = len(self.base)
        buffers, places, starts = self._buffers_of(positions.reshape(-1), length)
        located = np.empty(len(places), np.int64)
        by_buffer = np.argsort(buffers, kind="stable")
        cuts = np.flatnonzero(np.diff(buffers[by_buffer])) + 1
        for members in np.split(by_buffer, cuts):
            order = by(self._order(int(buffers[members[0]])))
            located[members] = starts[members] + order[places[members]]
        return located.reshape(positions.shape)

    def _buffers_of(self, positions: Int64s, length: int) -> tuple[Int64s, Int64s, Int64s]:
        """For each position: its buffer, its place there, and the base's endless position of the buffer's start."""
        epochs, indices = np.divmod(positions, length)
        numbers, places = np.divmod(indices, self.buffer_size)
        starts = positions - places
        if not self.same_each_epoch:
            numbers += epochs * -(-length // self.buffer_size)
        return numbers, places, starts

    def _order(self, buffer: int) -> Int64s:
        """The places in the order of this buffer; buffers of all epochs are numbered on, unless epochs are alike."""
        return self._orders.get(buffer, self._ordered)

    def _ordered(self, buffer: int) -> Int64s:
        length = len(self.base)
        epoch, window = divmod(buffer, -(-length // self.buffer_size))
        begin = window * self.buffer_size
        end = min(begin + self.buffer_size, length)
        keys = sort_keys_at(self.base, np.arange(begin, end, dtype=np.int64) + epoch * length)
        if len(keys) != end - begin:
            raise OrderError(
                f"{type(self.base).__name__} gave {len(keys)} sort keys for the {end - begin} samples from {begin} on"
            )
        return window_order(keys, self.pack_size, window, self.seed)

    @property
    def own_settings(self) -> Mapping[str, Setting]:
        """The sizes and the seed. The keys follow from the data."""
        return {
            "buffer_sort": "sorted packs",
            "buffer_sort_version": BUFFER_SORT_VERSION,
            "buffer_size": self.buffer_size,
            "pack_size": self.pack_size,
            "buffer_seed": self.seed,
        }
