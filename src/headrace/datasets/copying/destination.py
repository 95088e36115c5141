"""Where a copy goes: empty, or with the beginning of the same copy, and nobody else's meanwhile.

    DST/.headrace/copy.json            what is being copied; while it is there the dataset is unfinished
    DST/.headrace/samples/copy.json    of samples
    DST/...                            files, each whole and checked before it has its name
    DST/headrace.json, DST/index.json  the commit, put if none is there; then .headrace goes

Foreign files have no commit: there the end is that copy.json goes.
"""

import contextlib
from functools import partial
from typing import NamedTuple

import msgspec

from headrace.datasets.copying.contents import Contents, CopiedFile
from headrace.datasets.ledger import DATASET, PRIVATE
from headrace.datasets.samples.conditional import put_first
from headrace.datasets.samples.many_requests import delete_all
from headrace.datasets.samples.ownership import WRITER, Ownership, leased, refuse_to_write
from headrace.datasets.samples.withdrawal import PART, content, remove_if_empty
from headrace.errors import AlreadyExistsError, ExistingOutputError, ShardOwnedError, StoreError
from headrace.store import FileInfo, LocalStore, Store, confirmed

__all__ = ["Destination"]

_VERSION = 1
_TRUSTED_S = 1.0
_TRIES = 3  # with a store that keeps less than it says
_AGAIN = "copy again: what is whole stays"
_ANOTHER = "remove what is there first"


class _Note(msgspec.Struct, frozen=True):
    """copy.json."""

    version: int
    identity: str
    source: str


_DAMAGED = _Note(0, "", "of which the note is damaged")


class Found(NamedTuple):
    """What lies at a destination."""

    is_whole: bool
    files: dict[str, FileInfo]


