"""What can go wrong with a request to a store, and when: the rules of a FaultStore."""

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

from headrace.errors import AccessDeniedError, AlreadyExistsError, NotFoundError, StoreError, TemporaryStoreError

__all__ = [
    "Action",
    "Break",
    "Call",
    "Cut",
    "Delay",
    "Expire",
    "Flip",
    "Forget",
    "Refuse",
    "Rule",
    "Run",
    "Stall",
    "Status",
    "status_error",
]


class Call(NamedTuple):
    """One request, as the caller made it."""

    operation: str
    path: str  # of a rename: the source
    num_bytes: int  # asked for or given; 0 where the operation moves none, or before a read knows


@dataclass(frozen=True)
class Delay:
    """Wait before the request goes on."""

    seconds: float


@dataclass(frozen=True)
class Cut:
    """Only the first num_bytes bytes of the object exist."""

    num_bytes: int


@dataclass(frozen=True)
class Flip:
    """The byte at offset of the object has all its bits inverted; negative counts from the end (get, view, put)."""

    offset: int


@dataclass(frozen=True)
class Forget:
    """Say that it was done, and do nothing."""


@dataclass(frozen=True)
class Refuse:
    """Raise error instead."""

    error: BaseException


@dataclass(frozen=True)
class Status:
    """Answer with an HTTP status, so that the error is the one that every store raises for it."""

    code: int
    retry_after_s: float | None = None
    performed: bool = False


@dataclass(frozen=True)
class Stall:
    """Nothing comes for so many seconds, and then the client gives up: TemporaryStoreError."""

    seconds: float


@dataclass(frozen=True)
class Break:
    """The connection breaks after so many bytes of the object, and the client sees it: TemporaryStoreError.

    A read that needs no byte behind them is whole.
    """

    num_bytes: int = 0
    performed: bool = False


@dataclass(frozen=True)
class Expire:
    """The token has expired: TemporaryStoreError where a provider gives a new one, else AccessDeniedError."""

    renewable: bool = True


@dataclass(frozen=True)
class Run:
    """Call function first: to kill the process here, to change something behind the caller's back, to raise."""

    function: Callable[[Call], object]


Action = Delay | Cut | Flip | Forget | Refuse | Status | Stall | Break | Expire | Run


@dataclass(frozen=True)
class Rule:
    """What happens to requests that match.

    operation None means any; path is a glob in which `*` matches `/` too, and of a rename either name may match. The
    rule acts from the nth matching request on (the first is 1), times times (None: for ever).
    """

    action: Action
    operation: str | None = None
    path: str = "*"
    nth: int = 1
    times: int | None = None

    def matches(self, operation: str, *paths: str) -> bool:
        """Whether the rule speaks of this request, its turn aside."""
        return self.operation in (None, operation) and any(fnmatchcase(path, self.path) for path in paths)


def status_error(status: Status, where: str) -> StoreError:
    """What a store over HTTP raises for a status."""
    text = f"{where}: HTTP status {status.code}"
    match status.code:
        case 404 | 410:
            return NotFoundError(f"{where}: no such object")
        case 401 | 403:
            return AccessDeniedError(f"{text}; look at the credentials")
        case 409 | 412:
            return AlreadyExistsError(f"{where} exists already")
        case 408 | 425 | 429:
            return TemporaryStoreError(text, status.retry_after_s)
        case code if code >= 500:
            return TemporaryStoreError(text, status.retry_after_s)
    return StoreError(text)
