"""What becomes of rows: types by value, a place for every refusal, and nothing written before all is settled."""

import decimal
import json

import numpy as np
import pytest

from conversion_scenes import (
    ROWS,
    SCALARS,
    columns_of,
    files_of,
    plain,
    read_documents,
    read_jsonl,
    read_mds,
    read_stream,
    write_annotated,
    write_csv,
    write_jsonl,
    write_mds,
    write_parquet,
    write_stream,
)
from headrace.datasets import DocumentStorage, StreamStorage
from headrace.datasets.samples.dataset import SampleDataset
from headrace.datasets.samples.writer import MDSWriter
from headrace.errors import (
    FieldError,
    InputError,
    OptionError,
    PreparationError,
    PublishedError,
    UnfinishedDatasetError,
)
from headrace.formats.documents import DocumentBytesFormat, DocumentJsonFormat, DocumentNumpyFormat
from headrace.formats.stream import StreamNumpyFormat
from headrace.preparation.conversion import Reading, Wanted, convert
from headrace.preparation.rows.columns import coercer, joined


def to(kind, columns=None, field=None, dtype=None, **writer):
    return Wanted(kind, columns, field, dtype, writer)


def run(paths, out, wanted, reading=Reading(), **options):  # noqa: B008 -- it is frozen
    return convert(paths, out, wanted, reading, **{"workers": 1, "progress": False, **options})


def refused(paths, out, wanted, *parts, reading=Reading(), error=(InputError, OptionError)):  # noqa: B008
    with pytest.raises(error) as caught:
        run(paths, out, wanted, reading)
    for part in parts:
        assert part in str(caught.value)
    if error != PreparationError:
        assert not out.exists(), "something was written before all was settled"


def lines(path, *rows):
    return write_jsonl(path, rows)


@pytest.mark.parametrize(
    ("encoding", "value", "stored"),
    [
        ("int", 5, 5),
        ("int", np.uint8(5), 5),
        ("float64", 5, 5.0),
        ("float64", np.float32(0.5), 0.5),
        ("str", "é", "é"),
        ("bytes", bytearray(b"x"), b"x"),
        ("json", {"a": np.array([1, 2]), "b": [np.float32(0.5), (1, None)]}, {"a": [1, 2], "b": [0.5, [1, None]]}),
        ("ndarray:uint8", [1, 255], [1, 255]),
        ("ndarray:float32", [1, 0.5], [1, 0.5]),
        ("ndarray:int64", np.array([[1], [2]], ">i2"), [[1], [2]]),
        ("str_decimal", decimal.Decimal("1.50"), decimal.Decimal("1.50")),
    ],
)
def test_a_value_is_brought_into_the_type_of_its_column_by_value(encoding, value, stored):
    found = coercer("a", encoding)(value)
    assert plain(found) == stored
    if encoding.startswith("ndarray"):
        assert found.dtype.name == encoding.partition(":")[2]
    else:
        assert type(found) is type(stored)


@pytest.mark.parametrize(
    ("encoding", "value", "problem"),
    [
        ("int", 1.0, "1.0 (float) is no int"),
        ("int", True, "True (bool) is no int"),
        ("int", "1", "'1' (str) is no int"),
        ("int", None, "null is no int"),
        ("float64", 2**53 + 1, "9007199254740993 is no float64 by value"),
        ("float64", 10**400, "is no float64 by value"),
        ("float64", True, "True (bool) is no float64"),
        ("float64", "1", "is no float64"),
        ("str", 1, "1 (int) is no str"),
        ("bytes", "x", "is no bytes"),
        ("json", b"x", "b'x' (bytes) is nothing that JSON can hold"),
        ("json", [{"a": {1}}], "{1} (set) is nothing that JSON can hold"),
        ("ndarray:uint8", [1, 256], "value 256 at position 1 does not fit uint8"),
        ("ndarray:uint8", [1.5], "cannot be stored in uint8"),
        ("ndarray:uint8", [1, None], "cannot be stored in uint8"),
        ("ndarray:uint8", [[1], [1, 2]], "not rectangular"),
        ("ndarray:uint8", 5, "5 (int) is no array of uint8"),
    ],
)
def test_a_value_that_would_come_out_different_is_refused_by_column(encoding, value, problem):
    with pytest.raises(FieldError) as caught:
        coercer("a", encoding)(value)
    assert caught.value.field == "a"
    assert problem in str(caught.value)


