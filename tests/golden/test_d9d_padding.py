"""What d9d 0.24 recorded of padding and of token masks: the same tensors."""

import json
from pathlib import Path

import pytest
import torch

from headrace import pad_stack_1d, token_pooling_mask_from_attention_mask

HERE = Path(__file__).parent / "d9d"


def cases(name):
    return json.loads((HERE / name).read_text(encoding="utf-8"))["cases"]


def test_rows_are_padded_as_d9d_pads_them():
    checked = 0
    for case in cases("pad_stack_1d.json"):
        if "items" not in case:
            continue
        items = [torch.tensor(item, dtype=getattr(torch, case["dtype"])) for item in case["items"]]
        options = {} if case["padding_side"] is None else {"padding_side": case["padding_side"]}
        options |= {} if case["pad_to_multiple_of"] is None else {"pad_to_multiple_of": case["pad_to_multiple_of"]}
        expected = case["result"]
        if "error" in expected:
            assert expected["error"] == "ValueError"
            with pytest.raises(ValueError, match=r"items=\[\]|pad_to_multiple_of="):
                pad_stack_1d(items, case["pad_value"], **options)
        else:
            padded = pad_stack_1d(items, case["pad_value"], **options)
            assert str(padded.dtype) == f"torch.{expected['dtype']}", case
            assert list(padded.shape) == expected["shape"], case
            assert padded.tolist() == expected["data"], case
        checked += 1
    assert checked == 368


def test_what_d9d_says_of_odd_items_holds_too():
    notes = {case["note"]: case["result"] for case in cases("pad_stack_1d.json") if "note" in case}
    mixed = pad_stack_1d([torch.tensor([1, 2]), torch.tensor([3.5])], 0)
    assert (mixed.tolist(), mixed.dtype) == (
        notes.pop("mixed dtypes int64 [1,2] and float32 [3.5], pad 0 right")["data"],
        torch.float32,
    )
    plain = pad_stack_1d([torch.tensor([1, 2]), torch.tensor([3])], 0, "left")
    assert plain.tolist() == notes.pop("side given as plain str 'left'")["data"]
    refused = {
        "2-D items (2,2) and (1,2), pad 0 right": ([torch.ones(2, 2), torch.ones(1, 2)], "right"),
        "0-D item": ([torch.tensor(1)], "right"),
        "side given as bad str": ([torch.ones(1)], "middle"),
    }
    assert set(notes) == set(refused)
    for items, side in refused.values():
        with pytest.raises(ValueError, match=r"is not valid; expected"):
            pad_stack_1d(items, 0, side)


def test_token_masks_are_d9d_s_but_for_the_last_token_of_a_row_that_has_none():
    for case in cases("token_pooling.json"):
        mask, expected = torch.tensor(case["mask"]), case["result"]
        if "error" in expected:
            with pytest.raises(ValueError, match="pooling_type='nope' is not valid"):
                token_pooling_mask_from_attention_mask(mask, case["type"])
            continue
        found = token_pooling_mask_from_attention_mask(mask, case["type"])
        if case["type"] == "last" and not mask.any():
            assert found.tolist() == [[1, 0, 0]]  # as its first one; d9d wraps round to the last column
        else:
            assert found.tolist() == expected["data"], case
        assert found.dtype == torch.int64
