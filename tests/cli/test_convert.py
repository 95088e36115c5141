"""`headrace convert`: every kind of input to every kind of output, as users run it."""

import os
import signal

import pytest

from cli.commands import HEADRACE, headrace, one_error_line
from cli.commands import headrace_here as here
from conversion_scenes import (
    NUM_ROWS,
    ROWS,
    SCALARS,
    TOKENS,
    columns_of,
    files_of,
    read_documents,
    read_jsonl,
    read_mds,
    read_stream,
    write_annotated,
    write_csv,
    write_documents,
    write_hugging_face,
    write_jsonl,
    write_mds,
    write_parquet,
    write_stream,
)
from headrace.errors import UnfinishedDatasetError
from preparation.processes import alive, start_command, wait_for

WINDOWS = [{"tokens": TOKENS[begin : begin + 10]} for begin in range(0, len(TOKENS), 10)]
SPANS = [{"tokens": row["tokens"], "payload": rest} for row, rest in zip(ROWS, SCALARS, strict=True)]

# name -> (writes it, its rows)
SOURCES = {
    "a.jsonl": (write_jsonl, ROWS),
    "a.jsonl.gz": (write_jsonl, ROWS),
    "a.ndjson.zst": (write_jsonl, ROWS),
    "a.csv": (write_csv, SCALARS),
    "a.parquet": (write_parquet, ROWS),
    "saved": (write_hugging_face, ROWS),
    "mds": (write_mds, ROWS),
    "documents": (write_documents, ROWS),
    "stream": (write_stream, WINDOWS),
    "annotated": (write_annotated, SPANS),
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    return {name: write(folder / name) for name, (write, _) in SOURCES.items()}


def convert(source, out, kind, *options):
    """Converts in this process and gives what it said."""
    done = here("convert", source, out, "--to", kind, "--workers", 1, "--shards", 3, *options)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("name", SOURCES)
def test_rows_of_every_kind_are_the_same_in_every_kind(sources, tmp_path, name):
    source, rows = sources[name], SOURCES[name][1]
    windows = ["--sequence-length", 10] if name == "stream" else []
    told = convert(source, tmp_path / "mds", "mds", *windows)
    assert read_mds(tmp_path / "mds") == [dict(sorted(row.items())) for row in rows]
    assert f"{len(rows)} samples" in told
    convert(source, tmp_path / "out.jsonl", "jsonl", *windows)
    assert read_jsonl(tmp_path / "out.jsonl") == rows
    convert(source, tmp_path / "documents", "documents", *windows)
    assert read_documents(tmp_path / "documents") == ([row["tokens"] for row in rows] if name == "stream" else rows)
    if "tokens" in rows[0]:
        told = convert(source, tmp_path / "stream", "stream", "--field", "tokens", "--dtype", "uint16")
        assert read_stream(tmp_path / "stream") == {"tokens": TOKENS}
        assert f"{len(TOKENS)} elements" in told
    else:
        done = here("convert", source, tmp_path / "stream", "--to", "stream", "--field", "tokens", "--dtype", "uint16")
        one_error_line(done, "no column 'tokens'", "there are id, text, score")


def test_the_columns_of_mds_follow_from_the_input(sources, tmp_path):
    types = {"id": "int", "score": "float64", "text": "str"}
    for name, tokens in (("a.jsonl", "int64"), ("a.parquet", "int64"), ("saved", "int64"), ("mds", "uint16")):
        convert(sources[name], tmp_path / name, "mds")
        assert columns_of(tmp_path / name) == {**types, "tokens": f"ndarray:{tokens}"}
    convert(sources["a.csv"], tmp_path / "csv", "mds")
    assert columns_of(tmp_path / "csv") == types
    shaped = ["--columns", "tokens=ndarray:uint16,id=int32", "--columns", "text"]
    convert(sources["a.jsonl"], tmp_path / "named", "mds", *shaped)
    assert columns_of(tmp_path / "named") == {"id": "int32", "text": "str", "tokens": "ndarray:uint16"}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("mds", ["--compression", "zstd", "--hashes", "sha1,xxh64"]),
        ("documents", []),
        ("stream", ["--field", "tokens", "--dtype", "uint16"]),
        ("jsonl", []),
    ],
)
def test_the_number_of_workers_is_invisible_in_the_files(sources, tmp_path, kind, options):
    inputs = [sources["a.jsonl"], sources["a.parquet"], sources["a.jsonl.gz"]]
    made = []
    for run, workers in ((here, 1), (headrace, 3)):
        out = tmp_path / f"out{workers}" / ("data.jsonl" if kind == "jsonl" else "data")
        out.parent.mkdir()
        done = run("convert", *inputs, out, "--to", kind, "--workers", workers, "--shards", 7, *options)
        assert (done.returncode, done.stderr) == (0, "")
        assert "7 tasks done" in done.stdout
        made.append(files_of(out))
    assert made[0] == made[1]
    assert len(made[0]) == 1 if kind == "jsonl" else len(made[0]) > 7


