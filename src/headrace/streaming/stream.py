"""A stream: one dataset of samples, where it lies, and how much of it an epoch has."""

import copy
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from headrace.errors import OptionError, PathOutsideRootError
from headrace.planning.stream_portions import Portion
from headrace.store import Store, checked_path, has_scheme
from headrace.views.options import whole_number

__all__ = ["Stream", "streams_of", "without_secrets"]

T = TypeVar("T")

_AUTHORITY = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*:/+)([^/]*)(.*)", re.DOTALL)
_LONGEST_S = 86_400.0


class Stream:
    """One dataset of a StreamingDataset.

    | argument | meaning |
    | --- | --- |
    | remote | a path, a URL or a Store; None: `local` is the dataset |
    | local | a directory of this machine: the dataset, or with `remote` a cache for it |
    | split | a folder in remote, or in local where that is the dataset |
    | proportion | share of an epoch, relative to the other streams' |
    | repeat | samples an epoch, as a multiple of the stream's size: 0.5 is half of it, 2 all of it twice |
    | choose | samples an epoch |
    | download_retry | how often a request that failed is tried again; 0: never |
    | download_timeout | seconds that a request may go without a byte coming |
    | validate_hash | a digest that the index must have of all files |
    | keep_zip | accepted: of what is compressed, the cache keeps the decompressed form |

    At most one of proportion, repeat and choose; either all streams have a proportion, or none. What is None is the
    StreamingDataset's. Of a path without `local` the dataset is read where it is; of a URL without `local` through a
    cache that this user has in the temporary folder. A Store is asked as it was made, with its own retries and
    time-outs, and read through a cache only where `local` names one. Any number of streams, and other datasets, may
    share one `local`: the cache keeps them apart, and never touches what else lies there.

    OptionError (a ValueError) for values that mean nothing, TypeError for those of other types.
    """

    def __init__(  # noqa: PLR0913 - Streaming's signature
        self,
        *,
        remote: str | Path | Store | None = None,
        local: str | Path | None = None,
        split: str | None = None,
        proportion: float | None = None,
        repeat: float | None = None,
        choose: int | None = None,
        download_retry: int | None = None,
        download_timeout: float | None = None,
        validate_hash: str | None = None,
        keep_zip: bool | None = None,
    ) -> None:
        self.remote = _checked_remote(remote)
        self.local = _checked_local(local)
        if self.remote is None and self.local is None:
            raise OptionError("local", local, "a directory that holds a dataset, unless remote says where one is")
        self.portion = Portion(proportion=proportion, repeat=repeat, choose=choose)
        self.proportion = proportion
        self.repeat = repeat
        self.choose = choose
        self._take(split, download_retry, download_timeout, validate_hash, keep_zip)

    def _take(
        self,
        split: str | None,
        download_retry: int | None,
        download_timeout: float | None,
        validate_hash: str | None,
        keep_zip: bool | None,
    ) -> None:
        """Set what a dataset has defaults for."""
        self.split = _checked_split(split)
        self.download_retry = None if download_retry is None else whole_number("download_retry", download_retry, 0)
        self.download_timeout = _checked_timeout(download_timeout)
        if not isinstance(validate_hash, str | None):
            raise TypeError(f"validate_hash must be the name of a digest, or None, not {validate_hash!r}")
        self.validate_hash = validate_hash or None
        if not isinstance(keep_zip, bool | None):
            raise TypeError(f"keep_zip must be True, False or None, not {keep_zip!r}")
        self.keep_zip = keep_zip

    def with_defaults(
        self,
        *,
        split: str | None = None,
        download_retry: int | None = None,
        download_timeout: float | None = None,
        validate_hash: str | None = None,
        keep_zip: bool | None = None,
    ) -> Self:
        """The same stream, with these values where it has none of its own."""
        filled = copy.copy(self)
        filled._take(
            _first(self.split, split),
            _first(self.download_retry, download_retry),
            _first(self.download_timeout, download_timeout),
            _first(self.validate_hash, validate_hash),
            _first(self.keep_zip, keep_zip),
        )
        return filled

    @property
    def name(self) -> str:
        """Where the dataset lies, for messages: without keys and passwords."""
        place = self.local if self.remote is None else self.remote
        shown = place.location if isinstance(place, Store) else without_secrets(str(place))
        return f"{shown.rstrip('/')}/{self.split}" if self.split else shown

    def __repr__(self) -> str:
        names = ("local", "split", "proportion", "repeat", "choose", "download_retry", "download_timeout")
        given = {name: getattr(self, name) for name in (*names, "validate_hash", "keep_zip")}
        if isinstance(self.remote, Store):
            given = {"remote": self.remote.location, **given}
        elif self.remote is not None:
            given = {"remote": without_secrets(str(self.remote)), **given}
        texts = (f"{name}={str(value) if isinstance(value, Path) else value!r}" for name, value in given.items())
        return f"{type(self).__name__}({', '.join(t for t in texts if not t.endswith('=None'))})"


