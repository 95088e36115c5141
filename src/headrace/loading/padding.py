"""Sequences of unequal length to one tensor, and which tokens of it stand for their sequence."""

from collections.abc import Sequence
from enum import StrEnum

import torch
from torch import Tensor

from headrace.errors import OptionError

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
    """The items as rows of one tensor of shape (batch, longest), filled up with pad_value.

    The width is rounded up to a multiple of pad_to_multiple_of. Items of different types give the type that holds them
    all, as torch.cat. Empty items are rows of padding.

    OptionError for no items, for an unknown side, a multiple below 1, and a pad_value that the type does not hold:
    -100 in a tensor of uint8 would be the token 156. TypeError for what are no tensors, ValueError for tensors that
    have not one dimension.
    """
    if len(items) == 0:
        raise OptionError("items", items, "at least one tensor: the type of none is unknown")
    if padding_side not in list(PaddingSide1D):
        raise OptionError("padding_side", padding_side, "'left' or 'right'")
    if pad_to_multiple_of is not None and pad_to_multiple_of < 1:
        raise OptionError("pad_to_multiple_of", pad_to_multiple_of, "a whole number of at least 1, or None")
    return torch.nn.utils.rnn.pad_sequence(
        list(items), batch_first=True, padding_value=pad_value, padding_side=str(padding_side)
    )


def token_pooling_mask_from_attention_mask(attention_mask: Tensor, pooling_type: TokenPoolingType | str) -> Tensor:
    """1 for the tokens that stand for their sequence, else 0: int64, of attention_mask's shape (batch, sequence)."""
    if pooling_type not in list(TokenPoolingType):
        raise OptionError("pooling_type", pooling_type, "'first', 'last' or 'all'")
    mask = (attention_mask != 0).long()
    match TokenPoolingType(pooling_type):
        case TokenPoolingType.all:
            return attention_mask.long()
        case TokenPoolingType.first:
            marked = torch.zeros_like(mask[:, :1])
        case TokenPoolingType.last:
            marked = (mask.sum(1, keepdim=True) - 1).clamp(min=0)
    return torch.zeros_like(mask).scatter_(1, marked, 1)