def finished_tasks(out):
    if out.suffix == ".jsonl":
        return len(list(out.parent.glob(f".{out.name}.headrace/parts/.headrace/*.receipt")))
    return len(list(out.glob("*/index.json")))


@pytest.mark.parametrize(("kind", "stop"), [("mds", signal.SIGKILL), ("jsonl", signal.SIGKILL), ("mds", signal.SIGINT)])
def test_a_run_that_was_stopped_goes_on_and_ends_with_the_same_bytes(tmp_path, kind, stop):
    rows = [{"id": i, "text": "some words " * (i % 90)} for i in range(20_000)]
    source = write_jsonl(tmp_path / "a.jsonl", rows)
    out, whole = (tmp_path / folder / ("a.jsonl" if kind == "jsonl" else "mds") for folder in ("stopped", "whole"))
    out.parent.mkdir()
    whole.parent.mkdir()
    options = ["--to", kind, "--shards", 60, "--workers"]
    process = start_command([*HEADRACE, *map(str, ["convert", source, out, *options, 2])])
    wait_for(lambda: finished_tasks(out) >= 2, "finished task")
    process.send_signal(stop)
    output, errors = process.communicate(timeout=15)
    assert output == ""
    if stop == signal.SIGINT:
        assert process.returncode == 130
        assert errors == f"interrupted: {out} is unfinished; run the same command again to go on where it stopped\n"
    wait_for(lambda: alive(process.pid) == [], "end of the workers", 5)
    finished = finished_tasks(out)
    assert 2 <= finished < 60
    if kind == "mds":
        with pytest.raises(UnfinishedDatasetError):
            read_mds(out)
    else:
        assert not out.exists()

    done = here("convert", source, out, *options, 1)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{60 - finished} tasks done" in done.stdout
    assert f"{finished} were done already" in done.stdout
    assert here("convert", source, whole, *options, 1).returncode == 0
    assert files_of(out) == files_of(whole)
    assert (read_jsonl if kind == "jsonl" else read_mds)(out) == rows


def test_faults_are_one_line_that_names_file_and_line_and_nothing_is_published(tmp_path):
    bad = write_jsonl(tmp_path / "bad.jsonl", [*ROWS * 5, {**ROWS[0], "id": "x"}])
    for workers in (1, 2):
        out = tmp_path / f"out{workers}"
        done = headrace("convert", bad, out, "--to", "mds", "--workers", workers)
        one_error_line(done, f"{bad}, line 116: column 'id': 'x' (str) is no int", "--columns id=json", "shard 0")
        assert not (out / "index.json").exists()
    done = headrace("convert", bad, tmp_path / "out1", "--to", "mds", "--columns", "id=json,text", "--workers", 1)
    assert done.returncode == 0
    assert read_mds(tmp_path / "out1")[-1] == {"id": "x", "text": ROWS[0]["text"]}


