"""merge_index: which parts it finds, in which order, and the index that it writes."""

import json
import multiprocessing
import os
import shutil
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.datasets.samples.dataset import SampleDataset
from headrace.datasets.samples.merge import merge_index
from headrace.datasets.samples.writer import CSVWriter, JSONWriter, TSVWriter, XSVWriter
from headrace.errors import ExistingOutputError, StoreError
from headrace.store import FolderStore, LocalStore, MemoryStore
from headrace.testing import FaultStore, Refuse, Rule, Run
from merge_scenes import COLUMNS, contents, entries, fill, parts, paths, samples_of, write_part

GOLDEN = Path(__file__).parent.parent / "golden/mds"
fork = multiprocessing.get_context("fork")


@pytest.fixture(params=["memory", "local", "faults", "folder"])
def root(request, tmp_path):
    match request.param:
        case "memory":
            return MemoryStore()
        case "local":
            return LocalStore(tmp_path / "data", fsync=False)
        case "faults":
            return FaultStore(MemoryStore())
        case _:
            return FolderStore(LocalStore(tmp_path, fsync=False), "some/root")


@pytest.fixture
def local(tmp_path):
    return LocalStore(tmp_path / "root", fsync=False)


def ids(root):
    """What a reader of the root reads."""
    with SampleDataset(root) as samples:
        read = [samples[number] for number in range(len(samples))]
    assert read == samples_of(sample["id"] for sample in read)
    return [sample["id"] for sample in read]


# The bytes


@pytest.mark.parametrize("name", ["merged", "merged_zstd"])
@pytest.mark.parametrize("before", ["nothing", "the same", "another"])
def test_the_index_is_streamings_byte_for_byte(name, before, tmp_path):
    expected = (GOLDEN / name / "dataset/index.json").read_bytes()
    out = tmp_path / "data"
    shutil.copytree(GOLDEN / name / "dataset", out)
    match before:
        case "nothing":
            (out / "index.json").unlink()
        case "another":
            (out / "index.json").write_bytes(b'{"version": 2, "shards": []}')
    merge_index(str(out))
    assert (out / "index.json").read_bytes() == expected
    (out / "index.json").unlink()
    merge_index([str(out / part / "index.json") for part in ("00", "01", "10")], str(out))
    assert (out / "index.json").read_bytes() == expected


@pytest.mark.parametrize("name", ["merged", "merged_zstd"])
def test_a_merged_golden_root_reads_as_streaming_reads_it(name, tmp_path):
    shutil.copytree(GOLDEN / name / "dataset", tmp_path / "data")
    (tmp_path / "data/index.json").unlink()
    merge_index(tmp_path / "data")
    expected = json.loads((GOLDEN / name / "expected.json").read_text())["samples"]
    with SampleDataset(tmp_path / "data") as samples:
        assert [samples[number] for number in range(len(samples))] == expected


def test_no_shard_is_touched(root):
    fill(root, {"a": range(4), "b/c": range(4, 9)})
    before = contents(root)
    merge_index(root)
    after = contents(root)
    assert after.pop("index.json")
    assert after == before


# Parts and their order


def test_numbers_in_names_count_by_value(root):
    folders = [
        "part-2",
        "part-10",
        "part-1",
        "9",
        "10",
        "x2/1",
        "x2/0",
        "x10",
        "01",
        "1",
        "part-2/5",
        "part",
        "a-b",
        "a",
    ]
    fill(root, {folder: [number] for number, folder in enumerate(folders)})
    merge_index(root)
    expected = [
        "01",
        "1",
        "9",
        "10",
        "a",
        "a-b",
        "part",
        "part-1",
        "part-2",
        "part-2/5",
        "part-10",
        "x2/0",
        "x2/1",
        "x10",
    ]
    assert parts(root) == expected
    assert ids(root) == [folders.index(folder) for folder in expected]


def test_nested_parts_with_equal_names_stay_apart(root):
    nested = {"subset1/worker1": range(3), "subset1/worker200": range(3, 6), "subset2/worker1": range(6, 9)}
    fill(root, nested)
    merge_index(root)
    assert paths(root) == [f"{folder}/shard.00000.mds" for folder in nested]
    assert ids(root) == list(range(9))


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_part_directly_in_the_root_is_one_of_the_parts(root, compression):
    nested = {"": [0, 1, 2], "a": [3, 4, 5], "a/deep": [6, 7], "b/worker": [8]}
    fill(root, nested, compression=compression, hashes=["sha1"])
    merge_index(root)
    first = root.get("index.json")
    assert len(set(paths(root))) == len(paths(root)) == 4
    assert ids(root) == list(range(9))
    merge_index(root)
    assert root.get("index.json") == first
    root.delete("a/index.json")
    root.delete("a/shard.00000.mds" + (".zstd" if compression else ""))
    merge_index(root)
    assert ids(root) == [0, 1, 2, 6, 7, 8]  # the root's own shards are told from what it lists of others


