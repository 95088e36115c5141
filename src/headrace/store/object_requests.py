"""A process's connection to an object store: made at first use, made anew in a forked child and after credentials."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headrace.errors import HeadraceError, TemporaryStoreError
from headrace.store.object_errors import ObjectFault, settings_error, store_error
from headrace.store.object_places import ObjectPlace
from headrace.store.object_waits import wanted_wait_s
from headrace.store.obstore_client import Held, obstore_client
from headrace.store.store import checked_folder, checked_path

__all__ = ["ObjectRequests"]


_MUCH_BYTES = 1 << 20


class _Connection:
    """What one process has."""

    def __init__(self, held: Held, kind: tuple[int, bool], renewed: bool) -> None:
        self.held = held
        self.kind = kind
        self.renewed = renewed  # made because credentials had expired, and no request has gone well since


class ObjectRequests:
    """Requests to one place, from any process and thread; pickles as the place."""

    def __init__(self, place: ObjectPlace) -> None:
        self.place = place
        self._connections: dict[tuple[int, bool], _Connection] = {}  # process id, whether for sending much

    def __getstate__(self) -> ObjectPlace:
        return self.place

    def __setstate__(self, place: ObjectPlace) -> None:
        self.__init__(place)  # type: ignore[misc]

    def close(self) -> None:
        """Let go of this process's connection; the next request makes another."""
        for sends_much in (False, True):
            self._connections.pop((os.getpid(), sends_much), None)

    @contextmanager
    def about(self, path: str, *, folder: bool = False, sent_bytes: int = 0) -> Iterator[tuple[Any, Any, str]]:
        """obstore, this process's client of it, and the key of the object, or with folder=True the folder, at path.

        sent_bytes is how long a body goes with the requests.
        What obstore raises within becomes the store's error, and names the path.
        """
        key = self.place.key(checked_folder(path) if folder else checked_path(path))
        obstore = obstore_client()
        kind = (os.getpid(), sent_bytes > _MUCH_BYTES)
        connection = self._connections.get(kind)
        if connection is None:
            connection = self._connections[kind] = self._connected(obstore, kind)
        try:
            yield obstore, connection.held.client, key
        except HeadraceError:
            raise
        except (obstore.exceptions.BaseError, FileNotFoundError, ValueError) as error:
            raise self._fault(
                (obstore, connection.held.client, key), connection, path, error
            ) from None  # its text may hold a signature
        else:
            connection.renewed = False

    def _connected(self, obstore: Any, kind: tuple[int, bool], *, renewed: bool = False) -> _Connection:
        try:
            return _Connection(Held(self.place.client(obstore, sends_much=kind[1])), kind, renewed)
        except (obstore.exceptions.BaseError, ValueError) as error:
            raise settings_error(ObjectFault(error), self.place.location, self.place.kind) from None

    def _fault(
        self, request: tuple[Any, Any, str], connection: _Connection, path: str, error: Exception
    ) -> HeadraceError:
        fault = ObjectFault(error)
        renewed = self.place.options.credential_provider is not None and fault.may_be_expiry()
        renewed = renewed and not connection.renewed
        if renewed and self._connections.get(kind := connection.kind) is connection:
            self._connections[kind] = self._connected(request[0], kind, renewed=True)  # it asks the provider again
        known = store_error(fault, self.place.named(path), self.place.kind, renewed=renewed)
        if isinstance(known, TemporaryStoreError):
            known.retry_after_s = wanted_wait_s(self.place, fault.status, request)
        return known
