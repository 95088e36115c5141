"""AutoDataProvider: any dataset to packs, in one order that every number of ranks shares.

    dataset --> shuffled? --> in buckets? ----> loader: a step's rows of this rank --> one pack of microbatches
                         '--> in token budgets? ----> loader: a batch a microbatch --> k of them are a pack

There are no shards: ranks deal the rows of each global batch among themselves, so a state is the same on all of them,
and any number of ranks goes on with it.
"""

import logging
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from headrace.errors import OptionError, OrderError
from headrace.loading import StatefulDataLoader
from headrace.loading.pack_protocols import CollateFn, MicrobatchPackStream
from headrace.training.auto_stream import AutoDataStream, PackCollate
from headrace.training.context import data_parallel_world
from headrace.training.data import DatasetFactory, InitializeDataProviderContext
from headrace.views import BufferSortedDataset, ShardIndexingMode, ShuffledDataset

__all__ = ["AutoDataConfig", "AutoDataProvider"]

_log = logging.getLogger(__name__)


class AutoDataConfig(BaseModel):
    """How AutoDataProvider makes packs of a dataset."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    global_batch_size: int | None = Field(default=None, ge=1)
    microbatch_size: int | None = Field(default=None, ge=1)
    shard_indexing_mode: ShardIndexingMode = ShardIndexingMode.sequential
    shuffle: bool = False
    drop_last: bool = True
    num_workers: int = Field(default=0, ge=0)
    pin_memory: bool = True
    persistent_workers: bool = False
    prefetch_factor: int | None = Field(default=None, ge=1)
    timeout: float = Field(default=0.0, ge=0)
    seed: int = 0
    epochs: int | None = Field(default=1, ge=1)
    padding: bool = False
    buffer_size: int | None = Field(default=None, ge=1)
    pack_size: int | None = Field(default=None, ge=1)
    max_tokens: int | None = Field(default=None, ge=1)
    batches_per_step: int | None = Field(default=None, ge=1)
    multiprocessing_context: Literal["fork", "spawn", "forkserver"] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        return self


class AutoDataProvider:
    """A data provider for any dataset with a length."""

    def __init__(self, dataset_factory: DatasetFactory, collator: CollateFn, config: AutoDataConfig) -> None:
        self._dataset_factory = dataset_factory
        self._collator = collator
        self._config = config

    def __call__(self, context: InitializeDataProviderContext) -> MicrobatchPackStream:
        """This rank's stream of packs."""
        config = self._config
        rank, world_size = data_parallel_world(context.dist_context)
        dataset: Any = self._dataset_factory(context.dist_context)
        if config.global_batch_size is None or config.microbatch_size is None:
            raise OptionError("global_batch_size", config.global_batch_size, "a number")
        rows = config.global_batch_size // world_size
        if rows % config.microbatch_size:
            raise OrderError(f"{rows} rows a rank are not divided by microbatch_size={config.microbatch_size}")
        if config.shuffle:
            dataset = ShuffledDataset(dataset, config.seed)
        if config.buffer_size is not None:
            size = config.pack_size or config.global_batch_size
            dataset = BufferSortedDataset(dataset, config.buffer_size, size, config.seed)
        loader = StatefulDataLoader(
            dataset,
            PackCollate(self._collator, config.microbatch_size),
            device="cpu",
            global_batch_size=config.global_batch_size,
            rank=rank,
            world_size=world_size,
            num_workers=config.num_workers,
            parallel_method="process",
            drop_last=config.drop_last,
            prefetch=config.num_workers * (config.prefetch_factor or 2),
            multiprocessing_context=config.multiprocessing_context,
            timeout_s=config.timeout or None,
            persistent_workers=config.persistent_workers,
        )
        return AutoDataStream(loader, epochs=config.epochs)
