"""How ranks share a model, and how the gradients of a step come together.

Every rank brings the sum of its weighted gradients and the sum of its weights. Their totals over all ranks make the
mean, so ranks may have unequally many microbatches, or none, as long as each holds the whole model.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
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
    _of_rank_0([*model.parameters(), *model.buffers()])


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
        self._all = list(model.parameters())
        self._dtype = None if config.grad_dtype is None else getattr(torch, config.grad_dtype)
        self._most_bytes = config.bucket_size_mb << 20
        self._is_distributed = world_size > 1
        self._is_reduced = world_size > 1 and not self.is_sharded
        self._has_buffers = any(True for _ in _kept_buffers(model))
        self._sums = torch.zeros(2, dtype=torch.float64, device=device)  # of loss * weight, and of weight
        self._parameters: list[nn.Parameter] = []
        self._totals: list[Tensor] | None = None
        self._pieces: list[tuple[int, int]] = []
        self.begin()

    def begin(self) -> None:
        """Before each step: what is trained may be other parameters than in the last one, where a task freezes or
        thaws some. They must be the same on every rank."""
        trained = [parameter for parameter in self._all if parameter.requires_grad]
        if [*map(id, trained)] == [*map(id, self._parameters)]:
            return
        self._parameters = trained
        self._totals = None if self._dtype is None else [torch.zeros_like(one, dtype=self._dtype) for one in trained]
        self._pieces = _pieces(self._totals or trained, self._most_bytes)

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
        if self._totals is not None:
            for parameter, total in zip(self._parameters, self._totals, strict=True):
                if parameter.grad is not None:
                    total += parameter.grad
                    parameter.grad = None

    def finish(self) -> Tensor:
        """Leave each parameter the mean gradient over all microbatches and ranks; the mean loss comes back.

        A parameter that no rank used has zeros. Every rank must call it.
        """
        if self._is_distributed:
            dist.all_reduce(self._sums)
        divisor = torch.where(self._sums[1] > 0, self._sums[1], float("inf"))  # nothing counted: zeros, not NaN
        sums = self._totals
        if sums is None:
            sums = [torch.zeros_like(one) if one.grad is None else one.grad for one in self._parameters]
        for begin, end in self._pieces:
            means = self._means(sums[begin:end], divisor)
            for parameter, mean in zip(self._parameters[begin:end], means, strict=True):
                parameter.grad = None  # of another type than mean's, perhaps
                parameter.grad = mean.to(parameter.dtype)
        return self._sums[0] / divisor

    def share_buffers(self) -> None:
        """Give every rank the buffers of rank 0 that checkpoints hold, such as BatchNorm's running means, which each
        rank would have from its own rows otherwise. Every rank must call it."""
        if self._is_distributed and self._has_buffers:
            _of_rank_0(list(_kept_buffers(self._model)))

    def clip(self, max_norm: float | None) -> Tensor:
        """The norm of all gradients together; they are scaled down to max_norm where that is less."""
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        if max_norm is not None:
            nn.utils.clip_grads_with_norm_(self._parameters, max_norm, norm)
        return norm

    def clear(self) -> None:
        """Begin another step."""
        self._sums.zero_()
        for parameter in self._all:
            parameter.grad = None
        for total in self._totals or ():
            total.zero_()

    def _means(self, sums: Sequence[Tensor], divisor: Tensor) -> Sequence[Tensor]:
        if not self._is_reduced:
            torch._foreach_div_([one.to_local() if isinstance(one, DTensor) else one for one in sums], divisor)
            return sums
        flat = torch.cat([one.reshape(-1) for one in sums])  # one message for many
        dist.all_reduce(flat)
        flat /= divisor
        parts = torch.split(flat, [one.numel() for one in sums])
        return [part.view_as(one) for part, one in zip(parts, sums, strict=True)]


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


def _of_rank_0(tensors: Sequence[Tensor]) -> None:
    """Give every rank the values of rank 0, in place; many in one message, of whatever type and layout."""
    alike = sorted((tensor.detach() for tensor in tensors), key=lambda tensor: str(tensor.dtype))
    for begin, end in _pieces(alike, MESSAGE_BYTES):
        piece = alike[begin:end]
        flat = torch.cat([one.reshape(-1) for one in piece])
        dist.broadcast(flat.view(torch.uint8), 0)
        for one, part in zip(piece, torch.split(flat, [one.numel() for one in piece]), strict=True):
            one.copy_(part.view_as(one))


def _pieces(tensors: Sequence[Tensor], most_bytes: int) -> list[tuple[int, int]]:
    """Where to cut tensors into runs of one type and about most_bytes at most, each of at least one tensor."""
    cuts, held = [0], 0
    for place, tensor in enumerate(tensors):
        held += tensor.nbytes
        if place > cuts[-1] and (held > most_bytes or tensor.dtype != tensors[place - 1].dtype):
            cuts.append(place)
            held = tensor.nbytes
    return list(zip(cuts, [*cuts[1:], len(tensors)], strict=True)) if tensors else []
