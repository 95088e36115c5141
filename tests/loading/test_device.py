"""Where batches go."""

import collections
import dataclasses
from typing import NamedTuple

import pytest
import torch

from headrace import StatefulDataLoader
from headrace.loading import DeviceMover, map_tensors
from loading.samples import Arrays, Numbers, make


class Pair(NamedTuple):
    left: object
    right: object


@dataclasses.dataclass(frozen=True)
class Record:
    tokens: object
    name: str
    length: int = dataclasses.field(init=False, default=0)


@dataclasses.dataclass(slots=True)
class Slotted:
    tokens: object


class Tagged(dict):
    tag = None


def trees():
    tensor = torch.ones(2)
    counts = collections.defaultdict(list, a=tensor)
    tagged = Tagged(a=tensor)
    tagged.tag = "kept"
    return [
        tensor,
        {"a": tensor, "b": "text"},
        [tensor, 1],
        (tensor, None),
        Pair(tensor, "r"),
        Record([tensor], "n"),
        Slotted(tensor),
        counts,
        collections.OrderedDict(a=tensor),
        tagged,
        {"deep": [Pair({"a": tensor}, (tensor,))]},
    ]


@pytest.mark.parametrize("tree", trees(), ids=lambda tree: type(tree).__name__)
def test_tensors_are_moved_wherever_they_are_and_the_rest_is_kept(tree):
    seen = []

    def doubled(tensor):
        seen.append(tensor)
        return tensor * 2

    moved = map_tensors(tree, doubled)
    assert type(moved) is type(tree)
    assert seen
    found = []
    map_tensors(moved, lambda tensor: found.append(tensor.tolist()) or tensor)
    assert found == [[2.0, 2.0]] * len(seen)
    kept = []
    map_tensors(tree, lambda tensor: kept.append(tensor.tolist()) or tensor)
    assert kept == [[1.0, 1.0]] * len(seen)  # a copy: the given tree is as it was
    if isinstance(tree, collections.defaultdict):
        assert moved["new"] == []
    if isinstance(tree, Tagged):
        assert moved.tag == "kept"


def test_without_a_gpu_batches_stay_on_the_cpu():
    loader = StatefulDataLoader(Numbers(4), rank=0, world_size=1)
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert loader.device.type == expected
    assert next(iter(loader))["id"].device.type == expected


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}])
def test_batches_go_to_the_device_asked_for(workers):
    loader = StatefulDataLoader(Arrays(), device="meta", rank=0, world_size=1, local_batch_size=2, **workers)
    batch = next(iter(loader))
    assert (batch["tokens"].device.type, batch["tokens"].shape, batch["tokens"].dtype) == ("meta", (2, 5), torch.uint16)
    assert batch["name"] == ["sample 0", "sample 1"]


def test_pinning_needs_a_gpu():
    with pytest.raises(ValueError, match="pin_memory=True needs a CUDA device, not cpu"):
        make(pin_memory=True)


@pytest.mark.cuda
@pytest.mark.parametrize("pin_memory", [False, True])
def test_on_a_gpu_a_batch_is_there_for_the_current_stream(pin_memory):
    mover = DeviceMover(torch.device("cuda", 0), pin_memory=pin_memory)
    for step in range(50):
        batch = mover({"a": torch.full((1 << 20,), step, dtype=torch.int32)})
        assert int(batch["a"].sum()) == step << 20


class Recorder:
    """Stands in for torch.cuda's streams and events, and notes what is asked of them in order."""

    def __init__(self, name, log):
        self.name, self.log = name, log

    def __enter__(self):
        self.log.append(f"begin {self.name}")

    def __exit__(self, *_):
        self.log.append(f"end {self.name}")

    def record(self, stream):
        self.log.append(f"{self.name} behind {stream.name}")

    def wait_event(self, event):
        self.log.append(f"{self.name} waits for {event.name}")


def test_a_copy_is_sent_on_a_stream_of_its_own_and_awaited_by_the_stream_that_reads_it(monkeypatch):
    log = []
    current = Recorder("current", log)
    counts = {"event": 0, "side": 0}

    def made(name):
        counts[name] += 1
        return Recorder(f"{name} {counts[name]}", log)

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: made("side"))
    monkeypatch.setattr(torch.cuda, "Event", lambda: made("event"))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    copied = torch.Tensor.to

    def to(tensor, device, **options):
        log.append(f"copy {options}")
        return copied(tensor, device)

    monkeypatch.setattr(torch.Tensor, "to", to)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: log.append(f"kept for {stream.name}"))
    mover = DeviceMover(torch.device("meta"))
    mover._has_streams = True
    first = mover.send({"a": torch.ones(1)})
    second = mover.send([torch.ones(1), torch.ones(1), "text"])
    sent = [*log]
    copy = "copy {'non_blocking': True}"
    assert sent == [
        *("begin side 1", copy, "event 1 behind side 1", "end side 1"),
        *("begin side 1", copy, copy, "event 2 behind side 1", "end side 1"),
    ]
    assert mover.receive(*first)["a"].device.type == "meta"
    assert mover.receive(*second)[2] == "text"
    assert log[len(sent) :] == [
        *("current waits for event 1", "kept for current"),
        *("current waits for event 2", "kept for current", "kept for current"),
    ]
