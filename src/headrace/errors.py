"""Every exception that Headrace raises, as one tree.

    HeadraceError
    ├── StoreError                     (OSError)
    │   ├── NotFoundError              (FileNotFoundError)   no object at this path
    │   ├── AlreadyExistsError         (FileExistsError)     put_if_absent met an object
    │   ├── TruncatedReadError                               a range reaches past the end
    │   ├── ObjectChangedError                               an object was replaced while it was read
    │   ├── DamagedObjectError                               it is not what its dataset says of it
    │   ├── AccessDeniedError          (PermissionError)     the store refuses these credentials
    │   ├── TemporaryStoreError                              another try may pass; says how often it was tried
    │   ├── UnsupportedOperationError                        the store cannot do this
    │   └── PathOutsideRootError       (ValueError)          a path that leaves the store's root
    ├── DatasetError
    │   ├── ManifestError              (ValueError)          headrace.json or a receipt is damaged
    │   │   └── ManifestVersionError                         written by a newer Headrace
    │   ├── NoDatasetError             (FileNotFoundError)   the directory holds no dataset
    │   ├── UnfinishedDatasetError                           shards are missing or still being written
    │   ├── CorruptShardError                                a file disagrees with what was recorded
    │   ├── DatasetChangedError                              the data changed under a live reader
    │   ├── SchemaMismatchError        (ValueError)          stored and asked-for element types differ
    │   ├── PartMismatchError          (ValueError)          parts that were to be merged differ in format or columns
    │   └── UnsafeDataError            (ValueError)          reading it could run code; needs the caller's word
    ├── WriteError
    │   ├── FieldError                 (ValueError)          a record does not fit the schema
    │   ├── PublishedError                                   the dataset is published, or of another kind
    │   ├── ExistingOutputError        (FileExistsError)     the directory to write to holds something
    │   ├── OutputError                (OSError)             a file of the dataset could not be stored
    │   ├── ShardOwnedError                                  another writer has the shard
    │   └── LeaseLostError                                   another writer took this shard over
    ├── PreparationError                                     a task failed; names its split
    │   └── InputError             (ValueError)          an input file or a setting for it is unusable
    ├── OptionError                    (ValueError)          an option has no valid value
    ├── ClosedError                    (RuntimeError)        used before open() or after close()
    ├── OrderError                     (ValueError)          a plan that cannot be dealt to the ranks
    ├── StateError                     (ValueError)          what was given is no saved state of this version
    │   └── StateMismatchError                               it belongs to other data, seed or settings
    ├── WorkerError                    (RuntimeError)        a loader worker failed; names its samples
    └── RankFailedError                (RuntimeError)        another process of the job failed; names its rank

An error with fields formats itself from them, so two call sites cannot phrase one fault differently. All of them
survive pickling, because they cross process borders.
"""

from collections.abc import Mapping, Sequence
from os.path import commonprefix
from typing import Any

__all__ = [
    "AccessDeniedError",
    "AlreadyExistsError",
    "ClosedError",
    "CorruptShardError",
    "DamagedObjectError",
    "DatasetChangedError",
    "DatasetError",
    "ExistingOutputError",
    "FieldError",
    "HeadraceError",
    "InputError",
    "LeaseLostError",
    "ManifestError",
    "ManifestVersionError",
    "NoDatasetError",
    "NotFoundError",
    "ObjectChangedError",
    "OptionError",
    "OrderError",
    "OutputError",
    "PartMismatchError",
    "PathOutsideRootError",
    "PreparationError",
    "PublishedError",
    "RankFailedError",
    "SchemaMismatchError",
    "ShardOwnedError",
    "StateError",
    "StateMismatchError",
    "StoreError",
    "TemporaryStoreError",
    "TruncatedReadError",
    "UnfinishedDatasetError",
    "UnsafeDataError",
    "UnsupportedOperationError",
    "WorkerError",
    "WriteError",
]


class HeadraceError(Exception):
    """The root: `except HeadraceError` catches whatever Headrace refuses."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""  # OSError has another idea of what its arguments are

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception's own recipe replays __init__ with the finished message, which subclasses with fields do not take.
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[HeadraceError], args: tuple[Any, ...], fields: dict[str, Any]) -> HeadraceError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(fields)
    return error


class StoreError(HeadraceError, OSError):
    """A store could not do what was asked; str() names the path."""


class NotFoundError(StoreError, FileNotFoundError):
    """No object exists at this path."""


class AlreadyExistsError(StoreError, FileExistsError):
    """put_if_absent met an object; that object is unchanged."""


class TruncatedReadError(StoreError):
    """A requested range reaches past the end of the object."""

    def __init__(self, path: str, start: int, length: int, size: int) -> None:
        super().__init__(
            f"{path}: bytes {start} to {start + length} were requested, but the object has {size} bytes; "
            "it was cut or replaced since it was listed"
        )
        self.path, self.start, self.length, self.size = path, start, length, size


class ObjectChangedError(StoreError):
    """An object was replaced by another while it was being read."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} was replaced while it was read; open the dataset again to read the new data")
        self.path = path


