"""skip_corrupt: damaged samples are replaced, by the same ones whoever meets them, and listed."""

import json
import logging
import pickle
import subprocess
import sys

import pytest

from headrace import SampleDataset, ShuffledDataset, StatefulDataLoader
from headrace.errors import OptionError, StoreError, WorkerError
from headrace.store import LocalStore
from headrace.testing import FaultStore, Refuse, Rule
from loading.corrupt_data import (
    COUNT,
    DAMAGED,
    DATA,
    WORKERS,
    Raising,
    damaged,
    flipped_samples,
    ids,
    loader,
    two_epochs,
)
from loading.jobs import TESTS
from loading.samples import Numbers, together
from loading.scenarios import as_rows


@pytest.mark.parametrize("data", DATA)
def test_each_damaged_sample_is_replaced_and_listed_and_all_others_come_in_their_places(data, tmp_path):
    bad = damaged(data, tmp_path / "data")
    assert DAMAGED.get(data, bad) == bad
    assert 3 <= len(bad) < 20
    one = loader(data, tmp_path / "data")
    found = [number for batch in ids(one) for number in batch]
    items = ShuffledDataset(Numbers(COUNT), 3)
    expected = [sample["id"] for sample in items[:]]
    substitutes = {one.item: one.substitute for one in one.skipped}
    assert sorted(substitutes) == bad
    assert not set(substitutes.values()) & set(bad)
    assert found == [substitutes.get(number, number) for number in expected]
    assert [one.item for one in one.skipped] == [number for number in expected if number in bad]
    assert all(one.source == "" and one.error for one in one.skipped)


@pytest.mark.parametrize("workers", ["threads", "fork", "kept", pytest.param("spawn", marks=pytest.mark.slow)])
@pytest.mark.parametrize("data", DATA)
def test_threads_and_processes_give_the_same_batches_and_list_the_same(data, workers, tmp_path):
    first = loader(data, tmp_path / "data")
    expected = two_epochs(first)
    other = loader(data, tmp_path / "data", workers)
    assert two_epochs(other) == expected
    assert sorted(other.skipped, key=str) == sorted(first.skipped, key=str)
    assert len({one.item for one in other.skipped}) == len(other.skipped)


@pytest.mark.parametrize("data", DATA)
def test_any_number_of_ranks_gives_the_same_global_batches(data, tmp_path):
    expected = two_epochs(loader(data, tmp_path / "data"))
    for world_size in (2, 4):
        ranks = [loader(data, tmp_path / "data", rank=rank, world_size=world_size) for rank in range(world_size)]
        assert together([two_epochs(one) for one in ranks]) == expected
        assert {item.item for one in ranks for item in one.skipped} == set(damaged(data, tmp_path / "data"))


REPLAY = """
import json, sys
from pathlib import Path
from loading.corrupt_data import loader, two_epochs
one = loader(sys.argv[1], Path(sys.argv[2]))
one.load_state_dict(json.loads(sys.argv[3]))
print(json.dumps([two_epochs(one), [[item.item, item.substitute] for item in one.skipped]]))
"""


