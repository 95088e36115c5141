"""Samples written to stores that are no directories: what goes there, how often it is asked, and what is refused."""

import contextlib
import threading

import pytest

from headrace import merge_index, prepare
from headrace.datasets import MDSWriter, SampleDataset, SampleStorage
from headrace.datasets.samples import delivery, pending, sample_writer, withdrawal
from headrace.datasets.samples.places import overlap, part_folder
from headrace.errors import (
    AccessDeniedError,
    DatasetError,
    ExistingOutputError,
    HeadraceError,
    LeaseLostError,
    OptionError,
    OutputError,
    PublishedError,
    StoreError,
    TemporaryStoreError,
    UnsupportedOperationError,
)
from headrace.store import FolderStore, LocalStore, MemoryStore
from headrace.store.open import open_store
from headrace.store.retrying import RetryingStore, RetryPolicy
from headrace.testing import Break, Cut, FaultStore, Flip, Forget, Refuse, Rule, Run
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
    store = FaultStore(MemoryStore(flat=True), [Rule(Cut(9), "put_if_absent", "*plan.json", times=1)])
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
        expected = [("put", name), ("stored", name), ("put_if_absent", receipt), ("stored", receipt)]
        assert requests_of_shards(FaultStore(MemoryStore(flat=True)), **options) == expected
    monkeypatch.setattr("headrace.datasets.samples.output._TRUSTED_S", 0.0)
    assert len(requests_of_shards(FaultStore(MemoryStore(flat=True)))) == 4 + 2 * 5


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


@pytest.mark.parametrize("kept", [Cut(0), Cut(100), Forget(), Flip(70)], ids=repr)
@pytest.mark.parametrize("path", ["shard.00001.mds", "index.json", RECEIPT])
def test_what_a_store_says_it_kept_and_did_not_is_stored_again_or_an_error(path, kept):
    operation = "put" if path == "shard.00001.mds" else "put_if_absent"
    store = FaultStore(MemoryStore(flat=True), [Rule(kept, operation, path, times=2)])
    write(store, range(25), retry=2)
    assert ids_in(store) == list(range(25))
    store = FaultStore(MemoryStore(flat=True), [Rule(kept, operation, path)])
    told = {Cut(0): r"0 of \d+ bytes", Cut(100): r"100 of \d+ bytes", Forget(): "nothing"}.get(kept)
    told = told or r"\d+ other bytes \(with the md5 digest"
    with pytest.raises(OutputError, match=rf"{path}.*the store kept {told}.*\(3 tries\)"):
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
    for info in store.list(withdrawal.LEASES):  # as when it has expired
        store.delete(info.path)
    write(store, range(100, 120), exist_ok=True)
    files = files_in(store)
    with pytest.raises(LeaseLostError):
        writing.finish()
    assert files_in(store) == files
    assert ids_in(store) == list(range(100, 120))


def successor_of(store, ids):
    """What another writer does that has taken the place, as after the lease has expired; it does not finish."""
    for info in store.list(withdrawal.LEASES):
        store.delete(info.path)
    writing = MDSWriter(columns=COLUMNS, out=store, exist_ok=True, max_workers=1, hashes=["xxh3_64"])
    fill(writing, ids)
    writing.flush_shard()
    writing._background.drain()
    return writing


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_receipt_that_comes_after_a_takeover_does_not_replace_the_successors(nth):
    """Between the check of the lease and the receipt, though the check counts for a second."""
    store, successors = MemoryStore(flat=True), []
    receipts = {}

    def take_over(_):
        successors.append(successor_of(store, range(100, 130)))
        receipts.update({info.path: store.get(info.path) for info in store.list(".headrace/samples", recursive=False)})

    late = FaultStore(store, [Rule(Run(take_over), "put_if_absent", ".headrace/samples/shard.*", nth=nth, times=1)])
    with pytest.raises(LeaseLostError):
        write(late, range(45), max_workers=1)
    assert len(receipts) == 4
    assert {path: store.get(path) for path in receipts} == receipts
    successors[0].finish()
    assert ids_in(store) == list(range(100, 130))


def test_a_late_receipt_where_the_successor_has_none_yet_is_replaced_by_its_own():
    store = MemoryStore(flat=True)
    writing = MDSWriter(columns=COLUMNS, out=store, max_workers=1)
    fill(writing, range(10))
    store.put(RECEIPT, b"of somebody who slept")
    writing.flush_shard()
    writing._background.drain()
    writing.__exit__(KeyError, KeyError(), None)
    with MDSWriter(columns=COLUMNS, out=store, resume=True) as writing:
        assert writing.num_safe_samples == 10
        fill(writing, range(10, 20))
    assert ids_in(store) == list(range(20))


def test_receipts_behind_a_gap_are_not_gone_on_with():
    store = MemoryStore(flat=True)
    writing = successor_of(store, range(45))
    writing.__exit__(KeyError, KeyError(), None)
    store.delete(".headrace/samples/shard.00002")
    with MDSWriter(columns=COLUMNS, out=store, resume=True, hashes=["xxh3_64"]) as writing:
        assert writing.num_safe_samples == 20
        assert not any(info.path > RECEIPT[:-1] + "1" for info in store.list(".headrace/samples", recursive=False))
        fill(writing, range(20, 45))
    assert ids_in(store) == list(range(45))


@pytest.mark.parametrize("path", [RECEIPT, "index.json"])
@pytest.mark.parametrize("retrying", [False, True])
def test_a_receipt_or_index_whose_answer_is_lost_is_ones_own(path, retrying):
    store = FaultStore(MemoryStore(flat=True), [Rule(Break(performed=True), "put_if_absent", path, times=1)])
    write(RetryingStore(store, QUICK) if retrying else store, range(25), retry=2)
    assert store.count("put_if_absent", path) == 2
    assert store.count("delete", path) <= 1  # as it tidies up
    assert ids_in(store) == list(range(25))


