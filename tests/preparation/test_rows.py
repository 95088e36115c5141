"""Rows of JSON lines and of CSV: every row once, in order, wherever the file is cut; and every fault by its line."""

import csv
import gzip
import io
import json
import os
import pickle

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InputError, OptionError
from headrace.preparation.rows import read_rows, row_sources, split_rows
from headrace.preparation.tasks import plan_tasks


def rows_of(paths, num_splits=1, **options):
    splits = split_rows(paths, num_splits, **options)
    assert len(splits) == num_splits
    return [row for split in splits for row in read_rows(split)]


def refused(path, *parts, **options):
    with pytest.raises(InputError) as caught:
        rows_of(path, **options)
    for part in parts:
        assert part in str(caught.value)


@given(
    rows=st.lists(
        st.dictionaries(
            st.text(max_size=3),
            st.none()
            | st.booleans()
            | st.integers()
            | st.floats(allow_nan=False)
            | st.text()
            | st.lists(st.integers()),
            max_size=3,
        ),
        min_size=1,
        max_size=20,
    ),
    num_splits=st.integers(1, 12),
    end=st.sampled_from(["\n", "\r\n", "\n\n"]),
    ascii=st.booleans(),
)
def test_jsonl_gives_every_object_once_in_order_wherever_it_is_cut(tmp_path_factory, rows, num_splits, end, ascii):
    path = tmp_path_factory.mktemp("rows") / "a.jsonl"
    path.write_bytes("".join(json.dumps(row, ensure_ascii=ascii) + end for row in rows).encode())
    assert rows_of(path, num_splits) == rows


def test_jsonl_may_be_compressed_begin_with_a_mark_and_lack_the_last_line_end(tmp_path):
    data = b'\xef\xbb\xbf{"a": 1}\n{"a": 2}'
    (tmp_path / "a.jsonl").write_bytes(data)
    (tmp_path / "b.ndjson.gz").write_bytes(gzip.compress(data))
    (tmp_path / "c.JSONL.zst").write_bytes(zstandard.compress(data))
    assert rows_of(tmp_path, 3) == [{"a": 1}, {"a": 2}] * 3


def test_jsonl_keeps_what_python_writes_beside_the_standard(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"a": NaN, "b": -Infinity, "c": 123456789012345678901234567890}\n')
    (row,) = rows_of(tmp_path / "a.jsonl")
    assert row["a"] != row["a"]
    assert (row["b"], row["c"]) == (float("-inf"), 123456789012345678901234567890)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"{", "is not JSON"),
        (b"[1]", "is no JSON object but list"),
        (b'{"a": 1} {"a": 2}', "is not JSON"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b'{"a": 1e999}', "beyond what a float64 holds"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
    ],
)
def test_a_line_that_is_no_object_is_named(tmp_path, line, problem):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n\n' + line + b"\n")
    refused(path, f"{path}, line 3: ", problem)


def test_what_is_not_utf8_is_named_by_its_byte(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"a": 1}\n{"a": "\xff"}\n')
    (tmp_path / "a.csv").write_bytes(b"a,b\n1,\xff\n")
    refused(tmp_path / "a.jsonl", "byte 16 is not UTF-8")
    refused(tmp_path / "a.csv", "byte 6 is not UTF-8")


CELLS = st.text(st.sampled_from('ab,;"\n\ré 1'), max_size=5)


@given(
    rows=st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=15),
    num_splits=st.integers(1, 20),
    end=st.sampled_from(["\n", "\r\n"]),
    delimiter=st.sampled_from(",;\t|"),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
)
def test_csv_gives_every_record_that_pythons_writer_wrote_wherever_it_is_cut(
    tmp_path_factory, rows, num_splits, end, delimiter, quoting
):
    path = tmp_path_factory.mktemp("rows") / "a.csv"
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, lineterminator=end, quoting=quoting)
    writer.writerow(["x", "y\nz", '"'])
    writer.writerows(rows)
    path.write_bytes(text.getvalue().encode())
    expected = [dict(zip(["x", "y\nz", '"'], row, strict=True)) for row in rows]
    assert rows_of(path, num_splits, delimiter=delimiter) == expected


def test_every_place_of_a_csv_file_is_moved_to_the_next_record(tmp_path):
    records = [b"a,b\n", b'"x\ny",1\n', b'"""",\n', b'"\n\n""\n",2\r\n', b",\n", b"last,3"]
    path = tmp_path / "a.csv"
    path.write_bytes(b"".join(records))
    begins = [sum(map(len, records[:k])) for k in range(len(records) + 1)]
    (source,) = row_sources(path)
    places = list(range(source.length + 1))
    expected = [min(begin for begin in begins if begin >= place) for place in places]
    assert source.cuts(places) == expected
    assert [source.cuts([place]) for place in places] == [[begin] for begin in expected]


