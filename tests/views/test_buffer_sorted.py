"""A buffer-sorted view: one order over the same samples, whoever reads it, in whatever order, as often as they like."""

import pickle
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import OptionError, OrderError
from headrace.planning import Permutation, window_order
from headrace.views import (
    BufferSortedDataset,
    MixedDataset,
    SelectedDataset,
    ShardedDataset,
    ShuffledDataset,
    WithLengths,
)
from headrace.views.protocol import with_base

RNG = np.random.default_rng(0)
KEYS = RNG.integers(0, 2048, 4096)


class ByVector:
    """Sorted by a vector of keys; counts what it is asked."""

    def __init__(self, keys):
        self.keys = np.asarray(keys)
        self.calls = []

    def __len__(self):
        return len(self.keys)

    def __getitem__(self, index):
        return index

    def sort_keys(self, indices):
        assert indices.dtype == np.int64
        self.calls.append(indices.tolist())
        return self.keys[indices]


class OneByOne:
    """As d9d's users write it."""

    def __init__(self, keys):
        self.keys = list(keys)
        self.calls = 0

    def __len__(self):
        return len(self.keys)

    def __getitem__(self, index):
        return index

    def sort_key(self, index):
        assert type(index) is int
        self.calls += 1
        return self.keys[index]


def expected(keys, buffer_size, pack_size, seed=0):
    order = []
    for window, begin in enumerate(range(0, len(keys), buffer_size)):
        part = keys[begin : begin + buffer_size]
        order += [begin + place for place in window_order(part, pack_size, window, seed).tolist()]
    return order


@given(
    keys=st.lists(st.integers(0, 9), max_size=50),
    buffer_size=st.integers(1, 60),
    pack_size=st.integers(1, 60),
    seed=st.none() | st.integers(),
    epoch=st.integers(0, 10**6),
)
def test_every_epoch_has_the_order_of_its_windows_which_begin_anew(keys, buffer_size, pack_size, seed, epoch):
    view = BufferSortedDataset(OneByOne(keys), buffer_size, pack_size, seed)
    assert list(view) == expected(keys, buffer_size, pack_size, seed or 0)
    positions = np.arange(len(keys)) + epoch * len(keys)
    assert (view.locate(positions) - epoch * len(keys)).tolist() == list(view)


def test_keys_come_from_a_vector_from_each_sample_or_from_the_lengths_alike():
    orders = [
        list(BufferSortedDataset(base, 300, 16, 7))
        for base in (ByVector(KEYS), OneByOne(KEYS.tolist()), WithLengths(range(4096), KEYS))
    ]
    assert orders[0] == orders[1] == orders[2] == expected(KEYS, 300, 16, 7)


def test_without_a_seed_all_ranks_agree_and_no_sample_is_lost():
    for ranks in (2, 4, 8):
        shards = [
            ShardedDataset(BufferSortedDataset(ByVector(KEYS), 1024, 256), ranks, rank, "sequential", True)
            for rank in range(ranks)
        ]
        assert sorted(item for shard in shards for item in shard[:]) == list(range(4096))
    assert list(BufferSortedDataset(ByVector(KEYS), 64, 8)) == list(BufferSortedDataset(ByVector(KEYS), 64, 8, 0))


@pytest.mark.parametrize("buffer_size", [64, 256, 1024])
def test_any_order_of_access_sees_the_same_samples_and_asks_for_each_key_once(buffer_size):
    base = OneByOne(KEYS.tolist())
    view = BufferSortedDataset(base, buffer_size, 16, 3)
    access = Permutation(4096, 5)(np.arange(4096))
    items = [view[index] for index in access.tolist()]
    assert sorted(items) == list(range(4096))
    assert base.calls == 4096
    in_sequence = list(BufferSortedDataset(OneByOne(KEYS.tolist()), buffer_size, 16, 3))
    assert items == [in_sequence[index] for index in access.tolist()]


def test_copies_in_workers_agree_whatever_buffers_they_read_before():
    whole = BufferSortedDataset(ByVector(KEYS[:960]), 48, 12)
    workers = [pickle.loads(pickle.dumps(whole)) for _ in range(3)]
    assert workers[0] is not whole
    batches = [range(begin, begin + 32) for begin in range(0, 960, 32)]
    items = [workers[number % 3].__getitems__(batch) for number, batch in enumerate(batches)]
    assert [item for batch in items for item in batch] == list(whole)


