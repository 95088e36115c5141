"""Packed documents on their way to the loop: where one ends and the next begins, and documents that fit no row."""

import numpy as np
import pytest
import torch

from headrace import PackedDataset, WithLengths, stack_segments
from headrace.errors import OrderError
from training.ranks import stream_of, streams_of

COLLATE = stack_segments(dtype=torch.int64, labels=True)


def documents(lengths):
    """Documents whose tokens are numbered on, from 1."""
    ends = np.cumsum(lengths)
    arrays = [np.arange(end - length + 1, end + 1) for end, length in zip(ends, lengths, strict=True)]
    return WithLengths(arrays, np.array(lengths))


def microbatches(packs):
    return [microbatch for pack in packs for microbatch in pack]


def tokens_of(microbatch):
    return microbatch["input_ids"][microbatch["segment_ids"] > 0].tolist()


@pytest.mark.parametrize("world_size", [1, 2])
def test_documents_of_3_5_2_and_6_tokens_stay_apart_in_the_rows_of_every_rank(world_size):
    rows = PackedDataset(documents([3, 5, 2, 6]), 8, strategy="first_fit")
    streams = streams_of(rows, {"global_batch_size": 2, "microbatch_size": 1}, world_size, COLLATE)
    found = microbatches(pack for stream in streams for pack in stream)
    assert len(found) == 2
    assert sorted(token for one in found for token in tokens_of(one)) == list(range(1, 17)), "all 16 come out once"
    of_three_and_five = next(one for one in found if 1 in tokens_of(one))
    assert of_three_and_five["position_ids"].tolist() == [[0, 1, 2, 0, 1, 2, 3, 4]]
    assert of_three_and_five["cu_seqlens"].tolist() == [0, 3, 8]
    assert len(set(of_three_and_five["segment_ids"][0].tolist())) == 2
    assert of_three_and_five["labels"].tolist() == [[2, 3, -100, 5, 6, 7, 8, -100]], "no label points into the next"


def test_padding_has_no_label_and_a_segment_of_its_own():
    rows = PackedDataset(documents([3, 4]), 8)
    (microbatch,) = microbatches(stream_of(rows, {"global_batch_size": 1, "microbatch_size": 1}, collator=COLLATE))
    assert microbatch["segment_ids"].tolist() == [[1, 1, 1, 2, 2, 2, 2, 0]]
    assert microbatch["labels"].tolist() == [[2, 3, -100, 5, 6, 7, -100, -100]]


def test_documents_of_9_20_and_4_tokens_are_split_and_all_33_tokens_come_out():
    rows = PackedDataset(documents([9, 20, 4]), 8, long="split")
    packs = stream_of(rows, {"global_batch_size": 1, "microbatch_size": 1}, collator=COLLATE)
    assert sorted(token for one in microbatches(packs) for token in tokens_of(one)) == list(range(1, 34))


def test_documents_that_are_dropped_are_counted():
    rows = PackedDataset(documents([9, 20, 4, 0, 8]), 8, long="drop")
    streams = streams_of(rows, {"global_batch_size": 2, "microbatch_size": 1}, 2, COLLATE)
    tokens = [token for stream in streams for one in microbatches(stream) for token in tokens_of(one)]
    assert sorted(tokens) == list(range(30, 42))
    report = rows.report()
    assert (report["dropped_documents"], report["dropped_tokens"], report["empty_documents"]) == (2, 29, 1)


def test_a_document_that_is_an_error_is_named_on_every_rank_before_the_first_step():
    rows = PackedDataset(documents([4, 9, 8]), 8, long="error")
    for stream in streams_of(rows, {"global_batch_size": 2, "microbatch_size": 1}, 2, COLLATE):
        with pytest.raises(OrderError, match=r"position 1 .* 9 tokens, more than a row of 8"):
            _ = stream.total_steps


@pytest.mark.parametrize("drop_last", [False, True])
def test_where_every_document_is_dropped_each_rank_says_so_or_ends(drop_last):
    rows = PackedDataset(documents([9, 20]), 8, long="drop")
    config = {"global_batch_size": 2, "microbatch_size": 1, "drop_last": drop_last}
    for stream in streams_of(rows, config, 2, COLLATE):
        if drop_last:
            with pytest.raises(OrderError, match="gives 0 rows, which do not fill one global batch"):
                _ = stream.total_steps
        else:
            assert (stream.total_steps, list(stream)) == (0, [])
