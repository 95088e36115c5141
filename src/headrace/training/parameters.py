"""What a training job is told: one tree of values, each checked where it is given."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator

__all__ = [
    "CheckpointingConfig",
    "DataPrefetchConfig",
    "DeterminismConfig",
    "GarbageCollectionConfig",
    "GradientClippingConfig",
    "GradientManagerConfig",
    "JobLoggerConfig",
    "JobScheduleConfig",
    "RunConfig",
    "StepActionPeriod",
    "StepActionSpecial",
    "TimeoutConfig",
    "TrainerConfig",
]


class StepActionSpecial(StrEnum):
    """When to do what is not done every so many steps: behind the last one, or never."""

    last_step = "last_step"
    disable = "disable"


StepActionPeriod: TypeAlias = Annotated[int, Field(ge=1)] | StepActionSpecial


class _Parameters(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RunConfig(_Parameters):
    """The job's name, which is also its folder below save_dir; a description and numbers for people."""

    name: str
    description: str | None = None
    hparams: dict[str, Any] = Field(default_factory=dict)

    @field_validator("name")
    @classmethod
    def _one_folder(cls, name: str) -> str:
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise ValueError(f"{name!r} cannot be the name of a folder; use letters, digits, '-' and '_'")
        return name


class JobScheduleConfig(_Parameters):
    """Steps of the whole job; None: as many as the data has."""

    total_steps: int | None = Field(default=None, ge=1)


class DataPrefetchConfig(_Parameters):
    """Packs that are made, and copied to the device, ahead of the step that takes them; each occupies memory there."""

    prefetch_factor: int = Field(default=1, ge=0)


class DeterminismConfig(_Parameters):
    """What torch's generators are seeded by, alike on every rank; those of CUDA by rank, once the model is made."""

    base_seed: int = Field(default=0, ge=0)


class GarbageCollectionConfig(_Parameters):
    """Collect Python's garbage every so many steps, and never in between: all ranks pause together."""

    period_steps: StepActionPeriod


class CheckpointingConfig(_Parameters):
    """A checkpoint every period_steps steps and behind the last, in save_dir/<run's name>/save-<steps done>.

    num_to_keep is how many of the newest stay; None: all.
    """

    save_dir: Path
    period_steps: StepActionPeriod
    num_to_keep: int | None = Field(default=None, ge=1)


class GradientClippingConfig(_Parameters):
    """Gradients are scaled down to this norm, over all parameters; None: they are only measured."""

    max_norm: float | None = Field(default=None, gt=0)


class GradientManagerConfig(_Parameters):
    """The type in which gradients are added up over microbatches and ranks, by torch's name, such as "float32".

    None is each parameter's own. Ranks add them up in pieces of about bucket_size_mb MiB.
    """

    grad_dtype: str | None = None
    bucket_size_mb: int = Field(default=32, ge=1)

    @field_validator("grad_dtype")
    @classmethod
    def _a_float(cls, name: str | None) -> str | None:
        dtype = None if name is None else getattr(torch, name, None)
        if name is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise ValueError(f"{name!r} is no floating-point type of torch's; 'float32' is one")
        return name


class JobLoggerConfig(_Parameters):
    """Every period_steps steps a line of JSON is appended to path: step (steps done), loss, grad_norm, tokens_per_s,
    data_wait_share. A step that was trained again after a kill has two lines; the later one counts.

    progress is a line on the terminal, where there is one. Reading the loss waits for the device.
    """

    period_steps: StepActionPeriod = 1
    path: Path | None = None
    progress: bool = True


class TimeoutConfig(_Parameters):
    """Seconds that ranks wait for one another: until the first step is done, and in each step behind it."""

    init_timeout: int = Field(default=10_000, ge=1)
    step_timeout: int = Field(default=100, ge=1)


class TrainerConfig(_Parameters):
    """Everything about a job but what it trains, on what.

    checkpointing None saves nothing. gc None leaves Python's collector alone, timeout None torch's. parallelism "ddp"
    keeps the whole model on every rank, "fsdp2" spreads it over them; None is "fsdp2" where the mesh has
    data_parallel_shard above 1, else "ddp".
    """

    run: RunConfig
    schedule: JobScheduleConfig = JobScheduleConfig()
    data_prefetch: DataPrefetchConfig = DataPrefetchConfig()
    logging: JobLoggerConfig = JobLoggerConfig()
    determinism: DeterminismConfig = DeterminismConfig()
    gc: GarbageCollectionConfig | None = None
    checkpointing: CheckpointingConfig | None = None
    gradient_clipping: GradientClippingConfig = GradientClippingConfig()
    gradient_manager: GradientManagerConfig = GradientManagerConfig()
    timeout: TimeoutConfig | None = None
    parallelism: Literal["ddp", "fsdp2"] | None = None
