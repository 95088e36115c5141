"""The comparison that the golden tests rest on tells apart what differs in a bit, a type or a shape."""

from decimal import Decimal

import numpy as np
import pytest
from PIL import Image

from golden.tagged import MDS, assert_same, expected_mds, identical, value_of

NAN = np.array([0x7FC00001], "<u4").view("<f4")
GREY = Image.new("L", (2, 3), 7)


def named(value):
    """A name that is the same in every process."""
    return f"{value.mode} image" if isinstance(value, Image.Image) else repr(value)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        (1, np.int64(1)),
        (np.int32(1), np.int64(1)),
        ("a", b"a"),
        (b"a", bytearray(b"a")),
        ([1], (1,)),
        ([1], [1, 2]),
        ([1, [0.0]], [1, [-0.0]]),
        ({"a": 1}, {"a": 2}),
        ({"a": 1}, {"b": 1}),
        ({"a": 1}, {"a": 1, "b": 2}),
        ({"a": [{"b": (1,)}]}, {"a": [{"b": (2,)}]}),
        (GREY, None),
        (Decimal("1.0"), Decimal("1.00")),
        (NAN, np.array([np.nan], "<f4")),
        (NAN[0], np.float32(np.nan)),
        (np.zeros(2, "<f4"), -np.zeros(2, "<f4")),
        (np.zeros(4, "<i2"), np.zeros((2, 2), "<i2")),
        (np.zeros(4, "<i2"), np.zeros(4, "<u2")),
        (np.zeros(4, "<i2"), [0, 0, 0, 0]),
        (GREY, Image.new("L", (3, 2), 7)),
        (GREY, Image.new("L", (2, 3), 8)),
        (GREY, Image.new("P", (2, 3), 7)),
        (None, 0),
    ],
    ids=named,
)
def test_values_that_differ_are_told_apart_and_each_is_like_itself(one, other):
    assert identical(one, one)
    assert identical(other, other)
    assert not identical(one, other)
    assert not identical(other, one)


def test_the_first_difference_is_named_with_its_place():
    with pytest.raises(AssertionError, match=r"it\['a'\]\[1\] is 3, not 2"):
        assert_same({"a": [1, 3, 5]}, {"a": [1, 2, 4]})
    assert_same({"a": 1, "b": 2}, {"b": 2, "a": 1})


def test_tags_stand_for_their_values():
    tagged = {"a": [{"$int": "9007199254740993"}, {"$float": "-0.0"}], "b": {"$tuple": [{"$dict": {"$x": 1}}]}}
    assert identical(value_of(tagged), {"a": [2**53 + 1, -0.0], "b": ({"$x": 1},)})
    assert identical(value_of({"$npscalar": {"dtype": "float32", "hex": "0100c07f", "repr": "nan"}}), NAN[0])
    assert identical(value_of({"$ndarray": {"dtype": "uint16", "shape": [2, 1], "b64": "AQACAA=="}}), NUMBERS)


NUMBERS = np.array([[1], [2]], "<u2")


def test_every_recorded_dataset_can_be_read_and_has_its_samples():
    files = sorted(MDS.glob("*/expected*.json"))
    assert len(files) > 40
    for file in files:
        split = file.stem.partition(".")[2] or None
        expected = expected_mds(file.parent.name, split)
        assert len(expected["samples"]) == expected["num_samples"] == len(expected["inputs"])
