"""AutoDataProvider: any dataset to packs, in one order that every number of ranks shares.

    dataset --> shuffled? --> in buckets? ----> loader: a step's rows of this rank --> one pack of microbatches
                         '--> in token budgets? ----> loader: a batch a microbatch --> k of them are a pack

There are no shards: ranks deal the rows of each global batch among themselves, so a state is the same on all of them,
and any number of ranks goes on with it.
"""

import logging
from collections.abc import Mapping
from typing import Any, Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator

from headrace.errors import OptionError, OrderError
from headrace.loading import PinMemoryMicrobatchPackStream, Stack, StatefulDataLoader, World
from headrace.loading.pack_protocols import CollateFn, MicrobatchPackStream
from headrace.planning import check_division
from headrace.training.auto_stream import AutoDataStream, BatchCollate, BudgetPacks, PackCollate
from headrace.training.context import data_parallel_world
from headrace.training.data import DatasetFactory, InitializeDataProviderContext
from headrace.views import (
    BufferSortedDataset,
    ShardedDataset,
    ShardIndexingMode,
    ShuffledDataset,
    TokenBudgetBatches,
    is_ordered,
    is_view,
)

__all__ = ["AutoDataConfig", "AutoDataProvider"]

PREFETCH_FACTOR = 2  # torch's own

_log = logging.getLogger("headrace")


class AutoDataConfig(BaseModel):
    """How AutoDataProvider makes packs of a dataset.

    | field | meaning |
    | --- | --- |
    | global_batch_size | rows of a step, all ranks together |
    | microbatch_size | rows of a microbatch: what one forward pass of one rank takes |
    | shuffle, seed | a new global permutation each epoch, by this seed (and so are buckets and budgets) |
    | epochs | how often the dataset is read; None is without end |
    | drop_last | True drops an epoch's rows that fill no step; False serves them: ranks get fewer, or an empty pack |
    | padding | True fills an epoch's last step with its first rows, marked (PaddedPack); needs drop_last=False |
    | buffer_size, pack_size | rows of like length together: a buffer is sorted, cut into packs, and these shuffled |
    | max_tokens, batches_per_step | microbatches of at most so many tokens, so many a step; instead of row counts |
    | num_workers, multiprocessing_context | worker processes that read and collate, and how they are started |
    | persistent_workers, prefetch_factor | whether they live on between epochs; packs each makes ahead (default 2) |
    | timeout | seconds in which a worker has to give a pack; 0 waits for ever |
    | pin_memory | packs in pinned memory, where there is an accelerator |
    | shard_indexing_mode | taken for d9d's sake: the order is one for all ranks, and has no shards |

    A buffer is cut into packs of a global batch by default. Packs of microbatch_size times the number of ranks have the
    least padding: neighbours go to different ranks, so these are a microbatch of each. Whatever makes no sense is
    refused by a ValueError that says why.
    """

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
    timeout: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    seed: int = 0
    epochs: int | None = Field(default=1, ge=1)
    padding: bool = False
    buffer_size: int | None = Field(default=None, ge=1)
    pack_size: int | None = Field(default=None, ge=1)
    max_tokens: int | None = Field(default=None, ge=1)
    batches_per_step: int | None = Field(default=None, ge=1)
    multiprocessing_context: Literal["fork", "spawn", "forkserver"] | None = None

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        self._check_sizes()
        if self.padding and self.drop_last:
            raise OptionError("padding", True, "drop_last=False beside it: a last step is either dropped or filled")
        if self.num_workers == 0:
            for name in ("persistent_workers", "prefetch_factor", "timeout", "multiprocessing_context"):
                if value := getattr(self, name):
                    raise OptionError(name, value, "nothing with num_workers=0: it is about worker processes")
        return self

    @property
    def row_sizes(self) -> tuple[int, int]:
        """global_batch_size and microbatch_size; OptionError where token budgets take their place."""
        if self.global_batch_size is None:
            raise OptionError("global_batch_size", None, "a number of rows (or pass max_tokens and batches_per_step)")
        if self.microbatch_size is None:
            raise OptionError("microbatch_size", None, "a number of rows, of which one forward pass takes so many")
        return self.global_batch_size, self.microbatch_size

    def _check_sizes(self) -> None:
        if self.max_tokens is not None or self.batches_per_step is not None:
            for name, value in {"max_tokens": self.max_tokens, "batches_per_step": self.batches_per_step}.items():
                if value is None:
                    raise OptionError(name, None, "a number: max_tokens and batches_per_step make a step together")
            for name in ("global_batch_size", "microbatch_size", "buffer_size", "pack_size"):
                if (size := getattr(self, name)) is not None:
                    raise OptionError(name, size, "nothing beside max_tokens, which decides what is batched together")
            if self.padding:
                raise OptionError(
                    "padding", True, "False beside max_tokens: every rank has equally many batches anyway"
                )
            return
        global_batch_size, microbatch_size = self.row_sizes
        if global_batch_size % microbatch_size:
            raise OptionError(
                "global_batch_size", global_batch_size, f"a multiple of microbatch_size={microbatch_size}"
            )
        if self.buffer_size is None:
            if self.pack_size is not None:
                raise OptionError("pack_size", self.pack_size, "nothing without buffer_size, whose buffers it cuts")
        elif self.buffer_size < (pack_size := self.pack_size or global_batch_size):
            raise OptionError(
                "buffer_size",
                self.buffer_size,
                f"at least pack_size={pack_size}: a buffer that is one pack is shuffled, and its sorting undone",
            )


