"""What is known of fsspec's file systems: how they are opened, what their answers and errors mean."""

import base64
import inspect
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from headrace.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    HeadraceError,
    NotFoundError,
    OptionError,
    StoreError,
    TemporaryStoreError,
)
from headrace.store.store import Capabilities, FileInfo

__all__ = ["capabilities_of", "checked_url", "file_info", "md5_of", "opened", "shown", "status_of", "store_error"]

READ_ONLY = Capabilities(
    view=False,
    rename=False,
    durable=False,
    write=False,
    conditional=False,
    listing=True,
    exact_versions=False,
    remote=True,
)
# Others may write in place, or check and create in two steps: fsspec does not say, so nothing is built on them.
WRITABLE = {
    "gs": READ_ONLY._replace(durable=True, write=True, conditional=True, exact_versions=True),
    "memory": READ_ONLY._replace(write=True, conditional=True),
}
GOOGLE = ("gs", "gcs")
EXTRAS = {"gs": "gcs", "gcs": "gcs", "hf": "hf"}
GOOGLE_OPTIONS = ("endpoint", "anonymous", "credentials", "allow_http", "request_timeout_s")
ANY_SYSTEM = ("asynchronous", "batch_size", "listings_expiry_time", "loop", "max_paths")  # what fsspec takes for all
STALL_S = 30.0

# What holds the version of an object, best first: a name in what info() answers.
VERSIONS = (
    "generation",
    "version_id",
    "VersionId",
    "ETag",
    "etag",
    "e_tag",
    "blob_id",
    "sha256",
    "sha",
    "md5",
    "checksum",
)
TIMES = ("mtime", "LastModified", "last_modified", "modified", "updated", "created", "timeCreated")


