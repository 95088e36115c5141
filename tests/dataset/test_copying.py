"""copy_dataset: any dataset to any place, whole or not at all, gone on with after a kill, and never over another."""

import contextlib
import itertools
import json
import multiprocessing
import os
import re
import shutil
import signal
import threading

import numpy as np
import pytest

from headrace.datasets import (
    DocumentStorage,
    SampleDataset,
    StreamStorage,
    StreamWithMetaStorage,
    merge_index,
    open_storage,
)
from headrace.datasets.copying import copy_dataset, transfer
from headrace.datasets.ledger import DATASET, LEASES
from headrace.datasets.samples import withdrawal
from headrace.errors import (
    CorruptShardError,
    DatasetChangedError,
    ExistingOutputError,
    FieldError,
    HeadraceError,
    LeaseLostError,
    NoDatasetError,
    NotFoundError,
    OptionError,
    ShardOwnedError,
    StoreError,
    UnfinishedDatasetError,
    UnsupportedOperationError,
)
from headrace.formats.annotated import SpanNumpyFormat
from headrace.formats.compression import codec
from headrace.formats.documents import DocumentBytesFormat
from headrace.formats.stream import StreamArrayFormat
from headrace.store import FolderStore, LocalStore, MemoryStore, acquire, attempt_id
from headrace.store.open import open_store
from headrace.testing import Cut, FaultStore, Flip, Forget, Refuse, Rule, Run
from remote_scenes import FlatFolder
from writing_scenes import everything_in, files_in, ids_in, write

FORK = multiprocessing.get_context("fork")
U2 = StreamArrayFormat("<u2")


def write_stream(store, *, publish=True, start=0):
    storage = StreamStorage(store, U2)
    with storage.sync_writer() as writer:
        for shard in range(5):
            writer.append(shard, np.arange(start + shard * 100, start + shard * 100 + 100, dtype=np.uint16))
    if publish:
        storage.publish({"name": "numbers"})


def write_receipts(store):
    write_stream(store, publish=False)


def write_documents(store):
    storage = DocumentStorage(store, DocumentBytesFormat())
    with storage.sync_writer() as writer:
        for shard in range(4):
            writer.start(shard)  # the last one stays empty
            for number in range(0 if shard == 3 else 5):
                writer.append(shard, f"document {shard} {number}".encode())
    storage.publish()


def write_annotated(store):
    storage = StreamWithMetaStorage(store, SpanNumpyFormat("<u2"))
    with storage.sync_writer() as writer:
        for shard in range(3):
            record = {"tokens": np.arange(5), "span_lengths": [2, 3], "payloads": [b"a", b"bc"]}
            writer.append(shard, record)
    storage.publish()


def write_foreign(store):
    """As another program leaves it: files alone."""
    write_stream(store)
    for info in store.list():
        if info.path == "headrace.json" or info.path.startswith(".headrace"):
            store.delete(info.path)
    if store.capabilities.rename:
        store.remove_folder(".headrace")


def write_samples(store):
    write(store, range(45), hashes=["sha1", "xxh3_64"])


def write_compressed(store):
    write(store, range(45), compression="zstd", hashes=None)


def write_parts(store):
    for part in range(3):
        write(FolderStore(store, f"deep/part-{part}"), range(part * 10, part * 10 + 10), hashes=["md5"])
    merge_index(store)


KINDS = {
    "stream": write_stream,
    "receipts": write_receipts,
    "documents": write_documents,
    "annotated": write_annotated,
    "foreign": write_foreign,
    "samples": write_samples,
    "compressed samples": write_compressed,
    "samples in parts": write_parts,
}
SAMPLES = [name for name in KINDS if "samples" in name]


def is_samples(kind):
    return kind in SAMPLES


def fingerprint_of(store, kind):
    if is_samples(kind):
        with SampleDataset(store) as dataset:
            assert dataset.verify() == []
            return dataset.fingerprint
    storage = open_storage(store)
    assert storage.verify() == []
    return storage.open().manifest.fingerprint


def is_whole(store, kind):
    try:
        fingerprint_of(store, kind)
    except (UnfinishedDatasetError, NoDatasetError):
        return False
    return True


def visible(store):
    return {path: data for path, data in files_in(store).items() if not path.startswith(".headrace")}


