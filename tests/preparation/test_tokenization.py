import json
import pickle

import numpy as np
import pytest
from tokenizers import Tokenizer

from headrace.errors import InputError
from headrace.preparation import documents, split_text_files, token_dtype, token_records
from headrace.preparation.tokenization import load_tokenizer
from preparation.texts import sentences, train, write_jsonl


def ids_of(make_records, paths, num_splits=1, **options):
    splits = split_text_files(paths, num_splits, **options)
    records = [record["tokens"] for split in splits for record in make_records(split)]
    assert all(record.dtype == make_records.dtype for record in records)
    return np.concatenate(records).tolist()


def test_the_stream_is_every_documents_ids_followed_by_the_end_of_document(tmp_path, tokenizer_json, reference):
    texts = list(sentences(500))
    path = write_jsonl(tmp_path / "a.jsonl", texts)
    make_records = token_records(str(tokenizer_json))
    assert ids_of(make_records, path) == ids_of(make_records, path, 7) == reference(texts)


def test_records_are_batches_not_documents(tmp_path, tokenizer_json):
    path = write_jsonl(tmp_path / "a.jsonl", sentences(3000))
    (split,) = split_text_files(path, 1)
    assert len(list(token_records(str(tokenizer_json))(split))) < 5


@pytest.mark.parametrize("byte_level", [{}, {"add_prefix_space": True}])
def test_a_long_text_gets_the_ids_of_the_whole_although_it_is_read_in_pieces(tmp_path, monkeypatch, byte_level):
    monkeypatch.setattr(documents, "PIECE_CHARS", 100)
    monkeypatch.setattr(documents, "_LONGEST_PIECE_CHARS", 400)
    path = train(tmp_path / "tokenizer.json", **byte_level)
    text = "".join(sentences(300))
    if not byte_level:  # a space in front of every text is seen where there are no spaces
        text += "\n".join(["日本語のテキスト", "空白なし"] * 100)
    (tmp_path / "a.txt").write_text(text)
    (split,) = split_text_files(tmp_path / "a.txt", 1)
    assert len(list(documents.read_documents(split))) > 50
    tokenizer = Tokenizer.from_file(str(path))
    expected = [*tokenizer.encode(text).ids, tokenizer.token_to_id("<|endoftext|>")]
    assert ids_of(token_records(str(path)), tmp_path / "a.txt") == expected


def test_a_long_text_gets_the_ids_of_the_whole_with_tiktoken_too(tmp_path, monkeypatch, tiny_bytes):
    import tiktoken

    monkeypatch.setattr(documents, "PIECE_CHARS", 100)
    monkeypatch.setattr(documents, "_LONGEST_PIECE_CHARS", 400)
    text = "".join(sentences(300)) + "<|endoftext|> is text here"
    (tmp_path / "a.txt").write_text(text)
    expected = [*tiktoken.get_encoding(tiny_bytes).encode(text, disallowed_special=()), 259]
    make_records = token_records(tiny_bytes)
    assert make_records.eos_id == 259
    assert ids_of(make_records, tmp_path / "a.txt") == expected


def test_a_text_that_spells_out_a_special_token_stays_text(tmp_path, tokenizer_json):
    (tmp_path / "a.txt").write_text("never<|endoftext|>ends")
    ids = ids_of(token_records(str(tokenizer_json)), tmp_path / "a.txt")
    end = Tokenizer.from_file(str(tokenizer_json)).token_to_id("<|endoftext|>")
    assert ids.count(end) == 1
    assert Tokenizer.from_file(str(tokenizer_json)).decode(ids[:-1]) == "never<|endoftext|>ends"


def test_truncation_and_padding_stored_in_the_file_are_ignored(tmp_path, tokenizer_json, reference):
    tokenizer = Tokenizer.from_file(str(tokenizer_json))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    texts = list(sentences(20))
    path = write_jsonl(tmp_path / "a.jsonl", texts)
    assert ids_of(token_records(str(tmp_path)), path) == reference(texts)


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65_535, "<u2"), (65_536, "<u2"), (65_537, "<u4")])
def test_the_dtype_is_two_bytes_up_to_65536_entries(vocab_size, dtype):
    assert token_dtype(vocab_size).str == dtype