class AutoDataProvider:
    """A data provider for any dataset with a length: an order by config, packs by collator.

    dataset_factory(dist_context) is called on every rank and gives the whole dataset, the same everywhere; ranks share
    the steps of its order, not shards of it. collator makes a microbatch of a list of samples (None stacks them), and
    is never given an empty one. Any number of ranks that divides global_batch_size, its parts being multiples of
    microbatch_size, gives the same steps, as does any number that divides batches_per_step.
    """

    def __init__(self, dataset_factory: DatasetFactory, collator: CollateFn | None, config: AutoDataConfig) -> None:
        expected = {
            "dataset_factory": (dataset_factory, callable(dataset_factory), "a function, as lambda dist_context: data"),
            "collator": (collator, collator is None or callable(collator), "a function of a list of samples"),
            "config": (config, isinstance(config, AutoDataConfig), "an AutoDataConfig"),
        }
        for name, (given, fits, kind) in expected.items():
            if not fits:
                raise TypeError(f"{name} is a {type(given).__name__}, and must be {kind}")
        self._dataset_factory = dataset_factory
        self._collator = collator if collator is not None else Stack()
        self._config = config

    def __call__(self, context: InitializeDataProviderContext) -> MicrobatchPackStream:
        """This rank's stream: its state is equal on every rank, and it may be resumed with another number of them.

        TypeError and OrderError for datasets that cannot be dealt so: without a length, or sharded already.
        """
        config = self._config
        world = data_parallel_world(context.dist_context)
        if "shard_indexing_mode" in config.model_fields_set and world.rank == 0:
            getattr(context.dist_context, "logger", _log).info(
                "shard_indexing_mode=%s changes nothing: ranks share the steps of one order, which has no shards",
                config.shard_indexing_mode.value,
            )
        dataset = _ordered(_whole(self._dataset_factory(context.dist_context)), config)
        stream: MicrobatchPackStream
        if config.max_tokens is None:
            stream = self._of_rows(dataset, world)
        else:
            stream = self._of_token_budgets(dataset, world)
        if config.pin_memory and torch.accelerator.is_available():
            stream = PinMemoryMicrobatchPackStream(stream)
        return stream

    def _of_rows(self, dataset: Any, world: World) -> AutoDataStream:
        global_batch_size, microbatch_size = self._config.row_sizes
        rows = check_division(global_batch_size, world.world_size)
        if rows % microbatch_size:
            smaller = max(size for size in range(1, min(microbatch_size, rows + 1)) if rows % size == 0)
            raise OptionError(
                "microbatch_size",
                microbatch_size,
                f"a divisor of {rows}, a rank's rows of global_batch_size={global_batch_size} over {world.world_size} "
                f"ranks, such as {smaller}; it may be another in each run",
            )
        loader = self._loader(dataset, PackCollate(self._collator, microbatch_size), world, global_batch_size)
        return AutoDataStream(loader, epochs=self._config.epochs)

    def _of_token_budgets(self, dataset: Any, world: World) -> AutoDataStream:
        if dataset.rows_per_step % world.world_size:
            raise OptionError(
                "batches_per_step", dataset.rows_per_step, f"a multiple of {world.world_size}, the data-parallel ranks"
            )
        loader = self._loader(dataset, BatchCollate(self._collator), world, world.world_size)
        return AutoDataStream(loader, epochs=self._config.epochs, packs=BudgetPacks(loader))

    def _loader(self, dataset: Any, collate: CollateFn, world: World, rows: int) -> StatefulDataLoader:
        config = self._config
        return StatefulDataLoader(
            dataset,
            collate,
            device="cpu",
            global_batch_size=rows,
            rank=world.rank,
            world_size=world.world_size,
            num_workers=config.num_workers,
            parallel_method="process",
            drop_last=config.drop_last,
            pad=config.padding,
            prefetch=config.num_workers * (config.prefetch_factor or PREFETCH_FACTOR),
            multiprocessing_context=config.multiprocessing_context,
            timeout_s=config.timeout or None,
            persistent_workers=config.persistent_workers,
        )


