"""Batches from worker processes arrive as they were made, their large tensors in one piece of shared memory."""

import dataclasses
import os
import pickle
from collections import OrderedDict, namedtuple
from multiprocessing.reduction import ForkingPickler
from types import MappingProxyType

import numpy as np
import pytest
import torch

from headrace import StatefulDataLoader
from headrace.loading.parcels import SMALL_BYTES, Parcel, needs_no_parcel

LARGE = SMALL_BYTES // 4 + 1  # of float32 or int32
Pair = namedtuple("Pair", "left right")


@dataclasses.dataclass
class Batch:
    """Two tensors and a note."""

    ids: torch.Tensor
    mask: torch.Tensor
    note: str = ""


def sent(batch):
    """The batch as another thread of this process gets it."""
    return ForkingPickler.loads(ForkingPickler.dumps(Parcel(batch)))


def tensors(kind):
    """Tensors of one type: without elements, of one, small, and large."""
    bits = torch.arange(4 * LARGE, dtype=torch.int32) % 2
    return [bits[:0].to(kind), bits[1].to(kind), bits[:7].to(kind), bits.reshape(4, -1).to(kind)]


INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.float8_e4m3fn)


@pytest.mark.parametrize("kind", [*INTEGERS, *FLOATS], ids=str)
def test_tensors_of_every_type_and_size_arrive(kind):
    for given, got in zip(tensors(kind), sent(tensors(kind)), strict=True):
        assert (got.dtype, got.shape) == (given.dtype, given.shape)
        assert torch.equal(got.reshape(-1).view(torch.uint8), given.reshape(-1).view(torch.uint8))


def test_tensors_without_elements_and_of_one_arrive_whatever_their_strides():
    odd = [
        torch.from_numpy(np.zeros((0, 16), np.int64)),
        torch.tensor(5).expand(1),
        torch.zeros(3, 0, 2),
        torch.ones(1, 1),
    ]
    for given, got in zip(odd, sent(odd), strict=True):
        assert (got.dtype, got.shape, got.tolist()) == (given.dtype, given.shape, given.tolist())


def test_all_large_tensors_of_a_batch_lie_in_one_piece_of_memory_and_small_ones_keep_none_of_it():
    large, small = torch.ones(LARGE), torch.ones(3)
    got = sent([{"a": large, "b": large + 1}, [large + 2, small]])
    pieces = {got[0]["a"].untyped_storage().data_ptr(), got[0]["b"].untyped_storage().data_ptr()}
    assert pieces == {got[1][0].untyped_storage().data_ptr()}
    assert got[1][1].untyped_storage().nbytes() == small.nbytes
    assert not got[1][1].is_shared()


def test_containers_and_what_is_no_tensor_arrive_as_they_are():
    given = OrderedDict(
        pair=Pair(torch.ones(LARGE), torch.zeros(2)),
        batch=Batch(torch.arange(LARGE), torch.ones(LARGE, dtype=torch.bool), "a note"),
        array=np.arange(5),
        rest=("text", 1, None, {2}),
    )
    got = sent(given)
    assert type(got) is OrderedDict
    assert type(got["pair"]) is Pair
    assert got["batch"].note == "a note"
    assert torch.equal(got["batch"].ids, given["batch"].ids)
    assert got["array"].tolist() == [0, 1, 2, 3, 4]
    assert got["rest"] == given["rest"]


def test_a_tensor_that_is_in_a_batch_twice_is_still_one():
    shared = torch.arange(LARGE)
    got = sent(Batch(shared, shared))
    assert got.ids is got.mask


def test_tensors_of_a_batch_can_be_changed_without_autograd_taking_it_for_a_change_of_the_others():
    a, b = sent([torch.ones(LARGE), torch.ones(LARGE)])
    weight = torch.ones(LARGE, requires_grad=True)
    loss = (a * weight).sum()
    b.add_(1)
    loss.backward()
    assert torch.equal(weight.grad, torch.ones(LARGE))


def test_what_only_torch_can_send_goes_its_way():
    base = torch.arange(2.0 * LARGE).reshape(2, LARGE)
    shared = torch.ones(LARGE).share_memory_()
    given = {
        "row": base[1],
        "other row": base[0],
        "column": base.T,
        "expanded": torch.ones(1).expand(LARGE),
        "shared": shared,
        "leaf": torch.ones(LARGE, requires_grad=True),
        "conjugate": torch.ones(LARGE, dtype=torch.complex64).conj(),
    }
    got = sent(given)
    for name, tensor in given.items():
        assert torch.equal(got[name], tensor), name
    assert got["leaf"].requires_grad
    assert got["expanded"].untyped_storage().nbytes() == 4
    assert got["row"].untyped_storage().data_ptr() == got["other row"].untyped_storage().data_ptr()
    got["shared"][0] = 7
    assert shared[0] == 7


def test_a_batch_that_cannot_be_pickled_is_refused_when_it_is_packed():
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        Parcel([torch.ones(LARGE), lambda: 0])
    with pytest.raises(TypeError, match="mappingproxy"):
        Parcel(MappingProxyType({"a": 1}))


class Wide:
    """Samples of which a batch has many tensors."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return index


def many_tensors(samples):
    """Ten large tensors and a small one; file descriptors are counted in the consumer."""
    return [torch.full((LARGE,), number) for number in range(10)] + [torch.tensor(samples)]


def test_workers_send_a_batch_of_many_tensors_with_one_file_descriptor():
    with StatefulDataLoader(
        Wide(), many_tensors, device="cpu", local_batch_size=4, num_workers=2, parallel_method="process"
    ) as loader:
        batches = iter(loader)
        kept, before = [next(batches)], len(os.listdir("/proc/self/fd"))
        kept.extend(batches)
        assert len(kept) == 6
        assert len(os.listdir("/proc/self/fd")) - before <= 6
    assert [batch[-1].tolist() for batch in kept] == np.arange(24).reshape(6, 4).tolist()
    assert all(int(batch[number][-1]) == number for batch in kept for number in range(10))


class Shout(str):
    """A text that somebody else has to know how to pickle."""


@pytest.mark.parametrize(
    "batch", [[], ["a", ""], {}, {"text": ["a", "\ud800"], "id": [1, None]}, {0: [b"x", 0.5, True], None: []}], ids=str
)
def test_lists_of_text_and_numbers_are_sent_without_a_parcel(batch):
    assert needs_no_parcel(batch)
    assert ForkingPickler.loads(ForkingPickler.dumps(batch)) == batch


@pytest.mark.parametrize(
    "batch",
    [
        "a",
        None,
        torch.zeros(1),
        [torch.zeros(1)],
        {"ids": torch.zeros(1), "text": ["a"]},
        {"text": [["a"]]},
        {"text": ("a",)},
        {"text": [Shout("a")]},
        {Shout("text"): ["a"]},
        {"text": [lambda: 0]},
        OrderedDict(text=["a"]),
        np.zeros(1),
    ],
)
def test_all_other_batches_are_sent_in_one(batch):
    assert not needs_no_parcel(batch)