def test_merging_twice_counts_nothing_twice_and_writes_nothing(root):
    fill(root, {"a": range(4), "b": range(4, 8)})
    merge_index(root)
    before = contents(root)
    merge_index(root)
    assert contents(root) == before
    write_part(root, "c", range(8, 10))
    merge_index(root)
    assert ids(root) == list(range(10))


def test_a_folder_that_was_merged_itself_counts_once(root):
    fill(root, {"a/x": range(3), "a/y": range(3, 7), "b": range(7, 9)})
    merge_index(root)
    expected = root.get("index.json")
    merge_index(FolderStore(root, "a"))
    assert paths(root, "a") == ["x/shard.00000.mds", "y/shard.00000.mds", "y/shard.00001.mds"]
    merge_index(root)
    assert root.get("index.json") == expected
    fill(root, {"c": [9], "c/x": [10]})
    merge_index(FolderStore(root, "c"))
    merge_index(root)
    merge_index(root)
    assert ids(root) == list(range(11))


def test_a_part_that_was_written_anew_replaces_what_merged_indexes_say_of_it(root):
    fill(root, {"a/x": range(3), "a/y": range(3, 7)})
    merge_index(FolderStore(root, "a"))
    merge_index(root)
    write_part(root, "a/x", range(100, 108), exist_ok=True)
    merge_index(root)
    assert ids(root) == [*range(100, 108), *range(3, 7)]


def test_parts_without_samples_add_nothing_and_need_not_agree(root):
    fill(root, {"1": [], "2": range(3), "4": range(3, 5)})
    write_part(root, "3", [], columns={"other": "float64"})
    root.put("5/index.json", json.dumps({"version": 2, "shards": []}).encode())
    merge_index(root)
    assert paths(root) == ["2/shard.00000.mds", "4/shard.00000.mds"]
    assert ids(root) == list(range(5))


def test_a_part_whose_shards_are_empty_adds_none_of_them(root):
    fill(root, {"a": range(3), "c": range(3, 5)})
    write_part(root, "b", [1], columns={"id": "int"}, ignore_extra=True)
    root.put("b/index.json", root.get("b/index.json").replace(b'"samples": 1', b'"samples": 0'))
    merge_index(root)
    assert paths(root) == ["a/shard.00000.mds", "c/shard.00000.mds"]


def test_a_part_with_an_index_is_finished_whatever_its_writer_left(root):
    fill(root, {"a": range(3), "b": range(3, 6)})
    root.put("a/.headrace/samples/shard.00000", b"a receipt")
    root.make_folder("b/.headrace/samples/leases")
    merge_index(root)
    assert ids(root) == list(range(6))


def test_parts_that_all_have_no_samples_are_a_dataset_without_samples(root):
    fill(root, {"a": [], "b": []})
    merge_index(root)
    assert root.get("index.json") == b'{"version": 2, "shards": []}'
    write_part(root, "c", range(5))
    merge_index(root)
    assert ids(root) == list(range(5))


def test_compression_hashes_and_size_limits_may_differ(root):
    write_part(root, "a", range(5), compression="zstd:7", hashes=["sha1", "xxh64"])
    write_part(root, "b", range(5, 8), compression="br", size_limit=None)
    write_part(root, "c", range(8, 11), hashes=["md5"], size_limit=1000)
    merge_index(root)
    assert ids(root) == list(range(11))
    assert [entry["compression"] for entry in entries(root)] == ["zstd:7", "zstd:7", "br", None]


@pytest.mark.parametrize("compression", [None, "gz"])
@pytest.mark.parametrize("writer", [JSONWriter, CSVWriter, TSVWriter, XSVWriter])
def test_parts_of_lines_merge_too(root, writer, compression):
    options = {"separator": ";"} if writer is XSVWriter else {}
    columns = {"id": "int", "text": "str"}
    fill(root, {"a": range(9), "b": range(9, 12)}, writer=writer, columns=columns, compression=compression, **options)
    merge_index(root)
    assert ids(root) == list(range(12))
    assert all(entry["raw_meta"]["basename"].startswith(("a/shard.", "b/shard.")) for entry in entries(root))


