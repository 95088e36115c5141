"""SampleStorage: a directory of samples as what prepare() fills, one folder a task, merged at the end.

    DIR/.headrace/samples/plan.json   the tasks, until all are done
    DIR/00000-<task id>/              what the task of shard 0 wrote: shards, and an index once it is whole
    DIR/index.json                    the commit: the indexes of all tasks, merged in their order

What stays is Streaming's files alone; the names of the folders tell which tasks were done.
"""

import contextlib
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from headrace.datasets.neighbours import refuse_shards
from headrace.datasets.samples.dataset import SampleDataset
from headrace.datasets.samples.index import INDEX
from headrace.datasets.samples.many_requests import delete_all, each
from headrace.datasets.samples.merge import merge_index
from headrace.datasets.samples.options import Place, opened_place
from headrace.datasets.samples.output import leased
from headrace.datasets.samples.sample_writer import SampleWriter
from headrace.datasets.samples.shard_index import ShardIndex
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
from headrace.datasets.samples.writer import MDSWriter
from headrace.errors import (
    AlreadyExistsError,
    ExistingOutputError,
    OptionError,
    PublishedError,
    UnfinishedDatasetError,
)
from headrace.formats.digests import checked_hashes
from headrace.manifest import VERSION, Plan
from headrace.store import FolderStore, MemoryStore, Store, holder_of

__all__ = ["SampleStorage"]

_TASK_FOLDER = re.compile(r"([0-9]{5,})-([0-9a-f]{32})")
_DEFAULT_HASHES = ("xxh3_64",)


