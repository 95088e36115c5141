"""Rows of Parquet files and of Hugging Face's directories."""

import datetime
import decimal
import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conversion_scenes import NUM_ROWS, ROWS, plain, write_hugging_face, write_parquet
from headrace.errors import InputError
from headrace.preparation.rows import read_rows, row_sources, split_rows

JPEG = b"\xff\xd8\xff\xe0 and so on"
PNG = b"\x89PNG\r\n\x1a\n and so on"
IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
UTC = datetime.UTC

# name -> (array of two rows, what a column holds, its two values)
COLUMNS = {
    "bool": (pa.array([True, False]), "json", [True, False]),
    "int8": (pa.array([1, -1], pa.int8()), "int", [1, -1]),
    "uint64": (pa.array([0, 2**64 - 1], pa.uint64()), "uint64", [0, 2**64 - 1]),
    "float32": (pa.array([0.5, -1.5], pa.float32()), "float64", [0.5, -1.5]),
    "str": (pa.array(["é", ""]), "str", ["é", ""]),
    "large_str": (pa.array(["é", ""], pa.large_string()), "str", ["é", ""]),
    "view": (pa.array(["é", ""], pa.string_view()), "str", ["é", ""]),
    "bytes": (pa.array([b"\xff", b""]), "bytes", [b"\xff", b""]),
    "two_bytes": (pa.array([b"ab", b"cd"], pa.binary(2)), "bytes", [b"ab", b"cd"]),
    "null": (pa.nulls(2), "null", [None, None]),
    "nullable": (pa.array([1, None]), "json", [1, None]),
    "category": (pa.array(["a", "b"]).dictionary_encode(), "str", ["a", "b"]),
    "decimal": (pa.array([decimal.Decimal("1.50"), decimal.Decimal("-2.00")]), "str_decimal", None),
    "date": (pa.array([datetime.date(2020, 2, 3)] * 2), "str", ["2020-02-03"] * 2),
    "time": (pa.array([datetime.time(1, 2, 3)] * 2), "str", ["01:02:03.000000"] * 2),
    "stamp": (pa.array([0, 1], pa.timestamp("ns")), "str", [f"1970-01-01 00:00:00.00000000{i}" for i in (0, 1)]),
    "zoned": (pa.array([datetime.datetime(2020, 1, 1, tzinfo=UTC)] * 2), "str", ["2020-01-01 00:00:00.000000Z"] * 2),
    "list": (pa.array([[1, 2], []], pa.list_(pa.int32())), "ndarray:int32", [[1, 2], []]),
    "large_list": (pa.array([[1, 2], []], pa.large_list(pa.float32())), "ndarray:float32", [[1, 2], []]),
    "pairs": (pa.array([[1, 2], [3, 4]], pa.list_(pa.uint16(), 2)), "ndarray:uint16", [[1, 2], [3, 4]]),
    "strings": (pa.array([["a"], []]), "json", [["a"], []]),
    "bools": (pa.array([[True], []]), "json", [[True], []]),
    "struct": (pa.array([{"a": [1], "b": None}, None]), "json", [{"a": [1], "b": None}, None]),
    "map": (pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())), "json", [{"k": 1}, {}]),
    "jpeg": (pa.array([{"bytes": JPEG, "path": "a.jpg"}] * 2, IMAGE), "jpeg", [JPEG] * 2),
    "png": (pa.array([{"bytes": PNG, "path": None}] * 2, IMAGE), "png", [PNG] * 2),
    "media": (pa.array([{"bytes": PNG, "path": None}, {"bytes": JPEG, "path": None}], IMAGE), "bytes", [PNG, JPEG]),
    "elsewhere": (pa.array([{"bytes": None, "path": "a.jpg"}] * 2, IMAGE), "bytes", [None, None]),
    "duration": (pa.array([1, 2], pa.duration("s")), "Arrow's duration[s]", None),
    "hidden": (pa.array([{"a": b"x"}] * 2), "Arrow's struct<a: binary>", None),
}


def rows_of(path, num_splits=1):
    return [row for split in split_rows(path, num_splits) for row in read_rows(split)]


def write(path, *names, **options):
    pq.write_table(pa.table({name: COLUMNS[name][0] for name in names}), path, **options)
    return path


def test_every_type_of_arrow_has_one_form(tmp_path):
    path = write(tmp_path / "a.parquet", *COLUMNS)
    (source,) = row_sources(path)
    assert source.columns() == {name: encoding for name, (_, encoding, _) in COLUMNS.items()}
    first, second = rows_of(path)
    for name, (_, _, expected) in COLUMNS.items():
        if expected is not None:
            assert [plain(first[name]), plain(second[name])] == expected, name
    assert [first["decimal"], second["decimal"]] == [decimal.Decimal("1.50"), decimal.Decimal("-2.00")]
    assert first["list"].dtype == np.int32
    assert first["pairs"].dtype == np.uint16


def test_the_same_types_come_from_a_saved_dataset(tmp_path):
    import datasets

    names = [name for name in COLUMNS if name not in ("map", "duration", "two_bytes", "view", "hidden")]
    table = pa.table({name: COLUMNS[name][0] for name in names})
    datasets.disable_progress_bars()
    datasets.Dataset(table).save_to_disk(str(tmp_path / "saved"))
    (source,) = row_sources(tmp_path / "saved")
    assert source.columns() == {name: COLUMNS[name][1] for name in names}
    rows = rows_of(tmp_path / "saved", 2)
    for name in names:
        if COLUMNS[name][2] is not None:
            assert [plain(row[name]) for row in rows] == COLUMNS[name][2], name


