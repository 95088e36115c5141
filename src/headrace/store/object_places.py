"""Where an object store is, and how it is asked: URL and options, checked before anything is asked."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any
from urllib.parse import urlsplit

from headrace.errors import OptionError

__all__ = ["ObjectOptions", "ObjectPlace", "object_place"]

_S3_KEYS = ("access_key_id", "secret_access_key", "session_token")
_AZURE_KEYS = ("account_name", "account_key", "sas_key", "token", "client_id", "client_secret", "tenant_id")
_ABFS = re.compile(r"([^@/]+)@([^./]+)\.[^/]+")
KINDS = {
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


@dataclass(frozen=True, kw_only=True)
class ObjectOptions:
    """How an object store is asked; the defaults are the platform's own.

    credentials are explicit keys: for s3 access_key_id, secret_access_key and session_token; for Azure account_name
    and account_key, sas_key, token, or client_id with client_secret and tenant_id. credential_provider is called with
    nothing and returns such keys with "expires_at" (a datetime with time zone, or None); it is asked again when they
    have expired, and must pickle for workers that are spawned. headers go with every request. request_timeout_s is how
    long a request may go without a byte coming, connect_timeout_s how long a connection may take.
    """

    endpoint: str | None = None
    region: str | None = None
    anonymous: bool = False
    credentials: Mapping[str, str] | None = field(default=None, repr=False)
    credential_provider: Callable[[], Mapping[str, Any]] | None = field(default=None, repr=False)
    allow_http: bool | None = None
    headers: Mapping[str, str] | None = field(default=None, repr=False)
    request_timeout_s: float = 30.0
    connect_timeout_s: float = 10.0


@dataclass(frozen=True)
class ObjectPlace:
    """A bucket, container or web folder; key(path) is what an object of it is called there."""

    kind: str  # s3, azure, gcs or http
    bucket: str  # of http: the URL without path
    prefix: str  # without a slash at its ends
    location: str
    options: ObjectOptions
    account: str = ""

    def key(self, path: str) -> str:
        """The object's name in the bucket."""
        return f"{self.prefix}/{path}" if self.prefix and path else self.prefix or path

    def client(self, obstore: Any) -> Any:
        """One of obstore's stores, which sends every request once."""
        options = self.options
        http: dict[str, Any] = {
            "timeout": "365days",  # of a whole request: only a stall ends one
            "read_timeout": f"{options.request_timeout_s}s",
            "connect_timeout": f"{options.connect_timeout_s}s",
            "allow_http": bool(options.allow_http) or (options.endpoint or self.bucket).startswith("http://"),
        }
        if options.headers:
            http["default_headers"] = dict(options.headers)
        common = {"client_options": http, "retry_config": {"max_retries": 0}}
        match self.kind:
            case "http":
                return obstore.store.HTTPStore(self.bucket, **common)
            case "s3":
                return obstore.store.S3Store(self.bucket, **self._config(), **common)
            case "azure":
                return obstore.store.AzureStore(self.bucket, **self._config(), **common)
            case _:
                return obstore.store.GCSStore(self.bucket, **self._config(), **common)

    def _config(self) -> dict[str, Any]:
        options = self.options
        config: dict[str, Any] = dict(options.credentials or {})
        if options.endpoint:
            config["endpoint"] = options.endpoint
        if self.kind == "s3" and options.region:
            config["region"] = options.region
        if self.account:
            config["account_name"] = self.account
        if options.anonymous:
            config["skip_signature"] = True
        if options.credential_provider is not None:
            config["credential_provider"] = options.credential_provider
        return config


def object_place(url: str, options: Mapping[str, Any]) -> ObjectPlace:
    """The place that url and open_store's options name; OptionError for what is not understood."""
    scheme, _, rest = url.partition(":")
    kind = KINDS[scheme.lower()]
    rest = rest.lstrip("/")
    known = [item.name for item in fields(ObjectOptions)]
    for name, value in options.items():
        if name not in known:
            raise OptionError(name, "...", f"one of the options of {scheme}://: {', '.join(known)}")
        del value
    checked = ObjectOptions(**options)
    if kind == "http":
        parts = urlsplit(f"{scheme.lower()}://{rest}")
        base = f"{parts.scheme}://{parts.netloc}"
        prefix = parts.path.strip("/")
        shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/{prefix}".rstrip("/")
        return ObjectPlace(kind, base, prefix, shown, checked)
    bucket, _, prefix = rest.partition("/")
    account = ""
    if match := _ABFS.fullmatch(bucket):
        bucket, account = match[1], match[2]
    prefix = prefix.strip("/")
    return ObjectPlace(kind, bucket, prefix, f"{scheme.lower()}://{bucket}/{prefix}".rstrip("/"), checked, account)
