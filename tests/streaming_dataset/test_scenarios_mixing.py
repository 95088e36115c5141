"""Scenarios from bug reports of comparable tools: weights of streams, counts that must be exact, streams of nothing."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch.utils.data

from headrace import MemoryStore, Stream, StreamingDataLoader, StreamingDataset
from headrace.errors import NoDatasetError, OptionError
from headrace.testing import FaultStore
from loading.samples import flat
from sample_scenes import index_of, put_index
from streaming_dataset.scenes import Job, dataset_of, store_of
from streaming_dataset.written import numbers_of, streams, write_numbers, write_streams

FORK = {"num_workers": 2, "multiprocessing_context": "fork"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Streams of 1,000, 1,000, 100 and 300 samples."""
    return write_streams(tmp_path_factory.mktemp("streams"), (1000, 1000, 100, 300), a_shard=100)


STARTS = (0, 1000, 2000, 2100)


def stream_of(numbers):
    """Which of the folders each number is from."""
    return np.searchsorted(STARTS, numbers, "right") - 1


def counts(numbers, num_streams):
    return np.bincount(stream_of(numbers), minlength=num_streams).tolist()


# O40: extreme weights and exact counts

WEIGHTED = [
    ([0.001, 0.999], 2000, [2, 1998]),
    ([0.2, 0.3, 0.5], 10, [2, 3, 5]),
    ([1 / 3, 1 / 3, 1 / 3], 100, [34, 33, 33]),
    ([1e-6, 1], 100, [0, 100]),
    ([9, 1], 500, [450, 50]),
    ([0.9, 0.1], 500, [450, 50]),
    ([1e-300, 1e300], 10, [0, 10]),
]


@pytest.mark.parametrize(("weights", "epoch_size", "expected"), WEIGHTED)
@pytest.mark.parametrize("shuffle", [False, True])
def test_proportions_are_counted_exactly_in_every_epoch(weights, epoch_size, expected, shuffle, folders):
    some = streams(folders[: len(weights)], proportion=weights)
    dataset = StreamingDataset(streams=some, epoch_size=epoch_size, shuffle=shuffle)
    for _ in range(2):
        numbers = numbers_of(dataset)
        assert counts(numbers, len(weights)) == expected
        assert len(numbers) == len(dataset) == dataset.epoch_size == epoch_size


def test_equal_weights_in_other_numbers_are_one_order(folders):
    nine, tenths = (
        StreamingDataset(streams=streams(folders[:2], proportion=weights), epoch_size=500, shuffle=True)
        for weights in ([9, 1], [0.9, 0.1])
    )
    assert numbers_of(nine) == numbers_of(tenths)
    assert nine.state_dict() == tenths.state_dict()


def test_without_weights_streams_count_by_their_sizes(folders):
    dataset = StreamingDataset(streams=streams(folders[2:]), shuffle=True)
    assert sorted(numbers_of(dataset)) == [number + 2000 for number in range(400)]
    twice = StreamingDataset(streams=streams(folders[2:]), shuffle=True, epoch_size=800)
    assert np.bincount(np.array(numbers_of(twice)) >= 2100).tolist() == [200, 600]


@pytest.mark.parametrize("name", ["repeat", "choose"])
def test_what_is_repeated_or_chosen_has_each_sample_as_often_to_within_one(name, folders):
    weights = {"repeat": [0.5, 2.25, 3], "choose": [500, 2250, 300]}[name]
    dataset = StreamingDataset(streams=streams(folders[:3], **{name: weights}), shuffle=True)
    seen = Counter()
    for epoch in range(1, 4):
        numbers = numbers_of(dataset)
        assert counts(numbers, 3) == [500, 2250, 300]
        seen.update(numbers)
        for stream, (begin, end) in enumerate(itertools.pairwise((*STARTS[:3], 2100))):
            # Nothing comes again before everything was seen, across epochs too.
            times = [seen[number] for number in range(begin, end)]
            assert max(times) - min(times) <= 1
            assert sum(times) == [500, 2250, 300][stream] * epoch


def test_in_a_shuffled_epoch_every_prefix_has_about_its_share_of_each_stream(folders):
    dataset = StreamingDataset(streams=streams(folders[:3], proportion=[2, 3, 5]), epoch_size=2000, shuffle=True)
    found = stream_of(numbers_of(dataset))
    for stream, share in enumerate((0.2, 0.3, 0.5)):
        off = np.cumsum(found == stream) - share * np.arange(1, 2001)
        assert np.abs(off).max() < 4 * (2000 * share * (1 - share)) ** 0.5 / 2  # a bridge: widest in the middle


@pytest.mark.parametrize("method", ["stratified", "per_stream"])
def test_far_proportions_leave_batches_whole_or_are_refused_with_the_number_it_takes(method):
    # Sizes of 10 and 10,000 at 100 to 1, batches of 16.
    few = store_of(range(10), "one shard")
    many = store_of(range(10, 10_010), "skewed")
    options = {"batch_size": 16, "batching_method": method, "shuffle": True, "epoch_size": 16 * 101}
    dataset = StreamingDataset(
        streams=[Stream(remote=few, proportion=100), Stream(remote=many, proportion=1)], **options
    )
    if method == "stratified":
        # 1 in 101 of 16 rows is less than one.
        with pytest.raises(OptionError, match=r"batch_size=16 .* at least 101, so that stream 1"):
            len(dataset)
        return
    with StreamingDataLoader(dataset) as loader:
        batches = [numbers_of([batch]) for batch in loader]
    assert {len(batch) for batch in batches} == {16}
    kinds = [{number < 10 for number in batch} for batch in batches]
    assert all(len(kind) == 1 for kind in kinds)
    assert sum(kind == {True} for kind in kinds) == 100
    assert sum(kind == {False} for kind in kinds) == 1


