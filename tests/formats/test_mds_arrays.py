"""Arrays in MDS columns: what is stored before the values, which arrays are taken, and what damage can do."""

import contextlib
import json
import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from golden.tagged import MDS, assert_same, expected_mds, little
from headrace.formats.mds.arrays import CODES
from headrace.formats.mds.encodings import encoding


def decoded(name, data):
    return encoding(name).decode(memoryview(data))


def names_for(array):
    """Every encoding that takes the array."""
    dtype = array.dtype.name
    return "ndarray", f"ndarray:{dtype}", f"ndarray:{dtype}:{','.join(map(str, array.shape))}"


# What is stored


def recorded_columns(name):
    """The bytes of each column of each sample, cut out of the dataset's one shard: all its columns vary in size."""
    index = json.loads((MDS / name / "dataset/index.json").read_text())
    data = (MDS / name / "dataset/shard.00000.mds").read_bytes()
    (count,) = struct.unpack_from("<I", data)
    offsets = struct.unpack_from(f"<{count + 1}I", data, 4)
    columns = index["shards"][0]["column_names"]
    for begin in offsets[:-1]:
        sizes = struct.unpack_from(f"<{len(columns)}I", data, begin)
        starts = [begin + 4 * len(columns) + sum(sizes[:number]) for number in range(len(columns))]
        yield {column: data[at : at + size] for column, at, size in zip(columns, starts, sizes, strict=True)}


def test_shapes_of_every_width_that_streaming_stored_are_read_and_written():
    expected = expected_mds("enc_ndarray_shape_widths")
    names = dict(expected["writer"]["columns_in_given_order"])
    widths = set()
    stored = list(recorded_columns("enc_ndarray_shape_widths"))
    for sample, columns in zip(expected["samples"], stored, strict=True):
        for column, data in columns.items():
            assert_same(decoded(names[column], data), sample[column])
            assert encoding(names[column]).encode(sample[column]) == data
            widths.add(data[0 if names[column] == "ndarray:uint8" else 1] & 3)
    assert widths == {0, 1, 2}
    assert len(stored) == expected["num_samples"]


@pytest.mark.parametrize(
    ("shape", "stored"),
    [
        ((1,), "04 01"),
        ((255,), "04 ff"),
        ((256,), "05 00 01"),
        ((65535,), "05 ff ff"),
        ((65536,), "06 00 00 01 00"),
        ((1, 256, 2), "0d 01 00 00 01 02 00"),
        ((1,) * 63, "fc" + " 01" * 63),
    ],
)
def test_a_shape_is_stored_with_the_smallest_width_that_holds_its_largest_dimension(shape, stored):
    array = np.ones(math.prod(shape), np.uint8).reshape(shape)
    head = bytes.fromhex(stored)
    assert encoding("ndarray").encode(array) == b"\x08" + head + array.tobytes()
    assert encoding("ndarray:uint8").encode(array) == head + array.tobytes()
    assert_same(decoded("ndarray", b"\x08" + head + array.tobytes()), array)


def test_dimensions_stored_wider_than_needed_are_read():
    for width, letter in enumerate("BHIQ"):
        data = struct.pack(f"<B3{letter}", 3 << 2 | width, 1, 2, 3) + bytes(12)
        assert_same(decoded("ndarray:int16", data), np.zeros((1, 2, 3), np.int16))


# Which arrays are taken

shapes = arrays.array_shapes(max_dims=5, max_side=5) | st.tuples(st.integers(1, 400))
elements = st.sampled_from(sorted(CODES))


@st.composite
def any_arrays(draw):
    """Arrays of every type with every bit pattern, in any order of memory."""
    dtype, shape = little(draw(elements)), draw(shapes)
    size = math.prod(shape) * dtype.itemsize
    array = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), dtype).reshape(shape)
    match draw(st.integers(0, 5)):
        case 0:
            array = np.asfortranarray(array)
        case 1:
            array = array.T
        case 2:
            array = array[::-1, ...]
        case 3:
            array = np.repeat(array, 2, axis=0)[::2]
        case 4:
            array = np.lib.stride_tricks.as_strided(array[..., :1], array.shape)  # one value, many times
    return array


