"""What a failed request of obstore means, by its cause and without its secrets.

obstore says most of it in its errors' text: the status, the server's own code and message, or what became of the
connection. The text itself is never passed on, because a URL in it may carry a signature.
"""

import re

from headrace.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    NotFoundError,
    ObjectChangedError,
    StoreError,
    TemporaryStoreError,
    UnsupportedOperationError,
)

__all__ = ["TEMPORARY", "ObjectFault", "PastEndError", "settings_error", "store_error"]

_STATUS = re.compile(r"status code: (\d{3}) ?([^:\n]*)")
_CODE = re.compile(r"<Code>([^<]{1,100})</Code>")
_MESSAGE = re.compile(r"<Message>([^<\n]{1,300})")
TEMPORARY = (408, 425, 429, 500, 502, 503, 504, 509, 598, 599, *range(520, 528), 530)  # 52x and 530: Cloudflare's
_URL = re.compile(r"[A-Za-z]+://\S+")
# Another write (S3), or the deletion of the container (Azure), is under way; ask again.
_CONFLICTS = ("ConditionalRequestConflict", "OperationAborted", "ContainerBeingDeleted")
_SLOW_DOWN = ("SlowDown", "RequestTimeout", "InternalError", "ServerBusy", "OperationTimedOut", "RequestLimitExceeded")
_EXPIRED = re.compile("expired|TokenRefreshRequired|RequestTimeTooSkewed|InvalidAuthenticationToken", re.IGNORECASE)
_PROVIDER = re.compile(r"credential provider: ([^\n]{1,300})")
_NO_CREDENTIALS = ("//169.254.169.254", "MissingCredential", "Missing credential", "no credentials")
_TIMED_OUT = (
    "no bytes came within the time-out (request_timeout_s, connect_timeout_s; download_timeout of a StreamingDataset)"
)
_CONNECTION = (
    ("TimedOut", _TIMED_OUT),
    ("kind: Timeout", _TIMED_OUT),
    ("kind: Connect", "no connection (endpoint and network are to be looked at, if it stays so)"),
    ("IncompleteBody", "the body was cut"),
    ("UnexpectedEof", "the body was cut"),
    ("ConnectionReset", "the connection was reset"),
    ("IncompleteMessage", "the connection was closed before the answer"),
    ("request or response body error", "the body was cut"),
    ("HTTP error: error sending request", "the connection broke"),
    ("HTTP error: error decoding response body", "the body was damaged"),
)
_ADVICE = {
    "s3": "check the credentials (AWS_ACCESS_KEY_ID and its kin, credentials=, credential_provider=), region=, "
    "endpoint= and the bucket's name; anonymous=True reads public data, requester_pays=True what asks for it",
    "azure": "check the credentials (AZURE_STORAGE_ACCOUNT_NAME and its kin, credentials=, credential_provider=), "
    "endpoint= and the container's name; anonymous=True reads public data",
    "gcs": "check the credentials and the bucket's name; anonymous=True reads public data",
    "http": "check the URL, and what headers= must hold (Authorization)",
}


class PastEndError(StoreError):
    """A range began past the end of the object; ObjectStore makes a TruncatedReadError of it."""


class ObjectFault:
    """The parts of one of obstore's errors that matter."""

    def __init__(self, error: BaseException) -> None:
        self.kind = type(error).__name__
        self.text = str(error)
        self.words = _URL.sub("...", self.text)  # an object's name must not be taken for what is said of it
        status = _STATUS.search(self.text)
        code, message = _CODE.search(self.text), _MESSAGE.search(self.text)
        self.status = int(status[1]) if status else 0
        self.code = code[1] if code else ""
        self.message = message[1].strip() if message else ""

    def said(self) -> str:
        """The server's answer in words; "" where there was none."""
        status = _STATUS.search(self.text)
        answer = f"{status[1]} {status[2]}".strip() if status else ""
        detail = ": ".join(part for part in (self.code, self.message) if part)
        return f"{answer} ({detail})" if answer and detail else answer or detail

    def may_be_expiry(self) -> bool:
        """Whether other credentials may help: expired ones, or a refusal without a reason, as of a HEAD request."""
        if self.status not in (400, 401, 403):
            return False
        return self.status == 401 or not self.code or bool(_EXPIRED.search(f"{self.code} {self.message}"))

    def connection(self) -> str:
        """What became of the connection; "" where the server answered in full."""
        return next((words for mark, words in _CONNECTION if mark in self.words), "")


def store_error(fault: ObjectFault, where: str, kind: str, *, renewed: bool = False) -> StoreError:
    """The error to raise for a fault about the object or folder called where, in a place of this kind.

    renewed: other credentials were just asked for, so that another try makes sense.
    """
    said = fault.said()
    if renewed:
        return TemporaryStoreError(f"{where}: {said}; the credentials may have expired and were asked for again")
    if fault.code in _CONFLICTS or fault.code in _SLOW_DOWN or fault.status in TEMPORARY:
        return TemporaryStoreError(f"{where}: {said}")
    if fault.status in (404, 410) or fault.kind == "FileNotFoundError":
        if fault.code in ("NoSuchBucket", "ContainerNotFound"):
            return NotFoundError(f"{where}: {said}; check the spelling, and endpoint=")
        return NotFoundError(f"{where}: no such object; check the spelling of the URL")
    if provider := _PROVIDER.search(fault.text):
        return StoreError(f"{where}: the credential provider failed: {provider[1]}")
    refused = fault.status in (401, 403) or (fault.status == 400 and bool(_EXPIRED.search(fault.code)))
    if refused or any(mark in fault.text for mark in _NO_CREDENTIALS):
        found = said if fault.status and "169.254" not in fault.text else "no credentials were found"
        return AccessDeniedError(f"{where}: access denied: {found}; {_ADVICE[kind]}")
    if fault.kind == "AlreadyExistsError":
        return AlreadyExistsError(f"{where} exists already")
    if fault.kind == "PreconditionError":
        return ObjectChangedError(where)
    if fault.status == 416:
        return PastEndError(f"{where}: {said}")
    if "redirect" in fault.words:
        return StoreError(f"{where}: the server sends elsewhere: region= or endpoint= is probably wrong")
    if "NotPartial" in fault.words or "Range request not supported" in fault.words:
        advice = "read whole files, through a cache: CachedStore(store, directory), or --cache DIR"
        return UnsupportedOperationError(where, "be read by ranges, which its server ignores", advice)
    if "BadScheme" in fault.words:
        return StoreError(
            f"{where}: the endpoint is http://; pass allow_http=True (AWS_ALLOW_HTTP=true) if it is meant"
        )
    if connection := fault.connection():
        return TemporaryStoreError(f"{where}: {connection}")
    return StoreError(f"{where}: {said or _first_line(fault.text)}")


def settings_error(fault: ObjectFault, location: str, kind: str) -> StoreError:
    """The error to raise where the settings cannot make a client: an account is missing, a key is no key."""
    problem = _first_line(fault.text).rpartition(" error: ")[2]
    return AccessDeniedError(f"{location}: {problem}; {_ADVICE[kind]}")


def _first_line(text: str) -> str:
    """The beginning of an unknown error, without addresses."""
    return _URL.sub("...", text.partition("\n")[0])[:300]
