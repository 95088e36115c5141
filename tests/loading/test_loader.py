"""StatefulDataLoader: epochs, shares, lengths, and what is refused."""

import itertools
import os
import pickle
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from headrace import ShuffledDataset, StatefulDataLoader, StreamNumpyFormat, StreamStorage
from headrace.errors import ClosedError, OrderError, WorkerError
from loading.samples import (
    IN_PROCESS,
    WORKERS,
    Broken,
    Counting,
    Listed,
    Numbers,
    Slow,
    Tensors,
    drain,
    epoch,
    flat,
    make,
    numbers,
    take,
    together,
)

SIZES = [7, 8, 9, 64, 100, 101]
RANKS = [1, 2, 3, 4, 8]


def ranks(size, world_size, local, workers="alone", **options):
    """An epoch of every rank; its global batches are put together again."""
    loaders = [
        make(size, rank=rank, world_size=world_size, local_batch_size=local, **WORKERS[workers], **options)
        for rank in range(world_size)
    ]
    return loaders, [epoch(loader) for loader in loaders]


def check_shares(size, world_size, local, workers, *, shuffle, drop_last):
    together_size = local * world_size
    if drop_last and size < together_size:
        with pytest.raises(OrderError, match=f"{size} samples .* {together_size} .*{world_size} ranks"):
            ranks(size, world_size, local, workers, shuffle=shuffle, drop_last=drop_last)
        return
    loaders, parts = ranks(size, world_size, local, workers, shuffle=shuffle, drop_last=drop_last)
    steps = size // together_size if drop_last else -(-size // together_size)
    assert {len(loader) for loader in loaders} == {steps}
    assert {len(part) for part in parts} == {steps}
    batches = together(parts)
    assert all(len(batch) == together_size for batch in batches[: steps if drop_last else -1])
    ids = [one for batch in batches for one in batch]
    assert len(ids) == (steps * together_size if drop_last else size)
    assert len(set(ids)) == len(ids)
    assert set(ids) <= set(range(size))
    if not shuffle:
        assert ids == list(range(len(ids)))


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_rank_makes_equally_many_steps_and_together_they_read_each_sample_once(shuffle, drop_last):
    for size, world_size, local in itertools.product(SIZES, RANKS, [1, 4, 7]):
        check_shares(size, world_size, local, "alone", shuffle=shuffle, drop_last=drop_last)


@pytest.mark.parametrize("workers", ["threads", "fork"])
@pytest.mark.parametrize("drop_last", [True, False])
def test_workers_change_nothing_of_that(workers, drop_last):
    for size, world_size, local in [(101, 3, 4), (7, 2, 4), (64, 2, 7)]:
        check_shares(size, world_size, local, workers, shuffle=True, drop_last=drop_last)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("workers", ["ahead", "threads", "fork"])
@pytest.mark.parametrize("drop_last", [True, False])
def test_workers_change_nothing_of_that_in_the_whole_grid(workers, drop_last):
    for size, world_size, local in itertools.product(SIZES, RANKS, [1, 4, 7]):
        if workers != "fork" or size in (7, 64, 101):
            check_shares(size, world_size, local, workers, shuffle=True, drop_last=drop_last)


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")
@pytest.mark.parametrize("workers", [{}, {"num_workers": 4}, {"num_workers": 4, "parallel_method": "process"}])
def test_reported_lengths_are_the_real_ones(workers):
    loader = make(100, local_batch_size=4, multiprocessing_context="fork", **workers)
    assert [len(batch) for batch in epoch(loader)] == [4] * 25
    assert len(loader) == 25
    loader = make(50, local_batch_size=8, drop_last=False, multiprocessing_context="fork", **workers)
    assert [len(batch) for batch in epoch(loader)] == [8] * 6 + [2]
    assert len(loader) == 7


