"""Samples written to stores that are no directories: what goes there, how often it is asked, and what is refused."""

import contextlib
import threading

import pytest

from headrace import merge_index, prepare
from headrace.datasets import MDSWriter, SampleDataset, SampleStorage
from headrace.datasets.samples import delivery, ownership, pending, sample_writer
from headrace.datasets.samples.places import overlap, part_folder
from headrace.errors import (
    AccessDeniedError,
    ExistingOutputError,
    HeadraceError,
    LeaseLostError,
    OptionError,
    OutputError,
    StoreError,
    TemporaryStoreError,
    UnsupportedOperationError,
)
from headrace.store import FolderStore, LocalStore, MemoryStore
from headrace.store.open import open_store
from headrace.store.retrying import RetryingStore, RetryPolicy
from headrace.testing import Cut, FaultStore, Forget, Refuse, Rule, Run
from remote_scenes import Bucket, FlatFolder
from writing_scenes import COLUMNS, files_in, fill, ids_in, sample, write

RECEIPT = ".headrace/samples/shard.00000"
QUICK = RetryPolicy(tries=4, first_wait_s=0.001, longest_wait_s=0.002)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(delivery, "_FIRST_WAIT_S", 0.001)


def records(split):
    for number in range(split * 10, split * 10 + 10):
        yield sample(number)


# What is there afterwards


def test_the_files_are_those_that_a_directory_would_have(tmp_path):
    write(tmp_path, range(45), hashes=["sha1"])
    for store in (MemoryStore(flat=True), FlatFolder(tmp_path / "flat"), FolderStore(MemoryStore(flat=True), "a/b")):
        write(store, range(45), hashes=["sha1"])
        expected = {path: data for path, data in files_in(tmp_path).items() if not path.startswith("flat/")}
        assert files_in(store) == expected
        assert ids_in(store) == list(range(45))


def test_of_a_pair_the_object_store_counts_and_the_directory_has_the_same_files(tmp_path):
    store = MemoryStore(flat=True)
    write((tmp_path / "local", store), range(25), keep_local=True)
    assert files_in(store) == files_in(tmp_path / "local")
    write((tmp_path / "other", store), range(30), exist_ok=True)
    assert ids_in(store) == list(range(30))
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_shard_that_waited_on_the_disk_goes_up_from_there(compression, monkeypatch):
    monkeypatch.setattr(pending, "SPILL_BYTES", 1 << 14)
    monkeypatch.setattr(pending, "GATHER_BYTES", 1 << 12)
    monkeypatch.setattr(sample_writer, "SPILL_BYTES", 1 << 14)
    monkeypatch.setattr(sample_writer, "GATHER_BYTES", 1 << 12)
    plain, bucket = MemoryStore(), Bucket()
    for store in (plain, bucket):
        with MDSWriter(columns=COLUMNS, out=store, size_limit=None, hashes=["md5"], compression=compression) as writing:
            for number in range(3000):
                writing.write({"id": number, "text": "x" * 100})
    assert files_in(bucket) == files_in(plain)
    if compression is None:
        assert bucket.uploaded == ["shard.00000.mds"]
        assert bucket.largest_put < 1000  # notes and the index


def test_a_plan_of_which_a_store_kept_less_does_not_stop_the_next_preparation():
    store = FaultStore(MemoryStore(flat=True), [Rule(Cut(9), "put", "*plan.json", times=1)])
    for _ in range(2):
        with contextlib.suppress(HeadraceError):
            prepare([0, 1], records, SampleStorage(store, COLUMNS), workers=1, progress=False)
    assert ids_in(store) == list(range(20))


