"""`headrace tokenize --documents` and `--spans`, run as users run them."""

import gzip
import itertools

import numpy as np
import pytest
from tokenizers import Tokenizer

from cli.commands import TEXTS, headrace, one_error_line, reference
from headrace.datasets import DocumentStorage, StreamStorage, StreamWithMetaStorage, open_storage
from headrace.preparation.tokenization import document_place
from preparation.texts import sentences, write_jsonl
from preparation.work import data_of, files_of, leftovers

LAYOUTS = ["--documents", "--spans"]


def ids_by_document(directory):
    """The ids of each document; those of spans come with shard and place in it, as their payloads have it."""
    storage = open_storage(directory)
    if isinstance(storage, DocumentStorage):
        dataset = storage.dataset()
        shards = np.repeat(np.arange(len(dataset.shard_lengths)), dataset.shard_lengths)
        firsts = np.cumsum(dataset.shard_lengths) - dataset.shard_lengths
        places = [(int(shard), int(k - firsts[shard])) for k, shard in enumerate(shards)]
        return places, [document.tolist() for document in dataset[:]]
    assert isinstance(storage, StreamWithMetaStorage)
    with storage.sync_reader() as reader:
        sample = reader.read(0, reader.total_length)
    places = [document_place(int(payload[0])) for payload in sample["payloads"]]
    cuts = np.cumsum(sample["span_lengths"])[:-1]
    return places, [part.tolist() for part in np.split(sample["tokens"], cuts)]


def tokenize(*arguments):
    done = headrace("tokenize", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_document_is_one_with_the_reference_ids_whatever_the_workers_and_shards(
    tmp_path, tokenizer, corpus, layout
):
    expected = [reference(tokenizer, [text]) for text in TEXTS]
    num_tokens = sum(map(len, expected))
    for name, options in (("one", ["--workers", 1]), ("three", ["--workers", 3]), ("five", ["--shards", 5])):
        told = tokenize(corpus, "--tokenizer", tokenizer, "--out", tmp_path / name, layout, *options)
        assert told.startswith(f"{tmp_path / name}: {num_tokens:,} tokens in 400 documents (uint16, ")
        assert ids_by_document(tmp_path / name)[1] == expected
    assert data_of(tmp_path / "one") == data_of(tmp_path / "three")
    assert not leftovers(tmp_path / "three")


def test_stream_documents_and_spans_agree_and_payloads_are_the_places_of_the_documents(tmp_path, tokenizer, corpus):
    common = [corpus, "--tokenizer", tokenizer, "--shards", 7, "--workers", 1, "--out"]
    tokenize(*common, tmp_path / "stream")
    tokenize(*common, tmp_path / "documents", "--documents")
    tokenize(*common, tmp_path / "spans", "--spans")
    documents, spans = ids_by_document(tmp_path / "documents"), ids_by_document(tmp_path / "spans")
    assert documents == spans
    assert len({shard for shard, _ in documents[0]}) > 2
    with StreamStorage(tmp_path / "stream").sync_reader() as reader:
        assert reader.read(0, reader.total_length)["tokens"].tolist() == [*itertools.chain(*documents[1])]
        # Document datasets have the payloads end to end: the bytes of the stream, shard by shard.
        for shard in range(reader.num_shards):
            stream = (tmp_path / "stream" / f"{shard:07d}.in_band.bin").read_bytes()
            assert (tmp_path / "documents" / f"{shard:07d}.out_of_band.bin").read_bytes() == stream


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_long_document_that_is_read_in_several_texts_is_one(tmp_path, tokenizer, layout):
    long = "".join(sentences(20_000))
    assert len(long) > 3 * 262_144
    write_jsonl(tmp_path / "a.jsonl", ["before", long, "between"])
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(long.encode()))
    tokenize(tmp_path, "--tokenizer", tokenizer, "--out", tmp_path / "out", layout, "--workers", 1)
    loaded = Tokenizer.from_file(str(tokenizer))
    ids = [*loaded.encode(long).ids, loaded.token_to_id("<|endoftext|>")]
    short = [reference(tokenizer, [text]) for text in ("before", "between")]
    assert ids_by_document(tmp_path / "out")[1] == [short[0], ids, short[1], ids]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_options_reach_documents_and_spans(tmp_path, tokenizer, layout):
    (tmp_path / "a.txt").write_text("one\n\ntwo\nthree\n")
    (tmp_path / "b.jsonl").write_text('{"body": "four"}\n{"body": ""}\n')
    inputs = [tmp_path / "a.txt", tmp_path / "b.jsonl"]
    options = ["--document", "line", "--field", "body", "--eos", 7, "--dtype", "int32", "--quiet"]
    assert tokenize(*inputs, "--tokenizer", tokenizer, "--out", tmp_path / "out", layout, *options) == ""
    loaded = Tokenizer.from_file(str(tokenizer))
    found = ids_by_document(tmp_path / "out")[1]
    assert found == [[*loaded.encode(word).ids, 7] for word in ("one", "two", "three", "four")]
    schema = open_storage(tmp_path / "out").open().manifest.dtype
    assert schema == ("<i4" if layout == "--documents" else {"elements": [["tokens", "<i4"]], "payloads": "<i8"})


