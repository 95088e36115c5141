"""What a dataset is: kind, element type, shards, counts and digests. Pure data, no I/O.

`headrace.json` (a Manifest) is the commit of a whole dataset, `.headrace/<shard>.receipt` (a Receipt) that of one
shard, `.headrace/plan.json` (a Plan) the promise which shards a job will write. All three are JSON, carry a version,
and are read strictly: another version or an unknown field is refused. docs/formats/manifest.md specifies them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
import xxhash

from headrace.errors import ManifestError, ManifestVersionError

__all__ = [
    "VERSION",
    "FileRecord",
    "Manifest",
    "Objects",
    "Plan",
    "Receipt",
    "ShardRecord",
    "dtype_from_json",
    "dtype_to_json",
    "json_object",
]

VERSION = 1

_MOST = 1 << 62  # elements or bytes; sums of what is below stay within int64

JsonType = Any  # a dtype as JSON: "<u2", or [["tokens", "<u2"], ["vec", "<f2", [3]], ...]


class FileRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of a shard."""

    name: str
    bytes: int
    xxh3_128: str


class ShardRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One shard: its length in elements (documents for document datasets) and its files."""

    length: int
    files: tuple[FileRecord, ...]

    def file(self, suffix: str) -> FileRecord:
        """The file whose name ends so; ManifestError when the shard is recorded without it."""
        for file in self.files:
            if file.name.endswith(f".{suffix}"):
                return file
        raise ManifestError(f"{self.files[0].name}", f"its shard is recorded without its file .{suffix}")


class Objects(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which objects of a store without renames a receipt was made for."""

    store: str  # a digest of its location: at a copy of the dataset the versions mean nothing
    versions: tuple[str, ...]  # in the order of the receipt's files

    @classmethod
    def of(cls, location: str, versions: Sequence[str]) -> "Objects":
        """These versions, at this location."""
        return cls(_store_digest(location), tuple(versions))

    def at(self, location: str) -> tuple[str, ...] | None:
        """The versions, if they were recorded at this location; else None."""
        return self.versions if self.store == _store_digest(location) else None


class Receipt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The commit of one shard. A shard without a valid receipt does not exist."""

    version: int
    kind: str
    dtype: JsonType
    shard: int
    length: int
    files: tuple[FileRecord, ...]
    attempt: str
    generation: int
    task: str | None = None
    objects: Objects | msgspec.UnsetType = msgspec.UNSET  # absent where files are renamed to their names

    @property
    def record(self) -> ShardRecord:
        """What the manifest keeps of this receipt: the data, not who wrote it."""
        return ShardRecord(self.length, self.files)

    def to_json(self) -> bytes:
        """The bytes of the receipt file."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, raw: bytes, where: str) -> "Receipt":
        """The receipt in raw; ManifestError names `where` when it is damaged."""
        receipt = _decode(raw, cls, where)
        _check_shard(where, receipt.shard, receipt.length, receipt.files)
        if receipt.generation < 0:
            raise ManifestError(where, f"generation {receipt.generation} is negative")
        if receipt.objects is not msgspec.UNSET and len(receipt.objects.versions) != len(receipt.files):
            count = len(receipt.objects.versions)
            raise ManifestError(where, f"has {len(receipt.files)} files, but versions of {count} objects")
        return receipt


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which task writes which shard: tasks[k] is the id of the task of shard k."""

    version: int
    tasks: tuple[str, ...]

    def to_json(self) -> bytes:
        """The bytes of the plan file."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, raw: bytes, where: str) -> "Plan":
        """The plan in raw; ManifestError names `where` when it is damaged."""
        return _decode(raw, cls, where)


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole dataset. Equal data gives equal bytes, whoever wrote it and however often."""

    version: int
    kind: str
    dtype: JsonType
    num_shards: int
    total_length: int
    total_bytes: int
    fingerprint: str
    shards: tuple[ShardRecord, ...]
    metadata: dict[str, Any] = {}

    @classmethod
    def of(
        cls, kind: str, dtype: JsonType, shards: Sequence[ShardRecord], metadata: Mapping[str, Any] | None = None
    ) -> "Manifest":
        """The manifest of these shards; totals and fingerprint are computed."""
        records = tuple(shards)
        return cls(
            version=VERSION,
            kind=kind,
            dtype=dtype,
            num_shards=len(records),
            total_length=sum(shard.length for shard in records),
            total_bytes=sum(file.bytes for shard in records for file in shard.files),
            fingerprint=_fingerprint(kind, dtype, records),
            shards=records,
            metadata=dict(metadata or {}),
        )

    def to_json(self) -> bytes:
        """The bytes of headrace.json."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"

    @classmethod
    def from_json(cls, raw: bytes, where: str) -> "Manifest":
        """The manifest in raw, checked against itself; ManifestError names `where` when it is damaged."""
        manifest = _decode(raw, cls, where)
        for number, shard in enumerate(manifest.shards):
            _check_shard(where, number, shard.length, shard.files)
        if manifest.total_length >= _MOST or manifest.total_bytes >= _MOST:
            raise ManifestError(where, f"{manifest.total_length} elements in {manifest.total_bytes} bytes are too many")
        again = cls.of(manifest.kind, manifest.dtype, manifest.shards, manifest.metadata)
        for field in ("num_shards", "total_length", "total_bytes", "fingerprint"):
            found, expected = getattr(manifest, field), getattr(again, field)
            if found != expected:
                raise ManifestError(where, f"{field} is {found!r}, but its shards give {expected!r}; it was damaged")
        return manifest