@given(array=any_arrays(), swap=st.booleans())
def test_an_array_comes_back_by_value_writable_and_in_memory_of_its_own(array, swap):
    given_ = array.astype(array.dtype.newbyteorder(">")) if swap else array
    for name in names_for(array):
        made = encoding(name)
        data = made.encode(given_)
        assert made.size in (None, len(data))
        assert data.endswith(array.tobytes())
        buffer = bytearray(data)
        found = made.decode(memoryview(buffer).toreadonly())
        buffer[:] = bytes(len(buffer))
        assert_same(found, np.ascontiguousarray(array))
        assert found.flags.writeable
        assert found.flags.c_contiguous
        found[...] = 1
        assert made.encode(data) == data


class Sub(np.ndarray):
    pass


def test_subclasses_are_stored_by_value(tmp_path):
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    mapped = np.memmap(tmp_path / "a", np.int32, "w+", shape=(2, 3))
    mapped[:] = array
    given_ = [array.view(Sub), mapped, np.ma.masked_array(array), np.ma.masked_array(array, False)]
    for name in names_for(array):
        for value in given_:
            assert_same(decoded(name, encoding(name).encode(value)), array)


def test_types_that_are_equal_are_taken_for_one():
    array = np.arange(3, dtype=np.int64)
    for other in (np.dtype("longlong"), np.dtype(np.int64, metadata={"unit": "m"}), np.dtype("<i8"), np.dtype("=i8")):
        for name in names_for(array):
            assert encoding(name).encode(array.astype(other)) == encoding(name).encode(array)


