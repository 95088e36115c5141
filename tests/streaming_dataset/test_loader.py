"""StreamingDataLoader's arguments and attributes: torch's, and where they mean something else."""

import copy
import gc
import json
import multiprocessing
import pickle
import warnings
from functools import partial
from itertools import chain

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset, default_collate, get_worker_info

from headrace import ElasticBatchSampler, MDSWriter, StatefulDataLoader, StreamingDataLoader, StreamingDataset
from headrace.errors import ClosedError, OptionError, OrderError, StateError, WorkerError
from headrace.streaming.loader import StreamingDataLoader as FromItsRoom
from streaming_dataset.scenes import Transformed, ids, numbers


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return numbers(tmp_path_factory.mktemp("numbers") / "data", 33)


@pytest.fixture
def dataset_of(folder):
    return partial(StreamingDataset, local=folder, shuffle=True)


def flat(batches):
    return list(chain.from_iterable(batches))


# ---- what it is


def test_it_is_a_dataloader_of_torchs_with_all_its_attributes(dataset_of):
    dataset = dataset_of()
    loader = StreamingDataLoader(dataset, 4, drop_last=True)
    assert isinstance(loader, DataLoader)
    assert FromItsRoom is StreamingDataLoader
    assert loader.dataset is dataset
    assert (loader.batch_size, loader.drop_last, loader.num_workers, loader.prefetch_factor) == (4, True, 0, None)
    assert loader.collate_fn is default_collate
    with pytest.raises(ValueError, match="batch_size attribute should not be set"):
        loader.batch_size = 5


