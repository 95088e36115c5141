"""Sequences of unequal length to one tensor, and which tokens of it stand for their sequence."""

from collections.abc import Sequence
from enum import StrEnum
from typing import TypeVar

import torch
from torch import Tensor

from headrace.errors import OptionError
from headrace.views.options import whole_number

__all__ = ["PaddingSide1D", "TokenPoolingType", "pad_stack_1d", "token_pooling_mask_from_attention_mask"]


class PaddingSide1D(StrEnum):
    """Where padding stands: before the elements (left), or behind them (right)."""

    left = "left"
    right = "right"


class TokenPoolingType(StrEnum):
    """Which tokens stand for their sequence: its first, its last, or all of them."""

    first = "first"
    last = "last"
    all = "all"


def pad_stack_1d(
    items: Sequence[Tensor],
    pad_value: int | float,
    padding_side: PaddingSide1D | str = PaddingSide1D.right,
    pad_to_multiple_of: int | None = None,
) -> Tensor:
    """The items, of one dimension each, as rows of one tensor of shape (batch, longest), filled up with pad_value.

    The width is rounded up to a multiple of pad_to_multiple_of. Items of different types give the type that holds them
    all, as torch.cat does. An empty item is a row of padding.

    OptionError for no items, items of another dimension, an unknown side, a multiple below 1, and a pad_value that the
    type does not hold: -100 among uint8 would be the token 156. TypeError for items that are no tensors.
    """
    side = _member(PaddingSide1D, "padding_side", padding_side)
    multiple = 1 if pad_to_multiple_of is None else whole_number("pad_to_multiple_of", pad_to_multiple_of, least=1)
    lengths = _lengths(items)
    flat = torch.cat(list(items))
    _check_holds(flat.dtype, pad_value)
    width = -(-max(lengths) // multiple) * multiple
    if min(lengths) == width:  # nothing to fill up, as with windows of one length
        return flat.view(len(lengths), width)
    places = torch.arange(width, device=flat.device)
    counts = torch.tensor(lengths, device=flat.device)[:, None]
    own = places < counts if side is PaddingSide1D.right else places >= width - counts  # (batch, width)
    rows = torch.full((len(lengths), width), pad_value, dtype=flat.dtype, device=flat.device)
    return rows.masked_scatter_(own, flat)


def token_pooling_mask_from_attention_mask(
    attention_mask: Tensor,
    pooling_type: TokenPoolingType | str,
    padding_side: PaddingSide1D | str = PaddingSide1D.right,
) -> Tensor:
    """1 for the tokens that stand for their sequence, else 0: int64, of attention_mask's shape (batch, sequence).

    attention_mask is not 0 for tokens and 0 for padding, which stands at padding_side: so the first token of a row is
    in column 0, or behind the padding, and its last one in front of it. `all` is the attention mask.

    Every row has exactly one mark for first and last, so that what is picked by the mask has one entry a row; a row
    that is nothing but padding has it at the end that its tokens would begin from. OptionError for an unknown type or
    side, and for a mask that has not two dimensions.
    """
    pooling = _member(TokenPoolingType, "pooling_type", pooling_type)
    side = _member(PaddingSide1D, "padding_side", padding_side)
    if attention_mask.dim() != 2:
        raise OptionError("attention_mask", f"a tensor of shape {tuple(attention_mask.shape)}", "(batch, sequence)")
    if pooling is TokenPoolingType.all or attention_mask.shape[1] == 0:
        return attention_mask.long()
    last_column = attention_mask.shape[1] - 1
    counts = (attention_mask != 0).sum(1, keepdim=True)
    if (pooling is TokenPoolingType.first) == (side is PaddingSide1D.right):  # the end without padding
        marked = torch.full_like(counts, 0 if side is PaddingSide1D.right else last_column)
    else:
        before = (counts - 1).clamp(min=0)
        marked = before if side is PaddingSide1D.right else last_column - before
    return torch.zeros_like(attention_mask, dtype=torch.int64).scatter_(1, marked, 1)


_Choice = TypeVar("_Choice", bound=StrEnum)


def _member(kind: type[_Choice], option: str, value: str) -> _Choice:
    if value not in list(kind):
        raise OptionError(option, value, " or ".join(repr(member.value) for member in kind))
    return kind(value)


def _lengths(items: Sequence[Tensor]) -> list[int]:
    """How long each item is, now that all are known to have one dimension."""
    if len(items) == 0:
        raise OptionError("items", items, "at least one tensor: none have no type and no width")
    for place, item in enumerate(items):
        if not isinstance(item, Tensor):
            raise TypeError(
                f"items are tensors, but item {place} is of type {type(item).__name__}; torch.as_tensor makes one of "
                'it, and a Hugging Face dataset gives tensors after dataset.with_format("torch")'
            )
        if item.dim() != 1:
            raise OptionError("items", f"item {place} of shape {tuple(item.shape)}", "tensors of one dimension")
    return [len(item) for item in items]


def _check_holds(dtype: torch.dtype, pad_value: int | float) -> None:
    """OptionError where pad_value would become another number in dtype."""
    if dtype.is_floating_point or dtype.is_complex:
        return
    least, most = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    if not least <= pad_value <= most or pad_value != int(pad_value):  # NaN is in no range
        raise OptionError("pad_value", pad_value, f"a whole number from {least} to {most}: the items are {dtype}")
