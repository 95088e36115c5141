"""One file's way from one store to another: read once, checked on the way, whole before it has its name."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator

from headrace.datasets.copying.contents import CopiedFile
from headrace.datasets.samples.delivery import put_pieces
from headrace.errors import DatasetChangedError, HeadraceError, StoreError
from headrace.formats.digests import new_digest
from headrace.store import FileInfo, Store, confirmed, file_pieces
from headrace.store.below import directory_of

__all__ = ["DamagedCopyError", "StoppedError", "Transfer"]

_IN_MEMORY_BYTES = 8 << 20  # up to here a file goes up from memory
_TRIES = 3


class DamagedCopyError(HeadraceError):
    """What was read has another digest than recorded; the text says which."""


class StoppedError(HeadraceError):
    """Another file failed, or the user has enough."""


class Transfer:
    """Copies files; the same object serves many threads.

    tell hears how many bytes were read, check raises where the destination is somebody else's now, and stopped tells
    whether to give up. private is the folder of a writer's notes.
    """

    def __init__(
        self,
        source: Store,
        target: Store,
        *,
        private: str,
        tell: Callable[[int], None],
        check: Callable[[], None],
        stopped: Callable[[], bool],
    ) -> None:
        self._source, self._target, self._private = source, target, private
        self._tell, self._check, self._stopped = tell, check, stopped

    def copy(self, file: CopiedFile) -> FileInfo:
        """Copy the file; what the destination says of it comes back.

        DamagedCopyError where the source does not have what is recorded, StoreError where a store fails.
        """
        for attempt in range(_TRIES):
            is_last = attempt + 1 == _TRIES
            try:
                found, kept = self._store(file)
            except DamagedCopyError:
                if is_last:
                    raise
                self._tell(-file.size_bytes)
                continue  # perhaps it was damaged on the way
            if found and not kept:
                return found
            self._target.delete(file.path)
            self._tell(-file.size_bytes)
        where = f"{self._target.location}/{file.path}"
        raise StoreError(f"{where}: the store kept {kept}, though it said that all was well")

    def _store(self, file: CopiedFile) -> tuple[FileInfo | None, str]:
        """Store the file; what the destination says of it, and what it kept instead of it."""
        if self._target.capabilities.rename:
            if folder := file.path.rpartition("/")[0]:
                self._target.make_folder(folder)
            put_pieces(self._target, self._private, file.path, self._checked_pieces(file), check=self._check)
            return self._target.head(file.path), ""  # what was renamed there is what was written
        if file.size_bytes <= _IN_MEMORY_BYTES:
            data = b"".join(self._checked_pieces(file))
            self._check()
            self._target.put(file.path, data)
            return confirmed(self._target, file.path, file.size_bytes, lambda: (data,))
        with self._file_of(file) as path:
            self._target.upload(file.path, path, check=self._check)
            return confirmed(self._target, file.path, file.size_bytes, lambda: file_pieces(path))

    @contextlib.contextmanager
    def _file_of(self, file: CopiedFile) -> Iterator[str]:
        """A file of this machine with the content, checked."""
        directory = directory_of(self._source)
        if directory is not None:
            before = self._source.head(file.path)
            for _ in self._checked_pieces(file):
                pass
            yield str(directory / file.path)
            if self._source.head(file.path) != before:
                raise DatasetChangedError(self._source.location, f"{file.path} was replaced while it was copied")
            return
        with tempfile.NamedTemporaryFile(prefix="headrace-") as spool:
            for piece in self._checked_pieces(file):
                spool.write(piece)
            spool.flush()
            yield spool.name

    def _checked_pieces(self, file: CopiedFile) -> Iterator[memoryview]:
        digest = new_digest(file.hash_name) if file.hash_name else None
        size_bytes = 0
        for piece in self._source.pieces(file.path):
            if self._stopped():
                raise StoppedError(f"{file.path}: stopped before it was copied")
            if digest is not None:
                digest.update(piece)
            size_bytes += len(piece)
            self._tell(len(piece))
            yield piece
        if size_bytes != file.size_bytes:
            problem = f"{file.path} has {size_bytes} bytes, but {file.size_bytes} are recorded"
            self._tell(file.size_bytes - size_bytes)
            raise DamagedCopyError(problem)
        if digest is not None and digest.hexdigest() != file.digest:
            raise DamagedCopyError(
                f"{file.path} has the {file.hash_name} digest {digest.hexdigest()}, but {file.digest} is recorded"
            )
