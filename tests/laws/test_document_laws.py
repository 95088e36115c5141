"""Documents and annotated streams over any layout of shards and any store, against plain Python, one item at a time."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dataset.payload_scenes import (
    STORES,
    Generating,
    SlowSpans,
    counted_spans,
    documents_at,
    plain,
    spans_at,
)
from headrace.datasets import DocumentStorage, StreamDataset
from headrace.formats.annotated import SpanNumpyFormat
from headrace.formats.documents import DocumentBytesFormat, DocumentNumpyFormat
from headrace.store import MemoryStore

payloads = st.binary(max_size=3)
documents = st.lists(st.lists(st.binary(max_size=6), max_size=5), min_size=1, max_size=5)
records = st.lists(st.tuples(st.integers(1, 5), payloads), max_size=4)  # spans; a record may have none
annotated = st.lists(st.lists(records, max_size=3), min_size=1, max_size=5)
stores = st.sampled_from(sorted(STORES))
formats = st.sampled_from([Generating(), SpanNumpyFormat("<u2")])
batches = st.lists(st.integers(-(10**4), 10**4), max_size=9)
many = settings(max_examples=4 * settings.default.max_examples)


@given(shards=documents, store=stores, batches=st.lists(batches, max_size=3), cut=st.slices(30))
def test_documents_are_those_of_a_list_in_any_order_and_batch(shards, store, batches, cut):
    flat = [document for shard in shards for document in shard]
    storage = documents_at(STORES[store](), shards, DocumentBytesFormat())
    dataset = storage.dataset()
    assert dataset[cut] == flat[cut]
    assert dataset.lengths.tolist() == [len(document) for document in flat]
    assert dataset.shard_lengths.tolist() == [len(shard) for shard in shards]
    with storage.sync_reader() as reader:
        for batch in batches if flat else []:
            items = [number % (2 * len(flat)) - len(flat) for number in batch]
            assert dataset.__getitems__(items) == [flat[item] for item in items]
            assert dataset.__getitems__(np.array(items, np.int64)) == [flat[item] for item in items]
            assert [dataset[item] for item in items] == [flat[item] for item in items]
            inside = [item % len(flat) for item in items]
            assert reader.read_many(inside) == [reader.read(item) for item in inside] == [flat[item] for item in inside]


@given(
    shards=st.lists(st.lists(st.lists(st.integers(0, 65535), max_size=6), max_size=4), min_size=1, max_size=4),
    store=stores,
)
def test_what_is_written_to_samples_changes_no_other_sample(shards, store):
    flat = [document for shard in shards for document in shard]
    dataset = documents_at(STORES[store](), shards, DocumentNumpyFormat("<u2")).dataset()
    samples = dataset[:] + dataset[::-1]
    for number, sample in enumerate(samples):
        sample[:] = number
    assert [sample.tolist() for sample in samples] == [
        [number] * len(document) for number, document in enumerate(flat + flat[::-1])
    ]
    assert [sample.tolist() for sample in dataset] == flat
    assert DocumentStorage(dataset.storage.store, DocumentBytesFormat()).dataset().lengths.tolist() == [
        2 * len(document) for document in flat
    ]


@many
@given(
    shards=annotated,
    store=stores,
    storage_format=formats,
    sequence_length=st.integers(1, 9),
    stride=st.none() | st.integers(1, 7),
    extra=st.integers(0, 2),
    batches=st.lists(batches, max_size=3),
)
def test_windows_have_the_elements_and_spans_that_one_step_an_element_finds(
    shards, store, storage_format, sequence_length, stride, extra, batches
):
    storage = spans_at(STORES[store](), counted_spans(shards), storage_format)
    dataset = StreamDataset(storage, sequence_length, stride, extra)
    slow, length = SlowSpans(shards), sequence_length + extra
    starts = range(0, len(slow.elements) - length + 1, dataset.stride)
    assert len(dataset) == len(starts)
    expect = slow.window if isinstance(storage_format, Generating) else slow.sample
    for batch in [*batches, range(len(starts))] if starts else [[]]:
        items = [number % (2 * len(starts)) - len(starts) for number in batch]
        expected = [expect(starts[item], length) for item in items]
        spans = dataset.__getitems__(items)
        assert [plain(sample) for sample in spans] == expected
        assert [plain(dataset[item]) for item in items] == expected
        assert_spans(spans, [slow.window(starts[item], length) for item in items], length)


def assert_spans(batch, windows, length):
    """The batch's arrays are those of these windows, and of the promised types and shapes."""
    assert batch.elements.shape == (len(windows), length)
    assert batch.elements.tolist() == [tokens for tokens, *_ in windows]
    assert batch.document_index.tolist() == [entries for _, _, entries, _ in windows]
    assert [bytes(payload) for payload in batch.payloads] == [one for *_, each in windows for one in each]
    assert batch.shards.tolist() == [shard for _, shards, *_ in windows for shard in shards]
    assert batch.span_lengths.tolist() == [
        entries.count(k) for _, _, entries, each in windows for k in range(len(each))
    ]
    assert batch.row_spans.tolist() == np.cumsum([0, *(len(each) for *_, each in windows)]).tolist()
    for numbers in (batch.span_lengths, batch.row_spans, batch.shards):
        assert (numbers.dtype, numbers.ndim) == (np.int64, 1)
    assert batch.document_index.dtype == np.int32
    assert batch.elements.dtype == np.uint16


@given(
    shards=annotated,
    store=stores,
    storage_format=formats,
    reads=st.lists(st.tuples(st.integers(0), st.integers(0, 90))),
)
def test_a_read_runs_over_shards_and_wraps_as_often_as_it_must(shards, store, storage_format, reads):
    storage = spans_at(STORES[store](), counted_spans(shards), storage_format)
    slow = SlowSpans(shards)
    expect = slow.window if isinstance(storage_format, Generating) else slow.sample
    with storage.sync_reader() as reader:
        assert (reader.num_shards, reader.total_length) == (len(shards), len(slow.elements))
        for start, length in reads if slow.elements else []:
            start %= len(slow.elements)
            assert plain(reader.read(start, length)) == expect(start, length)


@given(shards=annotated)
def test_spans_at_once_and_guideloom_s_generator_write_the_same_bytes(shards):
    slow = spans_at(MemoryStore(), counted_spans(shards), Generating())
    fast = spans_at(MemoryStore(), counted_spans(shards), SpanNumpyFormat("<u2"))
    written = [
        {info.path: storage.store.get(info.path) for info in storage.store.list(recursive=False)}
        for storage in (slow, fast)
    ]
    assert written[0] == written[1]
    assert {name for name in written[0] if name.endswith("in_band.bin")} == {
        f"{shard:07d}.in_band.bin" for shard in range(len(shards))
    }
    for shard, shard_records in enumerate(shards):
        spans = [span for record in shard_records for span in record]
        numbers = [number for number, (length, _) in enumerate(spans) for _ in range(length)]
        elements = np.frombuffer(written[0][f"{shard:07d}.in_band.bin"], [("index", "<i4"), ("user", "<u2")])
        assert elements["index"].tolist() == numbers
        if not spans:
            assert f"{shard:07d}.out_of_band.bin" not in written[0]
            continue
        assert written[0][f"{shard:07d}.out_of_band.bin"] == b"".join(payload for _, payload in spans)
        ends = np.cumsum([0, *(len(payload) for _, payload in spans)])
        assert written[0][f"{shard:07d}.out_of_band.index"] == ends.astype("<i8").tobytes()
