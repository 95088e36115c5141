"""Where a dataset of samples may be written: what is there already, who else writes there, and going on."""

import pytest

from headrace.datasets import CSVWriter, JSONWriter, MDSWriter, SampleDataset, merge_index
from headrace.errors import (
    ClosedError,
    ExistingOutputError,
    OptionError,
    OutputError,
    StoreError,
    UnfinishedDatasetError,
)
from headrace.store import FolderStore, LocalStore, MemoryStore
from headrace.testing import FaultStore, Refuse, Rule
from writing_scenes import COLUMNS, FORMATS, ObjectStore, everything_in, files_in, fill, ids_in, sample, write

EACH_FORMAT = pytest.mark.parametrize("writer", FORMATS.values(), ids=FORMATS)


class OwnError(Exception):
    """The user's."""


def write_in_part(out, ids, **options):
    """An unfinished dataset: an exception ends it."""
    with pytest.raises(OwnError), MDSWriter(columns=COLUMNS, out=out, **options) as writing:
        fill_and_fail(writing, ids)


def fill_and_fail(writing, ids):
    fill(writing, ids)
    raise OwnError


def places(tmp_path):
    """Options for writers of one dataset, and where it will be."""
    local = LocalStore(tmp_path / "local", fsync=False)
    alone, memory, objects = LocalStore(tmp_path / "alone", fsync=False), MemoryStore(), ObjectStore()
    return {
        "a directory": ({"out": alone}, [alone]),
        "memory": ({"out": memory}, [memory]),
        "objects": ({"out": objects}, [objects]),
        "a pair": ({"out": (local, objects)}, [objects]),
        "a pair, both kept": ({"out": (local, objects), "keep_local": True}, [local, objects]),
    }


PLACES = pytest.mark.parametrize("place", ["a directory", "memory", "objects", "a pair", "a pair, both kept"])


@EACH_FORMAT
@PLACES
def test_two_datasets_in_one_script_then_again_without_and_with_overwriting(writer, place, tmp_path):
    train, stores = places(tmp_path / "train")[place]
    val, val_stores = places(tmp_path / "val")[place]
    write(ids=range(20), writer=writer, a_shard=3, **train)
    write(ids=range(5), writer=writer, a_shard=3, **val)
    before = [files_in(store) for store in stores]
    for options in ({}, {"compression": "zstd"}):
        with pytest.raises(ExistingOutputError, match=r"holds a dataset already.*exist_ok=True"):
            write(ids=range(7), writer=writer, **train, **options)
    assert [files_in(store) for store in stores] == before
    assert [ids_in(store) for store in stores] == [list(range(20))] * len(stores)
    assert [ids_in(store) for store in val_stores] == [list(range(5))] * len(stores)
    write(ids=range(7), writer=writer, a_shard=3, exist_ok=True, **train)
    alone = MemoryStore()
    write(alone, range(7), writer=writer, a_shard=3)
    for store in stores:
        assert ids_in(store) == list(range(7))
        assert files_in(store) == files_in(alone)


@PLACES
def test_replacing_by_another_format_leaves_nothing_of_the_old_one(place, tmp_path):
    out, stores = places(tmp_path)[place]
    write(ids=range(20), writer=MDSWriter, compression="zstd", **out)
    write(ids=range(5), writer=CSVWriter, exist_ok=True, **out)
    for store in stores:
        assert set(files_in(store)) == {"index.json", "shard.00000.csv", "shard.00000.csv.meta"}
        assert ids_in(store) == list(range(5))


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("name", ["notes.txt", "index.json.bak", "a/b/c", "shard.00000.txt", "deep/shard.00000.mds"])
@PLACES
def test_a_directory_with_other_files_is_refused_and_stays_as_it_is(place, name, resume, tmp_path):
    out, stores = places(tmp_path)[place]
    stores[0].put(name, b"mine")
    with pytest.raises(ExistingOutputError, match=f"is not empty.*{name}"):
        MDSWriter(columns=COLUMNS, resume=resume, **out)
    assert files_in(stores[0]) == {name: b"mine"}
    for store in stores[1:]:
        assert files_in(store) == {}
    with pytest.raises(ExistingOutputError, match="is not empty"):
        write(ids=range(3), **out)


FOREIGN = {
    "notes.txt": b"mine",
    "docs/index.json": b'{"pages": []}',
    "docs/shard.00000.mds": b"a drawing",
    "shard.00000.txt": b"a list",
    "index.json.bak": b"{}",
    "configs/shards/index.json": b"not even JSON",
}


