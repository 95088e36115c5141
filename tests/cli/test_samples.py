"""inspect, verify and publish on datasets of samples: every format, whoever wrote them, whole or not."""

import contextlib
import json
import pickle
import sys
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from cli.commands import headrace_here as headrace
from cli.commands import one_error_line
from headrace import (
    CSVWriter,
    JSONWriter,
    MDSWriter,
    SampleDataset,
    SampleStorage,
    TSVWriter,
    XSVWriter,
    merge_index,
    prepare,
)
from headrace.errors import PreparationError

GOLDEN = Path(__file__).parents[1] / "golden" / "mds"
INDEXES = sorted(GOLDEN.rglob("index.json"))
COLUMNS = {"id": "int", "text": "str"}
WRITERS = {"mds": MDSWriter, "json": JSONWriter, "csv": CSVWriter, "tsv": TSVWriter, "xsv": XSVWriter}


def write(out, numbers=range(10), name="mds", **options):
    """Shards of four samples each."""
    options |= {"separator": "; "} if name == "xsv" else {}
    with WRITERS[name](columns=COLUMNS, out=out, **options) as writer:
        for count, number in enumerate(numbers, 1):
            writer.write({"id": number, "text": f"sample {number}"})
            if count % 4 == 0:
                writer.flush_shard()
    return out


def write_one(out, columns, sample, **options):
    with MDSWriter(columns=columns, out=out, **options) as writer:
        writer.write(sample)
    return out


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def inspected(directory):
    """What inspect tells programs, and people."""
    told, shown = headrace("inspect", directory, "--json"), headrace("inspect", directory)
    assert (told.returncode, told.stderr, shown.returncode, shown.stderr) == (0, "", 0, "")
    return json.loads(told.stdout), shown.stdout


def fact(shown, name):
    (line,) = [line for line in shown.splitlines() if line[:14].rstrip() == name]
    return line[14:]


def first_of(shown, column):
    (line,) = [line for line in shown.splitlines() if line.split("  ")[0] == column]
    return line.split("  ")[-1].strip()


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("compression", [None, "zstd:7"])
@pytest.mark.parametrize("hashes", [["md5", "xxh3_64"], []])
def test_inspect_tells_format_columns_compression_digests_counts_and_the_first_sample(
    name, compression, hashes, tmp_path
):
    write(tmp_path, name=name, compression=compression, hashes=hashes)
    told, shown = inspected(tmp_path)
    stored = {
        file: path.stat().st_size for file in files_of(tmp_path) if (path := tmp_path / file).name != "index.json"
    }
    assert (told["kind"], told["format"], told["columns"]) == ("samples", name, COLUMNS)
    assert (told["compression"], told["hashes"], told["unchecked"]) == (
        compression,
        hashes,
        [] if hashes else ["digests"],
    )
    assert (told["total_length"], told["num_shards"], told["published"]) == (10, 3, True)
    assert told["total_bytes"] == sum(stored.values())
    assert told["fingerprint"] == SampleDataset(tmp_path).fingerprint
    assert told["first"] == {"id": 0, "text": "sample 0"}
    assert [shard["length"] for shard in told["shards"]] == [4, 4, 2]
    files = [file for shard in told["shards"] for file in shard["files"]]
    assert {file["name"]: file["bytes"] for file in files} == stored
    assert all(sorted(file["hashes"]) == hashes for file in files)
    assert all((file["raw_bytes"] == file["bytes"]) == (compression is None) for file in files)

    facts = ("kind", "format", "compression", "hashes", "samples", "shards", "published")
    assert [fact(shown, told) for told in facts] == [
        *("samples", name, compression or "none", ", ".join(hashes) or "none", "10", "3", "yes")
    ]
    assert ("decompressed" in fact(shown, "size")) == (compression is not None)
    assert ("not checked" in shown) == (not hashes)
    assert (first_of(shown, "id"), first_of(shown, "text")) == ("0", "'sample 0'")
    for file in files:
        assert f"  {file['name']}\n" in shown
        for digest in list(file["hashes"].values())[:1]:
            assert digest[:31] in shown


@pytest.mark.parametrize("index", INDEXES, ids=lambda path: str(path.parent.relative_to(GOLDEN)))
def test_inspect_and_verify_know_every_dataset_that_streaming_wrote(index):
    directory = index.parent
    told, shown = inspected(directory)
    shards = json.loads(index.read_bytes())["shards"]
    assert told["total_length"] == sum(shard["samples"] for shard in shards)
    assert told["num_shards"] == len(told["shards"]) == len(shards)
    assert fact(shown, "kind") == "samples"
    assert (told["first"] is None) == (told["total_length"] == 0)
    assert all(line.isprintable() for line in shown.splitlines())
    good = headrace("verify", directory)
    assert (good.returncode, good.stderr) == (0, "")
    assert f"{len(shards)} shards" in good.stdout
    assert ("there is no record to check digests" in good.stdout) == any(not shard["hashes"] for shard in shards)


