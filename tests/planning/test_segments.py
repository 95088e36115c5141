"""segment_arrays: documents in rows, against one token at a time."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.planning import segment_arrays


def made(rows, row_length):
    lengths = np.array([length for row in rows for length in row], np.int64)
    offsets = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    return segment_arrays(lengths, offsets, row_length)


def slow(rows, row_length):
    """(position_ids, segment_ids, cu_seqlens, goes_on) of rows of lengths, one token at a time."""
    positions, segments, starts = [], [], []
    for row in rows:
        ids = [segment for segment, length in enumerate(row, 1) for _ in range(length)]
        places = [place for length in row for place in range(length)]
        starts += [sum(row[:k]) + row_length * len(segments) for k in range(len(row))]
        if len(ids) < row_length:
            starts.append(len(ids) + row_length * len(segments))
            places += range(row_length - len(ids))
            ids += [0] * (row_length - len(ids))
        positions.append(places)
        segments.append(ids)
    goes_on = [[left == right != 0 for left, right in itertools.pairwise(ids)] for ids in segments]
    return positions, segments, [*starts, row_length * len(rows)], goes_on


def rows_of(row_length, least=0):
    """Rows of documents that are together no longer than row_length."""
    cuts = st.lists(st.integers(0, row_length), max_size=5).map(sorted)
    row = cuts.map(lambda cuts: [end - begin for begin, end in itertools.pairwise([0, *cuts]) if end - begin >= least])
    return st.lists(row, max_size=4)


@given(data=st.data(), row_length=st.integers(1, 12))
def test_any_rows_are_those_of_one_token_at_a_time(data, row_length):
    rows = data.draw(rows_of(row_length))
    arrays = made(rows, row_length)
    positions, segments, starts, goes_on = slow(rows, row_length)
    assert arrays.position_ids.tolist() == positions
    assert arrays.segment_ids.tolist() == segments
    assert arrays.cu_seqlens.tolist() == starts
    assert arrays.goes_on().tolist() == goes_on
    assert (arrays.position_ids.dtype, arrays.segment_ids.dtype) == (np.int64, np.int64)
    assert arrays.cu_seqlens.dtype == np.int32
    assert arrays.position_ids.shape == (len(rows), row_length)


@given(data=st.data(), row_length=st.integers(2, 12))
def test_without_their_last_element_rows_are_as_if_they_had_been_shorter(data, row_length):
    rows = data.draw(rows_of(row_length, least=1))
    shorter = []
    for row in rows:
        if sum(row) == row_length:
            row = [*row[:-1], row[-1] - 1]
        shorter.append([length for length in row if length])
    expected = made(shorter, row_length - 1)
    found = made(rows, row_length).without_last()
    for name in ("position_ids", "segment_ids", "cu_seqlens"):
        assert getattr(found, name).tolist() == getattr(expected, name).tolist()
        assert getattr(found, name).dtype == getattr(expected, name).dtype
        assert getattr(found, name).flags.c_contiguous


def test_no_rows_give_arrays_of_none():
    arrays = made([], 8)
    assert (arrays.position_ids.shape, arrays.segment_ids.shape) == ((0, 8), (0, 8))
    assert arrays.cu_seqlens.tolist() == [0]
    assert arrays.without_last().segment_ids.shape == (0, 7)


def test_a_row_without_documents_is_padding():
    arrays = made([[], [2]], 3)
    assert arrays.segment_ids.tolist() == [[0, 0, 0], [1, 1, 0]]
    assert arrays.cu_seqlens.tolist() == [0, 3, 5, 6]


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="row 1 are longer than its window of 4"):
        made([[4], [3, 2]], 4)
    with pytest.raises(ValueError, match="too many for one batch"):
        segment_arrays(np.zeros(0, np.int64), np.zeros(1 << 11, np.int64), 1 << 20 | 1 << 10)


def test_the_lengths_that_were_given_stay_as_they_are():
    lengths, offsets = np.array([3, 1, 4]), np.array([0, 2, 3])
    arrays = segment_arrays(lengths, offsets, 4)
    for array in arrays:
        array.fill(7)
    assert (lengths.tolist(), offsets.tolist()) == ([3, 1, 4], [0, 2, 3])
