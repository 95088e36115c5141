"""Streams, documents and annotated streams written to stores that have no renames, faults and rivals included."""

import threading
from dataclasses import replace

import pytest

from flat_stores import KINDS, FlatFolder, Stream, leftovers, objects_in, spools, write
from headrace.datasets import StreamStorage
from headrace.datasets.ledger import ATTEMPTS, LEASES
from headrace.errors import (
    AccessDeniedError,
    CorruptShardError,
    FieldError,
    LeaseLostError,
    PublishedError,
    ShardOwnedError,
    StoreError,
    TemporaryStoreError,
    UnfinishedDatasetError,
    UnsupportedOperationError,
    WriteError,
)
from headrace.store import CachedStore, FolderStore, LocalStore, MemoryStore, acquire, attempt_id
from headrace.store.retrying import RetryingStore, RetryPolicy
from headrace.testing import Cut, FaultStore, Forget, Refuse, Rule, Run, Status

A_SHARD = 23  # requests


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """A directory for temporary files of the test's own, in which nothing may stay."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    yield folder
    assert spools(folder) == []


def flat(*rules):
    return FaultStore(MemoryStore(flat=True), rules)


def parts(*lengths, start=0):
    found = []
    for length in lengths:
        found.append(range(start, start + length))
        start += length
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_the_data_and_the_manifest_are_those_of_a_directory(kind, tmp_path):
    store, directory = MemoryStore(flat=True), LocalStore(tmp_path / "directory", fsync=False)
    for place in (store, directory):
        write(KINDS[kind](place), parts(10, 0, 15, 1), publish=True)
    remote, local = objects_in(store), objects_in(directory)
    assert {path: data for path, data in remote.items() if "/" not in path} == {
        path: data for path, data in local.items() if "/" not in path
    }
    assert KINDS[kind](store).contents() == list(range(26))
    assert KINDS[kind](store).storage.verify() == []
    assert leftovers(store) == []


@pytest.mark.parametrize("kind", KINDS)
def test_shards_with_receipts_alone_open_and_give_the_later_fingerprint(kind):
    here = KINDS[kind](MemoryStore(flat=True))
    write(here, parts(3, 4))
    assert here.contents() == list(range(7))
    before = here.storage.describe()["fingerprint"]
    assert here.storage.publish().fingerprint == before
    assert here.storage.publish({}).fingerprint == before  # again


def write_two_and_a_bad_one(writer):
    writer.append(0, [1, 2])
    writer.append(0, [70000])


def test_an_exception_in_the_block_commits_nothing_and_leaves_nothing():
    store = MemoryStore(flat=True)
    here = Stream(store)
    with pytest.raises(FieldError), here.storage.sync_writer() as writer:
        write_two_and_a_bad_one(writer)
    with pytest.raises(UnfinishedDatasetError, match="no shard has been committed"):
        here.contents()
    assert list(objects_in(store)) == [".headrace/generation"]


def test_a_refused_record_leaves_the_writer_usable():
    here = Stream(MemoryStore(flat=True))
    with here.storage.sync_writer() as writer:
        writer.append(0, [1, 2])
        with pytest.raises(FieldError):
            writer.append(0, [70000])
        writer.append(0, [3])
    assert here.contents() == [1, 2, 3]


def test_more_shards_than_open_files_at_once():
    here = Stream(MemoryStore(flat=True))
    with here.storage.sync_writer() as writer:
        for number in range(300):
            writer.append(number % 100, [number])
    assert sorted(here.contents()) == list(range(300))


def test_several_shards_go_up_at_once_and_are_committed_in_order():
    together = threading.Barrier(3, timeout=20)
    store = flat(Rule(Run(lambda call: together.wait()), operation="upload", path="*.in_band.bin", times=3))
    write(Stream(store), parts(3, 3, 3))
    receipts = [call.path for call in store.calls if call.operation == "put_if_absent" and "receipt" in call.path]
    assert receipts == [f".headrace/000000{shard}.receipt" for shard in range(3)]


def test_when_one_shard_cannot_go_up_those_before_it_stand_and_those_behind_it_do_not_come():
    store = flat(Rule(Refuse(TemporaryStoreError("503")), operation="upload", path="0000002.in_band.bin"))
    here = Stream(store)
    with pytest.raises(TemporaryStoreError, match="503"):
        write(here, parts(3, 3, 3, 3, 3))
    names = set(objects_in(store))
    assert {".headrace/0000000.receipt", ".headrace/0000001.receipt"} <= names
    assert not any(f".headrace/000000{shard}.receipt" in names for shard in (2, 3, 4))
    store.rules.clear()
    write(here, parts(3, 3, 3, 3, 3), publish=True)  # needs no cleaning up, in this process or another
    assert here.contents() == list(range(15))
    assert leftovers(store) == []


def test_a_store_that_denies_access_is_left_as_it_was():
    store = flat(Rule(Refuse(AccessDeniedError("s3://bucket: access denied")), operation="upload"))
    here = Stream(store)
    with pytest.raises(AccessDeniedError):
        write(here, parts(3, 3))
    assert list(objects_in(store)) == [".headrace/generation"]


def test_an_upload_that_fails_does_not_take_the_old_version_of_the_shards_behind_it():
    store = flat()
    here = Stream(store)
    write(here, parts(3, 3, 3))
    store.rules.append(Rule(Refuse(StoreError("full")), operation="upload", path="0000001.in_band.bin"))
    with pytest.raises(StoreError, match="full"):
        write(here, parts(3, 3, 3, start=100))
    store.rules.clear()
    found = here.storage.store.get("0000002.in_band.bin")
    assert list(found[::2]) == [6, 7, 8]
    with pytest.raises((UnfinishedDatasetError, CorruptShardError)):
        here.contents()
    write(here, parts(3, 3, 3, start=100))
    assert here.contents() == list(range(100, 109))


# What a store does that says "ok" and keeps something else.
LIES = {"keeps half": Cut(5), "keeps no byte": Cut(0), "keeps nothing at all": Forget()}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("target", ["0000001.in_band.bin", ".headrace/0000001.receipt", "headrace.json"])
def test_an_object_of_which_the_store_kept_less_is_put_again(target, lie):
    store = flat(*(Rule(LIES[lie], operation=name, path=target, times=1) for name in ("upload", "put_if_absent")))
    here = Stream(store)
    write(here, parts(10, 10), publish=True)
    store.rules.clear()
    assert here.contents() == list(range(20))
    assert leftovers(store) == []


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("target", ["0000001.in_band.bin", ".headrace/0000001.receipt", "headrace.json"])
def test_an_object_of_which_the_store_always_keeps_less_is_an_error_with_both_sizes(target, lie):
    store = flat(*(Rule(LIES[lie], operation=name, path=target) for name in ("upload", "put_if_absent")))
    here = Stream(store)
    with pytest.raises(WriteError, match=rf"{target}: the store acknowledged \d+ bytes and kept .*3 times"):
        write(here, parts(10, 10), publish=True)
    store.rules.clear()
    assert "headrace.json" not in objects_in(store)
    assert here.contents() == list(range(20 if target == "headrace.json" else 10))  # what was committed
    assert leftovers(store) == []
    write(here, parts(10, 10), publish=True)
    assert here.contents() == list(range(20))


def interrupt(call):
    raise KeyboardInterrupt


def test_ctrl_c_while_files_go_up_commits_no_further_shard_and_leaves_nothing():
    store = flat(Rule(Run(interrupt), operation="upload", path="0000001.*", times=1))
    here = Stream(store)
    with pytest.raises(KeyboardInterrupt):
        write(here, parts(*[2] * 12))
    assert not any(thread.name.startswith("headrace-upload") for thread in threading.enumerate())
    assert sorted(objects_in(store)) == [".headrace/0000000.receipt", ".headrace/generation", "0000000.in_band.bin"]
    write(here, parts(*[2] * 12), publish=True)
    assert here.contents() == list(range(24))


def test_a_dataset_is_written_through_a_cache_and_read_from_it(tmp_path):
    remote = MemoryStore(flat=True)
    here = Stream(CachedStore(remote, tmp_path / "cache"))
    write(here, parts(4, 5), publish=True)
    assert here.contents() == list(range(9))
    write(here, parts(4, 5, start=100), publish=True, overwrite=True)
    assert here.contents() == list(range(100, 109))
    assert leftovers(remote) == []


RETRIED = RetryPolicy(tries=3, first_wait_s=0.0)


@pytest.mark.parametrize("performed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_any_request_may_fail_once_before_or_after_it_was_done(kind, performed):
    fault = Rule(Status(503, performed=performed), times=1)
    for nth in range(1, 80):
        store = flat(replace(fault, nth=nth))
        here = KINDS[kind](RetryingStore(store, RETRIED))
        write(here, parts(4, 3), publish=True)
        assert here.contents() == list(range(7)), nth
        assert leftovers(store) == [], nth


def test_a_store_that_is_down_for_good_is_said_soon_and_the_shards_are_free_for_the_next_writer():
    store = flat()
    here = Stream(RetryingStore(store, RETRIED))
    writer = here.storage.sync_writer()
    writer.open()
    for shard in range(20):
        writer.append(shard, [shard])
    store.rules.append(Rule(Status(503)))
    store.calls.clear()
    with pytest.raises(TemporaryStoreError):
        writer.close()
    assert len(store.calls) <= 3 * 2 * 20  # nothing is asked again to tidy up
    store.rules.clear()
    write(here, parts(*[1] * 20), publish=True)
    assert here.contents() == list(range(20))
    assert leftovers(store) == []


def test_what_a_writer_asks_a_shard():
    costs = []
    for num_shards in (4, 14):
        store = flat()
        write(Stream(store), parts(*[1] * num_shards))
        costs.append(len(store.calls))
    assert (costs[1] - costs[0]) / 10 <= A_SHARD


def test_a_rival_is_refused_and_the_first_one_is_not_disturbed():
    store = MemoryStore(flat=True)
    here, there = Stream(store), Stream(store)
    with here.storage.sync_writer() as first:
        first.append(0, [1, 2])
        with pytest.raises(ShardOwnedError), there.storage.sync_writer() as second:
            second.append(0, [3])
        with pytest.raises(UnfinishedDatasetError, match="is being written"):
            there.storage.publish()
    assert here.contents() == [1, 2]


def test_who_was_taken_over_by_force_commits_nothing():
    store = MemoryStore(flat=True)
    here, there = Stream(store), Stream(store)
    first = here.storage.sync_writer()
    first.open()
    first.append(0, [1, 2])
    with there.storage.sync_writer(force=True) as second:
        second.append(0, [3, 4])
    with pytest.raises(LeaseLostError):
        first.close()
    assert here.contents() == [3, 4]
    assert leftovers(store) == []


def test_a_published_dataset_is_kept_unless_it_is_overwritten():
    store = MemoryStore(flat=True)
    here = Stream(store)
    write(here, parts(3, 3, 3), publish=True)
    before = objects_in(store)
    with pytest.raises(PublishedError):
        write(here, parts(1))
    assert objects_in(store) == before
    write(here, parts(2, start=50), overwrite=True, publish=True)
    assert here.contents() == [50, 51]
    assert sorted(objects_in(store)) == [
        ".headrace/0000000.receipt",
        ".headrace/generation",
        "0000000.in_band.bin",
        "headrace.json",
    ]


@pytest.mark.parametrize("place", [FlatFolder, LocalStore])
def test_what_a_writer_left_that_died_as_it_learnt_of_the_publication_goes_as_that_is_repeated(place, tmp_path):
    store = place(tmp_path / "data")
    here = Stream(store)
    write(here, parts(3, 3), publish=True)
    lease = acquire(store, LEASES, "0000001", what="it", attempt=attempt_id(), on_takeover=lambda _: None)
    if store.capabilities.rename:
        store.make_folder(f"{ATTEMPTS}/0000001-{lease.attempt}")
    here.storage.publish()
    lease.check()  # while it lives, it stays
    lease.let_go()
    here.storage.publish()
    assert leftovers(store) == []
    assert store.folders(ATTEMPTS) == []


def test_an_overwriting_run_that_ended_early_leaves_no_mix():
    store = MemoryStore(flat=True)
    here = Stream(store)
    write(here, parts(3, 3, 3), publish=True)
    with here.storage.sync_writer(overwrite=True) as writer:
        writer.append(0, [9, 9, 9])
    with pytest.raises(UnfinishedDatasetError, match="older run"):
        here.contents()


def test_an_object_that_came_after_its_receipt_is_noticed_though_it_is_as_long():
    store = MemoryStore(flat=True)
    here = Stream(store)
    write(here, parts(3, 3))
    store.put("0000001.in_band.bin", bytes(6))
    for look in (here.contents, here.storage.publish):
        with pytest.raises(CorruptShardError, match="another object than its receipt was made for"):
            look()
    assert here.storage.finished_tasks() == {}


def test_receipts_copied_to_another_place_count_there(tmp_path):
    store, other = FolderStore(MemoryStore(flat=True), "one"), FlatFolder(tmp_path / "other")
    write(Stream(store), parts(3, 3))
    for path, data in objects_in(store).items():
        other.put(path, data)
    assert Stream(other).contents() == list(range(6))
    assert Stream(LocalStore(other.root)).storage.publish() == Stream(store).storage.publish()


@pytest.mark.parametrize("missing", ["write", "conditional", "listing"])
def test_a_store_on_which_the_promise_cannot_be_kept_is_refused_before_anything_is_written(missing):
    store = flat()
    store.capabilities = store.capabilities._replace(**{missing: False})
    with pytest.raises(UnsupportedOperationError):
        write(Stream(store), parts(3))
    assert store.calls == []


@pytest.mark.parametrize("path", ["generation", "plan.json"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_note_of_which_the_store_kept_less_is_written_again(path, overwrite):
    store = flat()
    here = Stream(store)
    for again in range(2):
        for operation in ("put", "put_if_absent"):
            store.rules.append(Rule(Cut(1), operation=operation, path=f".headrace/{path}", nth=1, times=1))
        here.storage.record_plan(["a"], overwrite=overwrite)
        with here.storage.sync_writer(tasks={0: "a"}) as writer:
            writer.append(0, [again, 1, 2])
        if overwrite or again:
            here.storage.publish()
            assert here.contents() == [again, 1, 2]
    assert leftovers(store) == []


@pytest.mark.parametrize("path", ["generation", "plan.json", "0000000.receipt"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_note_that_a_killed_writer_left_cut_short_stops_nobody(path, overwrite):
    store = MemoryStore(flat=True)
    here = Stream(store)
    here.storage.record_plan(["a", "b"])
    write(here, parts(3, 3))
    store.put(f".headrace/{path}", store.get(f".headrace/{path}")[:1])
    assert here.storage.finished_tasks() == {}
    here.storage.record_plan(["a", "b"], overwrite=overwrite)
    with here.storage.sync_writer(tasks={0: "a", 1: "b"}) as writer:
        for shard in range(2):
            writer.append(shard, [7, 8])
    here.storage.publish()
    assert here.contents() == [7, 8, 7, 8]


def test_a_url_is_a_place_to_write_to(tmp_path):
    here = StreamStorage((tmp_path / "one").as_uri(), Stream(tmp_path).storage.storage_format)
    with here.sync_writer() as writer:
        writer.append(0, [1])
    assert (tmp_path / "one" / "0000000.in_band.bin").exists()


def test_a_publisher_that_slept_over_a_withdrawal_takes_its_manifest_back():
    inner = MemoryStore(flat=True)
    write(Stream(inner), parts(3, 3))
    withdraw = Rule(Run(lambda call: inner.put(".headrace/generation", b"1\n")), operation="put_if_absent", path="h*")
    with pytest.raises(LeaseLostError):
        Stream(FaultStore(inner, [withdraw])).storage.publish()
    assert "headrace.json" not in objects_in(inner)
    with pytest.raises(UnfinishedDatasetError, match="older run"):
        Stream(inner).contents()
