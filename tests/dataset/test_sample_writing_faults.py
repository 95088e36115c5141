"""What once went wrong with writers of samples, and with prepare() into samples."""

import contextlib
import enum
import json
import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
import time

import pytest

from headrace import merge_index, prepare
from headrace.datasets import CSVWriter, JSONWriter, MDSWriter, SampleDataset, SampleStorage
from headrace.datasets.samples import sample_writer, withdrawal
from headrace.errors import (
    CorruptShardError,
    ExistingOutputError,
    FieldError,
    LeaseLostError,
    OptionError,
    OutputError,
    PreparationError,
    PublishedError,
    ShardOwnedError,
    StoreError,
    UnfinishedDatasetError,
)
from headrace.store import LocalStore, MemoryStore, lease
from headrace.testing import FaultStore, Refuse, Rule, Run
from writing_scenes import COLUMNS, everything_in, files_in, fill, ids_in, sample, write

FORK = multiprocessing.get_context("fork")


def records(split):
    """Ten samples."""
    for number in range(split * 10, split * 10 + 10):
        yield sample(number)


def prepared(place, splits=(0, 1), target=SampleStorage, **options):
    storage = place if isinstance(place, SampleStorage) else target(place, COLUMNS)
    return prepare(splits, records, storage, workers=1, progress=False, **options)


class Meanwhile(SampleStorage):
    """One in which something happens between the plan and the tasks."""

    def __init__(self, place, happens):
        super().__init__(place, COLUMNS)
        self._happens = [happens]

    def finished_tasks(self):
        """As this preparation sees them before."""
        found = super().finished_tasks()
        while self._happens:
            self._happens.pop()()
        return found


class OwnError(Exception):
    """What is raised on the way."""

    @classmethod
    def raised(cls):
        """As a call."""
        raise cls


class Own:
    """An encoding that gives whatever it is told to."""

    name = "own"

    def __init__(self, size, given):
        self.size, self._given = size, given

    def encode(self, value):
        return self._given(value)

    def decode(self, data):
        return bytes(data)


def unfinished(folder, **options):
    """Three shards, all stored, and no index."""
    writing = MDSWriter(columns=COLUMNS, out=folder, max_workers=1, **options)
    fill(writing, range(30))
    writing.flush_shard()
    writing._background.drain()
    writing.__exit__(KeyError, KeyError(), None)


def appear(folder, numbers):
    """A dataset comes to lie in the folder as no writer puts it there: somebody copies one."""
    write(f"{folder}-elsewhere", numbers)
    shutil.copytree(f"{folder}-elsewhere", folder, dirs_exist_ok=True)


def test_a_writer_that_fills_a_shard_for_hours_keeps_its_place(monkeypatch):
    store = MemoryStore()
    with MDSWriter(columns=COLUMNS, out=store) as writing:
        fill(writing, range(100))
        assert [info.path for info in store.list() if info.path.endswith(".beat")] == []
        monkeypatch.setattr(lease, "RENEW_EVERY_S", 0.0)
        fill(writing, range(100, 200))
        assert len([info.path for info in store.list() if info.path.endswith(".beat")]) == 1
        monkeypatch.setattr(lease, "RENEW_EVERY_S", 1e9)


# Two who write into one directory.


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("stored", [0, 30])
def test_a_preparation_does_not_take_the_place_of_a_living_writer(stored, overwrite, tmp_path):
    with MDSWriter(columns=COLUMNS, out=tmp_path, max_workers=1) as writing:
        fill(writing, range(stored))
        with pytest.raises(ShardOwnedError, match=f"this dataset is being written by process {os.getpid()}"):
            prepared(tmp_path, overwrite=overwrite)
        fill(writing, range(stored, 35))
    assert ids_in(tmp_path) == list(range(35))


def test_a_writer_does_not_begin_where_a_preparation_did(tmp_path):
    def begin():
        for options in ({}, {"resume": True}, {"exist_ok": True}):
            with pytest.raises(ExistingOutputError, match="is being prepared, or was not prepared to its end"):
                write(tmp_path, [1000], **options)

    assert prepared(Meanwhile(tmp_path, begin)).done == 2
    assert ids_in(tmp_path) == list(range(20))