@pytest.mark.parametrize("layout", LAYOUTS)
def test_shards_without_documents_are_there_and_no_documents_at_all_are_refused(tmp_path, tokenizer, layout):
    out = tmp_path / "out"
    write_jsonl(tmp_path / "a.jsonl", ["one", "", "two"])
    command = [tmp_path / "a.jsonl", "--tokenizer", tokenizer, "--out", out, "--shards", 6, "--workers", 1, layout]
    assert "in 2 documents" in tokenize(*command)
    assert "0 written" in tokenize(*command)
    assert ids_by_document(out)[1] == [reference(tokenizer, ["one"]), reference(tokenizer, ["two"])]
    assert open_storage(out).open().manifest.num_shards == 6
    assert headrace("verify", out).returncode == 0

    (tmp_path / "empty.txt").touch()
    common = ["--tokenizer", tokenizer, "--out", tmp_path / "none", layout]
    one_error_line(headrace("tokenize", tmp_path / "empty.txt", *common), "0 bytes")
    write_jsonl(tmp_path / "blank.jsonl", ["", ""])
    for _ in range(2):
        one_error_line(headrace("tokenize", tmp_path / "blank.jsonl", *common), "0 records", "not published")
    assert not (tmp_path / "none" / "headrace.json").exists()


def test_documents_and_spans_together_are_a_wrong_command_line(tmp_path, tokenizer, corpus):
    done = headrace("tokenize", corpus, "--tokenizer", tokenizer, "--out", tmp_path / "out", "--documents", "--spans")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--documents" in done.stderr
    assert "--spans" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("before", "after"), [([], ["--documents"]), (["--documents"], ["--spans"]), (["--spans"], [])], ids=str
)
def test_another_layout_in_the_same_place_needs_overwrite_and_leaves_nothing_of_the_old(
    tmp_path, tokenizer, corpus, before, after
):
    out = tmp_path / "out"
    common = [corpus / "a.jsonl", "--tokenizer", tokenizer, "--workers", 1, "--shards"]
    tokenize(*common, 3, "--out", out, *before)
    old = files_of(out)
    one_error_line(headrace("tokenize", *common, 2, "--out", out, *after), "is published", "overwrite")
    assert files_of(out) == old
    tokenize(*common, 2, "--out", out, *after, "--overwrite")
    tokenize(*common, 2, "--out", tmp_path / "fresh", *after)
    assert data_of(out).keys() == data_of(tmp_path / "fresh").keys()
    shards = [name for name in data_of(out) if name != "headrace.json"]
    assert all(data_of(out)[name] == data_of(tmp_path / "fresh")[name] for name in shards)
    assert headrace("verify", out).returncode == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_failure_names_the_line_and_publishes_nothing(tmp_path, tokenizer, corpus, layout):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "x"}\n{"texts": "y"}\n')
    out = tmp_path / "out"
    finished = headrace("tokenize", corpus, bad, "--tokenizer", tokenizer, "--out", out, layout, "--workers", 2)
    one_error_line(finished, f"{bad}, line 2", "no object with a string 'text'")
    assert not (out / "headrace.json").exists()
    assert not leftovers(out)
    one_error_line(headrace("inspect", out), out)