def test_what_an_epoch_will_have_can_be_asked_before_it_is_read(folders):
    dataset = StreamingDataset(streams=streams(folders[:3], choose=[7, 0, 250]), shuffle=True)
    order = dataset.as_view().order
    assert order.chosen == (7, 0, 250)
    assert order.epoch_size == dataset.epoch_size == 257
    assert dataset.samples_per_stream.tolist() == [1000, 1000, 100]
    assert dict(dataset.as_view().own_settings)["chosen"] == "7,0,250"


# O41: weight zero, empty streams, stop rules


@pytest.mark.parametrize("loading", [{}, FORK], ids=["alone", "2 workers"])
@pytest.mark.parametrize(
    "zero",
    [{"choose": [0, 10, 10]}, {"repeat": [0, 1, 1]}, {"proportion": [0, 1, 1]}],
    ids=lambda zero: next(iter(zero)),
)
def test_of_a_stream_that_gives_nothing_no_shard_is_ever_read(zero, loading):
    store = FaultStore(store_of(range(10), "one sample a shard"))
    others = [store_of(range(first, first + 10), "skewed") for first in (10, 20)]
    ((name, weights),) = zero.items()
    dataset = StreamingDataset(
        streams=[
            Stream(remote=place, **{name: weight}) for place, weight in zip([store, *others], weights, strict=True)
        ],
        shuffle=True,
    )
    expected = {"choose": 20, "repeat": 20, "proportion": 30}[name]
    with StreamingDataLoader(dataset, batch_size=4, **loading) as loader:
        numbers = numbers_of(loader)
    assert len(numbers) == expected
    assert set(numbers) == set(range(10, 30))
    # Its index is read: numbers of samples count those of all streams.
    assert {call.path for call in store.calls} <= {"index.json", ""}


@pytest.mark.parametrize("counts_of", list(itertools.permutations([0, 2, 1])))
@pytest.mark.parametrize("shuffle", [False, True])
def test_streams_of_none_one_and_two_samples_give_three_wherever_they_stand(counts_of, shuffle):
    ends = [0, *itertools.accumulate(counts_of)]
    stores = [store_of(range(*pair), "one shard") for pair in itertools.pairwise(ends)]
    for ranks, size in ((1, 1), (2, 2), (2, 4)):
        job = Job(lambda **world: dataset_of(stores, shuffle=shuffle, **world), ranks, size)
        for _ in range(2):
            rows = flat(job.epoch())
            assert sorted(rows) == [0, 1, 2]
            assert shuffle or rows == [0, 1, 2]


@pytest.mark.parametrize("workers", [0, 2])
def test_three_four_and_three_samples_are_ten_distinct_ones_for_ranks_and_workers_alike(workers, tmp_path):
    folders = write_streams(tmp_path, (3, 4, 3), a_shard=2)
    rows = []
    for rank in range(2):
        dataset = StreamingDataset(streams=streams(folders), shuffle=True, batch_size=2, rank=rank, world_size=2)
        rows += numbers_of(torch.utils.data.DataLoader(dataset, 2, num_workers=workers))
    assert sorted(rows) == list(range(10))


@pytest.fixture(scope="module")
def sparse(tmp_path_factory):
    """1,024 shards of which 25 have samples."""
    folder = write_numbers(tmp_path_factory.mktemp("sparse") / "data", range(25 * 4), a_shard=4)
    index = index_of(folder)
    full = index["shards"]
    shards = []
    for number in range(1024):
        name = f"empty.{number:05d}.mds"
        (folder / name).write_bytes(bytes(4) + (8).to_bytes(4, "little"))
        shards.append({**full[0], "samples": 0, "raw_data": {**full[0]["raw_data"], "basename": name, "bytes": 8}})
    for number, shard in enumerate(full):
        shards[number * 41] = shard
    put_index(folder, {**index, "shards": shards})
    return folder


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_many_shards_of_which_few_have_samples_stop_nobody(sparse):
    dataset = StreamingDataset(local=sparse, shuffle=True, batch_size=3)
    assert dataset.num_shards == 1024
    for _ in range(100):
        assert sorted(numbers_of(dataset)) == list(range(100))
    with StreamingDataLoader(dataset, num_workers=8, multiprocessing_context="fork", persistent_workers=True) as loader:
        for _ in range(3):
            assert sorted(numbers_of(loader)) == list(range(100))


@pytest.mark.parametrize(
    "weights",
    [
        {"proportion": [0, 0]},
        {"proportion": [-1, 2]},
        {"proportion": [float("nan"), 1]},
        {"repeat": [float("inf"), 1]},
        {"choose": [-1, 1]},
    ],
    ids=str,
)
def test_weights_that_mean_nothing_are_refused_before_a_sample_is_read(weights, folders):
    with pytest.raises(OptionError, match=next(iter(weights))):
        len(StreamingDataset(streams=streams(folders[:2], **weights)))


@pytest.mark.parametrize("weights", [{"choose": [0, 0]}, {"repeat": [0, 0.0001]}])
def test_streams_that_give_nothing_at_all_are_an_epoch_of_nothing(weights, folders):
    dataset = StreamingDataset(streams=streams(folders[:2], **weights), shuffle=True, batch_size=2)
    for _ in range(2):
        assert list(dataset) == list(StreamingDataLoader(dataset)) == []
    assert len(dataset) == 0


def test_a_stream_that_is_not_there_is_named_even_where_it_gives_nothing(folders):
    absent = Stream(remote=MemoryStore(), choose=0)
    with pytest.raises(NoDatasetError):
        len(StreamingDataset(streams=[Stream(local=folders[0], choose=3), absent]))
