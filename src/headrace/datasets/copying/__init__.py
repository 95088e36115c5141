"""Copies of datasets.

contents.py      what a dataset consists of: files, digests, and what commits it
destination.py   where a copy may go, and how it becomes a dataset there
transfer.py      how one file gets there
copy.py          all of it
"""

from headrace.datasets.copying.copy import CopyReport, Tell, copy_dataset

__all__ = ["CopyReport", "Tell", "copy_dataset"]