def test_a_dataset_is_prepared_and_prepared_again_and_its_tasks_are_skipped():
    store = MemoryStore(flat=True)
    report = prepare([0, 1, 2], records, SampleStorage(store, COLUMNS), workers=1, progress=False)
    assert (report.done, report.skipped) == (3, 0)
    assert ids_in(store) == list(range(30))
    assert not any("headrace" in path for path in files_in(store))
    files = files_in(store)
    report = prepare([0, 1, 2], records, SampleStorage(store, COLUMNS), workers=1, progress=False)
    assert (report.done, report.skipped) == (0, 3)
    assert files_in(store) == files
    prepare([1, 2], records, SampleStorage(store, COLUMNS), workers=1, progress=False, overwrite=True)
    assert ids_in(store) == list(range(10, 30))


def test_processes_prepare_into_one_object_store(tmp_path):
    store = FlatFolder(tmp_path / "bucket")
    prepare([0, 1, 2, 3], records, SampleStorage(store, COLUMNS), workers=2, progress=False)
    alone = MemoryStore()
    prepare([0, 1, 2, 3], records, SampleStorage(alone, COLUMNS), workers=1, progress=False)
    assert files_in(store) == files_in(alone)
    assert ids_in(store) == list(range(40))


# What it costs


def requests_of_shards(store, **options):
    """What is asked for the second of two shards, and its files."""
    with MDSWriter(columns=COLUMNS, out=store, max_workers=1, **options) as writing:
        fill(writing, range(10))
        writing.flush_shard()
        writing._background.drain()
        before = len(store.calls)
        fill(writing, range(10, 20))
        writing.flush_shard()
        writing._background.drain()
        return [(call.operation, call.path) for call in store.calls[before:]]


def test_a_shard_costs_two_requests_a_file_and_whether_the_place_is_owned_is_asked_once_a_second(monkeypatch):
    for name in ("shard.00001.mds", "shard.00001.mds.zstd"):
        options = {"compression": "zstd"} if name.endswith("zstd") else {}
        receipt = ".headrace/samples/shard.00001"
        expected = [("put", name), ("head", name), ("put", receipt), ("head", receipt)]
        assert requests_of_shards(FaultStore(MemoryStore(flat=True)), **options) == expected
    monkeypatch.setattr("headrace.datasets.samples.output._TRUSTED_S", 0.0)
    assert len(requests_of_shards(FaultStore(MemoryStore(flat=True)))) == 4 + 2 * 4


def test_what_goes_is_deleted_by_many_requests_at_once():
    store = MemoryStore(flat=True)
    write(store, range(64), a_shard=1)
    at_once, most, lock = [0], [0], threading.Lock()

    def deleting(_):
        with lock:
            at_once[0] += 1
            most[0] = max(most[0], at_once[0])
        threading.Event().wait(0.01)
        with lock:
            at_once[0] -= 1

    write(FaultStore(store, [Rule(Run(deleting), "delete")]), range(5), exist_ok=True)
    assert most[0] > 4
    assert ids_in(store) == list(range(5))
    assert len(files_in(store)) == 2


def test_a_writer_does_not_wait_while_a_receipt_is_stored():
    waiting = threading.Event()
    store = FaultStore(MemoryStore(flat=True), [Rule(Run(lambda _: waiting.wait(20)), "put", RECEIPT)])
    with MDSWriter(columns=COLUMNS, out=store, max_workers=2) as writing:
        for number in range(3):
            writing.write(sample(number))
            writing.flush_shard()  # else the third of these would wait for the first one's receipt
        waiting.set()
    assert ids_in(store) == [0, 1, 2]


# What is lost, replaced or refused