def test_arguments_may_be_given_by_position_as_torchs(dataset_of):
    loader = StreamingDataLoader(dataset_of(), 4, None, None, None, 2, list, False, True, 3.0)
    assert (loader.num_workers, loader.collate_fn, loader.drop_last, loader.timeout) == (2, list, True, 3.0)
    assert loader.prefetch_factor == 2


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"num_workers": -1}, ValueError, "num_workers"),
        ({"timeout": -1}, ValueError, "timeout"),
        ({"prefetch_factor": 2}, ValueError, "prefetch_factor"),
        ({"persistent_workers": True}, ValueError, "persistent_workers"),
        ({"multiprocessing_context": "fork"}, ValueError, "num_workers"),
        ({"num_workers": 1, "multiprocessing_context": "spork"}, ValueError, "spork"),
        ({"batch_size": None, "drop_last": True}, ValueError, "drop_last"),
        ({"shuffle": True}, OptionError, r"StreamingDataset\(shuffle=True\)"),
        ({"sampler": range(3)}, OptionError, r"StreamingDataset\(shuffle=True\)"),
        ({"batch_sampler": [[0]]}, OptionError, r"StreamingDataset\(shuffle=True\)"),
        ({"timeout": 3.0}, OptionError, "worker processes"),
        ({"pad": True, "drop_last": True}, OptionError, "drop_last=False"),
        ({"bach_size": 3}, TypeError, "bach_size"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_as_it_is_made(arguments, error, words, dataset_of):
    with pytest.raises(error, match=words):
        StreamingDataLoader(dataset_of(), **arguments)


def test_shuffle_false_is_what_torch_has_for_no_shuffle(dataset_of):
    assert len(StreamingDataLoader(dataset_of(), 4, shuffle=False)) == 9


def test_the_batch_size_may_be_the_loaders_or_the_datasets_but_not_two(dataset_of):
    assert len(ids(StreamingDataLoader(dataset_of(), 8))[0]) == 8
    assert len(ids(StreamingDataLoader(dataset_of(batch_size=8)))[0]) == 8
    assert len(ids(StreamingDataLoader(dataset_of(batch_size=8), batch_size=8))[0]) == 8
    assert StreamingDataLoader(dataset_of(batch_size=8)).batch_size == 8
    assert StreamingDataLoader(dataset_of()).batch_size == 1
    with pytest.raises(OptionError, match=r"batch_size=4 .* 8, as the dataset's batch_size"):
        StreamingDataLoader(dataset_of(batch_size=8), batch_size=4)
    with pytest.raises(OptionError, match="batch_size=1 "):
        StreamingDataLoader(dataset_of(batch_size=8), 1)


class Doubling(StreamingDataset):
    """Says what an iteration gives, and not what its samples are."""

    def __iter__(self):
        for sample in super().__iter__():
            yield {"id": 2 * sample["id"]}


def test_what_only_an_iteration_gives_is_not_left_out_in_silence(folder):
    dataset = Doubling(local=folder, batch_size=4)
    for make in (StreamingDataLoader, StatefulDataLoader, partial(ElasticBatchSampler, global_batch_size=4)):
        with pytest.raises(OrderError, match=r"Doubling has an __iter__ of its own, .* __getitem__"):
            make(dataset)
    assert ids(DataLoader(dataset, 4))[0] == [0, 2, 4, 6]


def test_constructing_it_reads_nothing(tmp_path):
    loader = StreamingDataLoader(StreamingDataset(local=str(tmp_path / "nowhere")), 4)
    with pytest.raises(FileNotFoundError):
        len(loader)


# ---- other datasets


def test_over_any_other_dataset_it_is_torchs_loader_without_a_state(dataset_of):
    loader = StreamingDataLoader(range(10), batch_size=4, shuffle=True)
    assert len(loader) == 3
    assert sorted(torch.cat(list(loader)).tolist()) == list(range(10))
    assert loader.state_dict() is None
    loader.load_state_dict(None)
    with pytest.raises(StateError, match="range has no state"):
        loader.load_state_dict(StreamingDataLoader(dataset_of(), 4).state_dict())
    with pytest.raises(OptionError, match="pad"):
        StreamingDataLoader(range(10), pad=True)
    assert (loader.num_samples_yielded, loader.padding) == (0, 0)
    loader.close()


def test_a_subset_is_read_by_torch(dataset_of):
    loader = StreamingDataLoader(Subset(dataset_of(), [3, 1, 2]), batch_size=2)
    assert ids(loader) == [[3, 1], [2]]
    assert loader.state_dict() is None


# ---- what batches are


def test_batches_are_what_torchs_loader_makes_of_the_same_samples(tmp_path):
    columns = {"id": "int", "text": "str", "tokens": "ndarray:uint16:4", "score": "float32", "extra": "json"}
    with MDSWriter(columns=columns, out=str(tmp_path / "data")) as writer:
        for k in range(6):
            tokens = np.arange(4, dtype=np.uint16) + k
            writer.write({"id": k, "text": str(k), "tokens": tokens, "score": np.float32(k), "extra": {"a": [k, "b"]}})
    dataset = StreamingDataset(local=str(tmp_path / "data"), batch_size=4)
    expected = list(DataLoader(dataset, 4))
    for workers in (0, 1):
        with StreamingDataLoader(dataset, 4, num_workers=workers) as loader:
            got = list(loader)
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            assert list(one) == list(other) == ["extra", "id", "score", "text", "tokens"]
            assert one["text"] == other["text"]
            assert one["extra"]["a"][1] == other["extra"]["a"][1]
            for name in ("id", "score", "tokens"):
                assert one[name].dtype == other[name].dtype
                assert torch.equal(one[name], other[name])


def test_one_by_one_samples_are_converted_and_not_batched(dataset_of):
    loader = StreamingDataLoader(dataset_of(), batch_size=None)
    sample = next(iter(loader))
    assert type(sample["id"]) is int
    assert type(sample["text"]) is str
    assert list(StreamingDataLoader(dataset_of(), None, collate_fn=lambda sample: sample["id"]))[:1] == [sample["id"]]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "collate", [str, lambda samples: None, lambda samples: {"a": len(samples)}, lambda samples: []]
)
def test_the_state_counts_batches_whatever_a_collate_function_makes(collate, workers, dataset_of):
    with StreamingDataLoader(dataset_of(), 4, collate_fn=collate, num_workers=workers) as loader:
        iterator = iter(loader)
        for _ in range(3):
            next(iterator)
        state = loader.state_dict()
        assert (state["epoch"], state["position"], loader.num_samples_yielded) == (0, 12, 12)
        assert len(list(iterator)) == 6
        assert (loader.state_dict()["epoch"], loader.num_samples_yielded) == (1, 33)


def test_a_collate_function_set_later_is_used_from_the_next_iteration_on(dataset_of):
    loader = StreamingDataLoader(dataset_of(), 4)
    iterator = iter(loader)
    next(iterator)
    loader.collate_fn = len
    assert next(iterator)["id"].shape == (4,)
    assert list(loader) == [4] * 8 + [1]
    with pytest.raises(ClosedError, match="a newer one took its place"):
        next(iterator)


def test_pinning_without_an_accelerator_is_a_warning(dataset_of):
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator")
    for workers in (0, 1):
        with StreamingDataLoader(
            dataset_of(), 4, num_workers=workers, pin_memory=True, pin_memory_device="cuda"
        ) as loader:
            with pytest.warns(UserWarning, match="no accelerator"):
                batch = next(iter(loader))
            assert not batch["id"].is_pinned()