@pytest.mark.parametrize("data", DATA)
def test_a_replay_in_another_process_meets_the_same_and_does_the_same(data, tmp_path):
    one = loader(data, tmp_path / "data")
    whole = two_epochs(one)
    other = loader(data, tmp_path / "data")
    batches = iter(other)
    for _ in range(2):
        next(batches)
    ran = subprocess.run(
        [sys.executable, "-c", REPLAY, data, str(tmp_path / "data"), json.dumps(other.state_dict())],
        cwd=TESTS,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    found, skipped = json.loads(ran.stdout)
    assert found == whole[2:]
    assert {(item.item, item.substitute) for item in one.skipped} == {tuple(pair) for pair in skipped}


def test_the_state_is_that_of_a_loader_that_skips_nothing(tmp_path):
    one, other = (loader("raising", None, skip_corrupt=skip) for skip in (True, False))
    next(iter(one))
    state = one.state_dict()
    other.load_state_dict(state)
    assert other.state_dict() == state
    assert one.describe() == other.describe()
    with pytest.raises(ValueError, match="is damaged"):
        two_epochs(other)


def test_without_the_option_nothing_is_skipped_or_listed():
    one = loader("raising", None, skip_corrupt=False)
    assert one.dataset.error is ValueError
    with pytest.raises(ValueError, match="is damaged"):
        list(one)
    assert one.skipped == []


@pytest.mark.parametrize("workers", ["alone", "threads", "fork"])
def test_a_network_that_fails_and_other_errors_still_raise(workers):
    for error, skip in (
        (ConnectionResetError, True),
        (TypeError, True),
        (ValueError, (KeyError,)),
        (OSError, (Exception,)),
    ):
        one = StatefulDataLoader(
            Raising(COUNT, error),
            as_rows,
            device="cpu",
            local_batch_size=8,
            rank=0,
            world_size=1,
            skip_corrupt=skip,
            **WORKERS[workers],
        )
        with pytest.raises((error, WorkerError), match="sample 4 is damaged"):
            list(one)
        assert one.skipped == []
        one.close()


def test_named_errors_are_skipped_and_only_these():
    one = StatefulDataLoader(
        Raising(COUNT, OSError), as_rows, device="cpu", rank=0, world_size=1, skip_corrupt=(OSError,)
    )
    assert len(ids(one)) == COUNT
    assert len(one.skipped) == 7


@pytest.mark.parametrize("workers", ["alone", "threads", "fork"])
def test_where_every_sample_is_damaged_the_error_surfaces(workers):
    class All(Numbers):
        def __getitem__(self, index):
            raise ValueError(f"sample {index} is damaged")

    one = StatefulDataLoader(
        All(100), as_rows, device="cpu", rank=0, world_size=1, skip_corrupt=True, **WORKERS[workers]
    )
    with pytest.raises((ValueError, WorkerError), match="sample 0 is damaged"):
        list(one)
    one.close()


def test_what_is_no_choice_of_errors_is_refused_at_once():
    for wrong in (1, "all", ValueError, (KeyboardInterrupt,)):
        with pytest.raises(TypeError, match="skip_corrupt"):
            StatefulDataLoader(Numbers(4), skip_corrupt=wrong)
    with pytest.raises(OptionError, match="skip_corrupt"):
        StatefulDataLoader(Numbers(4), skip_corrupt=())


@pytest.mark.parametrize("workers", ["alone", "threads", "fork"])
def test_each_item_is_logged_once_in_the_consumer_s_process(workers, caplog):
    with caplog.at_level(logging.WARNING, logger="headrace"), loader("raising", None, workers) as one:
        assert len(ids(one) + ids(one)) == 10
    assert len(caplog.records) == len(one.skipped) == 7


def test_kept_workers_tell_again_what_a_broken_loop_never_got():
    with loader("raising", None, "kept", prefetch=8, global_batch_size=4) as one:
        for _ in range(3):
            next(iter(one))  # more batches are on their way than are ever seen
        ids(one)
        assert sorted(item.item for item in one.skipped) == DAMAGED["raising"]


def test_a_pickled_loader_takes_its_list_along():
    one = loader("raising", None)
    ids(one)
    other = pickle.loads(pickle.dumps(one))
    assert other.skipped == one.skipped
    assert ids(other) == ids(one)


def test_a_rank_without_rows_sees_what_samples_look_like_though_the_first_one_is_damaged():
    class First(Numbers):
        def __getitem__(self, index):
            if index == 0:
                raise ValueError("damaged")
            return super().__getitem__(index)

    options = {"device": "cpu", "world_size": 4, "local_batch_size": 1, "drop_last": False, "skip_corrupt": True}
    batches = list(StatefulDataLoader(First(5), rank=3, **options))
    assert [len(batch["id"]) for batch in batches] == [1, 0]


@pytest.mark.parametrize("error", [StoreError("the network is down"), ConnectionResetError("the network is down")])
def test_a_store_that_fails_while_samples_are_read_is_no_damage(error, tmp_path):
    flipped_samples(tmp_path / "data")
    rules = [Rule(Refuse(error), operation=operation, path="shard.00003*") for operation in ("view", "get")]
    dataset = SampleDataset(FaultStore(LocalStore(tmp_path / "data"), rules), verify=True)
    one = StatefulDataLoader(dataset, as_rows, device="cpu", rank=0, world_size=1, skip_corrupt=True)
    with pytest.raises(type(error), match="the network is down"):
        ids(one)
    assert {item.item for item in one.skipped} <= set(damaged("flipped samples", tmp_path / "data"))
