"""Encodings of MDS columns: Streaming's bytes for its values, and refusals of what would come back different."""

import collections
import copy
import decimal
import enum
import json
import math
import pickle
import struct
import sys
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from golden.tagged import MDS, assert_same, expected_mds
from headrace.errors import OptionError
from headrace.formats.mds.arrays import CODES
from headrace.formats.mds.encodings import ENCODINGS, Encoding, encoding
from headrace.formats.mds.numbers import FLOATS, INTEGERS

RECORDED = ["enc_scalars", "enc_scalars_from_python", "enc_ndarray", "enc_images", "enc_json", "enc_pkl"]
RECORDED += ["enc_bytes_passthrough"]
BY_PILLOW = ("jpeg", "png", "list[jpeg]", "list[png]")  # the bytes of these are up to its version
REFUSED = (TypeError, ValueError, OverflowError)


def decoded(name, data):
    return encoding(name).decode(memoryview(data))


def returned(name, value):
    """What a value comes back as."""
    return decoded(name, encoding(name).encode(value))


# The values that Streaming stored


def recorded():
    """Every stored value: its encoding, what was given, what is read, the bytes."""
    found = []
    for dataset in RECORDED:
        expected = expected_mds(dataset)
        for column, name in expected["writer"]["columns_in_given_order"]:
            samples = zip(expected["inputs"], expected["samples"], expected["encoded"], strict=True)
            for number, (given_, read, stored) in enumerate(samples):
                values = name, given_[column], read[column], stored[column]
                found.append(pytest.param(*values, id=f"{dataset}-{column}-{number}"))
    return found


@pytest.mark.parametrize(("name", "given_", "read", "stored"), recorded())
def test_what_streaming_stored_is_read_exactly_and_written_the_same(name, given_, read, stored):
    assert_same(decoded(name, stored), read)
    made = encoding(name).encode(given_)
    if name in BY_PILLOW and not isinstance(given_, bytes):
        assert_same(decoded(name, made), read)
    else:
        assert made == stored
    if encoding(name).size is not None:
        assert encoding(name).size == len(stored)
    if name != "pkl":
        assert encoding(name).encode(stored) == stored


def test_the_recorded_values_are_of_every_encoding():
    names = {param.values[0] for param in recorded()}
    assert names >= {*ENCODINGS, "ndarray:"}
    assert names >= {f"ndarray:{dtype}" for dtype in CODES}


# What Streaming's writer takes and refuses

