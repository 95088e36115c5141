"""Which ranks read different samples, from torch's own meshes: a process group without a network has any rank."""

import json
import subprocess
import sys

import pytest

from headrace.errors import OptionError, OrderError
from headrace.loading.world import World
from headrace.streaming.world import Ranks, data_parallel_world

_MESHES = """
import json, sys, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from headrace.errors import OptionError
from headrace.streaming.world import data_parallel_world

for line in sys.stdin:
    shape, names, part, replication = json.loads(line)
    size, found = 1, []
    for length in shape:
        size *= length
    for rank in range(size):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
        mesh = init_device_mesh("cpu", tuple(shape), mesh_dim_names=names and tuple(names))
        try:
            found.append(data_parallel_world(None, None, mesh[part] if part else mesh, replication))
        except OptionError as error:
            found.append(str(error))
        dist.destroy_process_group()
    print(json.dumps(found), flush=True)
"""


@pytest.fixture(scope="module")
def worlds():
    """What each rank of such a mesh finds, in a process of its own."""
    command = [sys.executable, "-c", _MESHES]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def found(shape, names=None, part=None, replication=None):
            process.stdin.write(json.dumps([shape, names, part, replication]) + "\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline())
            return [tuple(world) if isinstance(world, list) else world for world in answer]

        yield found


def test_ranks_of_one_data_parallel_dimension_read_the_same_where_only_others_differ(worlds):
    assert worlds([2, 2], ["dp", "tp"]) == [(0, 2), (0, 2), (1, 2), (1, 2)]
    assert worlds([2, 2], ["dp", "tp"], part="dp") == [(0, 2), (0, 2), (1, 2), (1, 2)]


def test_all_dimensions_of_data_count_the_outer_one_first(worlds):
    expected = [(rank // 2, 4) for rank in range(8)]
    assert worlds([2, 2, 2], ["dp_replicate", "dp_shard", "tp"]) == expected


def test_a_mesh_of_one_dimension_is_taken_for_data(worlds):
    assert worlds([4]) == [(rank, 4) for rank in range(4)]
    assert worlds([4], replication=2) == [(0, 2), (0, 2), (1, 2), (1, 2)]


def test_a_mesh_in_which_nothing_says_data_is_refused(worlds):
    for found in (worlds([2], ["tp"]), worlds([2, 1], ["pp", "tp"]), worlds([2, 1])):
        assert all("device_mesh" in text and "mesh['dp']" in text for text in found)


def test_a_mesh_and_numbers_beside_it_are_refused():
    with pytest.raises(OptionError, match="nothing beside rank and world_size"):
        data_parallel_world(0, 2, object())


def test_replicas_divide_the_ranks():
    assert [data_parallel_world(rank, 6, None, 3) for rank in range(6)] == [World(rank // 3, 2) for rank in range(6)]
    with pytest.raises(OrderError, match="replication=4 does not divide the 6 ranks"):
        data_parallel_world(0, 6, None, 4)


def test_what_is_no_mesh_is_refused_at_once():
    with pytest.raises(TypeError, match=r"device_mesh must be a torch\.distributed\.DeviceMesh, not str"):
        Ranks(None, None, "dp", None)