@pytest.mark.parametrize("workers", WORKERS)
def test_a_global_batch_does_not_depend_on_who_makes_it(workers):
    expected = epoch(make(48, local_batch_size=24, shuffle=True, shuffle_seed=3))
    for world_size in (1, 2, 3):
        _, parts = ranks(48, world_size, 24 // world_size, workers, shuffle=True, shuffle_seed=3)
        assert together(parts) == expected


def test_fewer_samples_than_a_batch_are_refused_alike_on_all_ranks_and_served_when_nothing_is_dropped():
    for rank in range(8):
        loader = make(3, rank=rank, world_size=8)
        for ask in (len, iter, StatefulDataLoader.open):
            with pytest.raises(OrderError, match=r"3 samples do not fill one global batch of 8 \(8 ranks\)"):
                ask(loader)
    loaders, parts = ranks(3, 8, 1, drop_last=False)
    assert parts == [[[rank]] if rank < 3 else [[]] for rank in range(8)]
    assert {loader.state_dict()["epoch"] for loader in loaders} == {1}


@pytest.mark.parametrize("world_size", [1, 2])
def test_no_samples_at_all_are_an_empty_epoch_when_nothing_is_dropped(world_size):
    for rank in range(world_size):
        loader = make(0, rank=rank, world_size=world_size, drop_last=False)
        assert (len(loader), epoch(loader), epoch(loader)) == (0, [], [])
    with pytest.raises(OrderError, match="0 samples"):
        len(make(0))


@pytest.mark.parametrize("workers", WORKERS)
def test_without_shuffling_every_epoch_has_the_same_order(workers):
    loader = make(100, local_batch_size=10, **WORKERS[workers])
    expected = [list(range(k, k + 10)) for k in range(0, 100, 10)]
    assert [epoch(loader) for _ in range(3)] == [expected] * 3


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("keep", [False, True])
def test_shuffled_epochs_are_new_permutations_that_every_run_repeats(workers, keep):
    def three(seed, dataset):
        loader = make(
            dataset, local_batch_size=10, shuffle=True, shuffle_seed=seed, persistent_workers=keep, **WORKERS[workers]
        )
        epochs = [flat(epoch(loader)) for _ in range(3)]
        loader.close()
        return epochs

    kind = Numbers if workers == "fork" else Slow
    first = three(1, kind(100))
    assert all(sorted(ids) == list(range(100)) for ids in first)
    assert len({tuple(ids) for ids in first}) == 3
    assert three(1, kind(100)) == first
    assert all(mine != theirs for mine, theirs in zip(three(2, kind(100)), first, strict=True))


def test_shuffling_without_a_seed_is_seed_zero_and_the_view_of_that_name():
    expected = epoch(make(100, local_batch_size=10, shuffle=True, shuffle_seed=0))
    assert epoch(make(100, local_batch_size=10, shuffle=True)) == expected
    view = make(ShuffledDataset(Numbers(100), 0), local_batch_size=10)
    assert epoch(view) == expected
    assert view.state_dict() == take_state(make(100, local_batch_size=10, shuffle=True), 10)


def take_state(loader, steps):
    take(loader, steps)
    return loader.state_dict()


def test_shuffling_what_is_in_order_already_is_refused():
    with pytest.raises(OrderError, match="shuffle=True over a ShuffledDataset, which already orders"):
        make(ShuffledDataset(Numbers(100), 0), shuffle=True)


@pytest.mark.parametrize("workers", WORKERS)
def test_views_nest_and_every_level_has_its_own_epochs(workers):
    dataset = ShuffledDataset(ShuffledDataset(Numbers(30), 1), 2)
    loader = make(dataset, local_batch_size=10, **WORKERS[workers])
    got = [flat(epoch(loader)) for _ in range(2)]
    positions = np.arange(60)
    expected = dataset.base.locate(dataset.locate(positions)) % 30
    assert got[0] + got[1] == expected.tolist()


@pytest.mark.parametrize("workers", WORKERS)
def test_a_broken_loop_and_a_second_iter_begin_the_same_epoch_again(workers):
    loader = make(40, local_batch_size=4, shuffle=True, **WORKERS[workers])
    reference = make(40, local_batch_size=4, shuffle=True)
    first, second = epoch(reference), epoch(reference)
    for steps in (1, 9):
        assert take(loader, steps) == first[:steps]
        assert loader.state_dict()["position"] == 4 * steps
    iterator = iter(loader)
    assert loader.state_dict()["position"] == 0
    assert numbers(next(iterator)) == first[0]
    assert epoch(loader) == first
    assert epoch(loader) == second
    loader.close()


@pytest.mark.parametrize("overtake", ["iter", "load", "close", "set_epoch"])
@pytest.mark.parametrize("workers", IN_PROCESS)
def test_an_overtaken_iterator_says_so(overtake, workers):
    loader = make(Slow(40), local_batch_size=4, **WORKERS[workers])
    iterator = iter(loader)
    next(iterator)
    match overtake:
        case "iter":
            iter(loader)
        case "load":
            loader.load_state_dict(loader.state_dict())
        case "close":
            loader.close()
        case "set_epoch":
            loader.set_epoch(3)
    for _ in range(2):
        with pytest.raises(
            ClosedError, match=r"this iterator is over: .*(newer|load_state|closed|set_epoch).*iter\(\)"
        ):
            next(iterator)


def test_an_exhausted_iterator_stays_exhausted_whatever_comes_later():
    loader = make(8, local_batch_size=4)
    iterator = iter(loader)
    assert len(list(iterator)) == 2
    loader.close()
    iter(loader)
    assert next(iterator, "the end") == "the end"


def test_set_epoch_chooses_the_next_epoch_and_keeps_the_position_within_it():
    loader = make(40, local_batch_size=4, shuffle=True)
    epochs = [epoch(loader) for _ in range(4)]
    for number in (2, 0, np.int64(3)):
        loader.set_epoch(number)
        assert loader.state_dict()["epoch"] == number
        assert epoch(loader) == epochs[number]
    loader.set_epoch(1)
    take(loader, 3)
    state = loader.state_dict()
    other = make(40, local_batch_size=4, shuffle=True)
    other.load_state_dict(state)
    other.set_epoch(1)  # as the loops of PyTorch's users do at the beginning of each
    assert epoch(other) == epochs[1][3:]
    other.set_epoch(2)
    assert epoch(other) == epochs[2]
    for wrong, error in ((-1, ValueError), (1.5, TypeError), (True, TypeError)):
        with pytest.raises(error, match="epoch"):
            loader.set_epoch(wrong)


@pytest.mark.parametrize("workers", WORKERS)
def test_after_an_error_the_iterator_is_over_and_the_failed_step_can_be_asked_for_again(workers, tmp_path):
    mark = tmp_path / "mended"
    loader = make(Broken(40, 22, "value", str(mark)), local_batch_size=4, **WORKERS[workers])
    iterator, got = iter(loader), []
    with pytest.raises((ValueError, WorkerError), match="bad sample"):
        drain(iterator, got)
    with pytest.raises(ClosedError, match="an error ended it"):
        next(iterator)
    mark.touch()
    loader.load_state_dict(loader.state_dict())
    got += epoch(loader)
    assert got == epoch(make(40, local_batch_size=4))
    assert epoch(loader) == got
    loader.close()


@pytest.mark.parametrize("workers", WORKERS)
def test_a_stop_iteration_in_a_sample_is_no_end_of_the_epoch(workers):
    loader = make(Broken(40, 22, "stop"), local_batch_size=4, **WORKERS[workers])
    got = []
    with pytest.raises(WorkerError, match="StopIteration"):
        drain(loader, got)
    assert len(got) == 5
    assert loader.state_dict()["position"] == 20
    loader.close()


def test_a_dataset_that_gives_fewer_samples_than_asked_for_is_refused():
    class Forgetful(Numbers):
        def __getitems__(self, items):
            return [self[item] for item in items[:-1]]

    with pytest.raises(ValueError, match=r"Forgetful\.__getitems__ gave 3 samples for 4 items"):
        next(iter(make(Forgetful(8), local_batch_size=4)))


@pytest.mark.parametrize(
    "dataset", [list(range(20)), np.arange(20), range(20), Listed(), torch.utils.data.Subset(range(50), range(20))]
)
def test_foreign_datasets_of_every_kind_are_read(dataset):
    assert epoch(make(dataset, local_batch_size=5)) == [list(range(k, k + 5)) for k in range(0, 20, 5)]
    loader = make(dataset, local_batch_size=5, shuffle=True)
    assert sorted(flat(epoch(loader) + epoch(loader))) == sorted([*range(20)] * 2)


def test_a_batch_is_read_in_one_call_however_the_rows_are_dealt():
    dataset = Counting(24)
    epoch(make(dataset, rank=1, world_size=2, local_batch_size=3))
    assert dataset.read == [[1, 3, 5], [7, 9, 11], [13, 15, 17], [19, 21, 23]]


@pytest.mark.parametrize("slow", [False, True])
def test_the_first_step_locates_its_own_rows_only_and_later_ones_as_many_as_take_no_time(slow):
    asked = []

    class Watched(ShuffledDataset):
        def locate(self, positions):
            asked.append(len(positions))
            time.sleep(0.001 * len(positions) * slow)
            return super().locate(positions)

    loader = make(Watched(Numbers(100_000), 1), local_batch_size=8)
    take(loader, 30 if slow else 600)
    assert asked[0] == 8
    if slow:
        assert max(asked) <= 24
    else:
        assert len(asked) < 30
        assert max(asked) <= 4096


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"local_batch_size": 0}, ValueError, "local_batch_size=0 must be at least 1"),
        ({"global_batch_size": -2}, ValueError, "global_batch_size=-2 must be at least 1"),
        ({"local_batch_size": 2.0}, TypeError, "local_batch_size must be an integer, not 2.0"),
        ({"num_workers": True}, TypeError, "num_workers must be an integer"),
        ({"num_workers": -1}, ValueError, "num_workers=-1 must be at least 0"),
        ({"prefetch": -1}, ValueError, "prefetch=-1 must be at least 0"),
        ({"prefetch_bytes": 0}, ValueError, "prefetch_bytes=0 must be at least 1"),
        ({"timeout_s": 0}, ValueError, "timeout_s=0 must be more than 0"),
        ({"parallel_method": "fibre"}, ValueError, "'fibre' must be 'thread' or 'process'"),
        ({"multiprocessing_context": "clone"}, ValueError, "'clone' must be one of .*spawn"),
        ({"local_batch_size": 2, "global_batch_size": 2}, ValueError, "not both"),
        ({"shuffle": True, "shuffle_seed": 1.5}, TypeError, "seed must be an integer"),
        ({"num_workers": 1, "parallel_method": "process", "prefetch_bytes": 1}, ValueError, "bounds threads only"),
    ],
)
def test_settings_that_make_no_sense_are_refused_at_once(options, error, text):
    with pytest.raises(error, match=text):
        make(8, **options)


