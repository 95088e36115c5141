"""merge_index: one index for what many writers wrote side by side. Shards stay where they are, as they are.

Every index speaks for the shards in its own folder. What it lists further down is a copy of what the indexes there say,
left by an earlier merge, and is not counted again: so a merged root merges to the same bytes, and a root that is itself
a part keeps its shards.

    root/index.json       ["shard.00000.mds", "a/shard.00000.mds"]     its own shard, and a copy
    root/a/index.json     ["shard.00000.mds", "x/shard.00000.mds"]     its own shard, and a copy
    root/a/x/index.json   ["shard.00000.mds"]
    merged:               ["shard.00000.mds", "a/shard.00000.mds", "a/x/shard.00000.mds"]
"""

import inspect
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, NamedTuple, overload

from headrace.datasets.samples.index import (
    INDEX,
    JsonEntry,
    ShardEntry,
    merged_index_bytes,
    schema_of,
    stored_files,
    with_prefix,
)
from headrace.datasets.samples.parts import Survey, below, part_order, read_indexes, survey
from headrace.datasets.samples.places import Place, Root, part_folder, remove_copies
from headrace.errors import CorruptShardError, ManifestError, NoDatasetError, OptionError, PartMismatchError
from headrace.errors import UnfinishedDatasetError
from headrace.store import Store

__all__ = ["merge_index"]
