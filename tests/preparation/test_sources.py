import gzip
import os
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import InputError
from headrace.preparation import read_documents, split_text_files


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def read_back(splits):
    """The bytes of all pieces, in order."""
    parts = []
    for split in splits:
        for piece in split.pieces:
            parts.append(Path(piece.path).read_bytes()[piece.start : piece.stop])
    return b"".join(parts)


def lines_of(splits):
    return [[text for text, ends in read_documents(split)] for split in splits]


@given(
    files=st.lists(st.lists(st.text("ab\n ", max_size=12), max_size=8), min_size=1, max_size=4),
    num_splits=st.integers(1, 9),
    document=st.sampled_from(["line", "paragraph", "file"]),
)
@settings(max_examples=150, deadline=None)
def test_the_splits_one_after_the_other_are_the_input_and_documents_do_not_depend_on_their_number(
    tmp_path_factory, files, num_splits, document
):
    folder = tmp_path_factory.mktemp("in")
    paths = [write(folder / f"{i}.txt", "\n".join(lines)) for i, lines in enumerate(files)]
    whole = b"".join(path.read_bytes() for path in paths)
    if not whole:
        with pytest.raises(InputError, match="0 bytes"):
            split_text_files(paths, num_splits, document=document)
        return
    splits = split_text_files(paths, num_splits, document=document)
    assert len(splits) == num_splits
    assert read_back(splits) == whole
    once = [d for split in split_text_files(paths, 1, document=document) for d in read_documents(split)]
    assert [d for split in splits for d in read_documents(split)] == once


@given(
    st.lists(st.text("ab", max_size=30), min_size=1, max_size=40), st.integers(1, 12), st.sampled_from(["\n", "\r\n"])
)
@settings(max_examples=150, deadline=None)
def test_every_line_is_in_exactly_one_split_and_splits_are_balanced(tmp_path_factory, lines, num_splits, newline):
    path = write(tmp_path_factory.mktemp("in") / "a.txt", newline.join([*lines, "end"]))
    splits = split_text_files(path, num_splits, document="line")
    assert [text for group in lines_of(splits) for text in group] == [line for line in [*lines, "end"] if line]
    longest = max(map(len, lines)) + 3
    assert all(split.size_bytes <= path.stat().st_size / num_splits + longest for split in splits)


def test_paragraphs_are_never_cut(tmp_path):
    text = "\n\n\nOne.\nStill one.\n \t\nTwo.\n\n\nThree\nmore\r\n\r\nFour"
    path = write(tmp_path / "a.txt", text)
    expected = ["One.\nStill one.", "Two.", "Three\nmore", "Four"]
    for num_splits in range(1, 60):
        splits = split_text_files(path, num_splits, document="paragraph")
        assert [text for group in lines_of(splits) for text in group] == expected