def test_numpy_integers_are_integers():
    loader = make(24, local_batch_size=np.int64(4), rank=np.int32(1), world_size=np.int64(2), num_workers=np.int8(0))
    assert epoch(loader)[0] == [1, 3, 5, 7]
    assert (loader.rank, loader.world_size, loader.local_batch_size, loader.dataset_size) == (1, 2, 4, 24)


def test_what_was_given_can_be_read_back():
    dataset = Numbers(24)
    loader = make(dataset, list, local_batch_size=3, world_size=2, shuffle=True, shuffle_seed=5, prefetch=2)
    assert (loader.dataset, loader.collate_fn, loader.shuffle, loader.shuffle_seed) == (dataset, list, True, 5)
    assert (loader.prefetch, loader.num_workers, loader.parallel_method) == (2, 0, "thread")
    assert (loader.drop_last, loader.pin_memory, loader.device) == (True, False, torch.device("cpu"))
    assert loader.describe() == {
        **loader.state_dict()["settings"],
        "steps": 4,
        "global_batch_size": 6,
        "rank": 0,
        "world_size": 2,
    }


@pytest.fixture
def storage(tmp_path):
    storage = StreamStorage(tmp_path / "tokens", StreamNumpyFormat([("tokens", "<u2")]))
    with storage.sync_writer() as writer:
        for shard in range(3):
            writer.append(shard, {"tokens": np.arange(40) + 40 * shard})
    return storage


