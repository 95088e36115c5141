"""inspect, verify and publish on datasets of every kind, whoever wrote them."""

import json
import pickle
import shutil

import numpy as np
import pytest

from cli.commands import headrace_here as headrace
from cli.commands import one_error_line
from headrace.datasets import DocumentStorage, StreamStorage, StreamWithMetaStorage
from headrace.formats.annotated import SpanNumpyFormat
from headrace.formats.documents import (
    DocumentBytesFormat,
    DocumentJsonFormat,
    DocumentNumpyFormat,
    DocumentPickleFormat,
)
from headrace.formats.stream import StreamNumpyFormat

TOKENS = np.dtype([("tokens", "<u2")])


def write(storage, *shards, published=True):
    with storage.sync_writer() as writer:
        for shard, records in enumerate(shards):
            writer.start(shard)
            for record in records:
                writer.append(shard, record)
    if published:
        storage.publish()


def spans(lengths, payloads):
    return {"tokens": np.arange(sum(lengths)), "span_lengths": lengths, "payloads": payloads}


def a_dataset(kind, directory, published=True):
    """Two shards of a kind: 5 elements or documents in the first, 3 in the second."""
    match kind:
        case "stream":
            storage = StreamStorage(directory, StreamNumpyFormat(TOKENS))
            shards = [[{"tokens": range(5)}], [{"tokens": range(3)}]]
        case "documents":
            storage = DocumentStorage(directory, DocumentJsonFormat())
            shards = [[{"number": number} for number in range(5)], [{"number": number} for number in range(3)]]
        case _:
            storage = StreamWithMetaStorage(directory, SpanNumpyFormat(TOKENS, DocumentJsonFormat()))
            shards = [[spans([2, 3], [{"from": "a"}, {"from": "b"}])], [spans([3], [{"from": "c"}])]]
    write(storage, *shards, published=published)
    return storage


def inspected(directory):
    """What inspect tells programs, and people."""
    told, shown = headrace("inspect", directory, "--json"), headrace("inspect", directory)
    assert (told.returncode, told.stderr, shown.returncode, shown.stderr) == (0, "", 0, "")
    return json.loads(told.stdout), shown.stdout


def fact(shown, name):
    (line,) = [line for line in shown.splitlines() if line[:14].rstrip() == name]
    return line[14:]


def test_inspect_tells_of_documents_how_many_of_what_and_the_first_one(tmp_path):
    storage = DocumentStorage(tmp_path, DocumentNumpyFormat("<u2"))
    write(storage, [[7, 8, 9], []], [range(40)])
    told, shown = inspected(tmp_path)
    assert (told["kind"], told["dtype"], told["total_length"], told["num_elements"]) == ("documents", "<u2", 3, 43)
    assert (told["first"], told["first_length"]) == ([7, 8, 9], 3)
    assert [shard["length"] for shard in told["shards"]] == [2, 1]
    assert [file["name"] for file in told["shards"][1]["files"]] == [
        "0000001.out_of_band.bin",
        "0000001.out_of_band.index",
    ]
    assert [fact(shown, name) for name in ("kind", "documents of", "documents", "elements", "begins")] == [
        *("documents", "<u2", "3", "43", "[7, 8, 9]")
    ]
    (heading,) = [line for line in shown.splitlines() if "XXH3-128" in line]
    assert heading.split()[:2] == ["shard", "documents"]


def test_inspect_tells_of_annotated_streams_the_first_elements_and_their_payloads(tmp_path):
    a_dataset("annotated", tmp_path)
    told, shown = inspected(tmp_path)
    assert told["kind"] == "annotated"
    assert told["dtype"] == {"elements": [["tokens", "<u2"]], "payloads": {"encoding": "json"}}
    assert (told["total_length"], told["num_payloads"]) == (8, 3)
    assert told["first"] == {
        "tokens": [0, 1, 2, 3, 4, 0, 1, 2],
        "span_lengths": [2, 3, 3],
        "payloads": [{"from": "a"}, {"from": "b"}, {"from": "c"}],
    }
    assert [fact(shown, name) for name in ("element type", "payloads of", "elements", "payloads")] == [
        *("[['tokens', '<u2']]", "json", "8", "3")
    ]
    assert fact(shown, "begins") == str(told["first"])


@pytest.mark.parametrize("kind", ["documents", "annotated"])
def test_inspect_takes_an_empty_dataset_for_what_it_is(tmp_path, kind):
    if kind == "documents":
        write(DocumentStorage(tmp_path, DocumentNumpyFormat("<u2")), [], [])
    else:
        write(StreamWithMetaStorage(tmp_path, SpanNumpyFormat(TOKENS, DocumentJsonFormat())), [], [])
    told, shown = inspected(tmp_path)
    assert (told["kind"], told["total_length"], told["num_shards"], told["first"]) == (kind, 0, 2, None)
    assert "begins" not in shown
    assert fact(shown, kind if kind == "documents" else "elements") == "0"
    assert headrace("verify", tmp_path).returncode == 0