def test_csv_may_be_compressed_and_blank_lines_are_no_records(tmp_path):
    data = b'\xef\xbb\xbf\na,b\n\n1,"2\n\n3"\n\n'
    (tmp_path / "a.csv").write_bytes(data)
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(data))
    (tmp_path / "c.tsv.zst").write_bytes(zstandard.compress(data.replace(b",", b"\t")))
    assert rows_of(tmp_path, 3) == [{"a": "1", "b": "2\n\n3"}] * 3


def test_without_quotes_a_quote_is_text_and_a_line_a_record(tmp_path):
    (tmp_path / "a.tsv").write_text('a\tb\n5" nail\t"\n"x\ty"\n')
    expected = [{"a": '5" nail', "b": '"'}, {"a": '"x', "b": 'y"'}]
    for num_splits in range(1, 9):
        assert rows_of(tmp_path / "a.tsv", num_splits, quotes=False) == expected


@pytest.mark.parametrize(
    ("data", "line", "problem"),
    [
        ('a,b\n1,2\n"x\ny",2,3\n', 3, "has 3 fields, but the header has 2"),
        ("a,b\n1\n", 2, "has 1 fields, but the header has 2"),
        ('a,b\n1,x"y"z\n', 2, "field 2 has a quote in its middle"),
        ('a,b\n"x"y,""\n', 2, "field 1 has a quote in its middle"),
        ('a,b\n1,2\n"x,3\n4,5\n', 3, "has a quote that is not closed"),
        ("a,b,a\n1,2,3\n", 1, "the header names 'a' twice"),
    ],
)
def test_a_damaged_record_is_named_by_the_line_it_begins_on(tmp_path, data, line, problem):
    path = tmp_path / "a.csv"
    path.write_text(data)
    refused(path, f"{path}, line {line}: ", problem)


def test_fields_become_numbers_only_as_asked(tmp_path):
    (tmp_path / "a.csv").write_text('i,f,j,s\n+07,1e3,"{""a"": [1]}",007\n-1,nan,,\n')
    (source,) = row_sources(tmp_path / "a.csv")
    typed = source.typed({"i": "int", "f": "float64", "j": "json"})
    first, second = (row for _, row in typed.rows(0, typed.length, None, None))
    assert first == {"i": 7, "f": 1000.0, "j": {"a": [1]}, "s": "007"}
    assert (second["i"], second["j"], second["s"]) == (-1, None, "")
    assert second["f"] != second["f"]
    with pytest.raises(OptionError, match="ndarray"):
        source.typed({"i": "ndarray:int8"})


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("int", "1.0"),
        ("int", "1_0"),
        ("int", ""),
        ("int", "٣"),
        ("float64", "1_0"),
        ("float64", "1e999"),
        ("float64", "9007199254740993"),
        ("json", "{"),
        ("str_decimal", "x"),
    ],
)
def test_a_field_that_is_not_of_its_type_is_named_with_line_and_column(tmp_path, encoding, text):
    path = tmp_path / "a.csv"
    path.write_text(f"a,b\n0,\n{text},\n")
    (source,) = row_sources(path)
    typed = source.typed({"a": encoding})
    with pytest.raises(InputError) as caught:
        list(typed.rows(0, typed.length, None, None))
    for part in (f"{path}, line 3: ", "column 'a'", repr(text), f"is no {encoding}", "--columns a=str"):
        assert part in str(caught.value)


def test_columns_of_csv_follow_from_how_the_first_fields_look(tmp_path):
    (tmp_path / "a.csv").write_text(
        "int,float,mixed,zeros,big,long,empty,text\n"
        "0,1.5,1,007,9223372036854775807,0.1234567890123456789012345,,a\n"
        "-12,-1e-3,2.5,010,-9223372036854775808,0.5,1,1\n"
    )
    (source,) = row_sources(tmp_path / "a.csv")
    assert source.columns() == {
        "int": "int",
        "float": "float64",
        "mixed": "float64",
        "zeros": "str",
        "big": "str",  # rather than a number that might not fit
        "long": "str",
        "empty": "str",
        "text": "str",
    }
    (tmp_path / "b.csv").write_text("a,b\n")
    (source,) = row_sources(tmp_path / "b.csv")
    assert source.columns() == {"a": "str", "b": "str"}