def test_only_ten_shards_are_shown_to_people_and_all_to_programs(tmp_path):
    write(tmp_path, range(48))
    told, shown = inspected(tmp_path)
    assert len(told["shards"]) == 12
    assert "shard.00009.mds" in shown
    assert "shard.00010.mds" not in shown
    assert "and 2 more shards; --json shows them all" in shown


def test_long_and_odd_values_are_shortened_to_one_line_each(tmp_path):
    columns = {
        **{"long": "str", "odd": "str", "data": "bytes", "tokens": "ndarray:uint16", "grid": "ndarray:float32:2,3"},
        **{"deep": "json", "huge": "str_int", "exact": "str_decimal", "half": "float16", "small": "uint8"},
        "name\n\x1b[2J": "int",
    }
    sample = {
        **{"long": "x" * 1000, "odd": "two\nlines \x1b[2J", "data": bytes(5000)},
        **{"tokens": np.arange(2048, dtype="u2"), "grid": np.ones((2, 3), "f4")},
        **{"deep": {"a": [*range(50)], "b": {"c": {"d": {"e": {"f": 1}}}}}, "huge": 10**40, "exact": Decimal("1.50")},
        **{"half": np.float16(0.1), "small": 7, "name\n\x1b[2J": 1},
    }
    told, shown = inspected(write_one(tmp_path, columns, sample))
    first = told["first"]
    assert first["long"] == "x" * 80 + "…"
    assert first["odd"] == sample["odd"]
    assert first["data"].endswith(" and 4,920 more bytes")
    assert first["tokens"] == "2048 uint16: " + ", ".join(map(str, range(16))) + ", …"
    assert first["grid"] == "2 x 3 float32: 1.0, 1.0, 1.0, 1.0, 1.0, 1.0"
    assert first["deep"] == {"a": [*range(16), "… 34 more"], "b": {"c": {"d": {"e": "…"}}}}
    assert (first["huge"], first["exact"], first["small"]) == (str(10**40), "1.50", 7)
    assert first["half"] == pytest.approx(0.1, abs=1e-4)
    assert all(line.isprintable() for line in shown.splitlines())
    assert first_of(shown, "odd") == repr(sample["odd"])
    assert first_of(shown, r"name\n\x1b[2J") == "1"


def test_an_integer_of_thousands_of_digits_is_told_by_its_size(tmp_path):
    number = 10**4000  # Python itself prints no more than 4300 digits
    told, _ = inspected(write_one(tmp_path, {"n": "str_int"}, {"n": b"%d" % number}))
    assert told["first"]["n"] == f"an integer of {number.bit_length():,} bits"


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


class Rot13:
    """An encoding of the writer's own."""

    name = "rot13"
    size = None

    def encode(self, value):
        return value.encode("utf-8").translate(bytes.maketrans(b"helo", b"uryb"))

    def decode(self, data):
        raise AssertionError("nobody can know this one")


class Twice:
    """One whose values have a fixed size."""

    name = "twice"
    size = 4

    def encode(self, value):
        return value * 2

    def decode(self, data):
        raise AssertionError("nobody can know this one")


def test_pickles_and_encodings_of_the_writer_s_own_are_shown_as_bytes_and_nothing_runs(tmp_path):
    bomb = Bomb(str(tmp_path / "exploded"))
    columns = {"p": "pkl", "own": Rot13(), "id": "int", "fixed": Twice()}
    sample = {"p": bomb, "own": "hello", "id": 3, "fixed": b"ab"}
    out = write_one(tmp_path / "out", columns, sample, allow_unsafe_types=True)
    told, shown = inspected(out)
    assert told["columns"] == {"fixed": "twice", "id": "int", "own": "rot13", "p": "pkl"}
    assert told["first"]["id"] == 3
    assert told["first"]["own"] == repr(b"uryyb")
    assert told["first"]["fixed"] == repr(b"abab")
    assert told["first"]["p"].startswith(repr(pickle.dumps(bomb, 4)[:40])[:-1])
    assert first_of(shown, "own") == "b'uryyb'"
    for command in ("verify", "publish"):
        assert headrace(command, out).returncode == 0
    assert not (tmp_path / "exploded").exists()