def test_inspect_shortens_what_is_long(tmp_path):
    write(DocumentStorage(tmp_path / "numbers", DocumentNumpyFormat("<i8")), [range(2_000)])
    told, shown = inspected(tmp_path / "numbers")
    assert (told["first"], told["first_length"]) == (list(range(16)), 2_000)
    assert fact(shown, "begins") == f"{list(range(16))} and 1,984 more elements"

    write(DocumentStorage(tmp_path / "bytes", DocumentBytesFormat()), [b"\x00\n\x1b[2J" + bytes(5_000)])
    told, shown = inspected(tmp_path / "bytes")
    assert told["first"] == repr(b"\x00\n\x1b[2J" + bytes(74)) + " and 4,926 more bytes"
    assert told["first_length"] == 5_006
    assert fact(shown, "begins") == told["first"]

    deep = {"a": {"b": {"c": {"d": {"e": 1}}}}}
    document = {"text": "x" * 1_000, "list": list(range(50)), "deep": deep, **{f"k{k}": None for k in range(20)}}
    write(DocumentStorage(tmp_path / "json", DocumentJsonFormat()), [document])
    told, shown = inspected(tmp_path / "json")
    assert told["first"]["text"] == "x" * 80 + "…"
    assert told["first"]["list"] == [*range(16), "… 34 more"]
    assert told["first"]["deep"] == {"a": {"b": {"c": "…"}}}
    assert (len(told["first"]), told["first"]["…"]) == (17, "7 more")
    assert len(fact(shown, "begins")) < 600


@pytest.mark.parametrize("document", ["two\nlines \x1b[2J", 7, None, [], ""])
def test_a_json_document_is_shown_on_one_line_whatever_it_is(tmp_path, document):
    write(DocumentStorage(tmp_path, DocumentJsonFormat()), [document])
    told, shown = inspected(tmp_path)
    assert told["first"] == document
    assert fact(shown, "begins") == repr(document)
    assert "\x1b" not in shown


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.mark.parametrize("kind", ["documents", "annotated"])
def test_inspect_never_unpickles(tmp_path, kind):
    bomb = Bomb(str(tmp_path / "exploded"))
    if kind == "documents":
        write(DocumentStorage(tmp_path / "out", DocumentPickleFormat()), [bomb])
    else:
        write(
            StreamWithMetaStorage(tmp_path / "out", SpanNumpyFormat(TOKENS, DocumentPickleFormat())),
            [spans([3], [bomb])],
        )
    told, shown = inspected(tmp_path / "out")
    first = told["first"] if kind == "documents" else told["first"]["payloads"][0]
    assert first.startswith(repr(pickle.dumps(bomb)[:40])[:-1])
    assert fact(shown, "documents of" if kind == "documents" else "payloads of") == "pickle"
    assert (first if kind == "documents" else repr(first)) in fact(shown, "begins")
    assert headrace("verify", tmp_path / "out").returncode == 0
    assert headrace("publish", tmp_path / "out").returncode == 0
    assert not (tmp_path / "exploded").exists()


def test_a_format_of_ones_own_is_shown_as_bytes(tmp_path):
    class Own:
        encoding = "rot13"

        def pack(self, data):
            return data

        def unpack(self, encoded_data, shard):
            raise AssertionError("nobody can know this one")

    write(DocumentStorage(tmp_path, Own()), [b"uryyb"])
    told, shown = inspected(tmp_path)
    assert (told["dtype"], told["first"]) == ({"encoding": "rot13"}, "b'uryyb'")
    assert (fact(shown, "documents of"), fact(shown, "begins")) == ("rot13", "b'uryyb'")


def test_a_first_document_that_does_not_decode_is_shown_as_bytes_and_verify_says_why(tmp_path):
    a_dataset("documents", tmp_path)
    data = bytearray((tmp_path / "0000000.out_of_band.bin").read_bytes())
    data[0] = ord("<")
    (tmp_path / "0000000.out_of_band.bin").write_bytes(data)
    told, _ = inspected(tmp_path)
    assert told["first"] == """b'<"number":0}'"""
    assert headrace("verify", tmp_path).returncode == 1


def foreign(directory):
    """The directory as another program leaves one: files and nothing else."""
    shutil.rmtree(directory / ".headrace")
    (directory / "headrace.json").unlink()


