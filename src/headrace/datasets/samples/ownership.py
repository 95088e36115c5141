"""One writer at a time: the leases of the places that it writes to, and what a successor does to a dead predecessor."""

import contextlib
import gc
import math
import threading
import time
from functools import partial

from headrace.datasets.samples.withdrawal import PART, PRIVATE
from headrace.errors import NotFoundError, ShardOwnedError, StoreError, UnsupportedOperationError
from headrace.store import Lease, Store, acquire, attempt_id, process_identity

__all__ = ["WRITER", "Ownership", "leased", "refuse_to_write"]

_OWNED = "write to a directory of its own, wait until that process is done, or end it, which lets the next one in"
WRITER = "writer"
_LEASE_TRIES = 200
_LEASE_WAIT_S = 0.02
_dropped: set[str] = set()  # attempts of writers that were dropped before their end


class Ownership:
    """The leases that a writer has. check() asks again only trusted_s after it last asked."""

    def __init__(self, *, trusted_s: float = 0.0) -> None:
        self._leases: list[Lease] = []
        self.stores: list[Store] = []  # that were taken
        self._trusted_s = trusted_s
        self._checked_s = -math.inf

    def take(self, store: Store) -> None:
        """Take the store; ShardOwnedError while somebody alive has it."""
        self.hold(store, leased(store))

    def hold(self, store: Store, lease: Lease) -> None:
        """Answer for this lease, too."""
        self._leases.append(lease)
        self.stores.append(store)

    def check(self) -> None:
        """Return if all leases are held; LeaseLostError where another writer took one."""
        if self._trusted_s and time.monotonic() - self._checked_s < self._trusted_s:
            return
        for lease in self._leases:
            lease.check()
        self._checked_s = time.monotonic()

    def check_anew(self) -> None:
        """check(), whenever it last asked."""
        self.distrust()
        self.check()

    def distrust(self) -> None:
        """Let the next check() ask, whenever the last one was."""
        self._checked_s = -math.inf

    def renew(self) -> None:
        """Keep other hosts from taking the leases for abandoned; costs something once a minute only."""
        for lease in self._leases:
            lease.renew()

    def drop(self) -> None:
        """Let the next writer of this process in once let_go() was called. Waits for nothing."""
        _dropped.update(lease.attempt for lease in self._leases)

    def let_go(self) -> None:
        """For finalizers: see Lease.let_go()."""
        for lease in self._leases:
            lease.let_go()

    def release(self) -> None:
        """Let the next one in. Twice is harmless."""
        while self._leases:
            with contextlib.suppress(StoreError):  # who comes next takes it from a dead one
                self._leases.pop().release()


def refuse_to_write(store: Store) -> None:
    """UnsupportedOperationError for a store that takes no objects, or cannot tell who was first."""
    if not store.capabilities.write:
        raise UnsupportedOperationError(store.location, "be written to", "write to a directory or an object store")
    if not store.capabilities.conditional:
        advice = "write to another store, or to a directory and upload that"
        raise UnsupportedOperationError(store.location, "keep to one writer at a time: it lacks puts if absent", advice)


def leased(
    store: Store, what: str = "this dataset", *, force: bool = False, private: str = PRIVATE, name: str = WRITER
) -> Lease:
    """The right to write here; ShardOwnedError, which says what is owned, while somebody alive has it.

    force takes it from a living writer, too, which then cannot commit anything any more. private is the folder of a
    writer's notes, and name what the lease is called there.
    """
    take = partial(_lease, store, private, name, what, force=force)
    for _ in range(_LEASE_TRIES - 1):
        try:
            return take()
        except NotFoundError:  # somebody who just finished removed the folder that the lease was put into
            continue
        except ShardOwnedError as error:
            if not _is_dropped(error.holder.get("attempt", "")):
                raise
            threading.Event().wait(_LEASE_WAIT_S)
    return take()


def _is_dropped(attempt: str) -> bool:
    """Whether it is that of a writer of this process which nobody refers to any more, only its threads."""
    if attempt.startswith(f"{process_identity()}-") and attempt not in _dropped:
        gc.collect()  # a traceback may have kept it
    return attempt in _dropped


def _lease(store: Store, private: str, name: str, what: str, *, force: bool) -> Lease:
    folder, fence = f"{private}/leases", partial(_fence, store, private)
    try:
        return acquire(store, folder, name, what=what, attempt=attempt_id(), force=force, on_takeover=fence)
    except ShardOwnedError as error:
        raise ShardOwnedError(error.where, error.what, error.holder, error.age_s, _OWNED) from None


def _fence(store: Store, private: str, attempt: str) -> None:
    """Take from a predecessor what it has in flight: one that slept in the middle of storing a file must not end it."""
    if attempt.startswith(f"{process_identity()}-"):
        return  # one of this process, which let go of the place once nothing was in flight
    for folder in ("", private):
        store.remove_orphans(folder, of=attempt)
    for info in store.list(private, recursive=False):
        if info.path.endswith(PART):
            store.delete(info.path)
