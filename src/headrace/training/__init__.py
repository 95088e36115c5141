"""A training loop in plain PyTorch that stops anywhere and goes on exactly, and what feeds it.

mesh.py        how many processes, and what for     context.py     which of them this is, and how they meet
data.py        what gives a loop its data           agreement.py   what failed, on which rank
auto_data.py   that for any dataset                 auto_stream.py the stream of packs that it gives
parameters.py  what a job is told                   providers.py   what it is made of
schedule.py    how long it is                       trainer.py     the loop, worth reading first
gradients.py   how they come together               checkpoint.py  whole or absent, for any number of ranks
stopping.py    SIGTERM and Ctrl-C                   reports.py     lines of JSON, and one on the terminal
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
from headrace.training.parameters import (
    CheckpointingConfig,
    DataPrefetchConfig,
    DeterminismConfig,
    GarbageCollectionConfig,
    GradientClippingConfig,
    GradientManagerConfig,
    JobLoggerConfig,
    JobScheduleConfig,
    RunConfig,
    StepActionPeriod,
    StepActionSpecial,
    TimeoutConfig,
    TrainerConfig,
)
from headrace.training.providers import (
    BuildForwardInputsContext,
    BuildForwardInputsResult,
    ComputeLossContext,
    ComputeLossResult,
    FinalizeContext,
    InitializeLRSchedulerContext,
    InitializeModelStageContext,
    InitializeModelStageResult,
    InitializeOptimizerStageContext,
    LRSchedulerProtocol,
    LRSchedulerProvider,
    ModelProvider,
    OptimizerProtocol,
    OptimizerProvider,
    ParallelizeModelStageContext,
    PipelineStageInfo,
    StepDoneContext,
    TrainTask,
    TrainTaskProvider,
    TrainTaskProviderContext,
)
from headrace.training.schedule import (
    JobSchedule,
)
from headrace.training.trainer import (
    Trainer,
    TrainingConfigurator,
)

__all__ = [
    "AutoDataConfig",
    "AutoDataProvider",
    "BuildForwardInputsContext",
    "BuildForwardInputsResult",
    "CheckpointingConfig",
    "ComputeLossContext",
    "ComputeLossResult",
    "DataParallelMicrobatchPackStream",
    "DataPrefetchConfig",
    "DataProvider",
    "DatasetFactory",
    "DeterminismConfig",
    "DeviceMeshParameters",
    "DistributedContext",
    "DistributedContextLike",
    "FinalizeContext",
    "GarbageCollectionConfig",
    "GradientClippingConfig",
    "GradientManagerConfig",
    "InitializeDataProviderContext",
    "InitializeLRSchedulerContext",
    "InitializeModelStageContext",
    "InitializeModelStageResult",
    "InitializeOptimizerStageContext",
    "JobLoggerConfig",
    "JobSchedule",
    "JobScheduleConfig",
    "LRSchedulerProtocol",
    "LRSchedulerProvider",
    "ModelProvider",
    "OptimizerProtocol",
    "OptimizerProvider",
    "ParallelizeModelStageContext",
    "PipelineStageInfo",
    "RunConfig",
    "StepActionPeriod",
    "StepActionSpecial",
    "StepDoneContext",
    "TimeoutConfig",
    "TrainTask",
    "TrainTaskProvider",
    "TrainTaskProviderContext",
    "Trainer",
    "TrainerConfig",
    "TrainingConfigurator",
    "data_parallel_world",
    "shard_dataset_data_parallel",
]