RULES = {rule["case"]: rule for rule in json.loads((MDS / "writer_rules.json").read_text())["cases"]}
ELSEWHERE = ("json writer", "csv", "hash", "compression", "size_limit")  # of the writers, not of an encoding
ELSEWHERE_TOO = {"missing key", "extra key ignored", "no columns", "unknown option"}
SHORT_ARRAY = np.array([1, 2], "<i2")
# Given, and what is read back or the message of the refusal.
TAKEN = {
    "float32 given str": ("1.5", np.float32(1.5)),
    "str_float given numpy float64": (np.float64(0.1), 0.1),
    "ndarray big-endian, dynamic dtype (stored as is, read back wrong)": (SHORT_ARRAY.astype(">i2"), SHORT_ARRAY),
    "ndarray big-endian, fixed dtype": (SHORT_ARRAY.astype(">i2"), SHORT_ARRAY),  # by value: nothing is lost
    "jpeg_array empty list": ([], []),
    "pil given P mode (palette dropped)": (Image.new("P", (2, 2)), Image.new("P", (2, 2))),  # one without a palette
    "pkl given bytes (stored raw, unreadable)": (b"raw", b"raw"),
}
TURNED_DOWN = {
    "int column given numpy int64": (np.int64(1), r"expected an int, found numpy.int64; pass int\(value\)"),
    "int column given float": (1.0, "expected an int, found float"),
    "int column given 2**63": (2**63, "9223372036854775808 does not fit int64"),
    "str column given int": (1, "expected a str, found int"),
    "str column given lone surrogate": ("a\ud800", r"character 1 is '\\ud800'"),
    "bytes column given bytearray": (bytearray(b"a"), r"expected bytes\(value\), which is what bytes.*bytearray"),
    "bytes column given str": ("a", "expected bytes, found str"),
    "uint8 given 256": (256, "256 does not fit uint8, which reaches from 0 to 255"),
    "uint8 given -1": (-1, "-1 does not fit uint8"),
    "uint8 given 1.7": (1.7, "1.7 is no whole number"),  # Streaming stores 1
    "str_int given numpy int": (np.int64(1), "expected an int, found numpy.int64"),
    "str_float given int": (1, "expected a float, found int"),
    "str_decimal given str": ("1.5", "expected a decimal.Decimal, found str"),
    "ndarray 0-d": (np.array(1), "array without axes"),
    "ndarray:int64 0-d": (np.array(1), "array without axes"),
    "ndarray zero elements": (np.zeros((2, 0)), r"shape \(2, 0\), no element"),
    "ndarray bool": (np.array([True]), "elements of bool cannot be stored; cast them to one of uint8"),
    "ndarray complex64": (np.array([1j], np.complex64), "elements of complex64 cannot be stored"),
    "ndarray:bool declared": (None, "'ndarray:bool' is not valid; expected ndarray:DTYPE or"),
    "ndarray:uint8:0 declared": (None, "dimensions of at least 1"),
    "ndarray::3 declared": (None, "where DTYPE is one of uint8"),
    "ndarray wrong dtype": (np.zeros(3, np.int64), "expected elements of int32, found int64"),
    "ndarray wrong shape": (np.zeros(3, np.int32), r"expected an array with shape \(4,\), found \(3,\)"),
    "ndarray given list": ([1, 2], "expected a numpy.ndarray of int32, found list"),
    "unknown encoding": (None, "encoding='bool' is not valid; expected one of bytes, str, int"),
    "parameters on an encoding without parameters": (None, "encoding='str:3' is not valid"),
    "None value": (None, "expected a str, found None"),
    "fixed-size column given wrong-length bytes": (b"abc", "a value of int has 8 bytes, found 3"),
    "json given bytes (stored raw)": (b"raw", "bytes are stored as they are.*these are none: Expecting value"),
    "json given set": ({1}, "set is not JSON serializable"),
    "jpeg given RGBA": (Image.new("RGBA", (2, 2)), r'cannot store this image as jpeg .*pass image.convert\("RGB"\)'),
}
# Where Streaming stores what it reads back different or not at all.
BETTER = {"uint8 given 1.7", "json given bytes (stored raw)", "ndarray big-endian, fixed dtype"}


def test_every_rule_of_the_reference_is_tried():
    of_encodings = {case for case in RULES if not case.startswith(ELSEWHERE) and case not in ELSEWHERE_TOO}
    assert {*TAKEN, *TURNED_DOWN} == of_encodings


@pytest.mark.parametrize("case", TAKEN)
def test_what_the_reference_takes_is_taken_and_comes_back_right(case):
    value, expected = TAKEN[case]
    assert RULES[case]["accepted"] or case in BETTER
    assert_same(returned(RULES[case]["columns"]["x"], value), expected)


@pytest.mark.parametrize("case", TURNED_DOWN)
def test_what_the_reference_refuses_is_refused_with_what_was_expected(case):
    value, message = TURNED_DOWN[case]
    assert not RULES[case]["accepted"] or case in BETTER
    with pytest.raises(REFUSED, match=message):
        encoding(RULES[case]["columns"]["x"]).encode(value)


# Names


@pytest.mark.parametrize("name", [*ENCODINGS, "ndarray:", "ndarray:uint8", "ndarray:float16:2,3", "ndarray:int8: 4"])
def test_an_encoding_keeps_its_name_and_pickles_and_copies_as_that(name):
    made = encoding(name)
    assert isinstance(made, Encoding)
    assert made.name == name
    assert repr(made) == f"encoding({name!r})"
    assert made.unsafe == (name == "pkl")
    for again in (pickle.loads(pickle.dumps(made)), copy.copy(made), copy.deepcopy(made)):
        assert again == made
        assert hash(again) == hash(made)
        assert (again.name, again.size) == (made.name, made.size)
    assert made != encoding("str" if name != "str" else "bytes")
    assert made != name


