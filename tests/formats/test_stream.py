"""What records become elements, and which are refused: nothing is ever stored as another value."""

import numpy as np
import pytest
import torch

from headrace.errors import FieldError
from headrace.formats.stream import StreamArrayFormat, StreamFormat, StreamNumpyFormat, disk_dtype, stored_elements

U2 = StreamNumpyFormat([("tokens", "<u2")])
FORMS = {
    "list": list,
    "int64": lambda values: np.array(values, np.int64),
    "int32": lambda values: np.array(values, np.int32),
    "tensor": lambda values: torch.tensor(values),
    "big-endian": lambda values: np.array(values, ">i8"),
    "strided": lambda values: np.array([values, values], np.int64).T[:, 0],
    "tuple": tuple,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("dtype", "values"), [("<u2", [0, 65_535]), ("<i2", [-32_768, 32_767]), ("<u4", [65_536])])
def test_ids_within_the_type_come_back_equal(form, dtype, values):
    packed = StreamNumpyFormat([("tokens", dtype)]).pack({"tokens": FORMS[form](values)})
    assert packed.dtype == np.dtype([("tokens", dtype)])
    assert packed["tokens"].tolist() == values


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("dtype", "values", "bad", "position"),
    [
        ("<u2", [1, 65_535, 65_536, 70_000], 65_536, 2),
        ("<i2", [32_767, 32_768], 32_768, 1),
        ("<i2", [-32_769], -32_769, 0),
        ("<u2", [5, -1], -1, 1),
        ("u1", [256], 256, 0),
    ],
)
def test_ids_outside_the_type_are_refused_with_value_position_field_and_type(form, dtype, values, bad, position):
    with pytest.raises(FieldError) as caught:
        StreamNumpyFormat([("tokens", dtype)]).pack({"tokens": FORMS[form](values)})
    message = str(caught.value)
    assert "'tokens'" in message
    assert f"value {bad} at position {position}" in message
    assert str(np.dtype(dtype)) in message


@pytest.mark.parametrize("values", [[2**63], [2**64 - 1], [2**64], [-(2**63) - 1]])
@pytest.mark.parametrize("dtype", ["<u2", "<i8"])
def test_numbers_beyond_64_bits_are_refused(values, dtype):
    with pytest.raises(FieldError):
        StreamNumpyFormat([("tokens", dtype)]).pack({"tokens": values})


def test_the_largest_unsigned_numbers_fit_their_type():
    assert StreamNumpyFormat([("t", "<u8")]).pack({"t": [2**64 - 1]})["t"].tolist() == [2**64 - 1]
    with pytest.raises(FieldError, match="value 18446744073709551615 at position 1"):
        StreamNumpyFormat([("t", "<i8")]).pack({"t": np.array([1, 2**64 - 1], np.uint64)})
    with pytest.raises(FieldError, match="value -1 at position 0"):
        StreamNumpyFormat([("t", "<u8")]).pack({"t": np.array([-1])})


@pytest.mark.parametrize("values", [[3.0], [3.5], [float("nan")]])
@pytest.mark.parametrize("form", ["list", "tensor"])
def test_floats_are_refused_in_integer_fields(values, form):
    with pytest.raises(FieldError, match="float"):
        U2.pack({"tokens": FORMS[form](values)})


@pytest.mark.parametrize("values", [["a"], [None], [b"x"], [object()], [[1], [2, 3]], np.array([1, None])])
def test_what_is_no_number_is_refused(values):
    with pytest.raises(FieldError):
        U2.pack({"tokens": values})


@pytest.mark.parametrize("values", [7, np.array(7), [[1, 2]], np.zeros((2, 1), np.uint16)])
def test_a_column_of_another_shape_is_refused_and_nothing_is_broadcast(values):
    with pytest.raises(FieldError, match=r"shape .* expected \(n\)"):
        U2.pack({"tokens": values})


def test_a_ragged_list_is_refused_by_name():
    with pytest.raises(FieldError, match="field 'tokens': is not rectangular"):
        U2.pack({"tokens": [[1], [2, 3]]})


@pytest.mark.parametrize("mask", [[1], [1, 1], [1, 1, 1, 1, 1], []])
def test_columns_of_different_lengths_are_refused(mask):
    with pytest.raises(FieldError, match=f"field 'mask': has {len(mask)} rows, but field 'tokens' has 4"):
        StreamNumpyFormat([("tokens", "<u2"), ("mask", "u1")]).pack({"tokens": [1, 2, 3, 4], "mask": mask})


