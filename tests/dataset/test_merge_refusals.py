"""merge_index: what it refuses, naming what is wrong, and leaving everything as it was."""

import json
import shutil

import pytest

from headrace.datasets.samples.merge import merge_index
from headrace.datasets.samples.writer import CSVWriter, JSONWriter, MDSWriter, TSVWriter, XSVWriter
from headrace.errors import (
    CorruptShardError,
    ManifestError,
    ManifestVersionError,
    NoDatasetError,
    OptionError,
    PartMismatchError,
    StoreError,
    UnfinishedDatasetError,
)
from headrace.store import FolderStore, LocalStore, MemoryStore
from headrace.testing import Delay, FaultStore, Rule
from merge_scenes import COLUMNS, contents, entries, fill, paths, write_part


@pytest.fixture(params=["memory", "local"])
def root(request, tmp_path):
    return MemoryStore() if request.param == "memory" else LocalStore(tmp_path / "data", fsync=False)


def refused(root, error, *words, merge=merge_index):
    """The root is not merged, nothing in it changes, and the message has the words."""
    before = contents(root)
    with pytest.raises(error) as caught:
        merge(root)
    assert type(caught.value) is error
    assert contents(root) == before
    missing = [word for word in words if word not in str(caught.value)]
    assert not missing, f"{missing} in {caught.value}"


# Nothing to merge


def test_a_root_without_parts_is_refused(root):
    refused(root, NoDatasetError, root.location, "no parts")
    root.put("README.md", b"nothing else")
    root.put("folder/data.bin", b"nothing else")
    refused(root, NoDatasetError, root.location, "no parts")


def test_a_dataset_that_is_no_root_of_parts_is_refused(root):
    write_part(root, "", range(5))
    refused(root, NoDatasetError, root.location, "no parts below")


def test_a_merged_root_whose_parts_are_gone_is_refused(root):
    fill(root, {"a": range(3), "b": range(3)})
    merge_index(root)
    for info in root.list():
        if "/" in info.path:
            root.delete(info.path)
    refused(root, NoDatasetError, "no parts below")


def test_an_absent_root_and_a_file_are_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"data")
    for out in (tmp_path / "absent", tmp_path / "file"):
        with pytest.raises(NoDatasetError, match=str(out)):
            merge_index(out)
    assert not (tmp_path / "absent").exists()


def test_no_indexes_are_refused(root):
    fill(root, {"a": range(3)})
    for urls in ([], (), set()):
        refused(root, NoDatasetError, "empty", merge=lambda root, urls=urls: merge_index(urls, root))


# Unfinished parts


@pytest.mark.parametrize("merged_before", [False, True])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_part_without_an_index_is_named(root, merged_before, compression):
    fill(root, {f"part/{number}": range(number + 1) for number in range(4)}, compression=compression)
    if merged_before:
        merge_index(root)
    root.delete("part/2/index.json")
    refused(root, UnfinishedDatasetError, "part/2", "index.json", "shard.00000.mds")


@pytest.mark.parametrize("writer", [JSONWriter, CSVWriter, TSVWriter])
def test_a_part_of_lines_without_an_index_is_named(root, writer):
    fill(root, {"a": range(3), "b": range(3)}, writer=writer, compression="gz")
    root.delete("b/index.json")
    refused(root, UnfinishedDatasetError, f"{root.location.rstrip('/')}", "b is unfinished")


def test_a_part_that_is_still_being_written_is_named(root):
    fill(root, {"a": range(3)})
    with MDSWriter(columns=COLUMNS, out=FolderStore(root, "b")) as out:
        refused(root, UnfinishedDatasetError, "b is unfinished", "a writer began")
        out.write({"id": 1, "text": "x"})
    merge_index(root)
    assert paths(root) == ["a/shard.00000.mds", "b/shard.00000.mds"]


