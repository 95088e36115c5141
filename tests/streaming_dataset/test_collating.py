"""The short way to what default_collate gives, and batches of no rows."""

import importlib.util
import pickle
import sys
from collections import OrderedDict, namedtuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from headrace.streaming import collating
from headrace.streaming.collating import DefaultCollate, SingleSample

collate = DefaultCollate()
Point = namedtuple("Point", ["x", "label"])

DTYPES = ["bool", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "c16", ">i4", "<M8[s]", "U3"]


REFUSED = (TypeError, "an integer is required")  # by torch for a list of NumPy's unsigned numbers


def same(one, other):
    if isinstance(one, torch.Tensor):
        return (
            type(one) is type(other)
            and one.dtype == other.dtype
            and one.shape == other.shape
            and one.stride() == other.stride()
            and torch.equal(torch.nan_to_num(one), torch.nan_to_num(other))
        )
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    return one == other or (one != one and other != other)


def outcome(function, samples):
    try:
        return function(samples), None
    except Exception as error:
        return None, (type(error), str(error))


@st.composite
def columns(draw, depth=2):
    """A strategy for values of one column: alike as a dataset's are, or sometimes not quite."""
    kinds = ["int", "float", "bool", "str", "bytes", "array", "scalar", "tensor", "none", "mixed", "ragged"]
    kind = draw(st.sampled_from(kinds + (["dict", "tuple", "list", "point", "ordered"] if depth else [])))
    if kind in ("dict", "ordered"):
        inner = {name: draw(columns(depth - 1)) for name in draw(st.sets(st.sampled_from("abc"), max_size=3))}
        return st.fixed_dictionaries(inner).map(OrderedDict if kind == "ordered" else dict)
    if kind in ("tuple", "list", "point"):
        inner = [draw(columns(depth - 1)) for _ in range(2 if kind == "point" else draw(st.integers(0, 3)))]
        return st.tuples(*inner).map({"tuple": tuple, "list": list, "point": lambda pair: Point(*pair)}[kind])
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    numbers = st.integers(0, 100)
    match kind:
        case "array":
            return numbers.map(lambda number: filled(shape, dtype, number))
        case "scalar":
            return numbers.map(lambda number: filled((1,), dtype, number)[0])
        case "tensor":
            return numbers.map(lambda number: torch.full(shape, number))
        case "ragged":
            return numbers.map(lambda number: np.full((number % 3, 2), number))
        case "mixed":
            return st.one_of(numbers, st.floats(), st.text(max_size=2), st.just(np.zeros(2)), st.just(torch.ones(2)))
    plain = {"int": st.integers(-(2**70), 2**70), "float": st.floats(), "bool": st.booleans(), "none": st.none()}
    return {**plain, "str": st.text(max_size=3), "bytes": st.binary(max_size=3)}[kind]


def filled(shape, dtype, number):
    if dtype.kind in "MU":
        return np.full(shape, number).astype(dtype)
    array = np.full(shape, number % 2 if dtype.kind == "b" else number, dtype)
    return array.T if number % 2 else array  # strided in some samples and not in others


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
@pytest.mark.filterwarnings("ignore")
def test_it_gives_what_default_collate_gives(data):
    samples = data.draw(st.lists(data.draw(columns()), min_size=1, max_size=4))
    expected, error = outcome(default_collate, samples)
    found, other = outcome(collate, samples)
    if error == REFUSED:
        return
    assert error == other, (error, other)
    assert same(found, expected), (found, expected)


