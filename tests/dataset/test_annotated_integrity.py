"""Streams with metadata whose elements, payloads and records disagree, and shards that are full."""

import json

import msgspec
import numpy as np
import pytest

from dataset.scenes import SPANS, files_of, payload_of
from dataset.test_document_integrity import (
    STATES,
    check_bad,
    check_the_rest,
    cut,
    damaged,
    made,
    recorded_anew,
    refuses,
    verified,
)
from headrace.datasets import PosixPreadIO, StreamDataset, StreamWithMetaStorage, annotated
from headrace.errors import DatasetError, FieldError, ManifestError, SchemaMismatchError
from headrace.formats.annotated import SpanNumpyFormat
from headrace.formats.documents import DocumentNumpyFormat
from headrace.manifest import Manifest, ShardRecord

INTERFACES = {"mapped": None, "not mapped": PosixPreadIO()}
ELEMENT = np.dtype([("index", "<i4"), ("user", "<u2")])


@pytest.fixture(params=INTERFACES)
def interface(request):
    return INTERFACES[request.param]


def point(folder, elements, number):
    """Let these elements of shard 3 point at another payload."""
    path = folder / "0000003.in_band.bin"
    stored = np.fromfile(path, ELEMENT)
    stored["index"][elements] = number
    path.write_bytes(stored.tobytes())


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("number", [10, 11, 1 << 30, (1 << 31) - 1, -1, -10, -(1 << 31)])
def test_an_element_that_points_at_no_payload_is_refused(number, state, interface, tmp_path):
    point(made(SPANS, tmp_path, state), slice(455, 456), number)
    storage = SPANS.storage_at(tmp_path, interface)
    check_bad(SPANS, storage, f"payload {number} ", "there are 10", bad=[34])
    check_the_rest(SPANS, storage, bad=[34])
    if state != "foreign":
        assert verified(storage) == [damaged(SPANS, "in_band.bin")]
    with storage.sync_reader() as reader:
        refuses(lambda: reader.read(3455, 1), f"payload {number} ")
        refuses(lambda: reader.read(0, 5000), f"payload {number} ")
        for start in (3454, 3456):
            sample = reader.read(start, 1)
            assert (sample["tokens"].tolist(), bytes(sample["payloads"][0])) == ([start], payload_of(34))


def test_windows_that_touch_a_damaged_shard_from_its_neighbours_are_refused_and_their_neighbours_are_not(
    interface, tmp_path
):
    path = made(SPANS, tmp_path, "published") / "0000003.out_of_band.index"
    cut(path, 8)
    storage = SPANS.storage_at(tmp_path, interface)
    windows = StreamDataset(storage, 150, stride=150)  # window 20 begins where shard 3 does; 26 runs on into shard 4
    touching = [20, 21, 25, 26]
    for number in touching:
        refuses(lambda number=number: windows[number], path.name)
        refuses(lambda number=number: windows.__getitems__([0, number, 1] * 5), path.name)
    good = [0, 19, 27, 32]
    for sample, number in zip(windows.__getitems__(good), good, strict=True):
        assert sample["tokens"].tolist() == list(range(150 * number, 150 * number + 150))
    with storage.sync_reader() as reader:
        refuses(lambda: reader.read(2999, 2), path.name)
        refuses(lambda: reader.read(4999, 3002), path.name)  # over the end, and round to shard 3
        assert reader.read(4999, 3001)["tokens"].tolist() == [4999, *range(3000)]
        assert len(reader.read(3500, 0)["tokens"]) == 0


@pytest.mark.parametrize("state", ["published", "receipts"])
@pytest.mark.parametrize("length", [999, 1001, 0])
def test_a_length_that_the_elements_do_not_have_is_refused(length, state, tmp_path):
    made(SPANS, tmp_path, state)
    recorded_anew(SPANS, tmp_path, length=length)
    dataset = SPANS.dataset(SPANS.storage_at(tmp_path))
    refuses(dataset.open, "0000003.in_band.bin", "6000 bytes", f"{length} elements")


@pytest.mark.parametrize("cut_bytes", [1, 5, 7, 4096, 5999])
def test_a_part_of_an_element_in_a_file_of_another_program_is_refused(cut_bytes, tmp_path):
    path = made(SPANS, tmp_path, "foreign") / "0000003.in_band.bin"
    cut(path, cut_bytes)
    refuses(SPANS.dataset(SPANS.storage_at(tmp_path)).open, f"{6000 - cut_bytes} bytes", "an element has 6")