def test_two_types_have_one_that_holds_both_or_none():
    assert joined("int", "int") == "int"
    assert joined("int", "float64") == joined("float64", "int") == "float64"
    assert joined("int", "str") == joined("null", "str") == joined("ndarray:int8", "json") == "json"
    assert joined("ndarray:uint8", "ndarray:int16") == "ndarray:int16"
    assert joined("ndarray:uint8:3", "ndarray:uint8") == "ndarray:uint8"
    assert joined("bytes", "str") is joined("jpeg", "null") is None


def test_columns_of_many_inputs_are_brought_together(tmp_path):
    a = lines(tmp_path / "a.jsonl", {"x": 1, "y": 1, "z": "a"})
    b = write_csv(tmp_path / "b.csv", [{"x": 1.5, "y": 2, "z": "3"}])
    c = write_parquet(tmp_path / "c.parquet", [{"x": 2, "y": "q", "z": "b"}])
    run([a, b, c], tmp_path / "out", to("mds"))
    assert columns_of(tmp_path / "out") == {"x": "float64", "y": "json", "z": "str"}
    assert read_mds(tmp_path / "out") == [
        {"x": 1, "y": 1, "z": "a"},
        {"x": 1.5, "y": 2, "z": "3"},
        {"x": 2, "y": "q", "z": "b"},
    ]


def test_a_csv_column_is_text_where_one_of_the_files_says_so(tmp_path):
    write_csv(tmp_path / "a.csv", [{"x": 1, "y": 1}])
    write_csv(tmp_path / "b.csv", [{"x": "007", "y": 2.5}])
    out = tmp_path.with_name(tmp_path.name + ".jsonl")
    run(tmp_path, out, to("jsonl"))
    assert read_jsonl(out) == [{"x": "1", "y": 1.0}, {"x": "007", "y": 2.5}]


def test_a_member_that_some_rows_lack_is_null_in_a_json_column_and_nowhere_else(tmp_path):
    path = lines(tmp_path / "a.jsonl", {"x": 1, "y": 2}, {"x": 1})
    run(path, tmp_path / "out", to("mds"))
    assert columns_of(tmp_path / "out") == {"x": "int", "y": "json"}
    assert read_mds(tmp_path / "out") == [{"x": 1, "y": 2}, {"x": 1, "y": None}]
    run(path, tmp_path / "out.jsonl", to("jsonl", {"y": None}))
    assert read_jsonl(tmp_path / "out.jsonl") == [{"y": 2}, {}]
    message = "a.jsonl, line 2: column 'y': is missing"
    refused(path, tmp_path / "no", to("mds", {"y": "int"}), message, "--columns y=json", error=PreparationError)


def later(tmp_path, row):
    """120 rows that fit, and one that does not."""
    good = [{"id": i, "x": 0.5, "s": "a", "t": [1]} for i in range(120)]
    return write_jsonl(tmp_path / "a.jsonl", [*good, {**good[0], **row}])


@pytest.mark.parametrize(
    ("row", "column", "problem"),
    [
        ({"id": 1.5}, "id", "1.5 (float) is no int"),
        ({"x": "n/a"}, "x", "'n/a' (str) is no float64"),
        ({"s": None}, "s", "null is no str"),
        ({"t": []}, "t", "no element at all"),
        ({"t": ["a"]}, "t", "cannot be stored in int64"),
        ({"id": 2**63}, "id", "int"),
        ({"new": 1}, "new", "is in none of the first rows"),
    ],
)
def test_a_later_row_that_does_not_fit_the_first_ones_is_named_with_line_and_column(tmp_path, row, column, problem):
    path = later(tmp_path, row)
    message = f"{path}, line 121: column {column!r}: "
    refused(path, tmp_path / "out", to("mds"), message, problem, error=PreparationError)
    with pytest.raises(UnfinishedDatasetError):
        read_mds(tmp_path / "out")


