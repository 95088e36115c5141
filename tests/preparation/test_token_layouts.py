"""The three layouts of token ids: the same ids end to end, cut as a stream, as documents, or marked with spans."""

import gzip
import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from headrace.datasets import open_storage
from headrace.errors import InputError
from headrace.formats.annotated import SpanNumpyFormat, packed_spans
from headrace.formats.documents import DocumentNumpyFormat
from headrace.preparation import documents, prepare, split_text_files, token_records, tokenization
from headrace.preparation.tasks import plan_tasks
from headrace.preparation.tokenization import document_id, document_place
from preparation.texts import sentences, train, write_jsonl
from preparation.work import storage_at

ODD_TEXTS = st.text(alphabet="ab é\n\r", max_size=40)


@pytest.fixture
def short_pieces(monkeypatch):
    """Texts of more than 100 characters come in several, as those of more than 262,144 do."""
    monkeypatch.setattr(documents, "PIECE_CHARS", 100)
    monkeypatch.setattr(documents, "_LONGEST_PIECE_CHARS", 400)


@pytest.fixture
def short_batches(monkeypatch):
    monkeypatch.setattr(tokenization, "_BATCH_CHARS", 150)


def records_of(spec, layout, splits, **options):
    """The records of each split."""
    make_records = token_records(str(spec), layout=layout, **options)
    return [list(make_records(split)) for split in splits]


def joined(arrays):
    return np.concatenate([np.zeros(0, np.uint16), *arrays]).tolist()


def stream_of(spec, splits):
    return joined(record["tokens"] for records in records_of(spec, "stream", splits) for record in records)


def check_laws(spec, splits):
    """All three layouts agree; what comes back are the documents of each split."""
    stream = stream_of(spec, splits)
    by_documents = records_of(spec, "documents", splits)
    by_spans = records_of(spec, "spans", splits)
    assert joined(itertools.chain(*by_documents)) == stream
    assert joined(record["tokens"] for records in by_spans for record in records) == stream
    for split, found, records in zip(splits, by_documents, by_spans, strict=True):
        lengths = [length for record in records for length in record["span_lengths"].tolist()]
        payloads = [payload.tolist() for record in records for payload in record["payloads"]]
        assert lengths == [len(document) for document in found]
        assert payloads == [[document_id(split.number, k)] for k in range(len(found))]
    return by_documents


def test_documents_are_the_ids_of_each_document_with_its_end_as_the_last_one(tmp_path, tokenizer_json, reference):
    texts = list(sentences(300))
    splits = split_text_files(write_jsonl(tmp_path / "a.jsonl", texts), 3)
    found = list(itertools.chain(*check_laws(tokenizer_json, splits)))
    assert [document.tolist() for document in found] == [reference([text]) for text in texts]
    assert {(document.dtype.str, document.ndim) for document in found} == {("<u2", 1)}


def test_stream_records_have_not_changed(tmp_path, tokenizer_json, reference, short_batches):
    texts = list(sentences(20))
    (split,) = split_text_files(write_jsonl(tmp_path / "a.jsonl", texts), 1)
    (records,) = records_of(tokenizer_json, "stream", [split])
    expected, batch = [], []
    for text in texts:
        batch.append(text)
        if sum(map(len, batch)) >= 150:
            expected.append(reference(batch))
            batch = []
    expected += [reference(batch)] if batch else []
    assert [list(record) for record in records] == [["tokens"]] * len(expected)
    assert [record["tokens"].tolist() for record in records] == expected
    assert token_records(str(tokenizer_json)).layout == "stream"


@pytest.mark.parametrize("layout", ["documents", "spans"])
def test_a_document_that_comes_in_many_texts_is_one_record_or_span(
    tmp_path, tokenizer_json, short_pieces, short_batches, layout
):
    texts = ["first\n", "".join(sentences(60)), "middle\n", "".join(sentences(30, start=7)), "last\n"]
    (split,) = split_text_files(write_jsonl(tmp_path / "a.jsonl", texts), 1)
    pieces = list(documents.read_documents(split))
    assert len(pieces) > 50
    assert sum(ends for _, ends in pieces) == 5
    tokenizer = Tokenizer.from_file(str(tokenizer_json))
    expected = [[*tokenizer.encode(text).ids, tokenizer.token_to_id("<|endoftext|>")] for text in texts]
    check_laws(tokenizer_json, [split])
    (records,) = records_of(tokenizer_json, layout, [split])
    if layout == "documents":
        assert [document.tolist() for document in records] == expected
    else:
        lengths = np.concatenate([record["span_lengths"] for record in records])
        cuts = np.cumsum(lengths)[:-1]
        tokens = np.concatenate([record["tokens"] for record in records])
        assert [part.tolist() for part in np.split(tokens, cuts)] == expected