@pytest.mark.parametrize("loss", ["gone", "cut", "other bytes", "the same bytes"])
def test_an_object_that_is_not_as_it_was_confirmed_keeps_the_index_from_appearing(loss):
    store = MemoryStore(flat=True)
    writing = MDSWriter(columns=COLUMNS, out=store, max_workers=1)
    fill(writing, range(25))
    writing.flush_shard()
    writing._background.drain()
    data = store.get("shard.00001.mds")
    if loss == "gone":
        store.delete("shard.00001.mds")
    else:
        other = {"cut": data[:100], "other bytes": data[:-1] + b"?", "the same bytes": data}[loss]
        store.put("shard.00001.mds", other)
    problem = {"gone": f"has no bytes now, but {len(data)}", "cut": f"has 100 bytes now, but {len(data)}"}
    with pytest.raises(OutputError, match=rf"shard\.00001\.mds.*{problem.get(loss, 'somebody else replaced it')}"):
        writing.finish()
    assert "index.json" not in files_in(store)
    with pytest.raises(OutputError):
        writing.finish()


@pytest.mark.parametrize("kept", [Cut(0), Cut(100), Forget()], ids=repr)
@pytest.mark.parametrize("path", ["shard.00001.mds", "index.json", RECEIPT])
def test_what_a_store_says_it_kept_and_did_not_is_stored_again_or_an_error(path, kept):
    operation = "put_if_absent" if path == "index.json" else "put"
    store = FaultStore(MemoryStore(flat=True), [Rule(kept, operation, path, times=2)])
    write(store, range(25), retry=2)
    assert ids_in(store) == list(range(25))
    store = FaultStore(MemoryStore(flat=True), [Rule(kept, operation, path)])
    told = "no such object" if isinstance(kept, Forget) else rf"the store kept {kept.num_bytes} of \d+ bytes"
    with pytest.raises(OutputError, match=rf"{path}.*{told}.*\(3 tries\)"):
        write(store, range(25), retry=2)
    assert ids_in(store) is None


def test_an_index_that_somebody_else_put_there_meanwhile_stays():
    store = MemoryStore(flat=True)
    writing = MDSWriter(columns=COLUMNS, out=store)
    fill(writing, range(5))
    store.put("index.json", b"theirs")
    with pytest.raises(ExistingOutputError, match=r"got an index\.json from somebody else"):
        writing.finish()
    assert store.get("index.json") == b"theirs"


def test_a_refusal_is_not_tried_again_and_names_the_object():
    denied = AccessDeniedError("s3://bucket/data: 403; is the name right?")
    store = FaultStore(MemoryStore(flat=True), [Rule(Refuse(denied), "put", "shard.*")])
    with pytest.raises(OutputError, match=r"shard\.00000\.mds.*is the name right.*\(1 try\)"):
        write(store, range(5), retry=5)
    assert store.count("put", "shard.*") == 1


def test_what_the_store_itself_tried_again_is_not_tried_again_by_the_writer():
    broken = Refuse(TemporaryStoreError("503 slow down"))
    store = FaultStore(MemoryStore(flat=True), [Rule(broken, "put", "shard.*")])
    with pytest.raises(OutputError, match=r"503 slow down; gave up after 4 tries"):
        write(RetryingStore(store, QUICK), range(5), retry=5)
    assert store.count("put", "shard.*") == 4
    store.rules[:] = [Rule(broken, "put", "shard.*", times=2), Rule(broken, "put_if_absent", "index.json", times=3)]
    write(RetryingStore(store, QUICK), range(5), retry=0, exist_ok=True)
    assert ids_in(store) == list(range(5))


def test_a_store_that_only_reads_is_refused_before_anything_is_asked():
    store = FaultStore(MemoryStore(flat=True))
    store.capabilities = store.capabilities._replace(write=False, conditional=False)
    with pytest.raises(UnsupportedOperationError, match="memory:// cannot be written to"):
        write(store, range(5))
    assert store.calls == []


def test_a_store_without_conditional_puts_is_refused_before_anything_is_written():
    store = FaultStore(MemoryStore(flat=True))
    store.capabilities = store.capabilities._replace(conditional=False)
    with pytest.raises(UnsupportedOperationError, match="one writer at a time"):
        write(store, range(5))
    assert files_in(store) == {}


