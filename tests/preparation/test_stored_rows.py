"""Rows of datasets that Headrace reads: samples, documents, windows, spans."""

import pickle
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conversion_scenes import (
    NUM_ROWS,
    ROWS,
    SCALARS,
    TOKENS,
    plain,
    write_annotated,
    write_documents,
    write_mds,
    write_stream,
)
from headrace.datasets import DocumentStorage, StreamStorage, StreamWithMetaStorage
from headrace.datasets.samples.writer import CSVWriter, JSONWriter, MDSWriter
from headrace.errors import HeadraceError, InputError, UnsafeDataError
from headrace.formats.annotated import SpanNumpyFormat
from headrace.formats.documents import (
    DocumentBytesFormat,
    DocumentJsonFormat,
    DocumentNumpyFormat,
    DocumentPickleFormat,
)
from headrace.formats.stream import StreamArrayFormat, StreamNumpyFormat
from headrace.preparation.rows import read_rows, row_sources, split_rows, streams


def rows_of(path, num_splits=1, **options):
    return [plain(row) for split in split_rows(path, num_splits, **options) for row in read_rows(split)]


def columns(path, **options):
    (source,) = row_sources(path, **options)
    return source.columns()


def write(storage, *shards):
    with storage.sync_writer() as writer:
        for shard, records in enumerate(shards):
            writer.start(shard)
            for record in records:
                writer.append(shard, record)
    storage.publish()
    return storage.storage_dir


@pytest.mark.parametrize("num_splits", [1, 3, 30])
def test_samples_and_documents_and_spans_are_rows(tmp_path, num_splits):
    assert rows_of(write_mds(tmp_path / "mds"), num_splits) == ROWS
    assert rows_of(write_documents(tmp_path / "documents"), num_splits) == ROWS
    spans = [{"tokens": row["tokens"], "payload": rest} for row, rest in zip(ROWS, SCALARS, strict=True)]
    assert rows_of(write_annotated(tmp_path / "annotated"), num_splits) == spans


def test_the_columns_are_those_that_the_dataset_records(tmp_path):
    types = {"id": "int", "text": "str", "score": "float64", "tokens": "ndarray:uint16"}
    assert columns(write_mds(tmp_path / "mds")) == types
    assert columns(write_documents(tmp_path / "documents")) == types | {"tokens": "ndarray:int64"}
    assert columns(write_annotated(tmp_path / "annotated")) == {"tokens": "ndarray:uint16", "payload": "json"}
    assert columns(write_stream(tmp_path / "stream"), sequence_length=3) == {"tokens": "ndarray:uint16"}


@pytest.mark.parametrize("sequence_length", [1, 10, 55, 56, 57])
@pytest.mark.parametrize("num_splits", [1, 4])
def test_windows_of_a_stream_lose_nothing_and_the_last_one_is_shorter(tmp_path, sequence_length, num_splits):
    path = write_stream(tmp_path / "stream")
    rows = rows_of(path, num_splits, sequence_length=sequence_length)
    assert [token for row in rows for token in row["tokens"]] == TOKENS
    lengths = [len(row["tokens"]) for row in rows]
    assert set(lengths[:-1]) <= {sequence_length}
    assert lengths[-1] == (len(TOKENS) - 1) % sequence_length + 1


def test_a_stream_without_a_sequence_length_says_what_to_give(tmp_path):
    with pytest.raises(InputError, match="--sequence-length"):
        row_sources(write_stream(tmp_path / "stream"))


SPANS = st.lists(st.lists(st.lists(st.integers(1, 9), max_size=4), max_size=3), min_size=1, max_size=4)


@given(shards=SPANS, num_splits=st.integers(1, 9), chunk=st.sampled_from([1, 2, 5, 1000]))
def test_a_span_is_one_row_however_long_it_is_and_wherever_the_stream_is_cut(
    tmp_path_factory, shards, num_splits, chunk
):
    expected, records, count = [], [], 0
    for shard in shards:
        records.append([])
        for lengths in shard:
            payloads = [[len(expected) + k] for k in range(len(lengths))]
            stream = np.arange(count, count + sum(lengths), dtype=np.uint32)
            records[-1].append({"a": stream, "b": stream % 2 == 0, "span_lengths": lengths, "payloads": payloads})
            for length, payload in zip(lengths, payloads, strict=True):
                numbers = list(range(count, count + length))
                expected.append({"a": numbers, "b": [k % 2 == 0 for k in numbers], "payload": payload})
                count += length
    if not count:
        return
    elements = [("a", "<u4"), ("b", "?")]
    folder = tmp_path_factory.mktemp("spans")
    path = write(StreamWithMetaStorage(folder, SpanNumpyFormat(elements, DocumentNumpyFormat("<i8"))), *records)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "_CHUNK_ELEMENTS", chunk)
        assert rows_of(path, num_splits) == expected
    assert columns(path) == {"a": "ndarray:uint32", "b": "ndarray:bool", "payload": "ndarray:int64"}


