"""Copies of datasets: contents.py says what one consists of, destination.py what a copy may be written to,
transfer.py how one file gets there, and copy.py does it all."""

from headrace.datasets.copying.copy import CopyReport, copy_dataset

__all__ = ["CopyReport", "copy_dataset"]
