"""Where an object store is and how it is asked: a URL and options, checked before anything is asked."""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from headrace.errors import OptionError, PathOutsideRootError
from headrace.store.store import checked_folder

__all__ = ["OBJECT_SCHEMES", "CredentialProvider", "ObjectOptions", "ObjectPlace", "object_place"]

CredentialProvider = Callable[[], Mapping[str, Any]]

OBJECT_SCHEMES = {
    "s3": "s3",
    "s3a": "s3",
    "az": "azure",
    "azure": "azure",
    "adl": "azure",
    "abfs": "azure",
    "abfss": "azure",
    "http": "http",
    "https": "http",
    "gs": "gcs",
}
_CREDENTIALS = {
    "s3": ("access_key_id", "secret_access_key", "session_token"),
    "azure": ("account_name", "account_key", "sas_key", "token", "client_id", "client_secret", "tenant_id"),
    "gcs": ("service_account_key", "service_account_path", "application_credentials"),
}
_OPTIONS = {
    "s3": ("endpoint", "region", "anonymous", "credentials", "credential_provider", "requester_pays"),
    "azure": ("endpoint", "anonymous", "credentials", "credential_provider"),
    "gcs": ("anonymous", "credentials", "credential_provider"),
    "http": (),
}
_ALWAYS = ("allow_http", "headers", "request_timeout_s", "connect_timeout_s")
_URL = re.compile(r"https?://[!-~]+", re.IGNORECASE)
_BUCKET = re.compile(r"[A-Za-z0-9$][A-Za-z0-9._-]*")
_ACCOUNT = re.compile(r"([^@/]+)@([^./]+)\.[^/]+")  # abfs://container@account.dfs.core.windows.net


@dataclass(frozen=True, kw_only=True)
class ObjectOptions:
    """How an object store is asked; what is not given comes from the platform (environment, instance role).

    credentials are explicit keys: for s3 access_key_id, secret_access_key and session_token; for Azure account_name
    with account_key, sas_key, token, or client_id, client_secret and tenant_id. credential_provider is called without
    arguments and returns such keys and "expires_at" (a datetime with time zone; None: never); it is asked again when
    they have expired, and must pickle where workers are spawned. headers go with every request. requester_pays accepts
    the cost of a bucket that asks for it. request_timeout_s is how long a request may go without a byte coming,
    connect_timeout_s how long a connection may take. http:// needs no allow_http where URL or endpoint say it.
    """

    endpoint: str | None = None
    region: str | None = None
    anonymous: bool = False
    requester_pays: bool = False
    credentials: Mapping[str, str] | None = field(default=None, repr=False)
    credential_provider: CredentialProvider | None = field(default=None, repr=False)
    headers: Mapping[str, str] | None = field(default=None, repr=False)
    allow_http: bool | None = None
    request_timeout_s: float = 30.0
    connect_timeout_s: float = 10.0


@dataclass(frozen=True)
class ObjectPlace:
    """A folder of a bucket, container or web server."""

    kind: str  # s3, azure, gcs or http
    bucket: str = field(repr=False)  # of http: the URL up to the path, which may hold a password
    prefix: str  # "" or a path
    location: str
    options: ObjectOptions
    account: str = ""

    def key(self, path: str) -> str:
        """What the object at path is called in the bucket."""
        return f"{self.prefix}/{path}" if self.prefix and path else self.prefix or path

    def path(self, key: str) -> str:
        """What an object of the bucket is called here."""
        return key[len(self.prefix) + 1 :] if self.prefix else key

    def named(self, path: str) -> str:
        """The object's URL, for messages."""
        return f"{self.location}/{path}"

    def client(self, obstore: Any) -> Any:
        """One of obstore's stores, which sends every request once."""
        options = self.options
        http: dict[str, Any] = {
            "timeout": "3650days",  # of a whole request: only a stall ends one, however long it takes
            "read_timeout": f"{options.request_timeout_s * 1000:.0f}ms",
            "connect_timeout": f"{options.connect_timeout_s * 1000:.0f}ms",
        }
        common: dict[str, Any] = {"retry_config": {"max_retries": 0}}
        plain = bool(options.allow_http) or _is_plain(options.endpoint or self.bucket)
        if plain or options.headers or self.kind == "http":
            headers = {"default_headers": dict(options.headers)} if options.headers else {}
            common["client_options"] = {**http, "allow_http": plain, **headers}
        else:
            common |= http  # with client_options obstore would not look at AWS_ALLOW_HTTP in the environment
        match self.kind:
            case "http":
                return obstore.store.HTTPStore(self.bucket, **common)
            case "s3":
                return obstore.store.S3Store(self.bucket, disable_bulk_delete=True, **self._config(), **common)
            case "azure":
                return obstore.store.AzureStore(self.bucket, **self._config(), **common)
            case _:
                return obstore.store.GCSStore(self.bucket, **self._config(), **common)

    def _config(self) -> dict[str, Any]:
        options = self.options
        given = {
            "endpoint": options.endpoint,
            "region": options.region,
            "account_name": self.account,
            "skip_signature": options.anonymous,
            "request_payer": options.requester_pays,
            "credential_provider": options.credential_provider and _Provider(options.credential_provider),
        }
        return {**(options.credentials or {}), **{name: value for name, value in given.items() if value}}