def test_a_missing_field_is_named_and_other_keys_are_ignored():
    with pytest.raises(FieldError, match="field 'tokens': is missing; the record has 'token', 'id'"):
        U2.pack({"token": [1], "id": [2]})
    with pytest.raises(FieldError, match="no fields"):
        U2.pack({})
    assert U2.pack({"tokens": [1], "text": "ignored"})["tokens"].tolist() == [1]


def test_object_dtypes_and_empty_ones_are_refused_at_construction():
    for dtype in ([("tokens", "O")], [("a", "<i4"), ("b", [("c", "O")])]):
        with pytest.raises(ValueError, match="Python objects"):
            StreamNumpyFormat(dtype)
    with pytest.raises(ValueError, match="Python objects"):
        StreamArrayFormat("O")
    with pytest.raises(ValueError, match="no bytes"):
        StreamArrayFormat("S0")
    with pytest.raises(ValueError, match="structured dtype"):
        StreamNumpyFormat("<u2")


def test_subarrays_keep_their_shape():
    storage_format = StreamNumpyFormat([("vec", "<f2", (3,)), ("t", "<u2")])
    vec = np.arange(6, dtype=np.float64).reshape(2, 3)
    packed = storage_format.pack({"vec": vec, "t": [1, 2]})
    np.testing.assert_array_equal(packed["vec"], vec)
    only = StreamNumpyFormat([("vec", "<f2", (3,))]).pack({"vec": vec})
    np.testing.assert_array_equal(only["vec"], vec)
    with pytest.raises(FieldError, match=r"shape \(2,\), expected \(n, 3\)"):
        storage_format.pack({"vec": [1, 2], "t": [1, 2]})
    with pytest.raises(FieldError, match=r"position \[1, 2\]"):
        StreamNumpyFormat([("vec", "u1", (3,))]).pack({"vec": [[1, 2, 3], [4, 5, 256]]})


def test_floats_are_rounded_to_the_stored_precision_but_never_become_infinite():
    packed = StreamNumpyFormat([("w", "<f4")]).pack({"w": [0.1, float("inf"), float("nan")]})
    assert packed["w"][0] == np.float32(0.1)
    assert np.isinf(packed["w"][1])
    assert np.isnan(packed["w"][2])
    with pytest.raises(FieldError, match=r"value 1e\+300 at position 1"):
        StreamNumpyFormat([("w", "<f4")]).pack({"w": [1.0, 1e300]})
    assert StreamNumpyFormat([("w", "<f4")]).pack({"w": [1, 2]})["w"].tolist() == [1.0, 2.0]
    with pytest.raises(FieldError, match="value 16777217 at position 0"):
        StreamNumpyFormat([("w", "<f4")]).pack({"w": [2**24 + 1]})


@pytest.mark.parametrize("value", [2**63 - 1, 2**53 + 1])
def test_an_integer_that_a_float_cannot_hold_is_refused_without_a_warning(value, recwarn):
    with pytest.raises(FieldError):
        StreamNumpyFormat([("w", "<f8")]).pack({"w": np.array([value])})
    assert not recwarn.list


def test_flags_may_be_stored_as_numbers():
    assert StreamNumpyFormat([("mask", "u1")]).pack({"mask": [True, False]})["mask"].tolist() == [1, 0]
    assert StreamNumpyFormat([("mask", "?")]).pack({"mask": [True, False]})["mask"].tolist() == [True, False]
    with pytest.raises(FieldError):
        StreamNumpyFormat([("mask", "?")]).pack({"mask": [0, 2]})


def test_an_empty_list_is_an_empty_record():
    for values in ([], np.array([], np.int64), torch.tensor([], dtype=torch.int32)):
        assert len(U2.pack({"tokens": values})) == 0


def test_strings_that_would_be_cut_are_refused():
    with pytest.raises(FieldError):
        StreamNumpyFormat([("name", "S3")]).pack({"name": [b"abcd"]})


def test_padding_bytes_are_zero_in_every_run():
    dtype = np.dtype([("a", "u1"), ("b", "<i4")], align=True)
    assert dtype.itemsize == 8
    packed = StreamNumpyFormat(dtype).pack({"a": [255, 255], "b": [-1, -1]})
    assert packed.tobytes() == b"\xff\0\0\0\xff\xff\xff\xff" * 2


ALIGNED = np.dtype([("a", "u1"), ("b", "<i4")], align=True)
PADDED = [
    ALIGNED,
    ALIGNED.newbyteorder(">"),
    np.dtype([("x", ALIGNED)]),
    np.dtype([("x", ALIGNED, (2,)), ("y", "u1")]),
    np.dtype({"names": ["a"], "formats": ["<u2"], "offsets": [2], "itemsize": 8}),
]