def test_compressed_files_are_whole_units_and_read_like_plain_ones(tmp_path):
    lines = [f'{{"text": "document {i}", "id": {i}}}\n' for i in range(1000)]
    data = "".join(lines).encode()
    write(tmp_path / "a.jsonl", data)
    write(tmp_path / "b.jsonl.gz", gzip.compress(data[: len(data) // 2]) + gzip.compress(data[len(data) // 2 :]))
    frames = [zstandard.ZstdCompressor().compress(part) for part in (data[:1000], b"", data[1000:])]
    write(
        tmp_path / "c.jsonl.zst", b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc".join([b"", *frames])
    )  # with skippable frames
    expected = [f"document {i}" for i in range(1000)]
    for name in ("a.jsonl", "b.jsonl.gz", "c.jsonl.zst"):
        splits = split_text_files(tmp_path / name, 3)
        assert [text for group in lines_of(splits) for text in group] == expected
    splits = split_text_files([tmp_path / "b.jsonl.gz", tmp_path / "c.jsonl.zst"], 2)
    assert [[Path(piece.path).name for piece in split.pieces] for split in splits] == [["b.jsonl.gz"], ["c.jsonl.zst"]]


def test_a_file_document_is_never_in_two_splits(tmp_path):
    for i in range(7):
        write(tmp_path / f"{i}.txt", "x\n" * (10 * i + 1))
    splits = split_text_files(tmp_path, 3)
    assert [Path(piece.path).name for split in splits for piece in split.pieces] == [f"{i}.txt" for i in range(7)]
    assert all(piece.start == 0 and piece.stop == piece.size_bytes for split in splits for piece in split.pieces)


def test_fewer_records_than_splits_give_empty_splits_not_lost_or_doubled_records(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"text": "one"}\n{"text": "two"}\n')
    assert sorted(lines_of(split_text_files(path, 6))) == [[], [], [], [], ["one"], ["two"]]


def test_a_directory_stands_for_the_known_files_below_it_in_sorted_order(tmp_path):
    for name in ("b.txt", "a/2.txt", "a/1.jsonl", "a/x.png", ".hidden.txt", "c.txt.gz"):
        write(tmp_path / name, gzip.compress(b"x") if name.endswith("gz") else "x")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "z.txt").symlink_to(tmp_path / "b.txt")
    (split,) = split_text_files(tmp_path, 1)
    names = [os.path.relpath(piece.path, tmp_path) for piece in split.pieces]
    assert names == ["a/1.jsonl", "a/2.txt", "b.txt", "c.txt.gz", "z.txt"]


def test_paths_may_have_any_form(tmp_path, monkeypatch):
    names = ["a b#%20.txt", "é.txt", "é.txt", "n" * 190 + ".txt"]
    for name in names:
        write(tmp_path / "in" / name, "x")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    expected = split_text_files(tmp_path / "in", 2)
    for given_path in ("in", "in/", "in//", "~/in", Path("in"), str(tmp_path / "in")):
        assert split_text_files(given_path, 2) == expected
    monkeypatch.chdir("/")
    assert [text for group in lines_of(expected) for text in group] == ["x"] * len(os.listdir(tmp_path / "in"))


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (["missing.txt"], "missing.txt: no such file"),
        (["a.bin"], r"\.txt, \.jsonl"),
        (["empty"], "holds no file of a known kind"),
        ([], "no path was given"),
        (["e.txt"], "1 input files: 0 bytes"),
        (["a.txt", "./a.txt"], "given twice"),
    ],
)
def test_unusable_inputs_are_refused_by_name(tmp_path, monkeypatch, paths, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for name, text in (("a.bin", "x"), ("e.txt", ""), ("a.txt", "x")):
        write(tmp_path / name, text)
    with pytest.raises(InputError, match=message):
        split_text_files(paths, 2)


def test_unknown_document_and_zero_splits_are_refused(tmp_path):
    path = write(tmp_path / "a.txt", "x")
    with pytest.raises(InputError, match="file, line, paragraph"):
        split_text_files(path, 1, document="page")
    with pytest.raises(InputError, match="at least 1"):
        split_text_files(path, 0)


def test_the_default_number_of_splits_depends_on_the_bytes_alone(tmp_path):
    def number(num_bytes, name):
        path = tmp_path / name
        with path.open("wb") as file:
            file.truncate(num_bytes)
        return len(split_text_files(path, document="line"))

    mib = 1 << 20
    assert number(1, "a.txt") == 1
    assert number(4 * mib + 1, "b.txt") == 2
    assert len(split_text_files([tmp_path / "a.txt", tmp_path / "b.txt"])) == 2  # two documents, never cut


def test_cutting_a_sparse_ten_gigabyte_file_reads_only_around_the_borders(tmp_path):
    path = tmp_path / "big.jsonl"
    line = b'{"text": "x"}\n'
    with path.open("wb") as file:
        for border in range(1, 8):
            file.seek(border * 10_000_000_000 // 8 - 5)
            file.write(b"\n" + line)
        file.truncate(10_000_000_000)
    splits = split_text_files(path, 8)
    starts = [split.pieces[0].start for split in splits]
    assert starts == [0, *(border * 10_000_000_000 // 8 - 4 + len(line) for border in range(1, 8))]


def test_a_line_far_longer_than_a_split_goes_to_one_of_them(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"text": "%s"}\n{"text": "b"}\n' % ("a" * 300_000))
    groups = lines_of(split_text_files(path, 10))
    assert [[len(text) for text in group] for group in groups if group] in ([[300_000], [1]], [[300_000, 1]])