def test_a_part_that_a_writer_did_not_finish_is_named(root):
    def fail():
        with MDSWriter(columns=COLUMNS, out=FolderStore(root, "b")) as out:
            for number in range(2):
                out.write({"id": number, "text": "x"})
                out.flush_shard()
            raise ZeroDivisionError

    fill(root, {"a": range(3)})
    with pytest.raises(ZeroDivisionError):
        fail()
    refused(root, UnfinishedDatasetError, "b is unfinished", "shard.0000")
    for info in root.list("b"):
        root.delete(info.path)
    refused(root, UnfinishedDatasetError, "b is unfinished", "a writer began")
    root.remove_folder("b")
    merge_index(root)


@pytest.mark.parametrize("folder", ["", "b", "deep/down/b", "a/below"])
def test_a_part_whose_writer_failed_before_it_stored_anything_is_named(root, folder):
    def fail():
        with MDSWriter(columns=COLUMNS, out=FolderStore(root, folder)):
            raise ZeroDivisionError

    if folder:
        fill(root, {"a/x": range(3)})
    with pytest.raises(ZeroDivisionError):
        fail()
    FolderStore(root, folder).delete(".headrace/samples/begun")  # as if it had died even before that
    if not folder:
        fill(root, {"a/x": range(3)})
    assert not [info for info in root.list() if not info.path.startswith("a/x/")]
    refused(root, UnfinishedDatasetError, f"{FolderStore(root, folder).location} is unfinished", "a writer began")
    root.remove_folder(f"{folder}/.headrace".lstrip("/"))
    merge_index(root)


def test_shards_in_the_root_without_an_index_of_their_own_are_named(root):
    fill(root, {"a": range(3)})
    root.put("shard.00000.mds", root.get("a/shard.00000.mds"))
    refused(root, UnfinishedDatasetError, root.location, "shard.00000.mds", "no index.json")
    # An index of the root that lists the parts, and not what lies directly in it, as Streaming's would.
    merge_index([FolderStore(root, "a")], root)
    assert paths(root) == ["a/shard.00000.mds"]
    refused(root, UnfinishedDatasetError, root.location, "shard.00000.mds", "does not list")


def test_an_empty_index_beside_shards_is_named(root):
    fill(root, {"a": range(3), "b": range(3)})
    root.put("b/index.json", b'{"shards": [], "version": 2}')
    refused(root, UnfinishedDatasetError, "b is unfinished", "does not list")


def test_a_named_part_without_an_index_is_refused(root):
    fill(root, {"a": range(3), "b": range(3)})
    root.delete("b/index.json")
    for folder in ("b", "absent"):
        urls = [FolderStore(root, "a"), FolderStore(root, folder)]
        refused(
            root, UnfinishedDatasetError, folder, "index.json", merge=lambda root, urls=urls: merge_index(urls, root)
        )


# Parts that do not go together


@pytest.mark.parametrize(
    ("columns", "difference"),
    [
        ({"id": "int", "text": "bytes"}, "column 'text' is str and bytes"),
        ({"id": "int"}, "column 'text' is str and absent"),
        ({"id": "int", "text": "str", "more": "int"}, "column 'more' is absent and int"),
        ({"id": "uint8", "other": "str"}, "column 'id' is int and uint8; column 'text' is str and absent"),
    ],
)
def test_parts_with_other_columns_are_named_with_the_difference(root, columns, difference):
    write_part(root, "a", range(3))
    values = {"int": 1, "uint8": 1, "str": "x", "bytes": b"x"}
    write_part(
        root, "deep/b", [], columns=columns, samples=[{name: values[kind] for name, kind in columns.items()}] * 4
    )
    refused(root, PartMismatchError, root.location, "part 'a'", "part 'deep/b'", difference)
    urls = [FolderStore(root, "deep/b"), FolderStore(root, "a")]
    refused(root, PartMismatchError, "part 'deep/b' and part 'a'", merge=lambda root: merge_index(urls, root))


