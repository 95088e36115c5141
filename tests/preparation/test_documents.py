import gzip
import json
import os
import subprocess
import sys
from itertools import pairwise

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import InputError
from headrace.preparation import documents, read_documents, split_text_files


def split_of(path, **options):
    (split,) = split_text_files(path, 1, **options)
    return split


def texts_of(path, field="text", **options):
    whole, texts = [], []
    for text, ends in read_documents(split_of(path, **options), field=field):
        assert text
        texts.append(text)
        if ends:
            whole.append("".join(texts))
            texts = []
    assert not texts
    return whole


def write(path, data):
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def test_a_file_document_keeps_every_character(tmp_path):
    text = "one\r\n\r\n two\x0b\x85 é\U0001f600\n\n"
    assert texts_of(write(tmp_path / "a.txt", text)) == [text]


def test_line_documents_end_at_newlines_alone_and_blank_lines_are_none(tmp_path):
    text = "one\x0bstill\x85one\n\n  \n two \r\nthr\ree\nlast"
    assert texts_of(write(tmp_path / "a.txt", text), document="line") == [
        "one\x0bstill\x85one",
        " two ",
        "thr\ree",
        "last",
    ]


def test_a_byte_order_mark_is_no_text(tmp_path):
    mark = "\ufeff"
    assert texts_of(write(tmp_path / "a.txt", mark + "one")) == ["one"]
    assert texts_of(write(tmp_path / "b.txt", mark + "one\ntwo"), document="line") == ["one", "two"]
    assert texts_of(write(tmp_path / "c.jsonl", mark + '{"text": "one"}')) == ["one"]


def test_empty_documents_add_nothing(tmp_path):
    assert texts_of(write(tmp_path / "a.jsonl", '{"text": ""}\n\n  \n{"text": "x"}')) == ["x"]
    assert texts_of(write(tmp_path / "c.txt", "\ufeff")) == []


def test_jsonl_reads_the_named_field_of_what_the_worlds_writers_produce(tmp_path):
    lines = [
        {"body": "é \U0001f600 \x00 \u2028", "meta": {"body": 3}},
        {"meta": float("nan"), "body": "after NaN"},
        {"n": 10**400, "body": "after a large number"},
    ]
    text = "\n".join(json.dumps(line) for line in lines)
    assert texts_of(write(tmp_path / "a.jsonl", text), field="body") == [line["body"] for line in lines]


GOOD = b'{"text": "fine"}\n'


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"text": "x"', "not JSON"),
        (b"plain words", "not JSON"),
        (b'{"txt": "x", "id": 1}', "no object with a string 'text'.*it has 'txt', 'id'"),
        (b'{"text": 3}', "no object with a string 'text'"),
        (b'{"text": null}', "no object with a string 'text'"),
        (b'["text"]', "no object with a string 'text'"),
        (b'{"text": "a\\ud800b"}', "surrogate"),
        (b"[" * 100_000, "nested too deeply|not JSON"),
    ],
)
@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_a_bad_line_is_named_by_file_and_number(tmp_path, line, problem, suffix):
    data = GOOD * 70_000 + line + b"\n" + GOOD
    packed = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}[suffix](data)
    path = write(tmp_path / f"a.jsonl{suffix}", packed)
    splits = split_text_files(path, 5)
    with pytest.raises(InputError, match=f"a.jsonl{suffix}, line 70001: .*({problem})"):
        [list(read_documents(split)) for split in splits]


@pytest.mark.parametrize("options", [{}, {"document": "line"}, {"document": "paragraph"}])
@pytest.mark.parametrize("bad", [b"\xff", b"\xc3", b"\xed\xa0\x80"])
def test_invalid_utf8_is_named_by_file_and_byte(tmp_path, options, bad):
    before = "né\n".encode() * 300_000
    for name, data in (("a.txt", before + bad + b"\nmore"), ("b.txt", before + bad)):
        with pytest.raises(InputError, match=rf"{name}: byte {len(before)} is not UTF-8"):
            texts_of(write(tmp_path / name, data), **options)
    with pytest.raises(InputError, match=r"c.jsonl: byte 26 is not UTF-8"):
        texts_of(write(tmp_path / "c.jsonl", GOOD + b'{"text":"' + bad + b'"}'))


