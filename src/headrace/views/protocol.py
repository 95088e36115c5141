"""What a view or loader may ask of a dataset, its own or a foreign one (a list, a torch or Hugging Face dataset)."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["MapDataset", "dataset_settings", "fetch", "is_view"]

Setting = str | int | float | bool | None


class MapDataset(Protocol):
    """The least that a dataset is: a length and items. `__getitems__` and `settings` are used where it has them."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def is_view(dataset: Any) -> bool:
    """Whether dataset is in an order of its own and takes endless positions."""
    return bool(getattr(dataset, "ordered", False)) and hasattr(dataset, "locate")


def fetch(dataset: Any, positions: NDArray[np.int64]) -> Sequence[Any]:
    """The samples at these endless positions, in order, as one batch.

    A view gets the positions as they are, any other dataset position mod its length. One call where the dataset has
    `__getitems__`, one an item where it has not.
    """
    if not is_view(dataset) and len(positions):
        length = len(dataset)
        if int(positions.max()) >= length:
            positions = positions % length
    batched = getattr(dataset, "__getitems__", None)
    if batched is None:
        return [dataset[position] for position in positions.tolist()]
    samples: Sequence[Any] = batched(positions if hasattr(dataset, "settings") else positions.tolist())
    return samples


def dataset_settings(dataset: Any) -> dict[str, Setting]:
    """What decides the items of dataset: its own `settings`, else a fingerprint where it has one, else its type; and
    its length."""
    settings = getattr(dataset, "settings", None)
    if isinstance(settings, dict):
        return dict(settings)
    for name in ("fingerprint", "_fingerprint"):
        fingerprint = getattr(dataset, name, None)
        if isinstance(fingerprint, str):
            return {"data": fingerprint, "num_samples": len(dataset)}
    kind = type(dataset)
    return {"data": f"{kind.__module__}.{kind.__qualname__}", "num_samples": len(dataset)}