@pytest.mark.parametrize(
    ("first", "second", "difference"),
    [
        ({"writer": MDSWriter}, {"writer": JSONWriter}, "the format is mds and json"),
        ({"writer": CSVWriter}, {"writer": TSVWriter}, "the format is csv and tsv"),
        ({"writer": CSVWriter}, {"writer": CSVWriter, "newline": "\r\n"}, r"the newline is '\n' and '\r\n'"),
        (
            {"writer": XSVWriter, "separator": ";"},
            {"writer": XSVWriter, "separator": "|"},
            "the separator is ';' and '|'",
        ),
        ({"writer": JSONWriter}, {"writer": JSONWriter, "columns": {"id": "float"}}, "column 'id' is int and float"),
    ],
)
def test_parts_of_another_format_are_named_with_the_difference(root, first, second, difference):
    write_part(root, "a", range(3), **first)
    write_part(root, "b", range(3), **{"samples": [{"id": 1.5}] if "columns" in second else None, **second})
    refused(root, PartMismatchError, "part 'a' and part 'b'", difference)


def test_the_roots_own_part_must_agree_too(root):
    write_part(root, "", range(3), columns={"id": "int"}, ignore_extra=True)
    write_part(root, "a", range(3))
    refused(root, PartMismatchError, "the root's own part and part 'a'", "'text'")


def test_shards_of_one_part_that_differ_are_a_damaged_index(root):
    write_part(root, "a", range(6))
    write_part(root, "b", range(3), columns={"id": "int"}, ignore_extra=True)
    shards = entries(root, "a")
    other = {**entries(root, "b")[0], "raw_data": shards[1]["raw_data"]}
    root.put("a/index.json", json.dumps({"version": 2, "shards": [shards[0], other]}).encode())
    root.delete("b/index.json")
    root.delete("b/shard.00000.mds")
    refused(root, ManifestError, "a/index.json", "column 'text' is str and absent")


# Damage


@pytest.mark.parametrize(
    ("damaged", "error"),
    [
        (lambda raw: b"", ManifestError),
        (lambda raw: raw[:100], ManifestError),
        (lambda raw: b'{"hello": "world"}', ManifestError),
        (lambda raw: b"[1, 2]", ManifestError),
        (lambda raw: raw.replace(b'"version": 2}', b'"version": 3}'), ManifestVersionError),
        (lambda raw: raw.replace(b'"samples"', b'"sample"'), ManifestError),
        (lambda raw: raw.replace(b"shard.00000.mds", b"../shard.00000.mds"), ManifestError),
        (lambda raw: raw.replace(b"shard.00001.mds", b"shard.00000.mds"), ManifestError),
        (lambda raw: raw + b"}", ManifestError),
    ],
)
@pytest.mark.parametrize("folder", ["a", "b/c", ""])
def test_a_damaged_index_is_named(root, damaged, error, folder):
    fill(root, {"": range(6), "a": range(6), "b/c": range(6)})
    path = f"{folder}/index.json".lstrip("/")
    root.put(path, damaged(root.get(path)))
    refused(root, error, FolderStore(root, folder).location, "index.json")


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("writer", [MDSWriter, JSONWriter])
def test_a_missing_file_is_named(root, writer, compression):
    fill(root, {"a": range(3), "b": range(9)}, writer=writer, compression=compression)
    for info in root.list("b"):
        if info.path.startswith("b/shard.00001."):
            kept = root.get(info.path)
            root.delete(info.path)
            refused(root, CorruptShardError, "b/index.json, shard 1", f"{info.path} is missing")
            root.put(info.path, kept)
    merge_index(root)


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("writer", [MDSWriter, JSONWriter])
@pytest.mark.parametrize("damaged", [lambda raw: raw[:-1], lambda raw: b"", lambda raw: raw + b"x"])
def test_a_file_of_another_size_is_named_with_both_sizes(root, writer, compression, damaged):
    fill(root, {"a": range(3), "b": range(9)}, writer=writer, compression=compression)
    for info in root.list("b"):
        if info.path.startswith("b/shard.00002."):
            kept = root.get(info.path)
            new = damaged(kept)
            root.put(info.path, new)
            found = f"{info.path} has {len(new)} bytes, not {len(kept)}"
            refused(root, CorruptShardError, "b/index.json, shard 2", found)
            root.put(info.path, kept)
    merge_index(root)


def test_a_decompressed_file_of_another_size_is_named(root):
    write_part(root, "a", range(3), compression="zstd")
    root.put("a/shard.00000.mds", b"cut")
    refused(root, CorruptShardError, "a/shard.00000.mds has 3 bytes")


