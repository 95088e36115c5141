"""Samples to tensors."""

import dataclasses
import warnings
from typing import NamedTuple

import numpy as np
import pytest
import torch

from headrace import StreamArrayFormat, StreamNumpyFormat, StreamStorage, stack
from headrace.loading import Stack
from loading.samples import Arrays, Tensors, make


class Pair(NamedTuple):
    left: object
    right: object


@dataclasses.dataclass(frozen=True)
class Record:
    tokens: object
    label: object
    name: str = "x"


@pytest.mark.parametrize(
    "dtype", ["u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "?", "c8", ">i4", ">u2", ">f8"]
)
def test_arrays_keep_their_type_and_values(dtype):
    arrays = [np.array([[0, 1], [1, 0]]).astype(dtype), np.array([[1, 1], [0, 0]]).astype(dtype)]
    batch = stack()(arrays)
    assert batch.numpy().dtype == np.dtype(dtype).newbyteorder("=")
    np.testing.assert_array_equal(batch.numpy(), np.stack(arrays))


def test_every_kind_of_sample_is_stacked_within_its_structure():
    def sample(i):
        return {
            "array": np.full((2, 3), i, np.int16),
            "number": i,
            "real": i / 2,
            "flag": i > 0,
            "scalar": np.float32(i),
            "zero_d": np.array(i, np.uint8),
            "text": f"t{i}",
            "bytes": bytes([i]),
            "nothing": None,
            "tensor": torch.full((2,), i, dtype=torch.bfloat16),
            "pair": Pair(np.array([i]), str(i)),
            "tuple": (i, np.array([i, i])),
            "list": [i, -i],
            "record": Record(np.array([i, i + 1]), i, f"r{i}"),
            "nested": {"deeper": {"value": i}},
        }

    batch = stack()([sample(i) for i in range(3)])
    assert batch["array"].shape == (3, 2, 3)
    assert batch["array"].dtype == torch.int16
    assert batch["number"].tolist() == [0, 1, 2]
    assert (batch["number"].dtype, batch["real"].dtype, batch["flag"].dtype) == (
        torch.int64,
        torch.float64,
        torch.bool,
    )
    assert (batch["scalar"].dtype, batch["zero_d"].dtype) == (torch.float32, torch.uint8)
    assert batch["text"] == ["t0", "t1", "t2"]
    assert batch["bytes"] == [b"\0", b"\1", b"\2"]
    assert batch["nothing"] == [None] * 3
    assert batch["tensor"].dtype == torch.bfloat16
    assert isinstance(batch["pair"], Pair)
    assert batch["pair"].left.tolist() == [[0], [1], [2]]
    assert batch["pair"].right == ["0", "1", "2"]
    assert isinstance(batch["tuple"], tuple)
    assert batch["tuple"][1].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert [column.tolist() for column in batch["list"]] == [[0, 1, 2], [0, -1, -2]]
    assert isinstance(batch["record"], Record)
    assert batch["record"].label.tolist() == [0, 1, 2]
    assert batch["record"].name == ["r0", "r1", "r2"]
    assert batch["nested"]["deeper"]["value"].tolist() == [0, 1, 2]

    empty = Stack().empty(sample(1))
    assert (empty["array"].shape, empty["array"].dtype) == ((0, 2, 3), torch.int16)
    assert (empty["number"].shape, empty["number"].dtype) == ((0,), torch.int64)
    assert (empty["flag"].dtype, empty["tensor"].dtype) == (torch.bool, torch.bfloat16)
    assert (empty["text"], empty["bytes"], empty["nothing"], empty["record"].name) == ([], [], [], [])
    assert (empty["tensor"].shape, empty["record"].tokens.shape, empty["tuple"][1].shape) == ((0, 2), (0, 2), (0, 2))


def test_samples_of_unequal_structure_are_refused_by_what_differs():
    with pytest.raises(ValueError, match=r"different keys: \['a'\] and \['b'\]"):
        stack()([{"a": 1}, {"b": 1}])
    with pytest.raises(ValueError, match=r"field 'a' has samples of different shapes, \(2,\), \(3,\); pad"):
        stack()([{"a": np.zeros(2)}, {"a": np.zeros(3)}])
    with pytest.raises(ValueError, match="different lengths; pad"):
        stack()([(1, 2), (1, 2, 3)])
    with pytest.raises(TypeError, match="samples of type object"):
        stack()([object()])
    with pytest.raises(ValueError, match="no samples"):
        stack()([])


def test_one_type_for_all_means_integers_for_integers_and_floats_for_floats():
    sample = {"a": np.zeros(2, np.uint16), "b": np.zeros(2, np.float64), "c": True, "d": np.zeros(1, np.complex64)}
    kinds = {name: tensor.dtype for name, tensor in stack(dtype=torch.int64)([sample]).items()}
    assert kinds == {"a": torch.int64, "b": torch.float64, "c": torch.bool, "d": torch.complex64}
    kinds = {name: tensor.dtype for name, tensor in stack(dtype=torch.bfloat16)([sample]).items()}
    assert kinds == {"a": torch.uint16, "b": torch.bfloat16, "c": torch.bool, "d": torch.complex64}


def test_a_mapping_says_the_type_of_each_field():
    collate = stack(dtype={"a": torch.int32, "m": torch.bool, "t": torch.float32})
    batch = collate([{"a": np.array([3], np.uint16), "m": np.array([1], np.uint8), "t": torch.tensor([2]), "x": 1}])
    assert (batch["a"].dtype, batch["m"].dtype, batch["t"].dtype, batch["x"].dtype) == (
        torch.int32,
        torch.bool,
        torch.float32,
        torch.int64,
    )


@pytest.mark.parametrize("as_tensor", [False, True])
def test_a_cast_keeps_every_integer_or_is_refused_with_it(as_tensor):
    values = np.array([0, 65535], np.uint16)
    sample = {"tokens": torch.from_numpy(values) if as_tensor else values}
    assert stack(dtype=torch.int32)([sample])["tokens"].tolist() == [[0, 65535]]
    with pytest.raises(ValueError, match="field 'tokens' has the value 65535, which int16 cannot hold"):
        stack(dtype=torch.int16)([sample])
    assert stack(dtype=torch.int16)([{"tokens": values[:1]}])["tokens"].tolist() == [[0]]


def test_read_only_arrays_give_tensors_of_their_own_without_a_warning():
    array = np.arange(3)
    array.flags.writeable = False

    class Batch(list):
        def stacked(self):
            return array

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batch = stack()(Batch([1]))
    batch += 1
    assert array.tolist() == [0, 1, 2]


@pytest.fixture
def tokens(tmp_path):
    storage = StreamStorage(tmp_path / "tokens", StreamNumpyFormat([("tokens", "<u2"), ("mask", "u1")]))
    with storage.sync_writer() as writer:
        for shard in range(2):
            ids = np.arange(40) + 40 * shard
            writer.append(shard, {"tokens": ids, "mask": ids % 2})
    return storage


@pytest.mark.parametrize("dtype", [None, torch.int64])
def test_windows_of_several_fields_come_as_a_dict_of_tensors(tokens, dtype):
    loader = make(tokens.dataset(8), local_batch_size=3, collate_fn=None if dtype is None else stack(dtype=dtype))
    batches = list(loader)
    assert [batch["tokens"].shape for batch in batches] == [(3, 8)] * 3
    assert torch.cat([batch["tokens"] for batch in batches]).reshape(-1).tolist() == list(range(72))
    assert torch.cat([batch["mask"] for batch in batches]).reshape(-1).tolist() == [i % 2 for i in range(72)]
    assert batches[0]["tokens"].dtype == (dtype or torch.uint16)
    assert batches[0]["mask"].dtype == (dtype or torch.uint8)


@pytest.fixture
def plain_tokens(tmp_path):
    storage = StreamStorage(tmp_path / "plain", StreamNumpyFormat([("tokens", "<u2")]))
    with storage.sync_writer() as writer:
        writer.append(0, {"tokens": np.arange(64)})
    return storage


def test_windows_of_one_field_share_memory_with_what_was_read(plain_tokens):
    rows = plain_tokens.dataset(8).__getitems__(np.array([2, 5]))
    array = rows.stacked()["tokens"]
    assert stack()(rows)["tokens"].data_ptr() == array.ctypes.data


def test_numpy_takes_a_batch_of_windows_for_the_array_that_its_windows_make(tmp_path, plain_tokens):
    storage = StreamStorage(tmp_path / "array", StreamArrayFormat("<u2"))
    with storage.sync_writer() as writer:
        writer.append(0, np.arange(64))
    numbers = np.array([2, 5, 1])
    rows = storage.dataset(8).__getitems__(numbers)
    expected = numbers[:, None] * 8 + np.arange(8)
    for array in (np.asarray(rows), np.asarray(rows, np.int64), np.array(rows), np.stack(rows), np.asarray(rows[:])):
        np.testing.assert_array_equal(array, expected)
    assert (np.asarray(rows).dtype, np.asarray(rows, np.int64).dtype) == ("u2", "i8")
    assert np.asarray(rows[:0], np.int64).shape == (0, 8)
    with_fields = np.asarray(plain_tokens.dataset(8).__getitems__(numbers))
    assert with_fields.shape == (3,)
    assert with_fields[1]["tokens"].tolist() == expected[1].tolist()


def test_a_rank_without_rows_gets_no_rows_of_the_right_type_and_shape(tokens):
    for dataset, shapes in (
        (tokens.dataset(8), {"tokens": ((0, 8), torch.uint16), "mask": ((0, 8), torch.uint8)}),
        (Arrays(), {"tokens": ((0, 5), torch.uint16), "weight": ((0,), torch.float64), "name": []}),
    ):
        loader = make(dataset, global_batch_size=9, rank=2, world_size=3, drop_last=False)
        last = list(loader)[-1]
        assert {k: v if isinstance(v, list) else (tuple(v.shape), v.dtype) for k, v in last.items()} == shapes
    last = list(make(Tensors(), global_batch_size=11, rank=1, world_size=11, drop_last=False))[-1]
    assert (last.shape, last.dtype) == ((0, 2), torch.int32)


def test_a_collate_function_of_the_users_gets_an_empty_list_then(tokens):
    seen = []

    def collate(samples):
        seen.append(samples)
        return len(samples)

    for dataset in (tokens.dataset(8), Arrays()):
        loader = make(dataset, collate, global_batch_size=9, rank=2, world_size=3, drop_last=False)
        assert list(loader) == [3, 0]
        assert seen[-1] == []


def test_collate_functions_written_for_lists_of_samples_take_a_batch_of_windows(tokens, plain_tokens):
    def collate(samples):
        return torch.from_numpy(np.stack([sample["tokens"] for sample in samples]).astype(np.int64))

    assert next(iter(make(tokens.dataset(4), collate, local_batch_size=2))).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    batch = next(iter(make(plain_tokens.dataset(4), torch.utils.data.default_collate, local_batch_size=2)))
    assert batch["tokens"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