def checked_url(url: str) -> tuple[str, str]:
    """(scheme, url) of a URL that fsspec has a file system for; OptionError otherwise, ImportError without fsspec."""
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):(//|/)", url)  # pathlib makes one "/" of two
    if match is None:
        raise OptionError("url", shown(url), "SCHEME://PLACE")
    scheme = match[1].lower()
    try:
        from fsspec import available_protocols
    except ImportError:
        extra = EXTRAS.get(scheme, "fsspec")
        raise ImportError(f"{scheme}:// needs the package fsspec; pip install 'headrace[{extra}]'") from None
    if scheme not in available_protocols():
        raise OptionError(
            "url", shown(url), "file, memory, s3, gs, az, http, https, hf or another scheme that fsspec knows"
        )
    return scheme, f"{scheme}://{url[match.end() :]}"


def shown(url: str) -> str:
    """The URL for messages: without a password, a query and "/" at the end."""
    return re.sub(r"(?<=//)[^/]*:[^/]*@", "", url.partition("?")[0]).rstrip("/")


def capabilities_of(scheme: str) -> Capabilities:
    """What is sure of this scheme's file system."""
    return WRITABLE.get("gs" if scheme in GOOGLE else scheme, READ_ONLY)


def opened(scheme: str, url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """A new file system without caches of listings, and the path of url in it.

    ImportError where it needs a package that is not there, OptionError for options that it does not know, StoreError
    where it cannot be made; some ask their server at once.
    """
    more = {"skip_instance_cache": True, "use_listings_cache": False}
    try:
        if scheme in GOOGLE:
            kind = _google()
            _refuse_unknown(kind, scheme, options, GOOGLE_OPTIONS)
            more |= _google_options(options)
            system, path = kind(**more), kind._strip_protocol(url)
        else:
            from fsspec.core import get_filesystem_class, url_to_fs

            if scheme == "hf":  # the options of others may be any that go to yet another client
                _refuse_unknown(get_filesystem_class(scheme), scheme, options, ())
            system, path = url_to_fs(url, **more, **options)
    except ImportError as error:
        extra = EXTRAS.get(scheme)
        advice = f"pip install 'headrace[{extra}]'" if extra else str(error)
        raise ImportError(f"{scheme}:// needs another package: {advice}") from error
    except HeadraceError:
        raise
    except Exception as error:
        unusable = StoreError(
            f"{shown(url)}: fsspec cannot open this by its URL alone ({_said(error)}); give its options to "
            "open_store(url, ...), and pass the store in place of the URL"
        )
        raise store_error(error, shown(url)) or unusable from None
    return system, str(path).rstrip("/")


def _google() -> Any:
    """gcsfs's plain file system, which tries once: when to try again is decided in one place, and that is not here.

    The kind that gcsfs itself prefers asks each bucket over gRPC first what it is, and waits for a minute where it gets
    no answer.
    """
    from gcsfs.core import GCSFileSystem

    tried_once = getattr(GCSFileSystem._request, "__wrapped__", GCSFileSystem._request)
    return type("GoogleFileSystem", (GCSFileSystem,), {"_request": tried_once})


def _refuse_unknown(kind: Any, scheme: str, options: Mapping[str, Any], shared: tuple[str, ...]) -> None:
    """OptionError for an option that this file system does not name: it would ignore it in silence."""
    unnamed = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    own = [name for name, each in inspect.signature(kind.__init__).parameters.items() if each.kind not in unnamed]
    known = (*shared, *own[1:], *ANY_SYSTEM)
    for name in options:
        if name not in known:
            raise OptionError("options", name, f"one of those of {scheme}://: {', '.join(dict.fromkeys(known))}")


def _google_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """gcsfs's own names for the options that all object stores share; other names are gcsfs's already."""
    named = dict(options)
    if (endpoint := named.pop("endpoint", None)) is not None:
        named["endpoint_url"] = endpoint
    if named.pop("anonymous", False):
        named["token"] = "anon"
    if (credentials := named.pop("credentials", None)) is not None:
        named["token"] = dict(credentials)
    named.pop("allow_http", None)  # the endpoint says it
    stall_s = named.pop("request_timeout_s", STALL_S)
    if "requests_timeout" not in named:
        from aiohttp import ClientTimeout

        named["requests_timeout"] = ClientTimeout(total=None, sock_connect=stall_s, sock_read=stall_s)
    return named


def file_info(path: str, answer: Mapping[str, Any]) -> FileInfo:
    """What info() or a listing says of a file, as every store says it."""
    size_bytes = int(answer.get("size") or 0)
    modified_s = _seconds(next((answer[name] for name in TIMES if answer.get(name)), 0.0))
    version = next((str(answer[name]) for name in VERSIONS if answer.get(name)), f"{modified_s!r}-{size_bytes}")
    return FileInfo(path, size_bytes, version.strip('"'), modified_s)


def md5_of(answer: Mapping[str, Any]) -> str:
    """The MD5 digest in hexadecimal, as Google's store made it; "" where it says none, as of composed objects."""
    return base64.b64decode(answer.get("md5Hash") or "").hex()


def _seconds(time: object) -> float:
    match time:
        case datetime():
            return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
        case int() | float():
            return float(time)
        case str():
            try:
                return _seconds(datetime.fromisoformat(time))
            except ValueError:
                return 0.0
    return 0.0


TEMPORARY_STATUSES = {408, 425, 429}
# What these clients (and httpx2) raise without a status is the network's.
NETWORK = ("aiohttp", "requests", "urllib3", "httpx", "httpcore")


def store_error(error: BaseException, where: str) -> StoreError | None:
    """The error that every store raises for this cause; None where it is no fault of a store."""
    if isinstance(error, StoreError):
        return error
    status, package, said = status_of(error), type(error).__module__.partition(".")[0], _said(error)
    if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError) or status in (404, 410):
        return NotFoundError(f"{where}: no such object")
    if isinstance(error, FileExistsError) or status in (409, 412):
        return AlreadyExistsError(f"{where} exists already")
    if isinstance(error, PermissionError) or status in (401, 403) or _is_denial(error):
        if getattr(error, "retryable", False):
            return TemporaryStoreError(f"{where}: {said}")
        return AccessDeniedError(
            f"{where}: access was denied ({said}); look at the credentials (for gs:// those of gcloud, or token=...), "
            "pass anonymous=True for public data, and check the name of the bucket"
        )
    if status in TEMPORARY_STATUSES or (status or 0) >= 500:
        return TemporaryStoreError(f"{where}: {said}", _retry_after_s(error))
    if isinstance(error, TimeoutError | ConnectionError) or type(error).__name__ in ("FSTimeoutError", "ChecksumError"):
        return TemporaryStoreError(f"{where}: {said}")
    if status is None and package.startswith(NETWORK):
        return TemporaryStoreError(f"{where}: {said}")
    if status is not None or isinstance(error, OSError) or package in ("gcsfs", "huggingface_hub"):
        return StoreError(f"{where}: {said}")
    return None


def status_of(error: BaseException) -> int | None:
    """The HTTP status that an error of any client carries."""
    response = getattr(error, "response", None)
    for holder, name in ((error, "status"), (error, "status_code"), (error, "code"), (response, "status_code")):
        value = getattr(holder, name, None)
        if isinstance(value, int | str) and str(value).isdigit() and 300 <= int(value) < 600:
            return int(value)
    return None


def _said(error: BaseException) -> str:
    """The error's kind and text, without what may be a secret."""
    text = re.sub(r"\?[^\s'\")]*", "?...", " ".join(str(error).split()))  # a query may hold a signature
    text = re.sub(r"(?<=//)[^/\s]*:[^/\s]*@", "", text)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _is_denial(error: BaseException) -> bool:
    # gcsfs raises a plain OSError for 403; google.auth's errors say that there are no credentials, or none that hold.
    return type(error).__module__.startswith("google.auth") or str(error).startswith("Forbidden")


def _retry_after_s(error: BaseException) -> float | None:
    headers = getattr(error, "headers", None) or getattr(getattr(error, "response", None), "headers", None) or {}
    asked = str(headers.get("Retry-After", "")).strip()
    return float(asked) if asked.isdigit() else None
