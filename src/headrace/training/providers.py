"""What a job is made of: the task, the model, the optimizer and its schedule, each given by something to call.

Contexts and results have a field for each thing, so that one more changes no signature.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar, runtime_checkable

from torch import Tensor, nn

from headrace.training.gradients import replicate, shard

if TYPE_CHECKING:
    from headrace.training.context import DistributedContext
    from headrace.training.schedule import JobSchedule

__all__ = [
    "BuildForwardInputsContext",
    "BuildForwardInputsResult",
    "ComputeLossContext",
    "ComputeLossResult",
    "FinalizeContext",
    "InitializeLRSchedulerContext",
    "InitializeModelStageContext",
    "InitializeModelStageResult",
    "InitializeOptimizerStageContext",
    "LRSchedulerProtocol",
    "LRSchedulerProvider",
    "ModelProvider",
    "OptimizerProtocol",
    "OptimizerProvider",
    "ParallelizeModelStageContext",
    "PipelineStageInfo",
    "StepDoneContext",
    "TrainTask",
    "TrainTaskProvider",
    "TrainTaskProviderContext",
]

TBatch = TypeVar("TBatch")
TInput = TypeVar("TInput")
TShared = TypeVar("TShared")
TOutput = TypeVar("TOutput")
TState = TypeVar("TState")
TModel = TypeVar("TModel", bound=nn.Module)


@dataclass(kw_only=True)
class BuildForwardInputsContext(Generic[TBatch]):
    """One microbatch, on the device.

    num_repeats is how many of its last rows were in an earlier step of this epoch: with padding=True they fill the last
    one, and a loss that is to see each row once leaves them out.
    """

    batch: TBatch
    num_repeats: int = 0


@dataclass(kw_only=True)
class BuildForwardInputsResult(Generic[TInput, TShared, TState]):
    """What the model is called with, `model(input, shared)`, and what the loss needs besides.

    shared is left out where it is None and the model's forward can do without.
    """

    input: TInput
    shared: TShared | None = None
    state: TState | None = None


@dataclass(kw_only=True)
class ComputeLossContext(Generic[TOutput, TState]):
    """What the model gave for a microbatch, the state that was kept for it, and how far the job is."""

    pipeline_results: TOutput
    state: TState
    schedule: "JobSchedule"


@dataclass(kw_only=True)
class ComputeLossResult:
    """A microbatch's loss, and its weight in the mean over all microbatches and ranks.

    With a mean a token the weight is the number of target tokens. So None weighs the microbatch's targets where its
    pack has counted them (a TokenPack, as of token budgets: see its loss_weights), and else 1. A weight of 0 counts for
    nothing, whatever the loss.
    """

    loss: Tensor
    loss_weight: Tensor | float | None = None


@dataclass(kw_only=True)
class StepDoneContext:
    """A step that is done: schedule.current_step is its number. loss is the mean over all ranks, the same on each."""

    schedule: "JobSchedule"
    loss: Tensor
    grad_norm: Tensor


@dataclass(kw_only=True)
class FinalizeContext:
    """Nothing, so far."""


class TrainTask(ABC, Generic[TBatch, TInput, TShared, TOutput, TState]):
    """What is trained: from a microbatch to the model's input, and from its output to a loss."""

    @abstractmethod
    def build_forward_inputs(
        self, ctx: BuildForwardInputsContext[TBatch]
    ) -> BuildForwardInputsResult[TInput, TShared, TState]:
        """The model's input for one microbatch. All microbatches of a step come here before the first forward pass."""

    @abstractmethod
    def compute_loss(self, ctx: ComputeLossContext[TOutput, TState]) -> ComputeLossResult:
        """The loss of one microbatch, and its weight."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint is to hold of this task, for torch.save. That of the main process is kept for all."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what state_dict() gave."""

    def step_done(self, ctx: StepDoneContext) -> None:
        """Called on every rank behind each step, before its checkpoint. Reading the loss waits for the device."""

    def finalize(self, ctx: FinalizeContext) -> None:
        """Called once, behind the last step of the job."""