def test_a_preparation_whose_place_was_taken_says_so_and_changes_nothing(tmp_path):
    with pytest.raises(PreparationError, match="was taken by another preparation or writer"):
        prepared(Meanwhile(tmp_path, lambda: appear(tmp_path, [1000, 1001])))
    assert ids_in(tmp_path) == [1000, 1001]


def test_a_dataset_that_came_after_the_last_task_is_not_taken_for_the_prepared_one(tmp_path):
    class Late(SampleStorage):
        def publish(self, metadata=None):
            appear(tmp_path, [1000, 1001])
            super().publish(metadata)

    with pytest.raises(PublishedError, match="was taken by another preparation or writer"):
        prepared(tmp_path, target=Late)
    assert ids_in(tmp_path) == [1000, 1001]
    with pytest.raises(PublishedError):  # its folders are still there, but the index lists none of them
        prepared(tmp_path)


def test_of_two_preparations_with_other_plans_the_earlier_one_does_not_report_the_laters_dataset(tmp_path):
    with pytest.raises(PreparationError, match="was taken by another preparation"):
        prepared(Meanwhile(tmp_path, lambda: prepared(tmp_path, [5])))
    assert ids_in(tmp_path) == list(range(50, 60))
    assert prepared(tmp_path, [5]).skipped == 1


def test_the_same_preparation_twice_does_not_write_over_what_the_other_one_published(tmp_path):
    with pytest.raises(PreparationError, match="was taken by another preparation"):
        prepared(Meanwhile(tmp_path, lambda: prepared(tmp_path)))
    assert ids_in(tmp_path, verify=True) == list(range(20))


def test_a_storage_may_be_prepared_again_after_another_process_replaced_its_dataset(tmp_path):
    storage = SampleStorage(tmp_path, COLUMNS)
    prepared(storage)
    prepared(tmp_path, [5], overwrite=True)
    assert prepared(storage, [5]).skipped == 1


@pytest.mark.parametrize("age_s", [60, 7200])
def test_a_part_that_a_vanished_host_left_is_free_when_its_lease_has_expired(age_s, tmp_path):
    dying = Meanwhile(tmp_path, OwnError.raised)
    with pytest.raises(OwnError):
        prepared(dying)
    folder = tmp_path / f"00000-{dying.planned_tasks()[0]}"
    with contextlib.suppress(OwnError), MDSWriter(columns=COLUMNS, out=folder):
        (lease,) = folder.rglob("*.lease")
        content = lease.read_bytes()
        raise OwnError
    holder = json.loads(content)
    holder["attempt"] = "f" * 8 + holder["attempt"][8:]  # of another host
    lease.write_text(json.dumps(holder))
    os.utime(lease, (time.time() - age_s,) * 2)
    if age_s < 3600:
        with pytest.raises(
            ShardOwnedError, match=f"this part is being written by process .* on host {socket.gethostname()}"
        ):
            prepared(tmp_path)
    else:
        prepared(tmp_path)
        assert ids_in(tmp_path) == list(range(20))


@pytest.mark.parametrize("successor", ["open", "finished"])
def test_a_process_that_slept_while_it_stored_the_index_leaves_none_beside_its_successors_shards(successor, tmp_path):
    store = LocalStore(tmp_path, fsync=False)
    others = []

    def taken_over(call):
        for info in store.list(withdrawal.LEASES):  # as when it has expired
            store.delete(info.path)
        others.append(MDSWriter(columns=COLUMNS, out=store))
        fill(others[0], range(100, 130))
        if successor == "finished":
            others[0].finish()

    slept = FaultStore(store, [Rule(Run(taken_over), "put", "index.json", times=1)])
    with pytest.raises(LeaseLostError):
        write(slept, range(30))
    assert ids_in(tmp_path) is None
    if successor == "open":
        others[0].finish()
        assert ids_in(tmp_path) == list(range(100, 130))


