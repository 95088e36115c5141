"""The files of streams with metadata: the same records give GuideLoom's bytes, and what is amiss is refused."""

import hashlib
import struct

import numpy as np
import pytest

from golden.annotated_records import DTYPES, GuideLoomFormat, Recorded, SpansFormat
from golden.recorded import copied, data_of, opened_by, visible_files
from headrace import (
    DocumentBytesFormat,
    DocumentNumpyFormat,
    DocumentStorage,
    SpanNumpyFormat,
    StreamArrayFormat,
    StreamStorage,
    StreamWithMetaStorage,
    open_storage,
)
from headrace.errors import CorruptShardError, SchemaMismatchError, UnfinishedDatasetError

NAMES = list(DTYPES)


@pytest.fixture(scope="module")
def recorded():
    return {name: Recorded(name) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_the_files_hold_the_recorded_index_column_and_offsets(recorded, name):
    golden = recorded[name]
    element = np.dtype([("index", "<i4"), ("user", golden.dtype)])
    assert element.itemsize == golden.expected["on_disk_itemsize"]
    for shard, column in golden.expected["stored_index_column"].items():
        stored = np.fromfile(data_of(name) / f"{int(shard):07d}.in_band.bin", element)
        assert stored["index"].tolist() == column
    for shard, offsets in golden.expected["payload_offsets"].items():
        stored = np.fromfile(data_of(name) / f"{int(shard):07d}.out_of_band.index", "<i8")
        assert stored.tolist() == offsets


@pytest.mark.parametrize("name", NAMES)
def test_payloads_are_document_chunk_and_concepts(recorded, name):
    for _, record in recorded[name].records():
        for chunk, payload in enumerate(record["payloads"]):
            document = record["document_id"]
            assert struct.unpack_from("<II", payload) == (document, chunk)
            assert len(payload) == 8 + 4 * ((document + chunk) % 5)


def mapping(record, dtype, payload):
    """The record as SpanNumpyFormat takes it."""
    columns = {"tokens": record["stream"]} if dtype.names is None else {n: record["stream"][n] for n in dtype.names}
    return {**columns, "span_lengths": record["spans"], "payloads": [payload(data) for data in record["payloads"]]}


def int32s(data):
    return np.frombuffer(data, "<i4")


WRITERS = {
    "size and pack": (GuideLoomFormat, lambda record, dtype: record),
    "pack_spans": (SpansFormat, lambda record, dtype: record),
    "SpanNumpyFormat of bytes": (SpanNumpyFormat, lambda record, dtype: mapping(record, dtype, bytes)),
    "SpanNumpyFormat of <i4": (
        lambda dtype: SpanNumpyFormat(dtype, DocumentNumpyFormat("<i4")),
        lambda record, dtype: mapping(record, dtype, int32s),
    ),
    "declared big endian": (  # GuideLoom cannot write that at all
        lambda dtype: SpanNumpyFormat(dtype.newbyteorder(">")),
        lambda record, dtype: mapping(record, dtype, memoryview),
    ),
}


@pytest.mark.parametrize("how", WRITERS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("with_empty_records", [False, True])
def test_writing_the_same_records_gives_guidelooms_bytes_and_no_file_more(
    recorded, name, how, with_empty_records, tmp_path
):
    golden = recorded[name]
    storage_format, convert = WRITERS[how]
    storage = StreamWithMetaStorage(tmp_path / "data", storage_format(golden.dtype))
    with storage.sync_writer() as writer:
        for shard, record in golden.records_in_turn():
            if with_empty_records:
                nothing = {"document_id": 1, "spans": [], "payloads": [], "stream": record["stream"][:0]}
                writer.append(shard, convert(nothing, golden.dtype))
            writer.append(shard, convert(record, golden.dtype))
        lengths = {str(shard): writer.length(shard) for shard in range(len(golden.lengths))}
    assert lengths == golden.expected["writer_length"]
    assert visible_files(tmp_path / "data") == visible_files(data_of(name))
    storage.publish()
    written = visible_files(tmp_path / "data")
    assert written == visible_files(data_of(name))
    digests = {file: {"bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()} for file, body in written.items()}
    assert digests == golden.expected["files"]
    assert storage.verify() == []


@pytest.mark.parametrize("how", WRITERS)
def test_records_without_elements_leave_the_streams_file_and_no_other(recorded, how, tmp_path):
    golden = recorded["stream_meta"]
    storage_format, convert = WRITERS[how]
    storage = StreamWithMetaStorage(tmp_path / "data", storage_format(golden.dtype))
    nothing = {"document_id": 1, "spans": [], "payloads": [], "stream": golden.stream[:0]}
    with storage.sync_writer() as writer:
        for shard in (0, 1, 1):
            writer.append(shard, convert(nothing, golden.dtype))
        writer.start(2)  # as GuideLoom leaves the other two; it cannot begin a shard without a record
    storage.publish()
    assert visible_files(tmp_path / "data") == {f"000000{shard}.in_band.bin": b"" for shard in range(3)}
    with storage.sync_reader() as reader:
        assert (reader.num_shards, reader.total_length) == (3, 0)
    assert len(storage.dataset(4)) == 0
    assert storage.verify() == []


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_in_one_format_is_read_in_the_others(recorded, name, tmp_path):
    golden = recorded[name]
    values = SpanNumpyFormat(golden.dtype, DocumentNumpyFormat("<i4"))
    with StreamWithMetaStorage(tmp_path, values).sync_writer() as writer:
        for shard, record in golden.records():
            writer.append(shard, mapping(record, golden.dtype, int32s))
    window = golden.window(5, 12)
    for chosen in (GuideLoomFormat(golden.dtype), SpanNumpyFormat(golden.dtype), SpansFormat(golden.dtype)):
        with StreamWithMetaStorage(tmp_path, chosen).sync_reader() as reader:
            sample = reader.read(5, 12)
            payloads = sample["payloads"] if isinstance(sample, dict) else sample[-1]
            assert list(map(bytes, payloads)) == window.payloads
    with open_storage(tmp_path).sync_reader() as reader:
        sample = reader.read(5, 12)
        assert [payload.tolist() for payload in sample["payloads"]] == [int32s(p).tolist() for p in window.payloads]
        assert sample["span_lengths"].tolist() == window.span_lengths.tolist()


@pytest.mark.parametrize("name", NAMES)
def test_a_foreign_directory_says_what_cannot_be_checked(recorded, name):
    golden = recorded[name]
    storage = opened_by(StreamWithMetaStorage, name, GuideLoomFormat(golden.dtype))
    described = storage.dataset(4).describe()
    assert (described["kind"], described["published"]) == ("annotated", False)
    assert {"element type", "digests", "whether all shards are there"} <= set(described["unchecked"])
    assert described["num_samples"] == golden.total // 4
    assert described["fingerprint"].startswith("sizes:")
    assert storage.verify() == []
    with pytest.raises(ValueError, match="pass the storage_format it was written with"):
        open_storage(data_of(name)).sync_reader().open()


@pytest.mark.parametrize("name", NAMES)
def test_a_stream_with_metadata_is_refused_as_any_other_kind(recorded, name):
    # GuideLoom opens it as a plain stream and returns payload numbers as tokens.
    for dtype in (recorded[name].dtype, np.dtype([("index", "<i4"), ("user", recorded[name].dtype)]), np.dtype("u1")):
        with pytest.raises(SchemaMismatchError, match=r"out_of_band\.index"):
            StreamStorage(data_of(name), StreamArrayFormat(dtype)).sync_reader().open()
        with pytest.raises(SchemaMismatchError, match=r"out_of_band\.index"):
            StreamStorage(data_of(name), StreamArrayFormat(dtype)).dataset(4).open()
    for storage_format in (DocumentBytesFormat(), None):
        with pytest.raises(SchemaMismatchError, match=r"in_band\.bin"):
            DocumentStorage(data_of(name), storage_format).dataset().open()
    assert type(open_storage(data_of(name))) is StreamWithMetaStorage


@pytest.mark.parametrize("name", ["stream_tokens", "stream_struct"])
def test_a_plain_stream_is_refused_as_any_other_kind(name):
    with pytest.raises(SchemaMismatchError, match=r"out_of_band\.index"):
        StreamWithMetaStorage(data_of(name), SpanNumpyFormat([("tokens", "<i4")])).sync_reader().open()
    with pytest.raises(SchemaMismatchError, match=r"out_of_band\.index"):
        DocumentStorage(data_of(name)).sync_reader().open()
    assert type(open_storage(data_of(name))) is StreamStorage


@pytest.mark.parametrize(("name", "other"), [("stream_meta", "<i8"), ("stream_meta_struct", "<u2")])
def test_elements_of_another_size_are_refused(name, other):
    with pytest.raises(CorruptShardError, match="an element has"):
        StreamWithMetaStorage(data_of(name), SpanNumpyFormat(other)).sync_reader().open()


@pytest.mark.parametrize("lost", range(4))
def test_a_directory_with_a_gap_is_refused(recorded, lost, tmp_path):
    directory = copied("stream_meta", tmp_path / "data")
    for path in directory.glob(f"{lost:07d}.*"):
        path.unlink()
    storage = StreamWithMetaStorage(directory, SpanNumpyFormat("<i4"))
    if lost == 3:  # nothing tells that it ever was
        assert storage.dataset(4).shard_lengths.tolist() == recorded["stream_meta"].lengths[:3]
        return
    with pytest.raises(UnfinishedDatasetError, match=f"shards {lost} of 0 to 3 are missing"):
        storage.sync_reader().open()


@pytest.mark.parametrize("suffix", ["in_band.bin", "out_of_band.bin", "out_of_band.index"])
def test_a_shard_with_elements_needs_all_its_files(suffix, tmp_path):
    directory = copied("stream_meta", tmp_path / "data")
    (directory / f"0000002.{suffix}").unlink()
    with pytest.raises(SchemaMismatchError, match="shard 2 stores files"):
        StreamWithMetaStorage(directory, SpanNumpyFormat("<i4")).sync_reader().open()


@pytest.mark.parametrize("suffix", ["in_band.bin", "out_of_band.bin", "out_of_band.index"])
@pytest.mark.parametrize("name", NAMES)
def test_a_shard_that_a_killed_writer_cut_is_refused_when_it_is_opened(recorded, name, suffix, tmp_path):
    golden = recorded[name]
    directory = copied(name, tmp_path / "data")
    path = directory / f"0000001.{suffix}"
    whole = path.read_bytes()
    for cut in range(len(whole)):
        if suffix == "in_band.bin" and cut % golden.expected["on_disk_itemsize"] == 0:
            continue  # a whole number of elements: nothing tells that there were more
        path.write_bytes(whole[:cut])
        with pytest.raises(CorruptShardError, match="shard 1"):
            StreamWithMetaStorage(directory, GuideLoomFormat(golden.dtype)).dataset(4).open()


@pytest.mark.parametrize("number", [-1, 2, 2**31 - 1, -(2**31)])
def test_an_element_that_points_at_no_payload_is_refused_when_it_is_read(number, tmp_path):
    directory = copied("stream_meta", tmp_path / "data")
    with (directory / "0000001.in_band.bin").open("r+b") as file:
        file.seek(3 * 8)
        file.write(struct.pack("<i", number))
    storage = StreamWithMetaStorage(directory, SpanNumpyFormat("<i4"))
    with storage.sync_reader() as reader, storage.dataset(4) as dataset:
        for read in (lambda: reader.read(12, 20), lambda: dataset[4], lambda: dataset.__getitems__([0, 4, 1])):
            with pytest.raises(CorruptShardError, match=f"shard 1.*payload {number} was asked for"):
                read()
        assert dataset[0]["tokens"].tolist() == [0, 1, 2, 3]
