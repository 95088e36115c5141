"""What a failed request of obstore means, by its cause and without its secrets.

obstore says most of it in its errors' text: the status, the server's own code and message, or what became of the
connection. The text itself is never passed on, because a URL in it may carry a signature.
"""

import re
from typing import Any

from headrace.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    NotFoundError,
    ObjectChangedError,
    StoreError,
    TemporaryStoreError,
    UnsupportedOperationError,
)

__all__ = ["ObjectFault", "store_error"]

_STATUS = re.compile(r"status code: (\d{3})([^:\n]*)")
_CODE = re.compile(r"<Code>([^<]{1,100})</Code>")
_MESSAGE = re.compile(r"<Message>([^<]{1,300})</Message>")
_TEMPORARY = (408, 425, 429, 500, 502, 503, 504, 509, 598, 599)
_EXPIRED = ("ExpiredToken", "TokenRefreshRequired", "RequestTimeTooSkewed", "ExpiredTokenException")
_DENIED_ADVICE = (
    "check the credentials (environment, credentials=, credential_provider=), the region and the name; "
    "anonymous=True reads public data"
)


class ObjectFault:
    """The parts of one of obstore's errors."""

    def __init__(self, error: BaseException) -> None:
        self.kind = type(error).__name__
        text = str(error)
        self.text = text
        status = _STATUS.search(text)
        self.status = int(status[1]) if status else None
        code, message = _CODE.search(text), _MESSAGE.search(text)
        self.code = code[1] if code else ""
        said = ": ".join(part for part in (self.code, message[1] if message else "") if part)
        answer = f"{status[1]}{status[2]}".strip() if status else ""
        self.said = f"{answer} ({said})" if answer and said else answer or said

    def connection(self) -> str:
        """What became of the connection; "" where the server answered in full."""
        for mark, words in (
            ("TimedOut", "no bytes came within the time-out"),
            ("kind: Timeout", "no bytes came within the time-out"),
            ("kind: Connect", "no connection"),
            ("IncompleteBody", "the body was cut"),
            ("ConnectionReset", "the connection was reset"),
            ("kind: Interrupted", "the connection broke"),
            ("HTTP error: error sending request", "the connection broke"),
            ("HTTP error: request or response body error", "the body was cut"),
        ):
            if mark in self.text:
                return words
        return ""


def store_error(error: BaseException, where: str, *, renewable: bool = False) -> StoreError:
    """The error to raise for one of obstore's, about the object or folder called where.

    renewable: credentials come from a provider that gives others when asked again.
    """
    fault = ObjectFault(error)
    said = fault.said
    if isinstance(error, FileNotFoundError) or fault.status == 404:
        if fault.code in ("NoSuchBucket", "ContainerNotFound"):
            return NotFoundError(f"{where}: {said or 'no such bucket'}; check the bucket's name and the endpoint")
        return NotFoundError(f"{where}: no such object")
    if fault.code in _EXPIRED and renewable:
        return TemporaryStoreError(f"{where}: the credentials have expired: {said}")
    if fault.kind in ("PermissionDeniedError", "UnauthenticatedError") or fault.status in (401, 403):
        return AccessDeniedError(f"{where}: access denied: {said}; {_DENIED_ADVICE}")
    if "169.254.169.254" in fault.text or "MissingCredential" in fault.text:
        return AccessDeniedError(f"{where}: no credentials found; {_DENIED_ADVICE}")
    if fault.kind == "AlreadyExistsError":
        return AlreadyExistsError(f"{where} exists already")
    if fault.kind == "PreconditionError":
        return ObjectChangedError(where)
    if fault.status in _TEMPORARY:
        return TemporaryStoreError(f"{where}: {said}")
    if "redirect" in fault.text:
        return StoreError(f"{where}: the server sends elsewhere: the region or the endpoint is probably wrong")
    if "NotPartial" in fault.text or fault.kind == "NotSupportedError":
        return UnsupportedOperationError(where, "be read by ranges: the server ignores them", "read whole files")
    if "BadScheme" in fault.text:
        return StoreError(f"{where}: the endpoint is http://; pass allow_http=True if that is meant")
    if connection := fault.connection():
        return TemporaryStoreError(f"{where}: {connection}")
    return StoreError(f"{where}: {said or _short(fault.text)}")


def _short(text: str) -> str:
    """The first line of an unknown error, without addresses."""
    return re.sub(r"[a-z]+://\S+", "...", text.partition("\n")[0])[:300]


def is_status(error: BaseException, status: int) -> bool:
    """Whether the server answered with this status."""
    return ObjectFault(error).status == status


def obstore_errors(client: Any) -> tuple[type[BaseException], ...]:
    """What obstore's functions raise where a request fails."""
    return (client.exceptions.BaseError, FileNotFoundError, OSError, ValueError)
