"""What a view or loader may ask of a dataset, its own or a foreign one (a list, a torch or Hugging Face dataset).

| dataset | what it has | what numbers mean |
| --- | --- | --- |
| map-style | `__len__`, `__getitem__`; `__getitems__`, `lengths`, `settings` are used if there | items, 0..len-1 |
| a view | `ordered`, `base`, `locate(positions)` | endless positions: epoch, index = divmod(position, len) |
| a mixture | `ordered`, `draws(positions)` | endless positions |
| a windowed view | `ordered`, `windowed` | addresses of (epoch, window, row) |
"""

import copy
import operator
from collections.abc import Mapping, Sequence
from fractions import Fraction
from hashlib import blake2b
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.errors import DatasetChangedError, OrderError

__all__ = [
    "Int64s",
    "MapDataset",
    "Setting",
    "add_settings",
    "check_iteration",
    "check_same_length",
    "checked_base",
    "dataset_settings",
    "fetch",
    "is_ordered",
    "is_view",
    "is_windowed",
    "item_or_slice",
    "items_of",
    "knows_lengths",
    "lengths_at",
    "mean_length",
    "ordered_view",
    "other_rows_a_step",
    "sort_keys_at",
    "with_base",
]

Setting = str | int | float | bool | None
Int64s = NDArray[np.int64]


class MapDataset(Protocol):
    """The least that a dataset is: a length and items. `__getitems__` and `settings` are used where it has them."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def is_ordered(dataset: Any) -> bool:
    """Whether dataset is in an order of its own and takes endless positions."""
    return bool(getattr(dataset, "ordered", False))


def is_view(dataset: Any) -> bool:
    """Whether dataset is one base in an order of its own."""
    return is_ordered(dataset) and hasattr(dataset, "locate")


def is_windowed(dataset: Any) -> bool:
    """Whether the rows of dataset vary by epoch, and are addressed by window and row."""
    return bool(getattr(dataset, "windowed", False))


def ordered_view(dataset: Any) -> Any:
    """The view of a dataset that is iterated in an order and has one (`as_view()`, as StreamingDataset); others
    themselves. OrderError as check_iteration() says."""
    check_iteration(dataset)
    as_view = getattr(dataset, "as_view", None)
    return dataset if as_view is None else as_view()


def other_rows_a_step(dataset: Any, rows: int, world_size: int) -> str | None:
    """What a step over dataset must have instead of so many rows, in words; None where they will do.

    A row of a dataset of batches is a batch already, so each rank gets one; and an order may be made of global batches.
    """
    if getattr(dataset, "rows_are_batches", False) and rows != world_size:
        return f"nothing, over {type(dataset).__name__}: each of its rows is a batch, and every rank gets one a step"
    if (together := getattr(dataset, "rows_together", 1)) not in (1, rows):
        return f"global batches of {together} rows, not {rows}: the order was made of these, by its own batch_size"
    return None


def check_iteration(dataset: Any) -> None:
    """OrderError where a subclass says what an iteration gives, and its view knows nothing of that: whoever reads the
    view, as loaders do, would leave out what it does."""
    for kind in type(dataset).__mro__ if hasattr(dataset, "as_view") else ():
        if "as_view" in vars(kind):
            return
        if "__iter__" in vars(kind):
            raise OrderError(
                f"{kind.__name__} has an __iter__ of its own, and loaders of Headrace read samples by number: say what "
                "a sample is in __getitem__, or what a batch is in a collate_fn; or read it with torch's DataLoader, "
                "and count samples for dataset.state_dict(num_samples)"
            )


def checked_base(base: Any, above: str) -> Any:
    """base; OrderError where a view named `above` cannot stand on it, since rows of packs or batches come last.

    TypeError for what has no length or no items.
    """
    if hasattr(base, "as_view"):
        raise OrderError(
            f"{above} cannot stand on {type(base).__name__}, whose length is that of one rank's share: give it "
            "dataset.as_view(), which has the rows of all ranks"
        )
    if is_windowed(base):
        raise OrderError(
            f"{above} cannot stand on {type(base).__name__}, whose rows vary by epoch: "
            f"shuffle, select or mix first, and put {type(base).__name__} last"
        )
    if not hasattr(base, "__len__"):
        raise TypeError(f"{above} needs a dataset with a length, and {type(base).__name__} has none")
    if not hasattr(base, "__getitem__") and not hasattr(base, "__getitems__"):
        raise TypeError(f"{above} needs a map-style dataset, and {type(base).__name__} has no __getitem__")
    return base


def check_same_length(dataset: Any, length: int) -> None:
    """DatasetChangedError where dataset has another length than when its order was worked out: items would stand in
    other places of it, some twice and some nowhere."""
    if len(dataset) != length:
        raise DatasetChangedError(type(dataset).__name__, f"it had {length} samples and has {len(dataset)} now")


def with_base(view: Any, base: Any) -> Any:
    """A copy of the view over another base, which must have the same items at the same positions."""
    copied = copy.copy(view)
    copied.base = base
    return copied


def items_of(dataset: Any, positions: Int64s) -> Int64s:
    """What dataset is asked for at these endless positions: themselves if it is ordered, else positions mod length.

    IndexError where the dataset is empty.
    """
    if is_ordered(dataset) or len(positions) == 0:
        return positions
    length = len(dataset)
    if length == 0:
        raise IndexError(f"position {int(positions[0])} is outside a dataset of 0 samples")
    return positions % length if int(positions.max()) >= length else positions


def fetch(dataset: Any, positions: Int64s) -> Sequence[Any]:
    """The samples at these endless positions, in order, as one batch.

    One call where the dataset has `__getitems__`, one an item where it has not. ValueError where that call gives
    another number of samples.
    """
    items = items_of(dataset, positions)
    batched = getattr(dataset, "__getitems__", None)
    if batched is None:
        return [dataset[item] for item in items.tolist()]
    ours = is_ordered(dataset) or hasattr(dataset, "settings")  # a view's settings are worked out anew: not for a batch
    samples: Sequence[Any] = batched(items if ours else items.tolist())
    if len(samples) != len(items):
        raise ValueError(f"{type(dataset).__name__}.__getitems__ gave {len(samples)} samples for {len(items)} items")
    return samples


def item_or_slice(dataset: Any, index: int | slice) -> Any:
    """What `dataset[index]` is, by its length and `__getitems__`: sample index, negative from the end, or a slice's
    samples as one batch. IndexError outside."""
    length = len(dataset)
    if isinstance(index, slice):
        return dataset.__getitems__(np.arange(*index.indices(length), dtype=np.int64))
    number = operator.index(index)
    if not -length <= number < length:
        raise IndexError(f"index {number} is outside a dataset of {length} samples")
    return dataset.__getitems__(np.array([number % length], np.int64))[0]


def knows_lengths(dataset: Any) -> bool:
    """Whether lengths_at() has an answer for dataset. Does not work out the lengths of a view."""
    if is_view(dataset):
        return knows_lengths(dataset.base)
    return hasattr(dataset, "lengths_at") or hasattr(dataset, "lengths")


def lengths_at(dataset: Any, positions: Int64s) -> Int64s:
    """The lengths of the samples at these endless positions, without reading them.

    From the dataset's `lengths_at(items)`, else its `lengths`; TypeError where it has neither, or they are no integers,
    ValueError where there is not one for each sample.
    """
    own = getattr(dataset, "lengths_at", None)
    if own is not None:
        return _whole_lengths(dataset, np.asarray(own(items_of(dataset, positions))), len(positions))
    lengths = getattr(dataset, "lengths", None)
    if lengths is None:
        raise TypeError(
            f"{type(dataset).__name__} does not know the lengths of its samples; give it a `lengths` array "
            "(WithLengths(dataset, lengths) does)"
        )
    found = np.asarray(lengths)
    if found.shape != (len(dataset),):
        raise ValueError(f"{type(dataset).__name__} has {len(dataset)} samples and lengths of shape {found.shape}")
    return _whole_lengths(dataset, found[items_of(dataset, positions)], len(positions))


def _whole_lengths(dataset: Any, lengths: NDArray[Any], number: int) -> Int64s:
    """lengths as int64; TypeError where they are no integers, ValueError where they are not so many."""
    if lengths.shape != (number,):
        raise ValueError(f"{type(dataset).__name__} gave lengths of shape {lengths.shape} for {number} samples")
    if number and lengths.dtype.kind not in "iu":
        raise TypeError(f"lengths of samples are integers, and those of {type(dataset).__name__} are {lengths.dtype}")
    return lengths.astype(np.int64, copy=False)


def mean_length(dataset: Any) -> Fraction:
    """The exact mean length of a dataset's samples: its `mean_length`, else that of its `lengths`; 0 if it is empty."""
    mean = getattr(dataset, "mean_length", None)
    if mean is not None:
        return Fraction(mean)
    number = len(dataset)
    if number == 0:
        return Fraction(0)
    if is_ordered(dataset) or getattr(dataset, "lengths", None) is None:
        return Fraction(int(lengths_at(dataset, np.arange(number, dtype=np.int64)).sum()), number)
    return Fraction(int(np.asarray(dataset.lengths, np.int64).sum()), number)