def test_a_receipt_place_that_never_gets_free_is_an_error_after_all_tries():
    store = MemoryStore(flat=True)
    blocked = FaultStore(store, [Rule(Run(lambda call: store.put(call.path, b"of a rival")), "put_if_absent", RECEIPT)])
    with pytest.raises(OutputError, match=r"shard\.00000.*exists already.*\(3 tries\)"):
        write(blocked, range(25), retry=2)
    assert ids_in(store) is None


def test_a_writer_that_slept_before_it_withdraws_leaves_its_successors_index():
    store = MemoryStore(flat=True)
    write(store, range(5))

    def take_over(_):
        successor_of(store, range(100, 120)).finish()

    late = FaultStore(store, [Rule(Run(take_over), "put", ".headrace/samples/begun", times=1)])
    with pytest.raises(LeaseLostError):
        write(late, range(45), exist_ok=True)
    assert ids_in(store) == list(range(100, 120))


def test_of_two_preparations_that_begin_at_once_the_second_is_told_before_it_works():
    store = MemoryStore(flat=True)
    first = SampleStorage(store, COLUMNS)
    late = FaultStore(
        store, [Rule(Run(lambda _: first.record_plan(["a" * 32, "b" * 32])), "put_if_absent", "*plan.json", times=1)]
    )
    with pytest.raises(PublishedError, match="taken by another preparation"):
        SampleStorage(late, COLUMNS).record_plan(["c" * 32])
    assert first.planned_tasks() == ["a" * 32, "b" * 32]
    SampleStorage(store, COLUMNS).record_plan(["c" * 32])  # over one that did not end
    assert first.planned_tasks() == ["c" * 32]


# Late files


@pytest.mark.parametrize("hashes", [["xxh3_64"], ["md5", "sha1"], None])
@pytest.mark.parametrize("answer", ["comes", "is lost"])
@pytest.mark.parametrize("place", ["index", "receipts"])
def test_a_late_file_as_long_as_the_successors_is_taken_back_by_its_sender(hashes, answer, place, monkeypatch):
    monkeypatch.setattr("headrace.datasets.samples.output._TRUSTED_S", 0.0)
    store, successors = MemoryStore(flat=True), []

    def take_over(_):
        for info in store.list(withdrawal.LEASES):
            store.delete(info.path)
        writing = MDSWriter(columns=COLUMNS, out=store, exist_ok=True, max_workers=1, hashes=hashes)
        fill(writing, range(50, 80))
        successors.append(writing)
        writing.flush_shard()
        writing._background.drain()
        if place == "index":
            writing.finish()

    rules = [Rule(Run(take_over), "put", "shard.00001.mds", times=1)]
    if answer == "is lost":
        rules.append(Rule(Break(performed=True), "put", "shard.00001.mds", times=1))
    with pytest.raises(LeaseLostError):
        write(FaultStore(store, rules), range(10, 40), hashes=hashes, max_workers=1, retry=2)
    assert "shard.00001.mds" not in files_in(store)
    if place == "index":
        with SampleDataset(store) as dataset, pytest.raises(DatasetError, match=r"shard\.00001"):
            dataset[10]
    else:
        with pytest.raises(OutputError, match=r"shard\.00001"):
            successors[0].finish()


def test_a_late_file_that_is_the_same_or_that_nobody_counts_on_stays(monkeypatch):
    monkeypatch.setattr("headrace.datasets.samples.output._TRUSTED_S", 0.0)
    store = MemoryStore(flat=True)
    late = FaultStore(
        store, [Rule(Run(lambda _: successor_of(store, range(30)).finish()), "put", "shard.00001.mds", times=1)]
    )
    with pytest.raises(LeaseLostError):
        write(late, range(30), hashes=["xxh3_64"], max_workers=1)
    assert ids_in(store) == list(range(30))

    store = MemoryStore(flat=True)
    late = FaultStore(store, [Rule(Run(lambda _: successor_of(store, range(9))), "put", "shard.00001.mds", times=1)])
    with pytest.raises(LeaseLostError):
        write(late, range(30), hashes=["xxh3_64"], max_workers=1)
    assert "shard.00001.mds" in files_in(store)  # the successor writes its own over it, or removes it
    write(store, range(5), exist_ok=True)
    assert ids_in(store) == list(range(5))


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


@pytest.mark.parametrize("kept", [Cut(0), Cut(30), Forget()], ids=repr)
def test_a_merged_index_that_a_store_does_not_keep_is_put_again_or_an_error(kept):
    store = FaultStore(MemoryStore(flat=True))
    write(FolderStore(store, "0"), range(5))
    store.rules[:] = [Rule(kept, "put_if_absent", "index.json", times=1)]
    merge_index(store)
    assert ids_in(store) == list(range(5))
    for operation in ("put_if_absent", "put"):  # where no index was, and over an older one
        store.delete("index.json")
        if operation == "put":
            merge_index(store)
            write(FolderStore(store, "1"), range(5, 10))
        store.rules[:] = [Rule(kept, operation, "index.json")]
        told = rf"{kept.num_bytes} of \d+ bytes" if kept != Forget() else r"nothing|\d+ of \d+ bytes"  # the older one's
        with pytest.raises(StoreError, match=f"index.json: the store kept ({told}), though"):
            merge_index(store)
        store.rules.clear()
        assert ("index.json" in files_in(store)) == (operation == "put")


def test_what_was_written_is_read_through_a_new_store(tmp_path):
    write(FlatFolder(tmp_path), range(15))
    with SampleDataset(FlatFolder(tmp_path)) as dataset:
        assert [one["id"] for one in dataset[:]] == list(range(15))
