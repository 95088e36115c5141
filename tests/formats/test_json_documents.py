"""JSON documents come back equal and of the same types, or are refused: what happens to everything Python has."""

import collections
import dataclasses
import datetime
import decimal
import enum
import uuid

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import FieldError
from headrace.formats.documents import DocumentJsonFormat
from headrace.testing.samples import same_value

JSON = DocumentJsonFormat()


def returned(value):
    """What it comes back as."""
    return JSON.unpack(memoryview(JSON.pack(value)), 0)


class Level(enum.IntEnum):
    HIGH = 3


class Name(enum.StrEnum):
    ONE = "one"


@dataclasses.dataclass
class Point:
    x: int = 1


class Struct(msgspec.Struct):
    x: int = 1


Pair = collections.namedtuple("Pair", "a b")


def cycle():
    data = []
    data.append(data)
    return data


CHANGED = {
    "tuple": (1, 2),
    "empty tuple": (),
    "tuple inside": {"a": [(1,)]},
    "named tuple": Pair(1, 2),
    "integer keys": {1: 2},
    "keys that become equal": {1: "a", "1": "b"},
    "NaN": float("nan"),
    "NaN inside": [1.0, float("nan")],
    "infinity": {"a": float("-inf")},
    "bytes": b"ab",
    "bytearray": bytearray(b"ab"),
    "memoryview": memoryview(b"ab"),
    "time": datetime.datetime(2026, 1, 2, 3, 4),
    "date": datetime.date(2026, 1, 2),
    "duration": datetime.timedelta(1),
    "set": {1, 2},
    "frozen set": frozenset(),
    "decimal": decimal.Decimal("1.5"),
    "uuid": uuid.UUID(int=5),
    "dataclass": Point(),
    "struct": Struct(),
    "raw JSON": msgspec.Raw(b"1"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_what_json_would_change_is_refused_and_says_what_to_use(name):
    with pytest.raises(FieldError, match="would come back different from JSON; use lists for tuples, strings for keys"):
        JSON.pack(CHANGED[name])
    with pytest.raises(FieldError, match="would come back different"):
        JSON.pack({"nested": [CHANGED[name]]})


NO_JSON = {
    "object": object(),
    "array": np.arange(3),
    "NumPy integer": np.int64(3),
    "NumPy float": np.float64(3),
    "NumPy flag": np.bool_(True),
    "tensor": torch.arange(3),
    "complex": 1j,
    "class": int,
    "range": range(3),
    "lone surrogate": "a\ud800",
    "key with a lone surrogate": {"\udfff": 1},
    "None for a key": {None: 1},
    "flag for a key": {True: 1},
    "list that holds itself": cycle(),
    "integer of 5000 digits": 10**5000,
    "unset": msgspec.UNSET,
}


@pytest.mark.parametrize("name", NO_JSON)
def test_what_is_no_json_is_refused(name):
    with pytest.raises(FieldError, match=r"field 'document': is not JSON \(.+\)"):
        JSON.pack(NO_JSON[name])


VALUES = {
    "null": None,
    "flags": [True, False],
    "numbers that are equal": [1, 1.0, True, 0, 0.0, False],
    "64 bits": [2**63 - 1, -(2**63), 2**64 - 1],
    "beyond 64 bits": [2**64, -(2**63) - 1, 2**64 + 1, 10**400],
    "floats": [0.1, -0.0, 5e-324, 1.7976931348623157e308, 1e16, 1e22, 3.0],
    "text": ["", "\0", "\x7f", "caf\u00e9", "\U0001f600", '"\\/\b\n\u2028'],
    "empty": [[], {}, [[]], {"": {}}],
    "keys": {"": 1, "\u00e9": 2, "a.b": 3},
}


@pytest.mark.parametrize("name", VALUES)
def test_json_comes_back_equal_and_of_the_same_types(name):
    value = VALUES[name]
    assert same_value(returned(value), value)
    assert repr(returned(value)) == repr(value)  # so -0.0 is not 0.0, and keys keep their order


def test_what_equals_json_comes_back_as_json():
    for value, plain in [
        (Level.HIGH, 3),
        (Name.ONE, "one"),
        (collections.OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (collections.Counter("aab"), {"a": 2, "b": 1}),
    ]:
        assert same_value(returned(value), plain)


def test_json_is_compact_utf_8_in_the_order_of_the_keys():
    assert JSON.pack({"b": [1, 2.5, None], "a": "caf\u00e9"}) == '{"b":[1,2.5,null],"a":"caf\u00e9"}'.encode()


@pytest.mark.parametrize("payload", [b"", b"{", b"[1,]", b"nan", b"\xff", b"1 2"])
def test_a_payload_that_is_no_json_is_a_value_error(payload):
    with pytest.raises(ValueError):
        JSON.unpack(memoryview(payload), 0)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
PYTHON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.binary()
    | st.dates()
    | st.just(Level.HIGH),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.dictionaries(st.text() | st.integers() | st.none() | st.booleans(), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(JSON_VALUES)
def test_every_json_value_comes_back_the_same(value):
    assert same_value(returned(value), value)
    assert JSON.pack(returned(value)) == JSON.pack(value)


@given(PYTHON_VALUES)
def test_whatever_is_given_comes_back_equal_or_is_refused(value):
    try:
        payload = JSON.pack(value)
    except FieldError:
        return
    assert JSON.unpack(memoryview(payload), 0) == value