def sort_keys_at(dataset: Any, positions: Int64s) -> Any:
    """What the samples at these endless positions are sorted by: an array of one row each, or a list.

    From the dataset's `sort_keys(items)`, else `sort_key(item)` of each, else its lengths; TypeError where it has none.
    """
    if is_view(dataset):
        return sort_keys_at(dataset.base, dataset.locate(positions))
    own = getattr(dataset, "sort_keys_at", None)  # of a mixture, which asks its sources
    if own is not None:
        return own(positions)
    items = items_of(dataset, positions)
    if hasattr(dataset, "sort_keys"):
        return dataset.sort_keys(items)
    if hasattr(dataset, "sort_key"):
        return [dataset.sort_key(item) for item in items.tolist()]
    if not knows_lengths(dataset):
        raise TypeError(
            f"{type(dataset).__name__} has nothing to sort by; give it sort_keys(indices), sort_key(index) or lengths"
        )
    return lengths_at(dataset, positions)


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


def add_settings(base: Any, own: Mapping[str, Setting]) -> dict[str, Setting]:
    """The settings of base and a view's own. A view over one of its kind is prefixed, so that it hides nothing.

    Where views stand on views, `views` says in which order, the innermost first, each by the name of its first setting.
    """
    inner = dataset_settings(base)
    prefix = ""
    while any(f"{prefix}{name}" in inner for name in own):
        prefix += "outer_"
    settings = {**inner, **{f"{prefix}{name}": value for name, value in own.items()}}
    if is_view(base):  # a selection of a shuffle and a shuffle of a selection have the same settings else
        below = inner.get("views", _view_name(getattr(base, "own_settings", {})))
        settings["views"] = _short_text(f"{below}, {_view_name(own)}")
    return settings


def _view_name(own: Mapping[str, Setting]) -> str:
    return next(iter(own), "view")


def _short_text(text: str) -> str:
    """text, or a digest where it is too long for a state."""
    return text if len(text) <= 64 else blake2b(text.encode(), digest_size=16).hexdigest()
