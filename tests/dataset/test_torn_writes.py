"""Writers of documents and of spans: refused records, failing disks, threads, owners.

Whatever happens, a shard is the old one, the new one, or not there.
"""

import os
import sys
import threading

import pytest

from dataset.scenes import (
    DOCUMENTS,
    SPANS,
    Breaking,
    InterruptedBytes,
    InterruptedSpans,
    files_of,
    leftovers,
    open_files_below,
    payload_of,
)
from dataset.test_owners import stop_myself
from headrace.datasets import DocumentStorage, StreamWithMetaStorage, attempts, payloads
from headrace.errors import (
    ClosedError,
    FieldError,
    HeadraceError,
    LeaseLostError,
    NoDatasetError,
    PublishedError,
    ShardOwnedError,
    UnfinishedDatasetError,
    WriteError,
)
from headrace.formats.documents import DocumentJsonFormat, DocumentNumpyFormat
from headrace.store import LocalStore
from headrace.testing import FaultStore, Refuse, Rule, Run
from interference import in_child

BOTH = pytest.mark.parametrize("kind", [DOCUMENTS, SPANS], ids=repr)
EACH_FILE = pytest.mark.parametrize(
    ("kind", "suffix"),
    [pytest.param(kind, suffix, id=f"{kind}, {suffix}") for kind in (DOCUMENTS, SPANS) for suffix in kind.files],
)
FULL = OSError(28, "No space left on device")


def data_of(folder):
    return {name: raw for name, raw in files_of(folder).items() if not name.startswith(".headrace")}


def items(kind, *numbers):
    return [kind.item(number) for number in numbers]


