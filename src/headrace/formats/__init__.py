"""SAMPLES: one shard's bytes to samples and back. Formats never know where bytes live, or which are wanted."""

from headrace.formats.annotated import AnnotatedFormat, SpanFormat, SpanNumpyFormat
from headrace.formats.documents import (
    DocumentBytesFormat,
    DocumentFormat,
    DocumentJsonFormat,
    DocumentNumpyFormat,
    DocumentPickleFormat,
)
from headrace.formats.mds.encodings import Encoding
from headrace.formats.stream import StreamArrayFormat, StreamFormat, StreamNumpyFormat

__all__ = [
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
]
