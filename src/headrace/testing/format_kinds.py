"""Which kind of dataset a format is for, and what reads its files when nobody passes a format."""

from inspect import signature
from typing import Any

import numpy as np

from headrace.datasets import DocumentStorage, StreamStorage, StreamWithMetaStorage
from headrace.datasets.kinds import AnyStorage
from headrace.formats.annotated import annotated_schema, packed_spans, span_format
from headrace.formats.documents import document_format, document_schema, payload_bytes
from headrace.formats.stream import StreamArrayFormat, StreamNumpyFormat, disk_dtype, stored_elements

__all__ = ["OneStepAnElement", "kind_of", "packed_record", "ready_format", "ready_sample", "storage_of"]


class OneStepAnElement:
    """An annotated format without its pack_spans()."""

    def __init__(self, storage_format: Any) -> None:
        self.stream_dtype = storage_format.stream_dtype
        self.size, self.pack, self.unpack = storage_format.size, storage_format.pack, self._unpack

    def _unpack(self, stream: Any, shards: Any, numbers: Any, payloads: Any) -> Any:
        raise NotImplementedError("it only packs")


def kind_of(storage_format: Any) -> str:
    """ "stream", "documents" or "annotated", by the members that the format has."""
    has_spans = hasattr(storage_format, "pack_spans") or hasattr(storage_format, "unpack_spans")
    if has_spans or (hasattr(storage_format, "size") and len(signature(storage_format.unpack).parameters) == 4):
        return "annotated"
    return "stream" if hasattr(storage_format, "stream_dtype") else "documents"


def storage_of(storage_format: Any) -> type[AnyStorage]:
    """The class of storage that the format is for."""
    match kind_of(storage_format):
        case "annotated":
            return StreamWithMetaStorage
        case "stream":
            return StreamStorage
    return DocumentStorage


def ready_format(storage_format: Any) -> Any:
    """The format of Headrace's own that reads what is recorded of this one."""
    match kind_of(storage_format):
        case "annotated":
            return span_format(annotated_schema(storage_format), "the format")
        case "documents":
            return document_format(document_schema(storage_format), "the format")
    disk = disk_dtype(storage_format.stream_dtype)
    return StreamArrayFormat(disk) if disk.names is None else StreamNumpyFormat(disk)


def packed_record(storage_format: Any, record: Any) -> Any:
    """What is written of the record: Spans, an array of elements, or the payload's bytes; FieldError as in append()."""
    match kind_of(storage_format):
        case "annotated":
            return packed_spans(storage_format, record)
        case "stream":
            return stored_elements(storage_format.pack(record), disk_dtype(storage_format.stream_dtype))
    return bytes(payload_bytes(storage_format.pack(record)))


def ready_sample(own: Any, ready: Any, record: Any) -> Any:
    """What `ready` makes of the record as `own` packs it, without files."""
    packed = packed_record(own, record)
    match kind_of(own):
        case "annotated":
            payloads = [memoryview(bytearray(payload)) for payload in packed.payloads]
            return ready.unpack_spans(packed.stream, packed.lengths, payloads)
        case "stream":
            return ready.unpack(packed, np.array([len(packed)]), np.array([0]))
    return ready.unpack(memoryview(bytearray(packed)), 0)