@dataclass(kw_only=True)
class TrainTaskProviderContext:
    """Who trains."""

    dist_context: "DistributedContext"


class TrainTaskProvider(Protocol):
    """Makes the task."""

    def __call__(self, ctx: TrainTaskProviderContext, /) -> TrainTask[Any, Any, Any, Any, Any]:
        """The task of this rank."""
        ...


@dataclass(frozen=True)
class PipelineStageInfo:
    """Which stage of the model: here the only one."""

    current_stage: int = 0
    num_stages: int = 1

    @property
    def is_current_stage_first(self) -> bool:
        """Whether it takes the input."""
        return self.current_stage == 0

    @property
    def is_current_stage_last(self) -> bool:
        """Whether it gives the output."""
        return self.current_stage == self.num_stages - 1


@dataclass(kw_only=True)
class InitializeModelStageContext:
    """Who trains, and which stage of the model."""

    dist_context: "DistributedContext"
    stage: PipelineStageInfo = PipelineStageInfo()


@dataclass(kw_only=True)
class InitializeModelStageResult(Generic[TModel]):
    """The model, on any device. One on the meta device gets memory, then `reset_parameters()` is called on it.

    state_mapper is there for other loops, and not used.
    """

    model: TModel
    state_mapper: Any = None


@dataclass(kw_only=True)
class ParallelizeModelStageContext(Generic[TModel]):
    """The model, on its device, of one of several ranks; and how they are to share it."""

    dist_context: "DistributedContext"
    model: TModel
    stage: PipelineStageInfo = PipelineStageInfo()
    parallelism: Literal["ddp", "fsdp2"] = "ddp"


class ModelProvider(ABC, Generic[TModel]):
    """Makes the model, and shares it among ranks."""

    @abstractmethod
    def initialize_model_stage(self, context: InitializeModelStageContext) -> InitializeModelStageResult[TModel]:
        """The model. torch's generator has the same seed on every rank."""

    def parallelize_model_stage(self, context: ParallelizeModelStageContext[TModel]) -> nn.Module | None:
        """Share the model among several ranks, in place, or give what takes its place.

        Here "ddp" gives all the weights of the first rank, and "fsdp2" is `fully_shard` of the whole model; override it
        to shard a model layer by layer, which costs less memory.
        """
        (replicate if context.parallelism == "ddp" else shard)(context.model, context.dist_context)
        return None


@runtime_checkable
class OptimizerProtocol(Protocol):
    """What is asked of an optimizer. That of torch.optim is saved parameter by parameter, any other as a whole."""

    def step(self) -> Any:
        """Change the parameters by their gradients."""
        ...

    def zero_grad(self) -> None:
        """Forget the gradients."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Its state."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Go on from a state."""
        ...


@runtime_checkable
class LRSchedulerProtocol(Protocol):
    """What is asked of a schedule of the learning rate."""

    def step(self) -> None:
        """Set the learning rate of the next step."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Its state."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Go on from a state."""
        ...


@dataclass(kw_only=True)
class InitializeOptimizerStageContext:
    """Who trains, and the model as it is trained."""

    dist_context: "DistributedContext"
    model: nn.Module


class OptimizerProvider(Protocol):
    """Makes the optimizer."""

    def __call__(self, context: InitializeOptimizerStageContext, /) -> OptimizerProtocol:
        """The optimizer."""
        ...


@dataclass(kw_only=True)
class InitializeLRSchedulerContext:
    """Who trains, how long, and with which optimizer."""

    dist_context: "DistributedContext"
    total_steps: int
    optimizer: Any


class LRSchedulerProvider(Protocol):
    """Makes the schedule of the learning rate."""

    def __call__(self, context: InitializeLRSchedulerContext, /) -> LRSchedulerProtocol:
        """The schedule."""
        ...