class _Provider:
    """A credential provider as obstore expects it: asked by it, in this project's names."""

    def __init__(self, provider: CredentialProvider) -> None:
        self._provider = provider
        self.config = getattr(provider, "config", {})  # obstore's own providers know the region

    def __call__(self) -> dict[str, Any]:
        answer = self._provider()
        if not isinstance(answer, Mapping):
            raise TypeError(f"it returned {type(answer).__name__}, not a mapping of keys")
        names = {"session_token": "token", "account_key": "access_key", "sas_key": "sas_token"}
        return {"expires_at": None, **{names.get(name, name): value for name, value in answer.items()}}


def object_place(url: str, options: Mapping[str, Any]) -> ObjectPlace:
    """The place that url and options name; OptionError for what is not understood, and for what contradicts itself."""
    scheme, _, rest = url.partition(":")
    scheme = scheme.lower()
    kind = OBJECT_SCHEMES[scheme]
    checked = _checked_options(kind, scheme, options)
    rest = rest.lstrip("/")
    account = ""
    if kind == "http":
        parts = urlsplit(f"{scheme}://{rest}")
        if parts.query or parts.fragment or not _URL.fullmatch(f"http://{parts.netloc}"):
            raise OptionError(
                "url", f"{scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}", "a URL without ? and #"
            )
        bucket = f"{scheme}://{parts.netloc}"
        prefix = unquote(parts.path).strip("/")
        shown = f"{scheme}://{parts.netloc.rpartition('@')[2]}"
    else:
        bucket, _, prefix = rest.partition("/")
        prefix = prefix.strip("/")
        shown = f"{scheme}://{bucket}"
        if match := _ACCOUNT.fullmatch(bucket):
            bucket, account = match[1], match[2]
        if not _BUCKET.fullmatch(bucket):
            raise OptionError("url", url, f"{scheme}://BUCKET or {scheme}://BUCKET/FOLDER")
    try:
        checked_folder(prefix)
    except PathOutsideRootError:
        raise OptionError("url", f"{shown}/{prefix}", "a folder without empty parts, . and ..") from None
    if checked.allow_http is False and _is_plain(checked.endpoint or bucket):
        raise OptionError("allow_http", False, "True for what is reached over http://")
    return ObjectPlace(kind, bucket, prefix, f"{shown}/{prefix}".rstrip("/"), checked, account)


def _is_plain(url: str) -> bool:
    return url.lower().startswith("http://")


def _checked_options(kind: str, scheme: str, options: Mapping[str, Any]) -> ObjectOptions:
    """The options where all are known here and make sense; no value of a secret one is ever named."""
    known = (*_OPTIONS[kind], *_ALWAYS)
    for name in options:
        if name not in known:
            raise OptionError("options", name, f"one of those of {scheme}://: {', '.join(known)}")
    checked = ObjectOptions(**options)
    keys = _CREDENTIALS.get(kind, ())
    for name in checked.credentials or {}:
        if name not in keys:
            raise OptionError("credentials", [name], f"keys of {scheme}://: {', '.join(keys)}")
    ways = [name for name in ("anonymous", "credentials", "credential_provider") if getattr(checked, name)]
    if len(ways) > 1 and not (set(checked.credentials or {}) <= {"account_name"} and kind == "azure"):
        raise OptionError(ways[0], "...", f"to be the only one; {' and '.join(ways[1:])} contradicts it")
    provider = checked.credential_provider
    if provider is not None and not callable(provider):
        raise TypeError(f"credential_provider must be callable, not {type(provider).__name__}")
    if inspect.iscoroutinefunction(provider) or inspect.iscoroutinefunction(getattr(provider, "__call__", None)):  # noqa: B004
        raise TypeError("credential_provider must be a plain function: nothing here runs an event loop")
    if checked.endpoint is not None and not _URL.fullmatch(checked.endpoint):
        raise OptionError("endpoint", "...", "a URL: http(s)://host, with port and path where there are some")
    for name in ("request_timeout_s", "connect_timeout_s"):
        value = getattr(checked, name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.001 <= value < 1e7:
            raise OptionError(name, value, "a number of seconds, at least 0.001")
    return checked