@pytest.mark.parametrize("write_rows", [write_parquet, write_hugging_face])
def test_every_row_comes_once_in_order_wherever_the_table_is_cut(tmp_path, write_rows):
    path = write_rows(tmp_path / "a.parquet")
    for num_splits in (1, 2, 3, 7, NUM_ROWS, 40):
        assert [plain(row) for row in rows_of(path, num_splits)] == ROWS


def test_splits_of_parquet_prefer_the_borders_of_row_groups(tmp_path):
    write_parquet(tmp_path / "many.parquet", [{"a": i} for i in range(100)], row_group_size=9)
    write_parquet(tmp_path / "one.parquet", [{"a": i} for i in range(100)], row_group_size=100)
    for split in split_rows(tmp_path / "many.parquet", 5):
        (part,) = split.parts
        assert part.start % 9 == 0
    starts = [split.parts[0].start for split in split_rows(tmp_path / "one.parquet", 4)]
    assert starts == pytest.approx([0, 25, 50, 75], abs=1)


def test_only_the_wanted_columns_are_read(tmp_path):
    path = write(tmp_path / "a.parquet", "str", "duration", "int8")
    (source,) = row_sources(path)
    assert [row for _, row in source.rows(0, 2, ["int8", "str"], None)] == [
        {"str": "é", "int8": 1},
        {"str": "", "int8": -1},
    ]
    for path in (write_parquet(tmp_path / "b.parquet"), write_hugging_face(tmp_path / "saved")):
        (source,) = row_sources(path)
        assert list(source.rows(1, 4, ["none"], None)) == [(1, {}), (2, {}), (3, {})]


def test_rows_are_named_by_their_numbers(tmp_path):
    for path in (write_parquet(tmp_path / "a.parquet"), write_hugging_face(tmp_path / "saved")):
        (source,) = row_sources(path)
        places = [place for place, _ in source.rows(3, 9, None, None)]
        assert places == list(range(3, 9))
        assert source.where(3) == f"{path}, row 3 (the first one is 0)"


def test_progress_adds_up_to_about_the_bytes_of_the_split(tmp_path):
    for path in (write_parquet(tmp_path / "a.parquet"), write_hugging_face(tmp_path / "saved")):
        (split,) = split_rows(path, 1)
        told = []
        assert len(list(read_rows(split.observed(told.append)))) == NUM_ROWS
        assert split.size_bytes * 0.9 < sum(told) <= split.size_bytes


def test_a_file_that_is_no_parquet_and_one_that_is_cut_are_refused(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(InputError, match=r"a\.parquet: is damaged, or no Parquet file"):
        row_sources(tmp_path / "a.parquet")
    path = write_parquet(tmp_path / "b.parquet", [{"a": "x" * i} for i in range(2000)])
    data = bytearray(path.read_bytes())
    data[5000:9000] = bytes(4000)
    splits = split_rows(path, 2)
    path.write_bytes(data)
    with pytest.raises(InputError, match="changed since it was cut"):
        list(read_rows(splits[0]))
    with pytest.raises(InputError, match=r"b\.parquet: is damaged"):
        rows_of(path)


def test_a_partition_folder_is_refused_since_its_column_would_be_lost(tmp_path):
    (tmp_path / "in" / "year=2020").mkdir(parents=True)
    path = write_parquet(tmp_path / "in" / "year=2020" / "a.parquet")
    with pytest.raises(InputError, match=r"a\.parquet: lies in the folder 'year=2020', which stands for a column"):
        row_sources(tmp_path / "in")
    assert len(rows_of(path)) == NUM_ROWS


def test_a_column_that_is_there_twice_is_refused(tmp_path):
    table = pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])
    pq.write_table(table, tmp_path / "a.parquet")
    (source,) = row_sources(tmp_path / "a.parquet")
    with pytest.raises(InputError, match="two columns 'a'"):
        source.columns()


def test_a_dataset_dict_names_what_it_holds(tmp_path):
    import datasets

    datasets.disable_progress_bars()
    parts = {"train": datasets.Dataset.from_list(ROWS), "test": datasets.Dataset.from_list(ROWS[:3])}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "both"))
    with pytest.raises(InputError, match=r"holds the datasets train, test; name those you want, such as .*both/train"):
        row_sources(tmp_path / "both")
    assert len(rows_of(tmp_path / "both" / "test")) == 3


def test_a_damaged_or_changed_directory_is_refused(tmp_path):
    path = write_hugging_face(tmp_path / "saved")
    splits = split_rows(path, 2)
    state = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps(state | {"_fingerprint": "other"}))
    with pytest.raises(InputError, match="changed since it was cut"):
        list(read_rows(splits[0]))
    (path / state["_data_files"][0]["filename"]).unlink()
    with pytest.raises(InputError, match="cannot be loaded"):
        row_sources(path)


@pytest.mark.parametrize(("module", "name"), [("pyarrow", "a.parquet"), ("datasets", "saved")])
def test_a_missing_package_is_named_with_the_command_that_installs_it(tmp_path, module, name):
    path = (write_parquet if name == "a.parquet" else write_hugging_face)(tmp_path / name)
    without = f"import sys; sys.modules[{module!r}] = None"
    script = f"{without}; from headrace.preparation.rows import row_sources; row_sources({str(path)!r})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    extra = {"pyarrow": "parquet", "datasets": "hf"}[module]
    assert done.stderr.splitlines()[-1].startswith("ImportError")
    assert f"pip install 'headrace[{extra}]'" in done.stderr


def test_jsonl_and_csv_need_no_package_of_others(tmp_path):
    loaded = "[module for module in ('pyarrow', 'datasets') if module in sys.modules]"
    script = f"import sys; import headrace.preparation.rows; print({loaded})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