class DamagedObjectError(StoreError):
    """What a store gave of an object, again and again, is not what the dataset says of it; nothing of it was kept."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(
            f"{path}: {problem}; put the right file there, or open the dataset again if it was replaced meanwhile"
        )
        self.path, self.problem = path, problem


class AccessDeniedError(StoreError, PermissionError):
    """The store refuses: no credentials, wrong ones, or no right to this object. Trying again does not help."""


class TemporaryStoreError(StoreError):
    """The store failed in a way that may pass: overload, a reset or a stall, a cut body, an expired token.

    retry_after_s is how long the store asked to wait, None where it did not say.
    """

    def __init__(self, text: str, retry_after_s: float | None = None) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class UnsupportedOperationError(StoreError):
    """The store lacks a capability that this operation needs."""

    def __init__(self, store: str, operation: str, advice: str) -> None:
        super().__init__(f"{store} cannot {operation}; {advice}")
        self.store, self.operation = store, operation


class PathOutsideRootError(StoreError, ValueError):
    """A path is absolute, has `..`, a backslash or an empty part, and so is refused before any access."""

    def __init__(self, path: str) -> None:
        super().__init__(f"path {path!r} is refused: paths are relative to the store's root, with '/' and without '..'")
        self.path = path


class DatasetError(HeadraceError):
    """A dataset cannot be opened or read as asked."""


class ManifestError(DatasetError, ValueError):
    """A manifest or receipt is damaged, has an unknown field or contradicts itself."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}")
        self.where, self.problem = where, problem


class ManifestVersionError(ManifestError):
    """Written in a version that this Headrace does not read."""

    def __init__(self, where: str, found: object, known: Sequence[int]) -> None:
        super().__init__(
            where, f"has version {found!r}; this Headrace reads version {', '.join(map(str, known))}; upgrade headrace"
        )
        self.found, self.known = found, tuple(known)


class NoDatasetError(DatasetError, FileNotFoundError):
    """The directory is missing, empty or holds no dataset of the kind asked for."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}")
        self.where, self.problem = where, problem


class UnfinishedDatasetError(DatasetError):
    """Shards are missing, still being written, or left by a writer that died."""

    def __init__(self, where: str, problem: str, advice: str = "run the writing job again, then open it") -> None:
        super().__init__(f"{where} is unfinished: {problem}; {advice}")
        self.where, self.problem = where, problem


class CorruptShardError(DatasetError):
    """A shard's file is missing, has another size or another digest than recorded."""

    def __init__(self, where: str, shard: int, problem: str, elements: tuple[int, int] | None = None) -> None:
        span = "" if elements is None else f" (global range {elements[0]} to {elements[1]}, exclusive)"
        super().__init__(f"{where}, shard {shard}{span}: {problem}; `headrace verify` lists every damaged shard")
        self.where, self.shard, self.problem, self.elements = where, shard, problem, elements


class DatasetChangedError(DatasetError):
    """Files were replaced after this reader opened the dataset."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where} changed while it was open: {problem}; open it again to read the new data")
        self.where, self.problem = where, problem


class SchemaMismatchError(DatasetError, ValueError):
    """The stored kind or element type is not the one asked for."""

    def __init__(
        self, where: str, what: str, stored: object, requested: object, advice: str = "ask for the stored one"
    ) -> None:
        super().__init__(f"{where} stores {what} {stored!r}, but {requested!r} was requested; {advice}")
        self.where, self.what, self.stored, self.requested = where, what, stored, requested


class PartMismatchError(DatasetError, ValueError):
    """Parts that were to become one dataset differ in format or columns; nothing was merged."""

    def __init__(self, where: str, parts: tuple[str, str], difference: str) -> None:
        super().__init__(
            f"{where}: {parts[0]} and {parts[1]} cannot be one dataset: {difference}; convert one of them, or keep "
            "them under different roots"
        )
        self.where, self.parts, self.difference = where, parts, difference


class UnsafeDataError(DatasetError, ValueError):
    """Reading this data could run whatever code its writer put in."""

    def __init__(self, what: str, option: str, otherwise: str) -> None:
        super().__init__(
            f"{what}, and reading them can run any code that is in them; pass {option} only for data whose writer you "
            f"trust, or {otherwise}"
        )
        self.what, self.option = what, option


class WriteError(HeadraceError):
    """A record or a shard was refused; nothing of it was committed."""


class FieldError(WriteError, ValueError):
    """A record's field does not fit the schema; names field, value and position. Nothing of the record was written."""

    def __init__(self, field: str, problem: str, record: str = "") -> None:
        super().__init__(f"{record and f'{record}, '}field {field!r}: {problem}")
        self.field, self.problem, self.record = field, problem, record