class Destination:
    """The place of one copy. Nothing is written before begin()."""

    def __init__(self, store: Store, contents: Contents) -> None:
        refuse_to_write(store)
        self.store = store
        self._contents = contents
        self._note = f"{contents.private}/copy.json"
        self._owned = Ownership(trusted_s=_TRUSTED_S if store.capabilities.remote else 0.0)
        self.check = self._owned.check
        self.renew = self._owned.renew

    def look(self) -> Found:
        """What is there; ExistingOutputError where it is anything but this dataset, whole or in part."""
        if isinstance(self.store, LocalStore) and self.store.root.is_file():
            raise ExistingOutputError(self.store.location, "is a file", "remove it")
        files = self._listed()
        note = self._read_note()
        visible = [path for path in files if not path.startswith(f"{PRIVATE}/")]
        if note is _DAMAGED and not visible:
            note = None  # nothing is copied before the note is whole
        if note is not None and note.identity == self._contents.identity:
            self._refuse_what_came_since(files)
            return Found(False, files)
        if note is not None:
            problem = f"holds the beginning of a copy of another dataset, {note.source}"
            raise ExistingOutputError(self.store.location, problem, "go on with that one, or remove what is there")
        commit = content(self.store, self._contents.commits[-1][0]) if self._contents.commits else None
        if (commit or visible) and not self._has_all(files):
            files = self._listed()  # a copy may have been done since the first listing
            visible = [path for path in files if not path.startswith(f"{PRIVATE}/")]
        if commit is not None:
            self._refuse_another(commit, files)
            return Found(True, files)
        if not self._contents.commits and visible and self._has_all(files):
            return Found(True, files)  # as far as names and sizes tell
        others = visible or [path for path in files if "/leases/" not in path and path != self._note]
        if others:
            shown = ", ".join(others[:3]) + ", ..." * (len(others) > 3)
            raise ExistingOutputError(self.store.location, f"is not empty ({shown})", _ANOTHER)
        return Found(False, files)

    def begin(self, source: str) -> Found:
        """Take the place, for this process alone, and note what is copied there."""
        name = DATASET if self._contents.private == PRIVATE else WRITER
        self._owned.hold(self.store, leased(self.store, private=self._contents.private, name=name))
        try:
            for folder in {path.rpartition("/")[0] for path, _ in self._contents.commits}:
                self.store.remove_orphans(folder)  # of a copier that was killed as it put a commit
            found = self.look()  # again: somebody may have been faster
            if not found.is_whole and self._read_note() in (None, _DAMAGED):
                self._put_note(msgspec.json.encode(_Note(_VERSION, self._contents.identity, source)))
        except BaseException:
            self.release()
            raise
        return found

    def is_littered(self, found: Found) -> bool:
        """Whether beside a whole copy lies what a copier left that was killed as it tidied up, and nothing else."""
        hidden = [path for path in found.files if path.startswith(f"{PRIVATE}/")]
        are_left = all("/leases/" in path or path.endswith(PART) for path in hidden)
        return found.is_whole and are_left and PRIVATE in self.store.folders()

    def clear(self, found: Found, source: str) -> Found:
        """Remove it; what is there now comes back. ShardOwnedError where foreign files do not open beside a lease."""
        try:
            found = self.begin(source)
        except ShardOwnedError:
            if not self._contents.commits:
                raise
            return found  # another one's to remove
        if found.is_whole:
            self.tidy()
        return found

    def confirm(self, copied: dict[str, FileInfo]) -> None:
        """Return if every file is there, those that were copied now as they were confirmed; StoreError if not."""
        found = self._listed()
        for file in self._contents.files:
            where = f"{self.store.location}/{file.path}"
            info, known = found.get(file.path), copied.get(file.path)
            if info is None or info.size_bytes != file.size_bytes:
                size = "no" if info is None else info.size_bytes
                raise StoreError(f"{where} has {size} bytes now, but {file.size_bytes} were copied; {_AGAIN}")
            if known is not None and info.version != known.version:
                raise StoreError(f"{where} was replaced by somebody else after it was copied; remove it, then {_AGAIN}")

    def commit(self) -> None:
        """Make it a dataset."""
        self._owned.distrust()
        self.check()
        for path, data in self._contents.commits[:-1]:
            put_first(self.store, path, data, "while this one was copied there")
        for path, data in self._contents.commits[-1:]:
            try:
                self.store.put_if_absent(path, data)
            except AlreadyExistsError:
                self._refuse_another(self.store.get(path), {})
            _, kept = confirmed(self.store, path, len(data), partial(tuple, (data,)))
            if kept:
                self.store.delete(path)
                raise StoreError(f"{self.store.location}/{path}: the store kept {kept}; {_AGAIN}")

    def tidy(self) -> None:
        """Remove the notes and let the next one in. Of foreign files this is the commit, so the note goes last."""
        private = self._contents.private
        if self.store.capabilities.rename:
            self.store.remove_folder(private)
            remove_if_empty(self.store, private.rpartition("/")[0] or private)
            self.release()
            return
        if self._contents.commits:
            self.store.delete(self._note)
            self.release()
            return
        self.release()
        delete_all(self.store, [info.path for info in self.store.list(private) if info.path != self._note])
        self.store.delete(self._note)

    def release(self) -> None:
        """Let the next one in. Twice is harmless."""
        self._owned.release()

    def _listed(self) -> dict[str, FileInfo]:
        return {info.path: info for info in self.store.list()}

    def _put_note(self, raw: bytes) -> None:
        """Not over a successor's: by another note than its own, its files would be taken for those of this copy."""
        for _ in range(_TRIES):
            with contextlib.suppress(AlreadyExistsError):
                self.store.put_if_absent(self._note, raw)
            if content(self.store, self._note) == raw:
                return
            self._owned.check_anew()
            self.store.delete(self._note)
        raise StoreError(f"{self.store.location}/{self._note}: the store kept less than {len(raw)} bytes; {_AGAIN}")

    def _read_note(self) -> _Note | None:
        raw = content(self.store, self._note)
        try:
            return None if raw is None else msgspec.json.decode(raw, type=_Note)
        except msgspec.DecodeError:
            return _DAMAGED

    def _refuse_what_came_since(self, files: dict[str, FileInfo]) -> None:
        """ExistingOutputError where somebody wrote beside the note: his files may look like those of the copy."""
        own = {self._note, *(file.path for file in self._contents.files), *(path for path, _ in self._contents.commits)}
        others = [path for path in files if path not in own and "/leases/" not in path and not path.endswith(PART)]
        for path, data in self._contents.commits[-1:]:
            if path in files and content(self.store, path) != data:
                others.append(path)
        if others:
            shown = ", ".join(others[:3]) + ", ..." * (len(others) > 3)
            since = f"somebody has begun to write another dataset there since ({shown})"
            raise ExistingOutputError(self.store.location, f"holds the beginning of this copy, and {since}", _ANOTHER)

    def _has_all(self, files: dict[str, FileInfo]) -> bool:
        return all(_is_there(file, files) for file in self._contents.files)

    def _refuse_another(self, commit: bytes, files: dict[str, FileInfo]) -> None:
        name, data = self._contents.commits[-1]
        if commit != data:
            raise ExistingOutputError(self.store.location, f"holds another dataset ({name} differs)", _ANOTHER)
        for file in self._contents.files if files else ():
            if not _is_there(file, files):
                problem = f"holds this dataset, but {file.path} is missing or has another size"
                raise ExistingOutputError(self.store.location, problem, f"remove its {name} and what else is there")


def _is_there(file: CopiedFile, files: dict[str, FileInfo]) -> bool:
    return file.path in files and files[file.path].size_bytes == file.size_bytes