def test_a_second_pass_is_the_first_one_again_and_epochs_over_a_fixed_base_are_alike():
    view = BufferSortedDataset(ByVector(KEYS), 256, 16)
    first = list(view)
    assert list(view) == first
    assert view.__getitems__(np.arange(3 * 4096, 4 * 4096)) == first
    assert view.same_each_epoch


def test_keys_are_asked_for_once_a_window_by_vector():
    base = ByVector(KEYS)
    view = BufferSortedDataset(base, 1000, 16)
    for begin in range(0, 3 * 4096, 7):
        view.__getitems__(np.arange(begin, begin + 7))
    assert base.calls == [list(range(begin, min(begin + 1000, 4096))) for begin in range(0, 4096, 1000)]


def test_threads_that_need_one_window_ask_for_its_keys_once():
    base = ByVector(KEYS)
    view = BufferSortedDataset(base, 4096, 16)
    barrier = threading.Barrier(8)
    got = [None] * 8

    def read(number):
        barrier.wait()
        got[number] = view.__getitems__(np.arange(number * 512, (number + 1) * 512))

    threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(base.calls) == 1
    assert [item for part in got for item in part] == expected(KEYS, 4096, 16)


def test_a_copy_over_another_base_takes_its_keys():
    view = BufferSortedDataset(ByVector(KEYS[:100]), 30, 7)
    view.locate(np.arange(100))
    other = ByVector(KEYS[100:200])
    assert list(with_base(view, other)) == list(BufferSortedDataset(other, 30, 7))


