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
    "azure-dl": "azure",  # Data Lake, by Streaming's name: its accounts speak Blob, too
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
_SENDING_TIMES = 5  # 64 MiB within 5 * 30 s need 3.6 Mbit/s
_URL = re.compile(r"https?://[!-~]+", re.IGNORECASE)
_BUCKET = re.compile(r"[A-Za-z0-9$][A-Za-z0-9._-]*")
_QUERY = re.compile(r"\?[^/=]+=")
_ACCOUNT = re.compile(r"([^@/]+)@([^./]+)\.[^/]+")  # abfs://container@account.dfs.core.windows.net


@dataclass(frozen=True, kw_only=True)
class ObjectOptions:
    """How an object store is asked; what is not given comes from the platform (environment, instance role).

    credentials are explicit keys: for s3 access_key_id, secret_access_key and session_token; for Azure account_name
    with account_key, sas_key, token, or client_id, client_secret and tenant_id. credential_provider is called
    without arguments and returns such keys and "expires_at" (a datetime with time zone; None: never); it is asked
    again when they have expired, and must pickle where workers are spawned. headers go with every request.
    requester_pays accepts the cost of a bucket that asks for it. request_timeout_s is how long a request may go
    without a byte coming, and five times that while more than 1 MiB is sent, because a server says nothing before
    it has all. connect_timeout_s is how long a connection may take. http:// needs no allow_http where URL or
    endpoint say it.
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

    def client(self, obstore: Any, *, sends_much: bool = False) -> Any:
        """One of obstore's stores, which sends every request once; sends_much: for bodies of many bytes."""
        options = self.options
        silence_s = options.request_timeout_s * (_SENDING_TIMES if sends_much else 1)
        http: dict[str, Any] = {
            "timeout": "3650days",  # of a whole request: only a stall ends one, however long it takes
            "read_timeout": f"{silence_s * 1000:.0f}ms",
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
        bucket, prefix, shown = _web_folder(f"{scheme}://{rest}")
    else:
        bucket, _, prefix = rest.partition("/")
        prefix = prefix.strip("/")
        shown = f"{scheme}://{bucket}"
        if kind == "azure" and (match := _ACCOUNT.fullmatch(bucket)):
            bucket, account = match[1], match[2]
        if not _BUCKET.fullmatch(bucket):
            _, at, found = rest.rpartition("@")  # what stands before it may be a secret
            found = f"{scheme}://{'...' * bool(at)}{at}{found}"
            raise OptionError("url", found, f"{scheme}://BUCKET or {scheme}://BUCKET/FOLDER")
        if query := _QUERY.search(prefix):  # a signature, perhaps
            found = f"{shown}/{prefix[: query.start()]}?..."
            raise OptionError("url", found, "a URL without a query; keys and signatures go into credentials=")
    _check_folder(shown, prefix)
    if checked.allow_http is False and _is_plain(checked.endpoint or bucket):
        raise OptionError("allow_http", False, "True for what is reached over http://")
    return ObjectPlace(kind, bucket, prefix, f"{shown}/{prefix}".rstrip("/"), checked, account)


def _check_folder(shown: str, folder: str) -> None:
    try:
        checked_folder(folder)
    except PathOutsideRootError:
        raise OptionError("url", f"{shown}/{folder}", "a folder without empty parts, . and ..") from None


def _web_folder(url: str) -> tuple[str, str, str]:
    """(what the client is made for, the folder below that, the host for messages) of a http(s) URL."""
    parts = urlsplit(url)
    host = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    try:
        _ = parts.port
    except ValueError:  # "user:pass/word@host": what seems to be a port is a secret
        raise OptionError(
            "url", f"{parts.scheme}://...", "a port that is a number, and %2F for / in a password"
        ) from None
    if parts.query or parts.fragment or not _URL.fullmatch(f"http://{parts.netloc}"):
        raise OptionError("url", f"{host}{parts.path}", "a URL without ? and #")
    folder = unquote(parts.path).strip("/")
    if "%2F" in parts.path.upper() or "\ufffd" in folder:  # no names of objects here, so it is sent as it is
        _check_folder(host, folder)
        return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}", "", f"{host}{parts.path.rstrip('/')}"
    return f"{parts.scheme}://{parts.netloc}", folder, host


def _is_plain(url: str) -> bool:
    return url.lower().startswith("http://")


def _checked_options(kind: str, scheme: str, options: Mapping[str, Any]) -> ObjectOptions:
    """The options where all are known here and make sense; no value of a secret one is ever named."""
    known = (*_OPTIONS[kind], *_ALWAYS)
    for name in options:
        if name not in known:
            raise OptionError("options", name, f"one of those of {scheme}://: {', '.join(known)}")
    checked = ObjectOptions(**options)
    for name in ("anonymous", "requester_pays", "allow_http"):
        if not isinstance(value := getattr(checked, name), bool) and (value is not None or name != "allow_http"):
            raise OptionError(name, value, "True or False")
    for name in ("endpoint", "region"):
        if not isinstance(value := getattr(checked, name), str | None):
            raise TypeError(f"{name} must be text, not {type(value).__name__}")
    for name in ("credentials", "headers"):
        _check_texts(name, getattr(checked, name))
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
    if checked.endpoint is not None and (not _URL.fullmatch(checked.endpoint) or set("@?#") & set(checked.endpoint)):
        raise OptionError("endpoint", "...", "a URL: http(s)://host, with port and path where there are some, no keys")
    for name in ("request_timeout_s", "connect_timeout_s"):
        value = getattr(checked, name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.001 <= value < 1e7:
            raise OptionError(name, value, "a number of seconds, at least 0.001")
    return checked


def _check_texts(name: str, value: object) -> None:
    """TypeError, without any value, where this is no mapping of texts."""
    if value is None:
        return
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a mapping of names to text, not {type(value).__name__}")
    for key, text in value.items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise TypeError(f"{name}[{key!r}] must be text, not {type(text).__name__}")
