"""What only a GPU shows: pinned memory, copies beside the computation, and who waits for whom.

A copy is held back by a kernel that does nothing for a while, put before it on the same stream. Whoever did not wait
for the copy would read what was in the memory before.
"""

import dataclasses
import threading

import pytest
import torch

from headrace import FixedCountMicrobatchPacker, PinMemoryMicrobatchPackStream, StatefulDataLoader
from headrace import build_device_pack_stream as built
from headrace.loading.device import DeviceMover, default_device
from loading.pack_streams import NumberedPacks, pack_threads
from loading.samples import Numbers

pytestmark = pytest.mark.cuda

HELD_CYCLES = 400_000_000  # some tenths of a second
SIZE = 1 << 20


@dataclasses.dataclass(frozen=True)
class Batch:
    ids: torch.Tensor
    more: dict


class Packs:
    """Packs of two microbatches whose every element is the pack's number; before(k) is called as pack k is pulled.

    They are made in advance, since memory cannot be pinned while the device is busy without waiting for it.
    """

    total_steps = 24

    def __init__(self, *, pin=True, before=lambda number: None):
        full = [torch.full((SIZE,), number, dtype=torch.int32) for number in range(self.total_steps)]
        self.full = [tensor.pin_memory() for tensor in full] if pin else full
        self.before = before
        self.number = 0

    def __iter__(self):
        while self.number < self.total_steps:
            self.before(self.number)
            full = self.full[self.number]
            self.number += 1
            yield [Batch(full, {"deep": [full]}), {"ids": full, "name": "second"}]

    def state_dict(self):
        return {"number": self.number}

    def load_state_dict(self, state):
        self.number = state["number"]


def sums(pack):
    """The sum of each tensor of a pack, computed on the current stream; nothing waits for it here."""
    first, second = pack
    return [tensor.sum(dtype=torch.int64) for tensor in (first.ids, first.more["deep"][0], second["ids"])]


@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize("pin", [True, False])
def test_every_pack_is_there_for_the_current_stream(depth, pin):
    found = []
    with built(Packs(pin=pin), "cuda", depth) as stream:
        assert stream.device == default_device()
        for pack in stream:
            assert pack[0].ids.device == stream.device
            assert pack[1]["name"] == "second"
            found.append(sums(pack))
    assert [[int(value) for value in values] for values in found] == [[k * SIZE] * 3 for k in range(24)]


@pytest.mark.parametrize("depth", [0, 2])
def test_every_pack_is_there_for_a_stream_of_the_consumers_own(depth):
    mine, found = torch.cuda.Stream(), []
    with built(Packs(), "cuda", depth) as stream, torch.cuda.stream(mine):
        for pack in stream:
            found.append(sums(pack)[0])
        mine.synchronize()
    assert [int(value) for value in found] == [k * SIZE for k in range(24)]


