"""Reading a dataset again to see whether it is still what was written."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import xxhash

from headrace.datasets.opening import Opened
from headrace.datasets.round_trips import FILES_AT_ONCE, at_once
from headrace.errors import NotFoundError, StoreError
from headrace.manifest import FileRecord, ShardRecord
from headrace.store import Store

__all__ = ["Damage", "damaged_files"]


class Damage(NamedTuple):
    """One file that is not what its record says."""

    shard: int
    file: str
    problem: str
    elements: tuple[int, int]  # global range of its shard, exclusive; documents where the dataset counts those


def damaged_files(
    store: Store,
    opened: Opened,
    shard_problems: Callable[[Opened, ShardRecord], Iterable[tuple[str, str]]],
    shard_length: Callable[[Opened, ShardRecord], int],
) -> list[Damage]:
    """Every damaged file, in order of shards; [] when all is well. Reads every byte that has a digest.

    shard_problems gives (file, problem) where the files of a shard, each of them good, do not fit one another or the
    shard's length; shard_length gives that as far as it is known, else 0.
    """
    shards = opened.manifest.shards
    stops = np.cumsum([shard_length(opened, shard) for shard in shards], dtype=np.int64).tolist()
    spans = list(zip([0, *stops], stops, strict=False))

    def damaged(number: int) -> list[Damage]:
        shard = shards[number]
        found = [(file.name, problem) for file in shard.files if (problem := _problem(store, file)) is not None]
        return [Damage(number, *each, spans[number]) for each in found or shard_problems(opened, shard)]

    if store.capabilities.remote:
        return [damage for found in at_once(damaged, range(len(shards)), FILES_AT_ONCE) for damage in found]
    return [damage for number in range(len(shards)) for damage in damaged(number)]


def _problem(store: Store, file: FileRecord) -> str | None:
    try:
        found = store.head(file.name).size_bytes
        if found != file.bytes:
            return f"has {found} bytes, expected {file.bytes}"
        if not file.xxh3_128:
            return None
        digest = xxhash.xxh3_128()
        for piece in store.pieces(file.name):
            digest.update(piece)
    except NotFoundError:
        return "is missing"
    except StoreError as error:
        return f"cannot be read: {error}"
    if digest.hexdigest() != file.xxh3_128:
        return f"has XXH3-128 {digest.hexdigest()}, expected {file.xxh3_128}: its content was changed"
    return None
