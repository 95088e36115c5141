"""Options as users of Streaming write them: where a dataset goes, and sizes such as "64mb"."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from headrace.errors import OptionError
from headrace.formats.sample_shards import LARGEST_OFFSET
from headrace.store import Store
from headrace.store.open import open_store

__all__ = ["Place", "checked_options", "opened_outputs", "opened_place", "size_limit_bytes"]

Place = str | Path | Store

_UNITS = {"": 0, "b": 0, "k": 1, "kb": 1, "kib": 1, "m": 2, "mb": 2, "mib": 2, "g": 3, "gb": 3, "gib": 3}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-z]*)\s*", re.IGNORECASE)
_SIZES = "bytes below 4 GiB: a number, or one with b, kb, mb or gb (by 1024s) such as '64mb'; None or 0 for no limit"


def checked_options(given: Mapping[str, Any], known: Iterable[str]) -> None:
    """OptionError for an option that there is not, and for values of another type that would mean something else."""
    if unknown := set(given) - set(known):
        raise OptionError(min(unknown), given[min(unknown)], f"one of the options {', '.join(sorted(known))}")
    for name in ("keep_local", "progress_bar", "exist_ok", "resume", "ignore_extra"):
        if not isinstance(given.get(name, False), bool):
            raise OptionError(name, given[name], "True or False")
    least = {"max_workers": 1, "retry": 0}
    for name in least.keys() & given.keys():
        value = given[name]
        if name == "max_workers" and value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < least[name]:
            raise OptionError(name, value, f"a whole number of at least {least[name]}")
    if given.get("exist_ok") and given.get("resume"):
        raise OptionError("resume", True, "one of exist_ok, which starts over, and resume, which goes on")


def size_limit_bytes(size_limit: int | float | str | None) -> int | None:
    """The limit in bytes, None or 0 for none; OptionError for what is no size below 4 GiB.

    It is stored as it comes back: None for the number 0, and 0 for the text "0", as Streaming does.
    """
    found: Any = size_limit
    if isinstance(size_limit, str):
        match = _SIZE.fullmatch(size_limit)
        if match is None or (unit := match[2].lower()) not in _UNITS:
            raise OptionError("size_limit", size_limit, _SIZES)
        found = float(match[1]) * 1024 ** _UNITS[unit]
    if found is None or (size_limit == 0 and not isinstance(size_limit, bool)):
        return None
    try:
        limit = int(found)
    except (TypeError, ValueError, OverflowError):
        raise OptionError("size_limit", size_limit, _SIZES) from None
    if isinstance(size_limit, bool) or not 0 <= limit <= LARGEST_OFFSET:
        raise OptionError("size_limit", size_limit, _SIZES)
    return limit


def opened_place(place: Place, option: str) -> Store:
    """The store that place is, or that the path or URL names; OptionError for anything else."""
    if isinstance(place, Store):
        return place
    if not isinstance(place, str | Path):
        raise OptionError(option, place, "a directory, a URL, a Store, or a pair (local, remote) of these")
    try:
        return open_store(place)
    except OptionError as error:
        raise OptionError(option, place, f"a directory, a Store, or a URL: {error.expected}") from None
    except ValueError as error:
        raise OptionError(option, place, f"a directory, a URL, or a Store ({error})") from None


def opened_outputs(out: Place | tuple[Place, Place], *, keep_local: bool) -> list[Store]:
    """Where the files of a dataset go, the place that counts last.

    A single place is that one. Of a pair (local, remote) the files go to remote, and with keep_local to local as well.
    """
    if isinstance(out, tuple | list):
        if len(out) != 2:
            raise OptionError("out", out, "a directory, a URL, a Store, or a pair (local, remote) of these")
        local, remote = (opened_place(place, "out") for place in out)
        return [local, remote] if keep_local else [remote]
    return [opened_place(out, "out")]