BAD_NAMES = [
    "",
    "Int",
    " int",
    "int ",
    "float",
    "bool",
    "str:",
    "int:8",
    "jpeg:90",
    "list",
    "list[str]",
    "list[pil",
    "pickle",
]
BAD_NAMES += ["ndarray ", "ndarray::", "ndarray:int", "ndarray:uint8:", "ndarray:uint8:2,", "ndarray:uint8:2:3"]
BAD_NAMES += ["ndarray:uint8:-1", "ndarray:uint8:1.5", "ndarray:<u2", "ndarray:bfloat16", "ndarray:uint8:" + "9" * 5000]
BAD_NAMES += ["ndarray:uint8:" + ",".join("1" * 64), None, 5, b"int", ["int"]]


@pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: repr(name)[:30])
def test_a_name_without_meaning_is_refused_with_those_that_have_one(name):
    with pytest.raises(OptionError, match=r"expected (one of bytes, str|ndarray:DTYPE or)"):
        encoding(name)


# Values of every kind

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
decimals = st.builds(
    lambda sign, digits, exponent: Decimal((sign, digits, exponent)),
    st.integers(0, 1),
    st.lists(st.integers(0, 9), min_size=1, max_size=40).map(tuple),
    st.integers(-2000, 2000),
) | st.sampled_from([Decimal(text) for text in ("NaN", "-NaN123", "sNaN", "Infinity", "-Infinity", "-0E+7")])
VALUES = {
    "bytes": st.binary(max_size=50),
    "str": st.text(max_size=50),
    "int": st.integers(-(2**63), 2**63 - 1),
    "str_int": st.integers() | st.integers(-(10**400), 10**400),
    "str_float": st.floats().map(lambda number: math.nan if number != number else number),  # all NaNs are "nan"
    "str_decimal": decimals,
    "json": anything,
    "pkl": anything | st.tuples(anything) | st.binary(),
}
VALUES |= {name: st.integers(np.iinfo(name).min, np.iinfo(name).max).map(np.dtype(name).type) for name in INTEGERS}
VALUES |= {
    name: st.binary(min_size=np.dtype(name).itemsize, max_size=np.dtype(name).itemsize).map(
        lambda data, name=name: np.frombuffer(data, name)[0]  # every bit pattern, so every NaN
    )
    for name in FLOATS
}
of_every_encoding = st.sampled_from(sorted(VALUES)).flatmap(lambda name: st.tuples(st.just(name), VALUES[name]))


@given(case=of_every_encoding)
def test_a_value_comes_back_to_the_last_bit_and_in_memory_of_its_own(case):
    name, value = case
    data = encoding(name).encode(value)
    assert type(data) is bytes
    assert encoding(name).size in (None, len(data))
    buffer = bytearray(b"\x00" + data + b"\x00")
    found = decoded(name, memoryview(buffer).toreadonly()[1:-1])
    buffer[:] = b"\xff" * len(buffer)
    if name == "json":  # Python compares 1.0 and 1 as equal, and NaN not to itself
        assert json.dumps(found) == json.dumps(value)
    else:
        assert_same(found, value)


@given(case=of_every_encoding, data=st.data())
def test_cut_lengthened_or_damaged_bytes_are_another_value_or_a_value_error(case, data):
    name, value = case
    made = encoding(name)
    stored = made.encode(value)
    at = data.draw(st.integers(0, max(0, len(stored) - 1)))
    flip = data.draw(st.integers(1, 255))
    flipped = stored[:at] + bytes(byte ^ flip for byte in stored[at : at + 1]) + stored[at + 1 :]
    for damaged in (stored[:at], stored + data.draw(st.binary(min_size=1, max_size=9)), flipped):
        if name == "pkl" and damaged is flipped:
            continue  # who reads pickles trusts whoever wrote them
        try:
            found = decoded(name, damaged)
        except ValueError:
            continue
        assert made.size in (None, len(damaged))
        if name not in ("pkl", "json"):
            assert type(found) is type(value)


# Numbers


@pytest.mark.parametrize("name", INTEGERS)
def test_an_integer_type_takes_every_number_that_is_one_of_its_values(name):
    least, most = np.iinfo(name).min, np.iinfo(name).max
    kinds = [int, float, np.int8, np.float16, np.float64, np.longdouble, Decimal, Fraction, str, np.str_, np.array]
    for kind in [*kinds, torch.tensor, np.dtype(name).type, lambda number: f" {number} "]:
        assert_same(returned(name, kind(7)), np.dtype(name).type(7))
    assert_same(returned(name, True), np.dtype(name).type(1))
    assert_same(returned(name, np.False_), np.dtype(name).type(0))
    for limit in (least, most):
        for kind in (int, Decimal, str, np.array, np.longdouble):
            assert_same(returned(name, kind(limit)), np.dtype(name).type(limit))
        for outside in (limit - 1 if limit == least else limit + 1, 10 * most, 10**5000 * (limit or -1)):
            with pytest.raises(OverflowError, match=f"does not fit {name}, which reaches from {least} to {most}"):
                encoding(name).encode(outside)


