"""A task makes one shard from one split, and is named by what goes into it.

    task id = digest(split, target's settings, make_records, settings)

So finished work is recognised whoever did it, with however many workers, and work for other data or with other settings
never passes for it.
"""

import dataclasses
import hashlib
import inspect
import json
import os
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any, ClassVar, Protocol

import numpy as np

from headrace.errors import FieldError, InputError, PreparationError

__all__ = ["Failure", "MakeRecords", "Outcome", "ShardWriter", "Stop", "Target", "Task", "plan_tasks", "run_task"]

Record = Any  # whatever the target's writer appends
Described = Any  # nested lists, strings and numbers
MakeRecords = Callable[[Any], Iterable[Any]]
_ID_VERSION = 1


class ShardWriter(Protocol):
    """The part of a storage's writer that a task uses."""

    def start(self, shard: int) -> None:
        """Open the shard, so that it exists after the commit even without a record."""
        ...

    def append(self, shard: int, record: Record) -> None:
        """Append one record to the shard."""
        ...


class Target(Protocol):
    """A storage that prepare() can fill: shards with receipts, a plan, a publication. It pickles as configuration."""

    @property
    def storage_dir(self) -> object:
        """Where it is, for messages."""
        ...

    takes_metadata: ClassVar[bool]  # whether publish() has a place for it

    def sync_writer(
        self, *, overwrite: bool = False, force: bool = False, tasks: Mapping[int, str] | None = None
    ) -> AbstractContextManager[ShardWriter]:
        """A writer that commits its shards at a clean exit and nothing at an exception; tasks go into the receipts."""
        ...

    def record_plan(self, tasks: Sequence[str], *, overwrite: bool = False) -> None:
        """Record the task id of each shard; PublishedError on a published directory, which overwrite=True withdraws."""
        ...

    def planned_tasks(self) -> list[str] | None:
        """The recorded plan, None if there is none."""
        ...

    def finished_tasks(self) -> dict[int, str]:
        """shard -> task id of the shards that have a valid receipt."""
        ...

    def finished_length(self) -> int:
        """How much those shards hold; 0 says that there was no record at all."""
        ...

    def is_published(self) -> bool:
        """Whether the manifest is there."""
        ...

    def recover(self) -> None:
        """Remove what dead processes left behind."""
        ...

    def publish(self, metadata: Mapping[str, Any] | None = None) -> object:
        """Check that everything is there and commit it as one dataset."""
        ...

    def describe(self) -> Mapping[str, Any]:
        """num_shards, total_length and total_bytes, of the published dataset."""
        ...

    def settings_digest(self) -> str:
        """Changes with anything that changes the bytes of a shard."""
        ...


class Stop(Protocol):
    """What tells a running task to give up: a threading.Event has this shape."""

    def is_set(self) -> bool:
        """Whether to give up."""
        ...


@dataclasses.dataclass(frozen=True)
class Task:
    """One shard to make from one split."""

    shard: int
    id: str
    split: Any

    def __str__(self) -> str:
        split = str(self.split)
        return f"shard {self.shard} (split {split if len(split) <= 300 else split[:297] + '...'})"


