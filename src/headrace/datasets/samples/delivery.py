"""One file's way to a store: whole, confirmed by its size and the store's digest, tried again where a try failed.

In a directory a file is written under a private name and renamed. An object store has no renames: there an object
appears whole as its request ends. What is large goes up from a file of this machine, in bounded memory, and right
before it appears, the writer looks whether the place is still its own. So it does afterwards, in case that it slept
meanwhile.
"""

import contextlib
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator

from headrace.datasets.samples.conditional import put_first, remove_rest
from headrace.datasets.samples.index import INDEX
from headrace.datasets.samples.late_files import take_back, take_back_index
from headrace.datasets.samples.ownership import Ownership
from headrace.datasets.samples.pending import RawFile
from headrace.datasets.samples.withdrawal import PART, PRIVATE, content, is_shard_file
from headrace.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    ExistingOutputError,
    LeaseLostError,
    OutputError,
    StoreError,
    TemporaryStoreError,
    UnsupportedOperationError,
)
from headrace.store import Buffer, FileInfo, Store, attempt_id, confirmed

__all__ = ["Delivery", "put_pieces"]

_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 5.0


class Delivery:
    """Stores files, as long as the places are owned.

    Every method raises OutputError, which names the object, when all tries failed.
    """

    def __init__(self, tries: int, owned: Ownership) -> None:
        self._tries = tries
        self._owned = owned
        self._stopped = threading.Event()
        self._dropped = False
        self._stored: dict[tuple[int, str], FileInfo] = {}  # (id of the store, name) -> the object as it was confirmed

    def put(self, store: Store, name: str, data: Buffer) -> None:
        """Store what is in memory."""
        self._try(store, name, memoryview(data).nbytes, lambda: store.put(name, data), lambda: (data,))

    def put_receipt(self, store: Store, name: str, receipt: bytes) -> None:
        """Store what a successor has under the same name; where there are no renames, never over a successor's."""

        def put() -> None:
            if store.capabilities.rename:
                store.put(name, receipt)
                return
            try:
                store.put_if_absent(name, receipt)
            except AlreadyExistsError:
                if content(store, name) == receipt:
                    return  # of an earlier try, of which the answer was lost
                self._owned.check_anew()
                store.delete(name)  # a dead owner's that came late, or what the store kept of an earlier try
                store.put_if_absent(name, receipt)

        self._try(store, name, len(receipt), put, lambda: (receipt,))

    def put_raw(self, stores: Iterable[Store], name: str, raw: RawFile) -> None:
        """Store a file that may wait on the disk, in every store."""
        with contextlib.ExitStack() as stack:
            spooled = ""
            for store in stores:
                if raw.in_memory:
                    self.put(store, name, raw.whole())
                elif store.capabilities.rename:
                    self._try(
                        store,
                        name,
                        raw.num_bytes,
                        lambda place=store: put_pieces(place, PRIVATE, name, raw.pieces()),  # type: ignore[misc]
                        raw.pieces,
                    )
                else:
                    spooled = spooled or stack.enter_context(_spooled(raw))
                    self._try(
                        store,
                        name,
                        raw.num_bytes,
                        lambda place=store, file=spooled: place.upload(name, file, check=self._owned.check),  # type: ignore[misc]
                        raw.pieces,
                    )

    def put_index(self, store: Store, index: bytes) -> bool:
        """Store the index; where there are no renames, only if none is there, since a writer withdraws an older one.

        Whether it was put; the same one may have been there. ExistingOutputError where another one came meanwhile.
        """
        was_put = False

        def put() -> None:
            nonlocal was_put
            if was_put and not store.capabilities.rename:
                self._owned.check_anew()
                remove_rest(store, INDEX, index, own=True)
            if store.capabilities.rename:
                store.put(INDEX, index)
                was_put = True
            else:
                was_put |= put_first(store, INDEX, index, "while this dataset was written")

        try:
            self._try(store, INDEX, len(index), put, lambda: (index,))
        except OutputError:
            with contextlib.suppress(OSError):
                remove_rest(store, INDEX, index, own=was_put)
            raise
        except LeaseLostError:
            if was_put:
                take_back_index(store, index)
            raise
        return was_put

    def confirm(self, store: Store) -> None:
        """Return if every file is there as it was when it was stored: nothing was lost, nobody else wrote it since.

        Of a directory nothing is asked: what was renamed there is there.
        """
        if store.capabilities.rename:
            return
        listed = {info.path: info for info in store.list(recursive=False)}
        for (of, name), stored in list(self._stored.items()):
            if of != id(store):
                continue
            found = listed.get(name)
            if found is None or found.size_bytes != stored.size_bytes:
                size = "no" if found is None else found.size_bytes
                problem = f"it has {size} bytes now, but {stored.size_bytes} were stored and confirmed"
                raise OutputError(f"{store.location}/{name}", problem)
            if found.version != stored.version:
                raise OutputError(f"{store.location}/{name}", "somebody else replaced it after it was stored")

    def retried(self, where: str, request: Callable[[], None]) -> None:
        """The request, until a try does not fail; OutputError with where after the last one."""
        for attempt in range(self._tries):
            try:
                return request()
            except ExistingOutputError:
                raise
            except OSError as caught:
                error = caught
            if isinstance(error, AccessDeniedError | UnsupportedOperationError) or _was_repeated(error):
                break
            if attempt + 1 < self._tries:
                self._stopped.wait(min(_FIRST_WAIT_S * 2**attempt, _LONGEST_WAIT_S))
                if self._stopped.is_set() or self._dropped:
                    break
        tries = "1 try" if attempt == 0 else f"{attempt + 1} tries"
        try:
            raise OutputError(where, f"{error} ({tries})") from error
        finally:
            del error  # else error and frame hold one another, and with them the output and its leases

    def stop(self) -> None:
        """Give up waiting for another try."""
        self._stopped.set()

    def drop(self) -> None:
        """What a finalizer may do instead: it waits for nothing, be it a lock."""
        self._dropped = True

    def _try(
        self,
        store: Store,
        name: str,
        num_bytes: int,
        put: Callable[[], None],
        pieces: Callable[[], Iterable[Buffer]],
    ) -> None:
        """put() until the store has name as pieces() gives it."""
        flat = not store.capabilities.rename
        # In a directory, a file in flight is taken from a writer that lost its place; only a failure makes it ask.
        asks, began = flat, False

        def put_whole() -> None:
            nonlocal asks, began
            if asks:
                self._owned.check()
            asks = began = True
            put()
            found, kept = confirmed(store, name, num_bytes, pieces)
            if found is None or kept:
                raise StoreError(f"the store kept {kept}, though it said that all was well")
            if flat and is_shard_file(name):
                self._stored[id(store), name] = found
                self._owned.check()

        try:
            self.retried(f"{store.location}/{name}", put_whole)
        except LeaseLostError:
            if began and flat and is_shard_file(name):
                with contextlib.suppress(StoreError):
                    take_back(store, name, pieces)
            raise


def _was_repeated(error: OSError) -> bool:
    """Whether the store itself tried as often as its own policy allows."""
    return isinstance(error, TemporaryStoreError) and isinstance(error.__cause__, TemporaryStoreError)


def put_pieces(
    store: Store, private: str, path: str, pieces: Iterable[Buffer], *, check: Callable[[], None] = lambda: None
) -> None:
    """Store a file by renaming one in the folder private, of which nothing is left where that fails.

    check is called right before the file gets its name, which it does not where that raises.
    """
    part = f"{private}/{attempt_id()}{PART}"  # a name of its own: a successor stores the same file
    store.make_folder(private)
    try:
        writer = store.open_writer(part)
        try:
            for piece in pieces:
                writer.write(piece)
            writer.sync()
        finally:
            writer.close()
        check()
        store.rename(part, path)
    except BaseException:
        with contextlib.suppress(StoreError):
            store.delete(part)
        raise


@contextlib.contextmanager
def _spooled(raw: RawFile) -> Iterator[str]:
    """A file of this machine with all of raw."""
    with tempfile.NamedTemporaryFile(prefix="headrace-") as spool:
        for piece in raw.pieces():
            spool.write(piece)
        spool.flush()
        yield spool.name