@pytest.mark.parametrize(
    "value", [1.5, -0.25, math.nan, math.inf, np.float32(0.1), Decimal("1.5"), Fraction(1, 3), "1.5", ""]
)
@pytest.mark.parametrize("name", ["uint8", "int64"])
def test_what_is_no_whole_number_is_refused_for_an_integer_type(name, value):
    with pytest.raises(REFUSED):
        encoding(name).encode(value)


def named(value):
    """A name that is the same in every process."""
    return type(value).__name__ if type(value) is object else repr(value)


NO_NUMBERS = [
    None,
    [5],
    np.array([5]),
    (1,),
    {},
    {5},
    1j,
    np.complex64(1),
    np.datetime64(5, "s"),
    object(),
    b"",
    b"123",
]


@pytest.mark.parametrize("value", [*NO_NUMBERS, bytearray(8), np.datetime64("NaT"), pytest], ids=named)
@pytest.mark.parametrize("name", ["uint8", "int32", "float16", "float64"])
def test_what_is_no_single_number_is_refused_by_types_of_numbers(name, value):
    with pytest.raises(REFUSED, match=f"expected a number for {name}, found|a value of {name} has . bytes"):
        encoding(name).encode(value)


def test_a_wider_scalar_that_fits_is_taken_and_one_that_does_not_never_wraps():
    assert_same(returned("uint8", np.int64(255)), np.uint8(255))
    with pytest.raises(OverflowError, match="300 does not fit uint8"):
        encoding("uint8").encode(np.int64(300))
    with pytest.raises(OverflowError, match="-1 does not fit uint64"):
        encoding("uint64").encode(np.int8(-1))
    with pytest.raises(OverflowError, match="9223372036854775808 does not fit int64"):
        encoding("int64").encode(2.0**63)


@given(number=st.floats() | st.floats(-70000, 70000) | st.floats(-1e-6, 1e-6), name=st.sampled_from(sorted(FLOATS)))
@example(number=65519.999, name="float16")
@example(number=2049.0, name="float16")
@example(number=1e-45, name="float32")
@example(number=struct.unpack("<d", bytes.fromhex("010000000000f8ff"))[0], name="float16")
@example(number=struct.unpack("<d", bytes.fromhex("0100000010c0f87f"))[0], name="float32")
def test_floats_are_rounded_as_numpy_rounds_them_and_never_to_infinity(number, name):
    with np.errstate(over="ignore"):
        expected = np.dtype(name).type(number)
    if math.isfinite(number) and np.isinf(expected):
        with pytest.raises(OverflowError, match=f"does not fit {name}"):
            encoding(name).encode(number)
        return
    for given_ in (number, np.float64(number), np.array(number), torch.tensor(number, dtype=torch.float64)):
        assert encoding(name).encode(given_) == expected.tobytes()


@pytest.mark.parametrize("name", FLOATS)
def test_float_types_take_numbers_of_any_type(name):
    scalar = np.dtype(name).type
    for value in (
        2,
        True,
        np.int8(2),
        np.float16(2.5),
        Decimal("2.5"),
        Fraction(5, 2),
        "2.5",
        np.longdouble(2.5),
        "nan",
    ):
        assert_same(returned(name, value), scalar(float(value)))
    with pytest.raises(OverflowError):
        encoding(name).encode(10**5000)


class Level(enum.IntEnum):
    HIGH = 3


class Word(enum.StrEnum):
    ONE = "one"


def test_subclasses_are_stored_as_the_value_that_they_are():
    assert_same(returned("int", True), 1)
    assert_same(returned("int", Level.HIGH), 3)
    assert_same(returned("str_int", True), 1)  # "True" in Streaming, which nobody can read
    assert_same(returned("str_int", Level.HIGH), 3)
    assert_same(returned("uint8", Level.HIGH), np.uint8(3))
    assert_same(returned("str", Word.ONE), "one")
    assert_same(returned("str", np.str_("é")), "é")
    assert_same(returned("bytes", np.bytes_(b"ab")), b"ab")
    assert type(encoding("bytes").encode(np.bytes_(b"ab"))) is bytes
    assert_same(returned("str_float", np.float64(-0.0)), -0.0)