def test_a_later_field_of_csv_that_does_not_fit_is_named_too(tmp_path):
    rows = [{"id": i, "s": "two\nlines"} for i in range(120)]
    path = write_csv(tmp_path / "a.csv", [*rows, {"id": "n/a", "s": "x"}])
    refused(path, tmp_path / "out", to("mds"), f"{path}, line 242: column 'id' has 'n/a'", error=PreparationError)
    run(path, tmp_path / "out", to("mds", {"id": "str", "s": None}))
    assert read_mds(tmp_path / "out")[-1] == {"id": "n/a", "s": "x"}


def test_a_row_of_a_table_or_dataset_is_named_by_its_number(tmp_path):
    parquet = write_parquet(tmp_path / "a.parquet", [{"t": [1, 2]}] * 7 + [{"t": [1, 70_000]}])
    wanted = to("stream", dtype="uint16")
    place = f"{parquet}, row 7 (the first one is 0): column 't': value 70000 at position 1"
    refused(parquet, tmp_path / "out", wanted, place, error=PreparationError)
    mds = write_mds(tmp_path / "mds")
    place = f"{mds}, sample 14: column 'tokens': value 98"
    wanted = to("stream", field="tokens", dtype="int8")
    refused(mds, tmp_path / "out", to("stream", field="tokens", dtype="int8"), "sample", "int8", error=PreparationError)


def test_named_columns_decide_which_are_kept_and_how(tmp_path):
    path = write_parquet(tmp_path / "a.parquet")
    run(path, tmp_path / "mds", to("mds", {"tokens": "ndarray:uint16", "id": "int32", "text": None}))
    assert columns_of(tmp_path / "mds") == {"id": "int32", "text": "str", "tokens": "ndarray:uint16"}
    assert read_mds(tmp_path / "mds") == [{n: row[n] for n in ("id", "text", "tokens")} for row in ROWS]
    run(path, tmp_path / "out.jsonl", to("jsonl", {"score": None, "id": "float64"}))
    assert read_jsonl(tmp_path / "out.jsonl") == [{"score": row["score"], "id": float(row["id"])} for row in ROWS]
    for kind, out in (("mds", "no"), ("jsonl", "no.jsonl"), ("documents", "no"), ("stream", "no")):
        wanted = to(kind, {"id": None, "ids": None})
        refused(path, tmp_path / out, wanted, "no column 'ids'", "there are id, text, score, tokens")
    refused(path, tmp_path / "no", to("mds", {"id": "integer"}), "integer", "expected one of")
    refused(path, tmp_path / "no", to("mds", {"id": "pkl"}), "no pickle")
    csv = write_csv(tmp_path / "a.csv")
    refused(csv, tmp_path / "no", to("mds", {"id": "ndarray:int8"}), "ndarray:int8", "CSV")


def test_an_input_with_a_schema_that_lacks_a_column_is_refused(tmp_path):
    a, b = write_csv(tmp_path / "a.csv", [{"x": 1, "y": 2}]), write_csv(tmp_path / "b.csv", [{"x": 1, "z": 2}])
    refused([a, b], tmp_path / "out", to("mds"), f"{b}: has no column 'y', which {a} has")
    run([a, b], tmp_path / "out", to("mds", {"x": None}))
    assert read_mds(tmp_path / "out") == [{"x": 1}, {"x": 1}]


def test_a_column_without_a_common_type_is_refused(tmp_path):
    a = write_parquet(tmp_path / "a.parquet", [{"x": b"a"}])
    b = lines(tmp_path / "b.jsonl", {"x": "a"})
    refused([a, b], tmp_path / "out", to("mds"), "b.jsonl: column 'x' is str, but bytes in", "a.parquet")


