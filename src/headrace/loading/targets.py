"""How many tokens a microbatch predicts: what its mean loss weighs beside those of others.

| what the microbatch has | targets |
| --- | --- |
| num_targets, a number or a tensor | its sum |
| labels | those that are not -100 |
| what data_metrics.count_tokens counts: attention_mask, segment_ids, input_ids, tokens | its tokens |

The first of these counts, wherever in the microbatch it is: a mapping's key, or a field of a dataclass or named tuple.
Labels are counted as they stand: a model that shifts them itself leaves the first one of each row out, so give it
num_targets, or a function of your own.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from headrace.loading.data_metrics import count_tokens, tensors_called
from headrace.loading.pytree import tree_leaves
from headrace.loading.segments import NO_LABEL

__all__ = ["count_targets"]

_TOKENS = ("attention_mask", "segment_ids", "input_ids", "tokens")


def count_targets(microbatch: Any) -> int:
    """The targets of a microbatch on the CPU, by the table above; 0 for one that holds nothing.

    TypeError for one in which there is nothing to count.
    """
    is_mapping = isinstance(microbatch, Mapping)
    number = microbatch.get("num_targets") if is_mapping else getattr(microbatch, "num_targets", None)
    if isinstance(number, int | np.integer):
        return int(number)
    for found in tensors_called(microbatch, "num_targets"):
        return int(found.sum())
    for found in tensors_called(microbatch, "labels"):
        return int(torch.count_nonzero(found != NO_LABEL))
    tokens, _ = count_tokens(microbatch)
    if tokens == 0 and not _can_count_tokens(microbatch):
        leaves = tree_leaves(microbatch)
        if any(isinstance(leaf, torch.Tensor) and leaf.device.type != "cpu" for leaf in leaves):
            raise TypeError(
                "the microbatches are on a device already, where counting their targets would wait for it; give the "
                'loader device="cpu", and move the packs by build_device_pack_stream; or pass count_targets='
            )
        raise TypeError(
            f"a microbatch ({type(microbatch).__name__}) has no num_targets, labels, {', '.join(_TOKENS)} on the "
            "CPU to count its targets by; pass count_targets=, a function of a microbatch"
        )
    return tokens


def _can_count_tokens(microbatch: Any) -> bool:
    if any(True for name in _TOKENS for _ in tensors_called(microbatch, name)):
        return True
    if isinstance(microbatch, torch.Tensor) and not microbatch.is_floating_point():
        return True
    return tree_leaves(microbatch) == []