def test_over_a_shuffle_each_epoch_sorts_its_own_samples():
    base = WithLengths(range(100), np.arange(100))
    view = BufferSortedDataset(ShuffledDataset(base, 1), 20, 5)
    assert not view.same_each_epoch
    epochs = [view.__getitems__(np.arange(100) + 100 * epoch) for epoch in range(3)]
    for number, epoch in enumerate(epochs):
        assert sorted(epoch) == list(range(100))
        below = ShuffledDataset(base, 1).__getitems__(np.arange(100) + 100 * number)
        for begin in range(0, 100, 20):
            window = below[begin : begin + 20]
            assert sorted(epoch[begin : begin + 20]) == sorted(window)
            order = window_order(window, 5, begin // 20, 0)
            assert epoch[begin : begin + 20] == [window[place] for place in order]
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_keys_are_found_through_views():
    base = ByVector(KEYS)
    chosen = np.flatnonzero(KEYS % 2)
    view = BufferSortedDataset(SelectedDataset(ShuffledDataset(base, 1), exclude=[0]), 64, 8)
    positions = np.arange(4095)
    below = SelectedDataset(ShuffledDataset(base, 1), exclude=[0])
    items = below.__getitems__(positions)
    assert view.__getitems__(positions) == [items[place] for place in expected(KEYS[items], 64, 8)]
    part = BufferSortedDataset(SelectedDataset(base, chosen), 100, 10)
    assert part[:] == [int(chosen[place]) for place in expected(KEYS[chosen], 100, 10)]
    twice = BufferSortedDataset(part, 100, 10, 5)[:]
    assert twice != part[:]
    assert sorted(twice) == chosen.tolist()


def test_keys_are_found_through_a_mixture_whatever_each_source_is_sorted_by():
    def own_key(dataset):
        """The samples of dataset are their keys."""
        dataset.__class__ = type("Own", (type(dataset),), {"__getitem__": lambda self, index: self.keys[index]})
        return dataset

    rows = np.stack([KEYS % 7, KEYS], axis=1)
    mixtures = {
        "numbers": [ByVector(KEYS[:100]), OneByOne(KEYS[100:150].tolist()), ByVector(KEYS[150:160] + 0.5)],
        "rows": [ByVector(rows[:100]), ByVector(rows[100:150])],
        "rows and lists": [ByVector(rows[:100]), OneByOne(rows[100:150].tolist())],
    }
    for sources in mixtures.values():
        below = ShuffledDataset(MixedDataset({str(n): own_key(each) for n, each in enumerate(sources)}, seed=3), 5)
        keys = [np.asarray(sample).tolist() for sample in below]
        view = BufferSortedDataset(below, 40, 8, 2)
        assert [np.asarray(sample).tolist() for sample in view] == [keys[place] for place in expected(keys, 40, 8, 2)]


def test_neighbours_are_of_like_length_so_that_batches_need_little_padding():
    def padding(order):
        lengths = KEYS[np.array(order)].reshape(-1, 16)
        return (lengths.max(axis=1, keepdims=True) - lengths).mean()

    view = BufferSortedDataset(ByVector(KEYS), 1024, 16)
    assert padding(view[:]) < 40
    assert padding(range(4096)) > 800


def test_a_batch_is_one_call_to_the_base():
    class Batched(ByVector):
        def __getitems__(self, items):
            batches.append(list(items))
            return [item * 10 for item in items]

    batches = []
    view = BufferSortedDataset(Batched(KEYS[:100]), 30, 7)
    got = view.__getitems__(np.arange(25, 65))
    assert got == [item * 10 for item in expected(KEYS[:100], 30, 7)[25:65]]
    assert len(batches) == 1


def test_negative_indices_count_from_the_end_and_what_is_outside_is_refused():
    view = BufferSortedDataset(ByVector(KEYS[:10]), 4, 2)
    order = list(view)
    assert [view[index] for index in range(-10, 0)] == order
    for index in (10, -11):
        with pytest.raises(IndexError):
            view[index]
    with pytest.raises(IndexError):
        view.locate(np.array([3, -1]))
    assert list(BufferSortedDataset(ByVector([]), 4, 2)) == []


def test_windows_of_a_trillion_samples_are_ordered_alone():
    class Computed:
        def __len__(self):
            return 10**12

        def __getitem__(self, index):
            return index

        def sort_keys(self, indices):
            return indices * 7919 % 2048

    view = BufferSortedDataset(ShuffledDataset(Computed(), 3), 512, 16)
    begin = 10**12 // 512 // 2 * 512
    positions = np.arange(begin, begin + 512) + 3 * 10**12
    assert sorted(view.__getitems__(positions)) == sorted(ShuffledDataset(Computed(), 3).__getitems__(positions))


def test_a_window_of_100_000_is_read_in_batches_without_sorting_it_again():
    view = BufferSortedDataset(WithLengths(range(200_000), RNG.integers(0, 2048, 200_000)), 100_000, 256)
    begin = time.process_time()
    for start in range(0, 200_000, 500):
        view.locate(np.arange(start, start + 500))
    assert time.process_time() - begin < 1  # 0.1 s was measured where this was written


@pytest.mark.parametrize("option", ["buffer_size", "pack_size"])
def test_sizes_under_one_are_refused_by_name(option):
    for value in (0, -5):
        with pytest.raises(OptionError, match=f"{option}={value}"):
            BufferSortedDataset(ByVector(KEYS), **{"buffer_size": 4, "pack_size": 2, option: value})
    for value in (2.0, True, "4", None):
        with pytest.raises(TypeError, match=option):
            BufferSortedDataset(ByVector(KEYS), **{"buffer_size": 4, "pack_size": 2, option: value})
    with pytest.raises(TypeError, match="init_seed"):
        BufferSortedDataset(ByVector(KEYS), 4, 2, 1.5)


def test_the_arguments_have_d9d_s_names():
    view = BufferSortedDataset(base_dataset=ByVector(KEYS), buffer_size=4, pack_size=2, init_seed=5)
    assert list(view) == expected(KEYS, 4, 2, 5)


def test_a_dataset_with_nothing_to_sort_by_and_one_with_too_few_keys_are_refused():
    with pytest.raises(TypeError, match=r"list has nothing to sort by; give it sort_keys\(indices\)"):
        BufferSortedDataset([1, 2, 3], 2, 2)[0]

    class Short(ByVector):
        def sort_keys(self, indices):
            return self.keys[indices][1:]

    with pytest.raises(OrderError, match="Short gave 3 sort keys for the 4 samples from 0"):
        BufferSortedDataset(Short(KEYS), 4, 2)[0]


def test_settings_name_everything_that_decides_the_order():
    base = WithLengths(range(10), range(10))
    views = [BufferSortedDataset(base, *sizes) for sizes in ((4, 2), (5, 2), (4, 3), (4, 2, 1))]
    assert len({str(view.settings) for view in views}) == 4
    assert views[0].settings == BufferSortedDataset(base, 4, 2, 0).settings
    assert BufferSortedDataset(views[0], 4, 2).settings.items() > views[0].settings.items()