def _fields_of_ones(elements):
    if elements.dtype.names is None:
        elements[...] = 1
    for name in elements.dtype.names or ():
        _fields_of_ones(elements[name])


@pytest.mark.parametrize("dtype", PADDED, ids=str)
def test_what_lay_in_memory_between_the_fields_gets_into_no_file(dtype):
    elements = np.frombuffer(bytearray(b"\xaa" * 3 * dtype.itemsize), dtype)
    _fields_of_ones(elements)
    clean = np.zeros(3, disk_dtype(dtype))
    _fields_of_ones(clean)
    disk = disk_dtype(dtype)
    assert stored_elements(elements, disk).tobytes() == clean.tobytes()
    assert stored_elements(StreamArrayFormat(dtype).pack(elements), disk).tobytes() == clean.tobytes()
    columns = {name: elements[name] for name in dtype.names}
    assert stored_elements(StreamNumpyFormat(dtype).pack(columns), disk).tobytes() == clean.tobytes()


def test_elements_without_padding_are_not_copied():
    for dtype in ("<u2", [("a", "<u2"), ("b", "u1", (3,))]):
        elements = np.zeros(3, dtype)
        assert stored_elements(elements, elements.dtype) is elements


def test_a_declared_big_endian_type_is_stored_little_endian():
    packed = StreamNumpyFormat([("tokens", ">u2")]).pack({"tokens": np.array([1, 2], ">u2")})
    assert packed.tobytes() == b"\1\0\2\0"
    assert disk_dtype(np.dtype([("a", ">i4"), ("b", [("c", ">f8")])])) == np.dtype(
        [("a", "<i4"), ("b", [("c", "<f8")])]
    )


@pytest.mark.parametrize("array", [np.arange(10, dtype="<i4")[::2], np.arange(10, dtype=">i4"), np.arange(10)[::-1]])
def test_plain_arrays_are_stored_by_value_whatever_their_memory_looks_like(array):
    assert StreamArrayFormat("<i4").pack(array).tolist() == array.tolist()
    with pytest.raises(FieldError, match="value 300"):
        StreamArrayFormat("u1").pack([1, 300])


def test_what_a_custom_pack_returns_is_checked():
    disk = np.dtype("<i4")
    assert stored_elements(np.arange(3, dtype=">i4"), disk).tobytes() == np.arange(3, dtype="<i4").tobytes()
    assert stored_elements(np.arange(6, dtype="<i4")[::2], disk).flags.c_contiguous
    for bad in ([1, 2], np.zeros((2, 2), "<i4"), np.zeros(2, "<i8"), np.int32(3), np.zeros(2, "<u4")):
        with pytest.raises(FieldError, match="pack\\(\\) returned"):
            stored_elements(bad, disk)
    mixed = np.dtype([("a", ">i4"), ("b", "<i4")])
    with pytest.raises(FieldError):
        stored_elements(np.zeros(2, mixed), np.dtype([("a", "<i4"), ("b", "<i4")]))


def test_an_object_with_three_members_is_a_format():
    class Mine:
        stream_dtype = np.dtype("<i4")

        def pack(self, data):
            return data

        def unpack(self, stream, shard_lengths, shards):
            return stream

    assert isinstance(Mine(), StreamFormat)
    assert not isinstance(object(), StreamFormat)


def test_unpacking_gives_views_of_every_field():
    storage_format = StreamNumpyFormat([("tokens", "<u2"), ("mask", "u1")])
    window = storage_format.pack({"tokens": [1, 2], "mask": [0, 1]})
    sample = storage_format.unpack(window, np.array([2]), np.array([0]))
    sample["tokens"][0] = 9
    assert window["tokens"][0] == 9
    assert list(sample) == ["tokens", "mask"]


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8", "<c8"])
def test_integers_that_a_float_holds_exactly_are_stored(dtype):
    assert StreamNumpyFormat([("w", dtype)]).pack({"w": np.array([-2048, 0, 2048])})["w"].tolist() == [-2048, 0, 2048]
    with pytest.raises(FieldError, match="position 1"):
        StreamNumpyFormat([("w", dtype)]).pack({"w": np.array([0, 2**63 - 1])})
    with pytest.raises(FieldError, match="position 0"):
        StreamNumpyFormat([("w", dtype)]).pack({"w": np.array([2**64 - 1], np.uint64)})
