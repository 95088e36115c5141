"""Datasets in another order. A view is a map-style dataset whose items are its base's, found by arithmetic.

Every view has `base`, `locate(positions) -> the base's positions`, `settings`, and `ordered = True`. Positions are
endless: epoch and index follow by divmod, so views nest and each keeps its own epochs. A mixture has several bases, and
`draws(positions)` instead. Rows of packs and of token-budget batches vary by epoch: they are addressed by window and
row, and come last.

    view.py           one base in another order          windowed.py        rows planned a window at a time
    shuffled.py  selected.py  buffer_sorted.py           packed.py          documents in rows of one length
    sharded.py        one reader's share                 token_budget.py    batches of at most so many tokens
    mixed.py          several bases in proportions       plan.py            which samples a step has, and when
    with_lengths.py   lengths beside a dataset           skipping.py        damaged samples, replaced

    protocol.py  leaves.py                               what is asked of a dataset; the datasets below all views
    mixture_options.py  mixture_report.py                what a mixture is told, and tells
    changing.py  ending.py                               a mixture that becomes another; one that ends
    mixed_batch.py  packed_rows.py  document_fields.py   what batches are made of
    hints.py                                             what will be read soon, for caches below
    recent.py  row_counts.py  options.py                 what is kept, in memory and in a file; checks of numbers
"""

from headrace.views.buffer_sorted import BufferSortedDataset, DatasetImplementingSortKeyProtocol
from headrace.views.hints import prefetch, takes_hints
from headrace.views.mixed import MixedDataset
from headrace.views.mixture_options import LinearSchedule
from headrace.views.mixture_report import MixtureReport, SourceReport
from headrace.views.packed import PackedDataset
from headrace.views.packed_rows import PackedBatch
from headrace.views.plan import Origins, Plan
from headrace.views.protocol import (
    MapDataset,
    dataset_settings,
    fetch,
    is_ordered,
    is_view,
    is_windowed,
    items_of,
    lengths_at,
)
from headrace.views.selected import SelectedDataset
from headrace.views.sharded import ShardedDataset, ShardIndexingMode
from headrace.views.shuffled import ShuffledDataset
from headrace.views.token_budget import TokenBudgetBatches
from headrace.views.view import View
from headrace.views.windowed import WindowedDataset
from headrace.views.with_lengths import WithLengths

__all__ = [
    "BufferSortedDataset",
    "DatasetImplementingSortKeyProtocol",
    "LinearSchedule",
    "MapDataset",
    "MixedDataset",
    "MixtureReport",
    "Origins",
    "PackedBatch",
    "PackedDataset",
    "Plan",
    "SelectedDataset",
    "ShardIndexingMode",
    "ShardedDataset",
    "ShuffledDataset",
    "SourceReport",
    "TokenBudgetBatches",
    "View",
    "WindowedDataset",
    "WithLengths",
    "dataset_settings",
    "fetch",
    "is_ordered",
    "is_view",
    "is_windowed",
    "items_of",
    "lengths_at",
    "prefetch",
    "takes_hints",
]
