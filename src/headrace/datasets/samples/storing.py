"""One shard's way from samples in memory to files that an index may name: compressed, hashed, stored, noted."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.datasets.samples.index import CsvEntry, FileEntry, JsonEntry, MdsEntry, ShardEntry, TsvEntry, XsvEntry
from headrace.datasets.samples.output import Output
from headrace.datasets.samples.pending import RawFile, TakenSamples
from headrace.datasets.samples.progress import ShardProgress
from headrace.datasets.samples.sample_formats import columns_of
from headrace.formats.compression import Codec
from headrace.formats.digests import Digests, digests
from headrace.formats.sample_shards import SampleShards, ShardOptions

__all__ = ["Storing", "other_settings"]

_ENTRIES: dict[str, Any] = {"mds": MdsEntry, "json": JsonEntry, "csv": CsvEntry, "tsv": TsvEntry, "xsv": XsvEntry}


class Storing:
    """Stores shards of one format; `entries` has those that are stored, in order.

    It knows nothing of the writer, so that a writer that is dropped is gone, whatever its threads do.
    """

    def __init__(
        self,
        shards: SampleShards,
        options: ShardOptions,
        codec: Codec | None,
        output: Output,
        *,
        entries: list[ShardEntry],
        progress: ShardProgress,
    ) -> None:
        self._shards = shards
        self._options = options
        self._codec = codec
        self._output = output
        self._progress = progress
        self.entries = entries

    def store(self, shard: int, sizes: NDArray[np.int64], samples: TakenSamples) -> tuple[int, ShardEntry]:
        """Store the files of a shard; runs on a thread. The entry for the index comes back."""
        self._output.check()
        name = f"shard.{shard:05d}.{self._shards.format}"
        raw = RawFile(self._shards.head(sizes), samples)
        try:
            files = {f"{form}_data": entry for form, entry in self._store(name, raw)}
        finally:
            raw.close()
        if (meta := self._shards.meta(sizes)) is not None:
            files |= {f"{form}_meta": entry for form, entry in self._store(f"{name}.meta", RawFile(meta))}
        return shard, _entry(self._shards, self._options, len(sizes), files)

    def note(self, stored: tuple[int, ShardEntry]) -> None:
        """Note a stored shard; in order, on one thread."""
        shard, entry = stored
        self._output.commit(shard, entry)
        self.entries.append(entry)
        self._progress.stored(entry.samples)

    def _store(self, name: str, raw: RawFile) -> list[tuple[str, FileEntry | None]]:
        found = Digests(self._options.hashes)
        if self._options.hashes:
            for piece in raw.pieces():
                found.update(piece)
        entry = FileEntry(name, raw.num_bytes, found.hex())
        if self._codec is None:
            self._output.put_raw(name, raw)
            return [("raw", entry), ("zip", None)]
        data = self._codec.compress(raw.whole())
        zip_name = f"{name}.{self._codec.extension}"
        self._output.put(zip_name, data)
        return [("raw", entry), ("zip", FileEntry(zip_name, len(data), digests(self._options.hashes, data)))]


def other_settings(first: ShardEntry, shards: SampleShards, options: ShardOptions) -> dict[str, tuple[object, object]]:
    """Option -> (as the first shard was written, as it is asked for), where the two differ."""
    files: dict[str, FileEntry | None] = {"raw_data": first.raw_data, "zip_data": None}
    if shards.has_meta:
        files |= {"raw_meta": first.raw_data, "zip_meta": None}
    asked = _entry(shards, options, 0, files)
    found: dict[str, tuple[object, object]] = {"columns": (columns_of(first), columns_of(asked))}
    names = ("format", "newline", "separator", *options._fields)  # that of the writer decides the first three
    found |= {name: (getattr(first, name, None), getattr(asked, name, None)) for name in names}
    return {name: pair for name, pair in found.items() if pair[0] != pair[1]}


def _entry(
    shards: SampleShards, options: ShardOptions, num_samples: int, files: dict[str, FileEntry | None]
) -> ShardEntry:
    entry: ShardEntry = _ENTRIES[shards.format](
        version=2, samples=num_samples, **options._asdict(), **files, **shards.schema()
    )
    return entry