def test_dicts_of_text_numbers_and_arrays_come_as_torch_gives_them():
    samples = [{"id": k, "text": f"{k}", "tokens": np.arange(4, dtype=np.uint16) + k, "ok": k > 0} for k in range(3)]
    batch = collate(samples)
    assert same(batch, default_collate(samples))
    assert batch["text"] == ["0", "1", "2"]
    assert batch["id"].dtype == torch.int64
    assert batch["tokens"].dtype == torch.uint16
    assert batch["tokens"].shape == (3, 4)


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64])
def test_numpys_unsigned_numbers_which_torch_refuses_keep_their_type(dtype):
    batch = collate([dtype(3), dtype(np.iinfo(dtype).max)])
    assert batch.dtype == getattr(torch, np.dtype(dtype).name)
    assert batch.numpy().tolist() == [3, np.iinfo(dtype).max]


def test_a_column_of_arrays_is_memory_of_its_own():
    samples = [{"tokens": np.arange(4)} for _ in range(2)]
    batch = collate(samples)
    batch["tokens"][:] = 9
    assert samples[0]["tokens"].tolist() == [0, 1, 2, 3]


def test_read_only_arrays_need_no_warning(recwarn):
    array = np.arange(4)
    array.flags.writeable = False
    assert collate([array, array]).tolist() == [[0, 1, 2, 3]] * 2
    assert not list(recwarn)


def test_what_a_user_added_to_torchs_table_is_obeyed(monkeypatch):
    monkeypatch.setitem(default_collate_fn_map, np.ndarray, lambda batch, *, collate_fn_map=None: len(batch))
    assert collate([{"a": np.zeros(2)}] * 3) == {"a": 3}


def test_what_a_user_added_to_torchs_table_before_is_obeyed_as_well(monkeypatch):
    monkeypatch.setitem(default_collate_fn_map, np.ndarray, lambda batch, *, collate_fn_map=None: len(batch))
    spec = importlib.util.spec_from_file_location("imported_later", collating.__file__)
    later = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, later)
    spec.loader.exec_module(later)
    assert later.DefaultCollate()([{"a": np.zeros(2)}] * 3) == {"a": 3}
    monkeypatch.undo()
    assert same(later.DefaultCollate()([{"a": np.zeros(2)}] * 3), {"a": torch.zeros(3, 2, dtype=torch.float64)})


@pytest.mark.parametrize(
    "sample",
    [
        {"id": 1, "text": "a", "raw": b"b", "tokens": np.zeros((2, 3), np.uint16), "score": 1.5},
        (np.zeros(3, np.float32), 1),
        [1, "a"],
        {"pair": (1, "a"), "point": Point(np.ones(2), "b"), "more": {"deep": [np.int8(1)]}},
        OrderedDict(a=1),
        7,
        np.uint16(7),
        {"id": np.uint64(7), "pair": (np.uint32(7), True)},
        "text",
        torch.zeros(2, 0),
    ],
    ids=str,
)
def test_no_rows_are_a_batch_of_the_same_structure(sample):
    full, empty = collate([sample, sample]), collate.empty(sample)

    def check(full, empty):
        assert type(full) is type(empty)
        if isinstance(full, torch.Tensor):
            assert (empty.shape, empty.dtype) == ((0, *full.shape[1:]), full.dtype)
        elif isinstance(full, dict):
            assert list(full) == list(empty)
            for key in full:
                check(full[key], empty[key])
        elif isinstance(full, list | tuple) and not isinstance(full[0], str | bytes):
            assert len(full) == len(empty)
            for pair in zip(full, empty, strict=True):
                check(*pair)
        else:
            assert len(empty) == 0

    check(full, empty)


def test_no_rows_of_what_only_the_user_can_collate_are_refused_with_the_way_out(monkeypatch):
    class Odd:
        pass

    monkeypatch.setitem(default_collate_fn_map, Odd, lambda batch, *, collate_fn_map=None: batch)
    with pytest.raises(TypeError, match="drop_last=True"):
        collate.empty({"odd": Odd()})


def test_both_are_equal_to_their_copies_and_travel():
    assert pickle.loads(pickle.dumps(collate)) == collate
    single = SingleSample(default_collate)
    assert pickle.loads(pickle.dumps(single)) == single
    assert single([[1, 2]]).tolist() == [1, 2]
