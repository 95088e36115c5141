"""stack_segments: what a model needs so that no document sees another one, against one step a token."""

import itertools
import json
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dataset.payload_scenes import Generating, SlowSpans, counted_spans, spans_at, unsynced
from headrace import stack_segments
from headrace.datasets import StreamDataset, StreamStorage, StreamWithMetaStorage
from headrace.formats.annotated import SpanNumpyFormat
from headrace.formats.documents import DocumentJsonFormat
from headrace.formats.stream import StreamNumpyFormat
from headrace.store import MemoryStore
from loading.payload_samples import PROCESSES
from loading.samples import IN_PROCESS, WORKERS, make

LENGTHS = [3, 5, 2, 6]  # the documents of most tests: 16 tokens, 0 to 15


def four_documents(place=None, dtype="<u2"):
    spans = [[[(length, b"%d" % number) for number, length in enumerate(LENGTHS)]]]
    return spans_at(MemoryStore() if place is None else place, counted_spans(spans), SpanNumpyFormat(dtype))


def window(tokens, span_lengths, **fields):
    """A sample as SpanNumpyFormat gives it."""
    tokens = np.asarray(tokens, np.uint16)
    spans = np.asarray(span_lengths, np.int64)
    return {"tokens": tokens, "span_lengths": spans, "payloads": [b""] * len(span_lengths), **fields}


def slow_batch(windows, *, labels):
    """The batch of (tokens, span lengths), one token after another."""
    batch = {"input_ids": [], "position_ids": [], "segment_ids": [], "cu_seqlens": [0]}
    if labels:
        batch["labels"] = []
    for tokens, spans in windows:
        segments = [number for number, length in enumerate(spans, 1) for _ in range(length)]
        segments += [0] * (len(tokens) - len(segments))
        if labels:
            pairs = zip(segments, segments[1:], tokens[1:], strict=False)
            batch["labels"].append([new if left == right != 0 else -100 for left, right, new in pairs])
            tokens, segments = tokens[:-1], segments[:-1]
        positions = []
        for place, segment in enumerate(segments):
            goes_on = place > 0 and segments[place - 1] == segment
            positions.append(positions[-1] + 1 if goes_on else 0)
            if not goes_on and place > 0:
                batch["cu_seqlens"].append(place + sum(map(len, batch["input_ids"])))
        batch["input_ids"].append(list(tokens))
        batch["segment_ids"].append(segments)
        batch["position_ids"].append(positions)
        batch["cu_seqlens"].append(sum(map(len, batch["input_ids"])))
    if labels:
        counted = [label != -100 for row in batch["labels"] for label in row]
        batch["num_targets"] = sum(counted)
        batch["segment_targets"] = [sum(counted[begin:end]) for begin, end in itertools.pairwise(batch["cu_seqlens"])]
    return batch


def lists(batch):
    return {name: tensor.tolist() for name, tensor in batch.items()}


def test_boundaries_in_a_pack():
    batch = stack_segments()(four_documents().dataset(8)[:])
    assert lists(batch) == {
        "input_ids": [[0, 1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 11, 12, 13, 14, 15]],
        "position_ids": [[0, 1, 2, 0, 1, 2, 3, 4], [0, 1, 0, 1, 2, 3, 4, 5]],
        "segment_ids": [[1, 1, 1, 2, 2, 2, 2, 2], [1, 1, 2, 2, 2, 2, 2, 2]],
        "cu_seqlens": [0, 3, 8, 10, 16],
    }
    assert {name: (tensor.dtype, tensor.is_contiguous()) for name, tensor in batch.items()} == {
        "input_ids": (torch.uint16, True),
        "position_ids": (torch.int64, True),
        "segment_ids": (torch.int64, True),
        "cu_seqlens": (torch.int32, True),
    }
    alone = stack_segments()(four_documents().dataset(8)[:1])
    assert alone["cu_seqlens"].tolist() == [0, 3, 8]


