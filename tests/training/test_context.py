"""A job of one process, and what is refused before others could be waited for. More of them: tests/distributed."""

import logging

import pytest
import torch
import torch.distributed as dist

from headrace import DeviceMeshParameters, DistributedContext
from headrace.errors import OptionError, OrderError
from headrace.loading import World
from headrace.training import data_parallel_world
from headrace.training.context import Launch
from training.ranks import Place

AXES = [
    "pipeline_parallel",
    "data_parallel_replicate",
    "data_parallel_shard",
    "context_parallel_replicate",
    "context_parallel_shard",
    "tensor_parallel",
    "expert_parallel",
]


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)


def test_a_mesh_is_one_process_unless_it_is_told_otherwise():
    mesh = DeviceMeshParameters()
    assert mesh.model_dump() == dict.fromkeys(AXES, 1)
    assert not mesh.is_distributed
    assert not any(getattr(mesh, f"has_{axis}") for axis in AXES)


def test_data_parallel_axes_may_be_more_than_one_and_make_it_distributed():
    mesh = DeviceMeshParameters(data_parallel_replicate=2, data_parallel_shard=3)
    assert (mesh.is_distributed, mesh.data_parallel) == (True, 6)
    assert mesh.has_data_parallel_replicate
    assert mesh.has_data_parallel_shard
    with pytest.raises(ValueError, match="frozen"):
        mesh.data_parallel_shard = 1


@pytest.mark.parametrize("axis", [axis for axis in AXES if not axis.startswith("data_parallel")])
def test_other_axes_are_refused_with_what_to_do(axis):
    with pytest.raises(ValueError, match=f"{axis}=2 is not valid; expected 1: this loop is data-parallel only"):
        DeviceMeshParameters(**{axis: 2})


@pytest.mark.parametrize("axis", AXES)
def test_sizes_below_one_and_unknown_axes_are_refused(axis):
    with pytest.raises(ValueError, match=rf"{axis}\n.*greater than or equal to 1"):
        DeviceMeshParameters(**{axis: 0})
    with pytest.raises(ValueError, match="Extra inputs are not permitted"):
        DeviceMeshParameters(data_paralel=2)


def test_one_process_has_no_group_no_mesh_and_waits_for_nobody():
    with DeviceMeshParameters().build() as context:
        assert not dist.is_initialized()
        assert (context.rank, context.local_rank, context.node_rank, context.num_nodes) == (0, 0, 0, 1)
        assert context.is_main_process
        assert context.is_local_main_process
        assert context.current_device.type == ("cuda" if torch.cuda.is_available() else "cpu")
        assert data_parallel_world(context) == World(0, 1)
        context.wait_world()
        context.set_timeout(3)
        with pytest.raises(OptionError, match="one process has no mesh"):
            context.mesh_for("batch")
        with pytest.raises(OptionError, match=r"timeout_seconds=0 .* more than 0"):
            context.set_timeout(0)


@pytest.mark.parametrize("first", [DistributedContext.main_process_first, DistributedContext.local_main_process_first])
def test_a_block_of_one_process_is_run_and_its_error_is_its_own(first):
    with DeviceMeshParameters().build() as context:
        ran = []
        with first(context):
            ran.append(1)
        assert ran == [1]
        with pytest.raises(OSError, match="disk full"), first(context):
            raise OSError("disk full")
        with first(context):
            ran.append(2)
        assert ran == [1, 2]
        with pytest.raises(RuntimeError, match="would wait for each other"), first(context), first(context):
            pass


def test_a_value_may_be_returned_from_a_block():
    with DeviceMeshParameters().build() as context:

        def made():
            with context.main_process_first():
                return "dataset"

        assert made() == "dataset"
        assert made() == "dataset", "the block before was left"


def test_a_launch_of_more_processes_than_the_mesh_has_is_refused(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(OptionError, match=r"data_parallel_shard=1 .* expected 4, the number of processes"):
        DeviceMeshParameters().build()
    with pytest.raises(OptionError, match=r"data_parallel_shard=2 .* expected 4, the number of processes"):
        DeviceMeshParameters(data_parallel_shard=2).build()


def test_a_mesh_of_several_processes_that_nobody_started_is_refused_at_once():
    with pytest.raises(OptionError, match=r"data_parallel_shard=2 .* expected 1, the number of processes .*torchrun"):
        DeviceMeshParameters(data_parallel_replicate=2).build()


def test_what_a_launcher_says_is_read_as_it_is():
    launch = Launch.found(
        {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1"}
        | {"MASTER_ADDR": "node0"}
    )
    assert launch == Launch(5, 8, 1, 4, 1, "node0")
    assert Launch.found({}) == Launch(0, 1, 0, 1, 0, "127.0.0.1")
    assert Launch.found({"RANK": "5", "WORLD_SIZE": "8"}) == Launch(5, 8, 5, 8, 0, "127.0.0.1")


@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        ({"RANK": "1"}, "RANK=1 and WORLD_SIZE=None; set both or neither"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 of WORLD_SIZE=2"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK=x, which is no number"),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "3"}, "LOCAL_RANK=3 of LOCAL_WORLD_SIZE=2"),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "0"}, "LOCAL_WORLD_SIZE=0"),
    ],
)
def test_half_of_a_launch_and_one_that_cannot_be_are_refused(environment, problem):
    with pytest.raises(OrderError, match=problem):
        Launch.found(environment)


def test_the_place_among_data_parallel_ranks_is_read_off_any_context():
    assert data_parallel_world(Place(2, 3)) == World(2, 3)
    assert data_parallel_world(Place()) == World(0, 1)


def test_messages_go_to_the_ranks_logger_from_the_level_on(caplog):
    with DeviceMeshParameters().build(log_level=logging.WARNING) as context:
        context.logger.info("not this")
        context.logger.warning("this")
        assert context.logger.name == "headrace.rank0"
    assert caplog.messages == ["this"]
