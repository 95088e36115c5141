"""What a dataset is, as pure data: written the same way every time, read strictly."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ManifestError, ManifestVersionError
from headrace.manifest import (
    VERSION,
    FileRecord,
    Manifest,
    Plan,
    Receipt,
    ShardRecord,
    dtype_from_json,
    dtype_to_json,
    json_object,
)

DTYPES = [
    np.dtype("<u2"),
    np.dtype("u1"),
    np.dtype("<i8"),
    np.dtype("S5"),
    np.dtype([("tokens", "<u2")]),
    np.dtype([("tokens", "<u2"), ("vec", "<f2", (3,))]),
    np.dtype([("a", "u1"), ("b", "<i4")], align=True),
    np.dtype([("a", "u1"), ("in", [("x", "<f4"), ("y", "<f4", (2, 2))])]),
    np.dtype([("naïve", "<i4")]),
    np.dtype({"names": ["a"], "formats": ["<i2"], "itemsize": 16}),
]


def shard(number, length=3):
    return ShardRecord(length, (FileRecord(f"{number:07d}.in_band.bin", 2 * length, "0" * 32),))


def receipt(**changes):
    record = shard(4)
    fields = {"version": VERSION, "kind": "stream", "dtype": "<u2", "shard": 4, "length": 3, "files": record.files}
    return Receipt(**{**fields, "attempt": "a", "generation": 0, **changes})


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_element_type_survives_json(dtype):
    described = msgspec.json.decode(msgspec.json.encode(dtype_to_json(dtype)))
    again = dtype_from_json(described, "here")
    assert again == dtype
    assert again.itemsize == dtype.itemsize
    assert dtype_to_json(again) == described


@pytest.mark.parametrize(
    "dtype",
    [
        np.dtype("O"),
        np.dtype([("a", "O")]),
        np.dtype("S0"),
        np.dtype({"names": ["a", "b"], "formats": ["<i4", "<i2"], "offsets": [0, 2]}),
        np.dtype({"names": ["a", "b"], "formats": ["<i4", "<i4"], "offsets": [4, 0]}),
        np.dtype({"a": ("<i4", 0, "title")}),
    ],
    ids=str,
)
def test_an_element_type_that_cannot_be_described_is_refused(dtype):
    with pytest.raises(ValueError, match="element type"):
        dtype_to_json(dtype)


@pytest.mark.parametrize(
    "described",
    [
        None, 7, "", "nonsense", "|O", [], [["a"]], [["a", "|O"]], [["a", "<i4"], ["a", "<i4"]], [[1, "<i4"]],
        [["a", "<i4", [2], 3]], [["a", "<i4", ["x"]]], [["a", "<i4", [-1]]], {"a": "<i4"}, "S0",
        [["a", "<i4", [2**62]]],
    ],
    ids=str,
)  # fmt: skip
def test_what_describes_no_element_type_is_refused_with_the_place(described):
    with pytest.raises(ManifestError, match=r"^here: dtype"):
        dtype_from_json(described, "here")


def test_a_manifest_survives_and_says_the_same_of_the_same_data():
    manifest = Manifest.of("stream", "<u2", [shard(0), shard(1, 0)], {"by": "me"})
    assert (manifest.num_shards, manifest.total_length, manifest.total_bytes) == (2, 3, 6)
    raw = manifest.to_json()
    assert Manifest.from_json(raw, "here") == manifest
    assert Manifest.of("stream", "<u2", (shard(0), shard(1, 0)), {"by": "me"}).to_json() == raw
    assert Manifest.of("stream", "<u2", [shard(0), shard(1, 0)]).fingerprint == manifest.fingerprint


@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=5), st.integers(0, 5), st.binary(min_size=1, max_size=4))
def test_a_changed_manifest_is_refused_or_is_equal(lengths, at, junk):
    manifest = Manifest.of("stream", "<u2", [shard(number, length) for number, length in enumerate(lengths)])
    raw = manifest.to_json()
    place = at * len(raw) // 6
    changed = raw[:place] + junk + raw[place + len(junk) :]
    try:
        again = Manifest.from_json(changed, "here")
    except ManifestError:
        return
    # Blanks may change, and so may metadata, which is the user's and outside the fingerprint.
    assert msgspec.structs.replace(again, metadata={}) == manifest


@pytest.mark.parametrize(
    "other",
    [
        Manifest.of("document", "<u2", [shard(0)]),
        Manifest.of("stream", "<i2", [shard(0)]),
        Manifest.of("stream", "<u2", [shard(0, 4)]),
        Manifest.of("stream", "<u2", [shard(0), shard(1)]),
        Manifest.of("stream", "<u2", [ShardRecord(3, (FileRecord("0000000.in_band.bin", 6, "1" * 32),))]),
    ],
)
def test_the_fingerprint_tells_any_difference_in_the_data(other):
    assert other.fingerprint != Manifest.of("stream", "<u2", [shard(0)]).fingerprint


def test_receipts_and_plans_survive():
    assert Receipt.from_json(receipt(task="t").to_json(), "here") == receipt(task="t")
    assert receipt().record == shard(4)
    plan = Plan(VERSION, ("a", "b"))
    assert Plan.from_json(plan.to_json(), "here") == plan


@pytest.mark.parametrize(
    "changes",
    [
        {"shard": 5},
        {"shard": -1},
        {"length": -1},
        {"length": 1 << 62},
        {"files": ()},
        {"generation": -1},
        {"files": (FileRecord("0000004.in_band.bin", -1, ""),)},
        {"files": (FileRecord("0000004./x", 1, ""),)},
        {"files": (FileRecord("0000004.\0", 1, ""),)},
    ],
    ids=str,
)
def test_a_receipt_that_makes_no_sense_is_refused(changes):
    with pytest.raises(ManifestError, match=r"^here: "):
        Receipt.from_json(receipt(**changes).to_json(), "here")


@pytest.mark.parametrize("kind", [Manifest, Receipt, Plan])
@pytest.mark.parametrize("version", [None, 0, 2, "1", True, 1.5])
def test_every_record_refuses_another_version_and_names_both(kind, version):
    with pytest.raises(ManifestVersionError, match="reads version 1") as caught:
        kind.from_json(msgspec.json.encode({"version": version}), "here")
    assert caught.value.found == version
    assert caught.value.known == (1,)


@pytest.mark.parametrize("kind", [Manifest, Receipt, Plan])
@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"version": 1}', b'{"version":1,"x":2}'])
def test_every_record_refuses_what_is_none(kind, raw):
    with pytest.raises(ManifestError, match=r"^here: "):
        kind.from_json(raw, "here")


def test_metadata_becomes_what_json_gives_back():
    assert json_object({"a": (1, 2), "b": {"c": None}, 3: "x"}) == {"a": [1, 2], "b": {"c": None}, "3": "x"}
    for bad in ({"a": object()}, {"a": np.zeros(2)}, {(1, 2): 3}):
        with pytest.raises(ValueError, match="metadata must be JSON"):
            json_object(bad)