FIXED = "ndarray:float32:2,2"
REFUSED = {
    "a list": ([[1.0, 2.0]], "expected a numpy.ndarray.*found list"),
    "None": (None, "expected a numpy.ndarray.*found None"),
    "a scalar": (np.float32(1), "expected a numpy.ndarray.*found numpy.float32"),
    "another buffer": (bytearray(16), "expected a numpy.ndarray.*found bytearray"),
    "bytes that are none": (b"abc", "as values already encoded, and these are none"),
    "no axes": (np.array(1, np.float32), "without axes|with shape"),
    "no axes, of a subclass": (np.array(1, np.float32).view(Sub), "without axes|with shape"),
    "no elements": (np.zeros((2, 0), np.float32), r"shape \(2, 0\)|found \(2, 0\)"),
    "booleans": (np.ones((2, 2), bool), "elements of bool cannot be stored; cast them to one of uint8, int8"),
    "objects": (np.array([[1.0, None]]), "elements of object cannot be stored"),
    "text": (np.array(["ab"]), "elements of <U2 cannot be stored"),
    "bytes": (np.array([b"ab"]), r"elements of \|S2 cannot be stored"),
    "dates": (np.array(["2020-01-01"], "datetime64[D]"), r"elements of datetime64\[D\] cannot be stored"),
    "complex numbers": (np.ones((2, 2), np.complex64), "elements of complex64 cannot be stored"),
    "long doubles": (np.ones((2, 2), np.longdouble), r"elements of float\d+ cannot be stored"),
    "fields": (np.zeros(2, [("a", "<f4")]), r"elements of \[\('a', '<f4'\)\] cannot be stored"),
    "one element of many": (np.zeros(2, [("a", "<f4")])[0], "expected a numpy.ndarray.*found numpy.void"),
    "masked elements": (np.ma.masked_equal(np.ones((2, 2), np.float32), 1), "the mask would not be stored"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("name", ["ndarray", "ndarray:float32", FIXED])
def test_what_is_no_array_of_numbers_is_refused(name, case):
    value, message = REFUSED[case]
    with pytest.raises((TypeError, ValueError), match=message):
        encoding(name).encode(value)


def test_another_type_or_shape_than_declared_is_refused_even_where_the_bytes_would_fit():
    for value in (np.zeros((2, 2), np.int32), np.zeros((2, 2), ">i4"), np.zeros((2, 2), np.float64)):
        with pytest.raises(ValueError, match=r"expected elements of float32, found \w+; cast them with .astype\(\)"):
            encoding(FIXED).encode(value)
    for shape in ((4,), (1, 4), (2, 2, 1), (4, 1)):
        for value in (np.zeros(shape, np.float32), np.zeros(shape, ">f4"), np.zeros(shape, np.float32).view(Sub)):
            with pytest.raises(ValueError, match=r"expected an array with shape \(2, 2\), found"):
                encoding(FIXED).encode(value)


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.0.0", reason="NumPy 1 has no arrays of 64 axes")
def test_sixty_four_axes_are_refused():
    with pytest.raises(ValueError, match="it has 64 axes; at most 63 are stored"):
        encoding("ndarray").encode(np.zeros((1,) * 64, np.uint8))


# Damage


@given(array=any_arrays(), data=st.data())
def test_cut_lengthened_or_damaged_bytes_never_make_an_array_of_another_size(array, data):
    for head_bytes, name in zip((1, 0, None), names_for(array), strict=True):
        stored = encoding(name).encode(array)
        at = data.draw(st.integers(0, min(len(stored) - 1, 12)))
        byte = data.draw(st.integers(0, 255))
        cut = stored[: data.draw(st.integers(0, len(stored) - 1))]
        longer = stored + data.draw(st.binary(min_size=1, max_size=9))
        for damaged in (cut, longer, stored[:at] + bytes([byte]) + stored[at + 1 :]):
            try:
                found = decoded(name, damaged)
            except ValueError:
                continue
            if head_bytes is None:
                assert found.nbytes == len(damaged)
            else:
                head = damaged[head_bytes]
                assert found.ndim == head >> 2
                assert head_bytes + 1 + (found.ndim << (head & 3)) + found.nbytes == len(damaged)


@given(data=st.binary(max_size=40), name=st.sampled_from(["ndarray", "ndarray:uint8", "ndarray:float64"]))
def test_any_bytes_are_an_array_or_a_value_error(data, name):
    with contextlib.suppress(ValueError):
        assert decoded(name, data).size


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("ndarray", "", "an array has at least 4 bytes"),
        ("ndarray", "07 04 01 00", "7 is the code of no element type"),
        ("ndarray", "08", "ends inside its shape, after 1 bytes"),
        ("ndarray", "08 0c 01 01", "ends inside its shape"),
        ("ndarray:uint8", "", "ends inside its shape, after 0 bytes"),
        ("ndarray:uint8", "00 01", r"it says shape \(\); arrays with at least one axis"),
        ("ndarray:uint8", "04 00", r"it says shape \(0,\); arrays with at least one axis and one element"),
        ("ndarray:uint8", "08 00 ff", r"it says shape \(0, 255\)"),
        ("ndarray:uint16", "04 02 00 00 00", r"uint16 with shape \(2,\) has 4 bytes, found 3"),
        ("ndarray:uint16", "04 02 00 00 00 00 00", "has 4 bytes, found 5"),
        ("ndarray:uint16:2", "00 00 00", r"a value of ndarray:uint16 with shape \(2,\) has 4 bytes, found 3"),
        ("ndarray:uint8", "07" + " 00 00 00 00 00 00 00 80", "has 9223372036854775808 bytes, found 0"),
        ("ndarray:uint8", "0b" + " ff ff ff ff ff ff ff ff" * 2, "has 340282366920938463426481119284349108225 bytes"),
        (
            "ndarray:uint8",
            "0b" + " 00 00 00 00 01 00 00 00" * 2,
            "has 18446744073709551616 bytes, found 0",
        ),
    ],
)
def test_sizes_that_cannot_be_are_named(name, data, message):
    with pytest.raises(ValueError, match=message):
        decoded(name, bytes.fromhex(data))
