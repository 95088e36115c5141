"""A training loop in plain PyTorch that stops anywhere and goes on exactly, and what feeds it.

context.py     DeviceMeshParameters --> DistributedContext   agreement.py   what failed, on which rank
data.py        what gives a loop its data                    auto_data.py   packs of any dataset
auto_stream.py the stream of packs that makes
"""

from headrace.training.auto_data import AutoDataConfig, AutoDataProvider
from headrace.training.context import (
    DeviceMeshParameters,
    DistributedContext,
    DistributedContextLike,
    data_parallel_world,
)
from headrace.training.data import (
    DataParallelMicrobatchPackStream,
    DataProvider,
    DatasetFactory,
    InitializeDataProviderContext,
    shard_dataset_data_parallel,
)

__all__ = [
    "AutoDataConfig",
    "AutoDataProvider",
    "DataParallelMicrobatchPackStream",
    "DataProvider",
    "DatasetFactory",
    "DeviceMeshParameters",
    "DistributedContext",
    "DistributedContextLike",
    "InitializeDataProviderContext",
    "data_parallel_world",
    "shard_dataset_data_parallel",
]