@PLACES
def test_exist_ok_removes_no_file_that_is_not_the_datasets(place, tmp_path):
    out, stores = places(tmp_path)[place]
    for store in stores:
        for name, data in FOREIGN.items():
            store.put(name, data)
        write(FolderStore(store, "val"), range(100, 103))
    for count in (12, 25, 7):
        write(ids=range(count), exist_ok=True, **out)
        for store in stores:
            assert ids_in(store) == list(range(count))
            assert ids_in(FolderStore(store, "val")) == [100, 101, 102]
            assert {name: data for name, data in files_in(store).items() if name in FOREIGN} == FOREIGN


def test_exist_ok_removes_the_parts_of_a_merged_dataset_and_no_other_folder(tmp_path):
    for folder, start in (("a", 0), ("b/x", 10), ("b/y", 20)):
        write(tmp_path / folder, range(start, start + 10), a_shard=4)
    write(tmp_path / "other", range(5))
    merge_index(tmp_path / "b")
    merge_index([tmp_path / name / "index.json" for name in ("a", "b")], tmp_path)
    assert ids_in(tmp_path) == list(range(30))
    write(tmp_path, range(3), exist_ok=True)
    assert ids_in(tmp_path) == [0, 1, 2]
    assert ids_in(tmp_path / "other") == list(range(5))
    other = ["other", "other/index.json", "other/shard.00000.mds"]
    assert everything_in(tmp_path) == ["index.json", *other, "shard.00000.mds"]


def test_exist_ok_leaves_a_part_that_the_merged_index_does_not_list(tmp_path):
    for folder, start in (("a", 0), ("a/x", 10)):
        write(tmp_path / folder, range(start, start + 10), a_shard=4, exist_ok=True)
    merge_index([tmp_path / "a/x/index.json"], tmp_path)
    write(tmp_path, range(3), exist_ok=True)
    assert ids_in(tmp_path / "a") == list(range(10))
    assert not (tmp_path / "a/x").exists()


def test_exist_ok_replaces_a_dataset_whose_index_is_damaged(tmp_path):
    write(tmp_path, range(25))
    (tmp_path / "index.json").write_bytes(b'{"version": 2, "sha')
    with pytest.raises(ExistingOutputError):
        write(tmp_path, range(3))
    write(tmp_path, range(3), exist_ok=True)
    assert ids_in(tmp_path) == [0, 1, 2]
    assert everything_in(tmp_path) == ["index.json", "shard.00000.mds"]


def test_an_index_that_names_files_elsewhere_makes_exist_ok_remove_none_of_them(tmp_path):
    write(tmp_path / "out", range(3))
    (tmp_path / "precious.mds").write_bytes(b"mine")
    (tmp_path / "out/notes.txt").write_bytes(b"mine")
    index = (tmp_path / "out/index.json").read_text()
    for name in ("../precious.mds", "notes.txt", str(tmp_path / "precious.mds")):
        (tmp_path / "out/index.json").write_text(index.replace("shard.00000.mds", name))
        write(tmp_path / "out", range(3), exist_ok=True)
        assert (tmp_path / "precious.mds").read_bytes() == (tmp_path / "out/notes.txt").read_bytes() == b"mine"
        assert ids_in(tmp_path / "out") == [0, 1, 2]


@EACH_FORMAT
@PLACES
def test_an_unfinished_dataset_is_written_anew_by_default(writer, place, tmp_path):
    out, stores = places(tmp_path)[place]
    for count in (0, 1, 15, 35):
        write_in_part(ids=range(count), max_workers=1, **out)
        assert [ids_in(store) for store in stores] == [None] * len(stores)
        for store in stores:
            with pytest.raises(UnfinishedDatasetError):
                SampleDataset(store)[0]
    write(ids=range(12), writer=writer, **out)
    alone = MemoryStore()
    write(alone, range(12), writer=writer)
    for store in stores:
        assert files_in(store) == files_in(alone)


@PLACES
def test_resuming_a_whole_dataset_does_nothing(place, tmp_path):
    out, stores = places(tmp_path)[place]
    write(ids=range(15), **out)
    before = [store.list() for store in stores]
    with MDSWriter(columns=COLUMNS, resume=True, **out) as writing:
        assert writing.num_safe_samples == writing.num_samples == 15
        with pytest.raises(ClosedError, match="is finished"):
            writing.write(sample(15))
        writing.finish()
    assert [store.list() for store in stores] == before


@PLACES
def test_resuming_where_nothing_is_begins(place, tmp_path):
    out, stores = places(tmp_path)[place]
    with MDSWriter(columns=COLUMNS, resume=True, **out) as writing:
        assert writing.num_safe_samples == 0
        fill(writing, range(15))
    assert [ids_in(store) for store in stores] == [list(range(15))] * len(stores)