def test_an_archive_that_was_cut_off_or_damaged_is_named(tmp_path):
    data = os.urandom(700_000).hex().encode()
    gz, zst = gzip.compress(data, 1), zstandard.ZstdCompressor(write_checksum=True).compress(data)
    flipped = bytearray(gz)
    flipped[len(gz) // 2] ^= 255
    for name, packed in (
        ("cut.txt.gz", gz[:-100]),
        ("cut.txt.zst", zst[:-100]),
        ("end.txt.zst", zst[:-1]),
        ("no.txt.gz", b"plain"),
        ("no.txt.zst", b"plain"),
        ("flip.txt.gz", bytes(flipped)),
    ):
        with pytest.raises(InputError, match=rf"{name}: is (damaged|cut off)"):
            texts_of(write(tmp_path / name, packed))


def test_a_file_that_changed_or_went_since_it_was_cut_is_refused(tmp_path):
    path = write(tmp_path / "a.txt", "one")
    split = split_of(path)
    write(path, "three")
    with pytest.raises(InputError, match="changed since it was cut"):
        list(read_documents(split))
    path.unlink()
    with pytest.raises(InputError, match="no longer exists"):
        list(read_documents(split))


@given(st.text("ab \n1é.", max_size=300), st.lists(st.integers(0, 300), max_size=6))
@settings(max_examples=300, deadline=None)
def test_pieces_are_the_text_and_lie_the_same_however_it_arrives(monkeypatch_pieces, text, cuts):
    whole = list(documents.pieces_of([text]))
    assert "".join(whole) == text
    assert all(whole)
    assert all(len(piece) <= 64 for piece in whole)
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    arrived = [text[a:b] for a, b in pairwise(borders)]
    assert list(documents.pieces_of(arrived)) == whole
    for left, right in pairwise(whole):
        if len(left) < 64:
            assert (left[-1].isalnum() and right[0] == " ") or (left[-1] == "\n" and right[0].isalnum())


@pytest.fixture(scope="module")
def monkeypatch_pieces():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "PIECE_CHARS", 16)
        patch.setattr(documents, "_LONGEST_PIECE_CHARS", 64)
        yield


def test_an_observer_hears_of_all_bytes_on_disk(tmp_path):
    text = "word " * 1_000_000
    for name, data in (("a.txt", text.encode()), ("b.txt.gz", gzip.compress(text.encode()))):
        split = split_of(write(tmp_path / name, data))
        heard = []
        list(read_documents(split.observed(heard.append)))
        assert sum(heard) == split.size_bytes
        assert split.observed(heard.append) == split


PEAK = """
import resource, sys
from headrace.preparation import read_documents, split_text_files
(split,) = split_text_files(sys.argv[1], 1, document=sys.argv[2])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
chars = sum(len(text) for text, ends in read_documents(split))
print(chars, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("suffix", "document"), [("", "file"), ("", "line"), (".gz", "file"), (".zst", "paragraph")])
def test_two_hundred_megabytes_stream_through_little_memory(tmp_path, suffix, document):
    path = tmp_path / f"big.txt{suffix}"
    line = ("some words to read, and no more than that " * 4 + "\n").encode()
    block = line * (4_000_000 // len(line))
    with {"": open, ".gz": gzip.open, ".zst": zstandard.open}[suffix](path, "wb") as file:
        for _ in range(50):
            file.write(block)
    found = subprocess.run(
        [sys.executable, "-c", PEAK, str(path), document], capture_output=True, text=True, check=True
    )
    chars, growth_mib = map(int, found.stdout.split())
    assert chars == pytest.approx(50 * len(block), rel=0.01)
    assert growth_mib < 60