class PublishedError(WriteError):
    """What is there is kept: the dataset is published and so immutable, or of another kind."""

    def __init__(
        self,
        where: str,
        problem: str = "is published, so its shards cannot change",
        advice: str = "overwrite it (overwrite=True for a writer, --overwrite on the command line), which withdraws "
        "what is there and starts over",
    ) -> None:
        super().__init__(f"{where} {problem}; write to another directory, or {advice}")
        self.where, self.problem = where, problem


class ExistingOutputError(WriteError, FileExistsError):
    """The directory to write to holds something already; nothing of it was changed."""

    def __init__(self, where: str, problem: str, advice: str = "pass exist_ok=True to replace the dataset") -> None:
        super().__init__(f"{where} {problem}; write to an empty directory, or {advice}")
        self.where, self.problem = where, problem


class OutputError(WriteError, OSError):
    """A file could not be stored, so the dataset has no index; what was stored before can be gone on with."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(
            f"{where}: could not be stored: {problem}; no index was written, and a writer with resume=True goes on "
            "after the last whole shard"
        )
        self.where, self.problem = where, problem


class ShardOwnedError(WriteError):
    """Another writer holds the lease of this shard (or of the whole dataset)."""

    def __init__(
        self,
        where: str,
        what: str,
        holder: Mapping[str, Any],
        age_s: float,
        advice: str = "give each shard one writer, or pass force=True if that process is stuck for good",
    ) -> None:
        super().__init__(
            f"{where}: {what} is being written by process {holder.get('pid')} on host {holder.get('host')} "
            f"since {age_s:.0f} s; {advice}"
        )
        self.where, self.what, self.holder, self.age_s = where, what, dict(holder), age_s


class LeaseLostError(WriteError):
    """Another writer took this shard over by force; this writer can no longer commit it."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"{where}: {what} was taken over by another writer; nothing of this attempt was committed")
        self.where, self.what = where, what


class PreparationError(HeadraceError):
    """A preparation task failed; its siblings were stopped and nothing was published."""


class InputError(PreparationError, ValueError):
    """A raw input is missing, damaged or not of the form it was said to be; names the file and the line or byte."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}")
        self.where, self.problem = where, problem


class OptionError(HeadraceError, ValueError):
    """An option has a value that means nothing; names the option, the value and what is valid."""

    def __init__(self, option: str, value: object, expected: str) -> None:
        super().__init__(f"{option}={value!r} is not valid; expected {expected}")
        self.option, self.value, self.expected = option, value, expected


class ClosedError(HeadraceError, RuntimeError):
    """A reader, writer or loader was used before open() or after close(), or an iterator after it was overtaken."""


class OrderError(HeadraceError, ValueError):
    """A batch plan that cannot be dealt to the ranks, or a view in a place where it cannot stand."""


class StateError(HeadraceError, ValueError):
    """What was given is no state, one of another version, or a damaged one."""


def _where_they_differ(*texts: str) -> list[str]:
    """The texts; of long ones the part that differs first."""
    if max(map(len, texts)) <= 80:
        return list(texts)
    begin = max(0, len(commonprefix(texts)) - 20)  # noqa: RUF071 -- of characters is what is meant
    parts = [(text, text[begin : begin + 60]) for text in texts]
    return ["..." * (begin > 0) + part + "..." * (begin + 60 < len(text)) for text, part in parts]


class StateMismatchError(StateError):
    """A saved state belongs to other data, seed or settings; names each field that differs."""

    def __init__(self, differences: Mapping[str, tuple[object, object]]) -> None:
        shown = {name: _where_they_differ(repr(old), repr(new)) for name, (old, new) in differences.items()}
        lines = "; ".join(f"{name}: saved {old}, current {new}" for name, (old, new) in shown.items())
        super().__init__(
            f"the saved state does not belong to this run ({lines}); restore the data and settings it was saved with"
        )
        self.differences = dict(differences)


class WorkerError(HeadraceError, RuntimeError):
    """A loader worker failed; carries the original type's name, text and traceback, and the samples it was at."""


class RankFailedError(HeadraceError, RuntimeError):
    """Another rank failed in what all ranks go through together; names it, and what it said."""

    def __init__(self, block: str, rank: int, text: str) -> None:
        super().__init__(f"rank {rank} failed in {block}: {text}; its own output has the traceback")
        self.block, self.rank, self.text = block, rank, text