def test_decimals_are_stored_and_read_the_same_whatever_the_caller_s_context():
    with decimal.localcontext(decimal.Context(prec=2, capitals=0, traps=[])):
        assert encoding("str_decimal").encode(Decimal("1.2345E+50")) == b"1.2345E+50"
        assert_same(decoded("str_decimal", b"1.2345E+50"), Decimal("1.2345E+50"))
        with pytest.raises(ValueError, match="'1,5' is no decimal number"):
            decoded("str_decimal", b"1,5")


@pytest.mark.parametrize("name", ["str_int", "str_float", "str_decimal"])
@pytest.mark.parametrize("data", [b"", b"x", b"1 2", b"\xff", b"1e", b"0x1", b"--1", b"1" * 5000 + b"x"])
def test_text_that_is_no_number_is_a_value_error(name, data):
    with pytest.raises(ValueError, match=r"."):
        decoded(name, data)


def test_an_int_of_more_digits_than_python_prints_is_a_value_error_both_ways():
    digits = sys.get_int_max_str_digits()
    with pytest.raises(ValueError, match="digits"):
        encoding("str_int").encode(10**digits)
    with pytest.raises(ValueError, match="digits"):
        decoded("str_int", b"1" * (digits + 1))


# bytes and text


@pytest.mark.parametrize("value", [bytearray(b"a"), memoryview(b"a"), np.array([1], np.uint8), [1], None])
@pytest.mark.parametrize("name", sorted({*ENCODINGS} - {"pkl", "json", "ndarray"}))
def test_other_buffers_are_not_taken_for_bytes(name, value):
    if name in ("jpeg_array", "jpegarray") or (name.startswith("list") and value == [1]):
        return
    with pytest.raises(TypeError, match="expected"):
        encoding(name).encode(value)


@pytest.mark.parametrize("name", sorted({*ENCODINGS} - {"bytes", "pkl"}))
def test_bytes_that_do_not_decode_are_refused_by_every_encoding(name):
    with pytest.raises(ValueError, match="as values already encoded, and these are none"):
        encoding(name).encode(b"\xff\xfe\xfd")


@pytest.mark.parametrize("data", [b"\xff", b"\xed\xa0\x80", "é".encode()[:1]])
def test_what_is_no_utf_8_is_a_value_error(data):
    for name in ("str", "json", "str_int", "str_float", "str_decimal"):
        with pytest.raises(ValueError, match=r"."):
            decoded(name, data)


# JSON

Pair = collections.namedtuple("Pair", "a b")


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ((1, (2,)), b"[1, [2]]"),
        (Pair(1, 2), b"[1, 2]"),
        ({1: "a", 2.5: 2}, b'{"1": "a", "2.5": 2}'),
        ({2: "a", None: 3, 1.5: 4, False: 5}, b'{"2": "a", "null": 3, "1.5": 4, "false": 5}'),
        ([math.nan, math.inf, -math.inf, -0.0], b"[NaN, Infinity, -Infinity, -0.0]"),
        ("\ud800", rb'"\ud800"'),
        (np.float64(0.1), b"0.1"),
        (np.array([[1.5, 2]]), b"[[1.5, 2.0]]"),
        (np.array([True]), b"[true]"),
        (np.array(7), b"7"),
        (np.zeros(0), b"[]"),
        ({"b": 1, "a": [None]}, b'{"b": 1, "a": [null]}'),
        (collections.OrderedDict(z=1, y=2), b'{"z": 1, "y": 2}'),
        (Level.HIGH, b"3"),
        (Word.ONE, b'"one"'),
        (b'{"kept":  1}', b'{"kept":  1}'),
    ],
    ids=repr,
)
def test_json_is_written_as_the_reference_writes_it(value, stored):
    assert encoding("json").encode(value) == stored
    assert json.dumps(decoded("json", stored)) == json.dumps(json.loads(stored))


def circle():
    value = [1]
    value.append({"again": value})
    return value


def nested(depth, value=None):
    for _ in range(depth):
        value = [value]
    return value


