"""What is told of streams, documents and streams with metadata: as JSON, and as lines to read."""

from collections.abc import Iterator
from typing import Any

from headrace.datasets import DocumentStorage, StreamWithMetaStorage
from headrace.datasets.kinds import AnyStorage
from headrace.datasets.payloads import DATA, payload_count
from headrace.formats.annotated import SpanNumpyFormat, span_format
from headrace.formats.documents import DocumentBytesFormat, DocumentFormat, document_format, item_bytes
from headrace.inspection.shown import ITEMS_SHOWN, SHARDS_SHOWN, shown, size_text
from headrace.manifest import JsonType, Manifest

__all__ = ["shard_description", "shard_lines", "token_counts"]


def shard_description(storage: AnyStorage) -> dict[str, Any]:
    """storage.describe(), every shard, and `first`, how the dataset begins, shortened; all of it JSON.

    Documents add `first_length`, in bytes or elements, and `num_elements` if they are arrays; streams with metadata
    `num_payloads`. `first` is None where there is nothing, or no record of what the elements are.
    """
    manifest = storage.open().manifest
    described = storage.describe()
    described["shards"] = [
        {
            "shard": number,
            "length": shard.length if shard.length >= 0 else None,
            "files": [{"name": f.name, "bytes": f.bytes, "xxh3_128": f.xxh3_128 or None} for f in shard.files],
        }
        for number, shard in enumerate(manifest.shards)
    ]
    described["first"] = None
    match storage:
        case DocumentStorage():
            described |= _of_documents(storage, manifest)
        case StreamWithMetaStorage():
            described["num_payloads"] = _num_payloads(manifest)
            if described["total_length"]:
                described["first"] = _first_spans(storage, manifest)
        case _ if described["total_length"]:
            with storage.sync_reader() as reader:
                described["first"] = shown(reader.read(0, min(ITEMS_SHOWN, reader.total_length)))
    return described


def shard_lines(described: dict[str, Any]) -> Iterator[str]:
    """The lines that tell a description to people; the first shards stand for all of them."""
    length = described["total_length"]
    if described["kind"] == DocumentStorage.kind:
        counts = {"documents": length, "elements": described.get("num_elements")}
    else:
        counts = {"elements": length, "payloads": described.get("num_payloads")}
    counted = next(iter(counts))
    facts = {
        "location": described["location"],
        "kind": described["kind"],
        **_schema_facts(described["kind"], described["dtype"]),
        **{name: None if count is None else f"{count:,}" for name, count in counts.items()},
        "shards": described["num_shards"],
        "size": size_text(described["total_bytes"]),
        "published": "yes" if described["published"] else "no",
        "fingerprint": described["fingerprint"],
        "metadata": described["metadata"] or None,
        "not checked": ", ".join(described["unchecked"]) or None,
        "begins": _beginning(described),
    }
    yield from (f"{name:<14}{value}" for name, value in facts.items() if value is not None)
    yield f"\n{'shard':>7} {counted:>15} {'bytes':>15}  {'XXH3-128':<32}  file"
    for shard in described["shards"][:SHARDS_SHOWN]:
        for file in shard["files"]:
            length = "?" if shard["length"] is None else f"{shard['length']:,}"
            digest = file["xxh3_128"] or "?"
            yield f"{shard['shard']:>7} {length:>15} {file['bytes']:>15,}  {digest:<32}  {file['name']}"
    if len(described["shards"]) > SHARDS_SHOWN:
        yield f"and {len(described['shards']) - SHARDS_SHOWN} more shards; --json shows them all"


def token_counts(storage: AnyStorage, id_bytes: int) -> str:
    """How many tokens of id_bytes bytes each a published dataset holds, and of how many documents if it knows them."""
    manifest = storage.open().manifest
    match storage:
        case DocumentStorage():
            num_tokens, num_documents = _payload_bytes(manifest) // id_bytes, manifest.total_length
        case StreamWithMetaStorage():
            num_tokens, num_documents = manifest.total_length, _num_payloads(manifest)
        case _:
            return f"{manifest.total_length:,} tokens"
    return f"{num_tokens:,} tokens in {num_documents:,} documents"


def _of_documents(storage: DocumentStorage, manifest: Manifest) -> dict[str, Any]:
    storage_format = document_format(manifest.dtype, storage.store.location)
    # Its own count: index files tell it where nothing is recorded, too.
    with DocumentStorage(storage.storage_dir, DocumentBytesFormat()).sync_reader() as reader:
        found: dict[str, Any] = {"total_length": reader.total_length, "first_length": None}
        if reader.total_length:
            data = reader.read(0)
            found["first"] = shown(_decoded(data, storage_format))
            found["first_length"] = len(data) // item_bytes(storage_format)
    if _is_element_type(manifest.dtype):
        found["num_elements"] = _payload_bytes(manifest) // item_bytes(storage_format)
    return found


def _first_spans(storage: StreamWithMetaStorage, manifest: Manifest) -> dict[str, Any]:
    found = span_format(manifest.dtype, storage.store.location)
    undecoded = SpanNumpyFormat(found.stream_dtype, DocumentBytesFormat())
    with StreamWithMetaStorage(storage.storage_dir, undecoded).sync_reader() as reader:
        sample = reader.read(0, min(ITEMS_SHOWN, reader.total_length))
    sample["payloads"] = [_decoded(data, found.payload) for data in sample["payloads"]]
    return {name: shown(values) for name, values in sample.items()}


def _decoded(data: bytes, storage_format: DocumentFormat) -> Any:
    """The payload decoded, or as it is where that fails."""
    try:
        return storage_format.unpack(memoryview(data), 0)
    except ValueError:  # a pickle, which the recorded format refuses; or damaged, which `headrace verify` tells
        return data


def _num_payloads(manifest: Manifest) -> int:
    return sum(map(payload_count, manifest.shards))


def _payload_bytes(manifest: Manifest) -> int:
    return sum(file.bytes for shard in manifest.shards for file in shard.files if file.name.endswith(DATA))


def _beginning(described: dict[str, Any]) -> str | None:
    first, length = described["first"], described.get("first_length")
    if described["kind"] != DocumentStorage.kind or length is None:
        return None if first is None else str(first)
    if _is_element_type(described["dtype"]):
        return f"{first}" + (f" and {length - ITEMS_SHOWN:,} more elements" if length > ITEMS_SHOWN else "")
    # A string of JSON may hold line breaks; what is there of bytes is a repr already.
    return repr(first) if described["dtype"] == {"encoding": "json"} else str(first)


def _schema_facts(kind: str, schema: JsonType) -> dict[str, JsonType]:
    match kind, schema:
        case DocumentStorage.kind, _:
            return {"documents of": _payload_text(schema)}
        case StreamWithMetaStorage.kind, {"elements": elements, "payloads": payloads}:
            return {"element type": elements, "payloads of": _payload_text(payloads)}
    return {"element type": schema}


def _payload_text(schema: JsonType) -> JsonType:
    return schema.get("encoding") if isinstance(schema, dict) else schema


def _is_element_type(schema: JsonType) -> bool:
    return schema is not None and not isinstance(schema, dict)