@pytest.mark.parametrize("workers", WORKERS)
def test_a_loader_from_a_stream_storage_serves_its_windows(storage, workers):
    with StatefulDataLoader.from_storage(
        storage, sequence_length=6, local_batch_size=5, device="cpu", rank=0, world_size=1, **WORKERS[workers]
    ) as loader:
        batches = list(loader)
        assert torch.cat([batch["tokens"] for batch in batches]).tolist() == np.arange(120).reshape(20, 6).tolist()
        assert next(iter(loader))["tokens"].dtype == torch.uint16
    assert next(iter(loader))["tokens"][0].tolist() == [0, 1, 2, 3, 4, 5]  # it opens again
    loader.close()


def test_a_storage_and_what_it_needs_must_fit():
    with pytest.raises(ValueError, match="pass sequence_length"):
        StatefulDataLoader.from_storage(StreamStorage("nowhere"))
    with pytest.raises(TypeError, match="Numbers is no storage"):
        StatefulDataLoader.from_storage(Numbers(3), sequence_length=2)

    class Documents:
        kind = "documents"

        def dataset(self):
            return Numbers(6)

    with pytest.raises(TypeError, match="leave sequence_length out"):
        StatefulDataLoader.from_storage(Documents(), sequence_length=2)
    assert len(StatefulDataLoader.from_storage(Documents(), device="cpu", rank=0, world_size=1)) == 6


