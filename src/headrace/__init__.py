"""Headrace takes raw data to training batches.

    WRITE   source --> prepare --> shards --> publish         READ   open --> view --> load --> step
            records    one task    immutable  one manifest           dataset  order    batches
                       a shard     files      the commit             (files)  (integers)

Everything that users need is importable from here; names are loaded at first use, so that importing Headrace costs
little and needs no torch. The rooms behind this door are described in their own docstrings.
"""

import importlib
import logging
import sys
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":
    raise ImportError("Headrace supports Linux, and macOS as far as it goes; it does not run on Windows")

__version__ = "0.1.0.dev0"

_ROOMS = {  # names in the order of __all__, as text: a line a name would make the door twice as long
    "headrace.datasets": """
        AnnotatedWriter AsyncReader CSVWriter CopyReport Damage DocumentDataset DocumentReader DocumentStorage
        DocumentWriter JSONWriter LocalDataset MDSWriter MmapIO PosixPreadIO SampleDataset SampleStorage SeekIO
        SpanBatch StreamDataset StreamReader StreamStorage StreamWithMetaStorage StreamWriter TSVWriter WindowBatch
        XSVWriter copy_dataset merge_index open_storage
    """,
    "headrace.errors": "HeadraceError RankFailedError StateMismatchError UnfinishedDatasetError UnsafeDataError",
    "headrace.formats": """
        AnnotatedFormat DocumentBytesFormat DocumentFormat DocumentJsonFormat DocumentNumpyFormat DocumentPickleFormat
        Encoding SpanFormat SpanNumpyFormat StreamArrayFormat StreamFormat StreamNumpyFormat
    """,
    "headrace.integrations": "dataframe_to_mds",
    "headrace.loading": """
        CollateFn DataLoaderProtocol DataMetrics ElasticBatchSampler FixedCountMicrobatchPacker MicrobatchPack
        MicrobatchPackStream PaddingSide1D PinMemoryMicrobatchPackStream PyTree PyTreeSpec ScalarTree StatefulDataLoader
        TensorTree TokenBudgetMicrobatchPacker TokenPack TokenPoolingType build_device_pack_stream continued
        num_microbatches_for_global_batch pad_stack_1d stack stack_segments token_pooling_mask_from_attention_mask
        tree_flatten tree_leaves tree_leaves_with_path tree_map tree_map_only tree_unflatten
    """,
    "headrace.manifest": "Manifest",
    "headrace.planning": "Permutation derive_seed",
    "headrace.preparation": "Report document_id document_place prepare split_text_files",
    "headrace.store": "CachedStore LocalStore MemoryStore RetryPolicy Store open_store",
    "headrace.streaming": "Stream StreamingDataLoader StreamingDataset clean_stale_shared_memory",
    "headrace.training": """
        AutoDataConfig AutoDataProvider BuildForwardInputsContext BuildForwardInputsResult CheckpointingConfig
        ComputeLossContext ComputeLossResult DataParallelMicrobatchPackStream DataPrefetchConfig DataProvider
        DatasetFactory DeterminismConfig DeviceMeshParameters DistributedContext FinalizeContext GarbageCollectionConfig
        GradientClippingConfig GradientManagerConfig InitializeDataProviderContext InitializeLRSchedulerContext
        InitializeModelStageContext InitializeModelStageResult InitializeOptimizerStageContext JobLoggerConfig
        JobSchedule JobScheduleConfig LRSchedulerProtocol LRSchedulerProvider ModelProvider OptimizerProtocol
        OptimizerProvider ParallelizeModelStageContext RunConfig StepDoneContext TimeoutConfig TrainTask
        TrainTaskProvider TrainTaskProviderContext Trainer TrainerConfig TrainingConfigurator
        shard_dataset_data_parallel
    """,
    "headrace.views": """
        BufferSortedDataset DatasetImplementingSortKeyProtocol LinearSchedule MixedDataset PackedBatch PackedDataset
        Plan SelectedDataset ShardIndexingMode ShardedDataset ShuffledDataset TokenBudgetBatches WithLengths
    """,
}
_OF_TORCH = ("torch", "torchdata", "optree", "pydantic")  # what the extra named torch brings
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names.split()}

