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

_ROOMS = {
    "headrace.datasets": (
        "AnnotatedWriter",
        "AsyncReader",
        "CSVWriter",
        "Damage",
        "DocumentDataset",
        "DocumentReader",
        "DocumentStorage",
        "DocumentWriter",
        "JSONWriter",
        "LocalDataset",
        "MDSWriter",
        "MmapIO",
        "PosixPreadIO",
        "SampleDataset",
        "SampleStorage",
        "SeekIO",
        "SpanBatch",
        "StreamDataset",
        "StreamReader",
        "StreamStorage",
        "StreamWithMetaStorage",
        "StreamWriter",
        "TSVWriter",
        "WindowBatch",
        "XSVWriter",
        "merge_index",
        "open_storage",
    ),
    "headrace.errors": (
        "HeadraceError",
        "StateMismatchError",
        "UnfinishedDatasetError",
        "UnsafeDataError",
    ),
    "headrace.formats": (
        "AnnotatedFormat",
        "DocumentBytesFormat",
        "DocumentFormat",
        "DocumentJsonFormat",
        "DocumentNumpyFormat",
        "DocumentPickleFormat",
        "Encoding",
        "SpanFormat",
        "SpanNumpyFormat",
        "StreamArrayFormat",
        "StreamFormat",
        "StreamNumpyFormat",
    ),
    "headrace.loading": (
        "ElasticBatchSampler",
        "StatefulDataLoader",
        "continued",
        "stack",
        "stack_segments",
    ),
    "headrace.manifest": ("Manifest",),
    "headrace.planning": (
        "Permutation",
        "derive_seed",
    ),
    "headrace.preparation": (
        "Report",
        "document_id",
        "document_place",
        "prepare",
        "split_text_files",
    ),
    "headrace.store": (
        "LocalStore",
        "MemoryStore",
        "Store",
    ),
    "headrace.views": (
        "BufferSortedDataset",
        "DatasetImplementingSortKeyProtocol",
        "LinearSchedule",
        "MixedDataset",
        "PackedBatch",
        "PackedDataset",
        "Plan",
        "SelectedDataset",
        "ShardIndexingMode",
        "ShardedDataset",
        "ShuffledDataset",
        "TokenBudgetBatches",
        "WithLengths",
    ),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [
    "AnnotatedFormat",
    "AnnotatedWriter",
    "AsyncReader",
    "BufferSortedDataset",
    "CSVWriter",
    "Damage",
    "DatasetImplementingSortKeyProtocol",
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
    "HeadraceError",
    "JSONWriter",
    "LinearSchedule",
    "LocalDataset",
    "LocalStore",
    "MDSWriter",
    "Manifest",
    "MemoryStore",
    "MixedDataset",
    "MmapIO",
    "PackedBatch",
    "PackedDataset",
    "Permutation",
    "Plan",
    "PosixPreadIO",
    "Report",
    "SampleDataset",
    "SampleStorage",
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
    "Store",
    "StreamArrayFormat",
    "StreamDataset",
    "StreamFormat",
    "StreamNumpyFormat",
    "StreamReader",
    "StreamStorage",
    "StreamWithMetaStorage",
    "StreamWriter",
    "TSVWriter",
    "TokenBudgetBatches",
    "UnfinishedDatasetError",
    "UnsafeDataError",
    "WindowBatch",
    "WithLengths",
    "XSVWriter",
    "continued",
    "derive_seed",
    "document_id",
    "document_place",
    "merge_index",
    "open_storage",
    "prepare",
    "split_text_files",
    "stack",
    "stack_segments",
]

logging.getLogger("headrace").addHandler(logging.NullHandler())

if TYPE_CHECKING:
    from headrace.datasets import (
        AnnotatedWriter,
        AsyncReader,
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
        merge_index,
        open_storage,
    )
    from headrace.errors import (
        HeadraceError,
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
    from headrace.loading import (
        ElasticBatchSampler,
        StatefulDataLoader,
        continued,
        stack,
        stack_segments,
    )
    from headrace.manifest import Manifest
    from headrace.planning import (
        Permutation,
        derive_seed,
    )
    from headrace.preparation import (
        Report,
        document_id,
        document_place,
        prepare,
        split_text_files,
    )
    from headrace.store import (
        LocalStore,
        MemoryStore,
        Store,
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
        if error.name != "torch":
            raise
        raise ImportError(f"headrace.{name} needs torch; install it with: pip install 'headrace[torch]'") from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