def test_a_writer_that_lost_its_place_stores_nothing_more_and_puts_no_index(monkeypatch):
    monkeypatch.setattr("headrace.datasets.samples.output._TRUSTED_S", 0.0)
    store = MemoryStore(flat=True)
    writing = MDSWriter(columns=COLUMNS, out=store, max_workers=1)
    fill(writing, range(15))
    for info in store.list(ownership.LEASES):  # as when it has expired
        store.delete(info.path)
    write(store, range(100, 120), exist_ok=True)
    files = files_in(store)
    with pytest.raises(LeaseLostError):
        writing.finish()
    assert files_in(store) == files
    assert ids_in(store) == list(range(100, 120))


# Merging


def test_a_root_is_merged_to_the_same_bytes_whatever_it_is_called(tmp_path):
    flat, memory = FlatFolder(tmp_path / "a"), FolderStore(MemoryStore(flat=True), "root")
    places = [
        flat,
        memory,
        tmp_path / "b",
        f"{tmp_path}/c/",
        (tmp_path / "d").as_uri(),
        f"{(tmp_path / 'e').as_uri()}/",
    ]
    expected = None
    for place in places:
        root = place if place in places[:2] else LocalStore(place)
        write(FolderStore(root, "part-2"), range(10, 20))
        write(FolderStore(root, "part-10"), range(20, 35))
        names = [f"{root.location}/part-2", f"{root.location}/part-10/index.json"]
        parts = [FolderStore(root, "part-2"), FolderStore(root, "part-10")]
        for arguments, named in (
            ((place,), {}),
            ((), {"out": place}),
            ((place, True, 60), {}),
            ((names, place), {}),
            ((), {"index_file_urls": names, "out": place}),
            ((parts, place), {}),
        ):
            merge_index(*arguments, **named)
            expected = expected or root.get("index.json")
            assert root.get("index.json") == expected
            root.delete("index.json")


@pytest.mark.parametrize("out", ["s3://bucket/root", "s3://bucket/root/", "az://account/bucket/root"])
def test_a_part_is_named_by_its_url_however_that_is_written(out):
    options = {"account": "account"} if out.startswith("az") else {}
    try:
        root = open_store(out, **options)
    except OptionError:
        pytest.skip("this URL needs more options")
    for url in (f"{out.rstrip('/')}/a/b/index.json", f"{out.rstrip('/')}/a/b", f"{out.rstrip('/')}/a/b/"):
        assert part_folder(url, [root]) == "a/b"
    assert part_folder(out, [root]) == ""
    with pytest.raises(OptionError, match=r"an index\.json below"):
        part_folder(f"{out.rstrip('/')}-other/a/index.json", [root])


def test_a_pair_of_urls_of_which_one_is_inside_the_other_is_refused():
    outer, inner, other = (open_store(f"s3://bucket/{name}") for name in ("a", "a/b", "ab"))
    assert overlap(outer, inner)
    assert overlap(inner, outer)
    assert not overlap(outer, other)
    assert not overlap(MemoryStore(flat=True), MemoryStore(flat=True))


@pytest.mark.parametrize("kept", [Cut(0), Cut(30)], ids=repr)
def test_a_merged_index_that_a_store_does_not_keep_is_put_again_or_an_error(kept):
    store = FaultStore(MemoryStore(flat=True))
    write(FolderStore(store, "0"), range(5))
    store.rules[:] = [Rule(kept, "put", "index.json", times=1)]
    merge_index(store)
    assert ids_in(store) == list(range(5))
    store.delete("index.json")
    store.rules[:] = [Rule(kept, "put", "index.json")]
    with pytest.raises(StoreError, match=rf"index.json: the store kept {kept.num_bytes} of \d+ bytes"):
        merge_index(store)


def test_what_was_written_is_read_through_a_new_store(tmp_path):
    write(FlatFolder(tmp_path), range(15))
    with SampleDataset(FlatFolder(tmp_path)) as dataset:
        assert [one["id"] for one in dataset[:]] == list(range(15))
