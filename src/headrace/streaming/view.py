"""A StreamingDataset in its order, as a view: for everything that orders go into."""

from collections.abc import Mapping
from typing import ClassVar

from headrace.planning import StreamOrder
from headrace.streaming.samples import StreamedSamples
from headrace.views.protocol import Int64s, Setting
from headrace.views.view import View

__all__ = ["StreamedView"]


class StreamedView(View):
    """The samples of all streams, drawn, mixed and shuffled anew in each epoch, as a StreamingDataset says.

    Positions are endless: epoch, index = divmod(position, len(view)). An epoch may have fewer samples than there are,
    or more.
    """

    orders_anew: ClassVar[bool] = True

    def __init__(self, base: StreamedSamples, order: StreamOrder) -> None:
        super().__init__(base)
        self.order = order

    def __repr__(self) -> str:
        return f"{self.base!r}.as_view()"

    def __len__(self) -> int:
        return self.order.epoch_size

    def locate(self, positions: Int64s) -> Int64s:
        """The numbers of the samples at these endless positions; IndexError for negative ones."""
        return self.order.ids(self.checked(positions))

    @property
    def rows_together(self) -> int:
        """Rows of the global batches that the order is made of, and loaders have to keep to; 1 for any."""
        return self.order.rows_together

    @property
    def own_settings(self) -> Mapping[str, Setting]:
        """What decides the order, beside the data."""
        return {"streams": len(self.order.chosen), **self.order.settings}
