"""Rows: dicts of named values, whatever they come from. One module a kind of input.

    jsonl.py  delimited.py           JSON lines; CSV and TSV
    tables.py  hugging_face.py       Parquet; directories of Hugging Face's
    stored.py  streams.py            datasets that Headrace reads
    inputs.py                        which of them a path is
    splits.py                        cuts inputs into splits, and reads the rows of a split
    columns.py                       what values a column has, and how they are brought into one type

A new kind of input is one frozen dataclass with the members of `RowSource`.
"""

from headrace.preparation.rows.inputs import row_sources, split_rows
from headrace.preparation.rows.splits import Row, Rows, RowSource, RowSplit, read_rows, split_sources

__all__ = ["Row", "RowSource", "RowSplit", "Rows", "read_rows", "row_sources", "split_rows", "split_sources"]