SUCCESSOR = """
import sys
from headrace.store import identity
identity._host = lambda: "f" * 8  # a host that cannot know whether the predecessor lives
from headrace import MDSWriter
with MDSWriter(columns={"id": "int", "text": "str"}, out=sys.argv[1], size_limit=sys.argv[2] or None) as out:
    for number in range(100, 130):
        out.write({"id": number, "text": "other" * 20})
"""


@pytest.mark.parametrize("spilled", [False, True])
@pytest.mark.parametrize("asleep_at", ["shard.00001.mds", "shard.00000", "index.json"])
def test_a_process_that_slept_in_the_middle_of_storing_a_file_stores_nothing_over_its_successors(
    asleep_at, spilled, tmp_path, monkeypatch
):
    rename = os.replace
    slept = []

    def replaced(source, target):
        if os.path.basename(target) == asleep_at and not slept:
            slept.append(target)
            for lease_file in (tmp_path / ".headrace" / "samples" / "leases").rglob("*.lease"):
                os.utime(lease_file, (time.time() - 2 * 3600,) * 2)
            subprocess.run([sys.executable, "-c", SUCCESSOR, tmp_path, "1kb"], check=True)
        rename(source, target)

    monkeypatch.setattr(os, "replace", replaced)
    if spilled:
        monkeypatch.setattr(sample_writer, "SPILL_BYTES", 200)
        monkeypatch.setattr(os, "rename", replaced)
    with pytest.raises(LeaseLostError), MDSWriter(columns=COLUMNS, out=tmp_path, size_limit="1kb") as writing:
        fill(writing, range(30))
    assert len(slept) == 1
    with SampleDataset(tmp_path) as dataset:
        assert [one["id"] for one in dataset[:]] == list(range(100, 130))
        assert dataset.verify() == []
    assert everything_in(tmp_path) == sorted(["index.json", *(info.name for info in tmp_path.glob("shard.*"))])


def test_a_forked_child_that_ends_adds_nothing_to_a_shard_that_waits_in_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(sample_writer, "SPILL_BYTES", 20_000)
    with MDSWriter(columns={"x": "bytes"}, out=tmp_path, size_limit=None) as writing:
        for number in range(41):
            writing.write({"x": bytes([number]) * 1000})
        child = FORK.Process(target=writing._pending._file.close)  # as the interpreter does in the end
        child.start()
        child.join()
        for number in range(41, 50):
            writing.write({"x": bytes([number]) * 1000})
    with SampleDataset(tmp_path) as dataset:
        assert [one["x"] for one in dataset[:]] == [bytes([number]) * 1000 for number in range(50)]


# What is not the dataset's.


def test_exist_ok_removes_nothing_behind_a_link_to_another_dataset(tmp_path):
    elsewhere, root = tmp_path / "elsewhere", tmp_path / "root"
    write(elsewhere, [1, 2, 3])
    write(root / "own", [4, 5, 6])
    (root / "linked").symlink_to(elsewhere)
    merge_index(root)
    before = files_in(elsewhere)
    write(root, [9], exist_ok=True)
    assert files_in(elsewhere) == before
    assert ids_in(root) == [9]
    assert everything_in(root) == ["index.json", "linked", "shard.00000.mds"]


@pytest.mark.parametrize("prepares", [False, True])
def test_a_folder_with_files_that_no_listing_shows_is_not_empty(prepares, tmp_path):
    if prepares:
        prepared(tmp_path)
    else:
        write(tmp_path / "part", [1, 2, 3])
        merge_index(tmp_path)
    (folder,) = [path for path in tmp_path.iterdir() if path.is_dir()][:1]
    (folder / ".notes.tmp").write_text("mine")
    (folder / "link").symlink_to("/nowhere")
    (folder / "a\\b").write_text("mine")
    if prepares:
        prepared(tmp_path, [5], overwrite=True)
    else:
        write(tmp_path, [9], exist_ok=True)
    assert everything_in(folder) == [".notes.tmp", "a\\b", "link"]


# Going on.