def re_recorded(folder, state, change):
    """Shard 3's record after change(record), in whatever the directory opens by."""
    if state == "receipts":
        path = folder / ".headrace" / "0000003.receipt"
        record = json.loads(path.read_bytes())
        change(record)
        path.write_bytes(json.dumps(record).encode())
        return
    manifest = json.loads((folder / "headrace.json").read_bytes())
    change(manifest["shards"][3])
    records = msgspec.convert(manifest["shards"], tuple[ShardRecord, ...])
    (folder / "headrace.json").write_bytes(Manifest.of("annotated", manifest["dtype"], records).to_json())


@pytest.mark.parametrize("state", ["published", "receipts"])
@pytest.mark.parametrize(
    ("lost", "words"),
    [
        (["in_band.bin"], "without its file .in_band.bin"),
        (["out_of_band.bin"], "only one of its files"),
        (["out_of_band.index"], "only one of its files"),
        (["out_of_band.bin", "out_of_band.index"], "has 1000 elements but no payload"),
    ],
)
def test_a_record_without_one_of_its_shards_files_is_refused(lost, words, state, interface, tmp_path):
    made(SPANS, tmp_path, state)

    def lose(record):
        record["files"] = [file for file in record["files"] if file["name"].partition(".")[2] not in lost]

    re_recorded(tmp_path, state, lose)
    if state == "receipts":  # else their being there is the first thing that is noticed
        for suffix in lost:
            (tmp_path / f"0000003.{suffix}").unlink()
    with pytest.raises(DatasetError, match=words) as caught:
        SPANS.dataset(SPANS.storage_at(tmp_path, interface)).open()
    assert "3" in str(caught.value)


def test_an_unpublished_file_without_record_is_refused(tmp_path):
    made(SPANS, tmp_path, "receipts")
    re_recorded(tmp_path, "receipts", lambda record: record["files"].pop())
    with pytest.raises(DatasetError, match=r"0000003\.out_of_band\.index has no receipt"):
        SPANS.dataset(SPANS.storage_at(tmp_path)).open()


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        ("<u2", "describes no stream with metadata"),
        ({"elements": "<u2"}, "describes no stream with metadata"),
        ({"elements": "|O", "payloads": None}, "is not an element type"),
        ({"elements": [["payloads", "<u2"]], "payloads": None}, "describes no stream with metadata"),
        ({"elements": "<u2", "payloads": None, "more": 1}, "describes no stream with metadata"),
    ],
)
def test_a_schema_that_makes_no_sense_is_refused(stored, words, tmp_path):
    made(SPANS, tmp_path, "published")
    manifest = Manifest.from_json((tmp_path / "headrace.json").read_bytes(), "here")
    (tmp_path / "headrace.json").write_bytes(Manifest.of("annotated", stored, manifest.shards).to_json())
    for storage_format in (None, SpanNumpyFormat("<u2")):
        with pytest.raises(ManifestError, match=words):
            StreamDataset(StreamWithMetaStorage(tmp_path, storage_format), 100).open()


@pytest.mark.parametrize("payload", [None, DocumentNumpyFormat("<u4")])
def test_parts_of_another_element_type_or_payload_are_refused(payload, tmp_path):
    other = SpanNumpyFormat("<u4") if payload is None else SpanNumpyFormat("<u2", payload)
    record = {"tokens": [1], "span_lengths": [1], "payloads": [b"12" if payload is None else [12]]}
    for shard, storage_format in enumerate([SpanNumpyFormat("<u2"), other]):
        with StreamWithMetaStorage(tmp_path, storage_format).sync_writer() as writer:
            writer.append(shard, record if shard or payload is None else {**record, "payloads": [b"12"]})
    storage = StreamWithMetaStorage(tmp_path)
    for call in (storage.publish, StreamDataset(storage, 1).open):
        with pytest.raises(SchemaMismatchError, match=r"shard 1.*<u4"):
            call()


