"""The store that a path or a URL names."""

import re
from pathlib import Path
from typing import Any

from headrace.errors import OptionError
from headrace.store.local import LocalStore
from headrace.store.memory import MemoryStore
from headrace.store.retrying import RetryingStore, RetryPolicy
from headrace.store.store import Store

__all__ = ["has_scheme", "open_store"]

_SCHEME = re.compile(
    r"([A-Za-z][A-Za-z0-9+.-]+):/"
)  # pathlib makes "s3:/bucket" of "s3://bucket", so one "/" is enough
_OBJECT_SCHEMES = ("s3", "s3a", "az", "azure", "adl", "abfs", "abfss", "http", "https")


def has_scheme(place: str | Path) -> bool:
    """Whether place is a URL of another kind than file://: nothing that a local directory could be."""
    match = _SCHEME.match(str(place))
    return match is not None and match[1].lower() != "file"


def open_store(url: str | Path, *, retry: RetryPolicy | None = None, **options: Any) -> Store:
    """The store at a directory or URL. Nothing is asked or created before the first use."""
    text = str(url)
    match = _SCHEME.match(text)
    if match is None or match[1].lower() == "file":
        return LocalStore(url, **options)
    scheme = match[1].lower()
    if scheme == "memory":
        return MemoryStore(flat=True)
    if scheme in _OBJECT_SCHEMES or (scheme == "gs" and options.get("client") == "obstore"):
        from headrace.store.objects import ObjectStore

        options.pop("client", None)
        return RetryingStore(ObjectStore(text, **options), retry)
    raise OptionError("url", text, "a directory or a URL of file, s3, az, abfs or http(s)")
