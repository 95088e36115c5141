"""Digests under Streaming's 17 names: hashlib's and xxhash's, in lower-case hexadecimal."""

import hashlib
import json
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import OptionError
from headrace.formats.digests import HASH_NAMES, Digests, checked_hashes, digests

GOLDEN = Path(__file__).parent.parent / "golden" / "mds"

OF_HASHLIB = {
    "blake2b": hashlib.blake2b,
    "blake2s": hashlib.blake2s,
    "md5": hashlib.md5,
    "sha1": hashlib.sha1,
    "sha224": hashlib.sha224,
    "sha256": hashlib.sha256,
    "sha384": hashlib.sha384,
    "sha3_224": hashlib.sha3_224,
    "sha3_256": hashlib.sha3_256,
    "sha3_384": hashlib.sha3_384,
    "sha3_512": hashlib.sha3_512,
    "sha512": hashlib.sha512,
}
OF_XXHASH = {
    "xxh128": xxhash.xxh128,
    "xxh32": xxhash.xxh32,
    "xxh3_128": xxhash.xxh3_128,
    "xxh3_64": xxhash.xxh3_64,
    "xxh64": xxhash.xxh64,
}
EXPECTED = {**OF_HASHLIB, **OF_XXHASH}


def test_the_names_are_streamings_seventeen_sorted():
    assert tuple(sorted(EXPECTED)) == HASH_NAMES
    assert len(HASH_NAMES) == 17


@pytest.mark.parametrize("name", HASH_NAMES)
@pytest.mark.parametrize("data", [b"", b"\0", b"abc" * 100_000])
def test_a_digest_is_the_librarys(name, data):
    assert digests([name], data) == {name: EXPECTED[name](data).hexdigest()}


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("hash*/dataset/index.json")), ids=lambda path: path.parts[-3])
def test_digests_are_those_that_streaming_recorded(path):
    for entry in json.loads(path.read_bytes())["shards"]:
        raw = (path.parent / entry["raw_data"]["basename"]).read_bytes()
        assert digests(entry["hashes"], raw) == entry["raw_data"]["hashes"]


def test_one_golden_dataset_has_every_hash():
    entries = json.loads((GOLDEN / "hashes_all" / "dataset" / "index.json").read_bytes())["shards"]
    assert [tuple(entry["hashes"]) for entry in entries] == [HASH_NAMES]


def test_compressed_files_have_the_digests_that_streaming_recorded():
    folder = GOLDEN / "zip_zstd" / "dataset"
    for entry in json.loads((folder / "index.json").read_bytes())["shards"]:
        packed = (folder / entry["zip_data"]["basename"]).read_bytes()
        assert digests(entry["hashes"], packed) == entry["zip_data"]["hashes"]


@given(pieces=st.lists(st.binary(max_size=5000), max_size=6))
def test_where_data_are_cut_makes_no_difference(pieces):
    taken = Digests(HASH_NAMES)
    for piece in pieces:
        taken.update(piece)
    assert taken.hex() == digests(HASH_NAMES, b"".join(pieces))


def test_digests_can_be_looked_at_before_the_end():
    taken = Digests(["sha1", "xxh64"])
    taken.update(b"ab")
    assert taken.hex() == digests(["sha1", "xxh64"], b"ab")
    taken.update(b"c")
    assert taken.hex() == taken.hex() == digests(["sha1", "xxh64"], b"abc")


@pytest.mark.parametrize("form", [bytes, bytearray, memoryview, lambda data: memoryview(b"-" + data + b"-")[1:-1]])
def test_bytes_bytearrays_and_views_are_taken(form):
    assert digests(HASH_NAMES, form(b"abc")) == digests(HASH_NAMES, b"abc")


def test_no_names_give_no_digests():
    assert digests([], b"abc") == Digests(()).hex() == {}


def test_digests_come_in_the_order_of_their_names():
    assert list(digests(reversed(HASH_NAMES), b"")) == list(HASH_NAMES)


# Names


@pytest.mark.parametrize(
    ("given", "checked"),
    [
        (None, ()),
        ([], ()),
        (["xxh64", "sha1"], ("sha1", "xxh64")),
        (("sha1", "sha1"), ("sha1",)),
        ({"xxh3_64": 1, "md5": 2}, ("md5", "xxh3_64")),
        ((name for name in reversed(HASH_NAMES)), HASH_NAMES),
    ],
)
def test_checked_hashes_are_sorted_and_each_there_once(given, checked):
    assert checked_hashes(given) == checked


@pytest.mark.parametrize(
    "wrong", ["sha-1", "SHA1", "", "shake_128", "sha512_256", "crc32", "xxh3", 5, None, b"sha1", []]
)
def test_an_unknown_name_is_refused_with_those_that_are_valid(wrong):
    for refuse in (checked_hashes, Digests, lambda names: digests(names, b"")):
        with pytest.raises(OptionError) as caught:
            refuse(["sha1", wrong])
        assert str(caught.value) == (
            f"hashes={wrong!r} is not valid; expected a list of names, each one of {', '.join(HASH_NAMES)}"
        )


@pytest.mark.parametrize("wrong", ["sha1", "xxh64,sha1", "", b"sha1", 5, True, object])
def test_a_single_name_and_what_is_no_list_are_refused(wrong):
    with pytest.raises(OptionError, match=r"^hashes=.* is not valid; expected a list of names, each one of blake2b, "):
        checked_hashes(wrong)
