"""What a conversion must not change in silence, and what must not end in a traceback."""

import json

import numpy as np
import pytest

from headrace.datasets import SampleDataset
from headrace.errors import InputError, OptionError, PreparationError
from headrace.preparation.conversion import Wanted, convert

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

NUM_SAMPLED = 100


def to(kind, source, tmp_path, columns=None, **wanted):
    out = tmp_path / ("out.jsonl" if kind == "jsonl" else "out")
    convert(source, out, Wanted(kind, columns, **wanted), num_splits=1, workers=1, progress=False)
    return list(SampleDataset(out)) if kind == "mds" else out


def jsonl(tmp_path, *rows):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def csv(tmp_path, header, *lines):
    path = tmp_path / "rows.csv"
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def parquet(tmp_path, values):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"a": values}), path)
    return path


@pytest.mark.parametrize("later", ["007", "+5", "-0"])
def test_a_code_among_the_later_fields_of_a_column_of_whole_numbers_is_not_read_as_a_number(tmp_path, later):
    source = csv(tmp_path, "zip", *["10001"] * NUM_SAMPLED, later)

    with pytest.raises(PreparationError, match=r"line 102: column 'zip' has '.*--columns zip=str"):
        to("mds", source, tmp_path)


@pytest.mark.parametrize("later", ["007", "+5"])
def test_a_code_among_the_later_fields_of_a_column_of_floats_is_not_read_as_a_number(tmp_path, later):
    source = csv(tmp_path, "x", *["1.5"] * NUM_SAMPLED, later)

    with pytest.raises(PreparationError, match="line 102: column 'x' has"):
        to("mds", source, tmp_path)


def test_fields_with_leading_zeros_are_numbers_where_the_column_is_named_so(tmp_path):
    source = csv(tmp_path, "n,x", "7,1.5", "007,+05")

    samples = to("mds", source, tmp_path, {"n": "int", "x": "float64"})

    assert samples == [{"n": 7, "x": 1.5}, {"n": 7, "x": 5.0}]


def test_later_fields_of_guessed_columns_are_numbers_as_python_writes_them(tmp_path):
    later = "-9223372036854775808,-0.0"
    source = csv(tmp_path, "n,x", *["1,2.5"] * NUM_SAMPLED, later, "9223372036854775807,1e-05", "0,nan")

    last = to("mds", source, tmp_path)[-3:]

    assert [sample["n"] for sample in last] == [-(1 << 63), (1 << 63) - 1, 0]
    assert [str(float(sample["x"])) for sample in last] == ["-0.0", "1e-05", "nan"]


@pytest.mark.parametrize("text", ["1_0", " 10"])
def test_a_decimal_is_read_from_digits_alone(tmp_path, text):
    with pytest.raises(PreparationError, match="is no str_decimal"):
        to("mds", csv(tmp_path, "a,b", f"1,{text}"), tmp_path, {"b": "str_decimal"})


@pytest.mark.parametrize(
    "numbers", [[9007199254740993, 2.5], [2.5, (1 << 53) + 1], [(1 << 64) - 1, 1], [[9007199254740993], [2.5]]]
)
def test_integers_that_no_float_holds_are_refused_among_floats(tmp_path, numbers):
    source = jsonl(tmp_path, {"a": numbers})

    with pytest.raises(PreparationError, match=r"line 1: column 'a': has .* among floats, and it is no float64"):
        to("mds", source, tmp_path, {"a": "ndarray:float64"})


def test_integers_that_floats_hold_are_taken_among_floats(tmp_path):
    source = jsonl(tmp_path, {"a": [9007199254740992, 2.5]}, {"a": [1 << 63, 1]})

    first, second = to("mds", source, tmp_path, {"a": "ndarray:float64"})

    assert first["a"].tolist() == [9007199254740992.0, 2.5]
    assert second["a"].tolist() == [2.0**63, 1.0]


@pytest.mark.parametrize("later", [[True], [2, False], [[1], [True]]])
def test_a_boolean_in_a_list_of_numbers_does_not_become_one(tmp_path, later):
    source = jsonl(tmp_path, *[{"a": [1]}] * NUM_SAMPLED, {"a": later})

    with pytest.raises(PreparationError, match=r"line 101: column 'a': has a boolean .*--columns a=json"):
        to("mds", source, tmp_path)


@pytest.mark.parametrize("dtype", ["bogus", "uint99", "(2,"])
def test_an_element_type_that_does_not_exist_is_an_option_error(tmp_path, dtype):
    source = jsonl(tmp_path, {"a": [1]})

    with pytest.raises(OptionError, match="ndarray:DTYPE"):
        to("mds", source, tmp_path, {"a": f"ndarray:{dtype}"})
    with pytest.raises(OptionError, match="a type of numbers"):
        to("documents", source, tmp_path, field="a", dtype=dtype)


