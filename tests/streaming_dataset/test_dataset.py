"""StreamingDataset by number and in its order, in one process: what a script that was written for Streaming meets."""

import gc
import json
import pickle
import threading
import weakref
from collections import Counter
from itertools import chain

import numpy as np
import pytest
import torch.utils.data

from headrace import (
    MDSWriter,
    MemoryStore,
    ShuffledDataset,
    StatefulDataLoader,
    StateMismatchError,
    Stream,
    StreamingDataLoader,
    StreamingDataset,
)
from headrace.errors import NoDatasetError, OptionError, OrderError, StateError, WorkerError
from headrace.testing import FaultStore
from streaming_dataset.written import SIZES, numbers_of, streams, write_numbers, write_streams


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_numbers(tmp_path_factory.mktemp("numbers") / "all", range(103))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return write_streams(tmp_path_factory.mktemp("streams"))


def test_constructing_asks_no_store_for_anything():
    store = FaultStore(MemoryStore(flat=True))
    dataset = StreamingDataset(streams=[Stream(remote=store)], shuffle=True, batch_size=4)
    assert store.calls == []
    with pytest.raises(NoDatasetError):
        len(dataset)


def test_samples_have_numbers_over_all_streams(folders):
    dataset = StreamingDataset(streams=streams(folders))
    assert dataset.size == dataset.num_samples == sum(SIZES)
    assert dataset[0] == {"number": 0, "text": "text 0"}
    assert dataset[-1]["number"] == sum(SIZES) - 1 == dataset[sum(SIZES) - 1]["number"]
    assert dataset.get_item(40)["number"] == 40
    assert numbers_of(dataset[3:50:7]) == list(range(3, 50, 7))
    assert numbers_of(dataset[[5, 99, 5]]) == numbers_of(dataset[np.array([5, 99, 5])]) == [5, 99, 5]
    assert [numbers_of(some) for some in dataset[[[1, 2], [40, 41]]]] == [[1, 2], [40, 41]]
    assert dataset[np.int64(7)]["number"] == 7
    for outside in (sum(SIZES), -sum(SIZES) - 1):
        with pytest.raises(IndexError):
            dataset[outside]


def test_many_samples_are_asked_for_together():
    store = FaultStore(MemoryStore(flat=True))
    with MDSWriter(out=store.store, columns={"number": "int"}) as out:
        for number in range(200):
            out.write({"number": number})
    dataset = StreamingDataset(streams=[Stream(remote=store)])
    assert dataset[0] == {"number": 0}
    for at in (slice(0, 200, 2), list(range(0, 200, 2)), np.arange(0, 200, 2)):
        before = len(store.calls)
        assert numbers_of(dataset[at]) == list(range(0, 200, 2))
        assert len(store.calls) - before < 5
    assert (dataset[[]], dataset[5:5]) == ([], [])


def test_tables_of_shards_and_samples_have_streamings_names(folders):
    dataset = StreamingDataset(streams=streams(folders))
    assert dataset.num_shards == 4 + 2 + 6
    assert dataset.num_streams == 3
    assert dataset.samples_per_stream.tolist() == list(SIZES)
    assert dataset.shards_per_stream.tolist() == [4, 2, 6]
    assert dataset.samples_per_shard.tolist() == [10, 10, 10, 4, 10, 2, 10, 10, 10, 10, 10, 5]
    assert dataset.stream_per_shard.tolist() == [0] * 4 + [1] * 2 + [2] * 6
    assert dataset.shard_offset_per_stream.tolist() == [0, 4, 6]
    assert dataset.sample_offset_per_stream.tolist() == [0, 34, 46]
    assert dataset.sample_offset_per_shard.tolist() == [0, 10, 20, 30, 34, 44, 46, 56, 66, 76, 86, 96]


def test_without_a_shuffle_streams_come_one_after_the_other_in_stored_order(folders):
    dataset = StreamingDataset(streams=streams(folders))
    for _ in range(2):
        assert numbers_of(dataset) == list(range(sum(SIZES)))