class Failure:
    """An exception that crosses process borders whatever it is: where it does not pickle, as its text."""

    def __init__(self, error: BaseException) -> None:
        self.error: BaseException | None = error
        self.summary = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        self.remote_traceback: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        text = "".join(traceback.format_exception(self.error)) if self.error else self.remote_traceback
        error = self.error
        try:
            ForkingPickler.loads(ForkingPickler.dumps(error))
        except Exception:  # an exception whose constructor takes other arguments than its args breaks at the far side
            error = None
        return {"error": error, "summary": self.summary, "remote_traceback": text}

    def cause(self) -> BaseException:
        """The original exception, or a RuntimeError with its text, with the worker's traceback as a note."""
        cause = self.error if self.error is not None else RuntimeError(self.summary)
        if self.remote_traceback is not None:
            cause.add_note(f"In the worker process:\n{self.remote_traceback}")
        return cause


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a task ended."""

    shard: int
    num_records: int = 0
    failure: Failure | None = None


def plan_tasks(
    splits: Iterable[Any], make_records: MakeRecords, target: Target, settings: Mapping[str, Any] | None
) -> list[Task]:
    """One task a split, in order; shard k is made from split k.

    Raises PreparationError for a split, a make_records or a setting that has no stable description.
    """
    common = [_ID_VERSION, target.settings_digest(), _described(make_records), _described(settings)]
    return [Task(shard, _digest([*common, _described(split)]), split) for shard, split in enumerate(splits)]


def run_task(
    task: Task,
    make_records: MakeRecords,
    target: Target,
    *,
    tell: Callable[[int], None] | None = None,
    stop: Stop | None = None,
) -> Outcome:
    """The task's outcome; the shard is committed, or the outcome has a failure and nothing of it is.

    tell hears of the bytes read, if the split can say. Records that have a `where()` say what they were made from when
    the writer refuses one. Only KeyboardInterrupt and SystemExit are raised.
    """
    num_records = 0
    records: Iterable[Record] = ()
    try:
        observed = getattr(task.split, "observed", None)
        split = observed(tell) if tell is not None and observed is not None else task.split
        with target.sync_writer(tasks={task.shard: task.id}) as writer:
            writer.start(task.shard)
            records = make_records(split)
            for record in records:
                if stop is not None and stop.is_set():
                    raise PreparationError("stopped because another task failed")
                writer.append(task.shard, record)
                num_records += 1
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # panics of Rust extensions are no Exception
        return Outcome(task.shard, num_records, Failure(_located(error, records)))
    return Outcome(task.shard, num_records)


def _located(error: BaseException, records: Iterable[Record]) -> BaseException:
    """The error, or one that names the input's line where a field of the last record was refused."""
    where = getattr(records, "where", None)
    if not isinstance(error, FieldError) or where is None:
        return error
    located = InputError(where(), f"column {error.field!r}: {error.problem}")
    located.__cause__ = error
    return located


def _digest(description: Described) -> str:
    text = json.dumps(description, ensure_ascii=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _described(value: object) -> Described:
    """The value as nested lists, strings and numbers: the same in every process, different for different values."""
    match value:
        case None | bool() | int() | float() | str():
            return value if type(value) in (type(None), bool, int, float, str) else [_name(type(value)), str(value)]
        case bytes():
            return ["bytes", value.hex()]
        case os.PathLike():
            return ["path", os.fspath(value)]
        case Mapping():
            pairs = [[_described(key), _described(item)] for key, item in value.items()]
            return ["mapping", sorted(pairs, key=json.dumps)]
        case range():
            return ["range", value.start, value.stop, value.step]
        case list() | tuple():
            return ["sequence", *map(_described, value)]
        case set() | frozenset():
            return ["set", *sorted(map(_described, value), key=json.dumps)]
        case np.generic():
            return _described(value.item())
        case np.ndarray() if not value.dtype.hasobject:
            return ["array", value.dtype.str, list(value.shape), hashlib.blake2b(value.tobytes()).hexdigest()]
        case partial():
            return ["partial", _described(value.func), _described(value.args), _described(value.keywords)]
        case type():
            return _name(value)
    return _described_object(value)


def _described_object(value: object) -> Described:
    if callable(identity := getattr(value, "identity", None)):
        return [_name(type(value)), _described(identity())]
    if inspect.ismethod(value):
        return ["method", _name(value.__func__), _described(value.__self__)]
    if inspect.isroutine(value):
        return _name(value)
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.compare}
        return [_name(type(value)), _described(fields)]
    if type(value).__module__ != "builtins" and getattr(value, "__dict__", None) is not None:
        return [_name(type(value)), _described(vars(value))]
    raise PreparationError(
        f"{value!r} of type {_name(type(value))} has no stable description by which finished work could be "
        "recognised; use numbers, strings, paths, tuples, mappings or dataclasses, or give it a method identity() "
        "that returns such"
    )


def _name(value: Callable[..., Any]) -> str:
    return f"{value.__module__}.{value.__qualname__}"