def test_images_are_described_without_the_package_that_decodes_them(tmp_path, monkeypatch):
    image = pytest.importorskip("PIL.Image").new("RGB", (64, 48))
    columns = {"photo": "jpeg", "icon": "png", "raw": "pil", "many": "list[png]", "none": "list[jpeg]"}
    write_one(tmp_path, columns, {"photo": image, "icon": image, "raw": image, "many": [image] * 6, "none": []})
    for name in [name for name in sys.modules if name.split(".")[0] == "PIL"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "PIL", None)
    told, shown = inspected(tmp_path)
    first = told["first"]
    assert first["photo"].startswith("JPEG 64x48, ")
    assert first["icon"].startswith("PNG 64x48, ")
    assert first["raw"] == f"pixels 64x48 RGB, {12 + 3 + 64 * 48 * 3:,} bytes"
    assert first["many"].startswith("6 images: PNG 64x48, ")
    assert first["many"].endswith("; …")
    assert first["many"].count("PNG") == 4
    assert first["none"] == "0 images"
    assert first_of(shown, "photo") == first["photo"]
    assert headrace("verify", tmp_path).returncode == 0


def test_bytes_in_an_image_column_that_are_no_image_are_shown_as_bytes(tmp_path):
    image = pytest.importorskip("PIL.Image").new("RGB", (64, 48))
    write_one(tmp_path, {"photo": "png"}, {"photo": image})
    path = tmp_path / "shard.00000.mds"
    path.write_bytes(path.read_bytes().replace(b"\x89PNG", b"nope"))
    assert inspected(tmp_path)[0]["first"]["photo"].startswith("b'nope")


def test_a_merged_root_a_part_of_it_and_a_split_are_datasets_each(tmp_path):
    write(tmp_path / "root" / "part-2", range(4), hashes=["sha1"])
    write(tmp_path / "root" / "part-10", range(4, 10), compression="gz")
    merge_index(tmp_path / "root")
    write(tmp_path / "train")
    told, shown = inspected(tmp_path / "root")
    assert (told["total_length"], told["unchecked"]) == (10, ["digests of 2 of 3 shards"])
    assert [shard["files"][0]["name"] for shard in told["shards"]] == [
        *("part-2/shard.00000.mds", "part-10/shard.00000.mds.gz", "part-10/shard.00001.mds.gz")
    ]
    assert (fact(shown, "compression"), fact(shown, "hashes")) == ("none, gz", "sha1, none")
    good = headrace("verify", tmp_path / "root")
    assert good.stdout.endswith("no damage found; there is no record to check digests of 2 of 3 shards\n")
    assert inspected(tmp_path / "root" / "part-10")[0]["total_length"] == 6
    assert inspected(tmp_path / "train")[0]["total_length"] == 10


def test_no_samples_at_all_are_a_dataset(tmp_path):
    write(tmp_path, [])
    told, shown = inspected(tmp_path)
    assert (told["total_length"], told["num_shards"], told["first"]) == (0, 0, None)
    assert fact(shown, "samples") == "0"
    assert headrace("verify", tmp_path).stdout.endswith("0 shards, 0 bytes, no damage found\n")


def an_unfinished_dataset(directory):
    with contextlib.suppress(KeyboardInterrupt), MDSWriter(columns=COLUMNS, out=directory) as writer:
        writer.write({"id": 0, "text": ""})
        writer.flush_shard()
        raise KeyboardInterrupt