def test_the_boundaries_of_spans_survive_their_parts(interface, tmp_path):
    parts = [[4, 1, 7], [2, 9], [], [2]]
    storage = SPANS.storage_at(tmp_path, interface)
    token = payload = 0
    for shard, lengths in enumerate(parts):  # a writer each
        with storage.sync_writer() as writer:
            writer.start(shard)
            for length in lengths:
                tokens = np.arange(token, token + length)
                writer.append(shard, {"tokens": tokens, "span_lengths": [length], "payloads": [b"%d" % payload]})
                token, payload = token + length, payload + 1
    storage.publish()
    boundaries = np.array([0, 4, 5, 12, 14, 23, 25])
    with storage.sync_reader() as reader:
        assert [reader.length(shard) for shard in range(4)] == [12, 11, 0, 2]
        for start in range(25):
            for stop in range(start + 1, 26):
                sample = reader.read(start, stop - start)
                inside = boundaries[(boundaries > start) & (boundaries < stop)]
                assert np.cumsum(sample["span_lengths"]).tolist() == [*(inside - start), stop - start]
                first = int(boundaries.searchsorted(start, "right")) - 1
                numbers = [b"%d" % number for number in range(first, first + len(inside) + 1)]
                assert [bytes(payload) for payload in sample["payloads"]] == numbers
                assert sample["tokens"].tolist() == list(range(start, stop))


def spans(*payloads):
    return {"tokens": range(len(payloads)), "span_lengths": [1] * len(payloads), "payloads": payloads}


@pytest.fixture
def three_payloads(monkeypatch):
    monkeypatch.setattr(annotated, "MAX_PAYLOADS", 3)


def test_a_record_that_a_shard_has_no_numbers_left_for_is_refused_before_anything_is_written(three_payloads, tmp_path):
    storages = [SPANS.storage_at(tmp_path / name) for name in ("one", "two")]
    for storage, with_refusals in zip(storages, (True, False), strict=True):
        with storage.sync_writer() as writer:
            writer.append(0, spans(b"a", b"b"))
            if with_refusals:
                for _ in range(2):
                    with pytest.raises(FieldError, match=r"after 2 elements of shard 0.*payloads 2 to 4; it holds 3"):
                        writer.append(0, spans(b"c", b"d"))
                assert writer.length(0) == 2
            writer.append(0, spans(b"e"))
            if with_refusals:
                with pytest.raises(FieldError, match="3 to 4; it holds 3, so go on in another shard"):
                    writer.append(0, spans(b"f"))
            writer.append(0, spans())
            writer.append(1, spans(b"c", b"d"))
        storage.publish()
    one, two = (
        {name: raw for name, raw in files_of(tmp_path / name).items() if not name.startswith(".headrace")}
        for name in ("one", "two")
    )
    assert one == two
    assert storages[0].verify() == []


def test_a_record_with_more_payloads_than_any_shard_has_numbers_for_is_refused(three_payloads, tmp_path):
    storage = SPANS.storage_at(tmp_path)
    with storage.sync_writer() as writer:
        with pytest.raises(FieldError, match=r"after 0 elements of shard 0.*payloads 0 to 4; it holds 3"):
            writer.append(0, spans(b"a", b"b", b"c", b"d"))
        writer.append(0, spans(b"a", b"b", b"c"))
    with storage.sync_reader() as reader:
        assert [bytes(payload) for payload in reader.read(0, 3)["payloads"]] == [b"a", b"b", b"c"]


def test_a_record_that_no_shard_takes_begins_none_so_that_an_older_one_stays(three_payloads, tmp_path):
    storage = SPANS.write(tmp_path, [[0, 1]])
    with storage.sync_writer() as writer, pytest.raises(FieldError):
        writer.append(0, spans(b"a", b"b", b"c", b"d"))
    assert SPANS.items_of(storage) == [SPANS.item(0), SPANS.item(1)]


def test_the_last_number_is_used_and_comes_back(tmp_path):
    """Elements at the far end of int32, in a shard that is made up: its index would have 16 GiB."""
    last = annotated.MAX_PAYLOADS - 1
    elements = np.array([(last, 7), (last, 8)], ELEMENT)
    (tmp_path / "0000000.in_band.bin").write_bytes(elements.tobytes())
    (tmp_path / "0000000.out_of_band.bin").write_bytes(b"the end")
    with (tmp_path / "0000000.out_of_band.index").open("wb") as file:
        file.truncate(8 * annotated.MAX_PAYLOADS)
        file.seek(0, 2)
        file.write(np.array([7], "<i8").tobytes())
    for interface in INTERFACES.values():
        storage = SPANS.storage_at(tmp_path, interface)
        with storage.sync_reader() as reader:
            sample = reader.read(0, 2)
        assert (sample["tokens"].tolist(), bytes(sample["payloads"][0])) == ([7, 8], b"the end")
