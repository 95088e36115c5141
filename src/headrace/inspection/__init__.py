"""What `headrace inspect`, `verify` and `publish` tell of a dataset of any kind.

found.py                 which kind is there, and what is asked of every kind
shards.py                streams, documents, streams with metadata
samples.py  images.py    samples, and what stored images are
quality.py               how far a shuffle is from an ideal one, and what it fetches
shown.py                 values and sizes, shortened

Looking at a dataset runs no code that lies in it: pickles are shown as bytes.
"""

from headrace.inspection.found import Found, Totals, Verdict, description, found_in, published, readable, verdict
from headrace.inspection.shards import token_counts
from headrace.inspection.shown import printable, size_text

__all__ = [
    "Found",
    "Totals",
    "Verdict",
    "description",
    "found_in",
    "printable",
    "published",
    "readable",
    "size_text",
    "token_counts",
    "verdict",
]