__all__ = [
    "AnnotatedFormat",
    "AnnotatedWriter",
    "AsyncReader",
    "AutoDataConfig",
    "AutoDataProvider",
    "BufferSortedDataset",
    "BuildForwardInputsContext",
    "BuildForwardInputsResult",
    "CSVWriter",
    "CachedStore",
    "CheckpointingConfig",
    "CollateFn",
    "ComputeLossContext",
    "ComputeLossResult",
    "CopyReport",
    "Damage",
    "DataLoaderProtocol",
    "DataMetrics",
    "DataParallelMicrobatchPackStream",
    "DataPrefetchConfig",
    "DataProvider",
    "DatasetFactory",
    "DatasetImplementingSortKeyProtocol",
    "DeterminismConfig",
    "DeviceMeshParameters",
    "DistributedContext",
    "DocumentBytesFormat",
    "DocumentDataset",
    "DocumentFormat",
    "DocumentJsonFormat",
    "DocumentNumpyFormat",
    "DocumentPickleFormat",
    "DocumentReader",
    "DocumentStorage",
    "DocumentWriter",
    "ElasticBatchSampler",
    "Encoding",
    "FinalizeContext",
    "FixedCountMicrobatchPacker",
    "GarbageCollectionConfig",
    "GradientClippingConfig",
    "GradientManagerConfig",
    "HeadraceError",
    "InitializeDataProviderContext",
    "InitializeLRSchedulerContext",
    "InitializeModelStageContext",
    "InitializeModelStageResult",
    "InitializeOptimizerStageContext",
    "JSONWriter",
    "JobLoggerConfig",
    "JobSchedule",
    "JobScheduleConfig",
    "LRSchedulerProtocol",
    "LRSchedulerProvider",
    "LinearSchedule",
    "LocalDataset",
    "LocalStore",
    "MDSWriter",
    "Manifest",
    "MemoryStore",
    "MicrobatchPack",
    "MicrobatchPackStream",
    "MixedDataset",
    "MmapIO",
    "ModelProvider",
    "OptimizerProtocol",
    "OptimizerProvider",
    "PackedBatch",
    "PackedDataset",
    "PaddingSide1D",
    "ParallelizeModelStageContext",
    "Permutation",
    "PinMemoryMicrobatchPackStream",
    "Plan",
    "PosixPreadIO",
    "PyTree",
    "PyTreeSpec",
    "RankFailedError",
    "Report",
    "RetryPolicy",
    "RunConfig",
    "SampleDataset",
    "SampleStorage",
    "ScalarTree",
    "SeekIO",
    "SelectedDataset",
    "ShardIndexingMode",
    "ShardedDataset",
    "ShuffledDataset",
    "SpanBatch",
    "SpanFormat",
    "SpanNumpyFormat",
    "StateMismatchError",
    "StatefulDataLoader",
    "StepDoneContext",
    "Store",
    "Stream",
    "StreamArrayFormat",
    "StreamDataset",
    "StreamFormat",
    "StreamNumpyFormat",
    "StreamReader",
    "StreamStorage",
    "StreamWithMetaStorage",
    "StreamWriter",
    "StreamingDataLoader",
    "StreamingDataset",
    "TSVWriter",
    "TensorTree",
    "TimeoutConfig",
    "TokenBudgetBatches",
    "TokenBudgetMicrobatchPacker",
    "TokenPack",
    "TokenPoolingType",
    "TrainTask",
    "TrainTaskProvider",
    "TrainTaskProviderContext",
    "Trainer",
    "TrainerConfig",
    "TrainingConfigurator",
    "UnfinishedDatasetError",
    "UnsafeDataError",
    "WindowBatch",
    "WithLengths",
    "XSVWriter",
    "build_device_pack_stream",
    "clean_stale_shared_memory",
    "continued",
    "copy_dataset",
    "dataframe_to_mds",
    "derive_seed",
    "document_id",
    "document_place",
    "merge_index",
    "num_microbatches_for_global_batch",
    "open_storage",
    "open_store",
    "pad_stack_1d",
    "prepare",
    "shard_dataset_data_parallel",
    "split_text_files",
    "stack",
    "stack_segments",
    "token_pooling_mask_from_attention_mask",
    "tree_flatten",
    "tree_leaves",
    "tree_leaves_with_path",
    "tree_map",
    "tree_map_only",
    "tree_unflatten",
]

logging.getLogger("headrace").addHandler(logging.NullHandler())

