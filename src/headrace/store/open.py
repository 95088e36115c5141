"""The store that a path or a URL names."""

import re
from pathlib import Path
from typing import Any

from headrace.errors import OptionError
from headrace.store.local import LocalStore
from headrace.store.memory import MemoryStore
from headrace.store.store import Store

__all__ = ["has_scheme", "open_store"]

_SCHEME = re.compile(
    r"([A-Za-z][A-Za-z0-9+.-]+):/"
)  # pathlib makes "s3:/bucket" of "s3://bucket", so one "/" is enough


def has_scheme(place: str | Path) -> bool:
    """Whether place is a URL of another kind than file://: nothing that a local directory could be."""
    match = _SCHEME.match(str(place))
    return match is not None and match[1].lower() != "file"


def open_store(url: str | Path, **options: Any) -> Store:
    """The store at a directory or URL. Nothing is asked or created before the first use."""
    if not has_scheme(url):
        return LocalStore(url, **options)
    if str(url).lower().startswith("memory:"):
        return MemoryStore(flat=True)
    raise OptionError("url", str(url), "a directory or file:// URL")
