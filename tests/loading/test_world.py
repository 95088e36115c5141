"""Which rank of how many, when nobody says."""

import os
import pickle
import subprocess
import sys

import pytest

from headrace import ElasticBatchSampler, StatefulDataLoader
from headrace.errors import OrderError
from headrace.loading import World, resolve_world
from loading.samples import Numbers, make


@pytest.fixture(autouse=True)
def no_job(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def in_job(monkeypatch, rank, world_size):
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(world_size))


def test_without_a_job_this_process_is_the_only_one():
    assert resolve_world() == World(0, 1)


def test_a_launcher_says_it_by_the_environment(monkeypatch):
    in_job(monkeypatch, 2, 4)
    assert resolve_world() == World(2, 4)
    loader = StatefulDataLoader(Numbers(16), device="cpu")
    assert (loader.rank, loader.world_size, loader.global_batch_size, len(loader)) == (2, 4, 4, 4)


def test_explicit_numbers_win_over_the_environment(monkeypatch):
    in_job(monkeypatch, 7, 8)
    assert resolve_world(1, 2) == World(1, 2)


def test_an_initialised_process_group_wins_over_the_environment():
    script = """
import torch.distributed as dist
from headrace.loading import resolve_world
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
print(*resolve_world(), *resolve_world(3, 5))
dist.destroy_process_group()
"""
    env = {**os.environ, "RANK": "5", "WORLD_SIZE": "9"}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=100)
    assert done.stdout.split() == ["0", "1", "3", "5"], done.stderr


@pytest.mark.parametrize("given", [{"RANK": "1"}, {"WORLD_SIZE": "2"}])
def test_half_of_the_environment_is_refused(monkeypatch, given):
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(OrderError, match=r"RANK=.*WORLD_SIZE=.*both or neither"):
        resolve_world()


@pytest.mark.parametrize("given", [{"rank": 1}, {"world_size": 4}])
def test_half_of_the_arguments_is_refused(given):
    with pytest.raises(OrderError, match="both or neither"):
        StatefulDataLoader(Numbers(16), device="cpu", **given)


@pytest.mark.parametrize(("rank", "world_size"), [("x", "2"), ("2", "2"), ("-1", "2"), ("0", "0")])
def test_nonsense_in_the_environment_is_refused_with_what_was_found(monkeypatch, rank, world_size):
    in_job(monkeypatch, rank, world_size)
    with pytest.raises(ValueError, match=f"RANK={rank}, WORLD_SIZE={world_size}"):
        resolve_world()


@pytest.mark.parametrize(("rank", "world_size"), [(0, 0), (0, -1), (4, 4), (-1, 4)])
@pytest.mark.parametrize("kind", [StatefulDataLoader, ElasticBatchSampler])
def test_nonsense_in_the_arguments_is_refused_at_once(rank, world_size, kind):
    with pytest.raises(ValueError, match=r"rank=|world_size="):
        kind(Numbers(16), global_batch_size=4, rank=rank, world_size=world_size)


def test_the_world_is_found_at_the_first_len_and_not_before(monkeypatch):
    loader = StatefulDataLoader(Numbers(16), device="cpu")
    loader.load_state_dict(loader.state_dict())
    in_job(monkeypatch, 1, 2)
    assert len(loader) == 8
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert (loader.rank, loader.world_size) == (1, 2)


@pytest.mark.parametrize("kind", ["loader", "sampler"])
def test_a_pickled_one_keeps_the_world_of_where_it_was_pickled(monkeypatch, kind):
    in_job(monkeypatch, 1, 2)
    if kind == "loader":
        one = StatefulDataLoader(Numbers(16), device="cpu", local_batch_size=2)
    else:
        one = ElasticBatchSampler(16, 4)
    text = pickle.dumps(one)
    in_job(monkeypatch, 0, 1)
    other = pickle.loads(text)
    assert len(other) == 4
    first = next(iter(other))
    assert (first["id"].tolist() if kind == "loader" else first) == [1, 3]


def test_a_global_batch_that_the_ranks_cannot_share_is_refused_with_the_nearest_ones(monkeypatch):
    with pytest.raises(OrderError, match=r"global_batch_size=100 .*world_size=8; 96 and 104"):
        make(1000, global_batch_size=100, world_size=8)
    in_job(monkeypatch, 0, 8)
    loader = StatefulDataLoader(Numbers(1000), device="cpu", global_batch_size=100)
    for ask in (len, iter):
        with pytest.raises(OrderError, match="96 and 104"):
            ask(loader)
