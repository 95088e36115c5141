"""Who a process is, written so that another process can tell whether it is still alive.

An identity is `{host}-{boot}-{pid}-{start}`: a digest of host name, machine id and process-id namespace; the start of
the kernel's boot id; the process id; and the process's start time in clock ticks, because process ids are used again.
An attempt is an identity and a number that this process counts up, so no two attempts in the world are equal.
"""

import hashlib
import itertools
import os
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

__all__ = ["attempt_id", "is_dead", "is_here", "let_go", "process_identity"]

ATTEMPT_PATTERN = r"[0-9a-f]{8}-[0-9a-f]{8}-[0-9]{1,9}-[0-9]{1,19}-[0-9]{1,19}"
_PARTS = re.compile(r"([0-9a-f]{8})-([0-9a-f]{8})-([1-9][0-9]{0,8})-([0-9]{1,19})(?:-[0-9]{1,19})?")
_UNKNOWN_BOOT = "0" * 8
_UNKNOWN_START = 0  # macOS has no /proc: there a process id in use counts as alive
_attempts = itertools.count(1)  # next() on it is atomic, so threads need no lock
_let_go: set[str] = set()


class Identity(NamedTuple):
    """The parts of an identity or attempt."""

    host: str
    boot: str
    pid: int
    start_ticks: int


def process_identity() -> str:
    """This process as "{host8}-{boot8}-{pid}-{start}"; a forked child has its own."""
    return _identity_text(os.getpid())


def attempt_id() -> str:
    """A name that no other call in any process has given: this process's identity, "-", and a counter."""
    return f"{process_identity()}-{next(_attempts)}"


def is_here(attempt_or_identity: str) -> bool:
    """Whether that process ran on this host, so that is_dead can tell; False for text that is no identity."""
    identity = parsed_identity(attempt_or_identity)
    return identity is not None and identity.host == _host()


def let_go(attempt: str) -> None:
    """From now on the attempt, one of this process, counts as dead here; others still see its process alive.

    Does nothing but remember, so that a finalizer may call it, in whatever thread and whatever that one holds.
    """
    _let_go.add(attempt)


def is_dead(attempt_or_identity: str) -> bool:
    """True only if that process provably lives no more, or let go of it; False whenever this host cannot know.

    Proof is: same host, and another boot, or no such process, or one that started at another time. A stopped process
    is alive. A zombie is dead: it will never run again.
    """
    if attempt_or_identity in _let_go:
        return True
    identity = parsed_identity(attempt_or_identity)
    if identity is None or identity.host != _host():
        return False
    if _UNKNOWN_BOOT not in (identity.boot, _boot()) and identity.boot != _boot():
        return True
    return not _is_running(identity.pid, identity.start_ticks)


def parsed_identity(text: str) -> Identity | None:
    """The parts of an identity or attempt; None for any other text."""
    match = _PARTS.fullmatch(text)
    return Identity(match[1], match[2], int(match[3]), int(match[4])) if match else None


@cache
def _identity_text(pid: int) -> str:
    status = _status(pid)
    return f"{_host()}-{_boot()}-{pid}-{status[1] if status else _UNKNOWN_START}"


@cache
def _host() -> str:
    # The machine id keeps two machines that are both called "localhost" apart; the namespace keeps containers apart,
    # whose process ids mean nothing to one another.
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    parts = (os.uname().nodename, _text("/etc/machine-id"), namespace)
    return hashlib.blake2b("\0".join(parts).encode(errors="surrogateescape"), digest_size=4).hexdigest()


@cache
def _boot() -> str:
    text = _text("/proc/sys/kernel/random/boot_id")[:8]
    return text if re.fullmatch("[0-9a-f]{8}", text) else _UNKNOWN_BOOT


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""


def _is_running(pid: int, start_ticks: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # somebody else's, so there is one
    status = _status(pid)
    if status is None:
        return True  # /proc hides it or does not exist: no proof
    ended, started = status
    return not ended and (_UNKNOWN_START in (start_ticks, started) or started == start_ticks)


def _status(pid: int) -> tuple[bool, int] | None:
    """Whether the process has ended (a zombie without threads), and its start in ticks since boot."""
    try:
        raw = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = raw[raw.rindex(b")") + 2 :].split()  # the name before it may hold blanks and brackets
    ended = fields[0] in (b"Z", b"X") and int(fields[17]) <= 1
    return ended, int(fields[19])


def _forget_parent() -> None:
    # A child may get the process id of a dead ancestor, or live in another namespace.
    _identity_text.cache_clear()
    _host.cache_clear()


os.register_at_fork(after_in_child=_forget_parent)