def test_span_records_are_batches_and_none_of_them_is_empty(tmp_path, tokenizer_json, short_pieces, short_batches):
    texts = ["".join(sentences(40)), *sentences(30)]
    (split,) = split_text_files(write_jsonl(tmp_path / "a.jsonl", texts), 1)
    (records,) = records_of(tokenizer_json, "spans", [split])
    assert 1 < len(records) < 31
    assert all(len(record["payloads"]) == len(record["span_lengths"]) > 0 for record in records)


@settings(max_examples=50, deadline=None)
@given(st.lists(ODD_TEXTS, min_size=1, max_size=8), st.integers(1, 5), st.sampled_from(["line", "paragraph", "file"]))
def test_layouts_agree_whatever_the_texts_and_splits(tmp_path_factory, tokenizer_json, texts, num_splits, document):
    folder = tmp_path_factory.mktemp("texts")
    write_jsonl(folder / "a.jsonl", texts)
    (folder / "b.txt").write_text("".join(texts), newline="")
    (folder / "c.txt.gz").write_bytes(gzip.compress("\n\n".join(texts).encode()))
    check_laws(tokenizer_json, split_text_files(folder, num_splits, document=document))


@pytest.mark.parametrize("layout", ["stream", "documents", "spans"])
def test_documents_without_text_leave_no_record_and_take_no_number(tmp_path, tokenizer_json, reference, layout):
    full = write_jsonl(tmp_path / "full.jsonl", ["", "one", "", "", "two", ""])
    none = write_jsonl(tmp_path / "none.jsonl", ["", ""])
    (tmp_path / "blank.txt").write_text("")
    splits = split_text_files([full, none, tmp_path / "blank.txt"], 3)
    check_laws(tokenizer_json, splits)
    (only,) = split_text_files(full, 1)
    (split,) = split_text_files(none, 1)
    assert records_of(tokenizer_json, layout, [split, replace(split, pieces=())]) == [[], []]
    (records,) = records_of(tokenizer_json, layout, [only])
    if layout == "documents":
        assert [document.tolist() for document in records] == [reference(["one"]), reference(["two"])]
    elif layout == "spans":
        assert [payload.tolist() for payload in records[0]["payloads"]] == [[0], [1]]


