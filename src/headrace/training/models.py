"""What the loop asks of a model: how it is called, and which parameters are its own."""

import inspect
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from headrace.errors import OptionError
from headrace.training.providers import OptimizerProtocol

__all__ = ["check_parameters", "needs_shared", "parameters_of"]


def needs_shared(model: nn.Module) -> bool:
    """Whether forward cannot do without a second argument: that of the model which torch.compile() and
    DistributedDataParallel have wrapped."""
    inner: Any = model
    while isinstance(inner, DistributedDataParallel) or hasattr(inner, "_orig_mod"):
        inner = inner.module if isinstance(inner, DistributedDataParallel) else inner._orig_mod
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    given = [one for one in inspect.signature(inner.forward).parameters.values() if one.kind in kinds]
    return len(given) > 1 and given[1].default is inspect.Parameter.empty


def parameters_of(model: nn.Module) -> str:
    """Their names, sizes and types, and what is trained."""
    return "; ".join(
        f"{name} {list(one.shape)} {one.dtype}{'' if one.requires_grad else ' frozen'}"
        for name, one in model.named_parameters()
    )


def check_parameters(optimizer: OptimizerProtocol, model: nn.Module) -> None:
    """OptionError where the optimizer changes what is not of the model: nobody adds that up over ranks, or saves it."""
    known = {id(parameter) for parameter in model.parameters()}
    given = [one for group in getattr(optimizer, "param_groups", ()) for one in group["params"]]
    strange = [tuple(one.shape) for one in given if id(one) not in known]
    if strange:
        raise OptionError(
            "the optimizer's parameters",
            f"{len(strange)} of {len(given)} that are not the model's, of shapes {strange[:3]}",
            "parameters of the context's model; what else is trained belongs into the model",
        )
