"""One owner at a time, and takeover from the dead.

A lease is a numbered token, `<folder>/<xx>/<name>.<token>.lease`, made by put_if_absent; xx, two hexadecimal digits of
the name's digest, keeps listings short when one process holds ten thousand. The holder is who made the highest token;
taking over means making the next one:

    held by a dead process             acquire()                                  held
    name.1.lease          ->  name.1.lease, name.2.lease  ->  on_takeover(1)  ->  name.2.lease
                              the claim: one of many wins     the fence           the dead one's token goes last

A crash between any two steps leaves tokens of dead processes, and the next acquire() treats all of them as above.

The lease alone does not stop a holder that was only asleep. on_takeover does: it must make the predecessor's next
commit step impossible, for example by renaming its attempt folder away. Therefore a holder

- creates its attempt folder before acquire(), or calls check() after creating it: a folder that appears after the
  takeover would escape the fence;
- commits only by renames out of that folder, and never creates the folder again.

A store without renames has no such fence. There a holder calls check() right before each change, and what it commits
names the objects that it is about, so that one which comes too late shows (datasets/upload_attempts.py).

Processes of this host are judged by whether they live, however old their lease is. Of another host's processes nothing
is known, so their lease counts for expires_s after it was made or renewed (`<name>.<token>.beat`), by the store's own
clock, which is read by writing `<name>.0.clock`.
"""

import hashlib
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, TypedDict

import msgspec

from headrace.errors import AlreadyExistsError, LeaseLostError, NotFoundError, ShardOwnedError, StoreError
from headrace.store.identity import attempt_id, is_dead, is_here, let_go, parsed_identity, process_identity
from headrace.store.store import FileInfo, Store

__all__ = [
    "Holder",
    "Lease",
    "acquire",
    "attempt_id",
    "holder_of",
    "is_dead",
    "open_leases",
    "process_identity",
]

RENEW_EVERY_S = 60.0
_FILE = re.compile(r"(.+)\.([0-9]{1,18})\.(lease|beat|clock)", re.DOTALL)


class Holder(TypedDict):
    """Who made a token, as it says itself."""

    host: str
    boot: str
    pid: int
    started: int  # clock ticks since boot
    attempt: str
    acquired_at: float  # seconds since 1970 by the holder's clock


class Lease:
    """The right to write one thing, held until release() or until another process takes it over."""

    def __init__(self, store: Store, path: str, token: int, *, what: str, content: bytes, attempt: str) -> None:
        self.token = token
        self.attempt = attempt
        self._store = store
        self._path = path  # without "<token>.lease"
        self._what = what
        self._content = content
        self._process = os.getpid()
        self._renewed_s = time.monotonic()
        self._has_beat = not store.capabilities.remote  # for all that is known: to look there costs a request
        self._released = False

    def check(self) -> None:
        """Return if this lease is still held; LeaseLostError after a takeover, a release or a fork."""
        if self._released or self._process != os.getpid() or not self._is_own():
            raise LeaseLostError(self._store.location, self._what)
        # Tokens are made in turn and deleted from the lowest, so a successor's is the next one while ours exists.
        try:
            self._store.head(_token_path(self._path, self.token + 1))
        except NotFoundError:
            return
        raise LeaseLostError(self._store.location, self._what)

    def renew(self) -> None:
        """Keep processes on other hosts from taking the lease for expired. Costs something once a minute only.

        Raises LeaseLostError, once a minute, when the lease is lost.
        """
        if time.monotonic() - self._renewed_s < RENEW_EVERY_S:
            return
        self.check()
        # A file of its own: rewriting the token could bring it back after a successor deleted it.
        beat = f"{self._path}.{self.token}.beat"
        self._has_beat = True
        self._store.put(beat, b"")
        self._renewed_s = time.monotonic()
        try:
            self.check()
        except LeaseLostError:
            self._store.delete(beat)
            raise

    def release(self) -> None:
        """Let the next one in. Twice is harmless, and so is a lost lease or a forked child's copy.

        Where the store does not answer, that raises, and it was let_go().
        """
        if self._released or self._process != os.getpid():
            return
        self._released = True
        try:
            if self._is_own():  # after a takeover and a release the same number may be somebody else's
                if self._has_beat:
                    self._store.delete(f"{self._path}.{self.token}.beat")
                self._store.delete(_token_path(self._path, self.token))
        except BaseException:
            let_go(self.attempt)
            raise

    def let_go(self) -> None:
        """Let the next one of this process in, without a request: for finalizers, which must not wait for anything.

        Processes elsewhere take the lease for held until this one ends or somebody here takes it over.
        """
        if not self._released and self._process == os.getpid():
            let_go(self.attempt)

    def _is_own(self) -> bool:
        try:
            return self._store.get(_token_path(self._path, self.token)) == self._content
        except NotFoundError:
            return False


