"""Parts of one dataset of samples, written by tasks that a scheduler may run again, or twice at once.

    OUT/.headrace/samples/    while the run lasts: the driver's lease, and the name of this run
    OUT/00003/                what a task wrote of share 3: shards, and an index once it is whole
    OUT/00003-1/              the same by another attempt, if 00003 is still being written, or was written
    OUT/index.json            the commit: the parts that the scheduler took for results, in the order of the shares

Each attempt writes a part of its own, and the one whose result was taken counts, whole. What others left is removed;
one that still writes is fenced off first, so that it can commit nothing any more. A task that starts too late finds the
run's name gone. Without failures the names of the parts are those of their shares, whoever wrote them.
"""

import contextlib
import re
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import count
from typing import Any, Self

from headrace.datasets.neighbours import refuse_shards
from headrace.datasets.samples import MDSWriter, merge_index
from headrace.datasets.samples.index import INDEX
from headrace.datasets.samples.ownership import Ownership, leased, refuse_to_write
from headrace.datasets.samples.withdrawal import (
    LEASES,
    PLAN,
    PRIVATE,
    begin,
    content,
    has_index,
    is_shard_file,
    remove_if_empty,
    remove_private,
    withdraw,
)
from headrace.errors import (
    ExistingOutputError,
    HeadraceError,
    InputError,
    ShardOwnedError,
    StoreError,
    UnfinishedDatasetError,
)
from headrace.store import FolderStore, Store, attempt_id, holder_of
from headrace.store.lease import RENEW_EVERY_S

__all__ = ["Parts", "Run"]

_RUN = f"{PRIVATE}/run"
_PART = re.compile(r"[0-9]{5,}(?:-[0-9]+)?")
_SHARED = "pass as out a place that the driver and all its workers reach, and run it again"


class Parts:
    """What a task needs to write a part: where, how, and for which run. It pickles as configuration.

    stores get the files, and the one that counts is the last; options are MDSWriter's, without out.
    """

    def __init__(self, stores: Sequence[Store], run: str, options: Mapping[str, Any]) -> None:
        self.where = stores[-1].location
        self._stores = tuple(stores)
        self._run = run
        self._options = dict(options)

    def write(self, share: int, samples: Iterable[Mapping[str, Any]]) -> str | None:
        """Write the samples of this share; the part's name once it is whole, None where there are no samples."""
        part = writer = None
        with contextlib.ExitStack() as stack:
            for sample in samples:
                if writer is None:  # late, so that an empty share leaves nothing
                    part, writer = self._opened(share)
                    stack.enter_context(writer)
                    self._refuse_if_ended()  # with the lease: a driver that ends now finds this attempt
                writer.write(sample)
        return part

    def _opened(self, share: int) -> tuple[str, MDSWriter]:
        """A part that nobody else writes or has written, and its writer."""
        self._refuse_if_ended()
        for attempt in count():
            part = f"{share:05d}-{attempt}" if attempt else f"{share:05d}"
            places = [FolderStore(store, part) for store in self._stores]
            out = (places[0], places[1]) if len(places) > 1 else places[0]
            with contextlib.suppress(ExistingOutputError, ShardOwnedError):
                return part, MDSWriter(out=out, keep_local=len(places) > 1, **self._options)
        raise AssertionError("count() does not end")

    def _refuse_if_ended(self) -> None:
        if content(self._stores[-1], _RUN) != self._run.encode():
            problem = "the run that this task belongs to has ended, or is not seen from here"
            raise UnfinishedDatasetError(self.where, problem, _SHARED)


