"""The samples of a StreamingDataset by number, as other datasets are: what its view and all loaders read."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from headrace.datasets.samples.dataset import SampleDataset
from headrace.errors import DatasetChangedError
from headrace.views.protocol import Setting

if TYPE_CHECKING:
    from headrace.streaming.dataset import StreamingDataset

__all__ = ["StoredSamples", "StreamedSamples"]


class StoredSamples(SampleDataset):
    """The samples of all streams as they are stored. Streams may have different columns: batches may be of one stream
    each, and the default collate function refuses those in which a column would be lost."""

    same_columns: ClassVar[bool] = False


class StreamedSamples:
    """dataset's samples, 0..size-1: what `dataset[i]` gives, also where a subclass says what that is.

    They are those of the data that is open now. DatasetChangedError when the dataset was closed, and opened again where
    other data lies by then: an order of theirs would leave samples out.
    """

    def __init__(self, dataset: "StreamingDataset", *, one_by_one: bool) -> None:
        self._dataset = dataset
        self._one_by_one = one_by_one
        self._data = dataset.stored.fingerprint

    def __repr__(self) -> str:
        return repr(self._dataset)

    def __len__(self) -> int:
        return self._dataset.size

    def __getitem__(self, item: int) -> Any:
        self._check()
        return self._dataset[item]

    def __getitems__(self, items: Sequence[int] | NDArray[np.int64]) -> list[Any]:
        """The samples of a batch, in request order; repeats are allowed."""
        self._check()
        if self._one_by_one:
            dataset = self._dataset
            return [dataset[item] for item in np.asarray(items).tolist()]
        return self._dataset.stored.__getitems__(items)

    @property
    def settings(self) -> dict[str, Setting]:
        """What decides sample i."""
        return dict(self._dataset.stored.settings)

    @property
    def fingerprint(self) -> str:
        """That of the indexes of all streams."""
        return self._dataset.stored.fingerprint

    @property
    def shard_items(self) -> NDArray[np.int64]:
        """How many samples each shard has, shape (num_shards,)."""
        return self._dataset.stored.shard_items

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The stored bytes of each sample, shape (size,)."""
        return self._dataset.stored.lengths

    @property
    def length_unit(self) -> str:
        """What lengths count."""
        return self._dataset.stored.length_unit

    @property
    def keeps_copies(self) -> bool:
        """Whether prefetch() does anything."""
        return self._dataset.stored.keeps_copies

    @property
    def rows_ahead(self) -> int | None:
        """Of how many rows files are to be fetched ahead; None leaves it to the loader."""
        return self._dataset.options.predownload

    def prefetch(self, items: Sequence[int] | NDArray[np.int64]) -> None:
        """Expect these items to be read, in this order. A hint."""
        self._dataset.stored.prefetch(items)

    def open(self) -> None:
        """Open the dataset now."""
        self._dataset.stored.open()

    def close(self) -> None:
        """Release what was opened."""
        self._dataset.close()

    def _check(self) -> None:
        if self._dataset.stored.fingerprint != self._data:
            names = ", ".join(stream.name for stream in self._dataset.streams)
            raise DatasetChangedError(names, "this order was made for what lay there before")