def acquire(
    store: Store,
    folder: str,
    name: str,
    *,
    what: str,
    attempt: str,
    force: bool = False,
    expires_s: float = 3600.0,
    on_takeover: Callable[[str], None],
) -> Lease:
    """The lease called name, once nobody alive holds it; ShardOwnedError, with the holder, while somebody does.

    what names the thing in messages. force takes the lease from a living holder too. on_takeover gets the attempt of
    every predecessor, lowest first, before any of their tokens is deleted; it may be called again for an attempt that a
    crashed taker had handled. Of many concurrent callers at most one wins, and exactly one if the holder was dead.
    """
    path = _lease_path(folder, name)
    content = _encoded(attempt)
    while True:
        seen = _Tokens.listed(store, path)
        if not force:
            _refuse_if_held(store, path, seen, what=what, expires_s=expires_s)
        token = max(seen.leases, default=0) + 1
        lease = Lease(store, path, token, what=what, content=content, attempt=attempt)
        try:
            try:
                store.put_if_absent(_token_path(path, token), content)
            except AlreadyExistsError:
                if not lease._is_own():  # ours after all where a store repeats a request whose answer was lost
                    continue
            if _Tokens.listed(store, path).without(token) != seen.leases:
                # What we judged is not what is there now: somebody came and went while we were looking.
                lease.release()
                continue
            _take_over(store, seen, on_takeover)
        except BaseException:  # also where only the answer to the claim was lost, or Ctrl-C came right behind it
            with suppress(StoreError):
                lease.release()
            raise
        return lease


def open_leases(store: Store, folder: str) -> dict[str, Holder]:
    """The holder of every lease in the folder, dead or alive, by name.

    A holder whose file says nothing readable has pid 0 and an empty attempt.
    """
    highest: dict[str, tuple[int, str]] = {}  # name -> token, path
    for entry in store.list(folder):
        name, token, kind = _parsed(entry.path)
        if kind == "lease" and entry.path == _token_path(_lease_path(folder, name), token):
            highest[name] = max(highest.get(name, (0, "")), (token, entry.path))
    holders = {name: _holder(store, path) for name, (_, path) in highest.items()}
    return {name: holder for name, holder in holders.items() if holder is not None}


def holder_of(store: Store, folder: str, name: str) -> Holder | None:
    """The holder of one lease, dead or alive; None when nobody has it."""
    tokens = _Tokens.listed(store, _lease_path(folder, name)).leases
    return _holder(store, tokens[max(tokens)].path) if tokens else None


class _Tokens(NamedTuple):
    """What one listing says about one lease."""

    leases: dict[int, FileInfo]
    beats: dict[int, FileInfo]
    rest: list[str]  # beats and clocks: nobody misses them once the lease changes hands

    @classmethod
    def listed(cls, store: Store, path: str) -> "_Tokens":
        found = cls({}, {}, [])
        folder, _, name = path.rpartition("/")
        for entry in store.list(folder, recursive=False):
            entry_name, token, kind = _parsed(entry.path)
            if entry_name != name:
                continue
            if kind == "lease":
                found.leases[token] = entry
            else:
                found.rest.append(entry.path)
            if kind == "beat":
                found.beats[token] = entry
        return found

    def without(self, token: int) -> dict[int, FileInfo]:
        return {other: entry for other, entry in self.leases.items() if other != token}


def _refuse_if_held(store: Store, path: str, seen: _Tokens, *, what: str, expires_s: float) -> None:
    for token, entry in sorted(seen.leases.items(), reverse=True):
        holder = _holder(store, entry.path)
        if holder is None or is_dead(holder["attempt"]):
            continue  # one that vanished is noticed by the second listing
        if is_here(holder["attempt"]):
            raise ShardOwnedError(store.location, what, holder, max(0.0, time.time() - holder["acquired_at"]))
        now_s = _store_clock_s(store, path)
        renewed = seen.beats.get(token, entry)
        if now_s - max(entry.modified_s, renewed.modified_s) < expires_s:
            raise ShardOwnedError(store.location, what, holder, max(0.0, now_s - entry.modified_s))


def _take_over(store: Store, seen: _Tokens, on_takeover: Callable[[str], None]) -> None:
    predecessors = sorted(seen.leases.items())
    for _, entry in predecessors:
        holder = _holder(store, entry.path)
        if holder is not None and holder["attempt"]:
            on_takeover(holder["attempt"])
    for _, entry in predecessors:
        store.delete(entry.path)
    for leftover in seen.rest:
        store.delete(leftover)


def _store_clock_s(store: Store, path: str) -> float:
    clock = f"{path}.0.clock"
    while True:
        store.put(clock, b"")
        try:
            now_s = store.head(clock).modified_s
        except NotFoundError:  # another contender reads the clock too and was done first
            continue
        store.delete(clock)
        return now_s


def _lease_path(folder: str, name: str) -> str:
    fan = hashlib.blake2b(name.encode(), digest_size=1).hexdigest()
    return f"{folder}/{fan}/{name}" if folder else f"{fan}/{name}"


def _parsed(path: str) -> tuple[str, int, str]:
    """Name, token and kind of a file; ("", 0, "") when it is not part of a lease."""
    match = _FILE.fullmatch(path.rpartition("/")[2])
    return (match[1], int(match[2]), match[3]) if match else ("", 0, "")


def _token_path(path: str, token: int) -> str:
    return f"{path}.{token}.lease"


def _encoded(attempt: str) -> bytes:
    identity = parsed_identity(attempt) or parsed_identity(process_identity())
    assert identity is not None  # a process always has one
    holder = Holder(
        host=os.uname().nodename,
        boot=identity.boot,
        pid=identity.pid,
        started=identity.start_ticks,
        attempt=attempt,
        acquired_at=time.time(),
    )
    return msgspec.json.encode(holder)


def _holder(store: Store, path: str) -> Holder | None:
    """Who made the token; None when it is gone."""
    try:
        return msgspec.json.decode(store.get(path), type=Holder)
    except NotFoundError:
        return None
    except msgspec.DecodeError:  # cut short by a power failure: nobody to ask, so it can only expire
        return Holder(host="(unknown)", boot="", pid=0, started=0, attempt="", acquired_at=0.0)