def test_entering_a_with_block_opens_the_dataset(tmp_path):
    loader = StatefulDataLoader.from_storage(StreamStorage(tmp_path), sequence_length=2, rank=0, world_size=1)
    with pytest.raises(FileNotFoundError), loader:
        pass


@pytest.mark.parametrize("done", [0, 3, 10])
@pytest.mark.parametrize("workers", WORKERS)
def test_a_pickled_loader_goes_on_where_it_was(workers, done):
    loader = make(40, local_batch_size=4, shuffle=True, **WORKERS[workers])
    take(loader, done)
    other = pickle.loads(pickle.dumps(loader))
    assert other.state_dict() == loader.state_dict()
    loader.close()
    reference = make(40, local_batch_size=4, shuffle=True)
    assert take(other, 20 - done) == (epoch(reference) + epoch(reference))[done:]
    other.close()


def test_a_pickled_loader_loads_in_a_fresh_interpreter(storage, tmp_path):
    loader = make(storage.dataset(6), local_batch_size=5, shuffle=True)
    (tmp_path / "loader").write_bytes(pickle.dumps(loader))
    first = next(iter(loader))
    script = f"""
import pickle
loader = pickle.load(open({str(tmp_path / "loader")!r}, "rb"))
print(next(iter(loader))["tokens"].tolist())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, env=os.environ)
    assert done.stdout.strip() == str(first["tokens"].tolist()), done.stderr


def test_a_dataset_of_tensors_and_one_of_a_torch_subset_are_alike():
    dataset = torch.utils.data.Subset(Tensors(), range(4, 12))
    batches = list(make(dataset, local_batch_size=4))
    assert [batch[:, 0].tolist() for batch in batches] == [[4, 5, 6, 7], [8, 9, 10, 11]]