class SampleStorage:
    """A directory of samples with these columns, as a target of prepare(). Constructing it reads and writes nothing.

    storage_dir is a path or a Store. writer is one of the five writers, and options are its parameters (separator and
    newline included); without a word the index records `xxh3_64` digests. Options about where to write, and how to
    begin, do not belong here: prepare() decides them.
    """

    takes_metadata: ClassVar[bool] = False  # index.json has no place for it

    def __init__(
        self,
        storage_dir: Place,
        columns: Mapping[str, Any],
        writer: type[SampleWriter] = MDSWriter,
        **options: Any,
    ) -> None:
        if fixed := {"out", "keep_local", "exist_ok", "resume", "progress_bar"} & set(options):
            raise OptionError(min(fixed), options[min(fixed)], "nothing: prepare() decides this")
        self.storage_dir = storage_dir
        self.columns = dict(columns)
        self.store: Store = opened_place(storage_dir, "storage_dir")
        if not isinstance(writer, type) or not issubclass(writer, SampleWriter):
            raise OptionError("writer", writer, "MDSWriter, JSONWriter, CSVWriter, TSVWriter or XSVWriter")
        self._writer = writer
        # As every task and every process uses it: an iterator would be used up by the first one.
        hashes = checked_hashes(options.get("hashes", _DEFAULT_HASHES))
        self._options = {**options, "hashes": hashes}
        self._recorded: tuple[str, ...] | None = None  # the plan that this process asked for
        self._opened(MemoryStore()).finish()  # what is wrong with columns or options shows here, not in a task

    def __repr__(self) -> str:
        return f"SampleStorage({self.store.location!r})"

    def dataset(self, **options: Any) -> SampleDataset:
        """SampleDataset of this directory, read with the encodings that it is written with."""
        own = [given for given in self.columns.values() if not isinstance(given, str)]
        return SampleDataset(self.storage_dir, **{"encodings": own, **options})

    @contextlib.contextmanager
    def sync_writer(
        self, *, overwrite: bool = False, force: bool = False, tasks: Mapping[int, str] | None = None
    ) -> "Iterator[_TaskWriter]":
        """A writer of these tasks' folders; each has an index after a clean exit, and none after an exception."""
        writer = _TaskWriter(self, dict(tasks or {}))
        with contextlib.ExitStack() as stack:
            writer.stack = stack
            yield writer

    def record_plan(self, tasks: Sequence[str], *, overwrite: bool = False) -> None:
        """Record the tasks; until all are done the directory does not open.

        PublishedError where a dataset is that other tasks wrote, ExistingOutputError where other files are, unless
        overwrite=True withdraws the dataset; other files stay, and a dataset of another kind is refused in any case.
        ShardOwnedError while somebody writes.
        """
        refuse_shards(self.store)
        folders = [_folder(shard, task) for shard, task in enumerate(tasks)]
        known = self._task_folders()
        each(self.store, self._refuse_living_writer, ("", *known))
        if not overwrite:
            self._refuse_others(set(folders), set(known))
        # The index first, here and in each folder: no moment shows a part as a whole, nor another plan's as this one's.
        withdraw(self.store, keep=frozenset(folders))
        for folder in known:
            if folder not in folders:
                self._remove_task(folder)
        plan = Plan(VERSION, tuple(tasks))
        self._put_plan(plan.to_json())
        begin(self.store)
        self._recorded = plan.tasks

    def planned_tasks(self) -> list[str] | None:
        """The tasks recorded, or those whose folders make up the dataset; None where there are none."""
        if (plan := self._plan()) is not None:
            folders = [_folder(*task) for task in enumerate(plan.tasks)]
            return list(plan.tasks) if self._lists_only(folders) else None  # else it is somebody else's dataset
        found = self._task_folders()
        if not found or [shard for shard, _ in found.values()] != list(range(len(found))):
            return None
        return [task for _, task in found.values()] if self._lists_only(found) else None

    def finished_tasks(self) -> dict[int, str]:
        """Shard and task of the folders that have an index."""
        known = self._task_folders()
        finished = each(self.store, lambda folder: has_index(FolderStore(self.store, folder)), known)
        return {shard: task for (shard, task), is_whole in zip(known.values(), finished, strict=True) if is_whole}

    def finished_length(self) -> int:
        """Samples in those folders."""
        paths = [f"{_folder(shard, task)}/{INDEX}" for shard, task in self.finished_tasks().items()]
        indexes = each(self.store, self.store.get, paths)
        where = self.store.location
        return sum(ShardIndex(raw, f"{where}/{path}").num_samples for path, raw in zip(paths, indexes, strict=True))

    def is_published(self) -> bool:
        """Whether index.json is there."""
        return has_index(self.store)

    def recover(self) -> None:
        """Remove what dead processes left in flight; what they left unfinished is written again."""
        for folder in ("", PRIVATE, *self._task_folders()):
            self.store.remove_orphans(folder)

    def publish(self, metadata: Mapping[str, Any] | None = None) -> None:
        """Merge the indexes of all tasks, in their order, into index.json. Twice is harmless.

        UnfinishedDatasetError where a task is not done.
        """
        if metadata:
            raise OptionError("metadata", metadata, f"None: {INDEX} has no place for it")
        plan, recorded = self._plan(), self._recorded
        if recorded is not None and plan is not None and plan.tasks != recorded:
            raise self._replaced()
        if self.is_published():
            self.store.remove_orphans()  # of a publisher that was killed as the index was there already
            if recorded is not None and not self._lists_only(_folder(*task) for task in enumerate(recorded)):
                raise self._replaced()
        else:
            tasks, done = plan.tasks if plan is not None else (), self.finished_tasks()
            missing = [shard for shard, task in enumerate(tasks) if done.get(shard) != task]
            if missing or not tasks:
                shown = ", ".join(map(str, missing[:5]))
                problem = f"{len(missing)} of {len(tasks)} tasks are not done ({shown})" if tasks else "it has no plan"
                raise UnfinishedDatasetError(self.store.location, problem)
            merge_index([FolderStore(self.store, _folder(*task)) for task in enumerate(tasks)], self.store)
        self._remove_private()
        self._recorded = None

    def describe(self) -> dict[str, Any]:
        """What the published dataset holds, and how far it can be trusted."""
        with self.dataset(allow_unsafe_types=True) as dataset:
            return dataset.describe()

    def settings_digest(self) -> str:
        """Changes with anything that changes the bytes of a shard."""
        columns = {name: given if isinstance(given, str) else given.name for name, given in self.columns.items()}
        options = {name: value for name, value in self._options.items() if name not in ("max_workers", "retry")}
        text = json.dumps([self._writer.__name__, columns, options], sort_keys=True, default=list)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def task_writer(self, shard: int, task: str) -> SampleWriter:
        """The writer of one task's folder, which is written anew."""
        plan = self._plan()
        if self.is_published() or (plan is not None and task not in plan.tasks[shard : shard + 1]):
            raise self._replaced()
        return self._opened(FolderStore(self.store, _folder(shard, task)), exist_ok=True)

    def _opened(self, out: Store, **options: Any) -> SampleWriter:
        return self._writer(columns=self.columns, out=out, **options, **self._options)  # type: ignore[call-arg]

    def _replaced(self) -> PublishedError:
        problem = "was taken by another preparation or writer after this preparation began"
        return PublishedError(self.store.location, problem, "see what else writes there, and prepare it again")

    def _lists_only(self, folders: Iterable[str]) -> bool:
        """Whether the index lists nothing but what lies in these folders."""
        index = content(self.store, INDEX)
        known = set(folders)
        entries = ShardIndex(index, self.store.location) if index is not None else ()
        return all(entry.raw_data.basename.rpartition("/")[0] in known for entry in entries)

    def _plan(self) -> Plan | None:
        found = content(self.store, PLAN)
        return None if found is None else Plan.from_json(found, f"{self.store.location}/{PLAN}")

    def _put_plan(self, raw: bytes) -> None:
        found = content(self.store, PLAN)
        if found is None:
            try:
                self.store.put_if_absent(PLAN, raw)
            except AlreadyExistsError:  # of two that begin at once one goes on, and the other learns it before it works
                if content(self.store, PLAN) != raw:
                    raise self._replaced() from None
        elif found != raw:
            self.store.put(PLAN, raw)  # one that did not end has no owner, and must not be missed for a moment

    def _task_folders(self) -> dict[str, tuple[int, str]]:
        """(shard, task) of each folder of a task, in order."""
        found = {}
        for folder in self.store.folders():
            if (match := _TASK_FOLDER.fullmatch(folder)) is not None:
                found[folder] = int(match[1]), match[2]
        return dict(sorted(found.items(), key=lambda item: item[1]))

    def _refuse_living_writer(self, folder: str) -> None:
        part = FolderStore(self.store, folder)
        if holder_of(part, LEASES, "writer") is not None:  # if it is dead, or of another host and expired, it goes
            leased(part, "this part" if folder else "this dataset").release()

    def _refuse_others(self, planned: set[str], known: set[str]) -> None:
        if self.is_published():
            raise PublishedError(self.store.location, "holds a dataset already, which other tasks wrote")
        for info in self.store.list():
            folder, _, rest = info.path.partition("/")
            is_ours = (folder in known and (is_shard_file(rest) or rest == INDEX)) or f"/{PRIVATE}/" in f"/{info.path}"
            if not is_ours:
                problem = f"is not empty ({info.path} is there)"
                advice = "overwrite it (overwrite=True, or --overwrite), which leaves all files that are no dataset's"
                raise ExistingOutputError(self.store.location, problem, advice)

    def _remove_private(self) -> None:
        self.store.delete(PLAN)
        known = self._task_folders()  # one that was killed after its index has not tidied up
        if self.store.capabilities.rename:
            for folder in known:
                remove_private(FolderStore(self.store, folder))
        else:
            left = [info.path for info in self.store.list() if info.path.partition("/")[0] in known]
            delete_all(self.store, [path for path in left if f"/{PRIVATE}/" in path and f"/{LEASES}/" not in path])
        remove_private(self.store)

    def _remove_task(self, folder: str) -> None:
        """Remove what a task of another plan wrote, also where it did not end; other files stay."""
        part = FolderStore(self.store, folder)
        withdraw(part)
        remove_private(part)
        if self.store.capabilities.rename:
            remove_if_empty(self.store, folder)


class _TaskWriter:
    """What a task uses: its shard is a folder, written by a writer that is finished as the `with` block ends."""

    def __init__(self, storage: SampleStorage, tasks: dict[int, str]) -> None:
        self.stack = contextlib.ExitStack()
        self._storage = storage
        self._tasks = tasks
        self._writers: dict[int, SampleWriter] = {}

    def start(self, shard: int) -> None:
        """Open the task's folder, so that it has an index after the commit even without a sample."""
        if shard not in self._writers:
            task = self._tasks[shard]
            self._writers[shard] = self.stack.enter_context(self._storage.task_writer(shard, task))

    def append(self, shard: int, record: Mapping[str, Any]) -> None:
        """Write one sample."""
        self._writers[shard].write(record)


def _folder(shard: int, task: str) -> str:
    return f"{shard:05d}-{task}"
