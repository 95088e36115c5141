"""How many processes a job has, and what for."""

import logging
from typing import TYPE_CHECKING, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from headrace.errors import OptionError

if TYPE_CHECKING:
    from headrace.training.context import DistributedContext

__all__ = ["DeviceMeshParameters"]


class DeviceMeshParameters(BaseModel):
    """How many processes a job has along each axis of parallelism.

    A loop of Headrace's is data-parallel only, so data_parallel_replicate (each has the whole model) and
    data_parallel_shard (the model is spread over them) may be more than 1; ValueError for the others.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    pipeline_parallel: int = Field(default=1, ge=1)
    data_parallel_replicate: int = Field(default=1, ge=1)
    data_parallel_shard: int = Field(default=1, ge=1)
    context_parallel_replicate: int = Field(default=1, ge=1)
    context_parallel_shard: int = Field(default=1, ge=1)
    tensor_parallel: int = Field(default=1, ge=1)
    expert_parallel: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _only_data_parallel(self) -> Self:
        for name, number in self:
            if number > 1 and not name.startswith("data_parallel"):
                raise OptionError(
                    name,
                    number,
                    "1: this loop is data-parallel only (data_parallel_replicate, data_parallel_shard); take a loop "
                    "with a mesh of its own for the rest, such as d9d's, which the data of Headrace can feed",
                )
        return self

    @property
    def data_parallel(self) -> int:
        """How many processes share each global batch."""
        return self.data_parallel_replicate * self.data_parallel_shard

    @property
    def has_pipeline_parallel(self) -> bool:
        """Whether the model is cut into stages."""
        return self.pipeline_parallel > 1

    @property
    def has_data_parallel_replicate(self) -> bool:
        """Whether there is more than one copy of the model."""
        return self.data_parallel_replicate > 1

    @property
    def has_data_parallel_shard(self) -> bool:
        """Whether each copy of the model is spread over processes."""
        return self.data_parallel_shard > 1

    @property
    def has_context_parallel_replicate(self) -> bool:
        """Whether sequences are cut, with replicas."""
        return self.context_parallel_replicate > 1

    @property
    def has_context_parallel_shard(self) -> bool:
        """Whether sequences are cut."""
        return self.context_parallel_shard > 1

    @property
    def has_tensor_parallel(self) -> bool:
        """Whether tensors are cut."""
        return self.tensor_parallel > 1

    @property
    def has_expert_parallel(self) -> bool:
        """Whether experts are spread."""
        return self.expert_parallel > 1

    @property
    def is_distributed(self) -> bool:
        """Whether there is more than one process."""
        return any(number > 1 for _, number in self)

    def build(self, log_level: int = logging.INFO) -> "DistributedContext":
        """The context of this process, once all of them are there. Messages from log_level on are logged.

        Processes are what torchrun says, in RANK, WORLD_SIZE and their like; OptionError when they are not as many as
        here. A process group that was made before is used, and left; close() ends one that is made here.
        """
        from headrace.training.context import DistributedContext  # which is made of these

        return DistributedContext(self, log_level)
