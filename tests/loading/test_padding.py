"""Padding: rows of one tensor, of any type, to either side; and which tokens stand for a sequence."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace import PaddingSide1D, TokenPoolingType, pad_stack_1d, token_pooling_mask_from_attention_mask
from headrace.errors import OptionError

DTYPES = (torch.int64, torch.uint8, torch.int16, torch.float32, torch.bfloat16, torch.bool)
rows = st.lists(st.lists(st.integers(0, 1), max_size=9), min_size=1, max_size=9)
sides = st.sampled_from(list(PaddingSide1D))


@given(rows, sides, st.sampled_from(DTYPES), st.none() | st.integers(1, 8))
def test_every_row_is_its_item_and_padding_beside_it(items, side, dtype, multiple):
    tensors = [torch.tensor(item, dtype=dtype) for item in items]
    padded = pad_stack_1d(tensors, 1, side, multiple)
    longest = max(map(len, items))
    assert padded.shape == (len(items), -(-longest // (multiple or 1)) * (multiple or 1))
    assert padded.dtype == dtype
    for item, row in zip(items, padded.tolist(), strict=True):
        padding = [1] * (len(row) - len(item))
        assert row == (item + padding if side == "right" else padding + item)


def test_items_are_padded_to_the_right_unless_told_otherwise():
    items = [torch.tensor([1, 2, 3]), torch.tensor([4])]
    assert pad_stack_1d(items, 0).tolist() == [[1, 2, 3], [4, 0, 0]]
    assert pad_stack_1d(items, 0, PaddingSide1D.left).tolist() == [[1, 2, 3], [0, 0, 4]]
    assert pad_stack_1d(tuple(items), pad_value=-100, pad_to_multiple_of=2).tolist() == [
        [1, 2, 3, -100],
        [4] + [-100] * 3,
    ]


def test_items_of_one_length_are_copied_too():
    item = torch.arange(4)
    for items in ([item], [item, item]):
        padded = pad_stack_1d(items, 0, pad_to_multiple_of=2)
        padded += 1
        assert padded.tolist() == [[1, 2, 3, 4]] * len(items)
    assert item.tolist() == [0, 1, 2, 3]


def test_views_are_padded_and_gradients_flow_through():
    whole = torch.arange(6.0, requires_grad=True)
    pad_stack_1d([whole[::2], whole[5:]], 7.5).sum().backward()
    assert whole.grad.tolist() == [1, 0, 1, 0, 1, 1]


@pytest.mark.parametrize(
    ("dtype", "pad_value", "expected"),
    [
        (torch.uint8, -100, "a whole number from 0 to 255"),
        (torch.uint8, 256, "from 0 to 255"),
        (torch.int16, 50256, "from -32768 to 32767"),
        (torch.int64, 0.5, "a whole number"),
        (torch.int64, float("nan"), "a whole number"),
        (torch.int64, float("inf"), "a whole number"),
        (torch.bool, 2, "from 0 to 1"),
    ],
)
def test_a_pad_value_that_would_become_another_number_is_refused(dtype, pad_value, expected):
    with pytest.raises(OptionError, match=f"pad_value=.*{expected}"):
        pad_stack_1d([torch.ones(2, dtype=dtype)], pad_value)


def test_floats_are_padded_with_any_number():
    padded = pad_stack_1d([torch.ones(1), torch.ones(2)], float("-inf"))
    assert padded.tolist() == [[1, float("-inf")], [1, 1]]
    assert pad_stack_1d([torch.tensor([1]), torch.tensor([2, 3])], 4.0).tolist() == [[1, 4], [2, 3]]


@pytest.mark.parametrize(
    ("items", "options", "error", "text"),
    [
        ([], {}, OptionError, "items=.*at least one tensor"),
        ([[1, 2]], {}, TypeError, r"item 0 is of type list.*with_format\(\"torch\"\)"),
        ([torch.ones(2), torch.ones(1, 2)], {}, OptionError, r"item 1 of shape \(1, 2\)"),
        ([torch.tensor(3)], {}, OptionError, r"item 0 of shape \(\)"),
        ([torch.ones(1)], {"padding_side": "middle"}, OptionError, "padding_side='middle'.*'left' or 'right'"),
        ([torch.ones(1)], {"pad_to_multiple_of": 0}, OptionError, "pad_to_multiple_of=0"),
        ([torch.ones(1)], {"pad_to_multiple_of": 8.0}, TypeError, "pad_to_multiple_of must be an integer, not 8.0"),
    ],
)
def test_what_cannot_be_padded_is_refused_by_name(items, options, error, text):
    with pytest.raises(error, match=text):
        pad_stack_1d(items, 0, **options)


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=8), sides, st.sampled_from(list(TokenPoolingType)), st.booleans()
)
def test_each_row_is_marked_at_its_first_or_last_token_or_at_all(counts, side, kind, as_bool):
    mask = pad_stack_1d([torch.ones(count, dtype=torch.int64) for count in [*counts, 6]], 0, side)
    marks = token_pooling_mask_from_attention_mask(mask.bool() if as_bool else mask, kind, side)
    assert marks.dtype == torch.int64
    for tokens, found in zip(mask.tolist(), marks.tolist(), strict=True):
        columns = [column for column, token in enumerate(tokens) if token]
        if kind == "all":
            assert found == tokens
        elif columns:
            assert found == [int(column == columns[0 if kind == "first" else -1]) for column in range(6)]
        else:
            assert found == [int(column == (0 if side == "right" else 5)) for column in range(6)]


def test_a_row_without_tokens_has_one_mark_so_that_picked_rows_stay_in_line():
    mask = torch.tensor([[1, 1, 0], [0, 0, 0], [1, 0, 0]])
    hidden = torch.arange(9).reshape(3, 3)
    marks = token_pooling_mask_from_attention_mask(mask, "last")
    assert hidden[marks.bool()].tolist() == [1, 3, 6]


def test_masks_without_rows_or_columns_have_no_marks():
    for shape in ((0, 4), (3, 0), (0, 0)):
        for kind in TokenPoolingType:
            assert token_pooling_mask_from_attention_mask(torch.ones(shape), kind).shape == shape


@pytest.mark.parametrize(
    ("mask", "options", "text"),
    [
        (torch.ones(3), {}, r"attention_mask=.*shape \(3,\).*\(batch, sequence\)"),
        (torch.ones(1, 3), {"pooling_type": "mean"}, "pooling_type='mean'.*'first' or 'last' or 'all'"),
        (torch.ones(1, 3), {"padding_side": "top"}, "padding_side='top'"),
    ],
)
def test_masks_that_mean_nothing_are_refused(mask, options, text):
    with pytest.raises(OptionError, match=text):
        token_pooling_mask_from_attention_mask(mask, **{"pooling_type": "last", **options})