def test_what_json_cannot_hold_is_refused_with_the_columns_that_remain(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", [{"id": 1, "image": b"\xff", "s": "a"}])
    for kind, out in (("jsonl", tmp_path / "out.jsonl"), ("documents", tmp_path / "out")):
        refused(path, out, to(kind), "column 'image' is bytes", "--columns id,s")
        run(path, out, to(kind, {"id": None, "s": None}))
    assert read_jsonl(tmp_path / "out.jsonl") == read_documents(tmp_path / "out") == [{"id": 1, "s": "a"}]
    prices = write_parquet(tmp_path / "b.parquet", [{"price": decimal.Decimal("1.50")}])
    refused(prices, tmp_path / "b.jsonl", to("jsonl"), "column 'price' is str_decimal")
    run(prices, tmp_path / "b.jsonl", to("jsonl", {"price": "str"}))
    assert read_jsonl(tmp_path / "b.jsonl") == [{"price": "1.50"}]
    run(prices, tmp_path / "mds", to("mds"))
    assert read_mds(tmp_path / "mds") == [{"price": decimal.Decimal("1.50")}]


def test_nan_is_no_json_and_is_named(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"x": 1.5}\n{"x": NaN}\n')
    place = f"{path}, line 2: column 'x': would come back different from JSON"
    refused(path, tmp_path / "out.jsonl", to("jsonl"), place, error=PreparationError)
    assert not (tmp_path / "out.jsonl").exists()
    run(path, tmp_path / "mds", to("mds"))
    first, second = read_mds(tmp_path / "mds")
    assert first["x"] == 1.5
    assert second["x"] != second["x"]


def test_types_that_only_arrow_has_are_refused_unless_left_out(tmp_path):
    import datetime

    path = write_parquet(tmp_path / "a.parquet", [{"id": 1, "d": datetime.timedelta(1)}])
    refused(path, tmp_path / "out", to("mds"), "column 'd' is Arrow's duration", "leave it out")
    refused(path, tmp_path / "out.jsonl", to("jsonl"), "column 'd' is Arrow's duration", "--columns id")
    run(path, tmp_path / "out", to("mds", {"id": None}))
    assert read_mds(tmp_path / "out") == [{"id": 1}]


def test_pickled_columns_are_refused_unless_left_out(tmp_path):
    with MDSWriter(out=tmp_path / "a", columns={"a": "pkl", "b": "int"}, allow_unsafe_types=True) as writer:
        writer.write({"a": {1}, "b": 1})
    refused(tmp_path / "a", tmp_path / "out", to("mds"), "column 'a' is pickled", "leave it out")
    refused(tmp_path / "a", tmp_path / "out.jsonl", to("jsonl"), "column 'a' is pkl", "--columns b")
    run(tmp_path / "a", tmp_path / "out", to("mds", {"b": None}))
    assert read_mds(tmp_path / "out") == [{"b": 1}]


def test_images_keep_their_bytes_from_kind_to_kind(tmp_path):
    from io import BytesIO

    from PIL import Image

    file = BytesIO()
    Image.new("RGB", (4, 3), (200, 10, 60)).save(file, "JPEG", quality=31)
    jpeg = file.getvalue()
    hub = write_parquet(tmp_path / "a.parquet", [{"image": {"bytes": jpeg, "path": "a.jpg"}, "label": 1}])
    run(hub, tmp_path / "mds", to("mds"))
    assert columns_of(tmp_path / "mds") == {"image": "jpeg", "label": "int"}
    with SampleDataset(tmp_path / "mds") as dataset:
        assert dataset[0]["image"].size == (4, 3)
    run(tmp_path / "mds", tmp_path / "again", to("mds"))
    assert [data for name, data in files_of(tmp_path / "again").items() if name.endswith(".mds")] == [
        data for name, data in files_of(tmp_path / "mds").items() if name.endswith(".mds")
    ]
    run(tmp_path / "again", tmp_path / "documents", to("documents", field="image"))
    assert read_documents(tmp_path / "documents") == [jpeg]


def test_documents_are_the_values_of_a_field_or_rows(tmp_path):
    path = write_parquet(tmp_path / "a.parquet")

    def made(name, **options):
        run(path, tmp_path / name, to("documents", **options))
        return DocumentStorage(tmp_path / name).open().manifest.dtype, read_documents(tmp_path / name)

    assert made("text", field="text") == ({"encoding": "bytes"}, [row["text"].encode() for row in ROWS])
    assert made("tokens", field="tokens") == ("<i8", [row["tokens"] for row in ROWS])
    assert made("small", field="tokens", dtype="uint16") == ("<u2", [row["tokens"] for row in ROWS])
    assert made("score", field="score") == ({"encoding": "json"}, [row["score"] for row in ROWS])
    assert made("rows") == ({"encoding": "json"}, ROWS)
    assert made("one", columns={"id": None}) == ({"encoding": "json"}, [{"id": row["id"]} for row in ROWS])
    refused(path, tmp_path / "no", to("documents", field="none"), "no column 'none'")
    refused(path, tmp_path / "no", to("documents", dtype="uint8"), "dtype='uint8'", "--field")
    refused(path, tmp_path / "no", to("documents", field="id", dtype="uint8"), "column 'id' is int and no list")


def test_documents_of_one_column_of_arrays_or_bytes_are_its_values(tmp_path):
    for number, storage_format in enumerate((DocumentNumpyFormat("<u2"), DocumentBytesFormat())):
        source = DocumentStorage(tmp_path / f"in{number}", storage_format)
        records = [[1, 2], []] if number == 0 else [b"x", b""]
        with source.sync_writer() as writer:
            for record in records:
                writer.append(0, record)
        source.publish()
        run(tmp_path / f"in{number}", tmp_path / f"out{number}", to("documents"))
        assert read_documents(tmp_path / f"out{number}") == records


def test_json_documents_read_by_other_formats_are_json(tmp_path):
    run(lines(tmp_path / "a.jsonl", {"a": [1, None]}), tmp_path / "out", to("documents"))
    with DocumentStorage(tmp_path / "out", DocumentJsonFormat()).dataset() as dataset:
        assert dataset[0] == {"a": [1, None]}


def test_a_stream_has_the_elements_of_a_field_end_to_end(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl")
    tokens = [token for row in ROWS for token in row["tokens"]]
    run(path, tmp_path / "out", to("stream", field="tokens", dtype="uint16"), num_splits=4)
    assert read_stream(tmp_path / "out") == {"tokens": tokens}
    assert StreamStorage(tmp_path / "out").open().manifest.dtype == [["tokens", "<u2"]]
    run(path, tmp_path / "named", to("stream", {"tokens": "ndarray:int32"}))
    assert StreamStorage(tmp_path / "named").open().manifest.dtype == [["tokens", "<i4"]]
    refused(path, tmp_path / "no", to("stream", field="tokens"), "does not record the type", "--dtype")
    refused(path, tmp_path / "no", to("stream", field="text", dtype="uint8"), "column 'text' is str and no list")
    refused(path, tmp_path / "no", to("stream", dtype="uint8"), "column 'id' is int and no list", "--field")
    for dtype in ("bool", "text", "U5", "M8[s]"):
        refused(path, tmp_path / "no", to("stream", field="tokens", dtype=dtype), f"dtype={dtype!r}", "uint16")


def test_empty_lists_are_no_hindrance_where_the_type_is_said(tmp_path):
    path = lines(tmp_path / "a.jsonl", {"t": []}, {"t": [1]}, {"t": []})
    run(path, tmp_path / "stream", to("stream", dtype="uint8"))
    assert read_stream(tmp_path / "stream") == {"t": [1]}
    run(path, tmp_path / "documents", to("documents", field="t", dtype="uint8"))
    assert read_documents(tmp_path / "documents") == [[], [1], []]
    run(path, tmp_path / "mds", to("mds"))
    assert columns_of(tmp_path / "mds") == {"t": "json"}  # MDS has no array without an element


def test_a_stream_keeps_all_its_fields_when_it_is_cut_anew(tmp_path):
    source = StreamStorage(tmp_path / "in", StreamNumpyFormat([("tokens", "<u2"), ("mask", "?")]))
    with source.sync_writer() as writer:
        writer.append(0, {"tokens": [1, 2, 3], "mask": [True, False, True]})
    source.publish()
    run(tmp_path / "in", tmp_path / "out", to("stream"))
    assert read_stream(tmp_path / "out") == {"tokens": [1, 2, 3], "mask": [True, False, True]}
    run(tmp_path / "in", tmp_path / "mds", to("mds"), Reading(sequence_length=2))
    assert columns_of(tmp_path / "mds") == {"mask": "json", "tokens": "ndarray:uint16"}
    assert read_mds(tmp_path / "mds")[1] == {"mask": [True], "tokens": [3]}


def test_spans_keep_their_payloads_or_become_a_stream(tmp_path):
    path = write_annotated(tmp_path / "in")
    run(path, tmp_path / "mds", to("mds"))
    assert [sample["payload"] for sample in read_mds(tmp_path / "mds")] == SCALARS
    run(path, tmp_path / "stream", to("stream", field="tokens"))
    assert read_stream(tmp_path / "stream") == {"tokens": [token for row in ROWS for token in row["tokens"]]}


def test_options_of_mds_reach_the_shards(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl")
    run(path, tmp_path / "out", to("mds", compression="zstd:7", hashes=["sha1", "xxh64"], size_limit="1kb"))
    index = json.loads((tmp_path / "out" / "index.json").read_text())
    assert len(index["shards"]) > 1
    for shard in index["shards"]:
        assert (shard["compression"], shard["hashes"], shard["size_limit"]) == ("zstd:7", ["sha1", "xxh64"], 1024)
    assert read_mds(tmp_path / "out") == ROWS
    for name, value in (("compression", "zip"), ("hashes", ["crc"]), ("size_limit", "big")):
        refused(path, tmp_path / "no", to("mds", **{name: value}), name, value if isinstance(value, str) else "crc")


def test_options_that_mean_nothing_are_refused(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl")
    refused(path, tmp_path / "no", to("csv"), "to='csv'", "mds, stream, documents, jsonl")
    refused(path, tmp_path / "no", to("mds", field="tokens"), "field='tokens'")
    refused(path, tmp_path / "no.jsonl", to("jsonl", dtype="uint8"), "dtype='uint8'")
    refused(path, tmp_path / "no", to("documents", compression="gz"), "compression='gz'")
    refused(path, tmp_path / "no", to("jsonl"), "destination=", "ends with .jsonl")


def test_the_output_and_the_inputs_never_lie_in_one_another(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    write_jsonl(folder / "a.jsonl")
    (tmp_path / "link").symlink_to(folder)
    for paths, out in (
        (folder, folder / "out"),
        (folder, folder),
        (tmp_path / "link", folder / "out"),
        (folder / "a.jsonl", folder / "a.jsonl"),
        (folder / "a.jsonl", tmp_path),
    ):
        kind = "jsonl" if out.suffix else "documents"
        with pytest.raises(InputError, match="lie in one another"):
            run(paths, out, to(kind))
    assert sorted(path.name for path in folder.iterdir()) == ["a.jsonl"]


def test_what_another_conversion_wrote_is_kept_unless_overwritten(tmp_path):
    a, b = lines(tmp_path / "a.jsonl", {"x": 1}), lines(tmp_path / "b.jsonl", {"x": 2})
    for kind, out, read in (
        ("mds", tmp_path / "mds", read_mds),
        ("documents", tmp_path / "documents", read_documents),
        ("jsonl", tmp_path / "out.jsonl", read_jsonl),
    ):
        run(a, out, to(kind))
        before = files_of(out)
        assert run(a, out, to(kind)).skipped == 1
        with pytest.raises(PublishedError):
            run(b, out, to(kind))
        assert files_of(out) == before
        run(b, out, to(kind), overwrite=True)
        assert read(out) == [{"x": 2}]


def test_windows_of_a_stream_become_rows(tmp_path):
    path = write_stream(tmp_path / "in")
    run(path, tmp_path / "mds", to("mds"), Reading(sequence_length=20))
    assert [len(sample["tokens"]) for sample in read_mds(tmp_path / "mds")] == [20, 20, 16]
    refused(path, tmp_path / "no", to("mds"), "--sequence-length")
