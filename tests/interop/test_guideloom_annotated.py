"""GuideLoom itself reads the streams with metadata that Headrace wrote, and Headrace reads what GuideLoom wrote."""

from contextlib import ExitStack

import numpy as np
import pytest

from headrace import (
    DocumentBytesFormat,
    DocumentJsonFormat,
    DocumentNumpyFormat,
    SpanNumpyFormat,
    StreamWithMetaStorage,
    open_storage,
)
from interop.annotated_cases import CASES, WINDOWS, AnnotatedFormat, columns, records, seen_by
from interop.sides import INTERFACES, data_files

pytestmark = pytest.mark.interop
KIND = "annotated"
PAYLOADS = {"bytes": DocumentBytesFormat(), "integers": DocumentNumpyFormat("<i4"), "json": DocumentJsonFormat()}


def spans_format(name):
    dtype, payload, _ = CASES[name]
    return SpanNumpyFormat(dtype, PAYLOADS[payload])


WRITERS = {
    "size and pack": (AnnotatedFormat, lambda record: record),
    "SpanNumpyFormat": (spans_format, columns),
}


def write(root, how):
    format_of, convert = WRITERS[how]
    for name in CASES:
        storage = StreamWithMetaStorage(root / name, format_of(name))
        with storage.sync_writer() as writer:
            for shard, record in records(name):
                writer.append(shard, convert(record))
        storage.publish({"by": "headrace"})


def seen_by_us(root, interface=None):
    seen = {}
    for name in CASES:
        storage = StreamWithMetaStorage(root / name, AnnotatedFormat(name), interface)
        with ExitStack() as stack:
            datasets = [stack.enter_context(storage.dataset(length)) for length in WINDOWS]
            seen[name] = seen_by(stack.enter_context(storage.sync_reader()), datasets)
            for dataset, one_by_one in zip(datasets, seen[name]["windows"], strict=True):
                assert list(dataset.__getitems__(np.arange(len(dataset))[::-1])) == one_by_one[::-1]
    return seen


def test_guideloom_reads_what_headrace_wrote_and_published(guideloom, tmp_path):
    for how in WRITERS:
        write(tmp_path / how, how)
    lengths = {
        **{name: [15, 0, 9, 400, 0] for name in CASES},
        "one_span": [5],
        "begins_empty": [0, 4, 0, 5],
        "nothing": [0, 0],
    }
    for how, seen in zip(WRITERS, guideloom.read(*(tmp_path / how for how in WRITERS)), strict=True):
        assert seen == seen_by_us(tmp_path / how)
        assert {name: found["lengths"] for name, found in seen.items()} == lengths
        # From the last element, and round three times and a bit: GuideLoom begins the same payload anew each time.
        assert seen["one_span"]["reads"][-1]["payloads"] == ["41"] * 5
        assert seen["one_span"]["reads"][-1]["index"] == [0, *[1] * 5, *[2] * 5, *[3] * 5, *[4] * 3]


@pytest.mark.parametrize("interface", INTERFACES, ids=repr)
def test_headrace_reads_what_guideloom_wrote(theirs, seen_in_theirs, interface):
    assert seen_by_us(theirs, interface) == seen_in_theirs


def test_the_payloads_that_guideloom_wrote_are_decoded(theirs):
    for name in set(CASES) - {"nothing"}:
        in_order = sorted(records(name), key=lambda placed: placed[0])
        wanted = [payload for _, record in in_order for payload in record["payload_values"]]
        with StreamWithMetaStorage(theirs / name, spans_format(name)).sync_reader() as reader:
            sample = reader.read(0, reader.total_length)
        lengths = [length for _, record in in_order for length in record["span_lengths"]]
        np.testing.assert_array_equal(sample["span_lengths"], np.array(lengths), strict=True)
        for found, payload in zip(sample["payloads"], wanted, strict=True):
            np.testing.assert_array_equal(found, payload, strict=isinstance(payload, np.ndarray))


@pytest.mark.parametrize("how", WRITERS)
def test_both_write_the_same_bytes_and_the_same_files(theirs, how, tmp_path):
    write(tmp_path, how)
    written = data_files(tmp_path)
    assert written == data_files(theirs)
    # A record of size 0 leaves the stream's file and no other.
    assert {path for path in written if path.startswith("nothing/")} == {
        "nothing/0000000.in_band.bin",
        "nothing/0000001.in_band.bin",
    }
    assert len([path for path in written if path.startswith("bytes/")]) == 3 * 3 + 2


def test_what_guideloom_wrote_is_known_for_what_it_is(theirs):
    for name in set(CASES) - {"nothing"}:  # empty stream files alone tell nothing
        assert type(open_storage(theirs / name)) is StreamWithMetaStorage
