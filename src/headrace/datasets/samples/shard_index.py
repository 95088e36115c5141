"""An index in memory: how many samples each shard has, in columns, and what else it says when that is asked for.

An index of a hundred thousand shards has tens of megabytes. So only an outline of each shard is decoded at opening, a
few thousand at a time, and checked as columns; an entry is decoded, and checked whole, when its shard is first used.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Literal

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.datasets.samples.index import (
    MOST_BYTES,
    MOST_SAMPLES,
    VERSION,
    ShardEntry,
    decoded_entry,
    is_digested,
)
from headrace.errors import ManifestError, ManifestVersionError

__all__ = ["ShardIndex", "read_index"]

_CHUNK = 4096  # shards
# What a path has that leaves its root, in names that are joined by slashes: empty parts, "." and "..", "\\" and NUL.
# Looking for these is quick; a name that has one of them may still be good.
_SUSPICIOUS = ("\\", "\0", "//", "/.")


class _Top(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    shards: list[msgspec.Raw]


class _Versioned(msgspec.Struct):
    version: Any = None


class _File(msgspec.Struct, gc=False):
    basename: str
    bytes: int


class _Outline(msgspec.Struct, gc=False):
    format: Literal["mds", "json", "csv", "tsv", "xsv"]
    version: Literal[2]
    samples: int
    raw_data: _File
    compression: str | None = None
    zip_data: _File | None = None
    raw_meta: _File | None = None
    zip_meta: _File | None = None


class _Digests(msgspec.Struct, gc=False):
    hashes: dict[str, str] = {}


class _DigestedShard(msgspec.Struct, gc=False):
    raw_data: _Digests
    zip_data: _Digests | None = None
    raw_meta: _Digests | None = None
    zip_meta: _Digests | None = None


class _Outlines(msgspec.Struct):
    shards: list[_Outline]


_decode_digested = msgspec.json.Decoder(_DigestedShard).decode
_decode_outlines = msgspec.json.Decoder(_Outlines).decode


class ShardIndex:
    """What index.json says. Opening checks the sizes and names of all shards; the rest of a shard its first use."""

    def __init__(self, raw: bytes, where: str) -> None:
        """Decodes raw; ManifestError or ManifestVersionError, with `where`, for what is no index that makes sense."""
        self.where = where
        self._texts = _shard_texts(raw, where)
        self.samples = np.zeros(len(self._texts), np.int64)  # of each shard
        self.stored_bytes = 0  # of all shards, in the form in which they were written
        names: list[str] = []
        for begin in range(0, len(self._texts), _CHUNK):
            outlines = self._outlines(begin, raw)
            self.samples[begin : begin + len(outlines)] = [outline.samples for outline in outlines]
            self.stored_bytes += sum([file.bytes for file in _stored(outlines)])
            names += [outline.raw_data.basename for outline in outlines]
        if len(set(names)) < len(names):
            self._refuse_repeated(names)
        self.digest = xxhash.xxh3_128_hexdigest(raw)  # names this content

    def __len__(self) -> int:
        return len(self._texts)

    @property
    def num_samples(self) -> int:
        """Samples of all shards."""
        return int(self.samples.sum())

    @cached_property
    def num_undigested(self) -> int:
        """Shards of which nothing but sizes and structure can be checked; decodes every entry, once."""
        return sum(not is_digested(entry) for entry in self)

    @cached_property
    def digest_names(self) -> frozenset[str] | None:
        """The names of the digests that every stored file has; None where there is no shard."""
        common: frozenset[str] | None = None
        for number, text in enumerate(self._texts):
            try:
                shard = _decode_digested(text)
            except msgspec.DecodeError:
                self.entry(number)  # says what is wrong
                raise
            for file in (shard.zip_data or shard.raw_data, shard.zip_meta or shard.raw_meta):
                if file is not None:
                    common = frozenset(file.hashes) if common is None else common & file.hashes.keys()
        return common

    def entry(self, shard: int) -> ShardEntry:
        """What the index says of one shard; ManifestError where that makes no sense."""
        return decoded_entry(self._texts[shard], self.where, shard)

    def __iter__(self) -> Iterator[ShardEntry]:
        return (self.entry(shard) for shard in range(len(self)))

    def _outlines(self, begin: int, raw: bytes) -> list[_Outline]:
        """The outlines of a chunk of shards, checked."""
        texts = self._texts[begin : begin + _CHUNK]
        # Where one chunk is all, the index is read once more as it is: what saves time is not to copy it.
        text = raw if len(texts) == len(self._texts) else b'{"version":2,"shards":[%b]}' % b",".join(texts)
        try:
            outlines = _decode_outlines(text).shards
            is_plain = _are_plain(outlines)
        except (msgspec.DecodeError, RecursionError, OverflowError):
            is_plain = False
        if not is_plain:
            for shard in range(begin, begin + len(texts)):
                self.entry(shard)  # one of them says what is wrong, unless it only looked so
            outlines = _decode_outlines(text).shards
        return outlines

    def _refuse_repeated(self, names: Sequence[str]) -> None:
        # What merging parts of equal names leaves behind: some samples twice, others never.
        seen: dict[str, int] = {}
        for shard, name in enumerate(names):
            if (other := seen.setdefault(name, shard)) != shard:
                raise ManifestError(self.where, f"shards {other} and {shard} are the same file, {name!r}")


def read_index(raw: bytes, where: str) -> list[ShardEntry]:
    """Every entry of the index; ManifestError or ManifestVersionError, with `where`, for what is none."""
    return list(ShardIndex(raw, where))


def _are_plain(outlines: Sequence[_Outline]) -> bool:
    """Whether nothing in the outlines is out of the ordinary, so that no closer look is needed."""
    raws = [outline.raw_data for outline in outlines]
    zips = [outline.zip_data for outline in outlines if outline.zip_data]
    metas = [file for outline in outlines for file in (outline.raw_meta, outline.zip_meta) if file]
    files = raws + zips + metas
    names = [file.basename for file in files]
    joined = f"/{'/'.join(names)}/"
    if any(part in joined for part in _SUSPICIOUS) or len(set(names)) < len(names):
        return False
    num_compressed = len(outlines) - [outline.compression for outline in outlines].count(None)
    if num_compressed != len(zips) or len(zips) not in (0, len(outlines)):
        return False
    samples = np.array([outline.samples for outline in outlines], np.int64)
    sizes = np.array([file.bytes for file in files], np.int64)
    tables = np.array([(outline.raw_meta or outline.raw_data).bytes for outline in outlines], np.int64)
    are_in_range = _all_in(samples, MOST_SAMPLES) and _all_in(sizes, MOST_BYTES)
    return are_in_range and bool(np.all((tables >= 4 * (samples + 2)) | (samples == 0)))


def _all_in(numbers: NDArray[np.int64], most: int) -> bool:
    return not len(numbers) or (int(numbers.min()) >= 0 and int(numbers.max()) < most)


def _stored(outlines: Sequence[_Outline]) -> list[_File]:
    """The files that a writer stores: compressed ones if there are, else the raw ones."""
    files = [outline.zip_data or outline.raw_data for outline in outlines]
    return files + [meta for outline in outlines if (meta := outline.zip_meta or outline.raw_meta) is not None]


def _shard_texts(raw: bytes, where: str) -> list[msgspec.Raw]:
    if not raw:
        raise ManifestError(where, "is empty (0 bytes)")
    try:
        return _top(raw, where).shards
    except (msgspec.DecodeError, RecursionError) as error:
        raise ManifestError(where, f"is not the index of a dataset ({error}; {len(raw)} bytes)") from None


def _top(raw: bytes, where: str) -> _Top:
    try:
        top = msgspec.json.decode(raw, type=_Top)
    except msgspec.ValidationError:
        found = msgspec.json.decode(raw, type=_Versioned).version
        if found is not None and found != VERSION:
            raise ManifestVersionError(where, found, (VERSION,)) from None
        raise
    if top.version != VERSION:
        raise ManifestVersionError(where, top.version, (VERSION,))
    return top