def streams_of(streams: Sequence[Stream] | None, remote: Any, local: Any, **defaults: Any) -> list[Stream]:
    """The streams of a dataset: those given, or the one at remote and local; with its defaults where they have none.

    OptionError where both are given, or an empty list; TypeError for what is no list of Stream objects.
    """
    if streams is None:
        streams = [Stream(remote=remote, local=local)]
    elif remote is not None or local is not None:
        option, given = ("local", local) if remote is None else ("remote", remote)
        given = without_secrets(given) if isinstance(given, str) else given
        raise OptionError(option, given, "None beside streams, which have their own")
    if isinstance(streams, Stream | str) or not isinstance(streams, Sequence):
        raise TypeError(f"streams must be a list of Stream objects, not {type(streams).__name__}")
    for number, stream in enumerate(streams):
        if not isinstance(stream, Stream):  # a text may be a URL with a password
            raise TypeError(
                f"streams must be a list of Stream objects, and streams[{number}] is {type(stream).__name__}"
            )
    if not streams:
        raise OptionError("streams", [], "one stream at least, or None beside remote or local")
    return [stream.with_defaults(**defaults) for stream in streams]


def _first(own: T | None, default: T | None) -> T | None:
    return default if own is None else own


def _checked_remote(remote: str | Path | Store | None) -> str | Path | Store | None:
    if not isinstance(remote, str | Path | Store | None):
        raise TypeError(f"remote must be a path, a URL, a Store or None, not {type(remote).__name__}")
    return None if remote == "" else remote


def _checked_local(local: str | Path | None) -> str | Path | None:
    if not isinstance(local, str | Path | None):
        raise TypeError(f"local must be a directory, or None, not {type(local).__name__}; a Store goes into remote")
    if local is not None and has_scheme(local):
        raise OptionError("local", without_secrets(str(local)), "a directory of this machine; a URL goes into remote")
    return None if local == "" else local


def _checked_split(split: str | None) -> str | None:
    if not isinstance(split, str | None):
        raise TypeError(f"split must be the name of a folder, or None, not {split!r}")
    if not split:
        return split
    try:
        return checked_path(split.rstrip("/"))
    except PathOutsideRootError:
        raise OptionError(
            "split", without_secrets(split), "a folder in the stream's remote or local, such as 'train'"
        ) from None


def _checked_timeout(timeout_s: float | None) -> float | None:
    if timeout_s is None:
        return None
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float):
        raise TypeError(f"download_timeout must be a number of seconds, not {timeout_s!r}")
    if math.isnan(timeout_s) or timeout_s <= 0:
        raise OptionError("download_timeout", timeout_s, "a number of seconds above 0")
    return min(float(timeout_s), _LONGEST_S)


def without_secrets(place: str) -> str:
    """A path as it is; a URL without what may be a password, and without what follows a question mark."""
    match = _AUTHORITY.fullmatch(place) if has_scheme(place) else None
    if match is None:
        return place
    scheme, authority, rest = match.groups()
    user, at, host = authority.rpartition("@")
    if at and (":" in user or scheme.lower().startswith("http")):
        authority = host
    elif "@" in rest and ":" in authority and not authority.rpartition(":")[2].isdigit():
        authority, rest = "", rest.rpartition("@")[2]  # "user:pass/word@host"
    return f"{scheme}{authority}{rest}".partition("?")[0]