def test_a_dtype_too_small_for_the_vocabulary_is_refused():
    with pytest.raises(InputError, match="holds ids to 65535, but the vocabulary goes to 65536"):
        token_dtype(65_537, "uint16")
    assert token_dtype(65_537, "int32").str == "<i4"
    with pytest.raises(InputError, match="auto, uint16, uint32, int32"):
        token_dtype(10, "float32")


def test_the_vocabulary_ends_behind_the_largest_id_even_with_holes(tmp_path, tokenizer_json):
    definition = json.loads(tokenizer_json.read_text())
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    definition["added_tokens"].append({"id": 65_536, "content": "<far>", **added})
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    loaded = load_tokenizer(str(tmp_path / "tokenizer.json"))
    if loaded.token_id("<far>") == 65_536:  # some versions of the library number added tokens anew
        assert loaded.vocab_size == 65_537
    assert loaded.vocab_size == loaded.token_id("<far>") + 1


def test_eos_is_an_id_a_token_or_the_tokenizers_own(tmp_path, tokenizer_json):
    spec = str(tokenizer_json)
    own = token_records(spec).eos_id
    assert own == token_records(spec, eos="<|endoftext|>").eos_id == token_records(spec, eos=str(own)).eos_id
    assert token_records(spec, eos="e").eos_id == Tokenizer.from_file(spec).token_to_id("e")
    with pytest.raises(InputError, match="no token '<stop>'"):
        token_records(spec, eos="<stop>")
    with pytest.raises(InputError, match="has ids 0 to 399; eos=400"):
        token_records(spec, eos="400")
    nameless = train(tmp_path / "nameless.json", special=())
    with pytest.raises(InputError, match="--eos ID or --eos TOKEN"):
        token_records(str(nameless))
    assert token_records(str(nameless), eos=7).eos_id == 7


def test_a_tokenizer_that_cannot_be_had_is_refused_with_advice(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="no such file"):
        token_records(str(tmp_path / "tokenizer.json"))
    with pytest.raises(InputError, match=r"neither a file nor one of tiktoken's encodings .*gpt2"):
        token_records("gpt17")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(InputError, match=r"is no tokenizer\.json"):
        token_records(str(tmp_path / "bad.json"))


def test_a_tiktoken_vocabulary_that_is_not_here_is_refused_with_advice(monkeypatch):
    import tiktoken

    def offline(name):
        raise OSError("no route to host")

    monkeypatch.setattr(tiktoken, "get_encoding", offline)
    with pytest.raises(InputError, match=r"not on this machine.*no route to host.*TIKTOKEN_CACHE_DIR"):
        token_records("gpt2")


def test_make_records_pickles_and_refuses_another_tokenizer(tmp_path):
    path = train(tmp_path / "tokenizer.json", 300)
    write_jsonl(tmp_path / "a.jsonl", sentences(3))
    (split,) = split_text_files(tmp_path / "a.jsonl", 1)
    make_records = token_records(str(path))
    list(make_records(split))  # loads the tokenizer, which must not travel
    assert len(pickle.dumps(make_records)) < 500
    assert pickle.loads(pickle.dumps(make_records)) == make_records
    train(path, 350)
    with pytest.raises(InputError, match="changed since the preparation began"):
        list(pickle.loads(pickle.dumps(make_records))(split))


def test_the_manifest_tells_which_tokenizer_made_the_tokens_and_what_ends_a_document(tokenizer_json):
    records = token_records(str(tokenizer_json))
    assert records.metadata == {
        "tokenizer": records.digest,
        "vocab_size": records.tokenizer.vocab_size,
        "end_of_document": records.eos_id,
    }
