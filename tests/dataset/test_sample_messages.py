"""What goes wrong with samples is answered with what, where, found, expected, and what to do."""

import os

import pytest

from headrace import (
    CSVWriter,
    LocalDataset,
    MDSWriter,
    SampleDataset,
    SampleStorage,
    TSVWriter,
)
from headrace.errors import (
    ExistingOutputError,
    HeadraceError,
    ManifestError,
    NoDatasetError,
    OptionError,
    OutputError,
    ShardOwnedError,
    StoreError,
)
from headrace.store import LocalStore
from headrace.testing import FaultStore, Refuse, Rule

COLUMNS = {"id": "int", "text": "str"}
SAMPLE = {"id": 1, "text": "a"}


def write(out, sample=SAMPLE, *, writer=MDSWriter, columns=COLUMNS, **options):
    with writer(columns=columns, out=out, **options) as opened:
        opened.write(sample)
    return out


class Own:
    name = "mine"
    size = None

    def encode(self, value):
        return value

    def decode(self, data):
        return bytes(data)


def says(error, *parts):
    """A context in which this error is raised, with all parts in its message."""
    pattern = "".join(f"(?=.*{part})" for part in parts)
    return pytest.raises(error, match=f"(?s){pattern}")


@pytest.mark.parametrize(
    ("columns", "parts"),
    [
        ({"id": "integer"}, [r"columns=\{'id': 'integer'\}", "one of bytes, str, int, uint8"]),
        ({"id": "int", "x": "ndarray:float8"}, [r"columns=\{'x': 'ndarray:float8'\}", "ndarray:DTYPE:d0,d1"]),
        ({"id": None}, [r"columns=\{'id': None\}", "an object with name, size, encode and decode"]),
        ({"id": int}, [r"columns=\{'id': <class 'int'>\}", "the name of an encoding"]),
        ({"id": "pkl"}, [r"\{'id': 'pkl'\}", "allow_unsafe_types=True", "json is safe"]),
        ({}, ["at least one column name"]),
        (["id"], ["a mapping"]),
    ],
    ids=str,
)
def test_a_column_that_cannot_be_is_named_with_what_it_could_be(columns, parts, tmp_path):
    with says(OptionError, *parts):
        write(tmp_path / "out", columns=columns)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("writer", [CSVWriter, TSVWriter])
def test_a_column_name_that_a_line_cannot_hold_is_told_why(writer, tmp_path):
    with says(OptionError, "expected no name that holds", "the separator '", "JSON or MDS"):
        write(tmp_path / "out", writer=writer, columns={"a,\tb": "str"})


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        (None, ["directory=None", "a directory, a Store, or a list"]),
        ([], [r"directory=\[\]", "at least one"]),
        (7, ["directory=7"]),
    ],
    ids=str,
)
def test_what_is_no_directory_is_no_argument(given, parts):
    for dataset in (SampleDataset, LocalDataset):
        with says(OptionError, *parts):
            dataset(given)


def test_a_directory_that_is_not_there_is_said_to_be_none(tmp_path):
    write(tmp_path / "out")
    with says(NoDatasetError, "nowhere: is no directory"):
        SampleDataset(tmp_path / "nowhere").open()
    with says(NoDatasetError, "out/train: is no directory"):
        SampleDataset(tmp_path / "out", split="train").open()
    (tmp_path / "empty").mkdir()
    with says(NoDatasetError, "empty: has no index.json"):
        SampleDataset(tmp_path / "empty").open()


@pytest.mark.parametrize("columns", ["text", [], (), ["tex"], ["text", "id", "more"]])
def test_columns_to_read_are_a_list_of_those_that_are_there(columns, tmp_path):
    write(tmp_path)
    with says(OptionError, "columns=", "a list of column names"):
        SampleDataset(tmp_path, columns=columns).open()


def test_an_encoding_of_the_writer_s_own_is_asked_for_by_name_and_must_be_one(tmp_path):
    write(tmp_path, {"id": 1, "p": b"x"}, columns={"id": "int", "p": Own()})
    with says(
        ManifestError, "index.json", "column 'p' has the encoding 'mine'", r"encodings=\[...\]", "leave the column"
    ):
        SampleDataset(tmp_path).open()
    with says(OptionError, "encodings=", "objects with name, size, encode and decode"):
        SampleDataset(tmp_path, encodings=["mine"])
    assert SampleDataset(tmp_path, encodings=[Own()])[0] == {"id": 1, "p": b"x"}
    assert SampleDataset(tmp_path, columns=["id"])[0] == {"id": 1}