def test_inspect_reads_documents_that_another_program_wrote(tmp_path):
    a_dataset("documents", tmp_path)
    foreign(tmp_path)
    told, shown = inspected(tmp_path)
    assert (told["kind"], told["dtype"], told["total_length"]) == ("documents", None, 8)
    assert (told["first"], told["first_length"]) == ("""b'{"number":0}'""", 12)
    assert "digests" in told["unchecked"]
    assert fact(shown, "documents") == "8"
    assert "there is no record to check" in headrace("verify", tmp_path).stdout
    one_error_line(headrace("publish", tmp_path), "no receipts")


def test_inspect_tells_what_can_be_told_of_annotated_streams_that_another_program_wrote(tmp_path):
    a_dataset("annotated", tmp_path)
    foreign(tmp_path)
    told, _ = inspected(tmp_path)
    assert (told["kind"], told["total_length"], told["num_payloads"], told["first"]) == ("annotated", None, 3, None)


@pytest.mark.parametrize(
    ("kind", "file", "counted"),
    [
        ("stream", "in_band.bin", "elements"),
        ("documents", "out_of_band.bin", "documents"),
        ("documents", "out_of_band.index", "documents"),
        ("annotated", "in_band.bin", "elements"),
        ("annotated", "out_of_band.bin", "elements"),
        ("annotated", "out_of_band.index", "elements"),
    ],
)
@pytest.mark.parametrize("damage", ["flipped", "missing", "longer"])
def test_verify_names_the_damaged_file_of_any_kind_and_what_its_shard_holds(tmp_path, kind, file, counted, damage):
    a_dataset(kind, tmp_path)
    assert headrace("verify", tmp_path).returncode == 0
    path = tmp_path / f"0000001.{file}"
    data = bytearray(path.read_bytes())
    match damage:
        case "flipped":
            data[-1] ^= 1
            path.write_bytes(data)
        case "longer":
            path.write_bytes(data + bytes(8))
        case _:
            path.unlink()
    bad = headrace("verify", tmp_path)
    assert bad.returncode == 1
    (line,) = bad.stdout.splitlines()
    assert line.startswith(f"0000001.{file}: ")
    assert line.endswith(f"(shard 1, {counted} 5 to 8, exclusive)")
    assert bad.stderr == f"1 of {2 * {'stream': 1, 'documents': 2, 'annotated': 3}[kind]} files are damaged\n"


@pytest.mark.parametrize(
    ("kind", "counted"), [("stream", "8 elements"), ("documents", "8 documents"), ("annotated", "8 elements")]
)
def test_publish_commits_any_kind(tmp_path, kind, counted):
    a_dataset(kind, tmp_path, published=False)
    told, shown = inspected(tmp_path)
    assert (told["kind"], told["published"]) == (kind, False)
    assert fact(shown, "published") == "no"
    first = headrace("publish", tmp_path)
    assert (first.returncode, first.stderr) == (0, "")
    assert f"published 2 shards, {counted}, " in first.stdout
    assert headrace("publish", tmp_path).stdout == first.stdout
    assert inspected(tmp_path)[0]["published"]


@pytest.mark.parametrize("kind", ["documents", "annotated"])
def test_what_is_not_whole_is_refused_whatever_its_kind(tmp_path, kind):
    storage = a_dataset(kind, tmp_path / "whole")
    gap = type(storage)(tmp_path / "gap", storage.storage_format)
    with gap.sync_writer() as writer:
        writer.start(1)
    for command in ("inspect", "verify", "publish"):
        one_error_line(headrace(command, tmp_path / "gap"), "unfinished", "shards 0")


def test_a_directory_that_changes_its_kind_is_unfinished_until_it_has(tmp_path):
    a_dataset("stream", tmp_path)
    replacing = DocumentStorage(tmp_path, DocumentJsonFormat())
    replacing.record_plan(["one", "two", "three"], overwrite=True)
    for command in ("inspect", "verify", "publish"):
        one_error_line(headrace(command, tmp_path), "unfinished")
    with replacing.sync_writer(tasks={0: "one"}) as writer:
        writer.append(0, {"number": 1})
    with replacing.sync_writer(tasks={1: "two"}) as writer:
        writer.append(1, {"number": 2})
    for command in ("inspect", "verify", "publish"):
        one_error_line(headrace(command, tmp_path), "unfinished")
    with replacing.sync_writer(tasks={2: "three"}) as writer:
        writer.append(2, {"number": 3})
    assert "3 shards, 3 documents" in headrace("publish", tmp_path).stdout
    assert inspected(tmp_path)[0]["first"] == {"number": 1}
    assert headrace("verify", tmp_path).returncode == 0
