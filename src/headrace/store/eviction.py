"""Room in a cache: files that nobody uses go, the one that was used longest ago first.

There is no counter that a crash could leave wrong, and no lock that a stopped process could keep: who wants to store a
file first makes one of its size, and then adds up what is there, the files on their way included. Of two that do so at
once, the later one sees both. So what is kept never exceeds the limit, whatever happens to the others; at worst both
find too little room.
"""

import contextlib
import os
from typing import Any, NamedTuple

from headrace.errors import OptionError
from headrace.store.cache_files import CacheFolder
from headrace.store.listing import Found, oldest_first

__all__ = ["CachedData", "cached_data", "evict", "limit_in_bytes", "pin_name", "trim"]

_FORMS = "a number of bytes that is not negative, or a size such as '500mb', '20GiB' or '1.5 TB' (by 1,024), or None"
_UNITS = {"": 0, "b": 0, "k": 1, "kb": 1, "kib": 1, "m": 2, "mb": 2, "mib": 2, "g": 3, "gb": 3, "gib": 3}
_UNITS |= {"t": 4, "tb": 4, "tib": 4, "p": 5, "pb": 5, "pib": 5}


def limit_in_bytes(limit: Any, option: str = "limit_bytes") -> int | None:
    """The limit as a number of bytes, None for none; OptionError for what is no size."""
    if limit is None:
        return None
    found: float = -1
    if isinstance(limit, str):
        text = limit.strip()
        digits = text.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
        unit = text[len(digits) :].lower()
        number = digits.strip()
        if unit in _UNITS and number.replace(".", "", 1).isdecimal() and number.isascii():
            found = int(number) * 1024 ** _UNITS[unit] if "." not in number else float(number) * 1024 ** _UNITS[unit]
    elif hasattr(type(limit), "__index__") and not isinstance(limit, bool):
        found = limit.__index__()
    if not 0 <= found < 1 << 63:
        raise OptionError(option, limit, _FORMS)
    return int(found)


def pin_name(entry_name: str) -> str:
    """The lock that readers share while the entry is mapped, and that whoever removes it takes."""
    return f"file {entry_name}"


def evict(folder: CacheFolder, limit_bytes: int, *, at_least: int = 0, partly: bool = False) -> int | None:
    """How many bytes were removed so that limit_bytes hold what is kept; None where pinned files made that impossible.

    At least so many bytes go, whatever the limit. Where it is impossible, nothing goes; with partly=True what can.
    """
    on_their_way = folder.reserved_bytes()  # first: what arrives in between counts twice, and never not at all
    parts = folder.listing.parts()
    excess = max(on_their_way + sum(part.num_bytes for part in parts) - limit_bytes, at_least)
    if excess <= 0:
        return 0
    taken: list[Found] = []
    try:
        for found, is_there in oldest_first(parts):
            if not is_there:
                excess -= found.size_bytes
            elif folder.locks.take(pin_name(found.name)):
                taken.append(found)
                excess -= found.size_bytes
            if excess <= 0:
                break
        if excess > 0 and not partly:
            return None
        return sum(found.size_bytes for found in taken if folder.discard(found.full_path))
    finally:
        for found in taken:
            folder.locks.give_back(pin_name(found.name))


class CachedData(NamedTuple):
    """What a cache keeps of one dataset."""

    dataset: str  # the folder's name
    fingerprint: str  # "" where that was not noted
    location: str  # where it was first fetched from; "" where that was not noted
    num_files: int
    num_bytes: int
    num_pinned: int  # of the files: mapped by a reader now
    used_s: float  # when a file of it was last mapped, seconds since 1970


def cached_data(folder: CacheFolder) -> list[CachedData]:
    """What the cache keeps of each dataset, what was used last first."""
    by_dataset: dict[str, list[Found]] = {}
    for found in (found for part in folder.listing.parts() for found in part.files):
        by_dataset.setdefault(found.name.partition("/")[0], []).append(found)
    kept = []
    for dataset, files in by_dataset.items():
        label = folder.labelled(dataset)
        pinned = sum(not folder.locks.is_free(pin_name(found.name)) for found in files)
        size, used_ns = sum(found.size_bytes for found in files), max(found.used_ns for found in files)
        told = label.get("fingerprint", ""), label.get("location", "")
        kept.append(CachedData(dataset, *told, len(files), size, pinned, used_ns / 1e9))
    return sorted(kept, key=lambda data: -data.used_s)


def trim(folder: CacheFolder, limit_bytes: int) -> int:
    """How many bytes were removed so that at most limit_bytes stay, or as little as readers have mapped.

    What dead processes had on their way goes too, and what was noted of datasets of which nothing is left.
    """
    removed = evict(folder, limit_bytes, partly=True) or 0
    for dataset in folder.listing.datasets():
        path = os.path.join(folder.listing.top, dataset)
        with contextlib.suppress(OSError):  # not empty: files are kept, or somebody put something there
            for part in os.listdir(path):
                os.rmdir(os.path.join(path, part))
            os.rmdir(path)
            folder.forget_label(dataset)
    return removed