class Run:
    """The driver's side: the place is this run's alone from __enter__ to __exit__, and a dataset from commit() on.

    A run that ends by an exception leaves nothing; one that is killed leaves parts, which the next one removes.
    exist_ok=True replaces what is there. ExistingOutputError, ShardOwnedError where it is not, or somebody writes.
    """

    def __init__(self, stores: list[Store], *, exist_ok: bool) -> None:
        self.name = attempt_id()
        self._stores = stores
        self._exist_ok = exist_ok
        self._owned = Ownership()
        self._committed = False
        self._ended = threading.Event()
        self._renewing = threading.Thread(target=self._renew, name="lease", daemon=True)

    def __enter__(self) -> Self:
        for store in self._stores:
            refuse_to_write(store)
            _refuse_what_is_there(store, exist_ok=self._exist_ok)
        try:
            for store in self._stores:
                self._owned.take(store)
                _refuse_what_is_there(store, exist_ok=self._exist_ok)  # again: somebody may have been faster
            for store in self._stores:
                withdraw(store)
                _remove_parts(store)
                store.put(_RUN, self.name.encode())
                begin(store)
        except BaseException:
            self._leave()
            raise
        self._renewing.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._ended.set()
        self._renewing.join()
        if not self._committed:
            with contextlib.suppress(HeadraceError):  # LeaseLostError: what is there is another run's
                self._end([])
                self._tidy()
        self._owned.release()

    def commit(self, parts: Sequence[str], *, merge: bool) -> None:
        """Make one dataset of these parts, in this order, and remove all others; without merge, leave them as they are.

        InputError where there are none, UnfinishedDatasetError where one is not to be seen from here.
        """
        if not parts:
            raise InputError(self._stores[-1].location, "there are no samples; nothing was written")
        place = self._stores[-1]
        there = {info.path for info in place.list()}
        missing = [part for part in parts if f"{part}/{INDEX}" not in there]
        if missing:
            problem = f"{len(missing)} of {len(parts)} parts are not seen by the driver ({', '.join(missing[:3])})"
            raise UnfinishedDatasetError(place.location, problem, _SHARED)
        self._end(parts)
        if merge:
            root = (self._stores[0], place) if len(self._stores) > 1 else place
            merge_index([FolderStore(place, part) for part in parts], root)
        self._committed = True
        with contextlib.suppress(StoreError):  # the dataset is there, whatever is left beside it
            self._tidy()

    def _end(self, keep: Collection[str]) -> None:
        """Let no task begin any more, and remove all parts but these."""
        self._owned.check()
        for store in reversed(self._stores):  # where tasks look, first
            store.put(_RUN, b"")
        for store in self._stores:
            _remove_parts(store, keep=keep, force=True)
        self._owned.check()

    def _tidy(self) -> None:
        for store in self._stores:
            remove_private(store)

    def _leave(self) -> None:
        """Release the leases, and leave no trace of them where nothing is begun."""
        with contextlib.suppress(StoreError):
            for store in self._owned.stores:
                if all(info.path.startswith(f"{LEASES}/") for info in store.list(PRIVATE)):
                    remove_private(store)
        self._owned.release()

    def _renew(self) -> None:
        while not self._ended.wait(RENEW_EVERY_S):
            with contextlib.suppress(HeadraceError):  # what is lost for good shows in _end()
                self._owned.renew()


def _refuse_what_is_there(store: Store, *, exist_ok: bool) -> None:
    refuse_shards(store)
    if has_index(store):
        if not exist_ok:
            raise ExistingOutputError(store.location, f"holds a dataset already ({INDEX} is there)")
    elif content(store, PLAN) is not None:
        problem = "is being prepared, or was not prepared to its end"
        raise ExistingOutputError(store.location, problem, "prepare it again, or remove the directory")
    for part in _parts(store):
        if holder_of(FolderStore(store, part), LEASES, "writer") is not None:
            leased(FolderStore(store, part), "this part").release()  # refuses while the writer lives
    if exist_ok:
        return
    is_left = content(store, _RUN) is not None  # by a run that was killed
    for info in store.list():
        part, _, rest = info.path.partition("/")
        is_of_run = is_left and _PART.fullmatch(part) and (is_shard_file(rest) or rest == INDEX)
        if not (is_of_run or f"/{PRIVATE}/" in f"/{info.path}"):
            raise ExistingOutputError(store.location, f"is not empty ({info.path} is there)")


def _parts(store: Store) -> list[str]:
    return [folder for folder in store.folders() if _PART.fullmatch(folder)]


def _remove_parts(store: Store, *, keep: Collection[str] = (), force: bool = False) -> None:
    """Remove the parts but those to keep; force takes them from writers that live, which then cannot commit."""
    for folder in _parts(store):
        if folder not in keep:
            part = FolderStore(store, folder)
            lease = leased(part, "this part", force=force)
            store.remove_orphans(folder)
            withdraw(part)
            remove_private(part)
            lease.release()
            if store.capabilities.rename:
                remove_if_empty(store, folder)
