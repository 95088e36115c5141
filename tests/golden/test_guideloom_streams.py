"""Streams that GuideLoom 1.1.0 wrote, and what its own readers returned for them."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from headrace.datasets import StreamDataset, StreamStorage
from headrace.errors import HeadraceError
from headrace.formats.stream import StreamArrayFormat, StreamNumpyFormat

GUIDELOOM = Path(__file__).parent / "guideloom"
STRUCT = np.dtype(
    [
        ("tokens", "<u2"),
        ("document_ids", "<u4"),
        ("loss_mask", "u1"),
        ("weight", "<f4"),
        ("pos", "<i8"),
        ("vec", "<f2", (3,)),
    ]
)
DTYPES = {
    "stream_tokens": np.dtype([("tokens", "<i4")]),
    "stream_struct": STRUCT,
    "stream_plain_i8": np.dtype("<i8"),
    "stream_declared_big_endian": np.dtype(">i4"),
}
NAMES = list(DTYPES)


class Seeing:
    """A custom format that returns all that unpack() is given."""

    def __init__(self, dtype):
        self.stream_dtype = dtype

    def pack(self, data):
        return data

    def unpack(self, stream, shard_lengths, shards):
        return stream, shard_lengths, shards


def expected_of(name):
    return json.loads((GUIDELOOM / name / "expected.json").read_text())


def format_of(name):
    dtype = DTYPES[name]
    return StreamArrayFormat(dtype) if dtype.names is None else StreamNumpyFormat(dtype)


@pytest.mark.parametrize("name", NAMES)
def test_counts_lengths_and_every_recorded_read_are_guidelooms(name):
    expected = expected_of(name)
    arrays = np.load(GUIDELOOM / name / "expected.npz")
    with (
        StreamStorage(GUIDELOOM / name / "data", Seeing(DTYPES[name])).sync_reader() as seeing,
        StreamStorage(GUIDELOOM / name / "data", format_of(name)).sync_reader() as reader,
    ):
        assert (reader.num_shards, reader.total_length) == (expected["num_shards"], expected["total_length"])
        assert [reader.length(shard) for shard in range(reader.num_shards)] == expected["shard_lengths"]
        assert len(expected["reads"]) >= 3
        for number, read in enumerate(expected["reads"]):
            place = read["global_index"], read["global_length"]
            stream, lengths, shards = seeing.read(*place)
            assert hashlib.sha256(stream.tobytes()).hexdigest() == read["raw_sha256"]
            assert (lengths.dtype, shards.dtype) == (np.int64, np.int64)
            assert (lengths.tolist(), shards.tolist()) == (read["shard_lengths"], read["shards"])
            assert stream.flags.writeable
            sample = reader.read(*place)
            if DTYPES[name].names is None:
                np.testing.assert_array_equal(sample, arrays[f"r{number:03d}"], strict=True)
            else:
                assert list(sample) == list(DTYPES[name].names)
                for field, values in sample.items():
                    np.testing.assert_array_equal(values, arrays[f"r{number:03d}.{field}"], strict=True)


@pytest.mark.parametrize("name", ["stream_tokens", "stream_struct"])
def test_datasets_have_guidelooms_lengths(name):
    storage = StreamStorage(GUIDELOOM / name / "data", format_of(name))
    for case in expected_of(name)["dataset"]:
        assert len(StreamDataset(storage, case["sequence_length"])) == case["len"]


def test_windows_and_slices_are_guidelooms():
    expected = expected_of("stream_tokens")
    dataset = StreamDataset(
        StreamStorage(GUIDELOOM / "stream_tokens" / "data", format_of("stream_tokens")), np.int64(12)
    )
    assert [sample["tokens"].tolist() for sample in dataset] == expected["dataset_windows_12"]
    assert [sample["tokens"].tolist() for sample in dataset[1:5:2]] == expected["dataset_slice_12_1_5_2"]
    assert [sample["tokens"].tolist() for sample in dataset[-2:]] == expected["dataset_slice_12_neg2_none"]
    with pytest.raises(IndexError):
        dataset[5]
    # Two answers differ on purpose: GuideLoom refuses NumPy integers and negative numbers.
    assert dataset[np.int64(0)]["tokens"].tolist() == expected["dataset_windows_12"][0]
    assert dataset[-1]["tokens"].tolist() == expected["dataset_windows_12"][-1]


def test_reads_outside_are_guidelooms_index_errors():
    errors = expected_of("stream_tokens")["reader_errors"]
    with StreamStorage(GUIDELOOM / "stream_tokens" / "data", format_of("stream_tokens")).sync_reader() as reader:
        calls = {
            "read(64,1)": lambda: reader.read(64, 1),
            "read(0,-1)": lambda: reader.read(0, -1),
            "read(-1,1)": lambda: reader.read(-1, 1),
            "length(4)": lambda: reader.length(4),
            "length(-1)": lambda: reader.length(-1),
        }
        assert calls.keys() == errors.keys()
        for name, call in calls.items():
            assert errors[name]["error"] == "IndexError"
            with pytest.raises(IndexError):
                call()


@pytest.mark.parametrize("name", NAMES)
def test_writing_the_same_elements_gives_guidelooms_bytes(name, tmp_path):
    with (
        StreamStorage(GUIDELOOM / name / "data", format_of(name)).sync_reader() as reader,
        StreamStorage(tmp_path, format_of(name)).sync_writer() as writer,
    ):
        start = 0
        for shard in range(reader.num_shards):
            length = reader.length(shard)
            first = length // 3
            writer.start(shard)
            for at, count in ((start, first), (start + first, length - first)):
                if count:
                    writer.append(shard, reader.read(at, count))
            assert writer.length(shard) == length
            start += length
    written = {path.name: path.read_bytes() for path in tmp_path.glob("*.bin")}
    assert written == {path.name: path.read_bytes() for path in (GUIDELOOM / name / "data").iterdir()}
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in written.items()}
    assert digests == {file: entry["sha256"] for file, entry in expected_of(name)["files"].items()}


@pytest.mark.parametrize("name", NAMES)
def test_a_foreign_directory_says_what_cannot_be_checked(name):
    described = StreamStorage(GUIDELOOM / name / "data", format_of(name)).describe()
    assert described["published"] is False
    assert "digests" in described["unchecked"]
    assert described["fingerprint"].startswith("sizes:")


@pytest.mark.parametrize("lost", [0, 1, 4, 7])
def test_a_foreign_directory_with_a_gap_is_refused(lost, tmp_path):
    for shard in range(8):
        (tmp_path / f"{shard:07d}.in_band.bin").write_bytes(bytes(16))
    (tmp_path / f"{lost:07d}.in_band.bin").unlink()
    storage = StreamStorage(tmp_path, format_of("stream_tokens"))
    if lost == 7:  # nothing tells that it ever was
        assert len(StreamDataset(storage, 4)) == 7
        return
    with pytest.raises(HeadraceError, match=f"shards {lost} of 0 to 7 are missing"):
        StreamDataset(storage, 4).open()


def test_the_example_gives_guidelooms_files(tmp_path):
    from headrace import StreamNumpyFormat as Format
    from headrace import StreamStorage as Storage

    for directory in (tmp_path / "path", str(tmp_path / "text")):
        for shard in np.arange(4):
            with Storage(directory, Format(np.dtype([("tokens", "<i4")]))).sync_writer() as writer:
                for record in np.arange(2, dtype=np.uint8):
                    start = int(shard * 16 + record * 8)
                    writer.append(shard, {"tokens": np.arange(start, start + 8, dtype=np.int32)})
        for file in (GUIDELOOM / "stream_tokens" / "data").iterdir():
            assert (Path(directory) / file.name).read_bytes() == file.read_bytes()
    shutil.rmtree(tmp_path / "path")
