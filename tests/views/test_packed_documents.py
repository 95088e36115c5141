"""What documents may be when they are packed, and which of their fields go along."""

import numpy as np
import pytest
import torch

from headrace import (
    PackedDataset,
)
from headrace.errors import OptionError
from views.packed_scenes import Listed, with_lengths


def one_row(document, length, **options):
    (row,) = PackedDataset(Listed([document], [length]), length + 2, **options)
    return {name: array.tolist() for name, array in row.items() if not name.endswith("_ids") or name == "input_ids"}


MASKED = np.array([(5, 1), (6, 0)], [("tokens", "<u2"), ("mask", "u1")])


@pytest.mark.parametrize(
    ("document", "field", "expected"),
    [
        (np.array([5, 6], np.int32), None, {}),
        ([5, 6], None, {}),
        (torch.tensor([5, 6]), None, {}),
        ({"tokens": np.array([5, 6])}, None, {}),
        ({"input_ids": [5, 6], "text": "ab", "id": 3, "names": ["a", "b"], "rows": [[1], [2]]}, None, {}),
        ({"ids": np.array([5, 6]), "tokens": np.array([1.5, 2.5])}, "ids", {"tokens": [1.5, 2.5, 0, 0]}),
        ({"tokens": [5, 6], "mask": [True, False]}, None, {"mask": [True, False, False, False]}),
        ({"tokens": torch.tensor([5, 6]), "mask": torch.tensor([1, 2])}, None, {"mask": [1, 2, 0, 0]}),
        ({"tokens": (5, 6), "mask": (1, 2)}, None, {"mask": [1, 2, 0, 0]}),
        ({"tokens": [5, 6], "labels": [-100, 6]}, None, {"labels": [-100, 6, -100, -100]}),
        ({"tokens": [5, 6], "more": np.zeros(9)}, ("tokens",), {}),
        ({"tokens": [5, 6], "more": np.zeros(9), "mask": [1, 2]}, ("tokens", "mask"), {"mask": [1, 2, 0, 0]}),
        (MASKED, None, {"mask": [1, 0, 0, 0]}),
        (MASKED, "mask", {"tokens": [5, 6, 0, 0]}),
    ],
)
def test_documents_are_arrays_or_have_named_ones_which_go_along(document, field, expected):
    tokens = [1, 0, 7, 7] if field == "mask" else [5, 6, 7, 7]
    row = one_row(document, 2, field=field, pad_id=7)
    assert row == {"input_ids": tokens, "cu_seqlens": [0, 2, 4], **expected}


def test_fields_go_along_with_the_part_of_a_document_that_a_row_has():
    documents = [{"tokens": np.arange(10), "mask": np.arange(10) % 2}]
    for row in PackedDataset(Listed(documents, [10]), 4):
        assert (row["mask"] == np.where(row["segment_ids"] > 0, row["input_ids"] % 2, 0)).all()


@pytest.mark.parametrize(
    ("documents", "field", "error", "text"),
    [
        (
            [np.zeros((2, 2), int)],
            None,
            TypeError,
            r"in one dimension, or a dict with one, not ndarray of shape \(2, 2\)",
        ),
        (["ab"], None, TypeError, "or a dict with one, not str"),
        ([{"text": "ab"}], None, ValueError, "no field 'tokens' or 'input_ids'; they have 'text'; pass field="),
        ([{"tokens": [1, 2]}], "ids", ValueError, "no field 'ids'; they have 'tokens'"),
        ([{"tokens": "ab"}], None, TypeError, "field 'tokens' is no array of tokens"),
        ([{"tokens": [1, 2], "input_ids": [1, 2]}], None, ValueError, "fields 'tokens' and 'input_ids'; pass field="),
        ([{"tokens": [1, 2], "input_ids": [1, 2]}], "tokens", ValueError, "'input_ids' would hide what packing makes"),
        ([{"tokens": [1, 2], "more": [1, 2, 3]}], None, ValueError, "'more' has 3 numbers for 2 tokens; field="),
        ([{"tokens": [1, 2], "more": "ab"}], ("tokens", "more"), TypeError, "'more' is no array of numbers"),
        ([{"tokens": [1, 2], "cu_seqlens": [1, 2]}], None, ValueError, "'cu_seqlens' would hide"),
        ([{"tokens": [1, 2], "a": [1, 2]}, {"tokens": [1, 2]}], None, ValueError, "document 1 has other fields"),
        ([np.array([1, 2]), np.array([1.5, 2.5])], None, TypeError, "types that do not go together"),
        ([np.arange(5)], None, ValueError, "document 0 has 5 tokens, but its length was given as 2"),
    ],
)
def test_what_is_no_document_is_refused_when_it_is_read(documents, field, error, text):
    packed = PackedDataset(Listed(documents, [2] * len(documents)), 8, field=field)
    with pytest.raises(error, match=text):
        packed[:]


def test_integers_of_several_types_become_one_that_holds_them_all():
    row = PackedDataset(Listed([np.array([65535], np.uint16), np.array([70_000], np.uint32)]), 2)[0]
    assert sorted(row["input_ids"].tolist()) == [65535, 70_000]
    assert row["input_ids"].dtype == np.uint32


def test_a_pad_id_that_the_stored_type_cannot_hold_is_refused():
    with pytest.raises(OptionError, match="pad_id=-1 is not valid; expected a number of the stored type, uint16"):
        PackedDataset(with_lengths([3]), 8, pad_id=-1)[0]


def test_an_error_names_the_document():
    with pytest.raises(TypeError) as caught:
        PackedDataset(Listed([[1, 2], "ab"]), 8)[:]
    assert caught.value.__notes__ == ["in document 1, of type str"]