def test_commands_that_make_no_sense_are_one_line(sources, tmp_path):
    source, out = sources["a.jsonl"], tmp_path / "out"

    def refused(*parts, paths=(source, out), kind="mds", options=()):
        one_error_line(here("convert", *paths, "--to", kind, "--workers", 1, *options), *parts)
        assert not out.exists()

    refused("none.jsonl: no such file", paths=(tmp_path / "none.jsonl", out))
    refused("given twice", paths=(source, source, out))
    refused("nosuch://b/x", "URL", paths=(source, "nosuch://b/x"))
    refused("s3://b/x.jsonl", "is a URL", paths=(source, "s3://b/x.jsonl"), kind="jsonl")
    refused("lie in one another", paths=(source, source))
    refused("ends with .jsonl", kind="jsonl")
    refused("compression='zip'", options=("--compression", "zip"))
    refused("hashes", "crc", options=("--hashes", "crc"))
    refused("size_limit", options=("--size-limit", "huge"))
    refused("delimiter", options=("--delimiter", ";;"))
    refused("field='id'", options=("--field", "id"))
    refused("does not record the type", "--dtype", kind="stream", options=("--field", "tokens"))
    refused("--sequence-length", paths=(sources["stream"], out))


@pytest.mark.parametrize("columns", ["id,id", "=int", "id=", "id,,text"])
def test_columns_that_are_no_list_of_names_are_a_wrong_command_line(sources, tmp_path, columns):
    done = here("convert", sources["a.jsonl"], tmp_path / "out", "--to", "mds", "--columns", columns)
    assert done.returncode == 2
    assert "--columns" in done.stderr


def test_a_shape_may_have_commas(tmp_path):
    source = write_jsonl(tmp_path / "a.jsonl", [{"x": [[1, 2, 3], [4, 5, 6]], "id": 1}])
    convert(source, tmp_path / "out", "mds", "--columns", "x=ndarray:uint16:2,3,id=int")
    assert columns_of(tmp_path / "out") == {"id": "int", "x": "ndarray:uint16:2,3"}
    assert read_mds(tmp_path / "out") == [{"id": 1, "x": [[1, 2, 3], [4, 5, 6]]}]


def test_options_of_csv_reach_the_reader(tmp_path):
    (tmp_path / "a.csv").write_text('a;b\n5";x,y\n')
    convert(tmp_path / "a.csv", tmp_path / "out.jsonl", "jsonl", "--delimiter", ";", "--no-quotes")
    assert read_jsonl(tmp_path / "out.jsonl") == [{"a": '5"', "b": "x,y"}]


def test_quiet_says_nothing_and_a_terminal_shows_progress(sources, tmp_path):
    assert convert(sources["a.jsonl"], tmp_path / "quiet", "mds", "--quiet") == ""
    shown = headrace(
        *["convert", sources["a.parquet"], tmp_path / "shown", "--to", "mds", "--workers", 1],
        env={**os.environ, "FORCE_COLOR": "1", "COLUMNS": "100"},
    )
    assert shown.returncode == 0
    assert "shards" in shown.stderr


def test_another_dataset_in_the_way_needs_overwrite(sources, tmp_path):
    out = tmp_path / "out"
    convert(sources["a.jsonl"], out, "mds")
    before = files_of(out)
    one_error_line(here("convert", sources["mds"], out, "--to", "mds", "--workers", 1), str(out), "--overwrite")
    assert files_of(out) == before
    convert(sources["mds"], out, "mds", "--overwrite")
    assert columns_of(out)["tokens"] == "ndarray:uint16"
    assert len(read_mds(out)) == NUM_ROWS


def test_a_missing_package_is_one_line_with_the_command_that_installs_it(sources, tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "pyarrow.py").write_text("raise ImportError('none here')")
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = headrace("convert", sources["a.parquet"], tmp_path / "out", "--to", "mds", "--workers", 1, env=env)
    one_error_line(done, "pip install 'headrace[parquet]'")


def test_help_teaches_with_an_example():
    told = headrace("convert", "--help", env={**os.environ, "COLUMNS": "120"})
    assert told.returncode == 0
    assert "Example: headrace convert" in told.stdout
    for word in ("--columns", "--field", "--sequence-length", "mds", "jsonl", "100 rows"):
        assert word in told.stdout