def test_digests_that_are_to_be_checked_and_are_not_there_are_named(tmp_path):
    write(tmp_path)
    with says(OptionError, "verify=True", "index.json has none of shard.00000.mds", "leave verify out"):
        SampleDataset(tmp_path, verify=True)[0]


def test_bytes_that_are_no_image_are_told_without_the_address_of_anything(tmp_path):
    pytest.importorskip("PIL")
    with says(HeadraceError, "sample 0, field 'photo'", "no image file that can be read") as caught:
        write(tmp_path, {"photo": b"nope"}, columns={"photo": "jpeg"})
    assert "0x" not in str(caught.value)


@pytest.mark.parametrize(("writer", "separators"), [(CSVWriter, "commas"), (TSVWriter, "tabs")])
def test_a_separator_is_an_option_of_xsv_shards_only(writer, separators, tmp_path):
    with says(OptionError, "separator=';'", f"separated by {separators}", "XSVWriter"):
        write(tmp_path / "out", writer=writer, separator=";")


def test_a_url_of_no_known_kind_is_no_place_to_read(tmp_path):
    for url in ("nosuch://bucket/x", "nosuch:/bucket/x"):
        with says(OptionError, f"directory='{url}'", "a directory, a Store, or a URL"):
            SampleDataset(url)


def test_a_file_in_the_place_of_the_directory_is_said_to_be_one(tmp_path):
    (tmp_path / "out").write_text("x")
    for options in ({}, {"exist_ok": True}, {"resume": True}):
        with says(ExistingOutputError, "out is a file; write to an empty directory, or remove it"):
            write(tmp_path / "out", **options)
    assert (tmp_path / "out").read_text() == "x"


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["notes.txt"], r"\(notes.txt is there\)"),
        (["a", "b", "c"], r"\(a, b, c are there\)"),
        (["a", "b", "c", "d"], r"\(a, b, c, ... are there\)"),
    ],
)
def test_what_lies_in_the_way_is_named_and_so_is_what_exist_ok_would_do(names, shown, tmp_path):
    for name in names:
        (tmp_path / name).touch()
    with says(
        ExistingOutputError, shown, "exist_ok=True, which removes shards and an index and leaves all other files"
    ):
        write(tmp_path)
    write(tmp_path, exist_ok=True)
    assert {path.name for path in tmp_path.iterdir()} == {*names, "index.json", "shard.00000.mds"}


def test_a_living_writer_in_the_way_is_named_with_what_can_be_done(tmp_path):
    with MDSWriter(columns=COLUMNS, out=tmp_path):
        with says(ShardOwnedError, f"by process {os.getpid()} ", "a directory of its own", "or end it") as caught:
            write(tmp_path)
        assert "force" not in str(caught.value)
    storage = SampleStorage(tmp_path / "parts", COLUMNS)
    storage.record_plan(["a" * 32])
    with storage.task_writer(0, "a" * 32), says(ShardOwnedError, "this part is being written", "or end it"):
        storage.record_plan(["b" * 32], overwrite=True)


@pytest.mark.parametrize(
    ("begun", "options", "parts"),
    [
        ({}, {"columns": {"id": "int"}}, [r"columns=\{'id': 'int'\}", r"\{'id': 'int', 'text': 'str'\}, with which"]),
        ({}, {"columns": {"id": "int8", "text": "str"}}, [r"columns=\{'id': 'int8'", r"\{'id': 'int', 'text'"]),
        ({}, {"compression": "gz"}, ["compression='gz'", "expected None, with which"]),
        ({}, {"hashes": ["sha1"]}, [r"hashes=\('sha1',\)", r"expected \(\), with which"]),
        ({}, {"size_limit": 100}, ["size_limit=100", "expected 67108864, with which"]),
        ({}, {"writer": CSVWriter}, ["format='csv'", "expected 'mds', with which"]),
        (
            {"writer": CSVWriter},
            {"writer": CSVWriter, "newline": "\r\n"},
            [r"newline='\\r\\n'", r"expected '\\n', with"],
        ),
    ],
)
def test_resuming_with_other_settings_tells_those_with_which_it_was_begun(begun, options, parts, tmp_path):
    full = FaultStore(LocalStore(tmp_path), [Rule(Refuse(StoreError("disk full")), "put", "index.json")])
    with pytest.raises(OutputError, match="disk full"):
        write(full, retry=0, **begun)
    with says(OptionError, *parts, "was begun; go on with that, or start over without resume=True"):
        write(tmp_path, resume=True, **options)
    write(tmp_path, resume=True, **begun)
    assert len(SampleDataset(tmp_path)) == 2
