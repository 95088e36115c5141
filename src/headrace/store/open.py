"""The store that a path or a URL names."""

import inspect
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


def has_scheme(place: str | Path) -> bool:
    """Whether place is a URL of another kind than file://: nothing that a local directory could be."""
    return _scheme(place) not in ("", "file")


def open_store(url: str | Path, *, retry: RetryPolicy | None = None, **options: Any) -> Store:
    """The store at a directory or URL. Nothing is asked or created before the first use.

    | url | store | options |
    | --- | --- | --- |
    | a path, `file://` | LocalStore | LocalStore's |
    | `memory://` | a new, empty MemoryStore that behaves as an object store | none |
    | `s3://bucket/folder` | ObjectStore | ObjectOptions' |
    | `az://container/folder`, `abfs://container@account.dfs.core.windows.net/folder` | ObjectStore | ObjectOptions' |
    | `https://host/folder`, `http://` | ObjectStore, to read only | headers and time-outs |
    | `gs://bucket/folder`, `hf://`, any other scheme of fsspec | FsspecStore | FsspecStore's |

    Remote stores come within a RetryingStore, which retries as retry says (None: RetryPolicy()). client="obstore" reads
    gs:// through obstore, which is not tested. OptionError for an unknown option, by its name.
    """
    text = str(url)
    scheme = _scheme(text)
    match scheme:
        case "" | "file":
            _refuse_unknown(options, tuple(inspect.signature(LocalStore).parameters)[1:], "a directory")
            return LocalStore(url, **options)
        case "memory":
            _refuse_unknown(options, (), "memory://")
            return MemoryStore(flat=True)
        case "s3" | "s3a" | "az" | "azure" | "azure-dl" | "adl" | "abfs" | "abfss" | "http" | "https":
            from headrace.store.objects import ObjectStore  # late: obstore is not needed for local data

            return RetryingStore(ObjectStore(text, **options), retry)
        case "gs" if options.get("client") == "obstore":
            from headrace.store.objects import ObjectStore

            return RetryingStore(ObjectStore(text, **{k: v for k, v in options.items() if k != "client"}), retry)
        case _:
            from headrace.store.fsspec_store import FsspecStore

            return RetryingStore(FsspecStore(text, **options), retry)


def _scheme(place: str | Path) -> str:
    match = _SCHEME.match(str(place))
    return match[1].lower() if match else ""


def _refuse_unknown(options: dict[str, Any], known: tuple[str, ...], what: str) -> None:
    for name in options:
        if name not in known:
            raise OptionError("options", name, f"one of those of {what}: {', '.join(known) or 'none'}")