def test_an_empty_first_shard_stays_in_the_index_as_streaming_leaves_it(root):
    write_part(root, "a", [0, 1], size_limit=10)
    assert [entry["samples"] for entry in entries(root, "a")] == [0, 1, 1]
    merge_index(root)
    assert [entry["samples"] for entry in entries(root)] == [0, 1, 1]
    assert ids(root) == [0, 1]


def test_hidden_folders_and_other_files_are_none_of_it(root):
    fill(root, {"a": range(3), ".old/b": range(3, 6), "c/.old": range(6, 9)})
    for path in ("README.md", "a/notes.json", "b/model.index.json", ".hidden/shard.00000.mds", "c/data.bin"):
        root.put(path, b"something else")
    merge_index(root)
    assert paths(root) == ["a/shard.00000.mds"]


def test_a_decompressed_shard_beside_its_compressed_form_counts_once(root):
    write_part(root, "a", range(3), compression="zstd")
    write_part(root, "raw", range(3))
    root.put("a/shard.00000.mds", bytes(entries(root, "a")[0]["raw_data"]["bytes"]))
    merge_index(root)
    assert paths(root) == ["a/shard.00000.mds", "raw/shard.00000.mds"]


# Ways to call it


def test_every_way_to_name_the_root_gives_the_same_bytes(local, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fill(local, {"a": range(3), "b": range(3, 6)})
    merge_index(local)
    expected = local.get("index.json")
    full = str(tmp_path / "root")
    for out in (full, full + "/", Path(full), "root", "./root/", f"file://{full}", f"file://{full}/", LocalStore(full)):
        for call in (
            lambda out=out: merge_index(out),
            lambda out=out: merge_index(out=out),
            lambda out=out: merge_index(out, True, 60),
            lambda out=out: merge_index(out, False),  # there is no other copy, so it stays
            lambda out=out: merge_index(out=out, keep_local=True, download_timeout=1),
        ):
            local.delete("index.json")
            call()
            assert local.get("index.json") == expected


def test_every_way_to_name_the_indexes_gives_the_same_bytes(local, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fill(local, {"a": range(3), "b/c": range(3, 6)})
    merge_index(local)
    expected = local.get("index.json")
    full = str(tmp_path / "root")
    (tmp_path / "link").symlink_to(full)
    folders = ("a", "b/c")
    for urls in (
        [f"{full}/{folder}/index.json" for folder in folders],
        [f"{full}/{folder}/" for folder in folders],
        [Path(full, folder, "index.json") for folder in folders],
        [f"root/{folder}/index.json" for folder in folders],
        [f"root/b/../{folder}/index.json" for folder in folders],
        [f"file://{full}/{folder}/index.json" for folder in folders],
        [f"link/{folder}/index.json" for folder in folders],
        [FolderStore(local, folder) for folder in folders],
        [LocalStore(f"{full}/{folder}") for folder in folders],
        [(f"{full}/{folder}/index.json", f"s3://bucket/{folder}/index.json") for folder in folders],
        [f"{full}/{folder}/index.json" for folder in (*folders, "a")],
    ):
        for call in (
            lambda urls=urls: merge_index(urls, local),
            lambda urls=urls: merge_index(tuple(urls), full),
            lambda urls=urls: merge_index(set(urls), full),
            lambda urls=urls: merge_index(dict.fromkeys(urls).keys(), full),
            lambda urls=urls: merge_index(iter(urls), full, True, 60),
            lambda urls=urls: merge_index(urls, out=full, keep_local=True, download_timeout=60),
            lambda urls=urls: merge_index(tuple(urls), out=full),
            lambda urls=urls: merge_index(index_file_urls=urls, out=full),
        ):
            local.delete("index.json")
            call()
            assert local.get("index.json") == expected


def test_indexes_in_a_store_are_named_by_path_or_url():
    root = MemoryStore()
    fill(root, {"a": range(3), "b/c": range(3, 6)})
    for urls in (["a/index.json", "b/c"], ["memory://a/index.json", "memory://b/c/"], [FolderStore(root, "a"), "b/c"]):
        merge_index(urls, root)
        assert ids(root) == list(range(6))
        root.delete("index.json")
    merge_index([FolderStore(root, "b/c")], FolderStore(root, "b"))
    assert paths(root, "b") == ["c/shard.00000.mds"]


def test_named_indexes_keep_the_order_they_are_given_in_and_others_are_left_out(root):
    fill(root, {"a": range(3), "b": range(3, 6), "c": range(6, 9), "stray/x": [9]})
    root.put("unfinished/shard.00000.mds", b"x")
    merge_index([FolderStore(root, folder) for folder in ("c", "a", "c")], root)
    assert ids(root) == [6, 7, 8, 0, 1, 2]
    merge_index({FolderStore(root, folder) for folder in ("c", "a", "b")}, root)
    assert ids(root) == list(range(9))


def test_a_merged_index_that_is_named_stands_for_what_lies_below(root):
    fill(root, {"a": [0], "a/x": [1, 2], "a/y": [3, 4], "b": [5]})
    merge_index(FolderStore(root, "a"))
    expected = [0, 1, 2, 3, 4, 5]
    merge_index([FolderStore(root, "a"), FolderStore(root, "b")], root)
    assert ids(root) == expected
    merge_index([FolderStore(root, folder) for folder in ("a", "a/x", "b", "a/y")], root)
    assert ids(root) == [0, 1, 2, 5, 3, 4]
    merge_index([FolderStore(root, "a"), FolderStore(root, "b")], root)
    first = root.get("index.json")
    for folder in ("a/x", "a/y", "a", "b"):  # only the merged index was kept, as after an upload of shards and index
        root.delete(f"{folder}/index.json")
    merge_index([root], root)
    assert root.get("index.json") == first
    assert ids(root) == expected


# A pair (local, remote)


@pytest.mark.parametrize("remote", ["directory", "store"])
def test_of_a_pair_the_remote_counts_and_local_gets_the_index_too(tmp_path, remote):
    remote = tmp_path / "remote" if remote == "directory" else MemoryStore()
    store = LocalStore(remote) if isinstance(remote, Path) else remote
    fill(store, {"a": range(3), "b": range(3, 6)})
    for call in (
        lambda: merge_index((tmp_path / "local", remote)),
        lambda: merge_index((str(tmp_path / "local"), remote), keep_local=True),
        lambda: merge_index(out=(tmp_path / "local", remote)),
        lambda: merge_index(
            [(tmp_path / "local/a", FolderStore(store, "a")), FolderStore(store, "b")], (tmp_path / "local", remote)
        ),
        lambda: merge_index(
            [tmp_path / "local/a/index.json", tmp_path / "local/b/index.json"], (tmp_path / "local", remote)
        ),
    ):
        call()
        assert ids(store) == list(range(6))
        assert (tmp_path / "local/index.json").read_bytes() == store.get("index.json")
        store.delete("index.json")
        shutil.rmtree(tmp_path / "local")


def test_without_keep_local_what_the_remote_has_goes_from_local_and_the_rest_stays(tmp_path):
    remote = MemoryStore()
    local = LocalStore(tmp_path / "local", fsync=False)
    for folder, numbers in {"a": range(3), "b/c": range(3, 6)}.items():
        options = {"columns": COLUMNS, "out": (FolderStore(local, folder), FolderStore(remote, folder))}
        _write_both(options, numbers)
    merge_index((local, remote))
    assert sorted(contents(local)) == sorted(contents(remote))
    local.put("b/notes.txt", b"mine")
    local.put("a/shard.00000.mds", b"not what the remote has")
    merge_index((local, remote), keep_local=False)
    assert sorted(contents(local)) == ["a/shard.00000.mds", "b/notes.txt"]
    assert ids(remote) == list(range(6))
    local.delete("a/shard.00000.mds")
    local.delete("b/notes.txt")
    merge_index((local, remote), keep_local=True)
    merge_index((local, remote), False)
    assert not (tmp_path / "local/index.json").exists()


def test_a_local_directory_that_held_nothing_else_is_gone_without_keep_local(tmp_path):
    for folder in ("a", "b/c"):
        options = {"columns": COLUMNS, "out": (tmp_path / "local" / folder, tmp_path / "remote" / folder)}
        _write_both(options, [1, 2])
    merge_index((tmp_path / "local", tmp_path / "remote"), keep_local=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["remote"]
    assert ids(tmp_path / "remote") == [1, 2, 1, 2]


def _write_both(options, numbers):
    from headrace.datasets.samples.writer import MDSWriter

    with MDSWriter(keep_local=True, **options) as out:
        for sample in samples_of(numbers):
            out.write(sample)


# Whole or not at all


def test_a_refused_put_leaves_the_old_index_and_the_next_call_finishes(root):
    fill(root, {"a": range(3)})
    merge_index(root)
    before = contents(root)
    write_part(root, "b", range(3, 6))
    failing = FaultStore(root, [Rule(Refuse(StoreError("disk full")), "put", "index.json")])
    with pytest.raises(StoreError, match="disk full"):
        merge_index(failing)
    assert {path: contents(root)[path] for path in before} == before
    merge_index(root)
    assert ids(root) == list(range(6))


def test_the_index_is_put_once_after_everything_was_checked(root):
    fill(root, {"a": range(3), "b": range(3, 6)})
    watched = FaultStore(root)
    merge_index(watched)
    writes = [call for call in watched.calls if call.operation not in ("get", "list", "folders", "remove_orphans")]
    assert [(call.operation, call.path) for call in writes] == [("put_if_absent", "index.json")]
    assert watched.calls[-1] == writes[0]
    write_part(root, "c", range(6, 9))
    watched.calls.clear()
    merge_index(watched)
    assert [call.path for call in watched.calls if call.operation == "put"] == ["index.json"]


def test_an_index_that_another_merge_puts_meanwhile_is_not_replaced_by_one_with_fewer_parts(root):
    fill(root, {"a": range(3)})

    def other(_):
        write_part(root, "b", range(3, 6))
        merge_index(root)

    late = FaultStore(root, [Rule(Run(other), "put_if_absent", "index.json", times=1)])
    with pytest.raises(ExistingOutputError, match=r"got an index\.json from somebody else while its parts were merged"):
        merge_index(late)
    assert ids(root) == list(range(6))
    root.delete("index.json")
    merge_index(FaultStore(root, [Rule(Run(lambda _: merge_index(root)), "put_if_absent", "index.json", times=1)]))
    assert ids(root) == list(range(6))


@pytest.mark.parametrize("at", ["list", "get", "put"])
def test_a_killed_merge_leaves_the_old_index_and_the_next_one_finishes(local, at):
    fill(local, {"a": range(3)})
    merge_index(local)
    before = local.get("index.json")
    write_part(local, "b", range(3, 6))
    kill = Rule(Run(lambda _: os.kill(os.getpid(), signal.SIGKILL)), at)
    process = fork.Process(target=merge_index, args=(FaultStore(local, [kill]),))
    process.start()
    process.join(20)
    assert process.exitcode == -signal.SIGKILL
    assert local.get("index.json") == before
    merge_index(local)
    assert ids(local) == list(range(6))


def test_what_a_killed_merge_left_in_flight_goes_with_the_next(local, tmp_path):
    fill(local, {"a": range(3)})

    def die(source, target, **options):
        os.kill(os.getpid(), signal.SIGKILL)

    def merge():
        os.replace = os.link = die
        merge_index(local)

    process = fork.Process(target=merge)
    process.start()
    process.join(20)
    assert process.exitcode == -signal.SIGKILL
    names = {path.name for path in (tmp_path / "root").iterdir()}
    assert len(names) == 2
    assert "index.json" not in names
    merge_index(local)
    assert {path.name for path in (tmp_path / "root").iterdir()} == {"a", "index.json"}


def test_readers_see_a_whole_index_while_merges_replace_it(local):
    fill(local, {"a": range(4), "b": range(4, 8)})
    urls = [FolderStore(local, folder) for folder in ("a", "b")]
    merge_index(local)
    wholes = []
    for chosen in (urls[:1], urls):
        merge_index(chosen, local)
        wholes.append(local.get("index.json"))
    stop = threading.Event()

    def read():
        seen = set()
        while not stop.is_set():
            seen.add(local.get("index.json"))
        return seen

    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(read) for _ in range(3)]
        mergers = [pool.submit(merge_index, urls[: 1 + turn % 2], local) for turn in range(60)]
        for merger in mergers[:-1]:
            merger.result()
        stop.set()
        assert set.union(*(reader.result() for reader in readers)) <= set(wholes)


def test_merges_at_the_same_time_agree(root):
    fill(root, {f"part-{number}": [number] for number in range(12)})
    with ThreadPoolExecutor(4) as pool:
        for merging in [pool.submit(merge_index, root) for _ in range(8)]:
            merging.result()
    assert ids(root) == list(range(12))


# Size


def test_a_merge_of_many_parts_lists_once_and_reads_each_index_once():
    root = MemoryStore()
    write_part(root, "part-0", range(3))
    for number in range(1, 2000):
        for name in ("index.json", "shard.00000.mds"):
            root.put(f"part-{number}/{name}", root.get(f"part-0/{name}"))
    watched = FaultStore(root)
    merge_index(watched)
    assert (watched.count("list"), watched.count("get", "part-*/index.json"), watched.count("put_if_absent")) == (
        1,
        2000,
        1,
    )
    assert watched.count() <= 2005
    assert parts(root) == [f"part-{number}" for number in range(2000)]