def written_until_the_index(place, ids, **options):
    """Everything but the index, with all receipts."""
    store = FaultStore(place, [Rule(Refuse(StoreError("no")), "put", "index.json")])
    with pytest.raises(OutputError):
        write(store, ids, retry=0, **options)
    return place


OTHER_SETTINGS = {
    "columns": {"columns": {"id": "int64", "text": "str"}},
    "other names": {"columns": {"id": "int", "words": "str"}},
    "compression": {"compression": "zstd"},
    "hashes": {"hashes": ["md5"]},
    "size_limit": {"size_limit": 100},
}


@pytest.mark.parametrize("name", OTHER_SETTINGS)
def test_resuming_with_other_settings_is_refused_and_changes_nothing(name):
    store = written_until_the_index(MemoryStore(), range(15))
    before = files_in(store)
    with pytest.raises(OptionError, match="with which memory:// was begun"):
        MDSWriter(**{"columns": COLUMNS, "out": store, "resume": True, **OTHER_SETTINGS[name]})
    assert files_in(store) == before
    with pytest.raises(OptionError, match="format='json'"):
        JSONWriter(columns=COLUMNS, out=store, resume=True)
    with MDSWriter(columns=COLUMNS, out=store, resume=True) as writing:
        assert writing.num_safe_samples == 15
    assert ids_in(store) == list(range(15))


def test_resuming_refuses_shards_that_are_not_as_they_were_written():
    for wrong in (b"", b"x" * 40):
        store = written_until_the_index(MemoryStore(), range(15))
        store.put("shard.00001.mds", wrong)
        said = rf"shard\.00001\.mds has {len(wrong)} bytes, but \d+ were written; .*without resume=True"
        with pytest.raises(UnfinishedDatasetError, match=said):
            MDSWriter(columns=COLUMNS, out=store, resume=True)
        store.delete("shard.00001.mds")
        with pytest.raises(UnfinishedDatasetError, match=r"shard\.00001\.mds has no bytes"):
            MDSWriter(columns=COLUMNS, out=store, resume=True)
        write(store, range(3))
        assert ids_in(store) == [0, 1, 2]


def test_starting_over_leaves_no_receipt_by_which_a_later_resume_would_take_old_for_new(tmp_path):
    """The second run dies when it has removed a part; the third begins anew, and dies, too; the fourth resumes."""
    old = written_until_the_index(MemoryStore(), range(1000, 1040))
    for removed in range(9):
        store = MemoryStore()
        for path, data in files_in(old).items():
            store.put(path, data)
        if removed < 8:  # four receipts and four shards
            dying = FaultStore(store, [Rule(Refuse(KeyboardInterrupt()), "delete", "*shard*", nth=removed + 1)])
            with pytest.raises(KeyboardInterrupt):
                MDSWriter(columns=COLUMNS, out=dying)
        else:
            write_in_part(store, [])
        refusing = FaultStore(store, [Rule(Refuse(StoreError("no")), "put", ".headrace/samples/shard.00001")])
        with pytest.raises(OutputError):
            write(refusing, range(2000, 2040), resume=True, retry=0)
        with MDSWriter(columns=COLUMNS, out=store, resume=True) as writing:
            assert writing.num_safe_samples == 10
            fill(writing, range(2000 + writing.num_safe_samples, 2040))
        assert ids_in(store) == list(range(2000, 2040)), removed


@pytest.mark.parametrize("resume", [False, True])
def test_a_finished_dataset_in_local_is_not_touched_by_a_pair_whose_remote_is_empty_or_unfinished(resume, tmp_path):
    local = LocalStore(tmp_path / "local", fsync=False)
    write(local, range(100, 125))
    before = files_in(local)
    for remote in (MemoryStore(), written_until_the_index(MemoryStore(), range(15))):
        with pytest.raises(ExistingOutputError, match="local holds a dataset already"):
            MDSWriter(columns=COLUMNS, out=(local, remote), keep_local=True, resume=resume)
        assert files_in(local) == before
    assert ids_in(local) == list(range(100, 125))


def test_places_of_a_pair_may_not_be_inside_one_another(tmp_path):
    for local, remote in (("a", "a"), ("a", "a/b"), ("a/b", "a")):
        with pytest.raises(OptionError, match="neither is inside the other"):
            MDSWriter(columns=COLUMNS, out=(tmp_path / local, tmp_path / remote), keep_local=True)
    assert everything_in(tmp_path) == []