@pytest.mark.cuda
@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_pinned_and_stay_on_the_host(workers, dataset_of):
    with StreamingDataLoader(dataset_of(), 4, num_workers=workers, pin_memory=True) as loader:
        for batch in loader:
            assert batch["id"].is_pinned()
            assert batch["id"].device.type == "cpu"
            assert type(batch["text"]) is list


# ---- workers


class Told:
    """What workers were told as they began, kept in the samples of a Transformed dataset."""

    def __init__(self, rank):
        self.rank = rank

    def __call__(self, worker):
        info = get_worker_info()
        assert (info.id, info.num_workers) == (worker, 2)
        info.dataset.told = (self.rank, worker)


class Telling(StreamingDataset):
    """A dataset whose samples say what worker_init_fn set."""

    told = None

    def __getitem__(self, at):
        return {**super().__getitem__(at), "told": self.told or (-1, -1)}


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_worker_init_fn_sees_the_dataset_whose_samples_the_worker_reads(method, folder):
    dataset = Telling(local=folder)
    loader = StreamingDataLoader(dataset, 4, num_workers=2, multiprocessing_context=method)
    loader.worker_init_fn = Told(5)  # as Lightning does: when the loader is made
    with loader:
        told = [(batch["told"][0].tolist(), set(batch["told"][1].tolist())) for batch in loader]
    assert told == [([5] * min(4, 33 - 4 * k), {k % 2}) for k in range(9)]


def test_workers_know_who_they_are_and_have_random_numbers_of_their_own(folder):
    def read(seed):
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        with StreamingDataLoader(Transformed(local=folder), 4, num_workers=2, generator=generator) as loader:
            batches = list(loader)
        assert [batch["worker"].unique().tolist() for batch in batches] == [[k % 2] for k in range(9)]
        return flat(batch["random"].tolist() for batch in batches)

    first, again, other = read(7), read(7), read(8)
    assert first == again
    assert first != other
    assert len(set(first)) == 33


def test_what_the_process_draws_does_not_depend_on_workers(folder):
    def drawn(workers):
        torch.manual_seed(3)
        with StreamingDataLoader(StreamingDataset(local=folder), 4, num_workers=workers) as loader:
            ids(loader)
        return torch.rand(()).item()

    assert drawn(0) == drawn(2)


def test_in_order_false_changes_nothing(dataset_of):
    with StreamingDataLoader(dataset_of(), 4, num_workers=2, in_order=False) as loader:
        assert ids(loader) == ids(StreamingDataLoader(dataset_of(), 4))


# ---- iterations


def test_a_broken_loop_starts_its_epoch_over(dataset_of):
    loader = StreamingDataLoader(dataset_of(), 4)
    first = ids(loader, 3)
    assert ids(loader)[:3] == first
    assert ids(loader)[:3] != first


def test_a_new_loader_for_each_epoch_goes_on_through_the_epochs(dataset_of):
    one = StreamingDataLoader(dataset_of(), 4)
    epochs = [ids(one) for _ in range(4)]
    dataset = dataset_of()
    assert [ids(StreamingDataLoader(dataset, 4)) for _ in range(2)] == epochs[:2]
    next(iter(StreamingDataLoader(dataset, 4)))  # begins an epoch, too
    last = StreamingDataLoader(dataset, 4)
    assert ids(last) == epochs[3]
    assert last.state_dict()["epoch"] == 4


def test_a_new_loader_begins_where_a_state_was_loaded(dataset_of):
    saved = StreamingDataLoader(dataset_of(), 4)
    batches = iter(saved)
    ids(batches, 3)
    dataset = dataset_of()
    StreamingDataLoader(dataset, 4).load_state_dict(saved.state_dict())
    assert ids(StreamingDataLoader(dataset, 4)) == ids(batches)


def test_an_older_iterator_says_that_a_newer_one_took_its_place(dataset_of):
    loader = StreamingDataLoader(dataset_of(), 4)
    old = iter(loader)
    next(old)
    new = iter(loader)
    with pytest.raises(ClosedError, match="a newer one took its place"):
        next(old)
    next(new)
    loader.close()
    with pytest.raises(ClosedError, match="the loader was closed"):
        next(new)
    assert len(ids(loader)) == 9


