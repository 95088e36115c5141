"""How ranks share a model, and how the gradients of a step come together.

Every rank brings the sum of its weighted gradients and the sum of its weights. Their totals over all ranks make the
mean, so ranks may have unequally many microbatches, or none, as long as each holds the whole model.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _take_tensors, _unflatten_dense_tensors
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from headrace.errors import OptionError
from headrace.loading.pytree import tree_leaves
from headrace.training.context import DistributedContext
from headrace.training.parameters import GradientManagerConfig

__all__ = ["Gradients", "replicate", "shard"]

MESSAGE_BYTES = 32 << 20


def replicate(model: nn.Module, context: DistributedContext) -> None:
    """Give every rank the weights and buffers of rank 0, in place. Nothing else is done: Gradients adds up.

    DistributedDataParallel would reduce during the backward pass, which hangs where ranks have unequally many
    microbatches or use unequal parameters.
    """
    _share([*model.parameters(), *model.buffers()])


def shard(model: nn.Module, context: DistributedContext) -> None:
    """Spread the parameters over the ranks (FSDP2), in place; within groups of data_parallel_shard, where given."""
    replicate(model, context)
    mesh = context.mesh_params
    if mesh.data_parallel_replicate > 1 and mesh.data_parallel_shard > 1:
        fully_shard(model, mesh=context.mesh_for("regular")["dp_replicate", "dp_shard"])
    else:
        fully_shard(model, mesh=context.mesh_for("batch")["dp"])


class Gradients:
    """The gradients of a model's parameters: added up microbatch by microbatch, then over ranks, then divided.

    What is trained may be other parameters in each step, where a task freezes or thaws some, alike on every rank.

    OptionError for a model of which FSDP2 spreads a part only: nobody would add up the gradients of the rest.
    """

    def __init__(self, model: nn.Module, device: torch.device, config: GradientManagerConfig, world_size: int) -> None:
        parts = [module for module in model.modules() if isinstance(module, FSDPModule)]
        whole = [name for name, one in model.named_parameters() if one.requires_grad and not isinstance(one, DTensor)]
        if parts and whole:
            raise OptionError(
                "model",
                f"{type(model).__name__} with {len(whole)} parameters that are not spread, such as {whole[0]}",
                "one that is spread whole: let parallelize_model_stage call fully_shard(model) behind its layers",
            )
        for part in parts:
            part.set_gradient_divide_factor(1.0)  # sums, not means over ranks: the weights are what to divide by
            part.set_force_sum_reduction_for_comms(True)  # gloo cannot divide
        self.is_sharded = bool(parts)
        self._model = model
        self._parameters = list(model.parameters())
        self._dtype = None if config.grad_dtype is None else getattr(torch, config.grad_dtype)
        self._message_bytes = config.bucket_size_mb << 20
        self._is_distributed = world_size > 1
        self._sums = torch.zeros(2, dtype=torch.float64, device=device)  # of loss * weight, and of weight
        self._totals: dict[nn.Parameter, Tensor] = {}  # of gradients, where they have a type of their own

    def backward(self, loss: Tensor, weight: Tensor | float | None, output: Any = None) -> None:
        """Add the gradients of one microbatch's loss, times its weight. One of weight 0 adds nothing, if it is NaN,
        too. OptionError for a weight below 0.

        output is what the model gave: a weight that is on a device is not waited for, so the gradients of what counts
        for nothing are replaced by zeros where they come to the model.
        """
        if isinstance(weight, Tensor) and weight.device.type != "cpu":
            weight = weight.detach().to(torch.float64).reshape(())
            loss = _counting(loss, output, weight > 0)
        else:
            weight = 1.0 if weight is None else float(weight)
            if not 0 <= weight < float("inf"):
                raise OptionError("loss_weight", weight, "a number of at least 0: how much the microbatch counts")
            if weight == 0:
                if not self.is_sharded:
                    return
                loss = _counting(loss, output, torch.zeros_like(loss, dtype=torch.bool))
        (loss * weight).backward()  # type: ignore[no-untyped-call]
        self._sums[0] += loss.detach().to(torch.float64).reshape(()) * weight
        self._sums[1] += weight
        if self._dtype is not None:
            self._move_to_totals()

    def _move_to_totals(self) -> None:
        for parameter in self._parameters:
            if parameter.grad is not None:
                if parameter in self._totals:
                    self._totals[parameter] += parameter.grad
                else:
                    self._totals[parameter] = parameter.grad.to(self._dtype)
                parameter.grad = None

    def finish(self) -> Tensor:
        """Leave each parameter the mean gradient over all microbatches and ranks; the mean loss comes back.

        A parameter that no rank used has zeros. Every rank must call it.
        """
        if self._is_distributed:
            dist.all_reduce(self._sums)
        divisor = torch.where(self._sums[1] > 0, self._sums[1], float("inf"))  # nothing counted: zeros, not NaN
        trained = [parameter for parameter in self._parameters if parameter.requires_grad]
        sums = [self._sum(parameter) for parameter in trained]
        local = [one.to_local() if isinstance(one, DTensor) else one for one in sums]
        if self._is_distributed and not self.is_sharded:
            exchange_in_messages(local, self._message_bytes, dist.all_reduce)
        torch._foreach_div_(local, divisor)
        for parameter, mean in zip(trained, sums, strict=True):
            parameter.grad = None  # of another type than mean's, perhaps
            parameter.grad = mean.to(parameter.dtype)
        return self._sums[0] / divisor

    def _sum(self, parameter: nn.Parameter) -> Tensor:
        found = parameter.grad if self._dtype is None else self._totals.get(parameter)
        return torch.zeros_like(parameter, dtype=self._dtype) if found is None else found

    def share_buffers(self) -> None:
        """Give every rank the buffers of rank 0 that checkpoints hold, such as BatchNorm's running means, which each
        rank would have from its own rows otherwise. Every rank must call it."""
        if self._is_distributed:
            _share(list(_kept_buffers(self._model)))

    def clip(self, max_norm: float | None) -> Tensor:
        """The norm of all gradients together; they are scaled down to max_norm where that is less."""
        norm = nn.utils.get_total_norm([one.grad for one in self._parameters if one.grad is not None])
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        if max_norm is not None:
            nn.utils.clip_grads_with_norm_(self._parameters, max_norm, norm)
        return norm

    def clear(self) -> None:
        """Begin another step."""
        self._sums.zero_()
        self._totals.clear()
        for parameter in self._parameters:
            parameter.grad = None


def _counting(loss: Tensor, output: Any, counts: Tensor) -> Tensor:
    """The loss where it counts, else 0; then no gradient comes to output. That of a mean of nothing would be NaN, as 0
    times infinity is."""
    for tensor in tree_leaves(output):
        if isinstance(tensor, Tensor) and tensor.grad_fn is not None:  # whose hooks go with the step
            tensor.register_hook(lambda gradient: torch.where(counts, gradient, 0.0))  # type: ignore[no-untyped-call]
    return torch.where(counts, loss, 0.0)


def _kept_buffers(model: nn.Module) -> Iterator[Tensor]:
    """The buffers that are in a model's state."""
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield buffer


def _share(tensors: Sequence[Tensor]) -> None:
    """Give every rank the values of rank 0, in place, of whatever type and layout they are."""
    exchange_in_messages(
        [tensor.detach() for tensor in tensors], MESSAGE_BYTES, lambda flat: dist.broadcast(flat.view(torch.uint8), 0)
    )


def exchange_in_messages(tensors: Sequence[Tensor], most_bytes: int, exchange: Callable[[Tensor], Any]) -> None:
    """Exchange tensors with other ranks, in place: those of one type, about most_bytes of them, in one message."""
    for some in _take_tensors(tensors, most_bytes):  # type: ignore[no-untyped-call]
        flat = _flatten_dense_tensors(some)  # type: ignore[no-untyped-call]
        exchange(flat)
        torch._foreach_copy_(some, _unflatten_dense_tensors(flat, some))  # type: ignore[no-untyped-call]
