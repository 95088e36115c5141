"""Samples with named columns: MosaicML Streaming's MDS, JSON, CSV, TSV and XSV shards, listed by index.json.

index.py                                    that list, in structs and as bytes
writer.py  sample_writer.py                 the five writers, and what they have in common
pending.py  background.py  storing.py       a shard on its way: collected, stored in the background, noted
output.py  delivery.py  ownership.py       where its files go, one writer at a time, the index last
conditional.py  late_files.py               what only one of two writers may put; what came too late
withdrawal.py                               how an older dataset leaves
dataset.py  opened.py  sample_formats.py    reading: what users hold, what is open, and how a shard is decoded
merge.py  parts.py  places.py               one index for what many writers wrote
storage.py                                  a directory that prepare() fills, one folder a task

Nothing but Streaming's own files stays behind.
"""

from headrace.datasets.samples.dataset import LocalDataset, SampleDataset
from headrace.datasets.samples.merge import merge_index
from headrace.datasets.samples.storage import SampleStorage
from headrace.datasets.samples.writer import CSVWriter, JSONWriter, MDSWriter, TSVWriter, XSVWriter

__all__ = [
    "CSVWriter",
    "JSONWriter",
    "LocalDataset",
    "MDSWriter",
    "SampleDataset",
    "SampleStorage",
    "TSVWriter",
    "XSVWriter",
    "merge_index",
]