def held_back(stream):
    """A stream whose copies come late, and what tells that they are held."""

    def hold(number):
        side = stream()._mover._stream
        if number and side is not None:
            with torch.cuda.stream(side):
                torch.cuda._sleep(HELD_CYCLES // 10)

    return hold


@pytest.mark.parametrize("depth", [1, 3])
def test_the_current_stream_waits_for_the_copy_and_the_host_does_not(depth):
    made = []
    made.append(built(Packs(before=held_back(lambda: made[0])), "cuda", depth))
    with made[0] as stream:
        packs = iter(stream)
        found = [sums(next(packs))[0]]
        torch.cuda.synchronize()
        while torch.cuda.current_stream().query() and len(found) < 24:
            found.append(sums(next(packs))[0])
        waiting = not torch.cuda.current_stream().query()
        found += [sums(pack)[0] for pack in packs]
    assert waiting  # a pack was handed out before its copy was done
    assert [int(value) for value in found] == [k * SIZE for k in range(24)]


@pytest.mark.parametrize("depth", [1, 3])
def test_copies_do_not_wait_for_what_is_computed(depth):
    arrived = []

    def note(number):  # in the thread
        if number == 2:
            stream._mover._stream.synchronize()  # the copies of packs 0 and 1 are done
            arrived.append(torch.cuda.current_stream().query())

    with built(Packs(before=note), "cuda", depth) as stream:
        packs = iter(stream)
        torch.cuda._sleep(HELD_CYCLES)  # the computation of a long step
        found = [sums(pack)[0] for pack in packs]
    assert arrived == [False]  # the step was still being computed
    assert [int(value) for value in found] == [k * SIZE for k in range(24)]


def test_memory_that_a_step_still_reads_is_not_given_to_a_later_pack():
    found = []
    with built(Packs(), "cuda", 2) as stream:
        for pack in stream:
            torch.cuda._sleep(HELD_CYCLES // 20)  # the step reads its pack late, and nobody holds it until then
            found.append(sums(pack)[0])
            del pack
    assert [int(value) for value in found] == [k * SIZE for k in range(24)]


@pytest.mark.parametrize("depth", [0, 2])
def test_handing_out_pinned_packs_never_waits_for_the_device(depth):
    with built(Packs(), "cuda", depth) as stream:
        packs = iter(stream)
        for _ in range(6):
            next(packs)  # so that there is memory for the next ones
        torch.cuda.synchronize()
        torch.cuda._sleep(5 * HELD_CYCLES)
        for _ in range(5):
            next(packs)
        assert not torch.cuda.current_stream().query()


def test_packs_are_pinned_through_dataclasses_and_the_threads_of_torch_are_as_many_as_before():
    before = torch.get_num_threads()
    for pack in PinMemoryMicrobatchPackStream(Packs(pin=False)):
        batch, second = pack
        assert batch.ids.is_pinned()
        assert batch.more["deep"][0].is_pinned()
        assert second["ids"].is_pinned()
        assert second["name"] == "second"
    assert torch.get_num_threads() == before


def test_what_is_pinned_is_sent_ahead_with_the_same_values():
    pinned = PinMemoryMicrobatchPackStream(Packs(pin=False))
    with built(pinned, "cuda", 2) as stream:
        found = [sums(pack) for pack in stream]
    assert [[int(value) for value in values] for values in found] == [[k * SIZE] * 3 for k in range(24)]


def test_states_and_errors_are_those_of_the_cpu():
    for depth in (0, 2):
        stream = built(NumberedPacks(errors={3: OSError("disk")}), "cuda", depth)
        packs = iter(stream)
        assert [next(packs)[0]["x"].tolist() for _ in range(3)] == [[0, 0], [0, 1], [0, 2]]
        with pytest.raises(OSError, match="disk"):
            next(packs)
        assert stream.state_dict() == {"place": [0, 3]}
        assert [pack[0]["x"].tolist() for pack in stream] == [[0, 3], [0, 4], [0, 5]]
        assert pack_threads() == []


def test_a_stream_that_is_closed_gives_its_packs_memory_back():
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    stream = built(Packs(), "cuda", 4)
    packs = iter(stream)
    pack = next(packs)
    stream.close()
    del pack, packs
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before


def test_packs_go_to_the_device_that_is_current_where_the_stream_is_built():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    current = set()
    packs = Packs(before=lambda number: current.add(torch.cuda.current_device()))
    with torch.cuda.device(1):
        stream = built(packs, "cuda", 2)
    with stream:
        for number, pack in enumerate(stream):
            assert pack[0].ids.device == torch.device("cuda", 1)
            assert int(sums(pack)[0]) == number * SIZE
    assert current == {1}  # in the thread


@pytest.mark.parametrize("pin_memory", [True, False])
@pytest.mark.parametrize("workers", [{}, {"num_workers": 2, "parallel_method": "process"}])
def test_a_loaders_batches_are_there_for_the_current_stream(pin_memory, workers):
    options = {"rank": 0, "world_size": 1, "local_batch_size": 4, "pin_memory": pin_memory, **workers}
    with StatefulDataLoader(Numbers(40), device="cuda", **options) as loader:
        ids = [batch["id"] for batch in loader]
    assert all(tensor.is_cuda for tensor in ids)
    assert torch.cat(ids).tolist() == list(range(40))


def test_packs_of_a_loaders_batches_that_are_on_the_device_already_stay_there():
    loader = StatefulDataLoader(Numbers(24), device="cuda", rank=0, world_size=1, local_batch_size=4)
    with loader, built(FixedCountMicrobatchPacker(loader, 2), "cuda", 2) as stream:
        found = [microbatch["id"] for pack in stream for microbatch in pack]
    assert torch.cat(found).tolist() == list(range(24))


def test_a_mover_can_be_used_by_two_threads():
    mover, sent, got = DeviceMover(default_device()), [], []

    def send():
        for number in range(20):
            sent.append(mover.send({"x": torch.full((SIZE,), number).pin_memory()}))

    thread = threading.Thread(target=send)
    thread.start()
    thread.join()
    for tree in sent:
        got.append(mover.receive(*tree)["x"].sum())
    assert [int(value) for value in got] == [number * SIZE for number in range(20)]