def test_a_merged_folder_that_lists_a_part_which_is_gone_is_named(root):
    fill(root, {"a/x": range(3), "a/y": range(3), "b": range(3)})
    merge_index(FolderStore(root, "a"))
    root.delete("a/x/index.json")
    refused(root, UnfinishedDatasetError, "a/x")
    root.delete("a/x/shard.00000.mds")
    refused(root, CorruptShardError, "a/index.json", "a/x/shard.00000.mds is missing")
    merge_index(FolderStore(root, "a"))  # what is there is what counts, once the one above is made anew
    merge_index(root)
    assert paths(root) == ["a/y/shard.00000.mds", "b/shard.00000.mds"]


def test_named_indexes_that_contradict_one_another_are_refused(root):
    fill(root, {"a/b/x": range(3)})
    merge_index(FolderStore(root, "a/b"))
    merge_index(FolderStore(root, "a"))
    root.delete("a/b/x/index.json")
    urls = [FolderStore(root, "a"), FolderStore(root, "a/b")]
    merge_index(urls, root)
    assert paths(root) == ["a/b/x/shard.00000.mds"]
    root.put("a/b/index.json", root.get("a/b/index.json").replace(b'"samples": 3', b'"samples": 2'))
    refused(root, ManifestError, "a/b/index.json", "a/index.json", merge=lambda root: merge_index(urls, root))


# Arguments


def test_an_index_outside_the_root_is_refused_with_advice(tmp_path):
    for folder in ("root/a", "root-2/b"):
        write_part(LocalStore(tmp_path), folder, range(3))
    root = LocalStore(tmp_path / "root")
    for url in (
        tmp_path / "root-2/b/index.json",
        str(tmp_path / "root/../root-2/b"),
        LocalStore(tmp_path / "root-2/b"),
        FolderStore(LocalStore(tmp_path), "root-2/b"),
        MemoryStore(),
        "s3://bucket/b/index.json",
        "a/index.json",  # of the current directory, as everywhere
        "",
        (tmp_path / "root-2/b", "s3://bucket/b"),
        (tmp_path / "root/a", tmp_path / "root/c"),
        (tmp_path / "root/a", "s3://bucket/a", "more"),
    ):
        before = contents(root)
        with pytest.raises(OptionError, match="index_file_urls"):
            merge_index([tmp_path / "root/a/index.json", url], root)
        assert contents(root) == before
    with pytest.raises(OptionError, match="pass as out the folder that holds all parts"):
        merge_index([tmp_path / "root-2/b"], root)
    merge_index([tmp_path / "root/a", tmp_path / "root-2/b"], tmp_path)
    assert paths(LocalStore(tmp_path)) == ["root/a/shard.00000.mds", "root-2/b/shard.00000.mds"]


@pytest.mark.parametrize("url", ["../a", "/a/index.json", "s3://bucket/a", "memory:/a", "a//b", "a\\b"])
def test_a_path_that_is_none_in_the_store_is_refused(url):
    root = MemoryStore()
    write_part(root, "a", range(3))
    refused(root, OptionError, "index_file_urls", merge=lambda root: merge_index([url], root))


def test_parts_that_only_local_has_are_named(tmp_path):
    local, remote = LocalStore(tmp_path / "local", fsync=False), MemoryStore()
    fill(local, {"a": range(3), "b": range(3)})
    refused(remote, UnfinishedDatasetError, "only in", "a, b", merge=lambda remote: merge_index((local, remote)))
    write_part(remote, "a", range(3))
    before = contents(local)
    for keep_local in (True, False):
        refused(
            remote,
            UnfinishedDatasetError,
            "1 part",
            str(tmp_path / "local"),
            merge=lambda remote, keep=keep_local: merge_index((local, remote), keep),
        )
    assert contents(local) == before