def test_each_iteration_is_the_next_epoch_in_an_order_of_its_own(folder):
    dataset = StreamingDataset(local=folder, shuffle=True)
    epochs = [numbers_of(dataset) for _ in range(3)]
    assert all(sorted(epoch) == list(range(103)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    again = StreamingDataset(local=folder, shuffle=True)
    assert [numbers_of(again) for _ in range(3)] == epochs
    assert numbers_of(StreamingDataset(local=folder, shuffle=True, shuffle_seed=1)) != epochs[0]
    assert dataset.next_epoch == 3


def test_the_epoch_may_be_set(folder):
    dataset = StreamingDataset(local=folder, shuffle=True)
    epochs = [numbers_of(dataset) for _ in range(3)]
    dataset.next_epoch = 1
    assert [numbers_of(dataset), numbers_of(dataset)] == epochs[1:]


@pytest.mark.parametrize("algorithm", ["py1e", "py1b", "py1br", "py1s", "py2s", "naive", "pooled", "global"])
def test_every_shuffling_algorithm_has_every_sample_once(folder, algorithm):
    dataset = StreamingDataset(
        local=folder, shuffle=True, shuffle_algo=algorithm, shuffle_block_size=30, num_canonical_nodes=2
    )
    epochs = [numbers_of(dataset) for _ in range(2)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(103))] * 2
    assert epochs[0] != epochs[1] != list(range(103))


def counts_by_stream(numbers):
    ends = np.cumsum(SIZES)
    counted = Counter(np.searchsorted(ends, numbers, "right").tolist())
    return [counted[number] for number in range(len(SIZES))]


@pytest.mark.parametrize(
    ("weights", "epoch_size", "expected"),
    [
        ({}, None, [34, 12, 55]),
        ({"repeat": [2, 0.5, 1]}, None, [68, 6, 55]),
        ({"choose": [10, 30, 0]}, None, [10, 30, 0]),
        ({"proportion": [1, 1, 2]}, 100, [25, 25, 50]),
        ({"proportion": [0.2, 0.3, 0.5]}, "0.2k", [40, 60, 100]),
        ({}, 202, [68, 24, 110]),
    ],
)
@pytest.mark.parametrize("shuffle", [False, True])
def test_weights_say_how_often_an_epoch_has_each_stream(folders, weights, epoch_size, expected, shuffle):
    dataset = StreamingDataset(streams=streams(folders, **weights), epoch_size=epoch_size, shuffle=shuffle)
    for _ in range(3):
        assert counts_by_stream(numbers_of(dataset)) == expected
    assert dataset.epoch_size == len(dataset) == sum(expected)


@pytest.mark.parametrize("shuffle", [False, True])
def test_balanced_epochs_go_on_through_a_stream_and_fixed_ones_stay(folder, shuffle):
    balanced = StreamingDataset(local=folder, epoch_size=10, shuffle=shuffle)
    epochs = [numbers_of(balanced) for _ in range(11)]
    assert sorted(list(chain.from_iterable(epochs))[:103]) == list(range(103))
    fixed = StreamingDataset(local=folder, epoch_size=10, shuffle=shuffle, sampling_method="fixed")
    epochs = [numbers_of(fixed) for _ in range(3)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(epochs[2])
    assert (epochs[0] == epochs[1]) is (not shuffle)
    assert sorted(set(epochs[0])) != list(range(10))  # no beginning, but a sample of the stream


def test_batching_methods_say_which_streams_share_a_batch(folders):
    options = {"streams": streams(folders, choose=[30, 30, 60]), "batch_size": 6, "shuffle": True}

    def batches(method, rank=0, world_size=1):
        dataset = StreamingDataset(**options, batching_method=method, rank=rank, world_size=world_size)
        numbers = numbers_of(dataset)
        return [counts_by_stream(numbers[at : at + 6]) for at in range(0, len(numbers), 6)]

    assert all(sorted(batch) == [0, 0, 6] for batch in batches("per_stream"))
    assert all(sorted(batch) == [0, 0, 6] for rank in (0, 1) for batch in batches("device_per_stream", rank, 2))
    both = [
        np.add(mine, theirs).tolist()
        for mine, theirs in zip(batches("stratified", 0, 2), batches("stratified", 1, 2), strict=True)
    ]
    assert both == [[3, 3, 6]] * 10
    mixed = batches("random")
    assert len(mixed) == 20
    assert any(min(batch) > 0 for batch in mixed)


class Doubled(StreamingDataset):
    """As scripts for images do it."""

    def __getitem__(self, at):
        return 2 * super().__getitem__(at)["number"]


class Gotten(StreamingDataset):
    """As others do it."""

    def get_item(self, sample_id, retry=7):
        return -super().get_item(sample_id, retry)["number"]


@pytest.mark.parametrize(("kind", "change"), [(Doubled, lambda n: 2 * n), (Gotten, lambda n: -n)])
def test_a_subclass_that_says_what_a_sample_is_is_obeyed_everywhere(folder, kind, change):
    expected = [change(number) for number in range(103)]
    assert list(kind(local=folder)) == expected
    assert kind(local=folder)[10] == expected[10]
    assert kind(local=folder).as_view()[5] == expected[5]
    loader = torch.utils.data.DataLoader(kind(local=folder, batch_size=5), batch_size=5, num_workers=2)
    assert torch.cat(list(loader)).tolist() == expected
    with StatefulDataLoader(kind(local=folder), local_batch_size=5, drop_last=False) as ours:
        assert torch.cat(list(ours)).tolist() == expected


@pytest.mark.parametrize("num_workers", [0, 1, 2, 3])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_stock_loader_gives_the_same_batches_with_any_number_of_workers(folder, num_workers, persistent):
    if persistent and not num_workers:
        return
    dataset = StreamingDataset(local=folder, shuffle=True, batch_size=8)
    loader = torch.utils.data.DataLoader(dataset, batch_size=8, num_workers=num_workers, persistent_workers=persistent)
    alone = StreamingDataset(local=folder, shuffle=True)
    for _ in range(3):
        numbers = numbers_of(alone)
        assert [batch["number"].tolist() for batch in loader] == [numbers[at : at + 8] for at in range(0, 103, 8)]
    assert len(loader) == 13
    assert dataset.next_epoch == 3


def test_workers_need_to_know_the_batch_size(folder):
    loader = torch.utils.data.DataLoader(StreamingDataset(local=folder), batch_size=8, num_workers=2)
    with pytest.raises(RuntimeError, match="batch_size=None is not valid"):  # as torch tells what a worker raises
        list(loader)


def test_ranks_share_the_global_batches_and_have_as_many_rows(folder):
    alone = numbers_of(StreamingDataset(local=folder, shuffle=True))
    ranks = [StreamingDataset(local=folder, shuffle=True, batch_size=5, rank=rank, world_size=4) for rank in range(4)]
    shares = [numbers_of(rank) for rank in ranks]
    assert [len(share) for share in shares] == [len(rank) for rank in ranks] == [26] * 4
    assert [rank.padding for rank in ranks] == [0, 0, 0, 1]
    for step in range(5):
        batch = [number for share in shares for number in share[5 * step : 5 * step + 5]]
        assert sorted(batch) == sorted(alone[20 * step : 20 * step + 20])
    assert shares[3][-1] == alone[0]  # what repeats is the epoch's first


def test_replicas_read_the_same(folder):
    shares = [
        numbers_of(StreamingDataset(local=folder, shuffle=True, replication=2, rank=rank, world_size=4))
        for rank in range(4)
    ]
    assert shares[0] == shares[1] != shares[2] == shares[3]
    assert sorted(shares[0] + shares[2])[:3] == [0, 1, 2]
    with pytest.raises(OrderError, match="replication=3 does not divide the 4 ranks"):
        StreamingDataset(local=folder, replication=3, rank=0, world_size=4)


def test_a_run_goes_on_from_its_state_at_any_row_with_other_ranks(folders):
    options = {"streams": streams(folders, choose=[30, 12, 40]), "shuffle": True}
    alone = StreamingDataset(**options)
    reference = [numbers_of(alone) for _ in range(3)]
    for ranks, taken in ((1, 40), (2, 24), (4, 80), (2, 82)):
        dataset = StreamingDataset(**options, batch_size=8 // ranks, rank=0, world_size=ranks)
        first = iter(dataset)
        for _ in range(-(-taken // ranks)):
            next(first)
        state = json.loads(json.dumps(dataset.state_dict(taken)))
        resumed = StreamingDataset(**options)
        resumed.load_state_dict(state)
        assert numbers_of(resumed) == (reference[0][taken:] or reference[1])
        assert numbers_of(resumed) == reference[1 if taken < 82 else 2]


def test_the_state_of_an_iteration_in_this_process_needs_no_number(folder):
    dataset = StreamingDataset(local=folder, shuffle=True, batch_size=4)
    whole = numbers_of(StreamingDataset(local=folder, shuffle=True))
    rows = iter(dataset)
    for count in range(1, 104):
        next(rows)
        assert dataset.state_dict() == dataset.state_dict(count)
    assert dataset.state_dict()["epoch"] == 1
    for count in (0, 1, 50):
        resumed = StreamingDataset(local=folder, shuffle=True, batch_size=8)
        resumed.load_state_dict(dataset.state_dict(count))
        assert resumed.state_dict() == dataset.state_dict(count)
        assert numbers_of(resumed) == whole[count:]


@pytest.mark.parametrize(
    ("number", "error"), [(-1, OptionError), (1.5, TypeError), ("3", TypeError), (True, TypeError)]
)
def test_what_is_no_number_of_rows_is_refused(number, error, folder):
    with pytest.raises(error, match="num_samples"):
        StreamingDataset(local=folder).state_dict(number)


def test_rows_may_be_counted_from_where_a_resumed_epoch_was_begun(folder):
    dataset = StreamingDataset(local=folder, shuffle=True)
    dataset.load_state_dict(dataset.state_dict(40))
    assert dataset.state_dict(10, from_beginning=False)["position"] == 50
    assert dataset.state_dict(10, from_beginning=True)["position"] == 10
    with pytest.raises(OptionError, match="num_samples"):
        dataset.state_dict(-1)


def test_a_state_of_other_data_or_another_order_is_refused(folder, folders):
    state = StreamingDataset(local=folder, shuffle=True).state_dict(8)
    others = [
        StreamingDataset(local=folders[0], shuffle=True),
        StreamingDataset(local=folder, shuffle=True, shuffle_seed=1),
        StreamingDataset(local=folder),
        StreamingDataset(local=folder, shuffle=True, epoch_size=50),
        StreamingDataset(local=folder, shuffle=True, shuffle_algo="naive"),
    ]
    for other in others:
        with pytest.raises(StateMismatchError):
            other.load_state_dict(state)
        assert other.next_epoch == 0


def test_a_state_of_streaming_is_refused_in_words(folder):
    state = {"epoch": 1, "sample_in_epoch": 80, "num_canonical_nodes": 2, "shuffle_seed": 9176}
    with pytest.raises(StateError, match="MosaicML Streaming"):
        StreamingDataset(local=folder).load_state_dict(state)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_state_reaches_the_workers_of_a_stock_loader(folder, method, persistent):
    alone = StreamingDataset(local=folder, shuffle=True)
    epochs = [numbers_of(alone) for _ in range(4)]
    dataset = StreamingDataset(local=folder, shuffle=True, batch_size=4)
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=4, num_workers=2, multiprocessing_context=method, persistent_workers=persistent
    )
    state = alone.state_dict()
    assert state["epoch"] == 4
    dataset.load_state_dict(dataset.state_dict(60))
    assert numbers_of(loader) == epochs[0][60:]
    assert numbers_of(loader) == epochs[1]
    dataset.next_epoch = 3
    dataset.load_state_dict(dataset.state_dict(100))
    assert numbers_of(loader) == epochs[3][100:]
    dataset.next_epoch = 0
    assert numbers_of(loader) == epochs[0]
    assert dataset.state_dict(103) == StreamingDataset(local=folder, shuffle=True).state_dict(103)


@pytest.mark.parametrize(
    "state", [None, 3, [], {}, {"settings": []}, {"settings": None}, {"version": 1, "settings": 3}]
)
def test_what_is_no_state_is_refused_and_changes_nothing(state, folder):
    dataset = StreamingDataset(local=folder, shuffle=True)
    dataset.next_epoch = 2
    with pytest.raises(StateError):
        dataset.load_state_dict(state)
    assert dataset.next_epoch == 2


def test_an_order_that_depends_on_the_ranks_follows_them(folders, monkeypatch):
    dataset = StreamingDataset(streams=streams(folders), batch_size=4, batching_method="device_per_stream")
    assert dataset.as_view().own_settings["devices"] == 1
    monkeypatch.setenv("RANK", "1")  # as a process group that is made later
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert dataset.as_view().own_settings["devices"] == 2
    with StatefulDataLoader(dataset, local_batch_size=4) as loader:
        assert all(sorted(counts_by_stream(batch["number"].tolist())) == [0, 0, 4] for batch in loader)


@pytest.mark.parametrize("given", [{"rank": 2, "world_size": 2}, {"rank": 1}, {"rank": 0, "world_size": 0}])
def test_ranks_that_make_no_sense_are_refused_at_once(given, folder):
    with pytest.raises(ValueError, match=r"rank|world_size"):
        StreamingDataset(local=folder, **given)


def test_a_with_block_closes_and_what_was_closed_opens_again(folder):
    with StreamingDataset(local=folder) as dataset:
        assert dataset[3]["number"] == 3
        opened = weakref.ref(dataset.stored._opened)
    gc.collect()
    assert opened() is None
    assert numbers_of(dataset) == list(range(103))


def test_the_dataset_and_its_loader_tell_one_story(folder):
    alone = StreamingDataset(local=folder, shuffle=True)
    epochs = [numbers_of(alone) for _ in range(3)]
    dataset = StreamingDataset(local=folder, shuffle=True, batch_size=8)
    with StreamingDataLoader(dataset, batch_size=8) as loader:
        assert numbers_of(loader) == epochs[0]
        batches = iter(loader)
        first = [next(batches) for _ in range(5)]
        assert dataset.state_dict(40) == loader.state_dict()  # as trainers ask that count samples themselves
        with pytest.raises(StateError, match=r"loader\.state_dict\(\)"):  # it would be the epoch's beginning
            dataset.state_dict()
        assert dataset.next_epoch == 2
    resumed = StreamingDataset(local=folder, shuffle=True, batch_size=8)
    with StreamingDataLoader(resumed, batch_size=8) as loader:
        resumed.load_state_dict(dataset.state_dict(40))
        assert loader.state_dict() == dataset.state_dict(40)
        assert numbers_of([*first, *loader]) == epochs[1]
        assert numbers_of(loader) == epochs[2]
        resumed.next_epoch = 1
        assert numbers_of(loader) == epochs[1]
        loader.load_state_dict(dataset.state_dict(40))
        assert numbers_of(loader) == epochs[1][40:]
        assert resumed.next_epoch == 2


class Stuck(StreamingDataset):
    def __getitem__(self, at):
        if torch.utils.data.get_worker_info() is not None:
            threading.Event().wait(60)
        return super().__getitem__(at)


def test_a_batch_that_does_not_come_in_time_is_an_error_that_names_the_loaders_option(folder):
    loader = StreamingDataLoader(Stuck(local=folder, batch_size=8), num_workers=1, timeout=0.2)
    with loader, pytest.raises(WorkerError, match=r"0\.2 \(of a StreamingDataLoader, and of torch, timeout\)"):
        next(iter(loader))


def test_headraces_own_loader_takes_the_dataset_as_it_is(folder):
    dataset = StreamingDataset(local=folder, shuffle=True)
    expected = numbers_of(StreamingDataset(local=folder, shuffle=True))
    with StatefulDataLoader(dataset, global_batch_size=10, drop_last=False) as loader:
        batches = iter(loader)
        first = [next(batches) for _ in range(4)]
        state = loader.state_dict()
        assert numbers_of(first) == expected[:40]
    assert state == dataset.state_dict(40)
    with StatefulDataLoader(dataset, global_batch_size=5, num_workers=2, drop_last=False) as loader:
        loader.load_state_dict(state)
        assert numbers_of(loader) == expected[40:]


def test_a_view_over_the_dataset_itself_is_refused_with_the_call_to_make(folder):
    with pytest.raises(OrderError, match=r"as_view\(\)"):
        ShuffledDataset(StreamingDataset(local=folder), seed=1)


def test_it_pickles_as_its_configuration_and_its_epoch(folder):
    dataset = StreamingDataset(local=folder, shuffle=True)
    first, second = numbers_of(dataset), numbers_of(dataset)
    assert first != second
    copied = pickle.loads(pickle.dumps(dataset))
    assert len(pickle.dumps(dataset)) < 10_000
    third = numbers_of(copied)
    assert third == numbers_of(dataset)
    assert copied.next_epoch == dataset.next_epoch == 3


def test_streams_and_places_together_are_refused(folder):
    with pytest.raises(OptionError, match="None beside streams"):
        StreamingDataset(streams=[Stream(local=folder)], local=folder)
    with pytest.raises(OptionError, match="streams"):
        StreamingDataset(streams=[])
    with pytest.raises(TypeError, match="Stream objects"):
        StreamingDataset(streams=[str(folder)])
    with pytest.raises(OptionError, match="local"):
        StreamingDataset()


@pytest.mark.parametrize("method", ["random", "per_stream", "stratified"])
def test_batches_of_streams_are_the_same_with_any_number_of_ranks_that_share_them(folders, method):
    def dataset(rank, world_size):
        return StreamingDataset(
            streams=streams(folders, choose=[30, 30, 60]),
            batch_size=12 // world_size,
            batching_method=method,
            shuffle=True,
            rank=rank,
            world_size=world_size,
        )

    alone = numbers_of(dataset(0, 1))
    for world_size in (2, 3, 4):
        ranks = [dataset(rank, world_size) for rank in range(world_size)]
        state = ranks[0].state_dict(36)
        for rank in ranks:
            rank.load_state_dict(state)
        shares = [numbers_of(rank) for rank in ranks]
        for step in range(len(alone[36:]) // 12):
            batch = [
                share[at] for share in shares for at in range(step * 12 // world_size, (step + 1) * 12 // world_size)
            ]
            assert sorted(batch) == sorted(alone[36 + 12 * step : 48 + 12 * step])


def test_batches_of_one_stream_a_device_go_on_with_as_many_devices_only(folders):
    def dataset(world_size):
        options = {"batch_size": 12 // world_size, "rank": 0, "world_size": world_size, "shuffle": True}
        return StreamingDataset(streams=streams(folders), batching_method="device_per_stream", **options)

    with pytest.raises(StateMismatchError, match="devices"):
        dataset(2).load_state_dict(dataset(4).state_dict(12))


def test_streams_may_have_different_columns_where_no_batch_loses_any(tmp_path):
    with MDSWriter(out=str(tmp_path / "a"), columns={"text": "str"}) as out:
        for number in range(12):
            out.write({"text": str(number)})
    with MDSWriter(out=str(tmp_path / "b"), columns={"text": "str", "label": "int"}) as out:
        for number in range(12, 24):
            out.write({"text": str(number), "label": number})
    both = {"streams": [Stream(local=tmp_path / "a"), Stream(local=tmp_path / "b")], "batch_size": 4, "shuffle": True}
    dataset = StreamingDataset(**both)
    assert dataset[3] == {"text": "3"}
    assert dataset[20] == {"text": "20", "label": 20}
    assert sorted(int(sample["text"]) for sample in dataset) == list(range(24))
    with StreamingDataLoader(dataset) as loader, pytest.raises(ValueError, match="per_stream"):
        list(loader)
    with StreamingDataLoader(dataset, collate_fn=list) as loader:
        assert sum(map(len, loader)) == 24
    with StreamingDataLoader(StreamingDataset(**both, batching_method="per_stream")) as loader:
        batches = list(loader)
    assert sorted(tuple(batch) for batch in batches) == [("label", "text")] * 3 + [("text",)] * 3