def test_elements_without_names_are_tokens_and_structured_ones_their_fields(tmp_path):
    path = write(StreamStorage(tmp_path / "a", StreamArrayFormat("<u2")), [[1, 2, 3]])
    assert rows_of(path, sequence_length=2) == [{"tokens": [1, 2]}, {"tokens": [3]}]
    two = StreamNumpyFormat([("tokens", "<u2"), ("mask", "?")])
    path = write(StreamStorage(tmp_path / "b", two), [{"tokens": [1, 2], "mask": [True, False]}])
    assert rows_of(path, sequence_length=9) == [{"tokens": [1, 2], "mask": [True, False]}]
    path = write(StreamWithMetaStorage(tmp_path / "c", SpanNumpyFormat("<u2")), [_span([1, 2], b"x")])
    assert rows_of(path) == [{"tokens": [1, 2], "payload": b"x"}]
    assert columns(path) == {"tokens": "ndarray:uint16", "payload": "bytes"}


def _span(tokens, payload):
    return {"tokens": tokens, "span_lengths": [len(tokens)], "payloads": [payload]}


def test_documents_of_other_types_have_one_column_or_their_fields(tmp_path):
    path = write(DocumentStorage(tmp_path / "a", DocumentBytesFormat()), [b"x", b""])
    assert (rows_of(path), columns(path)) == ([{"document": b"x"}, {"document": b""}], {"document": "bytes"})
    path = write(DocumentStorage(tmp_path / "b", DocumentNumpyFormat("<u2")), [[1, 2], []])
    assert rows_of(path) == [{"document": [1, 2]}, {"document": []}]
    assert columns(path) == {"document": "ndarray:uint16"}
    pairs = np.array([(1, 0.5), (2, 1.5)], [("a", "<u2"), ("b", "<f4")])
    path = write(DocumentStorage(tmp_path / "c", DocumentNumpyFormat(pairs.dtype)), [pairs])
    assert rows_of(path) == [{"a": [1, 2], "b": [0.5, 1.5]}]
    path = write(DocumentStorage(tmp_path / "d", DocumentJsonFormat()), ["x", [1]])
    assert (rows_of(path), columns(path)) == ([{"document": "x"}, {"document": [1]}], {"document": "json"})


def test_documents_of_another_program_are_bytes(tmp_path):
    path = write(DocumentStorage(tmp_path / "a", DocumentJsonFormat()), [{"a": 1}], [[2]])
    (path / "headrace.json").unlink()
    shutil.rmtree(path / ".headrace")
    assert rows_of(path, 2) == [{"document": b'{"a":1}'}, {"document": b"[2]"}]
    assert columns(path) == {"document": "bytes"}


def test_json_documents_are_all_objects_or_none_is(tmp_path):
    path = write(DocumentStorage(tmp_path / "a", DocumentJsonFormat()), [{"a": 1}], [5])
    with pytest.raises(InputError, match="a, document 1: the first document is a JSON object, but not this one"):
        rows_of(path)


def test_shards_of_text_are_samples_too(tmp_path):
    for writer, name in ((JSONWriter, "json"), (CSVWriter, "csv")):
        with writer(out=tmp_path / name, columns={"id": "int", "x": "float", "s": "str"}) as out:
            out.write({"id": 1, "x": 0.5, "s": "a"})
        assert rows_of(tmp_path / name) == [{"id": 1, "x": 0.5, "s": "a"}]
        assert columns(tmp_path / name) == {"id": "int", "x": "float64", "s": "str"}


def test_images_stay_the_bytes_that_they_are(tmp_path):
    from PIL import Image

    image = Image.new("RGB", (3, 2), (9, 99, 199))
    kinds = {"pil": image, "png": image, "jpeg": image, "list[png]": [image, image]}
    with MDSWriter(out=tmp_path, columns={name: name for name in kinds}) as writer:
        writer.write(kinds)
    (row,) = rows_of(tmp_path)
    assert row["jpeg"].startswith(b"\xff\xd8\xff")
    assert row["png"].startswith(b"\x89PNG")
    with MDSWriter(out=tmp_path / "again", columns={name: name for name in kinds}) as writer:
        writer.write(row)
    assert (tmp_path / "again" / "shard.00000.mds").read_bytes() == (tmp_path / "shard.00000.mds").read_bytes()