REFUSED = {
    "documents that are no JSON": (
        lambda place: DocumentStorage(place, DocumentJsonFormat()),
        {"a": 1},
        [(1, 2), {1: 2}, {"x": float("nan")}, object(), b"bytes"],
    ),
    "documents whose numbers do not fit": (
        lambda place: DocumentStorage(place, DocumentNumpyFormat("<u2")),
        [1, 2, 3],
        [[1, 65536], [-1], [1.5], [[1, 2], [3, 4]], "text"],
    ),
    "documents that are no bytes": (DOCUMENTS.storage_at, b"good", ["text", 17, None, memoryview(b"abcd")[::2]]),
    "records whose spans do not add up": (
        SPANS.storage_at,
        SPANS.record(1),
        [
            {"tokens": [1, 2], "span_lengths": [1], "payloads": [b"a"]},
            {"tokens": [1, 2], "span_lengths": [2, 0], "payloads": [b"a", b"b"]},
            {"tokens": [1, 2], "span_lengths": [1, 1], "payloads": [b"a"]},
            {"tokens": [1, 65536], "span_lengths": [2], "payloads": [b"a"]},
            {"tokens": [1, 2], "span_lengths": [1, 1], "payloads": [b"a", "text"]},
            {"tokens": [1, 2], "payloads": []},
        ],
    ),
    "generators that break their promise": (
        lambda place: StreamWithMetaStorage(place, Breaking()),
        "good",
        ["raise", "few", "back", "short"],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_record_leaves_nothing_behind_in_any_file(name, tmp_path):
    storage_at, good, bad = REFUSED[name]
    for folder, records in {"with": [*bad, good, *bad, good, *bad], "without": [good, good]}.items():
        storage = storage_at(tmp_path / folder)
        with storage.sync_writer() as writer:
            writer.start(0)
            writer.start(1)
            for record in records:
                before = writer.length(0)
                try:
                    writer.append(0, record)
                except (FieldError, RuntimeError):
                    assert writer.length(0) == before
                    with pytest.raises((FieldError, RuntimeError)):
                        writer.append(1, record)
        storage.publish()
        assert storage.verify() == []
    assert data_of(tmp_path / "with") == data_of(tmp_path / "without")


@BOTH
def test_an_interrupt_while_a_record_is_packed_leaves_nothing_of_it(kind, tmp_path):
    storage = kind.storage_at(tmp_path)
    storage_format = InterruptedBytes() if kind is DOCUMENTS else InterruptedSpans("<u2")
    with type(storage)(storage.store, storage_format).sync_writer() as writer:
        writer.append(0, kind.record(0))
        with pytest.raises(KeyboardInterrupt):
            writer.append(0, KeyboardInterrupt)
        writer.append(0, kind.record(1))
    assert kind.items_of(storage) == items(kind, 0, 1)


def failing(kind, folder, suffix, error, nth):
    """A storage whose nth write to shard 1's file raises, once."""
    rule = Rule(Refuse(error), operation="write", path=f"*0000001.{suffix}", nth=nth, times=1)
    return kind.storage_at(FaultStore(LocalStore(folder, fsync=False), [rule]))


@pytest.mark.parametrize("error", [FULL, KeyboardInterrupt()], ids=["a full disk", "an interrupt"])
@pytest.mark.parametrize("nth", [1, 2, 4])
@EACH_FILE
def test_a_write_that_fails_in_any_file_leaves_a_shard_that_cannot_be_committed(
    kind, suffix, nth, error, tmp_path, monkeypatch
):
    monkeypatch.setattr(attempts, "BUFFER_BYTES", 40)
    monkeypatch.setattr(payloads, "_PENDING", 3)
    kind.write(tmp_path, [range(10, 12), range(12, 14)])  # the older version
    writer = failing(kind, tmp_path, suffix, error, nth).sync_writer()
    writer.open()
    failures, refusals = [], []
    for number in range(60):
        try:
            writer.append(number % 2, kind.record(number))
        except (OSError, KeyboardInterrupt) as caught:  # a stubborn user goes on
            failures.append(caught)
        except WriteError as caught:
            refusals.append((number % 2, str(caught)))
    assert len(failures) == 1
    assert {shard for shard, _ in refusals} == {1}
    assert all("shard 1: an earlier write failed half-way" in text for _, text in refusals)
    with pytest.raises(WriteError, match="shard 1: an earlier write failed half-way"):
        writer.close()
    writer.close()
    assert leftovers(tmp_path) == []
    storage = kind.storage_at(tmp_path)
    assert kind.items_of(storage) == items(kind, *range(0, 60, 2), 12, 13)  # shard 0 was whole, and shard 1 is the old
    assert storage.verify() == []


@EACH_FILE
def test_a_write_that_fails_as_the_writer_closes_commits_the_shards_before_and_none_after(kind, suffix, tmp_path):
    writer = failing(kind, tmp_path, suffix, FULL, 1).sync_writer()
    writer.open()
    for number in range(6):
        writer.append(number % 3, kind.record(number))
    with pytest.raises(OSError, match="No space left"):
        writer.close()
    assert kind.items_of(kind.storage_at(tmp_path)) == items(kind, 0, 3)
    assert leftovers(tmp_path) == []


@BOTH
def test_a_failure_of_a_file_that_is_put_aside_for_another_shard_is_not_forgotten(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(attempts, "MAX_OPEN_FILES", len(kind.files))
    writer = failing(kind, tmp_path, "out_of_band.bin", FULL, 1).sync_writer()
    writer.open()
    writer.append(0, kind.record(0))
    writer.append(1, kind.record(1))
    with pytest.raises(OSError, match="No space left"):
        writer.append(2, kind.record(2))
    with pytest.raises(WriteError, match=r"0000001\.out_of_band\.bin: an earlier write failed"):
        writer.close()
    assert not [name for name in files_of(tmp_path) if "0000001." in name]
    kind.write(tmp_path, [[0], [1], [2]])
    assert kind.items_of(kind.storage_at(tmp_path)) == items(kind, 0, 1, 2)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("operation", ["write", "sync", "rename", "delete", "open_writer", "close_writer", "head"])
@BOTH
def test_a_shard_is_the_old_or_the_new_one_whichever_call_fails(kind, operation, tmp_path, monkeypatch):
    monkeypatch.setattr(attempts, "BUFFER_BYTES", 400)
    old, new = items(kind, 0, 1, 2), items(kind, 7, 8)
    for nth in range(1, 100):
        folder = tmp_path / str(nth)
        kind.write(folder, [[0, 1], [2]])
        store = FaultStore(LocalStore(folder, fsync=False))
        storage = kind.storage_at(store)
        failed = False
        try:
            with storage.sync_writer() as writer:
                store.rules.append(Rule(Refuse(FULL), operation=operation, nth=nth, times=1))
                writer.append(0, kind.record(7))
                writer.append(0, kind.record(8))
                writer.start(1)  # from as many files as there are to one, where the kind does so
        except (HeadraceError, OSError):
            failed = True
        try:
            found = kind.items_of(kind.storage_at(folder))
            assert kind.storage_at(folder).verify() == []
        except (UnfinishedDatasetError, NoDatasetError):
            assert failed
        else:
            assert found == new or (failed and found in (old, [*new, *items(kind, 2)]))
        kind.write(folder, [[7, 8], []], force=True)  # where it was a lease that could not be removed
        assert kind.items_of(kind.storage_at(folder)) == new, nth
        assert leftovers(folder) == []
        if not failed:
            break
    assert not failed


@BOTH
def test_threads_may_share_a_writer_and_a_shard_and_every_item_is_whole(kind, tmp_path):
    storage = kind.storage_at(tmp_path)
    num_records, interval_s = 250, sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with storage.sync_writer() as writer:

            def work(thread):
                for record in range(num_records):
                    number = 1 + thread + 4 * record % 600
                    writer.append(record % 2 * (1 + thread), kind.record(number))  # shard 0 is everybody's

            threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(interval_s)
    known = {str(kind.item(number)): number for number in range(700)}
    dataset = kind.dataset(storage)
    numbers = [known[str(kind.plain(sample))] for sample in dataset[:]]  # KeyError for one that is not whole
    shared, start = numbers[: 2 * num_records], 2 * num_records
    assert len(numbers) == 4 * num_records
    for thread in range(4):
        own = [1 + thread + 4 * record % 600 for record in range(num_records)]
        assert [number for number in shared if (number - 1) % 4 == thread] == own[::2]
        assert numbers[start : start + num_records // 2] == own[1::2]
        start += num_records // 2
    assert storage.verify() == []


@BOTH
def test_a_writer_of_many_shards_keeps_at_most_64_files_open(kind, tmp_path):
    storage = kind.storage_at(tmp_path)
    most = 0
    with storage.sync_writer() as writer:
        for repeat in range(3):
            for shard in range(90):
                writer.append(shard, kind.record(100 * repeat + shard))
                most = max(most, open_files_below(tmp_path))
    assert 32 <= most <= 66
    assert kind.items_of(storage) == items(kind, *(100 * repeat + shard for shard in range(90) for repeat in range(3)))
    assert storage.verify() == []
    assert leftovers(tmp_path) == []


@BOTH
def test_a_second_owner_is_refused_and_changes_nothing(kind, tmp_path):
    storage = kind.storage_at(tmp_path)
    with storage.sync_writer() as first:
        first.append(0, kind.record(1))
        with pytest.raises(ShardOwnedError, match=f"process {os.getpid()} on host"):
            kind.write(tmp_path, [[2], [3]])
        first.append(0, kind.record(4))
    assert kind.items_of(storage) == items(kind, 1, 4)
    assert leftovers(tmp_path) == []


def sleepy(kind, folder, place):
    """Replaces a shard of all its files by an empty one, and stops itself at some call."""
    store = FaultStore(LocalStore(folder, fsync=False))
    with kind.storage_at(store).sync_writer() as writer:
        writer.start(0)
        store.rules.append(Rule(Run(stop_myself), operation=place[0], path=place[1], nth=place[2], times=1))


PLACES = {
    "as it syncs": ("sync", "*.bin", 1),
    "as it moves the old receipt away": ("rename", "*/replaced", 1),
    "as it renames its first file": ("rename", "*.bin", 1),
    "as it does something to the next": ("rename", "*.bin", 2),
    "as it moves away what it does not replace": ("rename", "*/old-0", 1),
    "as it moves away more of it": ("rename", "*/old-1", 1),
    "as it does something to an index": ("rename", "*.index", 1),
    "as it renames the receipt": ("rename", ".headrace/0000000.receipt", 2),
}


@pytest.mark.parametrize("name", PLACES)
@BOTH
def test_a_stopped_owner_that_was_taken_over_removes_no_file_of_its_successor(kind, name, tmp_path):
    storage = kind.write(tmp_path, [[1, 2]])
    process, receiver = in_child(sleepy, kind, tmp_path, PLACES[name])
    ended = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    if ended.si_code != os.CLD_STOPPED:  # this kind has no such call
        assert receiver.recv()[0] == "returned"
        process.join()
        return
    kind.write(tmp_path, [[5, 6, 7]], force=True)
    os.kill(process.pid, 18)  # SIGCONT
    outcome, error = receiver.recv()
    process.join()
    assert kind.items_of(storage) == items(kind, 5, 6, 7)
    assert storage.verify() == []
    assert outcome == "raised"
    assert isinstance(error, LeaseLostError)
    assert leftovers(tmp_path) == []


@BOTH
def test_published_data_is_immutable_until_it_is_withdrawn_and_then_nothing_of_it_stays(kind, tmp_path):
    storage = kind.write(tmp_path, [[0, 1], [2], [3]], publish=True)
    before = data_of(tmp_path)
    with pytest.raises(PublishedError, match="overwrite=True"):
        kind.write(tmp_path, [[9]])
    storage.publish()
    assert data_of(tmp_path) == before
    kind.write(tmp_path, [[5], []], publish=True, overwrite=True)
    assert kind.items_of(storage) == items(kind, 5)
    files = 2 * len(kind.files) - (2 if kind is SPANS else 0)
    assert sorted(name for name in data_of(tmp_path) if name[0] == "0")[-1].startswith("0000001.")
    assert len(data_of(tmp_path)) == 1 + files
    same = kind.write(tmp_path / "same", [[5], []], publish=True)
    assert data_of(tmp_path / "same") == {k: v for k, v in data_of(tmp_path).items() if "/" not in k}
    assert same.verify() == storage.verify() == []


@BOTH
def test_recovering_removes_what_a_dead_writer_left_and_keeps_committed_shards(kind, tmp_path):
    storage = kind.write(tmp_path, [[0, 1]])

    def die():
        writer = kind.storage_at(tmp_path).sync_writer()
        writer.open()
        writer.append(0, kind.record(5))
        writer.append(1, kind.record(6))
        os.kill(os.getpid(), 9)

    process, _ = in_child(die)
    process.join()
    assert leftovers(tmp_path)
    with pytest.raises(UnfinishedDatasetError, match="a writer died while it wrote shard 0, 1"):
        kind.items_of(storage)
    storage.recover()
    assert leftovers(tmp_path) == []
    assert kind.items_of(storage) == items(kind, 0, 1)


@BOTH
def test_a_closed_or_unopened_writer_refuses_with_advice_and_keeps_what_it_wrote(kind, tmp_path):
    storage = kind.storage_at(tmp_path)
    writer = storage.sync_writer()
    with pytest.raises(ClosedError, match="`with` block"):
        writer.append(0, kind.record(0))
    with writer:
        writer.append(0, kind.record(1))
    for call in (lambda: writer.append(0, kind.record(2)), lambda: writer.start(1)):
        with pytest.raises(ClosedError, match="write new records to another shard, or write this shard again"):
            call()
    writer.close()
    assert writer.length(0) == kind.item_length
    assert kind.items_of(storage) == items(kind, 1)
    assert payload_of(1) in data_of(tmp_path)["0000000.out_of_band.bin"]