def test_going_on_with_a_whole_dataset_with_other_settings_is_refused(tmp_path):
    write(tmp_path, range(20))
    before = files_in(tmp_path)
    with pytest.raises(OptionError, match="'other'"):
        MDSWriter(columns={"other": "int"}, out=tmp_path, resume=True)
    with pytest.raises(OptionError, match="compression"):
        MDSWriter(columns=COLUMNS, out=tmp_path, resume=True, compression="zstd")
    assert files_in(tmp_path) == before
    write(tmp_path, [], resume=True)


@pytest.mark.parametrize("left", [None, b"short"])
def test_going_on_with_a_whole_dataset_of_which_a_file_is_missing_or_cut_is_refused(left, tmp_path):
    write(tmp_path, range(20))
    (tmp_path / "shard.00001.mds").unlink()
    if left is not None:
        (tmp_path / "shard.00001.mds").write_bytes(left)
    with pytest.raises(CorruptShardError, match=r"shard 1: shard\.00001\.mds has (no|5) bytes, but"):
        MDSWriter(columns=COLUMNS, out=tmp_path, resume=True)
    write(tmp_path, range(5), exist_ok=True)  # nobody holds it


@pytest.mark.parametrize("damage", ["cut", "another's"])
def test_going_on_behind_a_damaged_receipt_is_refused_with_advice(damage, tmp_path):
    unfinished(tmp_path)
    receipts = tmp_path / ".headrace" / "samples"
    data = (receipts / "shard.00001").read_bytes()[:20] if damage == "cut" else (receipts / "shard.00000").read_bytes()
    (receipts / "shard.00001").write_bytes(data)
    with pytest.raises(UnfinishedDatasetError, match=r"shard\.00001.*write it again without resume=True"):
        MDSWriter(columns=COLUMNS, out=tmp_path, resume=True)
    write(tmp_path, range(5))
    assert ids_in(tmp_path) == list(range(5))


# Stores that fail.


@pytest.mark.parametrize("operation", ["get", "head"])
@pytest.mark.parametrize("error", [StoreError("once"), OSError(5, "once")])
def test_a_request_about_the_lease_that_fails_once_is_tried_again(operation, error):
    store = FaultStore(MemoryStore())
    with MDSWriter(columns=COLUMNS, out=store) as writing:
        store.rules.append(Rule(Refuse(error), operation, "*.lease", times=1))
        fill(writing, range(30))
    assert ids_in(store.store) == list(range(30))


def test_the_users_exception_has_a_note_of_what_failed_in_the_background():
    store = FaultStore(MemoryStore(), [Rule(Refuse(StoreError("disk full")), "put", "shard*")])
    error = OwnError()
    with contextlib.suppress(OwnError), MDSWriter(columns=COLUMNS, out=store, retry=0) as writing:
        fill(writing, range(10))
        writing.flush_shard()
        while writing._background.failure is None:
            time.sleep(0.001)
        raise error
    assert len(error.__notes__) == 1
    assert "disk full" in error.__notes__[0]


def test_a_failure_in_the_background_that_reached_the_user_is_not_noted_twice():
    store = FaultStore(MemoryStore(), [Rule(Refuse(StoreError("disk full")), "put", "shard*")])
    with pytest.raises(OutputError, match="disk full") as caught:
        write(store, range(30), retry=0)
    assert not hasattr(caught.value, "__notes__")


# Options and values.


@pytest.mark.parametrize(
    ("columns", "options"),
    [
        ({"a": "itn"}, {}),
        ({"a": "pkl"}, {}),
        (COLUMNS, {"compression": "zst"}),
        (COLUMNS, {"hashes": ["md6"]}),
        (COLUMNS, {"hashes": "md5"}),
        (COLUMNS, {"size_limt": 3}),
        (COLUMNS, {"size_limit": "5 apples"}),
        (COLUMNS, {"writer": "mds"}),
        (COLUMNS, {"writer": dict}),
        (COLUMNS, {"writer": CSVWriter, "separator": ";"}),
        (COLUMNS, {"retry": -1}),
    ],
)
def test_what_is_wrong_with_a_sample_storage_shows_when_it_is_made(columns, options, tmp_path):
    with pytest.raises(OptionError):
        SampleStorage(tmp_path / "out", columns, **options)
    assert everything_in(tmp_path) == []


