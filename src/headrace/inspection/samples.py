"""What is told of samples: as JSON, and as lines to read. Pickles and images are not decoded, but described."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from headrace.datasets import SampleDataset
from headrace.datasets.samples.dataset import opened_folder
from headrace.datasets.samples.index import MdsEntry, ShardEntry, stored_files
from headrace.datasets.samples.shard_index import ShardIndex
from headrace.errors import CorruptShardError, OptionError
from headrace.formats.mds.encodings import encoding
from headrace.inspection.images import IMAGES, image_text
from headrace.inspection.shown import ITEMS_SHOWN, SHARDS_SHOWN, printable, shown, size_text
from headrace.store import Store

__all__ = ["Samples", "opened_samples", "sample_description", "sample_lines"]

_PICKLE = "pkl"
_DIGEST_CHARS = 32


@dataclass(frozen=True)
class Samples:
    """A dataset of samples to look at."""

    index: ShardIndex
    dataset: SampleDataset  # which runs no code from the data, and needs no package to decode it

    @property
    def num_files(self) -> int:
        """Files of all shards, each in the form in which it was written."""
        return sum(len(stored_files(entry)) for entry in self.index)


def opened_samples(store: Store) -> Samples:
    """The samples there, whoever wrote them; NoDatasetError, UnfinishedDatasetError or ManifestError say why not."""
    index = opened_folder(store).index
    encodings: dict[str, int | None] = {}
    for entry in index:
        if isinstance(entry, MdsEntry):
            encodings.update(zip(entry.column_encodings, entry.column_sizes, strict=True))
    undecoded = [_Undecoded(name, size) for name, size in encodings.items() if not _is_decoded(name)]
    return Samples(index, SampleDataset(store, encodings=undecoded))


def sample_description(samples: Samples) -> dict[str, Any]:
    """dataset.describe(), every shard, and `first`, the first sample, shortened; all of it JSON.

    `first` is None where there is no sample, or where it cannot be read; `first_problem` says why then.
    """
    described = samples.dataset.describe()
    described["shards"] = [_shard(number, entry) for number, entry in enumerate(samples.index)]
    described["first"], described["first_problem"] = None, None
    if described["total_length"]:
        try:
            first = samples.dataset[0]
        except CorruptShardError as error:
            described["first_problem"] = error.problem
        else:
            columns = described["columns"]
            described["first"] = {name: _value(value, columns.get(name, "")) for name, value in first.items()}
    return described


def sample_lines(described: dict[str, Any]) -> Iterator[str]:
    """The lines that tell a description to people; the first shards stand for all of them."""
    shards = described["shards"]
    raw_bytes = sum(file["raw_bytes"] for shard in shards for file in shard["files"])
    compressed = f", {size_text(raw_bytes)} decompressed" if raw_bytes != described["total_bytes"] else ""
    facts = {
        "location": described["location"],
        "kind": described["kind"],
        "format": ", ".join(_distinct(shard["format"] for shard in shards)) or None,
        "compression": ", ".join(_distinct(shard["compression"] or "none" for shard in shards)) or None,
        "hashes": ", ".join(_distinct(", ".join(shard["hashes"]) or "none" for shard in shards)) or None,
        "samples": f"{described['total_length']:,}",
        "shards": described["num_shards"],
        "size": f"{size_text(described['total_bytes'])}{compressed}",
        "published": "yes",  # the index is there
        "fingerprint": described["fingerprint"],
        "not checked": ", ".join(described["unchecked"]) or None,
    }
    yield from (f"{name:<14}{printable(str(value))}" for name, value in facts.items() if value is not None)
    yield from _column_lines(described)
    yield from _shard_lines(shards)


def _column_lines(described: dict[str, Any]) -> Iterator[str]:
    columns, first = described["columns"], described["first"] or {}
    if not columns:
        return
    name_width, encoding_width = (max(map(len, [*texts, "encoding"])) for texts in (columns, columns.values()))
    told = "" if described["first"] is None else "first sample"
    yield f"\n{'column':<{name_width}}  {'encoding':<{encoding_width}}  {told}".rstrip()
    for name, kind in columns.items():
        value = _quoted(first[name], kind) if name in first else ""
        yield f"{printable(name):<{name_width}}  {printable(kind):<{encoding_width}}  {value}".rstrip()
    if described["first_problem"]:
        problem = printable(described["first_problem"])
        yield f"the first sample cannot be read: {problem}; `headrace verify` tells more"


def _shard_lines(shards: list[dict[str, Any]]) -> Iterator[str]:
    if not shards:
        return
    digest = next(iter(_distinct(name for shard in shards for name in shard["hashes"])), "digest")
    yield f"\n{'shard':>7} {'samples':>15} {'bytes':>15}  {printable(digest):<{_DIGEST_CHARS}}  file"
    for shard in shards[:SHARDS_SHOWN]:
        for file in shard["files"]:
            found = file["hashes"].get(digest, "?")
            text = found if len(found) <= _DIGEST_CHARS else f"{found[: _DIGEST_CHARS - 1]}…"
            line = (
                f"{shard['shard']:>7} {shard['length']:>15,} {file['bytes']:>15,}  {printable(text):<{_DIGEST_CHARS}}"
            )
            yield f"{line}  {printable(file['name'])}"
    if len(shards) > SHARDS_SHOWN:
        yield f"and {len(shards) - SHARDS_SHOWN} more shards; --json shows them all"


def _shard(number: int, entry: ShardEntry) -> dict[str, Any]:
    files = [
        {"name": stored.basename, "bytes": stored.bytes, "raw_bytes": raw.bytes, "hashes": stored.hashes}
        for raw, compressed in stored_files(entry)
        for stored in (compressed or raw,)
    ]
    return {
        "shard": number,
        "length": entry.samples,
        "format": entry.format,
        "compression": entry.compression,
        "hashes": list(entry.hashes),
        "files": files,
    }


def _distinct(values: Iterator[str]) -> list[str]:
    return list(dict.fromkeys(values))


def _is_decoded(name: str) -> bool:
    if name == _PICKLE or name in IMAGES:
        return False
    try:
        encoding(name)
    except OptionError:  # one of the writer's own
        return False
    return True


class _Undecoded:
    """Stands for an encoding: its values are the bytes that are stored."""

    def __init__(self, name: str, size: int | None) -> None:
        self.name, self.size = name, size

    def encode(self, value: Any) -> NoReturn:
        raise NotImplementedError

    def decode(self, data: memoryview) -> bytes:
        return bytes(data)


def _value(value: Any, kind: str) -> Any:
    """The value of a column of this encoding, as JSON of a size to look at."""
    if kind in IMAGES and isinstance(value, bytes):
        return image_text(value, kind) or shown(value)
    if isinstance(value, np.ndarray):
        more = ", …" if value.size > ITEMS_SHOWN else ""
        shape = " x ".join(map(str, value.shape))
        return f"{shape} {value.dtype}: {', '.join(map(str, value.flat[:ITEMS_SHOWN]))}{more}"
    return shown(value.item() if isinstance(value, np.generic) else value)


def _quoted(value: Any, kind: str) -> str:
    """The shortened value on one line: text is quoted where it is the value itself, and not a description of it."""
    return repr(value) if isinstance(value, str) and kind in ("str", "json") else printable(str(value))
