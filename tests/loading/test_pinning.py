"""Pinned packs: everything in them, nothing else changed, and nothing at all where there is nobody to pin for."""

import copy
import dataclasses
import logging
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from headrace import (
    FixedCountMicrobatchPacker,
    MicrobatchPackStream,
    PinMemoryMicrobatchPackStream,
    StatefulDataLoader,
    TokenPack,
)
from headrace.loading import pinning


@dataclasses.dataclass(frozen=True)
class Batch:
    tokens: Any
    name: str = "n"
    extra: Any = dataclasses.field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "extra", {"mask": torch.ones(2)})


class Own:
    """A batch that pins itself."""

    def __init__(self, tensor):
        self.tensor = tensor

    def pin_memory(self):
        return Own(self.tensor.pin_memory())


class Stream:
    """Packs from a list, with an iterator that can be closed."""

    total_steps = 7
    steps_left = 3

    def __init__(self, packs):
        self.packs = packs
        self.position = 0
        self.closed = 0

    def __iter__(self):
        try:
            for pack in self.packs[self.position :]:
                self.position += 1
                yield pack
        finally:
            self.closed += 1

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state_dict):
        self.position = state_dict["position"]


@pytest.fixture
def accelerator(monkeypatch):
    """A machine on which tensors can be pinned: what was pinned, and with how many threads."""
    calls = []

    def pin_memory(tensor):
        calls.append(torch.get_num_threads())
        copied = tensor.clone()
        copied.was_pinned = True
        return copied

    monkeypatch.setattr(pinning, "can_pin", lambda: True)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    return calls


def is_pinned(tensor):
    return getattr(tensor, "was_pinned", False)


def test_every_cpu_tensor_of_a_pack_is_pinned_wherever_it_is(accelerator):
    batch = Batch(torch.arange(3))
    meta, sparse = torch.ones(2, device="meta"), torch.eye(2).to_sparse()
    pack = [batch, {"a": [torch.ones(1)], "b": "text", "c": meta, "d": sparse}, Own(torch.ones(1))]
    ((first, second, third),) = PinMemoryMicrobatchPackStream(Stream([pack]))
    assert is_pinned(first.tokens)
    assert is_pinned(first.extra["mask"])
    assert (first.tokens.tolist(), first.name) == ([0, 1, 2], "n")
    assert is_pinned(second["a"][0])
    assert second["b"] == "text"
    assert second["c"] is meta
    assert second["d"] is sparse
    assert is_pinned(third.tensor)
    assert not is_pinned(batch.tokens)
    assert len(accelerator) == 4


def test_packs_of_any_sequence_are_pinned_and_token_packs_keep_their_counts(accelerator):
    class Some:
        def __len__(self):
            return 1

        def __getitem__(self, index):
            return [torch.ones(1)][index]

    packs = list(PinMemoryMicrobatchPackStream(Stream([Some(), (torch.ones(1),), TokenPack([torch.ones(1)], [5])])))
    assert all(is_pinned(pack[0]) for pack in packs)
    assert [type(pack) for pack in packs] == [list, tuple, TokenPack]
    assert packs[2].num_targets.tolist() == [5]


def test_one_thread_pins_and_torch_has_as_many_as_before_afterwards(accelerator):
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        for _ in PinMemoryMicrobatchPackStream(Stream([[torch.ones(1)]])):
            assert torch.get_num_threads() == 3
        assert accelerator == [1]

        class Broken:
            def pin_memory(self):
                raise RuntimeError("no memory to pin")

        with pytest.raises(RuntimeError, match="no memory to pin"):
            list(PinMemoryMicrobatchPackStream(Stream([[Broken()]])))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator here")
def test_without_an_accelerator_packs_come_as_they_are_which_is_said_once(caplog):
    packs = [[torch.ones(1)], [torch.zeros(1)]]
    stream = PinMemoryMicrobatchPackStream(Stream(packs))
    with caplog.at_level(logging.DEBUG, "headrace"):
        assert all(found is given for found, given in zip(stream, packs, strict=True))
        list(stream)
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("DEBUG", "no accelerator here can use pinned memory: packs come as they are")
    ]


def test_all_else_is_the_inner_stream_s():
    inner = Stream([["a"], ["b"], ["c"]])
    stream = PinMemoryMicrobatchPackStream(inner)
    assert isinstance(stream, MicrobatchPackStream)
    assert (stream.total_steps, stream.steps_left, stream.is_elastic) == (7, 3, False)
    packs = iter(stream)
    assert next(packs) == ["a"]
    assert stream.state_dict() == {"position": 1}
    packs.close()
    assert inner.closed == 1
    stream.load_state_dict({"position": 2})
    assert list(stream) == [["c"]]
    inner.is_elastic = True
    assert stream.is_elastic
    with pytest.raises(AttributeError, match="'Stream' object has no attribute 'metrics'"):
        _ = stream.metrics


def test_a_stream_can_be_copied_and_pickled():
    packer = FixedCountMicrobatchPacker(
        StatefulDataLoader(range(8), device="cpu", rank=0, world_size=1, local_batch_size=2), 2
    )
    stream = PinMemoryMicrobatchPackStream(packer)
    for other in (copy.copy(stream), pickle.loads(pickle.dumps(stream))):
        assert other.total_steps == 2
        assert other.is_elastic
        assert len(list(other)) == 2
    stream.close()


def test_what_is_no_stream_of_packs_is_refused():
    with pytest.raises(TypeError, match="a list is no stream of packs: it has no state_dict and no load_state_dict"):
        PinMemoryMicrobatchPackStream([[1]])


def test_arrays_and_other_leaves_stay(accelerator):
    array = np.ones(2)
    ((found, kind),) = PinMemoryMicrobatchPackStream(Stream([[array, Own]]))
    assert found is array
    assert kind is Own


@pytest.mark.cuda
def test_on_cuda_memory_is_pinned_and_packs_are_equal():
    batch = Batch(torch.arange(1 << 16))
    threads = torch.get_num_threads()
    (pack,) = PinMemoryMicrobatchPackStream(Stream([TokenPack([batch, {"ids": torch.arange(5)}], [1, 2])]))
    assert pack[0].tokens.is_pinned()
    assert pack[0].extra["mask"].is_pinned()
    assert pack[1]["ids"].is_pinned()
    assert torch.equal(pack[0].tokens, batch.tokens)
    assert not batch.tokens.is_pinned()
    assert pack.num_targets.tolist() == [1, 2]
    (again,) = PinMemoryMicrobatchPackStream(Stream([pack]))
    assert again[0].tokens.data_ptr() == pack[0].tokens.data_ptr()
    assert torch.get_num_threads() == threads