@pytest.mark.parametrize("places", [("x", "x"), ("x", "x/y"), ("x/y", "x"), ("x", "x/"), ("x/y/..", "x")])
def test_a_pair_of_which_one_is_inside_the_other_is_refused(tmp_path, places):
    fill(LocalStore(tmp_path), {"x/y/a": range(3), "x/a": range(3)})
    before = contents(LocalStore(tmp_path))
    pair = tuple(f"{tmp_path}/{place}" for place in places)
    for out in (pair, tuple(map(LocalStore, pair)), (pair[0], FaultStore(LocalStore(pair[1])))):
        with pytest.raises(OptionError, match="inside"):
            merge_index(out, keep_local=False)
    assert contents(LocalStore(tmp_path)) == before


def test_a_pair_of_folders_of_one_store_of_which_one_is_inside_the_other_is_refused():
    root = MemoryStore()
    fill(root, {"x/a": range(3), "x-2/a": range(3)})
    for local, remote in (("x", "x"), ("", "x"), ("x/a", "x")):
        pair = FolderStore(root, local), FolderStore(FolderStore(root, ""), remote)
        refused(root, OptionError, "inside", merge=lambda _, pair=pair: merge_index(pair, keep_local=False))
    merge_index((FolderStore(root, "x-2"), FolderStore(root, "x")))
    assert paths(root, "x-2") == paths(root, "x") == ["a/shard.00000.mds"]


def test_arguments_that_mean_nothing_are_refused(root):
    write_part(root, "a", range(3))
    for call, error in (
        (lambda root: merge_index(root, "elsewhere"), OptionError),
        (lambda root: merge_index("a/index.json", root), OptionError),
        (lambda root: merge_index(index_file_urls="a/index.json", out=root), OptionError),
        (lambda root: merge_index(root, keep_local=None), OptionError),
        (lambda root: merge_index(root, download_timeout=0), OptionError),
        (lambda root: merge_index(root, download_timeout=-1), OptionError),
        (lambda root: merge_index(root, download_timeout="60"), OptionError),
        (lambda root: merge_index(root, download_timeout=float("nan")), OptionError),
        (lambda root: merge_index(42), OptionError),
        (lambda root: merge_index((root,)), OptionError),
        (lambda root: merge_index(("a", "b", root), True), OptionError),
        (lambda root: merge_index([42], root), OptionError),
        (lambda root: merge_index(), TypeError),
        (lambda root: merge_index(["a/index.json"]), TypeError),
        (lambda root: merge_index(root, True, 60, 1), TypeError),
        (lambda root: merge_index(root, timeout=1), TypeError),
    ):
        refused(root, error, merge=call)


def test_an_index_that_does_not_come_in_time_is_named():
    root = FaultStore(MemoryStore(), [Rule(Delay(0.4), "get", "b/index.json")])
    fill(root.store, {"a": range(3), "b": range(3)})
    refused(root.store, StoreError, "b/index.json", "0.05 s", merge=lambda _: merge_index(root, download_timeout=0.05))
    merge_index(root, download_timeout=20)


def test_links_back_up_are_followed_no_further_than_a_listing_does(tmp_path):
    root = LocalStore(tmp_path / "root", fsync=False)
    fill(root, {"": [], "a/x": range(3)})
    root.make_folder(".headrace/samples")  # the root's writer died after its index was there
    (tmp_path / "root/empty").mkdir()
    for link, target in (("a/up", "root"), ("up", "root"), ("empty/self", "root/empty"), ("a/dangling", "nowhere")):
        (tmp_path / "root" / link).symlink_to(tmp_path / target)
    merge_index(root)
    assert paths(root) == ["a/x/shard.00000.mds"]


def test_a_root_that_cannot_be_read_or_written_is_named(tmp_path):
    root = LocalStore(tmp_path / "root", fsync=False)
    fill(root, {"a": range(3)})
    (tmp_path / "root/index.json").mkdir()
    with pytest.raises(StoreError, match=r"root/index\.json"):
        merge_index(root)
    shutil.rmtree(tmp_path / "root/index.json")
    (tmp_path / "root/a/index.json").unlink()
    (tmp_path / "root/a/index.json").symlink_to("nowhere")
    with pytest.raises(UnfinishedDatasetError, match="root/a"):
        merge_index(root)
