"""Shards of samples that are not what was written: never another sample, always an error that says where.

Five shards of ten samples; the bad one is shard 3. Its samples raise, and all others are read.
"""

import os
import shutil
from hashlib import sha1

import numpy as np
import pytest

from headrace.datasets.samples.dataset import SampleDataset
from headrace.errors import CorruptShardError, DatasetChangedError, OptionError
from headrace.testing import FaultStore, Flip, Rule
from sample_scenes import PLACES, in_memory, index_of, put_index, reader, sample_of, samples, write

BAD = range(30, 40)
CASES = {  # name -> format, compression, files of a shard
    "mds": ("mds", None, ["mds"]),
    "mds, zstd": ("mds", "zstd", ["mds.zstd"]),
    "json": ("json", None, ["json", "json.meta"]),
    "json, gz": ("json", "gz", ["json.gz", "json.meta.gz"]),
    "csv": ("csv", None, ["csv", "csv.meta"]),
    "xsv, br": ("xsv", "br:1", ["xsv.br", "xsv.meta.br"]),
}
EACH_FILE = [pytest.param(case, suffix, id=f"{case}: {suffix}") for case in CASES for suffix in CASES[case][2]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Of each case the folder of a whole dataset, made once; copy it before you damage it."""
    folders = {}

    def of(case, **options):
        key = f"{case} {options}"
        if key not in folders:
            shard_format, compression, _ = CASES[case]
            folders[key] = tmp_path_factory.mktemp("whole") / "data"
            write(folders[key], shard_format=shard_format, compression=compression, **options)
        return folders[key]

    return of


@pytest.fixture
def copied(whole, tmp_path):
    """A copy of the dataset, and the path of one file of its shard 3."""

    def of(case, suffix=None, **options):
        shutil.copytree(whole(case, **options), tmp_path / "data")
        return tmp_path / "data", tmp_path / "data" / f"shard.00003.{suffix or CASES[case][2][0]}"

    return of


def garbage(path):
    with path.open("ab") as file:
        file.write(b"\xab" * 64)


DAMAGES = {
    "cut by 1 byte": lambda path: os.truncate(path, path.stat().st_size - 1),
    "cut by a page": lambda path: os.truncate(path, max(0, path.stat().st_size - 4096)),
    "cut by half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "of 0 bytes": lambda path: os.truncate(path, 0),
    "with 64 bytes behind it": garbage,
    "missing": os.remove,
}


def refuses(read, *words):
    with pytest.raises(CorruptShardError, match="shard 3 ") as caught:
        read()
    for word in words:
        assert word in str(caught.value)
    assert (caught.value.shard, caught.value.elements[0]) == (3, 30)


def check(dataset, *words, bad=BAD, good_after=40):
    """Each bad sample is refused, alone and among others; the samples of all other shards are read."""
    total = len(dataset)
    for number in bad:
        refuses(lambda number=number: dataset[number], *words)
        refuses(lambda number=number: dataset[number - total], *words)
        refuses(lambda number=number: dataset.__getitems__([0, number, 1]), *words)
    refuses(lambda: dataset[:], *words)
    assert dataset[: bad[0]] == samples(30)
    assert dataset[bad[-1] + 1 :] == samples(10, good_after)
    for number in (*range(30), *range(bad[-1] + 1, total)):
        assert dataset[number] == sample_of(number if number < 30 else number - bad[-1] - 1 + good_after)


def verified(dataset):
    return [(damage.shard, damage.file, damage.elements) for damage in dataset.verify()]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(("case", "suffix"), EACH_FILE)
def test_a_file_of_another_size_is_an_error_that_names_it(case, suffix, damage, place, copied):
    folder, path = copied(case, suffix)
    expected = path.stat().st_size
    DAMAGES[damage](path)
    words = (f"has {path.stat().st_size} bytes", str(expected)) if path.exists() else ("missing",)
    dataset = reader(folder, place)
    check(dataset, path.name, *words, "(global range 30 to 40, exclusive)")
    assert verified(dataset) == [(3, path.name, (30, 40))]
    if path.name.endswith((".meta", ".mds")):
        refuses(lambda: dataset.lengths, path.name)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("claimed", [11, 9, 0])
@pytest.mark.parametrize("case", CASES)
def test_an_index_that_claims_another_number_of_samples_is_an_error_and_shifts_nothing(case, claimed, place, copied):
    folder, _ = copied(case)
    index = index_of(folder)
    index["shards"][3]["samples"] = claimed
    put_index(folder, index)
    dataset = reader(folder, place)
    assert len(dataset) == 40 + claimed
    if claimed:
        check(dataset, "10 samples", f"index says {claimed}", bad=range(30, 30 + claimed))
        assert verified(dataset) == [(3, f"shard.00003.{CASES[case][2][-1]}", (30, 30 + claimed))]
        refuses(lambda: dataset.lengths)
    else:
        assert dataset[:] == samples(30) + samples(10, 40)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("case", CASES)
def test_another_whole_shard_of_nine_is_an_error(case, place, copied, tmp_path):
    folder, path = copied(case)
    shard_format, compression, suffixes = CASES[case]
    write(tmp_path / "other", (9,), shard_format, compression=compression)
    for suffix in suffixes:
        shutil.copy(tmp_path / "other" / f"shard.00000.{suffix}", folder / f"shard.00003.{suffix}")
    dataset = reader(folder, place)
    check(dataset, path.name)
    assert {shard for shard, *_ in verified(dataset)} == {3}
    index = index_of(folder)  # that has the right sizes does not help
    other = index_of(tmp_path / "other")["shards"][0]
    for name in ("raw_data", "zip_data", "raw_meta", "zip_meta"):
        if other.get(name):
            index["shards"][3][name]["bytes"] = other[name]["bytes"]
    put_index(folder, index)
    dataset = reader(folder, place)
    check(dataset, "9 samples", "index says 10")
    assert [(shard, elements) for shard, _, elements in verified(dataset)] == [(3, (30, 40))]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("case", ["json", "json, gz", "csv", "xsv, br"])
def test_offsets_of_nine_for_ten_samples_are_an_error(case, place, copied, tmp_path):
    suffix = CASES[case][2][1]
    folder, path = copied(case, suffix)
    write(tmp_path / "other", (9,), CASES[case][0], compression=CASES[case][1])
    shutil.copy(tmp_path / "other" / f"shard.00000.{suffix}", path)
    check(reader(folder, place), path.name)
    index = index_of(folder)
    other = index_of(tmp_path / "other")["shards"][0]
    for name in ("raw_meta", "zip_meta"):
        if other[name]:
            index["shards"][3][name]["bytes"] = other[name]["bytes"]
    put_index(folder, index)
    check(reader(folder, place), "9 samples")
    assert [shard for shard, *_ in verified(reader(folder, place))] == [3]


# (which offset, what it becomes of all offsets, samples that must not be read then)
OFFSETS = {
    "that go down": (5, lambda offsets: offsets[4] - 1, range(10)),
    "that go down to 0": (5, lambda offsets: 0, range(10)),
    "past the end": (5, lambda offsets: offsets[-1] + 1, range(10)),
    "as far past the end as can be": (5, lambda offsets: (1 << 32) - 1, range(10)),
    "of which the first is too small": (0, lambda offsets: offsets[0] - 1, [0]),
    "of which the first is too large": (0, lambda offsets: offsets[0] + 1, [0]),
    "of which the last is too small": (-1, lambda offsets: offsets[-1] - 1, range(10)),
    "of which the last is too large": (-1, lambda offsets: offsets[-1] + 1, range(10)),
    "one byte too early": (5, lambda offsets: offsets[5] - 1, [4, 5]),
    "one byte too late": (5, lambda offsets: offsets[5] + 1, [4, 5]),
    "in the middle of a sample": (5, lambda offsets: offsets[5] + 500, [4, 5]),
    "of the sample before": (5, lambda offsets: offsets[4], [4, 5]),
    "of the sample after": (5, lambda offsets: offsets[6], [4, 5]),
}


@pytest.mark.parametrize("name", OFFSETS)
@pytest.mark.parametrize("shard_format", ["mds", "json", "xsv", "one column of text"])
def test_offsets_are_never_taken_on_trust(shard_format, name, tmp_path):
    columns, sample = ({"id": "int", "text": "str"}, sample_of)
    if shard_format == "one column of text":
        shard_format, columns, sample = "csv", {"text": "str"}, lambda number: {"text": sample_of(number)["text"]}
    folder = write(tmp_path / "data", (10, 10), shard_format, columns=columns, sample=sample)
    path = folder / f"shard.00001.{shard_format}{'' if shard_format == 'mds' else '.meta'}"
    raw = bytearray(path.read_bytes())
    offsets = np.frombuffer(raw, "<u4", 11, 4).astype(np.int64)
    at, changed, bad = OFFSETS[name]
    if at == 0 and shard_format != "mds":  # where the first begins is known
        bad = range(10)
    if (shard_format, name) == ("json", "one byte too early"):
        bad = [4]  # the newline before an object is no part of it
    value = changed(offsets) % (1 << 32)
    at %= 11
    raw[4 + 4 * at : 8 + 4 * at] = int(value).to_bytes(4, "little")
    path.write_bytes(raw)
    dataset = reader(folder)
    for number in range(20):
        if number - 10 in bad:
            with pytest.raises(CorruptShardError, match=r"shard 1 \(global range 10 to 20, exclusive\)"):
                dataset[number]
            with pytest.raises(CorruptShardError, match=f"sample {number} of the dataset|its (first|last|sample)"):
                dataset.__getitems__([number])
        else:
            assert dataset[number] == sample(number)
    assert [(shard, elements) for shard, _, elements in verified(dataset)] == [(1, (10, 20))]


# Digests


def flipped(path, at):
    raw = bytearray(path.read_bytes())
    raw[at] ^= 0x40
    path.write_bytes(raw)


@pytest.mark.parametrize("at", [0, 0.5, -1], ids=["at the begin", "in the middle", "at the end"])
@pytest.mark.parametrize(("case", "suffix"), EACH_FILE)
def test_with_digests_a_changed_byte_is_an_error_that_has_both_digests(case, suffix, at, copied):
    folder, path = copied(case, suffix, hashes=["sha1", "xxh64"])
    flipped(path, int(at * path.stat().st_size) if at == 0.5 else at)
    expected = next(
        file["hashes"]["sha1"]
        for file in index_of(folder)["shards"][3].values()
        if isinstance(file, dict) and file.get("basename") == path.name
    )
    for place in PLACES:
        dataset = reader(folder, place, verify=True)
        check(dataset, path.name, f"has sha1 {sha1(path.read_bytes()).hexdigest()}, expected {expected}")
        assert verified(dataset) == [(3, path.name, (30, 40))]
        assert verified(reader(folder, place)) == [(3, path.name, (30, 40))]


@pytest.mark.parametrize("place", PLACES)
def test_without_digests_verify_is_refused_and_sizes_are_all_that_is_checked(place, copied):
    folder, path = copied("mds")
    dataset = reader(folder, place, verify=True)
    assert len(dataset) == 50
    for read in (lambda: dataset[0], lambda: dataset[:], lambda: dataset.__getitems__([3]), lambda: dataset.lengths):
        with pytest.raises(OptionError, match="verify=True"):
            read()
    assert dataset.describe()["unchecked"] == ["digests"]
    flipped(path, -1)  # in the text of the last sample
    assert reader(folder, place).verify() == []
    assert [sample for sample in reader(folder, place) if sample not in samples(50)] != []


@pytest.mark.parametrize("case", ["mds", "mds, zstd", "json", "xsv, br"])
def test_a_read_that_went_wrong_once_is_an_error_once(case, whole):
    store = FaultStore(in_memory(whole(case, hashes=["md5"])))
    with SampleDataset(store, verify=True) as dataset:
        store.rules.append(Rule(Flip(50), "view", "shard.00003.*", times=1))
        refuses(lambda: dataset[30], "has md5", "expected")
        assert dataset[:] == samples(50)
        store.rules.append(Rule(Flip(50), "view", "shard.00003.*"))
        assert dataset[30] == sample_of(30)  # kept
    with SampleDataset(store, verify=True) as dataset:
        for _ in range(3):
            refuses(lambda: dataset[30], "has md5", "expected")
        assert dataset[:30] == samples(30)


@pytest.mark.parametrize("verify", [False, True])
def test_a_raw_file_of_the_wrong_size_beside_a_good_compressed_one_is_not_read(verify, copied):
    folder, _ = copied("mds, zstd", hashes=["md5"])
    (folder / "shard.00003.mds").write_bytes(b"not finished")
    dataset = reader(folder, verify=verify)
    assert dataset[:] == samples(50)
    assert verified(dataset) == [(3, "shard.00003.mds", (30, 40))]


# Changes under a reader


@pytest.mark.parametrize("place", PLACES)
def test_a_dataset_that_was_replaced_gives_nothing_from_shards_that_were_not_open(place, copied):
    folder, _ = copied("mds")
    dataset = reader(folder, place)
    assert dataset[0] == sample_of(0)
    write(folder, (10, 10, 10, 10, 10), sample=lambda number: sample_of(number + 500), exist_ok=True)
    for read in (lambda: dataset[10], lambda: dataset.__getitems__([10]), lambda: dataset[5:25]):
        with pytest.raises(DatasetChangedError, match="open it again"):
            read()
    dataset.close()
    assert dataset[10] == sample_of(510)


@pytest.mark.parametrize("case", ["mds", "mds, zstd", "json, gz", "xsv, br"])
def test_an_index_that_says_otherwise_of_the_columns_than_the_shards_is_found_by_verifying(case, copied):
    folder, _ = copied(case, hashes=["md5"])
    index = index_of(folder)
    for entry in index["shards"]:
        if "columns" in entry:
            entry["columns"] = {"id": "float", "text": "str"}
        else:
            entry["column_encodings"] = ["float64", "str"] if case.startswith("mds") else ["float", "str"]
    put_index(folder, index)
    dataset = reader(folder, verify=True)
    for read in (lambda: dataset[0], lambda: dataset[:]):
        with pytest.raises(
            CorruptShardError, match=r"shard 0 .*its column.* are .*'int'.*, but the index says .*'float"
        ):
            read()
    assert [damage.shard for damage in reader(folder).verify()] == [0, 1, 2, 3, 4]