def test_records_fit_the_formats_of_their_storages(tmp_path, tokenizer_json):
    (split,) = split_text_files(write_jsonl(tmp_path / "a.jsonl", sentences(5)), 1)
    split = replace(split, number=3)
    make_records = token_records(str(tokenizer_json), layout="spans", dtype="uint32")
    (record,) = make_records(split)
    spans = packed_spans(SpanNumpyFormat([("tokens", make_records.dtype)], DocumentNumpyFormat("<i8")), record)
    assert [bytes(payload) for payload in spans.payloads] == [((3 << 40) + k).to_bytes(8, "little") for k in range(5)]
    assert spans.stream.dtype == np.dtype([("tokens", "<u4")])
    documents_of = replace(make_records, layout="documents")
    packed = [bytes(DocumentNumpyFormat(make_records.dtype).pack(document)) for document in documents_of(split)]
    assert b"".join(packed) == spans.stream.tobytes()
    assert [len(data) // 4 for data in packed] == spans.lengths.tolist()


@pytest.mark.parametrize(("layout", "kind"), [("stream", "stream"), ("documents", "documents"), ("spans", "annotated")])
def test_each_layout_has_its_storage_and_a_second_preparation_there_has_nothing_to_do(
    tmp_path, tokenizer_json, layout, kind
):
    splits = split_text_files(write_jsonl(tmp_path / "a.jsonl", sentences(40)), 3)
    make_records = token_records(str(tokenizer_json), layout=layout)
    storage = make_records.storage(tmp_path / "out")
    assert storage.kind == kind
    for expected in ((3, 0), (0, 3)):
        report = prepare(splits, make_records, storage, workers=1, progress=False, metadata=make_records.metadata)
        assert (report.done, report.skipped) == expected
    manifest = open_storage(tmp_path / "out").open().manifest
    assert (manifest.kind, manifest.metadata) == (kind, make_records.metadata)
    assert manifest.total_length == (40 if layout == "documents" else len(stream_of(tokenizer_json, splits)))


def test_a_document_id_tells_split_and_place_and_ids_ascend_with_both():
    places = [(split, k) for split in (0, 1, 2, (1 << 23) - 1) for k in (0, 1, (1 << 40) - 1)]
    ids = [document_id(*place) for place in places]
    assert [document_place(number) for number in ids] == places
    assert document_place(np.int64(ids[-1])) == places[-1]
    assert ids == sorted(set(ids))
    assert (ids[0], ids[3], ids[-1]) == (0, 1 << 40, (1 << 63) - 1)
    assert int(np.array(ids, np.int64)[-1]) == ids[-1]


@pytest.mark.parametrize("place", [(-1, 0), (0, -1), (1 << 23, 0), (0, 1 << 40)])
def test_a_document_that_has_no_id_is_refused(place):
    with pytest.raises(ValueError, match="splits 0 to 8,388,607 and documents 0 to 1,099,511,627,775"):
        document_id(*place)


@pytest.mark.parametrize("number", [-1, 1 << 63])
def test_a_number_that_is_no_document_id_is_refused(number):
    with pytest.raises(ValueError, match=f"{number} is no document id"):
        document_place(number)


def test_the_last_split_that_has_ids_gives_them(tmp_path, tokenizer_json):
    (split,) = split_text_files(write_jsonl(tmp_path / "a.jsonl", sentences(2)), 1)
    make_records = token_records(str(tokenizer_json), layout="spans")
    (record,) = make_records(replace(split, number=(1 << 23) - 1))
    assert [document_place(int(payload[0])) for payload in record["payloads"]] == [
        ((1 << 23) - 1, 0),
        ((1 << 23) - 1, 1),
    ]
    with pytest.raises(ValueError, match="has no id"):
        list(make_records(replace(split, number=1 << 23)))


def test_splits_are_numbered_in_order_and_the_number_names_their_tasks(tmp_path):
    splits = split_text_files(write_jsonl(tmp_path / "a.jsonl", sentences(9)), 4)
    assert [split.number for split in splits] == [0, 1, 2, 3]
    assert splits[0].identity() != replace(splits[0], number=1).identity()
    assert replace(splits[2]).observed(print).number == 2


def test_another_layout_is_another_task(tmp_path, tokenizer_json):
    splits = split_text_files(write_jsonl(tmp_path / "a.jsonl", sentences(9)), 2)
    ids = {
        task.id
        for layout in ("stream", "documents", "spans")
        for task in plan_tasks(splits, token_records(str(tokenizer_json), layout=layout), storage_at(tmp_path), None)
    }
    assert len(ids) == 6


def test_an_unknown_layout_is_refused(tokenizer_json):
    with pytest.raises(InputError, match="layout='rows': is not one of stream, documents, spans"):
        token_records(str(tokenizer_json), layout="rows")


def test_the_manifest_of_spans_tells_what_a_payload_is(tokenizer_json):
    plain = token_records(str(tokenizer_json)).metadata
    assert token_records(str(tokenizer_json), layout="documents").metadata == plain
    told = token_records(str(tokenizer_json), layout="spans").metadata
    assert told == {**plain, "payload": "document id: split << 40 | ordinal in the split"}
    assert json.loads(json.dumps(told)) == told


@pytest.mark.parametrize("layout", ["documents", "spans"])
def test_what_is_held_is_one_document_and_one_batch(tmp_path, layout, short_batches, monkeypatch):
    """Records of the first documents come before the last ones are read."""
    spec = train(tmp_path / "tokenizer.json")
    (split,) = split_text_files(write_jsonl(tmp_path / "a.jsonl", sentences(200)), 1)
    read = []

    def counted(*arguments, **options):
        for text, ends in documents.read_documents(*arguments, **options):
            read.append(text)
            yield text, ends

    monkeypatch.setattr(tokenization, "read_documents", counted)
    next(iter(token_records(str(spec), layout=layout)(split)))
    assert len(read) < 20