def test_hashes_from_an_iterator_are_those_of_every_task(tmp_path):
    storage = SampleStorage(tmp_path, COLUMNS, hashes=iter(["md5"]))
    prepared(storage)
    shards = json.loads((tmp_path / "index.json").read_text())["shards"]
    assert [list(shard["raw_data"]["hashes"]) for shard in shards] == [["md5"], ["md5"]]
    assert prepared(SampleStorage(tmp_path, COLUMNS, hashes=["md5"])).skipped == 2


def test_a_storage_with_an_encoding_of_ones_own_is_prepared_and_read(tmp_path):
    storage = SampleStorage(tmp_path, {"x": Own(None, str.encode)})
    report = prepare([0], lambda split: [{"x": "abc"}], storage, workers=1, progress=False)
    assert report.totals["total_length"] == 1
    assert storage.dataset()[:] == [{"x": b"abc"}]


@pytest.mark.parametrize("size", [None, 2])
@pytest.mark.parametrize("given", ["ab", None, 17, ["a", "b"]])
def test_an_encoding_that_gives_no_bytes_is_refused_with_number_and_column(given, size, tmp_path):
    writing = MDSWriter(columns={"x": Own(size, lambda value: given)}, out=tmp_path)
    with pytest.raises(FieldError, match=rf"sample 0, field 'x': its encoding gave {type(given).__name__}, not"):
        writing.write({"x": 1})
    writing.finish()
    assert len(SampleDataset(tmp_path, encodings=[Own(size, None)])) == 0


@pytest.mark.parametrize("size", [None, 4])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: memoryview(data).cast("H")])
def test_an_encoding_may_give_any_bytes(kind, size, tmp_path):
    own = Own(size, kind)
    with MDSWriter(columns={"x": own}, out=tmp_path) as writing:
        writing.write({"x": b"abcd"})
    assert SampleDataset(tmp_path, encodings=[own])[:] == [{"x": b"abcd"}]


def test_values_of_wrong_sizes_that_make_up_for_one_another_are_refused(tmp_path):
    own = Own(4, str.encode)
    writing = MDSWriter(columns={"x": own, "y": own}, out=tmp_path)
    with pytest.raises(FieldError, match="sample 0, field 'x': its encoding gave 3 bytes, but every value has 4"):
        writing.write({"x": "abc", "y": "defgh"})


@pytest.mark.parametrize(
    "attribute", [("size", "4"), ("size", -1), ("size", 2.0), ("size", True), ("name", None), ("name", "")]
)
def test_an_encoding_without_a_proper_name_and_size_is_refused_at_once(attribute, tmp_path):
    own = Own(None, bytes)
    setattr(own, *attribute)
    with pytest.raises(OptionError, match="columns"):
        MDSWriter(columns={"x": own}, out=tmp_path / "out")
    assert everything_in(tmp_path) == []


class Number(int, enum.Enum):
    """What str() calls Number.SEVEN."""

    SEVEN = 7


class Word(str, enum.Enum):  # noqa: UP042 - str() of a StrEnum is the value itself
    """What str() calls Word.ONE."""

    ONE = "one"


@pytest.mark.parametrize("writer", [CSVWriter, JSONWriter, MDSWriter])
def test_values_of_enumerations_are_written_as_the_values_they_are(writer, tmp_path):
    with writer(columns=COLUMNS, out=tmp_path) as writing:
        writing.write({"id": Number.SEVEN, "text": Word.ONE})
    assert SampleDataset(tmp_path)[:] == [{"id": 7, "text": "one"}]


@pytest.mark.parametrize("writer", [CSVWriter, JSONWriter, MDSWriter])
def test_an_integer_that_no_line_can_hold_is_refused_with_number_and_column(writer, tmp_path):
    with writer(columns=COLUMNS, out=tmp_path) as writing:
        writing.write({"id": 1, "text": "a"})
        with pytest.raises(FieldError, match="sample 1, field 'id'"):
            writing.write({"id": 10**5000, "text": "a"})
    assert len(SampleDataset(tmp_path)) == 1