def test_padding_is_a_segment_of_its_own_without_labels():
    padded = window([0, 1, 2, 3, 4, 99, 99, 99], [3, 2])
    full = window([5, 6, 7, 8, 9, 10, 11, 12], [8])
    nothing = window([99] * 8, [])
    batch = lists(stack_segments()([padded, full, nothing]))
    assert batch["segment_ids"] == [[1, 1, 1, 2, 2, 0, 0, 0], [1] * 8, [0] * 8]
    assert batch["position_ids"] == [[0, 1, 2, 0, 1, 0, 1, 2], list(range(8)), list(range(8))]
    assert batch["cu_seqlens"] == [0, 3, 5, 8, 16, 24]
    batch = lists(stack_segments(labels=True)([padded, full, nothing]))
    assert batch["labels"] == [[1, 2, -100, 4, -100, -100, -100], [6, 7, 8, 9, 10, 11, 12], [-100] * 7]
    assert batch["segment_ids"] == [[1, 1, 1, 2, 2, 0, 0], [1] * 7, [0] * 7]
    assert batch["cu_seqlens"] == [0, 3, 5, 7, 14, 21]


def test_the_label_of_a_document_s_last_token_never_points_into_the_next_one():
    batch = stack_segments(labels=True)(four_documents().dataset(15, extra=1)[:])
    assert batch["input_ids"].tolist() == [list(range(15))]
    assert batch["labels"].tolist() == [[1, 2, -100, 4, 5, 6, 7, -100, 9, -100, 11, 12, 13, 14, 15]]
    assert batch["labels"].dtype == torch.int64
    assert batch["cu_seqlens"].tolist() == [0, 3, 8, 10, 15]


def test_a_last_document_of_one_token_is_only_a_label():
    batch = lists(stack_segments(labels=True)([window([7, 8, 9], [2, 1]), window([1, 2, 3], [1, 1])]))
    assert batch == {
        "input_ids": [[7, 8], [1, 2]],
        "labels": [[8, -100], [-100, -100]],
        "segment_ids": [[1, 1], [1, 2]],
        "position_ids": [[0, 1], [0, 0]],
        "cu_seqlens": [0, 2, 3, 4],
        "num_targets": 1,
        "segment_targets": [1, 0, 0],
    }


@st.composite
def padded_windows(draw):
    """(tokens, span lengths) of equal windows, whose spans may end before they do."""
    length = draw(st.integers(2, 12))
    windows = []
    for _ in range(draw(st.integers(1, 5))):
        cuts = draw(st.lists(st.integers(0, length), max_size=5, unique=True).map(sorted))
        spans = [end - begin for begin, end in zip([0, *cuts], cuts, strict=False) if end > begin]
        windows.append((draw(st.lists(st.integers(0, 65535), min_size=length, max_size=length)), spans))
    return windows


many = settings(max_examples=8 * settings.default.max_examples)


@many
@given(windows=padded_windows(), labels=st.booleans(), dtype=st.sampled_from([None, torch.int64, torch.int32]))
def test_any_spans_and_padding_are_those_of_one_step_a_token(windows, labels, dtype):
    batch = stack_segments(dtype=dtype, labels=labels)([window(*one) for one in windows])
    assert lists(batch) == slow_batch(windows, labels=labels)
    assert batch["input_ids"].dtype == (dtype or torch.uint16)


spans = st.lists(st.tuples(st.integers(1, 6), st.just(b"")), max_size=4)
shards = st.lists(st.lists(spans, max_size=2), min_size=1, max_size=4)


@many
@given(
    shards=shards,
    sequence_length=st.integers(2, 9),
    stride=st.none() | st.integers(1, 5),
    labels=st.booleans(),
    rows=st.lists(st.integers(0, 99), min_size=1, max_size=8),
)
def test_a_batch_of_spans_a_list_of_samples_and_one_step_a_token_agree(shards, sequence_length, stride, labels, rows):
    dataset = StreamDataset(
        spans_at(MemoryStore(), counted_spans(shards), SpanNumpyFormat("<u2")), sequence_length, stride
    )
    if len(dataset) == 0:
        return
    items = [row % len(dataset) for row in rows]
    slow = SlowSpans(shards)
    windows = [slow.sample(item * dataset.stride, sequence_length) for item in items]
    collate = stack_segments(labels=labels)
    samples = dataset.__getitems__(items)
    batch = collate(samples)
    assert lists(batch) == slow_batch([(one["tokens"], one["span_lengths"]) for one in windows], labels=labels)
    for other in (list(samples), tuple(dataset[item] for item in items), pickle.loads(pickle.dumps(samples))):
        for name, tensor in collate(other).items():
            assert torch.equal(tensor, batch[name])
            assert tensor.dtype == batch[name].dtype