def dtype_to_json(dtype: np.dtype[Any]) -> JsonType:
    """dtype as JSON, padding and nesting included (NumPy's descr, with lists for tuples).

    Raises ValueError for what cannot be stored: Python objects, field titles, fields that overlap or lie out of order.
    """
    if dtype.hasobject:
        raise ValueError(f"element type {dtype} holds Python objects, which are addresses; store numbers or bytes")
    if dtype.itemsize == 0:
        raise ValueError(f"element type {dtype} has no bytes")
    try:
        described = msgspec.json.decode(msgspec.json.encode(np.lib.format.dtype_to_descr(dtype)))
        same = dtype_from_json(described, "the element type") == dtype
    except ValueError:
        same = False
    if not same:
        raise ValueError(f"element type {dtype} cannot be described in a manifest (titles, or fields out of order)")
    return described


def dtype_from_json(described: JsonType, where: str) -> np.dtype[Any]:
    """The dtype that dtype_to_json described; ManifestError when it is none."""
    try:
        dtype = np.lib.format.descr_to_dtype(_tuples(described))
    except (TypeError, ValueError, KeyError, SyntaxError, RecursionError) as error:
        raise ManifestError(where, f"dtype {described!r} is not an element type ({error})") from None
    if dtype.hasobject or dtype.itemsize == 0:
        raise ManifestError(where, f"dtype {described!r} is not an element type that can be stored")
    return dtype


def json_object(value: Mapping[str, Any]) -> dict[str, Any]:
    """value as it comes back from JSON: lists for tuples, strings for keys. ValueError for what JSON cannot hold."""
    try:
        decoded = msgspec.json.decode(msgspec.json.encode(dict(value)))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"metadata must be JSON: numbers, strings, lists and mappings ({error})") from None
    return dict(decoded)


def _store_digest(location: str) -> str:
    return xxhash.xxh3_64_hexdigest(location.rstrip("/").encode(errors="surrogateescape"))


def _tuples(described: JsonType) -> Any:
    if isinstance(described, str):
        return described
    fields = []
    for entry in described:
        if not isinstance(described, list) or not isinstance(entry, list):
            raise TypeError(f"field {entry!r}")  # a word of two letters would unpack as a name and a type
        name, kind, *shape = entry
        if not isinstance(name, str) or len(shape) > 1:
            raise TypeError(f"field {entry!r}")
        fields.append((name, _tuples(kind), *(tuple(int(side) for side in sides) for sides in shape)))
    return fields


def _fingerprint(kind: str, dtype: JsonType, shards: tuple[ShardRecord, ...]) -> str:
    # Metadata stays out: a directory that has receipts only must have the fingerprint of its later manifest.
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode([VERSION, kind, dtype, shards]))


class _Versioned(msgspec.Struct):
    version: Any = None


_T = TypeVar("_T", Manifest, Receipt, Plan)


def _decode(raw: bytes, kind: type[_T], where: str) -> _T:
    if not raw:
        raise ManifestError(where, "is empty (0 bytes)")
    try:
        version = msgspec.json.decode(raw, type=_Versioned).version
    except (msgspec.DecodeError, RecursionError) as error:
        raise ManifestError(where, f"is not the JSON that Headrace writes ({error}; {len(raw)} bytes)") from None
    if version != VERSION or isinstance(version, bool):
        raise ManifestVersionError(where, version, (VERSION,))
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ManifestError(where, f"is not a {kind.__name__.lower()} ({error})") from None


def _check_shard(where: str, shard: int, length: int, files: tuple[FileRecord, ...]) -> None:
    if shard < 0 or not 0 <= length < _MOST or not files:
        raise ManifestError(where, f"shard {shard} with length {length} and {len(files)} files makes no sense")
    for file in files:
        # Names come from disk: one that is not exactly this shard's own could reach another file.
        if not file.name.startswith(f"{shard:07d}.") or "/" in file.name or "\\" in file.name or "\0" in file.name:
            raise ManifestError(where, f"file name {file.name!r} does not belong to shard {shard}")
        if not 0 <= file.bytes < _MOST:
            raise ManifestError(where, f"file {file.name!r} has {file.bytes} bytes")