def _whole(dataset: Any) -> Any:
    """The dataset; TypeError for one without a length or items and for a dict of datasets, OrderError for a
    part of one."""
    for method in ("__len__", "__getitem__"):
        if not hasattr(dataset, method):
            raise TypeError(
                f"the dataset factory gave a {type(dataset).__name__}, which has no {method}; the order needs a "
                "map-style dataset, whose samples can be had in any order"
            )
    if isinstance(dataset, Mapping) and 0 not in dataset:  # as a Hugging Face dataset before a split was chosen
        raise TypeError(
            f"the dataset factory gave a {type(dataset).__name__} of {', '.join(map(repr, dataset)) or 'nothing'}; "
            "return one of them"
        )
    inner = dataset
    while is_view(inner):
        if isinstance(inner, ShardedDataset) and inner.total_shards > 1:
            raise OrderError(
                f"the dataset factory gave shard {inner.current_shard} of {inner.total_shards}; return the whole "
                "dataset: the ranks share its steps by themselves"
            )
        inner = inner.base
    if getattr(dataset, "rows_are_batches", False):
        raise OrderError(
            f"the dataset factory gave a {type(dataset).__name__}; return the dataset below it, and say max_tokens and "
            "batches_per_step in the config"
        )
    return dataset


def _ordered(dataset: Any, config: AutoDataConfig) -> Any:
    """The dataset in the order that config asks for."""
    if config.shuffle:
        if is_ordered(dataset):
            raise OrderError(
                f"shuffle=True over a {type(dataset).__name__}, which already orders; shuffle its base, or leave it out"
            )
        dataset = ShuffledDataset(dataset, config.seed)
    if config.buffer_size is not None:
        pack_size = config.pack_size or config.row_sizes[0]
        dataset = BufferSortedDataset(dataset, config.buffer_size, pack_size, config.seed)
    if config.max_tokens is not None and config.batches_per_step is not None:
        dataset = TokenBudgetBatches(dataset, config.max_tokens, config.batches_per_step, seed=config.seed)
    return dataset