@given(shards=shards, data=st.data())
def test_every_pair_of_neighbours_in_a_document_is_a_label_exactly_once(shards, data):
    lengths = [length for records in shards for record in records for length, _ in record]
    pairs = sum(lengths) - 1
    if pairs < 1:
        return
    step = data.draw(st.sampled_from([step for step in range(1, pairs + 1) if pairs % step == 0]))  # no rest is dropped
    storage = spans_at(MemoryStore(), counted_spans(shards), SpanNumpyFormat("<u2"))
    dataset = storage.dataset(step, extra=1)
    batch = stack_segments(dtype=torch.int64, labels=True)(dataset[:])
    seen = [
        (first, label)
        for first, label in zip(batch["input_ids"].flatten().tolist(), batch["labels"].flatten().tolist(), strict=True)
        if label != -100
    ]
    begin, expected = 0, []
    for length in lengths:
        expected += [(token, token + 1) for token in range(begin, begin + length - 1)]
        begin += length
    assert seen == expected
    assert batch["input_ids"].flatten().tolist() == list(range(pairs))


def test_all_tokens_come_out_once_whatever_the_window():
    for length in (1, 2, 4, 8, 16):
        batch = stack_segments()(four_documents().dataset(length)[:])
        assert batch["input_ids"].flatten().tolist() == list(range(16))
        assert int(batch["cu_seqlens"][-1]) == 16
        assert (batch["cu_seqlens"].diff() > 0).all()


# Types, fields, empty batches.


@pytest.mark.parametrize("stored", ["<u2", "<u4", "<i4", "<i8", "u1"])
@pytest.mark.parametrize("dtype", [None, torch.int64, torch.int32])
def test_tokens_are_as_stored_or_cast(stored, dtype):
    batch = stack_segments(dtype=dtype, labels=True)(four_documents(dtype=stored).dataset(8)[:])
    kept = {"<u2": torch.uint16, "<u4": torch.uint32, "<i4": torch.int32, "<i8": torch.int64, "u1": torch.uint8}
    assert batch["input_ids"].dtype == (dtype or kept[stored])
    assert batch["labels"].dtype == torch.int64
    assert batch["input_ids"].to(torch.int64).tolist() == [list(range(7)), list(range(8, 15))]
    assert batch["labels"].tolist()[0] == [1, 2, -100, 4, 5, 6, 7]


def test_a_token_that_the_new_type_cannot_hold_is_refused_and_labels_keep_it():
    samples = [window([1, 65535, 2], [3])]
    with pytest.raises(ValueError, match="field 'tokens' has the value 65535, which int16 cannot hold"):
        stack_segments(dtype=torch.int16)(samples)
    assert stack_segments(labels=True)(samples)["labels"].tolist() == [[65535, 2]]