PLACES = {"a directory": lambda folder: LocalStore(folder, fsync=False), "objects": FlatFolder}


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(params=PLACES)
def source(request, kind, tmp_path):
    store = PLACES[request.param](tmp_path / "source")
    KINDS[kind](store)
    return store


@pytest.fixture(params=PLACES)
def target(request, tmp_path):
    return PLACES[request.param](tmp_path / "target")


# What comes of it


def test_a_copy_has_the_same_files_and_the_same_fingerprint_and_nothing_else(kind, source, target, tmp_path):
    report = copy_dataset(source, target)
    expected = visible(source)
    if kind == "receipts":
        with_manifest = MemoryStore()
        write_stream(with_manifest, publish=False)
        StreamStorage(with_manifest, U2).publish()
        expected = visible(with_manifest)
    assert files_in(target) == expected
    assert not (tmp_path / "target/.headrace").exists() or not target.capabilities.rename
    assert fingerprint_of(target, kind) == fingerprint_of(source, kind)
    indexes = [path for path in expected if path.endswith(".json")]
    assert (report.copied_files, report.skipped_files) == (len(expected) - len(indexes), 0)
    assert report.copied_bytes == sum(len(data) for path, data in expected.items() if path not in indexes)
    assert report.fingerprint == (None if kind == "foreign" else fingerprint_of(source, kind))


def test_copied_again_nothing_is_written(source, target, kind):
    first = copy_dataset(source, target)
    watched = FaultStore(target)
    again = copy_dataset(source, watched)
    assert (again.copied_files, again.skipped_files) == (0, first.copied_files)
    assert {call.operation for call in watched.calls} <= {"get", "list", "head", "folders", "pieces", "get_ranges_of"}


def test_a_place_may_be_a_path_or_a_url(tmp_path):
    write_samples(LocalStore(tmp_path / "a"))
    copy_dataset(tmp_path / "a", str(tmp_path / "b"))
    copy_dataset(f"{tmp_path}/b/", (tmp_path / "c d#é").as_uri(), workers=1)
    assert files_in(tmp_path / "c d#é") == files_in(tmp_path / "a")


def test_the_bytes_that_are_told_add_up(source, target):
    told = []
    report = copy_dataset(source, target, tell=lambda now, total: told.append((now, total)))
    assert {total for _, total in told} == {report.copied_bytes}
    assert sum(now for now, _ in told) == report.copied_bytes


def test_large_files_go_up_from_a_file_and_in_bounded_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(transfer, "_IN_MEMORY_BYTES", 100)
    for name, make in PLACES.items():
        source = make(tmp_path / name / "source")
        write_samples(source)
        watched = FaultStore(FlatFolder(tmp_path / name / "target"))
        copy_dataset(source, watched)
        assert watched.count("upload", "shard.*") == 5
        assert files_in(watched.store) == files_in(source)


def test_files_beside_a_dataset_are_not_copied(tmp_path):
    write_samples(LocalStore(tmp_path / "a"))
    (tmp_path / "a/README").write_text("mine")
    copy_dataset(tmp_path / "a", tmp_path / "b")
    assert not (tmp_path / "b/README").exists()