NO_JSON = [{1}, [b"a"], {b"a": 1}, {(1, 2): 3}, object(), 1j, np.int64(1), [np.float32(1)], Decimal(1), np.array([1j])]
NO_JSON += [circle(), nested(200_000), np.array(["2020"], "datetime64[D]"), np.array([object()])]


@pytest.mark.parametrize("value", NO_JSON, ids=lambda value: repr(type(value)))
def test_what_json_does_not_have_is_refused(value):
    with pytest.raises(REFUSED, match=r"not JSON serializable|keys must be|Circular|nested too deeply"):
        encoding("json").encode(value)


@pytest.mark.parametrize(
    ("value", "keys"),
    [
        ({1: "a", "1": "b"}, "1, '1'"),
        ({"k": [({None: 1, "null": 2},)]}, "None, 'null'"),
        ([{"x": {True: 1, "true": 2, 3: 4}}], "True, 'true'"),
        ({1.0: 1, "1.0": 2}, "1.0, '1.0'"),
        (np.array([{2: 1, "2": 1}], object), "2, '2'"),
    ],
)
def test_keys_that_are_one_in_json_are_refused_since_one_would_be_lost(value, keys):
    with pytest.raises(ValueError, match=f"a dict has the keys {keys}, of which JSON keeps one"):
        encoding("json").encode(value)


def test_json_nested_deeply_comes_back():
    value = {"a": nested(200, {"b": nested(200, 1.5)})}
    assert returned("json", value) == value


@pytest.mark.parametrize("bracket", [b"[", b'{"a":', b'[{"a":['])
def test_json_nested_by_an_enemy_is_a_value_error(bracket):
    for depth in (10**4, 10**6):
        with pytest.raises(ValueError, match="nested too deeply"):
            decoded("json", bracket * depth)
    with pytest.raises(ValueError, match="nested too deeply"):
        decoded("json", b"[" * 10**5 + b"]" * 10**5)


pieces = st.sampled_from(
    ['"a"', "\\ud800", "1e400", "NaN", "-Infinity", "9" * 30, "-0", ",", ":", "{", "}", "[", "]", " "]
)


@given(value=anything, text=st.lists(pieces | st.text(max_size=3), max_size=6).map("".join), data=st.data())
@example(value="\ud800", text='{"\x00": 1}', data=None)
@example(value={"a": 1}, text='{"a": 1, "a": 2}', data=None)
@example(value=2**64, text="1e400", data=None)
def test_json_is_read_as_python_s_json_reads_it(value, text, data):
    stored = json.dumps(value).encode()
    cases = [
        stored,
        text.encode("utf-8", "surrogatepass"),
        json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"),
    ]
    if data is not None:
        at, byte = data.draw(st.integers(0, len(stored) - 1)), data.draw(st.integers(0, 255))
        cases += [stored[:at] + bytes([byte]) + stored[at + 1 :], stored[:at]]
    for case in cases:
        try:
            expected = json.loads(case.decode())
        except ValueError:
            with pytest.raises(ValueError, match=r"."):
                decoded("json", case)
        else:
            assert_same(decoded("json", case), expected)
            assert json.dumps(decoded("json", case)) == json.dumps(expected)


# Pickles


def test_pickles_are_of_protocol_4_in_every_python():
    assert encoding("pkl").encode({1: "a"}) == pickle.dumps({1: "a"}, 4)


@pytest.mark.parametrize("value", [lambda: 0, (number for number in "ab"), sys, nested(200_000)], ids=type)
def test_what_cannot_be_pickled_is_refused(value):
    with pytest.raises(TypeError, match="expected what can be pickled"):
        encoding("pkl").encode(value)


class Fails:
    def __reduce__(self):
        return int, ("no number",)


@pytest.mark.parametrize(
    "data", [b"", b"no pickle", pickle.dumps(1)[:-1], pickle.dumps(Fails()), b"cno.such\nthing\n."]
)
def test_a_pickle_that_fails_is_a_value_error(data):
    with pytest.raises(ValueError, match="no pickle that can be read"):
        decoded("pkl", data)


def test_bytes_after_a_pickle_are_an_error():
    with pytest.raises(ValueError, match="ends 3 bytes before the value does"):
        decoded("pkl", pickle.dumps([1]) + b"...")
