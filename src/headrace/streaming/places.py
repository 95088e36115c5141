"""Where the bytes of streams are read: from a directory, from a store, or through a cache."""

import os
import stat
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from headrace.datasets import SampleDataset
from headrace.errors import OptionError
from headrace.store import CachedStore, FolderStore, LocalStore, RetryPolicy, Store, has_scheme, open_store
from headrace.store.object_places import OBJECT_SCHEMES
from headrace.streaming.stream import Stream

__all__ = ["check_hashes", "opened_stores"]

_TIMED = {*OBJECT_SCHEMES, "gcs"}  # schemes of which the longest silence of a request can be said


class _Place(NamedTuple):
    store: Store  # where the dataset lies
    cache: Path | None  # the directory of the cache that it is read through


def opened_stores(streams: Sequence[Stream], cache_limit: int | None) -> list[Store]:
    """The store that each stream's dataset is read from, in their order. Nothing is asked of any.

    cache_limit is in bytes and for all caches together: streams with one directory share what that one may hold, and
    several directories have equal shares. What is read in place takes nothing of it. OptionError for what is no place.
    """
    places = [_place(stream) for stream in streams]
    num_caches = len({os.path.realpath(place.cache) for place in places if place.cache is not None})
    share = None if cache_limit is None else cache_limit // max(1, num_caches)
    return [
        place.store if place.cache is None else CachedStore(place.store, place.cache, share, verify=True)
        for place in places
    ]


def _place(stream: Stream) -> _Place:
    remote, local = stream.remote, stream.local
    if remote is None:
        assert local is not None  # Stream refuses to have neither
        return _Place(_split(_directory(local, "local"), stream), None)
    if isinstance(remote, Store):
        return _Place(_split(remote, stream), None if local is None else _cache_at(local))
    if has_scheme(remote):
        store = _split(_opened(str(remote), stream), stream)
        return _Place(store, _own_folder(str(remote)) if local is None else _cache_at(local))
    directory = _directory(remote, "remote")
    cache = None if local is None else _cache_at(local)
    if cache is not None and os.path.realpath(cache) == os.path.realpath(directory.root):
        cache = None
    return _Place(_split(directory, stream), cache)


def _directory(place: str | Path, option: str) -> LocalStore:
    try:
        return LocalStore(place)
    except ValueError as error:
        raise OptionError(option, str(place), f"a directory ({error})") from None


def _cache_at(local: str | Path) -> Path:
    """The directory for a cache, which may be made later; OptionError where something else is in its way."""
    root = _directory(local, "local").root
    there = next(place for place in (root, *root.parents) if os.path.lexists(place))
    if os.path.exists(there) and not os.path.isdir(there):
        raise OptionError("local", str(local), f"a directory for the cache, and {there} is a file")
    if not os.path.exists(there):
        raise OptionError("local", str(local), f"a directory for the cache, and {there} is a link to nothing")
    return root


def _opened(url: str, stream: Stream) -> Store:
    retry = None if stream.download_retry is None else RetryPolicy(tries=stream.download_retry + 1)
    options: dict[str, Any] = {}
    if stream.download_timeout is not None and url.partition(":")[0].lower() in _TIMED:
        options["request_timeout_s"] = stream.download_timeout
    try:
        return open_store(url, retry=retry, **options)
    except OptionError as error:
        raise OptionError("remote", error.value, error.expected) from None


def _split(store: Store, stream: Stream) -> Store:
    """The folder of the store that the stream's split is."""
    if not stream.split:
        return store
    return LocalStore(store.root / stream.split) if type(store) is LocalStore else FolderStore(store, stream.split)


def _own_folder(url: str) -> Path:
    """A directory for a cache of what is below url, in a folder that belongs to this user alone."""
    top = Path(tempfile.gettempdir(), f"headrace-{os.getuid()}")
    try:
        with suppress(FileExistsError):
            os.mkdir(top, 0o700)
        found = os.lstat(top)
    except OSError as error:
        raise OptionError("local", None, f"a directory for the cache, as {top} cannot be used ({error})") from None
    if not stat.S_ISDIR(found.st_mode):
        problem = "is no directory"
    elif found.st_uid != os.getuid():
        problem = "belongs to another user"
    elif found.st_mode & 0o022:
        problem = "may be written by other users"
    else:
        return top / blake2b(url.rstrip("/").encode(errors="surrogateescape"), digest_size=12).hexdigest()
    raise OptionError("local", None, f"a directory for the cache, as {top} {problem}")


def check_hashes(streams: Sequence[Stream], samples: SampleDataset) -> None:
    """OptionError where a stream's validate_hash is none of the digests that its index has of every file.

    samples reads the streams' stores, in their order; it is opened where a stream asks for a digest.
    """
    if not any(stream.validate_hash for stream in streams):
        return
    for stream, names in zip(streams, samples.digest_names, strict=True):
        if names is not None and stream.validate_hash and stream.validate_hash not in names:
            has = f"one of {', '.join(map(repr, sorted(names)))}" if names else "None, as its files have no digests"
            raise OptionError("validate_hash", stream.validate_hash, f"{has}, for the stream {stream.name}")