@pytest.mark.parametrize("kind", ["mds", "jsonl"])
@pytest.mark.parametrize(
    "values",
    [
        pytest.param(lambda: pa.array([0, 1 << 62], pa.timestamp("us")), id="timestamp"),
        pytest.param(lambda: pa.array([0, 32503680000000], pa.timestamp("s", "UTC")), id="zoned"),
        pytest.param(lambda: pa.array([0, (1 << 31) - 1], pa.int32()).cast(pa.date32()), id="date"),
    ],
)
def test_a_date_that_no_calendar_has_is_refused_by_its_row(tmp_path, kind, values):
    with pytest.raises(PreparationError, match=r"row 1 .*column 'a': <value out of range"):
        to(kind, parquet(tmp_path, values()), tmp_path)


def test_text_that_looks_like_a_date_out_of_range_is_text(tmp_path):
    texts = ["<value out of range: 1>", "<"]

    samples = to("mds", parquet(tmp_path, pa.array(texts, pa.large_string())), tmp_path)

    assert [sample["a"] for sample in samples] == texts


@pytest.mark.parametrize("kind", ["mds", "jsonl"])
@pytest.mark.parametrize("key", [1, 1.5, True, {"x": 1}, [1]])
def test_maps_whose_keys_are_no_text_are_refused_before_anything_is_written(tmp_path, kind, key):
    key_type = pa.array([key]).type
    source = parquet(tmp_path, pa.array([[(key, 1)]], pa.map_(key_type, pa.int64())))

    with pytest.raises(InputError, match="column 'a' is Arrow's map<"):
        to(kind, source, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["rows.parquet"]


@pytest.mark.parametrize("kind", ["mds", "jsonl", "documents"])
def test_a_column_that_no_table_has_is_refused_even_with_an_encoding(tmp_path, kind):
    with pytest.raises(InputError, match="has no column 'b'"):
        to(kind, parquet(tmp_path, [1]), tmp_path, {"a": None, "b": "json"})


def test_a_column_that_json_lines_may_have_later_is_null_until_then(tmp_path):
    source = jsonl(tmp_path, *[{"a": 1}] * (NUM_SAMPLED + 1), {"a": 1, "b": 2})

    samples = to("mds", source, tmp_path, {"a": None, "b": "json"})

    assert [sample["b"] for sample in samples[-2:]] == [None, 2]


@pytest.mark.parametrize("text", ["\n\n", "{}\n{}\n"])
def test_rows_without_a_column_make_no_samples_and_the_message_names_the_file(tmp_path, text):
    source = tmp_path / "rows.jsonl"
    source.write_text(text)

    with pytest.raises(InputError, match=r"rows\.jsonl: has no row with a column"):
        to("mds", source, tmp_path)


@pytest.mark.parametrize("kind", ["mds", "jsonl", "documents"])
def test_no_columns_at_all_are_not_kept(tmp_path, kind):
    with pytest.raises(OptionError, match="at least one column"):
        to(kind, jsonl(tmp_path, {"a": 1}), tmp_path, {})


@pytest.mark.parametrize("text", ["{}", "[]", "not JSON", '{"splits": []}', '{"splits": 5}'])
def test_a_damaged_list_of_hugging_face_datasets_is_an_input_error(tmp_path, text):
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "dataset_dict.json").write_text(text)

    with pytest.raises(InputError, match=r"holds several datasets, but dataset_dict\.json does not name them"):
        to("mds", tmp_path / "saved", tmp_path)


def test_lists_of_numbers_come_out_as_numpy_reads_them(tmp_path):
    lists = [[1, 2], [1.5, 2], [[1, 2], [3, 4.5]], [0.1]]

    samples = to("mds", jsonl(tmp_path, *[{"a": value} for value in lists]), tmp_path, {"a": "ndarray:float64"})

    for sample, value in zip(samples, lists, strict=True):
        np.testing.assert_array_equal(sample["a"], np.array(value, np.float64), strict=True)


def test_times_with_a_zone_are_the_time_there_and_nulls_stay_nulls(tmp_path):
    times = pa.array([0, None, -62135596800], pa.timestamp("s", "Europe/Berlin"))

    samples = to("mds", parquet(tmp_path, times), tmp_path)

    assert [sample["a"] for sample in samples][:2] == ["1970-01-01 01:00:00.000+0100", None]
    assert samples[2]["a"].startswith("0001-01-01 00:53:28")