def test_columns_of_jsonl_follow_from_the_first_rows(tmp_path):
    rows = [
        {
            "i": 1,
            "f": 1.5,
            "m": 1,
            "s": "a",
            "b": True,
            "n": None,
            "l": [1, 2],
            "g": [1, 2.5],
            "e": [[1]],
            "o": {},
            "x": 1,
        },
        {"i": 2, "f": 2.5, "m": 2.5, "s": "b", "b": False, "n": None, "l": [3], "g": [1, 2], "e": [[1]], "o": {}},
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (source,) = row_sources(tmp_path / "a.jsonl")
    assert source.columns() == {
        "i": "int",
        "f": "float64",
        "m": "float64",
        "s": "str",
        "b": "json",
        "n": "null",
        "l": "ndarray:int64",
        "g": "ndarray:float64",
        "e": "json",
        "o": "json",
        "x": "json",
    }


def test_inputs_lie_end_to_end_in_the_order_given_and_directories_by_name(tmp_path):
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "in" / "b.jsonl").write_text('{"a": "1"}\n')
    (tmp_path / "in" / "a.csv").write_text("a\n0\n")
    (tmp_path / "in" / "sub" / "c.tsv").write_text("a\n2\n")
    (tmp_path / "in" / ".hidden.csv").write_text("a\n9\n")
    (tmp_path / "in" / "notes.md").write_text("9")
    (tmp_path / "first.jsonl").write_text('{"a": "-1"}\n')
    (tmp_path / "empty.jsonl").touch()
    for num_splits in (1, 2, 5, 9):
        rows = rows_of([tmp_path / "first.jsonl", tmp_path / "empty.jsonl", tmp_path / "in"], num_splits)
        assert [row["a"] for row in rows] == ["-1", "0", "1", "2"]


def test_paths_that_make_no_sense_are_refused_by_name(tmp_path):
    (tmp_path / "a.jsonl").write_text("{}\n")
    (tmp_path / "a.txt").write_text("{}\n")
    (tmp_path / "a.parquet.gz").write_text("{}\n")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "none.jsonl", "none.jsonl: no such file")
    refused(tmp_path / "a.txt", "a.txt: the name's ending", ".jsonl, .ndjson")
    refused(tmp_path / "a.parquet.gz", "the name's ending")
    refused(tmp_path / "empty", "holds no dataset and no file of a known kind")
    refused([tmp_path / "a.jsonl", tmp_path], "a.jsonl: is given twice")
    refused([], "no path was given")
    with pytest.raises(InputError, match="num_splits=0"):
        split_rows(tmp_path / "a.jsonl", 0)
    for delimiter in ("", ",,", '"', "\n"):
        with pytest.raises(OptionError, match="delimiter"):
            split_rows(tmp_path / "a.jsonl", delimiter=delimiter)
    (tmp_path / "empty.jsonl").touch()
    refused(tmp_path / "empty.jsonl", "hold no row")
    (tmp_path / "empty.csv").touch()
    (tmp_path / "blank.csv").write_text("\n\n")
    refused(tmp_path / "blank.csv", "has no header line")


def test_a_file_that_changes_after_it_was_cut_is_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n')
    (split,) = split_rows(path, 1)
    os.utime(path, ns=(1, 1))
    with pytest.raises(InputError, match="changed since it was cut"):
        list(read_rows(split))


def test_a_damaged_archive_is_refused(tmp_path):
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"a\n" + b"1\n" * 10_000)[:-9])
    refused(tmp_path / "a.csv.gz", "damaged or cut off")


def test_splits_are_known_by_what_they_read_and_travel(tmp_path):
    (tmp_path / "a.csv").write_text("a\n" + "1\n" * 50)
    splits = split_rows(tmp_path / "a.csv", 3)

    class Target:
        storage_dir = "x"

        def settings_digest(self):
            return ""

    def ids(splits):
        return [task.id for task in plan_tasks(splits, rows_of, Target(), None)]

    assert len(set(ids(splits))) == 3
    assert ids(pickle.loads(pickle.dumps(splits))) == ids(splits) == ids(split_rows(tmp_path / "a.csv", 3))
    assert ids([split.observed(print) for split in splits]) == ids(splits)
    assert set(ids(split_rows(tmp_path / "a.csv", 3, quotes=False))).isdisjoint(ids(splits))
    os.utime(tmp_path / "a.csv", ns=(1, 1))
    assert set(ids(split_rows(tmp_path / "a.csv", 3))).isdisjoint(ids(splits))


def test_progress_adds_up_to_the_bytes_of_the_split(tmp_path):
    (tmp_path / "a.csv").write_text("a\n" + "1\n" * 500)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"a": 1}\n' * 500))
    for split in split_rows(tmp_path, 2):
        told = []
        assert list(read_rows(split.observed(told.append)))
        assert sum(told) == split.size_bytes > 0


def test_the_default_number_of_splits_follows_from_the_size_alone(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"a": "' + b"x" * 1000 + b'"}\n')
    assert len(split_rows(tmp_path / "a.jsonl")) == 1
    with open(tmp_path / "a.jsonl", "ab") as file:
        file.write(b" " * (9 << 20))
    assert len(split_rows(tmp_path / "a.jsonl")) == 3
    (tmp_path / "a.jsonl").rename(tmp_path / "a.jsonl.gz")
    assert len(split_rows(tmp_path / "a.jsonl.gz")) == 1
