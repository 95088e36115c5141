"""A training loop in plain PyTorch that stops anywhere and goes on exactly, and what feeds it.

mesh.py        how many processes, and what for     context.py     which of them this is, and how they meet
data.py        what gives a loop its data           agreement.py   what failed, on which rank
auto_data.py   that for any dataset                 auto_stream.py the stream of packs that it gives
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