def an_unfinished_preparation(directory):
    def records(split):
        yield {"id": 1 // split, "text": ""}

    with contextlib.suppress(PreparationError):
        prepare([1, 0], records, SampleStorage(directory, COLUMNS), workers=1, progress=False)


@pytest.mark.parametrize("unfinished", [an_unfinished_dataset, an_unfinished_preparation])
def test_what_is_unfinished_is_refused_with_what_to_do(unfinished, tmp_path):
    unfinished(tmp_path)
    before = files_of(tmp_path)
    for command in ("inspect", "verify", "publish"):
        one_error_line(headrace(command, tmp_path), "is unfinished", "no index.json yet", "run the job again", "resume")
    assert files_of(tmp_path) == before


def test_a_root_that_is_not_merged_yet_is_refused_by_the_names_of_its_parts(tmp_path):
    for part in range(4):
        write(tmp_path / str(part))
    before = files_of(tmp_path)
    for command in ("inspect", "verify", "publish"):
        done = headrace(command, tmp_path)
        one_error_line(done, "no index.json", "4 of its folders have an index.json (0, 1, 2, ...)", "merge_index()")
    assert files_of(tmp_path) == before


def test_what_is_no_directory_is_said_to_be_none(tmp_path):
    write(tmp_path / "out")
    for command in ("inspect", "verify", "publish"):
        one_error_line(headrace(command, tmp_path / "out" / "index.json"), "is a file; name the dataset's directory")
        one_error_line(headrace(command, tmp_path / "nowhere"), "nowhere: there is no such directory")


@pytest.mark.parametrize("raw", [b"", b"{", b'{"version": 3, "shards": []}', b'{"version": 2, "shards": [{}]}'])
def test_a_damaged_index_is_one_error_line_that_names_it(raw, tmp_path):
    (tmp_path / "index.json").write_bytes(raw)
    for command in ("inspect", "verify", "publish"):
        one_error_line(headrace(command, tmp_path), tmp_path / "index.json")


def damaged(path, how):
    data = bytearray(path.read_bytes())
    match how:
        case "flipped":
            data[-1] ^= 1
            path.write_bytes(data)
        case "longer":
            path.write_bytes(data + b"x")
        case "shorter":
            path.write_bytes(data[:-1])
        case _:
            path.unlink()


@pytest.mark.parametrize("how", ["flipped", "longer", "shorter", "missing"])
@pytest.mark.parametrize("compression", [None, "br", "bz2", "gz", "snappy", "zstd"])
@pytest.mark.parametrize("name", WRITERS)
def test_verify_names_exactly_the_damaged_files_and_the_samples_of_their_shards(name, compression, how, tmp_path):
    write(tmp_path, name=name, compression=compression, hashes=["xxh64"])
    files = sorted(file for file in files_of(tmp_path) if file != "index.json")
    assert headrace("verify", tmp_path).returncode == 0
    victims = [file for file in files if file.startswith(("shard.00001", "shard.00002"))][::2]
    for victim in victims:
        damaged(tmp_path / victim, how)
    bad = headrace("verify", tmp_path)
    assert bad.returncode == 1
    lines = bad.stdout.splitlines()
    assert [line.partition(": ")[0] for line in lines] == victims
    ranges = {"shard.00001": "shard 1, samples 4 to 8", "shard.00002": "shard 2, samples 8 to 10"}
    assert all(line.endswith(f"({ranges[line[:11]]}, exclusive)") for line in lines)
    assert bad.stderr == f"{len(victims)} of {len(files)} files are damaged\n"


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("name", WRITERS)
def test_without_digests_verify_finds_what_does_not_fit_and_names_a_file_that_is_there(name, compression, tmp_path):
    write(tmp_path, name=name, compression=compression)
    suffix = f".{compression}" if compression else ""
    victim = tmp_path / f"shard.00001.{name}{suffix}"
    data = bytearray(victim.read_bytes())
    data[-8:-3] = b"\xff" * 5  # no UTF-8
    victim.write_bytes(data)
    bad = headrace("verify", tmp_path)
    assert bad.returncode == 1
    (line,) = bad.stdout.splitlines()
    assert line.startswith(f"{victim.name}: ")
    assert line.endswith("(shard 1, samples 4 to 8, exclusive)")


def test_damage_in_parts_of_a_merged_root_is_told_with_numbers_of_the_whole(tmp_path):
    for part in range(3):
        write(tmp_path / f"part-{part}", range(part * 10, part * 10 + 10), hashes=["sha1"])
    merge_index(tmp_path)
    damaged(tmp_path / "part-1" / "shard.00002.mds", "flipped")
    damaged(tmp_path / "part-2" / "shard.00000.mds", "missing")
    lines = headrace("verify", tmp_path).stdout.splitlines()
    assert lines[0].startswith("part-1/shard.00002.mds: has sha1 ")
    assert lines[0].endswith("its content was changed (shard 5, samples 18 to 20, exclusive)")
    assert lines[1:] == ["part-2/shard.00000.mds: is missing (shard 6, samples 20 to 24, exclusive)"]


def test_of_two_forms_of_a_shard_the_damaged_one_is_named(tmp_path):
    write(tmp_path / "raw", hashes=["sha1"])
    write(tmp_path / "out", hashes=["sha1"], compression="zstd")
    (tmp_path / "out" / "shard.00000.mds").write_bytes((tmp_path / "raw" / "shard.00000.mds").read_bytes())
    # A shard's header names its compression, so these are other bytes than those that were compressed.
    assert headrace("verify", tmp_path / "out").stdout.startswith("shard.00000.mds: ")


def test_inspect_tells_what_the_index_says_where_the_first_sample_cannot_be_read(tmp_path):
    write(tmp_path, hashes=["sha1"])
    (tmp_path / "shard.00000.mds").unlink()
    told, shown = inspected(tmp_path)
    assert (told["total_length"], told["first"], told["first_problem"]) == (10, None, "shard.00000.mds is missing")
    assert "the first sample cannot be read: shard.00000.mds is missing; `headrace verify` tells more" in shown


@pytest.mark.parametrize("name", WRITERS)
def test_publish_tells_what_is_published_already_and_changes_nothing(name, tmp_path):
    write(tmp_path, name=name)
    before = files_of(tmp_path)
    first = headrace("publish", tmp_path)
    assert (first.returncode, first.stderr) == (0, "")
    assert "published 3 shards, 10 samples, " in first.stdout
    assert SampleDataset(tmp_path).fingerprint in first.stdout
    assert headrace("publish", tmp_path).stdout == first.stdout
    assert files_of(tmp_path) == before