if TYPE_CHECKING:
    from headrace.datasets import (
        AnnotatedWriter,
        AsyncReader,
        CopyReport,
        CSVWriter,
        Damage,
        DocumentDataset,
        DocumentReader,
        DocumentStorage,
        DocumentWriter,
        JSONWriter,
        LocalDataset,
        MDSWriter,
        MmapIO,
        PosixPreadIO,
        SampleDataset,
        SampleStorage,
        SeekIO,
        SpanBatch,
        StreamDataset,
        StreamReader,
        StreamStorage,
        StreamWithMetaStorage,
        StreamWriter,
        TSVWriter,
        WindowBatch,
        XSVWriter,
        copy_dataset,
        merge_index,
        open_storage,
    )
    from headrace.errors import (
        HeadraceError,
        RankFailedError,
        StateMismatchError,
        UnfinishedDatasetError,
        UnsafeDataError,
    )
    from headrace.formats import (
        AnnotatedFormat,
        DocumentBytesFormat,
        DocumentFormat,
        DocumentJsonFormat,
        DocumentNumpyFormat,
        DocumentPickleFormat,
        Encoding,
        SpanFormat,
        SpanNumpyFormat,
        StreamArrayFormat,
        StreamFormat,
        StreamNumpyFormat,
    )
    from headrace.integrations import dataframe_to_mds
    from headrace.loading import (
        CollateFn,
        DataLoaderProtocol,
        DataMetrics,
        ElasticBatchSampler,
        FixedCountMicrobatchPacker,
        MicrobatchPack,
        MicrobatchPackStream,
        PaddingSide1D,
        PinMemoryMicrobatchPackStream,
        PyTree,
        PyTreeSpec,
        ScalarTree,
        StatefulDataLoader,
        TensorTree,
        TokenBudgetMicrobatchPacker,
        TokenPack,
        TokenPoolingType,
        build_device_pack_stream,
        continued,
        num_microbatches_for_global_batch,
        pad_stack_1d,
        stack,
        stack_segments,
        token_pooling_mask_from_attention_mask,
        tree_flatten,
        tree_leaves,
        tree_leaves_with_path,
        tree_map,
        tree_map_only,
        tree_unflatten,
    )
    from headrace.manifest import Manifest
    from headrace.planning import Permutation, derive_seed
    from headrace.preparation import Report, document_id, document_place, prepare, split_text_files
    from headrace.store import CachedStore, LocalStore, MemoryStore, RetryPolicy, Store, open_store
    from headrace.streaming import Stream, StreamingDataLoader, StreamingDataset, clean_stale_shared_memory
    from headrace.training import (
        AutoDataConfig,
        AutoDataProvider,
        BuildForwardInputsContext,
        BuildForwardInputsResult,
        CheckpointingConfig,
        ComputeLossContext,
        ComputeLossResult,
        DataParallelMicrobatchPackStream,
        DataPrefetchConfig,
        DataProvider,
        DatasetFactory,
        DeterminismConfig,
        DeviceMeshParameters,
        DistributedContext,
        FinalizeContext,
        GarbageCollectionConfig,
        GradientClippingConfig,
        GradientManagerConfig,
        InitializeDataProviderContext,
        InitializeLRSchedulerContext,
        InitializeModelStageContext,
        InitializeModelStageResult,
        InitializeOptimizerStageContext,
        JobLoggerConfig,
        JobSchedule,
        JobScheduleConfig,
        LRSchedulerProtocol,
        LRSchedulerProvider,
        ModelProvider,
        OptimizerProtocol,
        OptimizerProvider,
        ParallelizeModelStageContext,
        RunConfig,
        StepDoneContext,
        TimeoutConfig,
        Trainer,
        TrainerConfig,
        TrainingConfigurator,
        TrainTask,
        TrainTaskProvider,
        TrainTaskProviderContext,
        shard_dataset_data_parallel,
    )
    from headrace.views import (
        BufferSortedDataset,
        DatasetImplementingSortKeyProtocol,
        LinearSchedule,
        MixedDataset,
        PackedBatch,
        PackedDataset,
        Plan,
        SelectedDataset,
        ShardedDataset,
        ShardIndexingMode,
        ShuffledDataset,
        TokenBudgetBatches,
        WithLengths,
    )


def __getattr__(name: str) -> Any:
    room = _ROOM_OF.get(name)
    if room is None:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(room), name)
    except ModuleNotFoundError as error:
        if error.name not in _OF_TORCH:
            raise
        raise ImportError(
            f"headrace.{name} needs {error.name}; install it with: pip install 'headrace[torch]'"
        ) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