def test_rank_and_world_size_may_be_known_only_when_an_iteration_begins(folder, monkeypatch):
    loader = StreamingDataLoader(StreamingDataset(local=folder), 4)
    assert len(loader) == 9
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert len(loader) == 5
    assert ids(loader)[0] == [1, 3, 5, 7]
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    state = loader.state_dict()
    assert len(ids(loader)) == 9
    assert (state["epoch"], loader.state_dict()["epoch"]) == (1, 2)


def test_set_epoch_begins_there_unless_a_position_in_it_was_loaded(dataset_of):
    alone = StreamingDataLoader(dataset_of(), 4)
    epochs = [ids(alone) for _ in range(3)]
    loader = StreamingDataLoader(dataset_of(), 4)
    loader.set_epoch(2)
    assert ids(loader) == epochs[2]
    loader.dataset.set_epoch(1)
    assert ids(loader, 3) == epochs[1][:3]
    state = loader.state_dict()
    loader.set_epoch(0)
    assert ids(loader) == epochs[0]
    loader.load_state_dict(state)
    loader.set_epoch(1)
    loader.dataset.set_epoch(1)
    assert ids(loader) == epochs[1][3:]
    loader.dataset.set_epoch(0)
    loader.load_state_dict(state)
    assert ids(loader) == epochs[1][3:]


def test_copies_go_on_where_the_loader_is(dataset_of):
    loader = StreamingDataLoader(dataset_of(), 4)
    batches = ids(loader, 1)
    copies = [pickle.loads(pickle.dumps(loader)), copy.deepcopy(loader)]
    batches += ids(loader)[1:]
    for other in copies:
        assert (other.state_dict()["position"], loader.state_dict()["epoch"]) == (4, 1)
        assert ids(other) == batches[1:]


def test_warnings_are_torchs_own_and_no_others(dataset_of):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with StreamingDataLoader(dataset_of(), 4, num_workers=1) as loader:
            assert len(loader) == len(ids(loader))


def test_a_state_is_json_and_the_same_as_statefuldataloaders(dataset_of):
    loader = StreamingDataLoader(dataset_of(), 4, drop_last=True)
    other = StatefulDataLoader(dataset_of().as_view(), local_batch_size=4)
    assert loader.state_dict() == other.state_dict()
    ids(loader, 2)
    state = json.loads(json.dumps(loader.state_dict()))
    assert len(json.dumps(state)) < 4096
    other.load_state_dict(state)
    assert [batch["id"].tolist() for batch in other] == ids(loader)[2:]


def test_states_of_mosaicml_streaming_are_refused_with_words(dataset_of):
    state = {"epoch": 0, "sample_in_epoch": 8, "num_canonical_nodes": 1, "shuffle_seed": 9176}
    with pytest.raises(StateError, match="MosaicML Streaming"):
        StreamingDataLoader(dataset_of(), 4).load_state_dict(state)


def test_an_empty_dataset_has_no_steps(tmp_path):
    dataset = StreamingDataset(local=numbers(tmp_path / "none", 0))
    loader = StreamingDataLoader(dataset, 4)
    assert (len(loader), ids(loader), ids(loader)) == (0, [], [])
    with pytest.raises(OrderError, match="0 samples"):
        len(StreamingDataLoader(dataset, 4, drop_last=True))


def fails_to_start(worker):
    raise ValueError("no licence")


def test_a_worker_init_fn_that_raises_is_told_with_the_worker(dataset_of):
    with (
        StreamingDataLoader(dataset_of(), 4, num_workers=1, worker_init_fn=fails_to_start) as loader,
        pytest.raises(WorkerError, match=r"(?s)loader worker 0 .* no licence"),
    ):
        next(iter(loader))


def test_persistent_workers_are_kept_while_nothing_is_changed_and_no_longer(dataset_of):
    def children():
        return {child.pid for child in multiprocessing.active_children()}

    with StreamingDataLoader(dataset_of(), 4, num_workers=1, persistent_workers=True) as loader:
        expected = [ids(StreamingDataLoader(dataset_of(), 4)), ids(loader)]
        assert expected[0] == expected[1]
        first = children()
        ids(loader, 2)
        loader.load_state_dict(loader.state_dict())
        ids(loader)
        assert children() == first
        loader.prefetch_factor = 3
        ids(loader)
        assert len(children()) == 1
        assert children() != first
    assert children() == set()


def test_a_loader_that_is_dropped_in_the_middle_leaves_no_worker(dataset_of):
    for persistent_workers in (False, True):
        loader = StreamingDataLoader(dataset_of(), 1, num_workers=1, persistent_workers=persistent_workers)
        next(iter(loader))
        assert multiprocessing.active_children()
        del loader
        gc.collect()
        assert not multiprocessing.active_children()