class Trap:
    def __reduce__(self):
        return pytest.fail, ("code ran",)


def test_pickles_are_never_read(tmp_path):
    path = write(DocumentStorage(tmp_path / "a", DocumentPickleFormat()), [Trap()])
    with pytest.raises(InputError, match="its documents are pickled"):
        row_sources(path)
    spans = SpanNumpyFormat([("tokens", "<u2")], DocumentPickleFormat())
    path = write(StreamWithMetaStorage(tmp_path / "b", spans), [_span([1], Trap())])
    with pytest.raises(InputError, match="its payloads are pickled"):
        row_sources(path)
    with MDSWriter(out=tmp_path / "c", columns={"a": "pkl", "b": "int"}, allow_unsafe_types=True) as writer:
        writer.write({"a": Trap(), "b": 1})
    (source,) = row_sources(tmp_path / "c")
    assert source.columns() == {"a": "pkl", "b": "int"}
    assert [row for _, row in source.rows(0, 1, ["b"], None)] == [{"b": 1}]
    with pytest.raises(UnsafeDataError, match="pickled"):
        list(source.rows(0, 1, None, None))


def test_what_records_no_types_is_refused(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0000000.in_band.bin").write_bytes(bytes(20))
    with pytest.raises(InputError, match="does not record the type of its elements"):
        row_sources(tmp_path / "a", sequence_length=2)
    path = write_annotated(tmp_path / "b")
    (path / "headrace.json").unlink()
    shutil.rmtree(path / ".headrace")
    with pytest.raises(InputError, match="does not record the type of its elements"):
        row_sources(path)


def test_a_payload_has_a_name_of_its_own(tmp_path):
    spans = SpanNumpyFormat([("payload", "<u2")])
    record = {"payload": [1], "span_lengths": [1], "payloads": [b"x"]}
    path = write(StreamWithMetaStorage(tmp_path, spans), [record])
    with pytest.raises(InputError, match="'payload', which is the name of the payload"):
        row_sources(path)


def test_what_is_unfinished_is_no_input(tmp_path):
    with DocumentStorage(tmp_path, DocumentJsonFormat()).sync_writer() as writer:
        writer.append(1, {"a": 1})
    with pytest.raises(HeadraceError, match="unfinished"):
        row_sources(tmp_path)


@pytest.mark.parametrize("write_rows", [write_mds, write_documents, write_stream, write_annotated])
def test_a_dataset_that_is_replaced_after_it_was_cut_is_refused(tmp_path, write_rows):
    splits = split_rows(write_rows(tmp_path / "a"), 2, sequence_length=5)
    splits = pickle.loads(pickle.dumps(splits))
    (tmp_path / "a").rename(tmp_path / "old")
    match write_rows:
        case _ if write_rows is write_mds:
            write_mds(tmp_path / "a", ROWS[:-1])
        case _ if write_rows is write_documents:
            write_documents(tmp_path / "a", ROWS[:-1])
        case _ if write_rows is write_stream:
            write(StreamStorage(tmp_path / "a", StreamNumpyFormat([("tokens", "<u2")])), [{"tokens": TOKENS[1:]}])
        case _:
            storage = StreamWithMetaStorage(tmp_path / "a", SpanNumpyFormat([("tokens", "<u2")], DocumentJsonFormat()))
            write(storage, [_span(TOKENS, {})])
    with pytest.raises(InputError, match="changed since it was cut"):
        list(read_rows(splits[0]))


def test_rows_are_named_by_their_numbers_and_progress_adds_up(tmp_path):
    names = {
        write_mds(tmp_path / "mds"): "sample 3",
        write_documents(tmp_path / "documents"): "document 3",
        write_stream(tmp_path / "stream"): "element 30",
        write_annotated(tmp_path / "annotated"): "element 3",
    }
    for path, name in names.items():
        (source,) = row_sources(path, sequence_length=10)
        assert source.where(3) == f"{path}, {name}"
        (split,) = split_rows(path, 1, sequence_length=10)
        told = []
        assert len(list(read_rows(split.observed(told.append)))) == (6 if path.name == "stream" else NUM_ROWS)
        assert split.size_bytes * 0.9 < sum(told) <= split.size_bytes