def test_any_field_of_records_may_hold_the_tokens():
    dtype = [("ids", "<u4"), ("mask", "u1")]
    storage = StreamWithMetaStorage(MemoryStore(), SpanNumpyFormat(dtype, DocumentJsonFormat()))
    with storage.sync_writer() as writer:
        record = {"ids": range(8), "mask": [1] * 8, "span_lengths": [5, 3], "payloads": [{"a": 1}, None]}
        writer.append(0, record)
    for samples in (storage.dataset(4)[:], list(storage.dataset(4)[:])):
        batch = stack_segments("ids")(samples)
        assert batch["input_ids"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert batch["input_ids"].dtype == torch.uint32
        assert batch["segment_ids"].tolist() == [[1, 1, 1, 1], [1, 2, 2, 2]]
        with pytest.raises(ValueError, match="the windows have no field 'tokens'; they have 'ids'"):
            stack_segments()(samples)


def test_a_batch_is_stacked_whatever_its_format_makes_of_samples():
    storage = spans_at(MemoryStore(), counted_spans([[[(3, b""), (5, b"")]]]), Generating())
    assert stack_segments()(storage.dataset(8)[:])["cu_seqlens"].tolist() == [0, 3, 8]
    with pytest.raises(TypeError, match=r"needs windows with spans.*not tuple"):
        stack_segments()(list(storage.dataset(8)[:]))


class Shifted(SpanNumpyFormat):
    """Decodes spans in a way of its own: every token is one more, and a span ends where a row does."""

    def unpack_spans(self, stream, span_lengths, payloads):
        return {"tokens": stream + np.uint16(1), "span_lengths": np.array([len(stream)])}


@pytest.mark.parametrize("workers", IN_PROCESS)
def test_a_format_with_an_unpack_spans_of_its_own_is_asked_for_its_samples(workers):
    dataset = StreamDataset(StreamWithMetaStorage(four_documents().store, Shifted("<u2")), 8)
    expected = {
        "input_ids": [list(range(1, 9)), list(range(9, 17))],
        "position_ids": [list(range(8))] * 2,
        "segment_ids": [[1] * 8] * 2,
        "cu_seqlens": [0, 8, 16],
    }
    assert lists(stack_segments()(dataset[:])) == lists(stack_segments()(list(dataset[:]))) == expected
    with make(dataset, stack_segments(), local_batch_size=2, **WORKERS[workers]) as loader:
        assert [lists(batch) for batch in loader] == [expected]


def test_tensors_do_not_change_the_batch_they_were_made_of():
    samples = four_documents().dataset(8)[:]
    for labels in (False, True):
        for tensor in stack_segments(labels=labels)(samples).values():
            tensor.fill_(1)
        assert samples.span_lengths.tolist() == LENGTHS
        assert samples.row_spans.tolist() == [0, 2, 4]
    assert samples.elements.tolist() == [list(range(8)), list(range(8, 16))]


@pytest.mark.parametrize("labels", [False, True])
@pytest.mark.parametrize("workers", [*IN_PROCESS, "fork"])
def test_a_rank_without_rows_gets_tensors_of_none(labels, workers):
    dataset = four_documents().dataset(5)  # three windows
    collate = stack_segments(dtype=torch.int32, labels=labels)
    options = {"rank": 1, "world_size": 2, "global_batch_size": 2, "drop_last": False}
    with make(dataset, collate, **options, **WORKERS[workers]) as loader:
        full, empty = list(loader)
    assert full.keys() == empty.keys()
    for name, tensor in empty.items():
        assert tensor.dtype == full[name].dtype
        if name not in ("cu_seqlens", "num_targets"):
            assert (len(tensor), tensor.shape[1:]) == (0, full[name].shape[1:])
    assert empty["cu_seqlens"].tolist() == [0]


@pytest.mark.parametrize("workers", [*IN_PROCESS, "fork", "spawn"])
def test_every_kind_of_worker_gives_the_same_and_goes_on_the_same(workers, tmp_path):
    options = {"local_batch_size": 1, "shuffle": True}
    how = {**(WORKERS | PROCESSES)[workers], "persistent_workers": workers == "spawn"}  # which is slow to start
    collate = stack_segments(dtype=torch.int64, labels=True)
    dataset = four_documents(unsynced(tmp_path)).dataset(4)
    reference = make(dataset, collate, **options)
    states, expected = [], []
    for batch in reference:
        expected.append(lists(batch))
        states.append(json.loads(json.dumps(reference.state_dict())))
    with make(dataset, collate, **options, **how) as loader:
        assert [lists(batch) for batch in loader] == expected
        loader.load_state_dict(states[0])
        assert [lists(batch) for batch in loader] == expected[1:]


def test_a_collate_function_says_how_it_was_made():
    assert repr(stack_segments()) == "stack_segments('tokens', dtype=None, labels=False)"
    assert "int64" in repr(pickle.loads(pickle.dumps(stack_segments("ids", torch.int64, labels=True))))


# Refusals.


@pytest.mark.parametrize(
    ("samples", "error", "text"),
    [
        ([], ValueError, "no samples to stack"),
        ([{"tokens": np.zeros(3)}], TypeError, "needs windows with spans, from a StreamWithMetaStorage"),
        ([np.zeros(3)], TypeError, "needs windows with spans.*not ndarray"),
        ([window([1, 2], [2]), window([1, 2, 3], [3])], ValueError, "windows have different lengths, 2 to 3"),
        (
            [window([1, 2], [2]), window([1, 2], [1, 2])],
            ValueError,
            "the spans of row 1 are longer than its window of 2",
        ),
        ([{"ids": np.zeros(3), "span_lengths": [3]}], ValueError, "no field 'tokens'; they have 'ids', 'span_lengths'"),
    ],
)
def test_what_is_no_batch_of_windows_is_refused_by_name(samples, error, text):
    with pytest.raises(error, match=text):
        stack_segments()(samples)


@pytest.mark.parametrize("dtype", ["<u2", [("ids", "<u2"), ("weight", "<f4")]])
def test_a_wrong_field_is_refused_for_batches_as_it_is_for_lists_of_samples(dtype):
    record = {"span_lengths": [1, 2], "payloads": [b"", b""]}
    record |= {name: [1, 2, 3] for name in np.dtype(dtype).names or ["tokens"]}
    batch = spans_at(MemoryStore(), [[record]], SpanNumpyFormat(dtype)).dataset(3)[:]
    for samples in (batch, list(batch)):
        with pytest.raises(ValueError, match=r"the windows have no field 'nonsense'; they have '(tokens|ids)'"):
            stack_segments("nonsense")(samples)


def test_labels_need_two_elements():
    with pytest.raises(ValueError, match="labels need windows of at least two elements"):
        stack_segments(labels=True)(four_documents().dataset(1)[:])
    assert stack_segments(labels=True)(four_documents().dataset(1, extra=1)[:])["labels"].shape == (15, 1)


def test_plain_windows_are_refused_by_what_they_lack():
    storage = StreamStorage(MemoryStore(), StreamNumpyFormat([("tokens", "<u2")]))
    with storage.sync_writer() as writer:
        writer.append(0, {"tokens": range(8)})
    with pytest.raises(TypeError, match="needs windows with spans, from a StreamWithMetaStorage with SpanNumpyFormat"):
        next(iter(make(storage.dataset(4), stack_segments())))


# What all of this is for.


def attention(tokens, positions, allowed):
    """A causal attention layer with fixed weights: (length, 8) for the tokens at these positions."""
    draw = torch.Generator().manual_seed(3)
    embedding, places = torch.randn(64, 8, generator=draw), torch.randn(16, 8, generator=draw)
    query, key, value = (torch.randn(8, 8, generator=draw) for _ in range(3))
    x = embedding[tokens.long()] + places[positions]
    causal = torch.ones(len(tokens), len(tokens), dtype=torch.bool).tril()
    return torch.nn.functional.scaled_dot_product_attention(x @ query, x @ key, x @ value, attn_mask=causal & allowed)


@pytest.mark.parametrize("length", [4, 8, 16])
def test_attention_within_segments_is_that_over_each_document_alone(length):
    batch = stack_segments(dtype=torch.int64)(four_documents().dataset(length)[:])
    outputs = []
    for tokens, positions, segments in zip(
        batch["input_ids"], batch["position_ids"], batch["segment_ids"], strict=True
    ):
        outputs.append(attention(tokens, positions, segments[:, None] == segments[None, :]))
    packed = torch.cat(outputs)
    flat, bounds = batch["input_ids"].flatten(), batch["cu_seqlens"].tolist()
    for begin, end in itertools.pairwise(bounds):
        document = flat[begin:end]
        everything = torch.ones(end - begin, end - begin, dtype=torch.bool)
        alone = attention(document, torch.arange(end - begin), everything)
        torch.testing.assert_close(packed[begin:end], alone)
    if length >= 8:  # no document is cut
        assert np.diff(bounds).tolist() == LENGTHS