def test_a_file_in_both_forms_is_copied_in_both(tmp_path):
    write_compressed(LocalStore(tmp_path / "a"))
    with SampleDataset(tmp_path / "a") as dataset:
        ids = [one["id"] for one in dataset[:]]
    size_bytes = json.loads((tmp_path / "a/index.json").read_bytes())["shards"][1]["raw_data"]["bytes"]
    raw = codec("zstd").decompress((tmp_path / "a/shard.00001.mds.zstd").read_bytes(), size_bytes)
    (tmp_path / "a/shard.00001.mds").write_bytes(raw)
    copy_dataset(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b/shard.00001.mds").read_bytes() == raw
    assert (tmp_path / "b/shard.00001.mds.zstd").exists()
    assert ids_in(tmp_path / "b") == ids


# Sources that are refused


@pytest.mark.parametrize("make", [write_stream, write_samples])
def test_a_source_that_is_unfinished_is_refused_and_nothing_is_written(make, tmp_path):
    make(LocalStore(tmp_path / "a"))
    for name in ("headrace.json", "index.json"):
        (tmp_path / "a" / name).unlink(missing_ok=True)
    if make is write_stream:
        (tmp_path / "a/.headrace/0000002.receipt").unlink()
    else:
        (tmp_path / "a/.headrace/samples").mkdir(parents=True)
    with pytest.raises(UnfinishedDatasetError):
        copy_dataset(tmp_path / "a", tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_a_source_without_a_dataset_is_refused(tmp_path):
    (tmp_path / "a").mkdir()
    for source in (tmp_path / "a", tmp_path / "absent", MemoryStore(flat=True)):
        with pytest.raises(NoDatasetError):
            copy_dataset(source, tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_a_file_that_is_missing_or_cut_is_told_before_anything_is_written(kind, source, target):
    if kind == "foreign":
        pytest.skip("nothing tells how long the files were")
    path = sorted(path for path in files_in(source) if re.search(r"0001\.|deep/part-1/shard", path))[-1]
    data = source.get(path)
    source.put(path, data[:-1])
    with pytest.raises(HeadraceError, match=re.escape(path.rpartition("/")[2])):
        copy_dataset(source, target)
    source.delete(path)
    with pytest.raises(HeadraceError, match=re.escape(path.rpartition("/")[2])):
        copy_dataset(source, target)
    assert files_in(target) == {}


@pytest.mark.parametrize("name", ["stream", "samples", "samples in parts"])
def test_damage_is_found_on_the_way_and_the_copy_is_no_dataset(name, tmp_path):
    source, target = MemoryStore(), FlatFolder(tmp_path)
    KINDS[name](source)
    path = next(path for path in sorted(files_in(source)) if not path.startswith(".") and not path.endswith(".json"))
    data = bytearray(source.get(path))
    data[len(data) // 2] ^= 1
    source.put(path, bytes(data))
    with pytest.raises(CorruptShardError, match=rf"{path} has the \w+ digest \w+, but \w+ is recorded"):
        copy_dataset(source, target)
    assert not is_whole(target, name)
    assert path not in files_in(target)


def test_damage_on_the_way_is_healed_by_reading_again(tmp_path):
    source = MemoryStore()
    write_samples(source)
    faulty = FaultStore(source, [Rule(Flip(50), "pieces", "shard.00001.*", times=1)])
    told = []
    report = copy_dataset(faulty, tmp_path / "b", tell=lambda now, total: told.append(now))
    assert files_in(tmp_path / "b") == files_in(source)
    assert sum(told) == report.copied_bytes


@pytest.mark.parametrize("name", KINDS)
def test_a_source_that_is_replaced_meanwhile_is_told_and_the_copy_is_no_dataset(name, tmp_path):
    source, target = MemoryStore(), FlatFolder(tmp_path / "target")
    KINDS[name](source)
    path = next(path for path in sorted(files_in(source)) if not path.startswith(".") and not path.endswith(".json"))

    def replace(_):
        if name in SAMPLES:
            source.put("index.json", source.get("index.json") + b" ")
        elif name == "foreign":
            source.put(path, source.get(path))
        else:
            for info in source.list():
                source.delete(info.path)
            source.remove_folder(".headrace")
            write_stream(source, start=1)

    watched = FaultStore(target, [Rule(Run(replace), "put", path, times=1)])
    with pytest.raises((DatasetChangedError, CorruptShardError)):
        copy_dataset(source, watched, workers=1)
    assert not is_whole(target, name)


# Destinations that are refused


@pytest.mark.parametrize("other", KINDS)
def test_another_dataset_is_never_overwritten(other, kind, tmp_path):
    source, target = MemoryStore(), LocalStore(tmp_path / "target", fsync=False)
    KINDS[kind](source)
    if other == kind:
        write_stream(target, start=7)
    else:
        KINDS[other](target)
    if {other, kind} <= {"stream", "receipts", "foreign"} and other != kind:
        pytest.skip("these have the same data")
    before = files_in(target)
    with pytest.raises(ExistingOutputError, match=r"is not empty|holds another"):
        copy_dataset(source, target)
    assert files_in(target) == before


def test_foreign_files_of_the_same_names_and_sizes_are_compared(tmp_path):
    source, target = MemoryStore(), MemoryStore()
    write_foreign(source)
    for info in source.list():
        target.put(info.path, source.get(info.path))
    assert copy_dataset(source, target).skipped_files == 5
    target.put("0000003.in_band.bin", b"?" * 200)
    with pytest.raises(ExistingOutputError, match="holds another 0000003"):
        copy_dataset(source, target)


def test_samples_without_hashes_whose_index_is_the_same_are_compared():
    stores = source, target = MemoryStore(), MemoryStore(flat=True)
    for store, first in zip(stores, (100, 200), strict=True):  # as many digits: files of the same sizes
        write(store, range(first, first + 45), hashes=None)
    assert source.get("index.json") == target.get("index.json")
    before = files_in(target)
    with pytest.raises(ExistingOutputError, match=r"holds another shard\.00000\.mds"):
        copy_dataset(source, target)
    assert files_in(target) == before
    write(target, range(100, 145), hashes=None, exist_ok=True)
    assert copy_dataset(source, target).skipped_files == 5


def test_a_directory_with_anything_in_it_is_refused(source, target):
    target.put("notes/README", b"mine")
    with pytest.raises(ExistingOutputError, match=r"is not empty \(notes/README\)"):
        copy_dataset(source, target)
    assert files_in(target) == {"notes/README": b"mine"}


def test_a_file_in_the_place_of_the_directory_is_refused(tmp_path):
    write_samples(LocalStore(tmp_path / "a"))
    (tmp_path / "b").write_text("mine")
    with pytest.raises(ExistingOutputError, match="is a file"):
        copy_dataset(tmp_path / "a", tmp_path / "b")


def test_a_place_inside_the_other_and_a_wrong_number_of_workers_are_refused(tmp_path):
    write_samples(LocalStore(tmp_path / "a"))
    for destination in ("a", "a/b", "."):
        with pytest.raises(OptionError, match="destination="):
            copy_dataset(tmp_path / "a", tmp_path / destination)
    for workers in (0, -1, True, 1.5, "2"):
        with pytest.raises(OptionError, match="workers="):
            copy_dataset(tmp_path / "a", tmp_path / "b", workers=workers)
    assert everything_in(tmp_path / "a") == sorted(files_in(tmp_path / "a"))


def test_a_store_that_only_reads_is_refused_as_a_destination(tmp_path):
    write_samples(LocalStore(tmp_path / "a"))
    target = MemoryStore(flat=True)
    target.capabilities = target.capabilities._replace(write=False)
    with pytest.raises(UnsupportedOperationError, match="cannot be written to"):
        copy_dataset(tmp_path / "a", target)


def test_a_store_without_listings_is_a_source(tmp_path):
    for name in ("stream", "samples", "samples in parts"):
        source = MemoryStore(flat=True)
        KINDS[name](source)
        expected = visible(source)
        source.capabilities = source.capabilities._replace(listing=False, write=False, conditional=False)
        source.list = source.folders = None
        copy_dataset(source, tmp_path / name)
        assert files_in(tmp_path / name) == expected


def test_pages_are_a_source_and_no_destination(http_folder, http_url, tmp_path):
    for name in ("stream", "samples"):
        KINDS[name](LocalStore(http_folder / name))
        copy_dataset(f"{http_url}/{name}", tmp_path / name)
        assert files_in(tmp_path / name) == visible(LocalStore(http_folder / name))
    for write_there in (
        lambda: copy_dataset(tmp_path / "stream", f"{http_url}/there"),
        lambda: write_samples(open_store(f"{http_url}/there")),
    ):
        with pytest.raises(UnsupportedOperationError, match="cannot be written to"):
            write_there()


def test_one_copies_at_a_time_and_no_writer_comes_between(kind, source, target):
    entered, leave = threading.Event(), threading.Event()

    def wait(_):
        entered.set()
        leave.wait(20)

    watched = FaultStore(source, [Rule(Run(wait), "pieces", times=1)])
    copying = threading.Thread(target=copy_dataset, args=(watched, target))
    copying.start()
    assert entered.wait(20)
    with pytest.raises(ShardOwnedError):
        copy_dataset(source, target)
    if is_samples(kind):
        with pytest.raises(ShardOwnedError):
            write(target, range(5), exist_ok=True)
    assert not is_whole(target, kind)
    leave.set()
    copying.join()
    assert fingerprint_of(target, kind) == fingerprint_of(source, kind)


# Failures, and going on


@pytest.mark.parametrize("kept", [Cut(0), Cut(20), Forget()], ids=repr)
@pytest.mark.parametrize("name", ["stream", "samples"])
def test_a_store_that_keeps_less_than_it_says_is_asked_again_or_an_error(name, kept):
    source, store = MemoryStore(), FaultStore(MemoryStore(flat=True))
    KINDS[name](source)
    path = "0000001.in_band.bin" if name == "stream" else "shard.00001.mds"
    store.rules[:] = [Rule(kept, "put", path)]
    with pytest.raises(StoreError, match="kept nothing" if kept == Forget() else rf"kept {kept.num_bytes} of \d+"):
        copy_dataset(source, store)
    assert not is_whole(store.store, name)
    store.rules[:] = [Rule(kept, "put", path, times=1)]
    copy_dataset(source, store)
    assert fingerprint_of(store.store, name) == fingerprint_of(source, name)


@pytest.mark.parametrize("name", ["stream", "samples"])
def test_an_object_that_vanishes_after_it_was_copied_keeps_the_copy_from_being_a_dataset(name):
    source, target = MemoryStore(), MemoryStore(flat=True)
    KINDS[name](source)
    names = [path for path in sorted(files_in(source)) if not path.startswith(".") and not path.endswith(".json")]

    for change, problem in (
        (lambda: target.delete(names[0]), "has no bytes now"),
        (lambda: target.put(names[0], target.get(names[0])), "was replaced by somebody else"),
    ):
        watched = FaultStore(target, [Rule(Run(lambda _, change=change: change()), "put", names[-1], times=1)])
        with pytest.raises(StoreError, match=problem):
            copy_dataset(source, watched, workers=1)
        assert not is_whole(target, name)
        for info in target.list():
            target.delete(info.path)


def test_a_failure_stops_the_others_and_the_next_copy_goes_on_after_it(kind, source, target):
    paths = [path for path in sorted(visible(source)) if not path.endswith(".json")]
    watched = FaultStore(source, [Rule(Refuse(StoreError("Input/output error")), "pieces", paths[-1])])
    with pytest.raises(StoreError, match="Input/output error"):
        copy_dataset(watched, target, workers=1)
    assert not is_whole(target, kind)
    done = set(files_in(target)) & set(paths)
    watched.rules.clear()
    watched.calls.clear()
    report = copy_dataset(watched, target)
    assert report.skipped_files == len(done)
    assert {call.path for call in watched.calls if call.operation == "pieces"} == set(paths) - done
    assert fingerprint_of(target, kind) == fingerprint_of(source, kind)


def test_another_dataset_is_not_mixed_into_one_that_was_begun(tmp_path):
    sources = MemoryStore(), MemoryStore()
    write_stream(sources[0])
    write_stream(sources[1], start=3)
    target = FlatFolder(tmp_path)
    watched = FaultStore(sources[0], [Rule(Refuse(StoreError("broken")), "pieces", nth=3)])
    with pytest.raises(StoreError, match="broken"):
        copy_dataset(watched, target, workers=1)
    before = files_in(target)
    with pytest.raises(ExistingOutputError, match="beginning of a copy of another dataset, memory://"):
        copy_dataset(sources[1], target)
    assert files_in(target) == before
    copy_dataset(sources[0], target)
    assert fingerprint_of(target, "stream") == fingerprint_of(sources[0], "stream")


def test_what_somebody_wrote_where_a_copy_had_begun_is_not_overwritten_by_going_on_with_it(kind, source, target):
    watched = FaultStore(source, [Rule(Refuse(StoreError("broken")), "pieces", nth=1)])
    with pytest.raises(StoreError, match="broken"):
        copy_dataset(watched, target, workers=1)
    if is_samples(kind):
        with contextlib.suppress(FieldError):
            write(target, [*range(500, 545), "no id"], hashes=["sha1"], exist_ok=True)  # unfinished
    else:
        storage = StreamStorage(target, U2)
        with storage.sync_writer(overwrite=True) as writer:
            for shard in range(5):
                writer.append(shard, np.arange(7, 107, dtype=np.uint16))
        if kind != "receipts":
            storage.publish()
    before = files_in(target)
    with pytest.raises(ExistingOutputError, match="somebody has begun to write another dataset there since"):
        copy_dataset(source, target)
    assert files_in(target) == before


def test_foreign_files_that_changed_since_are_not_mixed_with_those_that_were_copied(tmp_path):
    source, target = MemoryStore(), FlatFolder(tmp_path)
    write_foreign(source)
    watched = FaultStore(source, [Rule(Refuse(StoreError("broken")), "pieces", nth=3)])
    with pytest.raises(StoreError, match="broken"):
        copy_dataset(watched, target, workers=1)
    source.put("0000001.in_band.bin", b"x" * 200)
    with pytest.raises(ExistingOutputError, match="beginning of a copy of another"):
        copy_dataset(source, target)


def test_a_copy_that_lost_its_place_stores_nothing_more(monkeypatch, tmp_path):
    monkeypatch.setattr("headrace.datasets.copying.destination._TRUSTED_S", 0.0)
    source, target = MemoryStore(), FlatFolder(tmp_path)
    write_samples(source)

    def lose(_):
        for info in target.list(withdrawal.LEASES):
            target.delete(info.path)

    watched = FaultStore(source, [Rule(Run(lose), "pieces", "shard.00002.*", times=1)])
    with pytest.raises(LeaseLostError):
        copy_dataset(watched, target, workers=1)
    assert not is_whole(target, "samples")


def test_a_note_that_comes_late_does_not_take_the_place_of_a_successors_note(tmp_path):
    """By it the successor's files, as long as these, would be taken for whole ones of this copy."""
    mine, other, target = MemoryStore(), MemoryStore(), FlatFolder(tmp_path)
    write(mine, range(45))
    write(other, range(50, 95))

    def take_over(_):
        for info in target.list(withdrawal.LEASES):
            target.delete(info.path)
        broken = FaultStore(other, [Rule(Refuse(StoreError("broken")), "pieces", "shard.00002.*")])
        with pytest.raises(StoreError, match="broken"):
            copy_dataset(broken, target, workers=1)

    late = FaultStore(target, [Rule(Run(take_over), "put_if_absent", "*copy.json", times=1)])
    with pytest.raises(LeaseLostError):
        copy_dataset(mine, late, workers=1)
    with pytest.raises(ExistingOutputError, match="beginning of a copy of another"):
        copy_dataset(mine, target)
    assert copy_dataset(other, target).skipped_files > 0
    assert fingerprint_of(target, "samples") == fingerprint_of(other, "samples")


# SIGKILL at every request


def die(source, target, nth):
    rules = [Rule(Run(lambda _: os.kill(os.getpid(), signal.SIGKILL)), nth=nth)]
    process = FORK.Process(target=copy_dataset, args=(source, FaultStore(target, rules)), kwargs={"workers": 1})
    process.start()
    process.join(30)
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def check_every(kind, place, tmp_path, stride):
    source = LocalStore(tmp_path / "source", fsync=False)
    KINDS[kind](source)
    fingerprint = fingerprint_of(source, kind)
    undisturbed = PLACES[place](tmp_path / "undisturbed")
    copy_dataset(source, undisturbed)
    nth = 1
    while True:
        shutil.rmtree(tmp_path / "target", ignore_errors=True)
        target = PLACES[place](tmp_path / "target")
        killed = die(source, target, nth)
        if is_whole(target, kind):
            assert fingerprint_of(target, kind) == fingerprint
        copy_dataset(source, target)
        assert fingerprint_of(target, kind) == fingerprint
        assert files_in(target) == files_in(undisturbed), nth
        if not killed:
            return nth
        nth += stride


@pytest.mark.parametrize("place", PLACES)
def test_a_copy_that_is_killed_at_some_requests_ends_well_when_it_runs_again(kind, place, tmp_path):
    assert check_every(kind, place, tmp_path, 13) > 1


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_a_copy_that_is_killed_at_any_request_ends_well_when_it_runs_again(kind, place, tmp_path):
    assert check_every(kind, place, tmp_path, 1) > 10


@pytest.mark.parametrize("kept", [0, 10])
def test_a_note_of_which_the_store_kept_less_does_not_stop_the_next_copy(kept, kind, source, target):
    broken = FaultStore(source, [Rule(Refuse(StoreError("broken")), "pieces", nth=2)])
    cutting = FaultStore(target, [Rule(Cut(kept), "put_if_absent", "*copy.json", times=1)])
    with pytest.raises(StoreError, match="broken"):
        copy_dataset(broken, cutting, workers=1)
    assert copy_dataset(source, target).skipped_files == 1
    assert fingerprint_of(target, kind) == fingerprint_of(source, kind)


@pytest.mark.parametrize("kept", [0, 10])
def test_a_note_that_a_killed_copier_left_cut_short_does_not_stop_the_next_copy(kept, kind, source, target):
    broken = FaultStore(source, [Rule(Refuse(StoreError("broken")), "pieces")])
    with pytest.raises(StoreError, match="broken"):
        copy_dataset(broken, target, workers=1)
    (note,) = [path for path in files_in(target) if path.endswith("copy.json")]
    target.put(note, target.get(note)[:kept])
    copy_dataset(source, target)
    assert fingerprint_of(target, kind) == fingerprint_of(source, kind)


def test_foreign_files_beside_which_a_late_copier_died_open_again_once_they_are_copied_again(target):
    source = MemoryStore()
    write_foreign(source)
    copy_dataset(source, target)
    acquire(target, LEASES, DATASET, what="it", attempt=attempt_id(), on_takeover=lambda _: None).let_go()
    with pytest.raises(UnfinishedDatasetError):
        fingerprint_of(target, "foreign")
    assert copy_dataset(source, target).copied_files == 0
    assert fingerprint_of(target, "foreign") == fingerprint_of(source, "foreign")


@pytest.mark.parametrize("name", ["stream", "samples"])
def test_what_lies_beside_a_whole_copy_stays_while_its_owner_lives_and_then_goes_with_the_next_copy(name, target):
    source = MemoryStore()
    KINDS[name](source)
    copy_dataset(source, target)
    whole = files_in(target)
    folder, lease_name = (withdrawal.LEASES, "writer") if is_samples(name) else (LEASES, DATASET)
    owner = acquire(target, folder, lease_name, what="it", attempt=attempt_id(), on_takeover=lambda _: None)
    assert copy_dataset(source, target).copied_files == 0
    owner.check()
    owner.let_go()
    assert copy_dataset(source, target).copied_files == 0
    assert files_in(target) == whole


@pytest.mark.parametrize("begun", [False, True])
def test_a_copy_that_another_one_ends_while_this_one_looks_is_whole(begun, kind, source, target):
    if begun:
        broken = FaultStore(source, [Rule(Refuse(StoreError("broken")), "pieces", nth=2)])
        with pytest.raises(StoreError, match="broken"):
            copy_dataset(broken, target, workers=1)
    looking = FaultStore(target, [Rule(Run(lambda _: copy_dataset(source, target)), "get", "*copy.json", times=1)])
    assert copy_dataset(source, looking).copied_files == 0
    assert fingerprint_of(target, kind) == fingerprint_of(source, kind)


def test_a_copy_goes_on_where_another_one_that_ends_takes_the_folder_of_its_lease_away(kind, source, target):
    gone = Refuse(NotFoundError("cannot create: No such file or directory"))
    copy_dataset(source, FaultStore(target, [Rule(gone, "put_if_absent", "*.lease", times=1)]))
    assert fingerprint_of(target, kind) == fingerprint_of(source, kind)


# A reader meanwhile


def test_foreign_files_that_are_copied_while_somebody_opens_them_open_whole_or_not_at_all():
    source = MemoryStore()
    write_foreign(source)
    with StreamStorage(source, U2).sync_reader() as reader:
        expected = reader.read(0, reader.total_length).tolist()
    for begun, ended in itertools.combinations(range(1, 12), 2):
        target = MemoryStore(flat=True)

        def begin(_, target=target):
            watched = FaultStore(source, [Rule(Refuse(StoreError("broken")), "pieces", nth=3)])
            with pytest.raises(StoreError, match="broken"):
                copy_dataset(watched, target, workers=1)

        def end(_, target=target):
            copy_dataset(source, target)

        looking = FaultStore(target, [Rule(Run(begin), nth=begun, times=1), Rule(Run(end), nth=ended, times=1)])
        try:
            with StreamStorage(looking, U2).sync_reader() as reader:
                assert reader.read(0, reader.total_length).tolist() == expected, (begun, ended)
        except (NoDatasetError, UnfinishedDatasetError):
            pass
