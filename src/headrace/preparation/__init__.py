"""From raw data to a published dataset: one task a split, one shard a task.

`sources` cuts files into splits at record boundaries, `documents` reads the documents of a split, `tokenization` makes
records of token ids from them; `rows` does both for rows of any kind of input, and `conversion` makes datasets of them;
`tasks` names a piece of work by its content and does it, `executors` runs many, and `job` is the whole: plan, run,
publish. Only `job` and `tasks` know a target, by protocol alone, so any kind of storage with receipts and a
publication will do. Text and rows are sources among others: `prepare` takes any splits.
"""

from headrace.preparation.conversion import Reading, Wanted, convert
from headrace.preparation.documents import read_documents
from headrace.preparation.job import Report, prepare
from headrace.preparation.rows import RowSplit, read_rows, split_rows
from headrace.preparation.sources import Piece, Split, split_text_files
from headrace.preparation.tasks import Target
from headrace.preparation.tokenization import (
    Tokenizer,
    TokenRecords,
    document_id,
    document_place,
    load_tokenizer,
    token_dtype,
    token_records,
)

__all__ = [
    "Piece",
    "Reading",
    "Report",
    "RowSplit",
    "Split",
    "Target",
    "TokenRecords",
    "Tokenizer",
    "Wanted",
    "convert",
    "document_id",
    "document_place",
    "load_tokenizer",
    "prepare",
    "read_documents",
    "read_rows",
    "split_rows",
    "split_text_files",
    "token_dtype",
    "token_records",
]
